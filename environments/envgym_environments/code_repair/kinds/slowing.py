"""Operators that make a function slow and leave what it gives: each puts one true inefficiency in.

They use the machinery of the bug operators (`operators.site`). That nothing else changed is for the package's
tests, and that it really got slower for a measurement; an operator only proposes what is likely to do both.
"""

import re
from collections.abc import Iterator

import libcst as cst

from envgym_environments.code_repair.operators.find import find
from envgym_environments.code_repair.operators.site import Edit, Mutation, Operator, Site

__all__ = ["SLOWING", "slowdowns"]

_LOOPS = (cst.For, cst.While, cst.CompFor)
_PURE = frozenset(
    {"len", "list", "tuple", "set", "frozenset", "dict", "sorted", "sum", "min", "max", "str.lower", "lower",
     "upper", "split", "splitlines", "strip", "replace", "join", "copy", "count", "index"}
)  # fmt: skip
"""Calls whose result depends on their arguments only; methods by their last name."""


def _looped(site: Site) -> bool:
    """Whether the node is run again and again within the function: below a loop, or in a comprehension."""
    kinds = (*_LOOPS, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
    return any(isinstance(one, kinds) for one in site.above)


def _made_as(site: Site, name: str, pattern: str) -> bool:
    """Whether the function binds a name to something that looks so."""
    body = site.code(site.function.node)
    return re.search(rf"(?m)^\s*{re.escape(name)}\s*(?::[^=\n]+)?=\s*(?:{pattern})", body) is not None


def _quadratic_append(site: Site) -> Iterator[Edit]:
    """``x.append(y)`` in a loop makes the whole list anew each time."""
    node = site.node
    if not isinstance(node, cst.Call) or not isinstance(site.parent, cst.Expr) or not _looped(site):
        return
    func = node.func
    if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Name) or len(node.args) != 1:
        return
    name = func.value.value
    if func.attr.value == "append" and not node.args[0].star:
        yield Edit(node, f"{name}[:] = [*{name}, {site.code(node.args[0].value)}]")


def _membership_by_list(site: Site) -> Iterator[Edit]:
    """``x in seen`` goes through a list of what a set or dictionary would have known at once."""
    node = site.node
    if not isinstance(node, cst.ComparisonTarget) or not isinstance(node.operator, cst.In | cst.NotIn):
        return
    held = node.comparator
    if isinstance(held, cst.Name) and _looped(site) and _made_as(site, held.value, r"set\(|frozenset\(|dict\(|\{"):
        yield Edit(held, f"list({held.value})")


def _copy_to_look(site: Site) -> Iterator[Edit]:
    """``found.get(key)`` and ``found[key]`` in a loop look into a copy."""
    node = site.node
    if not _looped(site):
        return
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "get":
        held = node.func.value
        if isinstance(held, cst.Name) and _made_as(site, held.value, r"dict\(|\{"):
            yield Edit(held, f"dict({held.value})")
    elif isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and len(node.slice) == 1:
        stores = isinstance(site.parent, cst.AssignTarget | cst.Del | cst.AugAssign)
        name, at = node.value.value, node.slice[0].slice
        if not stores and isinstance(at, cst.Index) and _made_as(site, name, r"list\(|sorted\(|\["):
            yield Edit(node.value, f"list({name})")


def _repeated_computation(site: Site) -> Iterator[Edit]:
    """What was computed once before a loop is computed in every round of it."""
    node = site.node
    if not isinstance(node, cst.Name) or not _looped(site) or isinstance(site.parent, cst.AssignTarget | cst.Param):
        return
    if isinstance(site.parent, cst.Attribute | cst.Arg | cst.NamedExpr | cst.For | cst.CompFor) and not (
        isinstance(site.parent, cst.Arg) and site.parent.value is node
    ):
        return
    given = _only_value(site, node.value)
    if given is not None and site.line > given[1]:
        yield Edit(node, f"({given[0]})")


def _only_value(site: Site, name: str) -> tuple[str, int] | None:
    """(text, row) of the pure call that a name is bound to, once and outside of every loop."""
    found: list[tuple[cst.BaseExpression, cst.CSTNode, bool]] = []
    _bindings(site.function.node.body, name, found, inside=False)
    if len(found) != 1 or found[0][2] or not isinstance(found[0][0], cst.Call):
        return None
    value, statement, _ = found[0]
    assert isinstance(value, cst.Call)
    called = site.code(value.func).rpartition(".")[2]
    text = site.code(value)
    about = bool(value.args) or isinstance(value.func, cst.Attribute)
    if called not in _PURE or not about or "\n" in text or not all(_is_plain(one.value) for one in value.args):
        return None
    return text, site.text.first(statement)


