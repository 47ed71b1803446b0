"""Finds every place of a file where an operator can make a bug, and keeps the edits that really change the code."""

import ast
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from envgym_environments.code_repair.operators.site import (
    Edit,
    Function,
    Mutation,
    Operator,
    Site,
    Text,
    cut,
    splice,
)

__all__ = ["find"]

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


class _Finder:
    """Walks one module and collects the mutations of every operator, in text order."""

    def __init__(self, source: str, operators: Sequence[Operator]) -> None:
        self.lines = source.splitlines(keepends=True)
        self.module = cst.parse_module(source)
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self.positions: Mapping[cst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
        self.text = Text(self.lines, self.positions)
        self.by_type: dict[type[cst.CSTNode], list[Operator]] = {}
        self.of_definitions: dict[type[cst.CSTNode], list[Operator]] = {}
        for operator in operators:
            for kind in operator.looks_at:
                table = self.of_definitions if operator.definitions else self.by_type
                table.setdefault(kind, []).append(operator)
        self.found: list[Mutation] = []
        self._attributes: dict[cst.ClassDef, tuple[str, ...]] = {}

    def walk(
        self, node: cst.CSTNode, above: tuple[cst.CSTNode, ...], scope: str, function: Function | None
    ) -> None:
        """Visit `node` and what is below it; only code inside functions is mutated."""
        if isinstance(node, _CONTEXT_ONLY) or _is_docstring(node, above):
            return
        if isinstance(node, cst.ClassDef):
            if function is None:
                of_class = Function(f"{scope}{node.name.value}", node, {}, self._attributes_of(node))
                self._visit(node, above, of_class, self.of_definitions)
            scope = f"{scope}{node.name.value}."
        if isinstance(node, cst.FunctionDef) and function is None:
            function = self._function(node, above, scope)
            self._visit(node, above, function, self.of_definitions)
        elif function is not None:
            self._visit(node, above, function, self.by_type)
        for child in node.children:
            self.walk(child, (*above, node), scope, function)

    def _visit(
        self,
        node: cst.CSTNode,
        above: tuple[cst.CSTNode, ...],
        function: Function,
        table: Mapping[type[cst.CSTNode], Sequence[Operator]],
    ) -> None:
        operators = table.get(type(node))
        if not operators:
            return
        line = self.positions[node].start.line
        site = Site(node, above, function, self.module.code_for_node, self.text, line)
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
        attributes = self._attributes_of(owner) if owner is not None else ()
        return Function(f"{scope}{node.name.value}", node, bound, attributes)

    def _attributes_of(self, owner: cst.ClassDef) -> tuple[str, ...]:
        """What `_self_attributes` finds, each once; looked for once, however many methods the class has."""
        if owner not in self._attributes:
            self._attributes[owner] = tuple(dict.fromkeys(_self_attributes(owner)))
        return self._attributes[owner]

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
        before = cut(self.lines, line, column, end_line, end_column)
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
        """The lines that a test must run to notice: the statement up to the edit, or the body for a default.

        Of a changed definition they are those below its first: that one runs when the module is imported.
        """
        if site.node is site.function.node:
            return self.positions[site.node].start.line + 1, self.positions[site.node].end.line
        if any(isinstance(node, cst.Parameters) for node in site.above):
            inner = next(node for node in reversed(site.above) if isinstance(node, cst.FunctionDef | cst.Lambda))
            span = self.positions[inner.body]
            return span.start.line, span.end.line
        statement = self.positions[site.statement]
        return statement.start.line, self.positions[edit.until or edit.node].end.line

    def _differs(self, function: Function, mutation: Mutation) -> bool:
        """Whether the change is more than layout, and the function stays valid."""
        span = self.positions[function.node]
        offset = min(span.start.line, mutation.line) - 1
        lines = self.lines[offset : max(span.end.line, mutation.end_line)]
        tree = _tree(splice(lines, mutation, offset))
        if tree is None:
            return False
        if mutation.before.translate(_LAYOUT) != mutation.after.translate(_LAYOUT):
            return True
        was = _tree("".join(lines))
        return was is not None and ast.dump(was) != ast.dump(tree)


_LAYOUT = str.maketrans("", "", " \t\n()\\,")
"""What may differ between two texts of one syntax tree, with nothing else that operators write."""


def _tree(text: str) -> ast.Module | None:
    """The syntax of whole rows, whatever they are indented by; None where they have none."""
    try:
        return ast.parse("if 1:\n" + text if text[:1] in (" ", "\t") else text)
    except (SyntaxError, ValueError, RecursionError):
        return None


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
