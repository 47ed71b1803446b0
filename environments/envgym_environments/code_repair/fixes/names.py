"""Quick fixes of names: a variable, attribute, method, function or exception that is confused with a near one.

Candidates come from the file itself (what is bound nearby, what the class keeps on `self`) and from a short table
of names that people confuse. Nothing is resolved across files.
"""

import ast
import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from envgym_environments.code_repair.fixes.expressions import shorten
from envgym_environments.code_repair.fixes.line import Edit, Function, Line, Source

__all__ = ["Scope", "name_fixes", "scope_of"]

_PER_NAME = 3
_PAIRS = (
    "min max", "any all", "append extend", "append insert", "startswith endswith", "isinstance issubclass",
    "lstrip rstrip", "lstrip strip", "rstrip strip", "lower upper", "find rfind", "index rindex", "split rsplit",
    "partition rpartition", "ljust rjust", "keys values", "values items", "keys items", "add discard",
    "union intersection", "update difference_update", "int float", "int round", "list tuple", "set frozenset",
    "list set", "sorted reversed", "sorted list", "pop get", "get setdefault", "floor ceil", "match search",
    "match fullmatch", "sub subn", "popleft pop", "appendleft append", "str repr", "bytes bytearray", "len sum",
    "sum max", "map filter", "isdigit isalpha", "isalnum isalpha", "isupper islower", "removeprefix removesuffix",
    "hasattr getattr", "remove discard", "read readline", "count index", "encode decode", "next iter",
    "title capitalize", "dict OrderedDict", "chain zip", "left right", "start stop", "start end", "first last",
    "head tail", "prev next", "key value", "width height", "x y", "row col", "type isinstance", "len id",
    "search findall", "group groups", "replace translate", "abs int", "float str",
    "splitlines split", "pop popitem", "clear copy", "lt le", "gt ge", "range len", "enumerate zip",
)  # fmt: skip
_EXCEPTIONS = (
    "ValueError TypeError", "KeyError IndexError", "AttributeError TypeError", "KeyError AttributeError",
    "IndexError ValueError", "StopIteration IndexError", "RuntimeError ValueError", "ValueError KeyError",
    "TypeError KeyError", "LookupError KeyError", "LookupError IndexError", "OverflowError ValueError",
    "ZeroDivisionError ArithmeticError", "NotImplementedError TypeError", "ImportError ModuleNotFoundError",
    "OSError IOError", "FileNotFoundError OSError", "UnicodeDecodeError UnicodeError", "AttributeError KeyError",
    "Exception ValueError", "NotImplementedError RuntimeError", "AssertionError ValueError",
)  # fmt: skip


