"""Shows a virtual environment at another path and goes on importing from there: for the zygote, before it forks."""

import glob
import os
import sys

from envgym_sandboxes import syscalls

__all__ = ["move_python"]

_LONGEST_SCRIPT = 1 << 20


def move_python(alias: str, top: str) -> None:
    """Show this interpreter's virtual environment at `alias`, read-only, and import from there from now on.

    `top` is an empty place in this mount namespace only. Scripts whose first line names the old place are copied.
    """
    old = sys.prefix
    syscalls.mount("envgym", top, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    scripts = f"{top}/scripts"
    for path in (alias, scripts):
        os.mkdir(path)
    for entry in os.scandir(f"{old}/bin"):
        if entry.is_file(follow_symlinks=False) and entry.stat().st_size < _LONGEST_SCRIPT:
            with open(entry.path, "rb") as file:
                content = file.read()
            if content.startswith(b"#!" + old.encode()):
                with open(f"{scripts}/{entry.name}", "wb") as file:
                    file.write(content.replace(old.encode(), alias.encode(), 1))
                os.chmod(f"{scripts}/{entry.name}", 0o755)
    syscalls.bind(old, alias, read_only=True)
    with open(f"{top}/empty", "w"):
        pass
    for path in glob.glob(f"{alias}/lib/python*/site-packages/*envgym*.pth"):
        syscalls.bind(f"{top}/empty", path)  # programs inside must not begin by importing this project
    sys.path[:] = [alias + path[len(old) :] if path.startswith(old) else path for path in sys.path]
    sys.prefix = sys.exec_prefix = alias
    sys.executable = f"{alias}/bin/{os.path.basename(sys.executable)}"
    sys.path_importer_cache.clear()
