"""Short, closed names for quick fixes, so that the same idea has the same name on every line of every file.

An editor says "replace < by <=", not "fix number 7". A name says what kind of edit it is and, for operators and
constants, from what to what; it never says where, and it holds no text of the file. Several fixes of one line with
the same name are numbered from left to right: ``lt-to-le``, ``lt-to-le.2``. The vocabulary is finite, which lets a
very small model have one token per fix name.
"""

from envgym_environments.code_repair.fixes.line import Edit

__all__ = ["MOST_ALIKE", "fix_name", "fix_vocabulary", "says_all"]

MOST_ALIKE = 4
"""At most this many fixes of one line share a name; further ones are not offered."""

_WORDS = {
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "is": "is", "is not": "is-not",
    "in": "in", "not in": "not-in", "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv",
    "%": "mod", "**": "pow",
    "&": "bitand", "|": "bitor", "<<": "lshift", ">>": "rshift", "and": "and", "or": "or", "True": "true",
    "False": "false", "None": "none", "0": "zero", "''": "empty", "[]": "list",
}  # fmt: skip
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne", "is", "is-not", "in", "not-in")
_ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "pow", "bitand", "bitor", "lshift", "rshift")
_FROM_TO = ("compare", "arithmetic", "boolean", "constant")
_KINDS = (
    "argument", "assign", "attribute", "branches", "delete", "exception", "function", "insert", "keyword", "loop",
    "method", "operand", "return", "sign", "slice", "swap", "text", "variable", "yield", "compare", "arithmetic",
    "boolean", "constant", "number", "number-up", "number-down", "plus-one", "minus-one", "drop-one", "add-not",
    "drop-not", "return-none",
)  # fmt: skip


def fix_name(edit: Edit, old: str) -> str:
    """The name of an edit that replaces the text `old`, before numbering."""
    new = edit.new.strip()
    if edit.kind in _FROM_TO:
        return _from_to(edit.kind, old.strip().removesuffix("="), new.removesuffix("="), old.strip(), new)
    if edit.kind == "number":
        return _number(old.strip(), new)
    if edit.kind == "not":
        return "add-not" if new.startswith("not") else "drop-not"
    if edit.kind == "return" and new == "return None":
        return "return-none"
    return edit.kind if edit.kind in _KINDS else "variable"


def says_all(name: str) -> bool:
    """Whether a name tells the whole edit, so that a list need not describe it: "lt-to-le", "delete"."""
    bare = name.partition(".")[0]
    return bare in _PAIRS or bare in ("delete", "number-up", "number-down", "return-none")


def _from_to(kind: str, bare_old: str, bare_new: str, old: str, new: str) -> str:
    pair = (old, new) if old in _WORDS and new in _WORDS else (bare_old, bare_new)
    if pair[0] in _WORDS and pair[1] in _WORDS:
        name = f"{_WORDS[pair[0]]}-to-{_WORDS[pair[1]]}"
        return name if name in _PAIRS else kind
    return kind


def _number(old: str, new: str) -> str:
    if old.isdigit() and new.lstrip("-").isdigit():
        return {1: "number-up", -1: "number-down"}.get(int(new) - int(old), "number")
    if new.endswith("+ 1"):
        return "plus-one"
    if new.endswith("- 1"):
        return "minus-one"
    return "drop-one" if old.startswith(new) else "number"


def _pairs() -> frozenset[str]:
    inside = [(a, b) for words in (_COMPARE, _ARITHMETIC, ("and", "or")) for a in words for b in words if a != b]
    constants = [("true", "false"), ("false", "true"), ("true", "none"), ("false", "none")]
    constants += [("none", word) for word in ("true", "false", "zero", "empty", "list")]
    return frozenset(f"{a}-to-{b}" for a, b in inside + constants)


_PAIRS = _pairs()


def fix_vocabulary() -> tuple[str, ...]:
    """Every name a fix can have, numbers included, sorted."""
    names = sorted({*_KINDS, *_PAIRS})
    return tuple(f"{name}.{n}" if n > 1 else name for name in names for n in range(1, MOST_ALIKE + 1))
