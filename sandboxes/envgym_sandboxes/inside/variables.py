"""Looks at a user's variables: type, short repr, and a digest of what they hold.

It runs in a fork that is thrown away, because a repr is the user's code. It is no serialiser: nothing is ever read
back, and two objects of the same type and repr are the same to it unless they are plain data.
"""

import hashlib
import re
import reprlib
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["digest", "listing"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST_ITEMS = 100_000
_DEEPEST = 20
_PLAIN = (type(None), bool, int, float, complex, str, type(Ellipsis), range)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def _users(names: Mapping[str, Any], given: frozenset[str]) -> list[tuple[str, Any]]:
    found = [(name, value) for name, value in names.items() if isinstance(name, str)]
    return sorted((item for item in found if item[0] not in given and item[0][:1] != "_"), key=lambda item: item[0])


def _text(value: Any) -> str:
    try:
        return _ADDRESS.sub("", _SHORT.repr(value))
    except Exception as error:
        return f"<repr failed: {type(error).__name__}>"


def listing(names: Mapping[str, Any], given: frozenset[str]) -> list[tuple[str, str, str]]:
    """Name, type's name and short repr of each variable, sorted by name."""
    return [(name, type(value).__name__, _text(value)) for name, value in _users(names, given)]


def digest(names: Mapping[str, Any], given: frozenset[str]) -> str:
    """A digest of all variables; the order in which they were made does not count."""
    total = hashlib.sha256()
    for name, value in _users(names, given):
        total.update(name.encode("utf-8", "replace") + b"\0" + _Content().of(value))
    return total.hexdigest()


class _Content:
    """Digests of one variable's content; beyond a number of items or a depth, only of its short repr."""

    def __init__(self) -> None:
        self.left = _MOST_ITEMS

    def of(self, value: Any, depth: int = 0) -> bytes:
        """A digest of 32 bytes."""
        kind = type(value)
        self.left -= 1
        parts = [kind.__module__.encode("utf-8", "replace"), kind.__qualname__.encode("utf-8", "replace")]
        if kind in _PLAIN:
            parts.append(repr(value).encode("utf-8", "surrogatepass"))
        elif self.left > 0 and depth < _DEEPEST:
            parts += self._parts(value, kind, depth)
        else:
            parts.append(_text(value).encode("utf-8", "replace"))
        found = hashlib.sha256()
        for part in parts:
            found.update(len(part).to_bytes(8, "big") + part)
        return found.digest()

    def _parts(self, value: Any, kind: type, depth: int) -> list[bytes]:
        if kind in (list, tuple):
            return [self.of(item, depth + 1) for item in value]
        if kind in (set, frozenset):
            return sorted(self.of(item, depth + 1) for item in value)
        if kind is dict:
            return [self.of(item, depth + 1) for pair in value.items() for item in pair]
        if isinstance(value, types.FunctionType):
            return [self._code(value.__code__, depth), self.of(value.__defaults__, depth + 1)]
        if isinstance(value, type) and value.__module__ == "__main__":
            return [self.of(dict(vars(value)), depth + 1)]
        if isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
            return [_text(value).encode("utf-8", "replace")]
        return self._buffer(value) or self._object(value, depth)

    def _code(self, code: types.CodeType, depth: int) -> bytes:
        constants = [
            self._code(item, depth) if isinstance(item, types.CodeType) else item for item in code.co_consts
        ]
        return self.of([code.co_code, code.co_names, code.co_varnames, constants], depth + 1)

    def _buffer(self, value: Any) -> list[bytes]:
        """Bytes, arrays: their memory, with its shape."""
        try:
            view = memoryview(value)
        except TypeError:
            return []
        if "O" in view.format:  # of objects there are only addresses
            return []
        content: bytes | memoryview
        try:
            content = view.cast("B")  # copies nothing, but cannot do every format
        except (TypeError, ValueError):
            content = view.tobytes()
        return [view.format.encode(), repr(view.shape).encode(), hashlib.sha256(content).digest()]

    def _object(self, value: Any, depth: int) -> list[bytes]:
        """An object whose repr is its address has what its attributes have; any other says it itself."""
        own = getattr(type(value), "__repr__", None)
        if own is getattr(object, "__repr__", None) and hasattr(value, "__dict__"):
            return [self.of(dict(vars(value)), depth + 1)]
        return [_text(value).encode("utf-8", "replace")]
