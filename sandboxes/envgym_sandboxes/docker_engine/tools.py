"""What every container is shown, read-only, so that any image will do: a program that waits, and what hides things.

The program is this host's own `cat` with its libraries, started through its own dynamic loader, so that nothing of
the image is needed. As pid 1 it reads a pipe that the owner holds open: it ends, and the container with it, when
the owner does, however that ends.
"""

import hashlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from envgym.errors import SandboxUnavailable
from envgym_sandboxes import capsule, masks
from envgym_sandboxes.capsule import TOOLS
from envgym_sandboxes.images.store import Store, default_store

__all__ = ["LINE", "gather", "libraries", "waiting"]

LINE = "line"
"""The folder in `TOOLS` that is each container's own."""
_PROGRAM = "cat"


def waiting(folder: Path, pipe: str) -> list[str]:
    """What a container runs as pid 1, with a folder that `gather` made. pipe: a name in its `LINE`."""
    started = [f"{TOOLS}/ld.so", "--library-path", f"{TOOLS}/lib"] if (folder / "ld.so").exists() else []
    return [*started, f"{TOOLS}/{_PROGRAM}", f"{TOOLS}/{LINE}/{pipe}"]


@cache
def gather() -> Path:
    """The folder, made once for this version of the program and of this code. Raises SandboxUnavailable."""
    found = shutil.which(_PROGRAM)
    if found is None:
        raise SandboxUnavailable(f"there is no {_PROGRAM} on this host, which waits in every container")
    program = Path(found).resolve()
    store = Store(default_store().top.parent / "containers")
    key = hashlib.sha256(f"{program}\0{program.stat().st_mtime_ns}".encode())
    for module in (__file__, capsule.__file__, masks.__file__):
        key.update(Path(module).read_bytes())
    place = store.top / f"tools-{key.hexdigest()[:32]}"
    if not place.is_dir():
        with store.scratch() as making:
            _fill(making / "tools", program)
            if not place.is_dir():  # else somebody was first
                (making / "tools").rename(place)
    return place


def _fill(top: Path, program: Path) -> None:
    for folder in (top, top / "lib", top / LINE):
        folder.mkdir(mode=0o755)
    capsule.furnish(str(top))
    shutil.copy(program, top / _PROGRAM)
    for path in libraries([program]):
        target = top / "ld.so" if re.match(r"ld-|ld\.", path.name) else top / "lib" / path.name
        shutil.copy(path, target)


def libraries(programs: list[Path]) -> set[Path]:
    """The shared libraries that programs need, their loader included, by the names they are asked for.

    Of a program without any: none. Raises SandboxUnavailable when that cannot be found out.
    """
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    if told.returncode and "not a dynamic executable" not in told.stdout + told.stderr:
        raise SandboxUnavailable(f"ldd cannot tell what {programs[0]} needs: {told.stderr[-1000:]}")
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(", told.stdout, re.M)}
