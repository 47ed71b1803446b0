"""Test files as they were before tested code ran: read beforehand, and imported from what was read.

Tested code is imported in the middle of a collection and could rewrite files that are still to be collected; what
is imported below the tests' folders is therefore what lay there at the beginning. Data files are not covered.
Standard library and pytest only: it may have come as source.
"""

import ast
import importlib.machinery
import importlib.util
import marshal
import os
import struct
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

from _pytest.assertion import rewrite

__all__ = ["Pristine"]

_MOST_FILES = 2000

_STAMPS = {
    bytes(4): lambda source, mtime, size: struct.pack("<II", mtime & 0xFFFFFFFF, size & 0xFFFFFFFF),
    b"\3\0\0\0": lambda source, mtime, size: importlib.util.source_hash(source),
}
"""What byte code says of its source, by its flags: pytest stamps it with time and size, since 9.2 with a hash."""


class Pristine:
    """Python files by absolute path: source, time and size, and pytest's byte code of it where there is any."""

    def __init__(self, root: str, package: str, tests: Sequence[str]) -> None:
        self._kept: dict[str, tuple[bytes, int, int, bytes]] = {}
        own = os.path.join(root, package)
        for name in tests:
            place = os.path.join(root, name)
            folder = os.path.dirname(place)
            self.keep(place)
            while folder.startswith(root):
                self.keep(os.path.join(folder, "conftest.py"))
                folder = os.path.dirname(folder)
        for folder in {os.path.dirname(os.path.join(root, name)) for name in tests}:
            if not (own + "/").startswith(folder + "/") and folder != root:
                self._keep_below(folder)

    def _keep_below(self, folder: str) -> None:
        for place, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
            for name in sorted(files):
                if name.endswith(".py") and len(self._kept) < _MOST_FILES:
                    self.keep(os.path.join(place, name))

    def keep(self, place: str) -> None:
        """Read one file; nothing happens where there is none."""
        if place in self._kept:
            return
        try:
            with open(place, "rb") as file:
                source, stat = file.read(), os.fstat(file.fileno())
        except OSError:
            return
        folder, name = os.path.split(place)
        try:
            with open(f"{folder}/__pycache__/{name[:-3]}{rewrite.PYC_TAIL}", "rb") as file:
                compiled = file.read()
        except OSError:
            compiled = b""
        self._kept[place] = source, int(stat.st_mtime), stat.st_size, compiled

    def replace(self, place: str, text: str) -> None:
        """Another source for a file that was read; what stands on the disk is left as it is."""
        data = text.encode("utf-8", "surrogatepass")
        self._kept[place] = data, 0, len(data), b""

    def code(self, place: str) -> CodeType | None:
        """The byte code that pytest left of a file that was read, if it is of this source and this place."""
        source, mtime, size, compiled = self._kept[place]
        head = compiled[:16]
        if len(head) != 16 or head[:4] != importlib.util.MAGIC_NUMBER:
            return None
        stamp = _STAMPS.get(head[4:8], lambda *_: b"")(source, mtime, size)
        found = marshal.loads(compiled[16:]) if stamp == head[8:] else None
        return found if isinstance(found, CodeType) and found.co_filename == place else None

    def install(self) -> None:
        """From now on imports take what was read."""
        kept, read, compile_test = self._kept, rewrite._read_pyc, rewrite._rewrite_test

        def read_pyc(source: Any, pyc: Any, trace: Any = lambda _: None) -> CodeType | None:
            return self.code(str(source)) if str(source) in kept else read(source, pyc, trace)

        def rewrite_test(source: Any, config: Any) -> tuple[Any, CodeType]:
            found = kept.get(str(source))
            return (None, _rewritten(found[0], str(source), config)) if found else compile_test(source, config)

        rewrite._read_pyc = read_pyc
        rewrite._rewrite_test = rewrite_test  # type: ignore[assignment]
        at = sys.meta_path.index(importlib.machinery.PathFinder)
        sys.meta_path.insert(at, _Finder(kept))


def _rewritten(source: bytes, place: str, config: Any) -> CodeType:
    tree = ast.parse(source, filename=place)
    rewrite.rewrite_asserts(tree, source, place, config)
    return compile(tree, place, "exec", dont_inherit=True)


class _Finder:
    """Finds as `PathFinder` does; what was read is loaded from what was read."""

    def __init__(self, kept: dict[str, tuple[bytes, int, int, bytes]]) -> None:
        self._kept = kept

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin in self._kept:
            spec.loader = _Loader(name, spec.origin, self._kept[spec.origin][0])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, place: str, source: bytes) -> None:
        super().__init__(name, place)
        self._source = source

    def get_data(self, path: Any) -> bytes:
        """The source that was read; byte code is not looked for."""
        if path == self.path:
            return self._source
        raise FileNotFoundError(path)
