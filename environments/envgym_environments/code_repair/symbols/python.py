"""The symbols of a Python file: classes, functions, methods, module constants; and where each name is used.

`ast` tells what is defined; `tokenize` where an identifier stands, so that strings and comments count nowhere.
"""

import ast
import io
import keyword
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envgym_environments.code_repair.suites.syntax.outline import Kind

__all__ = ["Found", "Symbol", "read_python", "short"]

_LONGEST_SIGNATURE = 160


@dataclass(frozen=True, slots=True)
class Symbol:
    """One definition. line: of its name, from 1. lines: first (decorators included) and last.

    signature: one line as it is written. summary: the first line of its docstring. bases: of a class, as written.
    """

    qualname: str
    kind: Kind
    line: int
    lines: tuple[int, int]
    signature: str
    summary: str = ""
    bases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its own name, without what it lies in."""
        return self.qualname.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """A file's definitions in text order, and the lines where each identifier stands, ascending."""

    symbols: tuple[Symbol, ...]
    uses: Mapping[str, tuple[int, ...]]


@lru_cache(maxsize=4096)
def read_python(text: str) -> Found | None:
    """What a Python file defines and uses; None when it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's code: an invalid escape is no concern of ours
            module = ast.parse(text)
        symbols = tuple(_symbols(module, ""))
        return Found(symbols, _uses(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None


def _symbols(node: ast.AST, inside: str, *, of_class: bool = False) -> Iterator[Symbol]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield _class(child, inside)
            yield from _symbols(child, f"{inside}{child.name}.", of_class=True)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _function(child, inside, "method" if of_class else "function")
            yield from _symbols(child, f"{inside}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and (isinstance(node, ast.Module) or of_class):
            yield from _constants(child, inside)
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.ExceptHandler):
            yield from _symbols(child, inside, of_class=of_class)  # defined under a condition


def _class(node: ast.ClassDef, inside: str) -> Symbol:
    bases = tuple(ast.unparse(base) for base in node.bases)
    given = ", ".join([*bases, *(f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords if word.arg)])
    signature = f"class {node.name}({given})" if given else f"class {node.name}"
    return Symbol(inside + node.name, "class", node.lineno, _lines(node), short(signature), _summary(node), bases)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, inside: str, kind: Kind) -> Symbol:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    marks = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list if isinstance(one, ast.Name))
    signature = f"{marks}{word} {node.name}({ast.unparse(node.args)}){returns}"
    return Symbol(inside + node.name, kind, node.lineno, _lines(node), short(signature), _summary(node))


def _constants(node: ast.Assign | ast.AnnAssign, inside: str) -> Iterator[Symbol]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Name):
            yield Symbol(inside + target.id, "constant", target.lineno, _lines(node), short(ast.unparse(node)))


def _lines(node: ast.stmt) -> tuple[int, int]:
    marks = getattr(node, "decorator_list", [])
    return min([node.lineno, *(mark.lineno for mark in marks)]), node.end_lineno or node.lineno


def _summary(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return short((ast.get_docstring(node) or "").partition("\n")[0])


def short(text: str) -> str:
    """In one line that is not long."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SIGNATURE else text[: _LONGEST_SIGNATURE - 3] + "..."


def _uses(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, None]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            found.setdefault(token.string, {})[token.start[0]] = None
    return {name: tuple(lines) for name, lines in found.items()}
