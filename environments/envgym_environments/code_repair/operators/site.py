"""The frame in which a bug operator works: it sees one `Site` (a node in its surroundings) and yields edits.

An edit replaces the text of one node, or of a stretch between two nodes, so a mutation always changes exactly
one place. This file finds the sites and checks the edits; the operators live beside it.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

__all__ = ["Edit", "Function", "Mutation", "Operator", "Site", "apply", "find"]

_CONTEXT_ONLY = (
    cst.Annotation,
    cst.Import,
    cst.ImportFrom,
    cst.Global,
    cst.Nonlocal,
    cst.FormattedString,
    cst.Decorator,
    cst.ConcatenatedString,
)
"""What operators never look into: no behaviour, or text whose edit would not stay one token."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of `node` (up to the end of `until`, if given) by `after`."""

    node: cst.CSTNode
    after: str
    until: cst.CSTNode | None = None
    whole_line: bool = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug: in `function`, the text `before` at (line, column) becomes `after`.

    line, end_line count from 1, columns from 0, in characters. first_line, last_line: the lines of which a test
    must execute at least one to be affected.
    """

    operator: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    after: str
    first_line: int
    last_line: int

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that name this mutation within its file."""
        parts = (self.operator, self.function, str(self.line), str(self.column), self.before, self.after)
        return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=5).hexdigest()


@dataclass(frozen=True, slots=True)
class Function:
    """The function around a site: qualified name, node, its names with the line that first binds each."""

    name: str
    node: cst.FunctionDef
    bound: Mapping[str, int]
    attributes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Site:
    """A node, the nodes above it (outermost first), the function around it, and the text of any node."""

    node: cst.CSTNode
    above: tuple[cst.CSTNode, ...]
    function: Function
    code: Callable[[cst.CSTNode], str] = field(repr=False)
    line: int = 0

    @property
    def parent(self) -> cst.CSTNode:
        """The node directly above."""
        return self.above[-1]

    @property
    def statement(self) -> cst.CSTNode:
        """The innermost statement this node belongs to, possibly itself."""
        for node in reversed((*self.above, self.node)):
            if isinstance(node, cst.BaseStatement | cst.BaseSmallStatement):
                return node
        return self.function.node


@dataclass(frozen=True, slots=True)
class Operator:
    """A named kind of bug: the node types it looks at, and the edits it proposes for one site."""

    name: str
    looks_at: tuple[type[cst.CSTNode], ...]
    edits: Callable[[Site], Iterator[Edit]] = field(repr=False)


class _Finder:
    """Walks one module and collects the mutations of every operator, in text order."""

    def __init__(self, source: str, operators: Sequence[Operator]) -> None:
        self.lines = source.splitlines(keepends=True)
        self.module = cst.parse_module(source)
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self.positions: Mapping[cst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
        self.by_type: dict[type[cst.CSTNode], list[Operator]] = {}
        for operator in operators:
            for kind in operator.looks_at:
                self.by_type.setdefault(kind, []).append(operator)
        self.found: list[Mutation] = []

    def walk(
        self, node: cst.CSTNode, above: tuple[cst.CSTNode, ...], scope: str, function: Function | None
    ) -> None:
        """Visit `node` and what is below it; only code inside functions is mutated."""
        if isinstance(node, _CONTEXT_ONLY) or _is_docstring(node, above):
            return
        if isinstance(node, cst.ClassDef):
            scope = f"{scope}{node.name.value}."
        if isinstance(node, cst.FunctionDef) and function is None:
            function = self._function(node, above, scope)
        if function is not None:
            self._visit(node, above, function)
        for child in node.children:
            self.walk(child, (*above, node), scope, function)

    def _visit(self, node: cst.CSTNode, above: tuple[cst.CSTNode, ...], function: Function) -> None:
        operators = self.by_type.get(type(node))
        if not operators or node is function.node:
            return
        line = self.positions[node].start.line
        site = Site(node, above, function, self.module.code_for_node, line)
        for operator in operators:
            for edit in operator.edits(site):
                mutation = self._mutation(operator.name, site, edit)
                if mutation is not None:
                    self.found.append(mutation)

    def _function(self, node: cst.FunctionDef, above: tuple[cst.CSTNode, ...], scope: str) -> Function:
        bound: dict[str, int] = {}
        self._bind(node.params, bound)
        self._bind(node.body, bound)
        owner = next((one for one in reversed(above) if isinstance(one, cst.ClassDef)), None)
        attributes = tuple(dict.fromkeys(_self_attributes(owner))) if owner is not None else ()
        return Function(f"{scope}{node.name.value}", node, bound, attributes)

    def _bind(self, node: cst.CSTNode, bound: dict[str, int]) -> None:
        """Record the names that parameters, assignments and loops bind, without entering inner functions."""
        target: cst.CSTNode | None = None
        if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.CompFor):
            return
        if isinstance(node, cst.Param):
            target = node.name
        elif isinstance(node, cst.AssignTarget | cst.For | cst.NamedExpr):
            target = node.target
        for name in _target_names(target):
            if name.value not in ("self", "cls", "_"):
                bound.setdefault(name.value, self.positions[name].start.line)
        for child in node.children:
            self._bind(child, bound)

    def _mutation(self, operator: str, site: Site, edit: Edit) -> Mutation | None:
        """The edit as text, or None where it changes nothing or does not parse."""
        start, end = self.positions[edit.node].start, self.positions[edit.until or edit.node].end
        line, column, end_line, end_column = start.line, start.column, end.line, end.column
        if edit.whole_line:
            column, end_line, end_column = 0, end_line + 1, 0
            if end_line > len(self.lines):
                return None
        before = _cut(self.lines, line, column, end_line, end_column)
        if before == edit.after:
            return None
        first, last = self._affected(site, edit)
        mutation = Mutation(
            operator,
            site.function.name,
            line,
            column,
            end_line,
            end_column,
            before,
            edit.after,
            first,
            last,
        )
        return mutation if self._differs(site.function, mutation) else None

    def _affected(self, site: Site, edit: Edit) -> tuple[int, int]:
        """The lines that a test must run to notice: the statement up to the edit, or the body for a default."""
        if any(isinstance(node, cst.Parameters) for node in site.above):
            inner = next(node for node in reversed(site.above) if isinstance(node, cst.FunctionDef | cst.Lambda))
            span = self.positions[inner.body]
            return span.start.line, span.end.line
        statement = self.positions[site.statement]
        return statement.start.line, self.positions[edit.until or edit.node].end.line

    def _differs(self, function: Function, mutation: Mutation) -> bool:
        """Whether the change is more than layout, and the function stays valid."""
        if mutation.before.translate(_LAYOUT) == mutation.after.translate(_LAYOUT):
            return False
        span = self.positions[function.node]
        offset = span.start.line - 1
        return _parses(_splice(self.lines[offset : max(span.end.line, mutation.end_line)], mutation, offset))


