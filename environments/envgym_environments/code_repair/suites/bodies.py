"""Where the tests of a test file stand: the body of each, what would make its end fail, and its literals.

Text in, places out, by the language's grammar (Python's by its own parser): nothing is run. A body that ends in a
`return` is left alone, for what stands behind it would not compile everywhere.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from envgym_environments.code_repair.suites.suite import Language
from envgym_environments.code_repair.suites.syntax.grammar import GRAMMARS

__all__ = ["LEFT", "RIGHT", "Body", "Change", "bodies"]

LEFT, RIGHT = "@left@", "@right@"
"""Stand for the two halves of a secret word in the text of an end: the word itself is not in the file."""

_ENDS: dict[Language, str] = {
    "python": f'raise AssertionError("{LEFT}" "{RIGHT}")',
    "javascript": f"throw new Error('{LEFT}' + '{RIGHT}')",
    "typescript": f"throw new Error('{LEFT}' + '{RIGHT}')",
    "go": f'.Fatal("{LEFT}" + "{RIGHT}")',
    "rust": f'panic!("{{}}{{}}", "{LEFT}", "{RIGHT}");',
    "java": f'if (true) throw new AssertionError("{LEFT}" + "{RIGHT}");',
    "c": f'TEST_FAIL_MESSAGE("{LEFT}" "{RIGHT}");',
    "c++": f'FAIL() << "{LEFT}" "{RIGHT}";',
}
_NUMBERS = frozenset({"number", "number_literal", "int_literal", "integer_literal", "decimal_integer_literal"})
_TEXTS = frozenset({"string", "string_literal", "interpreted_string_literal"})
_SAYS = re.compile(r"(?i)fatal|log|message|fail|print|\.error|panic|describe")
_COMPARES = re.compile(r"(?i)assert|expect|equal|should|\bto_?be")
_COMPARISONS = frozenset({"==", "!=", "===", "!=="})
_LEAVES = frozenset({"return_statement", "throw_statement", "return_expression"})


@dataclass(frozen=True, slots=True)
class Change:
    """One stretch of a file's text replaced by another. at: in characters."""

    at: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Body:
    """One test. name: as the file writes it. end: fails where the test is over. twins: changed literals.

    at, behind: where it begins, and where another one could stand behind it (None: nowhere), in characters.
    compared: those of the twins whose literal stands in an assertion or a comparison; none are known of Python.
    """

    name: str
    end: Change
    twins: tuple[Change, ...]
    at: int = 0
    behind: int | None = None
    compared: tuple[Change, ...] = ()


def bodies(text: str, language: Language) -> list[Body]:
    """The tests of a file in order; none where it does not parse."""
    if language == "python":
        return list(_of_python(text))
    source = text.encode("utf-8", "surrogatepass")
    root = GRAMMARS[language].parser.parse(source).root_node
    found: list[Body] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        place = _test(node, language, source)
        if place is not None:
            name, inside = place
            end = _end(inside, language, source, node)
            if end is not None and not inside.has_error:
                twins = tuple(_twins(inside, source))
                changes, compared = tuple(one for one, _ in twins), tuple(one for one, is_one in twins if is_one)
                found.append(
                    Body(name, end, changes, _at(node.start_byte, source), _behind(node, source), compared)
                )
            continue
        waiting += reversed(node.named_children)
    return found


