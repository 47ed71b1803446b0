"""Runs a cell of Python as a prompt does: statements, the value of a last expression, errors with the cell's lines.

It knows nothing of processes: a cell may do what it likes to the one it runs in, and whoever keeps the state must
have kept it before.
"""

import __future__

import ast
import builtins
import io
import linecache
import sys
import traceback
import types
from typing import Any, NamedTuple

__all__ = ["Console", "Outcome", "figures", "told"]

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_MOST_FIGURES = 16
_MOST_IMAGE_BYTES = 16 << 20


class Outcome(NamedTuple):
    """The value's repr, or the error: its type, message and lines."""

    value: "str | None" = None
    error: "tuple[str, str, list[str]] | None" = None


class Console:
    """A module named `__main__` in which cells run. Every cell is a file of its own for tracebacks: `<cell 3>`."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.names = self.module.__dict__
        self.names["__builtins__"] = builtins
        self.given = frozenset(self.names)
        self.number = 0
        self._flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def run(self, source: str) -> Outcome:
        """Run a cell to its end. Whatever it raises is its outcome, SystemExit and KeyboardInterrupt included."""
        self.number += 1
        name = f"<cell {self.number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        try:
            value = self._value(self._compile(source, name))
            if value is None:
                return Outcome()
            builtins._ = value  # type: ignore[attr-defined]
            return Outcome(value=repr(value))
        except BaseException as error:
            return Outcome(error=told(error))

    def _compile(self, source: str, name: str) -> list[types.CodeType]:
        """The statements, and a last expression apart from them. `from __future__` holds for later cells too."""
        tree = compile(source, name, "exec", self._flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        parts: list[tuple[Any, str]] = [(tree, "exec")]
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            parts.append((ast.Expression(tree.body.pop().value), "eval"))
        codes = []
        for part, mode in parts:
            code = compile(part, name, mode, self._flags, dont_inherit=True)
            self._flags |= code.co_flags & _FUTURES
            codes.append(code)
        return codes

    def _value(self, codes: list[types.CodeType]) -> object:
        """The value of the last part. A loop runs only for cells that await, and ends with them."""
        if any(code.co_flags & _COROUTINE for code in codes):
            import asyncio  # only cells that await pay for it

            return asyncio.run(self._awaited(codes))
        value = None
        for code in codes:
            value = eval(code, self.names)
        return value

    async def _awaited(self, codes: list[types.CodeType]) -> object:
        value = None
        for code in codes:
            value = eval(code, self.names)
            if code.co_flags & _COROUTINE:
                value = await value
        return value


def told(error: BaseException) -> tuple[str, str, list[str]]:
    """An error as a prompt tells it, from the first frame that is a cell's."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    try:
        message = str(error)
    except Exception:
        message = "<its str() failed>"
    shown = traceback.TracebackException(type(error), error, trace, compact=True)
    return type(error).__name__, message, "".join(shown.format()).splitlines()


def figures() -> tuple[list[bytes], list[str]]:
    """The open figures of pyplot as PNG files, closed now; notes say what could not be drawn or is left out."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    images: list[bytes] = []
    notes: list[str] = []
    if pyplot is None:
        return images, notes
    numbers = pyplot.get_fignums()
    for number in numbers[:_MOST_FIGURES]:
        buffer = io.BytesIO()
        try:
            pyplot.figure(number).savefig(buffer, format="png")
        except Exception as error:
            notes.append(f"figure {number} could not be drawn: {type(error).__name__}: {error}")
            continue
        if sum(map(len, images)) + buffer.tell() > _MOST_IMAGE_BYTES:
            notes.append(f"figure {number} is left out: all images of a cell may have {_MOST_IMAGE_BYTES} bytes")
            continue
        images.append(buffer.getvalue())
    if len(numbers) > _MOST_FIGURES:
        notes.append(f"{len(numbers) - _MOST_FIGURES} figures are left out; a cell may show {_MOST_FIGURES}")
    if numbers:
        pyplot.close("all")
    return images, notes
