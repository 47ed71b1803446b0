"""Candidate quick fixes for a line of source, like an editor's light bulb: a pure function of the file's text.

It knows nothing of how bugs are made and shares no code with what makes them. Where a line has more fixes than a
list holds, the kind of edit and what the file shows decide which are kept; they are listed as they stand in the
text, so that their order says nothing. What it cannot reach: statements,
conditions and arguments that are missing without a trace, text constants, and anything that takes two edits.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envgym_environments.code_repair.fixes.calls import call_fixes
from envgym_environments.code_repair.fixes.expressions import expression_fixes
from envgym_environments.code_repair.fixes.line import Edit, Line, Source, parse
from envgym_environments.code_repair.fixes.names import name_fixes
from envgym_environments.code_repair.fixes.naming import MOST_ALIKE, fix_name
from envgym_environments.code_repair.fixes.statements import statement_fixes

__all__ = ["MOST", "Fix", "apply_fix", "line_of", "logical_lines", "operations", "same_syntax", "suggest"]

MOST = 12
"""The longest list that is ever proposed."""


@dataclass(frozen=True, slots=True)
class Fix:
    """One proposed edit: ``source[start:end]``, which is `old`, becomes `new`.

    name: what it is called, unique in its list and from a closed vocabulary (`naming`). kind: the family of the
    edit. description: how it is shown.
    """

    name: str
    kind: str
    old: str
    new: str
    start: int
    end: int
    description: str


def apply_fix(source: str, fix: Fix) -> str:
    """The file with the fix in it. Raises ValueError when `source` is not the text the fix was made for."""
    if source[fix.start : fix.end] != fix.old:
        raise ValueError(
            f"the fix replaces {fix.old!r} at {fix.start}, but there is {source[fix.start : fix.end]!r}"
        )
    return source[: fix.start] + fix.new + source[fix.end :]


def logical_lines(source: str) -> Mapping[int, int]:
    """Physical line -> first line of the logical line that covers it; lines without code are left out."""
    try:
        return parse(source).owner
    except (SyntaxError, ValueError):
        return {}


def line_of(source: str, line: int) -> int | None:
    """The first line of the logical line that covers physical line `line`; None where there is no code."""
    return logical_lines(source).get(line)


_OPERATIONS = (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Slice, ast.IfExp)


def operations(source: str, line: int, *, most: int = 2) -> int:
    """How many comparisons and computations the logical line that begins at `line` holds, counted up to `most`."""
    try:
        parts = parse(source).lines.get(line, ())
    except (SyntaxError, ValueError):
        return 0
    found = sum(isinstance(node, _OPERATIONS) for part in parts for node, _parent in part.nodes())
    return min(found, most)


@lru_cache(maxsize=4096)
def suggest(source: str, line: int, *, most: int = MOST) -> tuple[Fix, ...]:
    """At most `most` fixes for the logical line that covers `line` (1-based), in text order.

    Every fix gives a file that parses and whose syntax tree is another one. Empty where there is no code, for a
    docstring, and for a file that does not parse.
    """
    try:
        parsed = parse(source)
    except (SyntaxError, ValueError):
        return ()
    first = parsed.owner.get(line)
    if first is None:
        return ()
    edits: list[Edit] = []
    for part in parsed.lines[first]:
        if _is_text(part.node):
            continue
        for family in (expression_fixes, name_fixes, call_fixes, statement_fixes):
            edits += family(parsed, part)
    edits.sort(key=lambda edit: (round(edit.cost, 2), edit.start, edit.end, edit.new))
    return _chosen(parsed, edits, first, most)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _chosen(source: Source, edits: Iterable[Edit], first: int, most: int) -> tuple[Fix, ...]:
    """The first `most` edits that parse and differ from the original and from each other."""
    start, end = _piece(source, source.lines[first][0])
    different = [source.text[start:end]]
    alike: dict[str, int] = {}
    chosen: list[tuple[Edit, str]] = []
    for edit in edits:
        if len(chosen) == most:
            break
        if not start <= edit.start <= edit.end <= end:
            continue
        text = source.text[start : edit.start] + edit.new + source.text[edit.end : end]
        if _tree(text) is None or any(same_syntax(text, other) for other in different):
            continue
        different.append(text)
        name = fix_name(edit, source.text[edit.start : edit.end])
        alike[name] = alike.get(name, 0) + 1
        if alike[name] <= MOST_ALIKE:
            chosen.append((edit, name))
    return _in_text_order(source.text, chosen)


def _in_text_order(text: str, chosen: list[tuple[Edit, str]]) -> tuple[Fix, ...]:
    """The kept edits as they stand in the text, alike ones numbered from left to right."""
    seen: dict[str, int] = {}
    fixes = []
    for edit, name in sorted(chosen, key=lambda one: (one[0].start, one[0].end, one[1], one[0].new)):
        seen[name] = seen.get(name, 0) + 1
        numbered = name if seen[name] == 1 else f"{name}.{seen[name]}"
        old = text[edit.start : edit.end]
        fixes.append(Fix(numbered, edit.kind, old, edit.new, edit.start, edit.end, edit.label))
    return tuple(fixes)


def _piece(source: Source, line: Line) -> tuple[int, int]:
    """Whole rows around the line that can be parsed by themselves: its function, or the file."""
    if line.function is None:
        return 0, len(source.text)
    decorators = [part.lineno for part in line.function.decorator_list]
    assert line.function.end_lineno is not None
    return source.row_span(min([line.function.lineno, *decorators]), line.function.end_lineno)


def same_syntax(one: str, other: str) -> bool:
    """Whether two pieces of code have the same syntax tree and differ by blanks and parentheses at most.

    Comparing trees is slow, and no edit that is proposed here changes anything else without changing the tree.
    False where one of them is no code.
    """
    if _loose(one) != _loose(other):
        return False
    trees = _tree(one), _tree(other)
    return trees[0] is not None and trees[1] is not None and ast.dump(trees[0]) == ast.dump(trees[1])


@lru_cache(maxsize=256)
def _loose(text: str) -> str:
    return text.translate(_BLANKS)


_BLANKS = str.maketrans("", "", " \t\n\r\f\\()")


def _tree(text: str) -> ast.Module | None:
    """The syntax of whole rows, whatever they are indented by; None when they have none."""
    indented = text[:1] in (" ", "\t")
    try:
        return ast.parse("if 1:\n" + text if indented else text)
    except (SyntaxError, ValueError):
        return None
