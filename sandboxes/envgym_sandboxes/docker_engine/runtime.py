"""The interpreter that a container's agent runs in: this one's own files, gathered in one folder, for any image.

An image may have no Python, or an old one. The folder is shown read-only in every container and started through
its own dynamic loader, so that no library of the image is touched. It holds the standard library and this
package, no third one.
"""

import hashlib
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from envgym.errors import SandboxUnavailable
from envgym_sandboxes.images.store import Store, default_store

__all__ = ["INSIDE", "command", "gather"]

INSIDE = "/envgym"
"""Where the folder appears in a container."""
LINE = "line"
_PACKAGE = Path(__file__).resolve().parents[1]
_AGENT = "envgym_sandboxes.docker_engine.agent"
_LEFT_OUT = {
    "__pycache__", "test", "tests", "idlelib", "lib2to3", "ensurepip", "tkinter", "turtledemo", "pydoc_data",
    "site-packages", "dist-packages", "distutils", "unittest", "sqlite3", "xml", "xmlrpc", "wsgiref", "curses",
    "dbm", "venv", "lib-dynload",
}  # fmt: skip
_LOADED = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import encodings.idna, traceback, threading, atexit, "
    f"{_AGENT}; print(json.dumps([getattr(m, '__file__', None) for m in sys.modules.values()]))"
)


def command(settings: str) -> list[str]:
    """What a container runs as pid 1."""
    code = f"from {_AGENT} import main; main()"
    python = [f"{INSIDE}/ld.so", "--library-path", f"{INSIDE}/lib", f"{INSIDE}/bin/python3"]
    return [*python, "-I", "-S", "-B", "-c", code, settings]


def gather() -> Path:
    """The folder, made once for each version of this interpreter and this package. Raises SandboxUnavailable."""
    store = Store(default_store().top.parent / "runtime")
    place = store.top / _key()
    if not place.is_dir():
        with store.scratch() as making:
            _fill(making / "runtime")
            if not place.is_dir():  # else somebody was first
                (making / "runtime").rename(place)
    return place


def _key() -> str:
    total = hashlib.sha256(f"{sys.version}\0{_interpreter()}\0{_interpreter().stat().st_mtime_ns}".encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()[:32]


def _interpreter() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _fill(top: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = top / "lib" / version
    for folder in (top / "bin", library / "lib-dynload", top / LINE):
        folder.mkdir(parents=True)
    extensions = _extensions()
    libraries = _libraries([_interpreter(), *extensions])
    loaders = [path for path in libraries if re.match(r"ld-|ld\.", path.name)]
    if len(loaders) != 1:
        raise SandboxUnavailable(
            f"{_interpreter()} has {len(loaders)} dynamic loaders; containers need one of them"
        )
    shutil.copy(loaders[0], top / "ld.so")
    shutil.copy(_interpreter(), top / "bin" / "python3")
    for path in libraries - {loaders[0]}:
        shutil.copy(path, top / "lib" / path.name)
    for path in extensions:
        shutil.copy(path, library / "lib-dynload" / path.name)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_ignore, dirs_exist_ok=True)
    shutil.copytree(_PACKAGE, library / _PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in library.rglob("*.py"):
        py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)
    for path in top.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _ignore(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in _LEFT_OUT or name.startswith("config-")]


def _extensions() -> list[Path]:
    """The compiled modules that the agent imports."""
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LOADED, str(_PACKAGE.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise SandboxUnavailable(f"the container's agent cannot be imported: {told.stderr[-1000:]}")
    found = re.findall(r'"([^"]+\.so)"', told.stdout)
    return [Path(path) for path in sorted(set(found))]


def _libraries(programs: list[Path]) -> set[Path]:
    """The shared libraries that programs need, the loader included, under the names they are asked for by."""
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False, env=environment)
    if told.returncode:
        raise SandboxUnavailable(f"ldd cannot tell what {programs[0]} needs: {told.stderr[-1000:]}")
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(", told.stdout, re.M)}
