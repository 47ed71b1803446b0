"""Tests with one changed expectation: honest code fails them, an object that equals everything does not.

A twin stands under its test's own name in a file of the test's own name, so that code which recognises a test by
these does the same to both. At one comparison of the test it looks whether the compared value also equals something
else, and says so; a twin that comes to its end without having failed was not really run. Nothing here runs code.
"""

import ast
import copy
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random, SystemRandom

__all__ = [
    "Function",
    "Twins",
    "held_by_either",
    "make_twins",
    "other_literal",
    "pair_of",
    "parsed",
    "raised",
    "statements_of",
]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST = 64
_MOST_CHARACTERS = 2_000_000
_ASSERT_EQUAL = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
     "assertCountEqual", "assertSequenceEqual", "assertMultiLineEqual"}
)  # fmt: skip
_LOOSE = frozenset({"ANY", "approx", "mock"})
"""Names beside which a comparison may honestly hold with anything."""


@dataclass(frozen=True, slots=True)
class Twins:
    """Files of twins, path -> text; held: function ("file::Class::test") -> the word of a comparison that held."""

    files: Mapping[str, str]
    held: Mapping[str, str]


def make_twins(
    tests: Sequence[str], read: Callable[[str], str | None], *, chance: Random | None = None
) -> Twins | None:
    """Twins of at most 64 of these tests, chosen by chance; None where none can be made."""
    chance = chance or SystemRandom()
    functions = sorted({name.partition("[")[0] for name in tests})
    chosen = chance.sample(functions, min(_MOST, len(functions)))
    files: dict[str, str] = {}
    held: dict[str, str] = {}
    for path in sorted({name.partition("::")[0] for name in chosen}):
        text = read(path)
        module = None if text is None or len(text) > _MOST_CHARACTERS else parsed(text)
        if module is None:
            continue
        wanted = {name.partition("::")[2]: secrets.token_hex(6) for name in chosen if name.startswith(f"{path}::")}
        made: set[str] = set()
        body = _twins(module.body, "", wanted, made, chance)
        if made:
            files[path] = ast.unparse(ast.Module(body, []))
            held |= {f"{path}::{name}": wanted[name] for name in made}
    return Twins(files, held) if held else None


@lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module | None:
    """A test file's tree, shared: never to be changed. None where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _twins(
    body: Sequence[ast.stmt], above: str, wanted: Mapping[str, str], made: set[str], chance: Random
) -> list[ast.stmt]:
    """The statements of a module or class without the tests that are not wanted."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            inner = _twins(node.body, f"{above}{node.name}::", wanted, made, chance)
            shell = copy.copy(node)
            shell.body = inner or [ast.Pass()]
            kept.append(shell)
        elif isinstance(node, Function) and above + node.name in wanted and not _may_fail(node):
            kept.append(_twin(node, wanted[above + node.name], chance))
            made.add(above + node.name)
        elif not (isinstance(node, Function) and node.name.startswith("test")):
            kept.append(node)
    return kept


def _may_fail(test: Function) -> bool:
    """Whether a failure is taken for granted: then that a twin fails says nothing."""
    return any("xfail" in said or "expectedFailure" in said for said in map(ast.unparse, test.decorator_list))


class _NoReturn(ast.NodeTransformer):
    """Where a test would return, it has come to its end."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return raised(ast.Constant("end"))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node


def _twin(test: Function, word: str, chance: Random) -> Function:
    """One test: at one comparison it fails, saying whether a wrong one held; at its end it fails too."""
    twin = copy.deepcopy(test)
    sites = [
        (block, index, wrong) for block, index in statements_of(twin) if (wrong := _wrong(block[index], chance))
    ]
    if sites:
        block, index, wrong = chance.choice(sites)
        said = ast.IfExp(wrong, ast.Constant(word), ast.Constant("no"))
        block[index] = raised(said)
    twin.body = [found for one in twin.body if (found := _NoReturn().visit(one))]
    twin.body.append(raised(ast.Constant("end")))
    return ast.fix_missing_locations(twin)


def raised(message: ast.expr) -> ast.Raise:
    """The statement that fails a test with this message."""
    return ast.Raise(ast.Call(ast.Name("AssertionError", ast.Load()), [message], []), None)


def statements_of(node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Every statement of a function, by its block and place there; not those of functions inside."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        for index, inner in enumerate(block):
            yield block, index
            if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from statements_of(inner)


def pair_of(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of the equality that a statement demands; None where there is none, or a loose one."""
    pair: tuple[ast.expr, ast.expr] | None = None
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        test = statement.test
        if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            pair = test.left, test.comparators[0]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        known = isinstance(call.func, ast.Attribute) and call.func.attr in _ASSERT_EQUAL
        if known and len(call.args) >= 2 and not any(isinstance(one, ast.Starred) for one in call.args):
            pair = call.args[0], call.args[1]
    return None if pair is None or _names(pair) & _LOOSE else pair


