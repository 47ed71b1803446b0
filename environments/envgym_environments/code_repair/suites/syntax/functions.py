"""Functions that a writer may rewrite, in the languages that have a grammar, and what an answer makes of one.

The same `Target` and the same reasons as for Python. An answer is put in the function's place and read there, for
most languages have no methods outside of a class: it must be one function with the same name and head, and the file
must parse as well as before.
"""

import re
import textwrap

from tree_sitter import Node

from envgym_environments.code_repair.operators import Mutation
from envgym_environments.code_repair.rewrite.functions import Target, code_of, lies_well
from envgym_environments.code_repair.suites.suite import Language
from envgym_environments.code_repair.suites.syntax.grammar import GRAMMARS
from envgym_environments.code_repair.suites.syntax.outline import Defined, definitions, parsed, rows_of, text_of

__all__ = ["replaced_in", "targets_in"]


def targets_in(path: str, source: str, language: Language) -> list[Target]:
    """Named functions and methods with rows of their own and 2 to 80 rows of body, in text order."""
    root, rows = parsed(source, language), source.split("\n")
    found = []
    for one in definitions(root, language):
        if not _is_function(one, language) or one.whole.has_error or _in_tests(one, language):
            continue
        assert one.body is not None
        (first, last), body = rows_of(one.whole), one.body.start_point.row + 2  # the row behind the brace
        before = rows[first - 1].encode()[: one.whole.start_point.column].strip()
        after = rows[last - 1].encode()[one.whole.end_point.column :].strip()
        if before or after or not lies_well(body, last - 1):
            continue
        text = "\n".join(rows[first - 1 : last])
        found.append(Target(path, one.name, first, last, body, text, _head(one), language))
    return found


def _is_function(one: Defined, language: Language) -> bool:
    return one.node.type in GRAMMARS[language].functions and one.body is not None and one.body.type != "ERROR"


def _in_tests(one: Defined, language: Language) -> bool:
    """Whether it is a test that stands beside the code (Rust)."""
    return bool(GRAMMARS[language].tests & set(one.name.split(".")))


def _head(one: Defined) -> str:
    assert one.body is not None
    until = one.body.start_byte - one.whole.start_byte
    indent = " " * one.whole.start_point.column
    return f"{indent}{(one.whole.text or b'')[:until].decode('utf-8', 'replace').rstrip()} {{ }}"


def replaced_in(target: Target, source: str, answer: str, *, operator: str) -> Mutation | str:
    """The mutation that puts the answer's function in the target's place, or why it is none."""
    code = textwrap.dedent(code_of(answer)).strip("\n")
    after = "\n".join(f"{target.indent}{row}" if row.strip() else row for row in code.split("\n"))
    rows = source.split("\n")
    text = "\n".join([*rows[: target.first - 1], after, *rows[target.last :]])
    old, new = parsed(source, target.language), parsed(text, target.language)
    if not code or (new.has_error and not old.has_error):
        return "no_code"
    (was,) = _at(old, target, target.first, target.last)
    made = _at(new, target, target.first, target.first + after.count("\n"))
    if len(made) != 1 or made[0].name != target.name:
        return "no_such_function"
    (one,) = made
    if one.whole.has_error:
        return "no_code"
    if _words(one.whole, one.body) != _words(was.whole, was.body) or _around(after, one) != _around(
        target.text, was
    ):
        return "other_parameters"
    assert one.body is not None
    assert was.body is not None
    if _words(one.body) == _words(was.body):
        return "unchanged"
    return target.replaced(after, operator)


def _at(root: Node, target: Target, first: int, last: int) -> list[Defined]:
    """The functions that begin in these rows."""
    found = definitions(root, target.language)
    return [
        one
        for one in found
        if _is_function(one, target.language) and first <= one.whole.start_point.row + 1 <= last
    ]


def _words(node: Node, body: Node | None = None) -> list[str]:
    """The words of a piece of code without its comments, and without `body`."""
    found: list[str] = []
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if "comment" in one.type or (body is not None and one.id == body.id):
            continue
        if one.children:
            waiting += reversed(one.children)
        else:
            found.append(text_of(one))
    return found


def _around(text: str, one: Defined) -> str:
    """What stands in the same rows and is no part of the function: nothing but comments should."""
    rest = text.replace(text_of(one.whole), "", 1)
    return re.sub(r"\s|/\*.*?\*/|//[^\n]*", "", rest, flags=re.DOTALL)
