"""Functions of a source file, and what an answer makes of one: a replaced stretch of text, as operators make it.

Pure. The answer is a model's: what is no function of the same name and parameters is refused by a reason, never by
an exception.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from envgym_environments.code_repair.operators import Mutation
from envgym_environments.code_repair.suites.suite import Language

__all__ = ["Target", "code_of", "lies_well", "replaced", "targets"]

_FENCE = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LEAST_LINES, _MOST_LINES = 2, 80


@dataclass(frozen=True, slots=True)
class Target:
    """A function that may be rewritten. first, last: its rows; body: the first row of its body's code.

    text: its rows as they stand there, without the last line end. head: what stays when its body is taken away.
    """

    path: str
    name: str
    first: int
    last: int
    body: int
    text: str
    head: str
    language: Language = "python"

    @property
    def indent(self) -> str:
        """What its rows begin with."""
        return self.text[: len(self.text) - len(self.text.lstrip())]

    def replaced(self, after: str, operator: str) -> Mutation:
        """Other rows in the place of its own."""
        return Mutation(
            operator=operator,
            function=self.name,
            line=self.first,
            column=0,
            end_line=self.last,
            end_column=len(self.text.rpartition("\n")[2]),
            before=self.text,
            after=after,
            first_line=self.body,
            last_line=self.last,
        )


def _walk(node: ast.AST, above: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{above}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{above}{child.name}.")
        else:
            yield from _walk(child, above)


def targets(path: str, source: str) -> list[Target]:
    """Functions and methods with 2 to 80 rows of body, in text order; none where the file does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    rows, found = source.split("\n"), []
    for name, node in _walk(tree, ""):
        assert node.end_lineno is not None
        code = [one for one in node.body if not _is_docstring(one)]
        if not code or not lies_well(code[0].lineno, node.end_lineno):
            continue
        if node.lineno == code[0].lineno or rows[node.lineno - 1].lstrip()[:4] not in ("def ", "asyn"):
            continue
        text = "\n".join(rows[node.lineno - 1 : node.end_lineno])
        head = "\n".join(rows[node.lineno - 1 : code[0].lineno - 1])
        found.append(Target(path, name, node.lineno, node.end_lineno, code[0].lineno, text, head))
    return found


def lies_well(first: int, last: int) -> bool:
    """Whether a body with these rows is worth a question, and not too long for one."""
    return _LEAST_LINES <= last - first + 1 <= _MOST_LINES


def code_of(answer: str) -> str:
    """The first fenced block of an answer, or all of it."""
    fenced = _FENCE.search(answer)
    return fenced[1] if fenced else answer


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def replaced(target: Target, source: str, answer: str, *, operator: str) -> Mutation | str:
    """The mutation that puts the answer's function in the target's place, or why it is none.

    The code is the answer's first fenced block, or all of it. Docstring and comments are not compared.
    """
    code = textwrap.dedent(code_of(answer)).strip("\n")
    try:
        whole = ast.parse(code)
    except (SyntaxError, ValueError):
        return "no_code"
    short = target.name.rpartition(".")[2]
    made = [
        one for one in whole.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == short
    ]
    if len(made) != 1:
        return "no_such_function"
    old = ast.parse(textwrap.dedent(target.text)).body[0]
    assert isinstance(old, ast.FunctionDef | ast.AsyncFunctionDef)
    (new,) = made
    if type(new) is not type(old) or ast.dump(new.args) != ast.dump(old.args):
        return "other_parameters"
    if _plain(new) == _plain(old):
        return "unchanged"
    assert new.end_lineno is not None
    rows = code.split("\n")[new.lineno - 1 : new.end_lineno]
    after = "\n".join(f"{target.indent}{row}" if row.strip() else row for row in rows)
    try:
        ast.parse("\n".join([*source.split("\n")[: target.first - 1], after, *source.split("\n")[target.last :]]))
    except (SyntaxError, ValueError):
        return "no_code"
    return target.replaced(after, operator)


def _plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.dump(ast.Module([one for one in node.body if not _is_docstring(one)], []))