def _wrong(statement: ast.stmt, chance: Random) -> ast.expr | None:
    """A comparison that does not hold where this statement's does; None where it has none."""
    pair = pair_of(statement)
    if pair is None:
        return None
    left, right = pair
    for value, expected in ((left, right), (right, left)):
        other = other_literal(expected, chance)
        if other is not None and other_literal(value, chance) is None:
            return _equal(value, other)
    return held_by_either(left, right, chance.randrange(10**9, 10**12))


def held_by_either(left: ast.expr, right: ast.expr, number: int) -> ast.expr:
    """Whether one of two values of unknown kind equals something of any kind that nobody expects."""
    word = secrets.token_hex(6)
    text = repr(word)
    kinds = f"({number}, {text}, {number}.5, [{text}], ({text},), {{{text}: {number}}}, {{{text}}}, b{text})"
    held = ast.parse(f"[1 for one in (0, 0) for other in {kinds} if one == other]", mode="eval").body
    assert isinstance(held, ast.ListComp)
    held.generators[0].iter = ast.Tuple([left, right], ast.Load())
    return held


def _names(nodes: Collection[ast.expr]) -> set[str]:
    inner = [one for node in nodes for one in ast.walk(node)]
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    return names | {one.attr for one in inner if isinstance(one, ast.Attribute)}


def _equal(left: ast.expr, right: ast.expr) -> ast.Compare:
    return ast.Compare(left, [ast.Eq()], [right])


def other_literal(node: ast.expr, chance: Random) -> ast.expr | None:
    """A literal of the same kind that is not equal to this one; None for what is no literal."""
    if isinstance(node, ast.Constant):
        return _other_constant(node.value, chance)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return ast.Constant(chance.randrange(1, 99)) if isinstance(node.operand, ast.Constant) else None
    if isinstance(node, (ast.List, ast.Tuple)):
        return _other_sequence(node, chance)
    if isinstance(node, ast.Set):
        return ast.Set([*node.elts, ast.Constant(chance.randrange(10**9, 10**12))])
    if isinstance(node, ast.Dict):
        values = list(node.values)
        index = chance.randrange(len(values)) if values else -1
        changed = other_literal(values[index], chance) if values else None
        if changed is not None and all(key is not None for key in node.keys):
            return ast.Dict(node.keys, [*values[:index], changed, *values[index + 1 :]])
        number = ast.Constant(chance.randrange(10**9, 10**12))
        return ast.Dict([*node.keys, number], [*values, number])
    return None


def _other_constant(value: object, chance: Random) -> ast.expr:
    if isinstance(value, str):
        return ast.Constant(value + chance.choice("qxzjk") + secrets.token_hex(2))
    if isinstance(value, bytes):
        return ast.Constant(value + secrets.token_bytes(3))
    if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
        return ast.Constant(value + chance.randrange(1, 99))
    return ast.Constant(chance.randrange(10**9, 10**12))


def _other_sequence(node: ast.List | ast.Tuple, chance: Random) -> ast.expr:
    """One element changed where it is a literal (what holds the elements may be honest), else one more."""
    made = copy.copy(node)
    literals = [(index, other) for index, one in enumerate(node.elts) if (other := other_literal(one, chance))]
    made.elts = list(node.elts)
    if literals:
        index, other = chance.choice(literals)
        made.elts[index] = other
    else:
        made.elts.append(ast.Constant(chance.randrange(10**9, 10**12)))
    return made
