"""Bugs of flow: a statement, a guard or an else branch is missing; a value is not returned; a loop ends wrongly."""

from collections.abc import Iterator

import libcst as cst

from envgym_environments.code_repair.operators.site import Edit, Operator, Site

__all__ = ["OPERATORS"]


def _body_size(site: Site) -> int:
    body = getattr(site.parent, "body", ())
    return len(body) if isinstance(body, list | tuple) else 1


def _drop_statement(site: Site) -> Iterator[Edit]:
    """Remove an assignment to something that exists already, or a call made for its effect."""
    node = site.node
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1 or not _removable(node.body[0], site):
        return
    if _body_size(site) > 1:
        yield Edit(node, "", whole_line=True)
    else:
        yield Edit(node.body[0], "pass")


def _removable(statement: cst.BaseSmallStatement, site: Site) -> bool:
    if isinstance(statement, cst.AugAssign | cst.Del):
        return True
    if isinstance(statement, cst.Expr):
        return isinstance(statement.value, cst.Call | cst.Await)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    if isinstance(target, cst.Name):
        return site.function.bound.get(target.value, site.line) < site.line
    return isinstance(target, cst.Subscript | cst.Attribute)


def _drop_guard(site: Site) -> Iterator[Edit]:
    """Remove ``if ...:`` whose body only leaves (return, raise, continue, break) and that has no else."""
    node = site.node
    if not isinstance(node, cst.If) or node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return
    if isinstance(site.parent, cst.If) or _body_size(site) < 2 or len(node.body.body) > 2:
        return
    last = node.body.body[-1]
    if isinstance(last, cst.SimpleStatementLine) and isinstance(
        last.body[-1], cst.Return | cst.Raise | cst.Continue | cst.Break
    ):
        yield Edit(node, "", until=last.body[-1], whole_line=True)


def _return_value(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Return) or node.value is None:
        return
    value = node.value
    if not (isinstance(value, cst.Name) and value.value == "None"):
        yield Edit(value, "None")
    if isinstance(value, cst.Tuple) and len(value.elements) >= 2 and not value.lpar:
        first, second = (site.code(element.value) for element in value.elements[:2])
        yield Edit(value.elements[0].value, f"{second}, {first}", until=value.elements[1].value)
    if isinstance(value, cst.Comparison | cst.BooleanOperation):
        yield Edit(value, f"not ({site.code(value)})")


def _break_continue(site: Site) -> Iterator[Edit]:
    yield Edit(site.node, "continue" if isinstance(site.node, cst.Break) else "break")


def _yield_more(site: Site) -> Iterator[Edit]:
    """``yield from`` and ``yield`` mixed up."""
    node = site.node
    if isinstance(node, cst.Yield) and node.value is not None:
        if isinstance(node.value, cst.From):
            yield Edit(node.value, site.code(node.value.item))
        elif isinstance(site.parent, cst.Expr):
            yield Edit(node.value, f"from {site.code(node.value)}")


def _swap_branches(site: Site) -> Iterator[Edit]:
    """The two values of a conditional expression change places."""
    node = site.node
    if isinstance(node, cst.IfExp):
        body, test, other = (site.code(part) for part in (node.body, node.test, node.orelse))
        yield Edit(node, f"{other} if {test} else {body}")


OPERATORS = (
    Operator("drop-statement", (cst.SimpleStatementLine,), _drop_statement),
    Operator("drop-guard", (cst.If,), _drop_guard),
    Operator("return-value", (cst.Return,), _return_value),
    Operator("break-continue", (cst.Break, cst.Continue), _break_continue),
    Operator("yield-from", (cst.Yield,), _yield_more),
    Operator("swap-branches", (cst.IfExp,), _swap_branches),
)
