"""What no world can be, whichever backend plays it: pure checks of the fields of `envgym.task.World`.

Each raises ValueError with field, value and what to give instead. What one backend cannot do is its own matter.
"""

import posixpath
from collections.abc import Collection, Mapping, Sequence

from envgym.arguments import checked_text

__all__ = ["check_files", "check_modules", "check_path", "check_texts", "check_variables", "check_workdir"]

_SYSTEM = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
_HOSTS = (*_SYSTEM, "nix", "opt")
_SOURCES = "/usr/src/"


def check_path(name: str, path: str) -> None:
    """Refuse a path that is not absolute and plain."""
    checked_text(name, path)
    if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path:
        raise ValueError(f"{name}: {path!r} must be an absolute path without '.', '..' or doubled slashes")


def check_workdir(workdir: str, *, host: bool) -> None:
    """Refuse to cover what programs need. host: the world stands on the host, which shows more of its own."""
    check_path("World.workdir", workdir)
    taken = _HOSTS if host else _SYSTEM
    if workdir.split("/")[1] in taken and (host or not workdir.startswith(_SOURCES)):
        but = "" if host else f"; below {_SOURCES} is allowed"
        raise ValueError(
            f"World.workdir is {workdir!r}; it must not be, or be in, {', '.join(f'/{name}' for name in taken)}, "
            f"where programs and the kernel's files are{but}: take a directory of its own, such as '/work'"
        )


def check_files(files: Collection[str], directories: Mapping[str, str]) -> None:
    """Refuse files that are to be where a directory must be. directories: what must be one -> why."""
    for path in files:
        check_path("World.files", path)
    needed = {posixpath.dirname(path): path for path in files} | dict(directories)
    for path in [*needed]:  # and all above them
        above = path
        while above != "/" and (above := posixpath.dirname(above)) not in needed:
            needed[above] = needed[path]
    for path in files:
        if path in needed:
            raise ValueError(
                f"World.files: {path!r} is to be a file, and a directory, for {needed[path]}: give one another name"
            )


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Refuse texts that no kernel takes."""
    for at, text in enumerate(texts):
        checked_text(f"{name}[{at}]", text)


def check_variables(name: str, env: Mapping[str, str]) -> None:
    """Refuse names and values that no program can be given."""
    for variable, value in env.items():
        checked_text(f"a name in {name}", variable)
        checked_text(f"{name}[{variable!r}]", value)
        if not variable or "=" in variable:
            raise ValueError(f"{name} has {variable!r}; a variable's name is not empty and has no '='")


def check_modules(name: str, modules: Sequence[str]) -> None:
    """Refuse what cannot be the name of a Python module."""
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{name}: {module!r} cannot be the name of a Python module; give one like 'json.tool'")