def _text(node: Node, source: bytes) -> str:
    return source[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _at(offset: int, source: bytes) -> int:
    return len(source[:offset].decode("utf-8", "surrogatepass"))


def _test(node: Node, language: Language, source: bytes) -> tuple[str, Node] | None:
    """The name and the body of a test, where this node is one."""
    if language in ("javascript", "typescript"):
        return _script_test(node, source)
    body = node.child_by_field_name("body")
    if body is None or "{" not in _text(body, source)[:1]:
        return None
    head = source[node.start_byte : body.start_byte].decode("utf-8", "replace").strip()
    if language == "go":
        found = re.match(r"func (Test\w*)\(\w+ \*testing\.T\)$", head)
    elif language == "rust":
        found = re.search(r"\bfn (\w+)\(\)$", head) if _marked(node, source) else None
    elif language == "java":
        found = re.search(r"\bvoid (\w+)\s*\(\)", head) if re.search(r"@Test\b|\bvoid test", head) else None
    elif language == "c":
        found = re.search(r"\bvoid (\w+)\(void\)$", head)
        found = found if found and f"RUN_TEST({found[1]})".encode() in source else None
    else:
        found = re.match(r"TEST(?:_F)?\s*\(\s*\w+\s*,\s*(\w+)\s*\)$", head)
    return (found[1], body) if found else None


def _marked(node: Node, source: bytes) -> bool:
    """Whether `#[test]` stands before a function."""
    before = node.prev_named_sibling
    while before is not None and before.type in ("attribute_item", "line_comment"):
        if _text(before, source).replace(" ", "") == "#[test]":
            return True
        before = before.prev_named_sibling
    return False


def _script_test(node: Node, source: bytes) -> tuple[str, Node] | None:
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if node.type != "call_expression" or function is None or arguments is None:
        return None
    if _text(function, source) not in ("test", "it", "specify") or len(arguments.named_children) < 2:
        return None
    first, last = arguments.named_children[0], arguments.named_children[-1]
    body = last.child_by_field_name("body")
    return (_text(first, source), body) if "function" in last.type and body is not None else None


def _behind(node: Node, source: bytes) -> int | None:
    """Where the statement or the definition ends that a test is."""
    whole = node.parent if node.type == "call_expression" else node
    if whole is None or (whole is not node and whole.type != "expression_statement"):
        return None
    return _at(whole.end_byte, source)


def _end(body: Node, language: Language, source: bytes, test: Node) -> Change | None:
    """What makes a test fail once it has come to its end."""
    said = _ENDS[language]
    if language in ("javascript", "typescript") and body.type != "statement_block":
        old = _text(body, source)
        new = f"Promise.resolve({old}).then(() => {{ {said} }})"
        return Change(_at(body.start_byte, source), old, new)
    last = [child for child in body.named_children if "comment" not in child.type][-1:]
    if last and (last[0].type in _LEAVES or _text(last[0], source).startswith(("return", "panic!"))):
        return None
    if language == "go":
        said = re.sub(r"(?s)^.*?\((\w+) .*$", r"\1", _text(test, source)) + said
    between = "; " if language in ("javascript", "typescript", "rust") else "\n"
    return Change(_at(body.end_byte - 1, source), "}", f"{between}{said}\n}}")


def _twins(body: Node, source: bytes) -> Iterator[tuple[Change, bool]]:
    """Changed literals, and whether each stands in something that compares."""
    waiting: list[tuple[Node, str]] = [(body, "")]
    while waiting:
        node, inside = waiting.pop()
        says = next(filter(None, map(node.child_by_field_name, ("function", "name", "macro"))), None)
        if says is not None and _SAYS.search(_text(says, source)):
            continue
        if node.type in _NUMBERS or node.type in _TEXTS:
            old = _text(node, source)
            new = _other(old)
            if new:
                at = _at(node.start_byte, source)
                yield Change(at, old, new), bool(inside) and (node.type in _NUMBERS or inside == "two")
            continue
        inside = _compares(node, says, source) or inside
        waiting += [(child, inside) for child in reversed(node.named_children)]


def _compares(node: Node, says: Node | None, source: bytes) -> str:
    """Of what compares two things "two", of what is given more, such as a message, "more"; "" of all else."""
    sign = node.child_by_field_name("operator")
    if sign is not None and _text(sign, source) in _COMPARISONS:
        return "two"
    if says is None or not _COMPARES.search(_text(says, source)):
        return ""
    given = node.child_by_field_name("arguments")
    count = _text(node, source).count(",") + 1 if given is None else len(given.named_children)
    return "two" if count <= 2 else "more"


def _other(old: str) -> str:
    """Another literal of the same kind, "" where none is known."""
    if re.fullmatch(r"\d{1,9}", old):
        return str(int(old) + 1)
    if len(old) >= 2 and old[0] == old[-1] and old[0] in "\"'" and "%" not in old:
        return f"{old[:-1]}q{old[-1]}"
    return ""


def _of_python(text: str) -> Iterator[Body]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test") or not node.body[0].col_offset:
            continue
        last = node.body[-1]
        if (
            isinstance(last, ast.Return | ast.Raise)
            or last.end_lineno is None
            or node.body[0].lineno == node.lineno
        ):
            continue
        place = sum(map(len, lines[: last.end_lineno]))
        before = text[place - 1 : place]
        if before != "\n":
            continue
        end = Change(place - 1, "\n", f"\n{' ' * node.body[0].col_offset}{_ENDS['python']}\n")
        twins = []
        for one in [found for statement in node.body for found in ast.walk(statement)]:
            if isinstance(one, ast.Constant) and one.end_col_offset is not None and one.lineno == one.end_lineno:
                start = at(one.lineno, one.col_offset)
                old = text[start : at(one.lineno, one.end_col_offset)]
                if _other(old):
                    twins.append(Change(start, old, _other(old)))
        yield Body(node.name, end, tuple(twins))
