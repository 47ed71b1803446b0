"""The symbols of a file in any of the seven languages that have a grammar here, as those of a Python file."""

from functools import lru_cache

from envgym_environments.code_repair.suites.suite import Language
from envgym_environments.code_repair.suites.syntax.outline import (
    Defined,
    definitions,
    identifiers,
    parsed,
    rows_of,
    summary_of,
    text_of,
)
from envgym_environments.code_repair.symbols.python import Found, Symbol, short

__all__ = ["LANGUAGE_OF", "read_by_grammar"]

LANGUAGE_OF: dict[str, Language] = {
    ".js": "javascript", ".cjs": "javascript", ".mjs": "javascript", ".jsx": "javascript",
    ".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "typescript",
    ".go": "go", ".rs": "rust", ".java": "java", ".c": "c",
    ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".hpp": "c++", ".h": "c++",
}  # fmt: skip
"""Ending of a file's name -> language. Headers are read as C++, which has all that C's hold."""


@lru_cache(maxsize=4096)
def read_by_grammar(text: str, language: Language, *, markup: bool = False) -> Found | None:
    """What a file defines and uses; None where nothing of it can be read. markup: TypeScript with JSX (``.tsx``).

    A place that does not parse (macros, other dialects) costs what stands in it, not the file.
    """
    root = parsed(text, language, markup=markup)
    symbols = tuple(_symbol(one) for one in definitions(root, language))
    if root.has_error and not symbols:
        return None
    found: dict[str, dict[int, None]] = {}
    for name, line in identifiers(root):
        found.setdefault(name, {})[line] = None
    return Found(symbols, {name: tuple(lines) for name, lines in found.items()})


def _symbol(one: Defined) -> Symbol:
    return Symbol(
        one.name,
        one.kind,
        one.at.start_point.row + 1,
        rows_of(one.whole),
        short(_signature(one)),
        short(summary_of(one.whole)),
        one.bases,
    )


def _signature(one: Defined) -> str:
    """As it is written up to its body; a constant and a type without a body whole."""
    whole = text_of(one.whole)
    if one.node.type == "type_spec":
        return whole.partition("{")[0]
    if one.body is None or one.kind == "constant":
        return whole.rstrip("; \n")
    before = (one.whole.text or b"")[: one.body.start_byte - one.whole.start_byte]
    return before.decode("utf-8", "replace").strip().removesuffix("{")
