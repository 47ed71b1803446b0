"""Bugs of reference: the wrong variable, attribute, method, exception, or the wrong order of arguments."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import libcst as cst

from envgym_environments.code_repair.operators.site import Edit, Operator, Site

__all__ = ["OPERATORS"]

_ALTERNATIVES = 2

_PAIRS = (
    ("append", "extend"),
    ("startswith", "endswith"),
    ("lstrip", "rstrip"),
    ("upper", "lower"),
    ("index", "rindex"),
    ("find", "rfind"),
    ("split", "rsplit"),
    ("partition", "rpartition"),
    ("keys", "values"),
    ("ljust", "rjust"),
    ("union", "intersection"),
    ("popleft", "pop"),
    ("appendleft", "append"),
    ("add", "discard"),
    ("islower", "isupper"),
    ("isdigit", "isalpha"),
    ("issubset", "issuperset"),
    ("min", "max"),
    ("any", "all"),
    ("floor", "ceil"),
    ("takewhile", "dropwhile"),
    ("getattr", "hasattr"),
)
_SIMILAR = {a: b for a, b in _PAIRS} | {b: a for a, b in _PAIRS}
_SIMILAR |= {"strip": "lstrip", "items": "keys", "sorted": "list", "reversed": "list", "setdefault": "get"}
_SIMILAR |= {
    "abs": "int",
    "set": "list",
    "tuple": "list",
    "insert": "index",
    "update": "keys",
    "fullmatch": "match",
}
_SIMILAR |= {"match": "search", "len": "id", "round": "int", "float": "int", "isinstance": "issubclass"}
_SIMILAR |= {"lower": "upper", "casefold": "upper", "title": "capitalize", "capitalize": "title", "join": "strip"}

_EXCEPTIONS = {
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "AttributeError": "KeyError",
    "StopIteration": "ValueError",
    "NotImplementedError": "ValueError",
    "RuntimeError": "ValueError",
    "ImportError": "ValueError",
    "OSError": "ValueError",
    "LookupError": "ValueError",
    "ZeroDivisionError": "ValueError",
    "OverflowError": "ValueError",
}


def _is_read(site: Site) -> bool:
    """Whether a Name is the value of an expression: not bound, called, a keyword or an attribute's name."""
    node, parent = site.node, site.parent
    if isinstance(parent, cst.Attribute):
        return parent.value is node
    if isinstance(parent, cst.Call):
        return parent.func is not node
    if isinstance(parent, cst.Arg):
        return parent.keyword is not node
    if isinstance(parent, cst.Param | cst.AssignTarget | cst.FunctionDef | cst.ClassDef | cst.Del | cst.AsName):
        return isinstance(parent, cst.Param) and parent.default is node
    if isinstance(parent, cst.For | cst.CompFor | cst.NamedExpr | cst.AugAssign):
        return parent.target is not node
    if isinstance(parent, cst.Element | cst.NameItem | cst.ExceptHandler):
        return isinstance(parent, cst.Element) and not _in_target(site)
    return True


def _in_target(site: Site) -> bool:
    below: cst.CSTNode = site.node
    for node in reversed(site.above):
        if isinstance(node, cst.AssignTarget | cst.Del):
            return True
        if isinstance(node, cst.For | cst.CompFor):
            return node.target is below
        if isinstance(node, cst.BaseStatement):
            return False
        below = node
    return False


def _after(names: Sequence[str], name: str) -> list[str]:
    """The names that follow `name`, cyclically."""
    at = names.index(name)
    return [*names[at + 1 :], *names[:at]]


def _wrong_variable(site: Site) -> Iterator[Edit]:
    node, bound = site.node, site.function.bound
    if not isinstance(node, cst.Name) or node.value not in bound or not _is_read(site):
        return
    known = [name for name, line in bound.items() if line < site.line or name == node.value]
    for other in _after(known, node.value)[:_ALTERNATIVES]:
        yield Edit(node, other)


def _wrong_attribute(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name) or node.value.value != "self":
        return
    if isinstance(site.parent, cst.Call) and site.parent.func is node:
        return
    names = site.function.attributes
    if node.attr.value in names and not isinstance(site.parent, cst.AssignTarget | cst.Del):
        for other in _after(names, node.attr.value)[:_ALTERNATIVES]:
            yield Edit(node.attr, other)


def _wrong_method(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Call):
        return
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    if isinstance(name, cst.Name) and name.value in _SIMILAR:
        yield Edit(name, _SIMILAR[name.value])


def _wrong_exception(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Name) or node.value not in _EXCEPTIONS:
        return
    kinds = (cst.ExceptHandler, cst.Raise, cst.Call, cst.Element, cst.Tuple, cst.Arg)
    if isinstance(site.parent, kinds):
        yield Edit(node, _EXCEPTIONS[node.value])


def _swap_arguments(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Call):
        return
    plain = [argument for argument in node.args if argument.keyword is None and not argument.star]
    for left, right in pairwise(plain):
        first, second = site.code(left.value), site.code(right.value)
        if first != second and "\n" not in first + second:
            yield Edit(left.value, f"{second}, {first}", until=right.value)


def _drop_argument(site: Site) -> Iterator[Edit]:
    node = site.node
    if not isinstance(node, cst.Call) or len(node.args) < 2:
        return
    last = node.args[-1]
    if last.keyword is not None or (isinstance(last.value, cst.Name) and not last.star):
        kept = site.code(node.args[-2].value)
        if node.args[-2].keyword is None and not node.args[-2].star:
            yield Edit(node.args[-2].value, kept, until=last)


OPERATORS = (
    Operator("wrong-variable", (cst.Name,), _wrong_variable),
    Operator("wrong-attribute", (cst.Attribute,), _wrong_attribute),
    Operator("wrong-method", (cst.Call,), _wrong_method),
    Operator("wrong-exception", (cst.Name,), _wrong_exception),
    Operator("swap-arguments", (cst.Call,), _swap_arguments),
    Operator("drop-argument", (cst.Call,), _drop_argument),
)