_LAYOUT = str.maketrans("", "", " \t\n()\\,")
"""What may differ between two texts of one syntax tree, with nothing else that operators write."""


def _parses(text: str) -> bool:
    try:
        ast.parse("if 1:\n" + text if text[:1] in " \t" else text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _cut(lines: Sequence[str], line: int, column: int, end_line: int, end_column: int) -> str:
    if line == end_line:
        return lines[line - 1][column:end_column]
    tail = lines[end_line - 1][:end_column] if end_column else ""
    return "".join((lines[line - 1][column:], *lines[line : end_line - 1], tail))


def _splice(lines: Sequence[str], mutation: Mutation, offset: int = 0) -> str:
    """The text with the mutation's place replaced; `offset` lines of the file come before `lines`."""
    first, last = mutation.line - 1 - offset, mutation.end_line - 1 - offset
    head = "".join(lines[:first]) + lines[first][: mutation.column]
    tail = lines[last][mutation.end_column :] + "".join(lines[last + 1 :]) if last < len(lines) else ""
    return head + mutation.after + tail


def _is_docstring(node: cst.CSTNode, above: tuple[cst.CSTNode, ...]) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    only = node.body[0]
    return isinstance(only, cst.Expr) and isinstance(only.value, cst.SimpleString | cst.ConcatenatedString)


def _target_names(target: cst.CSTNode | None) -> Iterator[cst.Name]:
    if isinstance(target, cst.Name):
        yield target
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _target_names(element.value)


def _self_attributes(node: cst.CSTNode) -> Iterator[str]:
    """The data attributes that a class sets or reads on ``self``, in text order; not the methods it calls."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        for argument in node.args:
            yield from _self_attributes(argument)
        yield from _self_attributes(node.func.value)
        return
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
        yield node.attr.value
    for child in node.children:
        yield from _self_attributes(child)


def find(source: str, operators: Sequence[Operator]) -> list[Mutation]:
    """Every mutation of `source` by `operators`, in text order. Raises ValueError when it is not Python."""
    try:
        finder = _Finder(source, operators)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"not Python source: {error.message} at line {error.raw_line}") from error
    finder.walk(finder.module, (), "", None)
    unique: dict[tuple[int, int, int, int, str], Mutation] = {}
    for one in finder.found:
        unique.setdefault((one.line, one.column, one.end_line, one.end_column, one.after), one)
    return sorted(unique.values(), key=lambda one: (one.line, one.column, one.operator, one.after))


def apply(source: str, mutation: Mutation) -> str:
    """The source with the bug in it. Raises ValueError when the text at its place is not what it expects."""
    lines = source.splitlines(keepends=True)
    place = (mutation.line, mutation.column, mutation.end_line, mutation.end_column)
    found = _cut(lines, *place) if mutation.line <= len(lines) else ""
    if found != mutation.before:
        raise ValueError(
            f"mutation {mutation.operator}-{mutation.digest} expects {mutation.before!r} at line {mutation.line}, "
            f"column {mutation.column}, but the source has {found!r} there; it belongs to another version"
        )
    return _splice(lines, mutation)