def _is_plain(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name | cst.Attribute | cst.SimpleString | cst.Integer)


def _bindings(
    node: cst.CSTNode, name: str, found: list[tuple[cst.BaseExpression, cst.CSTNode, bool]], *, inside: bool
) -> None:
    """(value, statement, whether in a loop) of every binding of a name; no assignment is "in a loop"."""
    if isinstance(node, cst.Assign):
        for one in node.targets:
            if any(part.value == name for part in _names(one.target)):
                found.append((node.value, node, inside or not isinstance(one.target, cst.Name)))
    elif isinstance(node, cst.AugAssign | cst.For | cst.CompFor | cst.NamedExpr | cst.AnnAssign | cst.AsName):
        target = node.name if isinstance(node, cst.AsName) else node.target
        if any(part.value == name for part in _names(target)):
            found.append((cst.Name(name), node, True))
    for child in node.children:
        _bindings(child, name, found, inside=inside or isinstance(node, _LOOPS))


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names(child)


def _no_early_exit(site: Site) -> Iterator[Edit]:
    """``any`` and ``all`` see everything before they decide; a search goes on behind what it found."""
    node = site.node
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in ("any", "all"):
        if len(node.args) == 1 and isinstance(node.args[0].value, cst.GeneratorExp):
            inner = node.args[0].value
            parts = f"{site.code(inner.elt)} {site.code(inner.for_in).strip()}"
            yield Edit(node, f"{node.func.value}([{parts}])")
    elif isinstance(node, cst.Break):
        block = site.above[-2] if len(site.above) > 1 else None
        before = block.body[:-1] if isinstance(block, cst.IndentedBlock) else ()
        if before and all(_sets_a_constant(one) for one in before):
            yield Edit(node, "pass")


def _sets_a_constant(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    only = node.body[0]
    return isinstance(only, cst.Assign) and isinstance(only.value, cst.Name) and only.value.value in (
        "True", "False", "None"
    )  # fmt: skip


def _sort_to_take(site: Site) -> Iterator[Edit]:
    """``min`` and ``max`` sort everything to take one."""
    node = site.node
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or len(node.args) != 1:
        return
    (only,) = node.args
    if node.func.value in ("min", "max") and not only.star and only.keyword is None:
        yield Edit(node, f"sorted({site.code(only.value)})[{0 if node.func.value == 'min' else -1}]")


def _index_by_copy(site: Site) -> Iterator[Edit]:
    """A loop over a sequence takes each element out of a new copy of it."""
    node = site.node
    if isinstance(node, cst.For) and node.asynchronous is None and isinstance(node.iter, cst.Name | cst.Attribute):
        over = site.code(node.iter)
        yield Edit(node.iter, f"[list({over})[at] for at in range(len({over}))]")
    elif isinstance(node, cst.CompFor) and node.asynchronous is None and isinstance(node.iter, cst.Name):
        over = node.iter.value
        yield Edit(node.iter, f"[list({over})[at] for at in range(len({over}))]")


def _lost_memo(site: Site) -> Iterator[Edit]:
    """What was remembered is computed again: no cache around a function, no look into one inside of it."""
    node = site.node
    if isinstance(node, cst.FunctionDef) and node is site.function.node:
        for one in node.decorators:
            if re.search(r"\b(?:lru_)?cache\b|\bmemo", site.code(one.decorator)):
                yield Edit(one, "", whole_line=True)
    elif isinstance(node, cst.If) and node.orelse is None and isinstance(node.body, cst.IndentedBlock):
        asked = re.fullmatch(r"(.+) in ([\w.]+)", site.code(node.test).strip())
        said = " ".join(site.code(one).strip() for one in node.body.body)
        if asked and said == f"return {asked[2]}[{asked[1]}]":
            yield Edit(node.test, "False")


SLOWING: tuple[Operator, ...] = (
    Operator("quadratic-append", (cst.Call,), _quadratic_append),
    Operator("membership-by-list", (cst.ComparisonTarget,), _membership_by_list),
    Operator("copy-to-look", (cst.Call, cst.Subscript), _copy_to_look),
    Operator("repeated-computation", (cst.Name,), _repeated_computation),
    Operator("no-early-exit", (cst.Call, cst.Break), _no_early_exit),
    Operator("sort-to-take", (cst.Call,), _sort_to_take),
    Operator("index-by-copy", (cst.For, cst.CompFor), _index_by_copy),
    Operator("lost-memo", (cst.FunctionDef,), _lost_memo, definitions=True),
    Operator("lost-memo", (cst.If,), _lost_memo),
)


def slowdowns(source: str) -> list[Mutation]:
    """Every inefficiency that can be put into the functions of a module, in text order. Raises ValueError."""
    return find(source, SLOWING)
