"""Quick fixes of operators, constants, slices and argument order: what an expression says, not whom it names."""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from envgym_environments.code_repair.fixes.line import Edit, Line, Source

__all__ = ["expression_fixes"]

_COMPARE: dict[type[ast.cmpop], tuple[str, str, tuple[str, ...]]] = {
    ast.Lt: ("<", r"<", ("<=", ">", ">=")),
    ast.LtE: ("<=", r"<=", ("<", ">=", ">")),
    ast.Gt: (">", r">", (">=", "<", "<=")),
    ast.GtE: (">=", r">=", (">", "<=", "<")),
    ast.Eq: ("==", r"==", ("!=",)),
    ast.NotEq: ("!=", r"!=", ("==",)),
    ast.Is: ("is", r"\bis\b", ("is not",)),
    ast.IsNot: ("is not", r"\bis\s+not\b", ("is",)),
    ast.In: ("in", r"\bin\b", ("not in",)),
    ast.NotIn: ("not in", r"\bnot\s+in\b", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str, tuple[str, ...]]] = {
    ast.Add: ("+", r"\+", ("-", "*")),
    ast.Sub: ("-", r"-", ("+",)),
    ast.Mult: ("*", r"\*", ("//", "/", "+", "**")),
    ast.Div: ("/", r"/", ("//", "*")),
    ast.FloorDiv: ("//", r"//", ("%", "/", "*")),
    ast.Mod: ("%", r"%", ("//",)),
    ast.Pow: ("**", r"\*\*", ("*",)),
    ast.BitAnd: ("&", r"&", ("|",)),
    ast.BitOr: ("|", r"\|", ("&",)),
    ast.LShift: ("<<", r"<<", (">>",)),
    ast.RShift: (">>", r">>", ("<<",)),
}
_SHOWN = 20


def shorten(text: str) -> str:
    """A fragment on one line, cut to what a list can show."""
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 2] + ".."


def expression_fixes(source: Source, line: Line) -> Iterator[Edit]:
    """Every fix of this family for one logical line, unordered."""
    for node, parent in line.nodes():
        if isinstance(node, ast.Constant):
            yield from _constant(source, node, parent)
        elif (of_kind := _BY_NODE.get(type(node))) is not None:
            yield from of_kind(source, node)
        yield from _add_not(source, node, parent)
    yield from _augmented(source, line)


def _yield(source: Source, node: ast.Yield) -> Iterator[Edit]:
    if node.value is not None:
        at = source.span(node.value)[0]
        yield Edit("yield", at, at, "from ", "yield -> yield from", 1.0)


def _yield_from(source: Source, node: ast.YieldFrom) -> Iterator[Edit]:
    start, end = source.span(node)[0], source.span(node.value)[0]
    yield Edit("yield", start, end, "yield ", "yield from -> yield", 1.0)


def _compare(source: Source, node: ast.Compare) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for index, operator in enumerate(node.ops):
        old, pattern, others = _COMPARE[type(operator)]
        where = source.between(operands[index], operands[index + 1], pattern)
        if where is None:
            continue
        for rank, new in enumerate(others):
            yield Edit("compare", *where, new, f"{old} -> {new}", 1.0 + 0.4 * rank)
    if len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.Gt | ast.LtE | ast.GtE | ast.In):
        yield _swap(source, node.left, node.comparators[0], 4.0)


def _boolean(source: Source, node: ast.BoolOp) -> Iterator[Edit]:
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in pairwise(node.values):
        where = source.between(left, right, rf"\b{old}\b")
        if where is not None:
            yield Edit("boolean", *where, new, f"{old} -> {new}", 1.0)
    start, end = source.span(node)
    if len(node.values) == 2:
        for kept in node.values:
            yield Edit("operand", start, end, source.code(kept), f"keep {shorten(source.code(kept))}", 4.5)


def _unary(source: Source, node: ast.UnaryOp) -> Iterator[Edit]:
    start, end = source.span(node)
    inner = source.text[start + (3 if isinstance(node.op, ast.Not) else 1) : end].lstrip()
    if isinstance(node.op, ast.Not):
        yield Edit("not", start, end, inner, f"not {shorten(inner)} -> {shorten(inner)}", 1.0)
    elif isinstance(node.op, ast.USub | ast.UAdd | ast.Invert):
        yield Edit("sign", start, end, inner, f"{shorten(source.text[start:end])} -> {shorten(inner)}", 2.5)


def _add_not(source: Source, node: ast.AST, parent: ast.AST) -> Iterator[Edit]:
    """Negate a condition that has no comparison to flip and no `not` to take away."""
    test = isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert) and node is parent.test
    test = test or (isinstance(parent, ast.comprehension) and node in parent.ifs) or isinstance(parent, ast.BoolOp)
    if not test or not isinstance(node, ast.expr) or isinstance(node, ast.UnaryOp):
        return
    start, end = source.span(node)
    text = source.text[start:end]
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1:
            yield Edit("not", start, end, f"not ({text})", f"{shorten(text)} -> not", 3.0)
        return
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Constant)
    cost = 1.4 if isinstance(parent, ast.If | ast.While | ast.comprehension) else 2.4
    new = f"not {text}" if simple else f"not ({text})"
    yield Edit("not", start, end, new, f"{shorten(text)} -> not {shorten(text)}", cost)