def _neighbours(pairs: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        left, right = pair.split()
        table[left] = (*table.get(left, ()), right)
        table[right] = (*table.get(right, ()), left)
    return table


_CONFUSED = _neighbours(_PAIRS)
_RAISED = _neighbours(_EXCEPTIONS)


@dataclass(slots=True)
class Scope:
    """The names a function binds and uses: name -> lines, in text order."""

    bound: dict[str, list[int]] = field(default_factory=dict)
    read: dict[str, list[int]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def unused(self, name: str) -> bool:
        """Bound, and never read: usually a sign that something is missing or misspelt."""
        return name in self.bound and name not in self.read and not name.startswith("_")


@lru_cache(maxsize=1024)
def scope_of(function: Function) -> Scope:
    """The scope of one function; nested functions count as its uses."""
    scope = Scope()
    for arg in ast.walk(function.args):
        if isinstance(arg, ast.arg):
            scope.bound.setdefault(arg.arg, []).append(arg.lineno)
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            table = scope.bound if isinstance(node.ctx, ast.Store) else scope.read
            table.setdefault(node.id, []).append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            scope.called.add(node.func.id)
        elif isinstance(node, ast.Function if False else (ast.FunctionDef | ast.AsyncFunctionDef)):
            if node is not function:
                scope.bound.setdefault(node.name, []).append(node.lineno)
                scope.called.add(node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            scope.bound.setdefault(node.name, []).append(node.lineno)
    return scope


def name_fixes(source: Source, line: Line) -> Iterator[Edit]:
    """Every fix of this family for one logical line, unordered."""
    if isinstance(line.node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return
    for node, parent in line.nodes():
        if isinstance(node, ast.Name):
            if _is_exception(node, parent, line):
                yield from _exception(source, node)
            elif isinstance(parent, ast.Call) and node is parent.func:
                yield from _function(source, node, line)
            else:
                yield from _variable(source, node, line)
        elif isinstance(node, ast.Attribute):
            yield from _attribute(source, node, parent, line)
        elif isinstance(node, ast.keyword) and node.arg:
            yield from _keyword(source, node)


def _is_exception(node: ast.Name, parent: ast.AST, line: Line) -> bool:
    raised = isinstance(line.node, ast.Raise | ast.ExceptHandler)
    return node.id in _RAISED and (raised or isinstance(parent, ast.ExceptHandler | ast.Tuple))


def _rename(source: Source, node: ast.expr, old: str, new: str, kind: str, cost: float) -> Edit:
    """Replace the last `old` in a node's text (for an attribute: behind the dot)."""
    end = source.span(node)[1]
    return Edit(kind, end - len(old), end, new, f"{old} -> {new}", cost)


def _exception(source: Source, node: ast.Name) -> Iterator[Edit]:
    for rank, new in enumerate(_RAISED[node.id][:4]):
        yield _rename(source, node, node.id, new, "exception", 1.0 + 0.5 * rank)


def _variable(source: Source, node: ast.Name, line: Line) -> Iterator[Edit]:
    if line.function is None or node.id in ("self", "cls"):
        return
    scope = scope_of(line.function)
    store = isinstance(node.ctx, ast.Store)
    if store and not isinstance(line.node, ast.Assign | ast.AugAssign):
        return
    ranked = _nearest(scope, node)
    for rank, new in enumerate(ranked[:_PER_NAME]):
        cost = 2.0 + 1.1 * rank + (1.5 if store else 0.0) + (0.0 if node.id in scope.bound else 1.2)
        if scope.unused(new) and not store:
            cost = 0.6
        yield _rename(source, node, node.id, new, "name", cost)


def _nearest(scope: Scope, node: ast.Name) -> list[str]:
    """Other names bound before this use: never-read ones first, then by the distance of their nearest mention."""
    near: list[tuple[bool, int, int, str]] = []
    for order, (name, lines) in enumerate(scope.bound.items()):
        if name in (node.id, "self", "cls", "_") or min(lines) > node.lineno:
            continue
        mentions = [at for at in (*lines, *scope.read.get(name, ())) if at <= node.lineno] or lines
        distance = min(abs(node.lineno - at) for at in mentions)
        near.append((not scope.unused(name), distance, -order, name))
    return [name for *_, name in sorted(near)]


@lru_cache(maxsize=256)
def _called_names(source_text: str, tree: ast.Module) -> Counter[str]:
    return Counter(
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )


def _function(source: Source, node: ast.Name, line: Line) -> Iterator[Edit]:
    for rank, new in enumerate(_CONFUSED.get(node.id, ())[:_PER_NAME]):
        yield _rename(source, node, node.id, new, "function", 1.2 + 0.7 * rank)
    local = [] if line.function is None else sorted(scope_of(line.function).called - {node.id})
    own = [part.name for part in source.tree.body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    known = [*local, *own]
    if node.id in own or (line.function is not None and node.id in scope_of(line.function).bound):
        similar = difflib.get_close_matches(node.id, [name for name in known if name != node.id], n=2, cutoff=0.55)
        for rank, new in enumerate(dict.fromkeys(similar)):
            yield _rename(source, node, node.id, new, "function", 2.8 + 0.8 * rank)


def _attribute(source: Source, node: ast.Attribute, parent: ast.AST, line: Line) -> Iterator[Edit]:
    called = isinstance(parent, ast.Call) and node is parent.func
    for rank, new in enumerate(_CONFUSED.get(node.attr, ())[:_PER_NAME]):
        yield _rename(source, node, node.attr, new, "method", (1.2 if called else 1.6) + 0.7 * rank)
    if not isinstance(node.value, ast.Name):
        return
    owner = node.value.id
    if owner == "self" and line.cls is not None:
        others = _members(line.cls, called)
    else:
        others = _used_on(source.tree, owner, called)
    ranked = sorted(
        (name for name in others if name != node.attr),
        key=lambda name: (-_likeness(name, node.attr), min(abs(at - node.lineno) for at in others[name]), name),
    )
    for rank, new in enumerate(ranked[:_PER_NAME]):
        if new not in _CONFUSED.get(node.attr, ()):
            yield _rename(source, node, node.attr, new, "attribute", 2.2 + 0.9 * rank)


def _likeness(left: str, right: str) -> float:
    return round(difflib.SequenceMatcher(None, left, right).ratio(), 1)


@lru_cache(maxsize=512)
def _members(cls: ast.ClassDef, called: bool) -> dict[str, list[int]]:
    """What a class uses on `self`: methods it calls, or attributes it reads and writes; name -> lines."""
    return _used(cls, "self", called)


@lru_cache(maxsize=2048)
def _used_on(tree: ast.Module, owner: str, called: bool) -> dict[str, list[int]]:
    return _used(tree, owner, called)


def _used(root: ast.AST, owner: str, called: bool) -> dict[str, list[int]]:
    functions = {id(node.func) for node in ast.walk(root) if isinstance(node, ast.Call)}
    found: dict[str, list[int]] = {}
    for node in ast.walk(root):
        if not isinstance(node, ast.Attribute) or (id(node) in functions) != called:
            continue
        if isinstance(node.value, ast.Name) and node.value.id == owner:
            found.setdefault(node.attr, []).append(node.lineno)
    return found


def _keyword(source: Source, node: ast.keyword) -> Iterator[Edit]:
    assert node.arg is not None
    start = source.span(node)[0]
    for new in _CONFUSED.get(node.arg, ())[:1]:
        label = f"{shorten(node.arg)}= -> {new}="
        yield Edit("keyword", start, start + len(node.arg), new, label, 3.0)
