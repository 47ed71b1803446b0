"""Quick fixes of whole statements: returns, loop exits, branches, deletions, common statements that are missing.

What was deleted can be restored only where the file still shows what it was: an unused parameter, a value that is
computed and then dropped. Other missing statements are out of reach.
"""

import ast
from collections.abc import Iterator

from envgym_environments.code_repair.fixes.expressions import shorten
from envgym_environments.code_repair.fixes.line import Edit, Line, Source
from envgym_environments.code_repair.fixes.names import Scope, scope_of

__all__ = ["statement_fixes"]

_NONE = "None"


def statement_fixes(source: Source, line: Line) -> Iterator[Edit]:
    """Every fix of this family for one logical line, unordered."""
    node = line.node
    match node:
        case ast.Return():
            yield from _return(source, node, line)
        case ast.Break() | ast.Continue():
            new = "continue" if isinstance(node, ast.Break) else "break"
            yield Edit("loop", *source.span(node), new, f"-> {new}", 0.8)
        case ast.If():
            yield from _branches(source, node)
        case ast.Expr(value=ast.Call()):
            at = source.span(node)[0]
            yield Edit("return", at, at, "return ", f"return {shorten(source.code(node))}", 2.6)
        case ast.Pass():
            yield from _instead_of_pass(source, node, line)
    if line.function is not None:
        yield from _missing_after(source, line)
    yield from _delete(source, line)


def _recent(scope: Scope, number: int) -> list[str]:
    """Names bound before a line, the latest binding first."""
    last = {
        name: max(at for at in lines if at <= number) for name, lines in scope.bound.items() if min(lines) <= number
    }
    order = list(scope.bound)
    names = sorted(last, key=lambda name: (-last[name], order.index(name)))
    return [name for name in names if name not in ("self", "cls", "_")]


def _return(source: Source, node: ast.Return, line: Line) -> Iterator[Edit]:
    start, end = source.span(node)
    value = node.value
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        if line.function is None:
            return
        scope = scope_of(line.function)
        for rank, name in enumerate(_recent(scope, node.lineno)[:4]):
            cost = 0.6 if scope.unused(name) else 1.4 + 0.8 * rank
            yield Edit("return", start, end, f"return {name}", f"return {name}", cost)
        for rank, text in enumerate(("True", "False", "self")):
            if text != "self" or line.cls is not None:
                yield Edit("return", start, end, f"return {text}", f"return {text}", 2.6 + 0.3 * rank)
        return
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return
    if not isinstance(value, ast.UnaryOp | ast.Compare | ast.BoolOp):
        text = source.code(value)
        inner = text if isinstance(value, ast.Name | ast.Call | ast.Attribute | ast.Subscript) else f"({text})"
        yield Edit("return", start, end, f"return not {inner}", f"return not {shorten(text)}", 3.4)
    elif isinstance(value, ast.BoolOp):
        yield Edit("return", start, end, f"return not ({source.code(value)})", "return not (..)", 3.8)
    yield Edit("return", start, end, "return None", "return None", 4.6)


def _branches(source: Source, node: ast.If) -> Iterator[Edit]:
    """Exchange the two blocks of an if and its else."""
    if not node.orelse or source.row(node.orelse[0].lineno)[:4] == "elif":
        return
    (first, first_end), (second, second_end) = _block_rows(node.body), _block_rows(node.orelse)
    if first <= node.lineno or second <= first_end + 1:
        return  # on one line with its header: nothing that swapping rows could do
    body, otherwise = source.row_span(first, first_end), source.row_span(second, second_end)
    text = source.text
    last = text[otherwise[0] : otherwise[1]]
    if not last.endswith("\n"):
        return
    new = last + text[body[1] : otherwise[0]] + text[body[0] : body[1]]
    yield Edit("branches", body[0], otherwise[1], new, "swap if and else", 2.2)


def _block_rows(block: list[ast.stmt]) -> tuple[int, int]:
    last = block[-1].end_lineno
    assert last is not None
    decorators = getattr(block[0], "decorator_list", [])
    return min([block[0].lineno, *(part.lineno for part in decorators)]), last


def _instead_of_pass(source: Source, node: ast.Pass, line: Line) -> Iterator[Edit]:
    for rank, text in enumerate(("return", "continue", "break", "raise")):
        yield Edit("loop", *source.span(node), text, f"pass -> {text}", 2.0 + 0.4 * rank)
    if line.function is not None:
        for rank, name in enumerate(_recent(scope_of(line.function), node.lineno)[:3]):
            yield Edit("return", *source.span(node), f"return {name}", f"pass -> return {name}", 2.2 + 0.8 * rank)


def _missing_after(source: Source, line: Line) -> Iterator[Edit]:
    """Statements that may be missing right behind this one."""
    node, function = line.node, line.function
    assert function is not None
    if not isinstance(node, ast.stmt) or hasattr(node, "body") or source.owner.get(line.last) != line.first:
        return
    indent, end = source.indent(line.first), source.row_span(line.last, line.last)[1]
    if source.text[end - 1 : end] != "\n" or len(source.lines[line.first]) > 1:
        return
    scope = scope_of(function)
    proposals: list[tuple[str, float]] = []
    if function.name == "__init__":
        proposals += [(f"self.{name} = {name}", 0.8) for name in _unkept(scope, line)]
    last = line.index == len(line.block) - 1
    leaves = isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue)
    if last and not leaves:
        names = _recent(scope, line.last)
        if line.block is function.body:
            proposals += [(f"return {name}", 1.0 + 0.8 * rank) for rank, name in enumerate(names[:3])]
            proposals += [("return self", 2.6)] if line.cls is not None else []
        else:
            proposals += [("return", 3.2), ("break", 3.3), ("continue", 3.4)]
            proposals += [(f"return {name}", 3.6 + 0.8 * rank) for rank, name in enumerate(names[:2])]
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.BinOp):
        proposals += [(f"{name} += 1", 4.0) for name in _targets(node)]
    for text, cost in proposals:
        if _block_has(line.block, text):
            continue
        yield Edit("insert", end, end, f"{indent}{text}\n", f"insert {text}", cost)


def _unkept(scope: Scope, line: Line) -> list[str]:
    """Parameters that are never read, or after which the class reads an attribute that it never sets."""
    assert line.function is not None
    names = [arg.arg for arg in ast.walk(line.function.args) if isinstance(arg, ast.arg)]
    own = [node for node in ast.walk(line.cls or line.function) if isinstance(node, ast.Attribute)]
    own = [node for node in own if isinstance(node.value, ast.Name) and node.value.id == "self"]
    kept = {node.attr for node in own if isinstance(node.ctx, ast.Store)}
    read = {node.attr for node in own} - kept
    return [name for name in names if name not in kept and name != "self" and (scope.unused(name) or name in read)]


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _block_has(block: list[ast.stmt], text: str) -> bool:
    return any(not hasattr(part, "body") and ast.unparse(part) == text for part in block)


def _delete(source: Source, line: Line) -> Iterator[Edit]:
    node = line.node
    simple = isinstance(
        node, ast.Expr | ast.Assign | ast.AugAssign | ast.Return | ast.Raise | ast.Break | ast.Continue
    )
    if simple:
        yield Edit("delete", *source.span(node), "pass", "delete line", 5.0)
