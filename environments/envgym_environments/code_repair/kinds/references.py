"""Where a package's files name a thing, on the syntax tree, and texts in which it has another name. Pure."""

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from envgym_environments.code_repair.runner import Layout

__all__ = ["clashes", "defines", "names_in", "of_frames", "python_files", "renamed"]


def python_files(tree: Path, layout: Layout) -> dict[str, str]:
    """Path -> text of the package's Python files that parse, in path order; tests inside it are left out."""
    top = tree / layout.package
    found: dict[str, str] = {}
    for place in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
        path = place.relative_to(tree).as_posix()
        if path in layout.tests or {"tests", "test"} & set(path.split("/")[:-1]):
            continue
        text = place.read_bytes().decode("utf-8", "replace")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        found[path] = text
    return found


def _words(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every place that names something as a reference, a definition, an import or an entry of ``__all__``."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word):
                yield word, node
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                yield word, node
            case ast.alias(name=word):
                yield word.rpartition(".")[2], node
            case ast.Constant(value=str(word)) if word.isidentifier():
                yield word, node


def names_in(text: str, name: str) -> int:
    """How often a module names something."""
    return sum(word == name for word, _ in _words(ast.parse(text)))


_BUILTINS = frozenset({"locals", "globals", "vars", "exec", "eval", "dir", "super"})
_OF_MODULES = frozenset(
    {"_getframe", "_getframemodulename", "_current_frames", "currentframe", "extract_stack", "format_stack",
     "print_stack", "walk_stack"}
)  # fmt: skip


def of_frames(node: ast.AST) -> bool:
    """Whether a node itself asks which frame it runs in, so that it means something else in another function.

    Attributes of other things than modules are their own: `model.eval()` asks for no frame.
    """
    match node:
        case ast.Name(id=word):
            return word in _BUILTINS | _OF_MODULES
        case ast.Attribute(value=ast.Name(id="builtins"), attr=word) if word in _BUILTINS:
            return True
        case ast.Attribute(value=ast.Name(id="inspect"), attr="stack") | ast.keyword(arg="stacklevel"):
            return True
        case ast.Attribute(attr=word):
            return word in _OF_MODULES
        case ast.Call(func=ast.Name(id="stack"), args=[] | [ast.Constant()]):
            return True  # from inspect import stack
        case ast.Call(func=ast.Name(id="warn") | ast.Attribute(attr="warn"), args=args):
            return len(args) > 2 or any(isinstance(one, ast.Starred) for one in args)
    return False


def defines(text: str, name: str) -> bool:
    """Whether a function or class of this name is defined at the top of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for node in ast.parse(text).body)


def clashes(texts: Mapping[str, str], name: str, home: str) -> bool:
    """Whether the name also means something else somewhere: an argument, a local, a member, a module, a keyword."""
    for path, text in texts.items():
        tree = ast.parse(text)
        for node in ast.walk(tree):
            match node:
                case ast.arg(arg=word) | ast.keyword(arg=word):
                    bad = word == name
                case ast.Name(id=word, ctx=ast.Store() | ast.Del()):
                    bad = word == name
                case ast.Attribute(attr=word, ctx=ast.Store() | ast.Del()):
                    bad = word == name
                case ast.ImportFrom(module=module):
                    bad = name in (module or "").split(".")
                case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                    bad = word == name and not (path == home and node in tree.body)
                case ast.alias(asname=word):
                    bad = word == name or (node.name.partition(".")[2] != "" and name in node.name.split("."))
                case _:
                    bad = False
            if bad:
                return True
    return False


def renamed(text: str, name: str, new: str) -> str:
    """The module with every word `name`, and every text that is that word, exchanged; the rest as it stands."""
    rows = text.split("\n")
    hits: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        if token.type == tokenize.NAME and token.string == name:
            hits.append((row, column, name))
        elif token.type == tokenize.STRING and token.string in (f"'{name}'", f'"{name}"'):
            hits.append((row, column + 1, name))
    for row, column, word in reversed(hits):
        line = rows[row - 1]
        rows[row - 1] = line[:column] + new + line[column + len(word) :]
    return "\n".join(rows)