def _binary(source: Source, node: ast.BinOp) -> Iterator[Edit]:
    if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str) and isinstance(node.op, ast.Mod):
        return  # formatting a string
    if type(node.op) not in _ARITHMETIC:
        return
    old, pattern, others = _ARITHMETIC[type(node.op)]
    where = source.between(node.left, node.right, pattern)
    text = any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in (node.left, node.right))
    if where is not None and not text:
        for rank, new in enumerate(others):
            yield Edit("arithmetic", *where, new, f"{old} -> {new}", 1.2 + 0.8 * rank)
    if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.right, ast.Constant) and node.right.value == 1:
        start, end = source.span(node)
        left = source.code(node.left)
        yield Edit("number", start, end, left, f"{shorten(source.code(node))} -> {shorten(left)}", 1.6)
    yield _swap(source, node.left, node.right, 2.6)


def _augmented(source: Source, line: Line) -> Iterator[Edit]:
    node = line.node
    if not isinstance(node, ast.AugAssign) or type(node.op) not in _ARITHMETIC:
        return
    old, pattern, others = _ARITHMETIC[type(node.op)]
    where = source.between(node.target, node.value, pattern + "=")
    if where is None:
        return
    for rank, new in enumerate(others):
        yield Edit("arithmetic", *where, f"{new}=", f"{old}= -> {new}=", 1.0 + 0.8 * rank)
    yield Edit("assign", *where, "=", f"{old}= -> =", 2.0)


def _constant(source: Source, node: ast.Constant, parent: ast.AST) -> Iterator[Edit]:
    start, end = source.span(node)
    old = source.text[start:end]
    value = node.value
    if isinstance(value, bool):
        yield Edit("constant", start, end, str(not value), f"{old} -> {not value}", 1.0)
        yield Edit("constant", start, end, "None", f"{old} -> None", 4.0)
    elif isinstance(value, int):
        yield from _number(start, end, old, value)
    elif isinstance(value, float):
        for new in (value + 1, value - 1):
            yield Edit("number", start, end, repr(new), f"{old} -> {new!r}", 2.2)
    elif value is None and not isinstance(parent, ast.Return):
        for rank, text in enumerate(("True", "False", "0", "''", "[]")):
            yield Edit("constant", start, end, text, f"None -> {text}", 2.6 + 0.5 * rank)
    elif isinstance(value, str) and len(old) <= 12 and not isinstance(parent, ast.Expr):
        yield from _short_text(start, end, old, value)


def _number(start: int, end: int, old: str, value: int) -> Iterator[Edit]:
    for rank, new in enumerate((value + 1, value - 1)):
        yield Edit("number", start, end, str(new), f"{old} -> {new}", 1.2 + 0.2 * rank)
    if value == 1:
        yield Edit("number", start, end, "-1", "1 -> -1", 2.8)


def _short_text(start: int, end: int, old: str, value: str) -> Iterator[Edit]:
    if value == "":
        yield Edit("text", start, end, "' '", "'' -> ' '", 2.4)
    elif not value.strip():
        yield Edit("text", start, end, "''", f"{old} -> ''", 2.4)


def _arguments(source: Source, node: ast.Call) -> Iterator[Edit]:
    args = node.args
    if any(isinstance(arg, ast.Starred) for arg in args):
        return
    for left, right in pairwise(args):
        yield _swap(source, left, right, 2.2)
    if len(args) == 3:
        yield _swap(source, args[0], args[2], 3.6)


def _swap(source: Source, left: ast.expr, right: ast.expr, cost: float) -> Edit:
    """Exchange the texts of two nodes, keeping what stands between them."""
    (start, middle), (resume, end) = source.span(left), source.span(right)
    text = source.text
    new = text[resume:end] + text[middle:resume] + text[start:middle]
    return Edit("swap", start, end, new, f"swap {shorten(text[start:middle])}, {shorten(text[resume:end])}", cost)


def _subscript(source: Source, node: ast.Subscript) -> Iterator[Edit]:
    if not isinstance(node.slice, ast.Slice):
        if isinstance(node.slice, ast.Name | ast.BinOp):
            yield from _plus_minus_one(source, node.slice, 2.6)
        return
    part = node.slice
    start, end = source.span(part)
    low, high = ("" if bound is None else source.code(bound) for bound in (part.lower, part.upper))
    tail = source.text[source.span(part.step)[0] - 1 : end] if part.step is not None else ""
    old = source.text[start:end]
    proposals = [("", high, 2.2)] if low else [("1", high, 2.4)]
    proposals.append((low, "", 2.2) if high else (low, "-1", 2.4))
    if low and high:
        proposals.append((high, low, 4.0))
    elif low or high:
        proposals.append((high, low, 2.8))
    for new_low, new_high, cost in proposals:
        new = f"{new_low}:{new_high}{tail}"
        yield Edit("slice", start, end, new, f"[{shorten(old)}] -> [{shorten(new)}]", cost)
    for bound in (part.lower, part.upper):
        if isinstance(bound, ast.Name | ast.Call | ast.Attribute):
            yield from _plus_minus_one(source, bound, 2.4)


def _plus_minus_one(source: Source, node: ast.expr, cost: float) -> Iterator[Edit]:
    start, end = source.span(node)
    old = source.text[start:end]
    for sign in "+-":
        yield Edit("number", start, end, f"{old} {sign} 1", f"{shorten(old)} -> {shorten(old)} {sign} 1", cost)


def _ternary(source: Source, node: ast.IfExp) -> Iterator[Edit]:
    yield _swap(source, node.body, node.orelse, 2.4)


_BY_NODE: dict[type[ast.AST], Callable[[Source, Any], Iterator[Edit]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Call: _arguments,
    ast.Subscript: _subscript,
    ast.IfExp: _ternary,
    ast.Yield: _yield,
    ast.YieldFrom: _yield_from,
}
