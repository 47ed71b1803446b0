"""What a submission is like besides what the tests say: how near to the answer, how large, how clean.

Pure functions of texts: nothing is imported or run. They are channels that a recipe may reward; none of them says
that a task is solved.
"""

import ast
import builtins
import contextlib
import difflib
import importlib.util
import marshal
import re
import symtable
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

__all__ = ["byte_code", "patch_lines", "patch_similarity", "problems"]

Texts = Mapping[str, str | None]
"""Path -> text; None where there is no file."""

_MOST_DIFF = 100_000
_KNOWN = frozenset(dir(builtins)) | {"__file__", "__name__", "__path__", "__spec__", "__annotations__", "__class__"}


@lru_cache(maxsize=64)  # an answer's is the same in every grade of a task
def _diff(before: str | None, after: str | None) -> str:
    """A unified diff without its two header lines, three lines of context; "" where nothing differs.

    Only a line feed ends a line, as in `patch`: what else stands at its end is part of it.
    """
    lines = difflib.unified_diff(_lines(before or ""), _lines(after or ""), lineterm="")
    return "\n".join(list(lines)[2:])


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def patch_similarity(base: Texts, submitted: Texts, gold: Texts) -> float:
    """The reward of SWE-RL: -1 for no change, else the mean over all files that either side changes.

    A file that both change counts ``SequenceMatcher(None, diff, answer's diff, autojunk=False).ratio()``, one that
    only one side changes 0. submitted, gold: only files that differ from `base` count. A diff of more than
    100,000 characters counts 0. (arXiv 2502.18449; a submission that is no patch is -1 too, which is for the
    caller to say.)
    """
    mine = {path: diff for path, text in submitted.items() if (diff := _diff(base.get(path), text))}
    theirs = {path: diff for path, text in gold.items() if (diff := _diff(base.get(path), text))}
    if not mine:
        return -1.0
    scores = [_ratio(mine.get(path), theirs.get(path)) for path in sorted(mine.keys() | theirs.keys())]
    return sum(scores) / len(scores)


def _ratio(left: str | None, right: str | None) -> float:
    if left is None or right is None or max(len(left), len(right)) > _MOST_DIFF:
        return 0.0
    return difflib.SequenceMatcher(None, left, right, autojunk=False).ratio()


def patch_lines(base: Texts, submitted: Texts) -> int:
    """Lines that a submission adds and removes."""
    diffs = [_diff(base.get(path), text).split("\n") for path, text in submitted.items()]
    return sum(line[:1] in ("+", "-") for lines in diffs for line in lines)


_UNCOMPILED = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


@lru_cache(maxsize=16)  # of one submission, whose problems are counted and whose byte code is made of it
def _compiled(text: str) -> tuple[CodeType | None, int]:
    """A module's code, None where it does not compile, and how many warnings the compiler has of it."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            source = text.encode("utf-8", "surrogatepass")
            code: CodeType = compile(source, "module.py", "exec", dont_inherit=True, optimize=0)
    except _UNCOMPILED:
        return None, 0
    return code, len(said)


def byte_code(text: str) -> bytes | None:
    """What ``__pycache__`` holds of a module with this text, for this interpreter; None where it is not to be used.

    It is stamped with the text's hash (PEP 552), so it is used with this very text only. A module that the compiler
    warns of, or does not take, is left to whoever imports it, who has to be told the same.
    """
    code, said = _compiled(text)
    if code is None or said:
        return None
    head = importlib.util.MAGIC_NUMBER + b"\3\0\0\0"
    return head + importlib.util.source_hash(text.encode("utf-8", "surrogatepass")) + marshal.dumps(code)


@lru_cache(maxsize=256)  # the base's file is the same in every grade of a task
def problems(text: str | None) -> int:
    """How many a Python module has: syntax errors, warnings of the compiler, undefined names, unused imports.

    A module that does not compile has one problem more than its lines, so that breaking it never looks clean.
    """
    if text is None:
        return 0
    code, count = _compiled(text)
    broken = text.count("\n") + 2
    if code is None:
        return broken
    try:
        found = _names(text)
    except _UNCOMPILED:  # what compiles may be nested too deeply to be looked at
        return broken
    undefined, unused = found.used - found.bound - _KNOWN, found.imported - found.used
    more = _looked_up(text, undefined, unused) if undefined or unused else 0
    return count + found.warnings + more


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a stretch of a module: bound in it as the module's own, used as such, imported at its top."""

    bound: frozenset[str]
    used: frozenset[str]
    imported: frozenset[str]
    warnings: int


_BEGINS = re.compile(r"(?<=\n\n)(?=(?:async )?def |class |@)")
_FUTURE = re.compile(r"^from __future__ import \w+(?:, \w+)*\n", re.MULTILINE)


def _names(text: str) -> _Names:
    """Of a whole module: of its stretches, which are mostly those of the module before a patch.

    What a name is to the module depends on nothing outside of the statement at its top that holds it, but for
    imports of the future. A stretch that cannot be parsed alone is none: then the module is one.
    """
    future = _FUTURE.search(text)
    if text.count("__future__") == (future is not None):
        with contextlib.suppress(*_UNCOMPILED):
            head, *rest = _BEGINS.split(text)
            before = future[0] if future else ""
            found = [_of_stretch(head), *(_of_stretch(before + one) for one in rest)]
            return _Names(
                frozenset().union(*(one.bound for one in found)),
                frozenset().union(*(one.used for one in found)),
                frozenset().union(*(one.imported for one in found)),
                sum(one.warnings for one in found),
            )
    return _of_stretch(text)


@lru_cache(maxsize=4096)
def _of_stretch(text: str) -> _Names:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table = symtable.symtable(text, "module.py", "exec")
    top = {one.get_name(): one for one in table.get_symbols()}
    kinds = ("is_assigned", "is_imported", "is_namespace", "is_declared_global")
    bound = {name for name, one in top.items() if any(getattr(one, kind)() for kind in kinds)}
    used = {name for name, one in top.items() if one.is_referenced()}
    for scope in _scopes(table):
        for one in () if scope is table else scope.get_symbols():
            bound |= {one.get_name()} if one.is_declared_global() else set()
            used |= {one.get_name()} if one.is_referenced() and one.is_global() else set()
    imported = {name for name, one in top.items() if one.is_imported()}
    return _Names(frozenset(bound), frozenset(used), frozenset(imported), len(said))


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _looked_up(text: str, undefined: frozenset[str], unused: frozenset[str]) -> int:
    """How many of these remain where the tree is looked at, which costs as much as everything else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were counted
        tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.ImportFrom, ast.Constant))]
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return 0
    listed = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    future = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }
    return len(undefined) + len(unused - listed - future)
