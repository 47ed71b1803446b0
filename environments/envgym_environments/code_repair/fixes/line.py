"""Where quick fixes are made: a parsed file, its logical lines, and the text behind every syntax node.

A logical line is a simple statement, or the header of a compound one ("if ...:", "def ...:", "except ...:"); it
is called by its first line's number. Nothing here proposes a fix.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["Edit", "Line", "Source", "parse"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_OPAQUE = (ast.JoinedStr,)
"""Nodes whose inside has no reliable position in every Python version that we support."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A proposed replacement of ``text[start:end]`` by `new`.

    label: what is shown, "old -> new" or a phrase. cost: the lower, the earlier it is proposed; it is a property
    of the kind of edit and of what is visible in the file, never of the task.
    """

    kind: str
    start: int
    end: int
    new: str
    label: str
    cost: float


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line: its statement, the block the statement stands in, and what encloses it."""

    node: ast.stmt | ast.ExceptHandler
    block: list[ast.stmt]
    index: int
    function: Function | None
    cls: ast.ClassDef | None
    first: int
    last: int

    def nodes(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(node, parent) of everything in the line itself, in text order; not what is nested in its blocks."""
        yield from _walk(self.node, top=True)


def _walk(node: ast.AST, *, top: bool = False) -> Iterator[tuple[ast.AST, ast.AST]]:
    for name, value in ast.iter_fields(node):
        if (top and name in _BLOCKS) or name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _OPAQUE):
                yield child, node
                yield from _walk(child)


@dataclass(slots=True)
class Source:
    """A parsed file.

    lines: first line's number of each logical line -> what begins there. owner: physical line -> that number.
    """

    text: str
    tree: ast.Module
    lines: dict[int, list[Line]] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)
    _rows: list[str] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows = re.findall(r"[^\n]*\n|[^\n]+\Z", self.text)
        position = 0
        for row in self._rows:
            self._starts.append(position)
            position += len(row)
        self._starts.append(position)
        self._collect(self.tree, None, None)

    def _collect(self, node: ast.AST, function: Function | None, cls: ast.ClassDef | None) -> None:
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            for index, child in enumerate(block):
                if isinstance(child, ast.stmt | ast.ExceptHandler):
                    self._add(child, block, index, function, cls)
                inner_function = child if isinstance(child, Function) else function
                self._collect(child, inner_function, child if isinstance(child, ast.ClassDef) else cls)

    def _add(
        self, node: ast.stmt | ast.ExceptHandler, block: list[ast.stmt], index: int,
        function: Function | None, cls: ast.ClassDef | None,
    ) -> None:  # fmt: skip
        body = getattr(node, "body", None)
        last = node.end_lineno or node.lineno
        if isinstance(body, list) and body:
            last = max(node.lineno, min(getattr(part, "lineno", last) for part in body) - 1)
        self.lines.setdefault(node.lineno, []).append(Line(node, block, index, function, cls, node.lineno, last))
        for number in range(node.lineno, last + 1):
            self.owner.setdefault(number, node.lineno)

    def offset(self, number: int, column_bytes: int) -> int:
        """Character offset of an `ast` position (1-based line, column in UTF-8 bytes)."""
        row = self._rows[number - 1]
        if not row.isascii():
            column_bytes = len(row.encode()[:column_bytes].decode("utf-8", "ignore"))
        return self._starts[number - 1] + column_bytes

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Character offsets of a node's text."""
        assert isinstance(node, ast.expr | ast.stmt | ast.ExceptHandler | ast.keyword | ast.arg)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def code(self, node: ast.AST) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.text[start:end]

    def row(self, number: int) -> str:
        """The text of a physical line without surrounding blanks."""
        return self._rows[number - 1].strip()

    def indent(self, number: int) -> str:
        """The blanks a physical line begins with."""
        row = self._rows[number - 1]
        return row[: len(row) - len(row.lstrip())]

    def row_span(self, first: int, last: int) -> tuple[int, int]:
        """Character offsets of physical lines `first` to `last`, the last line break included."""
        return self._starts[first - 1], self._starts[last]

    def between(self, left: ast.AST, right: ast.AST, pattern: str) -> tuple[int, int] | None:
        """Where `pattern` first matches in the text between two nodes."""
        start, end = self.span(left)[1], self.span(right)[0]
        found = re.compile(pattern).search(self.text, start, end)
        return found.span() if found else None


@lru_cache(maxsize=256)
def parse(text: str) -> Source:
    """A file's syntax. Raises SyntaxError (ValueError for a NUL) when it has none."""
    return Source(text, ast.parse(text))
