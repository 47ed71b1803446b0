"""What a test's comparisons compare, and looks at it: does something else, which honest values are not, equal it?

Whoever writes tests anew (`twins`, `disguise`) puts looks in front of comparisons. Nothing here runs code.
"""

import ast
import copy
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

__all__ = ["SITES", "Look", "Looked", "always_equal", "named", "pair_of", "raised", "set_to"]

SITES = 4
"""At how many comparisons of a test a grade looks, drawn by chance."""

_ASSERT_EQUAL = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
     "assertCountEqual", "assertSequenceEqual", "assertMultiLineEqual"}
)  # fmt: skip
_NOT_BY_EQUALITY = ("assertCountEqual", "assertSequenceEqual")
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop, ast.expr_context)
_LOOSE = frozenset({"ANY", "approx", "mock"})
"""Names beside which a comparison may honestly hold with anything."""
_OF_EQUALITY = frozenset({"__eq__", "__ne__", "__hash__", "__repr__"})


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


@lru_cache(maxsize=64)
def always_equal(module: ast.Module) -> frozenset[str]:
    """Classes of a test file whose own comparison is `return True`: no submission decides what they equal.

    Each has no base, and its name means nothing else anywhere in the file.
    """
    names = Counter(name for node in ast.walk(module) for name in _binds(node))
    return frozenset(
        node.name
        for node in module.body
        if isinstance(node, ast.ClassDef) and names[node.name] == 1 and not names["*"] and _equals_all(node)
    )


def _binds(node: ast.AST) -> list[str]:
    """The names that a node itself binds."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    field = {ast.arg: "arg", ast.MatchMapping: "rest"}.get(type(node), "name")  # also of `except` and `case`
    bound = getattr(node, field, None)
    return [bound] if isinstance(bound, str) else []


def _equals_all(node: ast.ClassDef) -> bool:
    above = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    said = [one for one in node.body if "__eq__" in _inside(one)]
    more = {name for one in node.body for name in _inside(one)} - _OF_EQUALITY  # `__new__` could give anything
    if above or more or node.keywords or node.decorator_list or len(said) != 1:
        return False
    only = said[0]
    return (
        isinstance(only, ast.FunctionDef)
        and not only.decorator_list
        and len(only.body) == 1
        and ast.unparse(only.body[0]) == "return True"
    )


def _inside(statement: ast.stmt) -> set[str]:
    """The names that a statement of a class binds there, those inside of functions apart."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    return {name for node in ast.walk(statement) for name in _binds(node)}


@dataclass(frozen=True, slots=True)
class Looked:
    """Statements `before` a comparison that look at it, itself `after` them, and the names of its two sides.

    by_equality: whether it is `==` that it demands of them.
    """

    before: list[ast.stmt]
    after: ast.stmt
    sides: tuple[str, str]
    by_equality: bool


@dataclass(frozen=True, slots=True)
class Look:
    """How the comparisons of a test are looked at. held: what a test says, failing, where something wrong held.

    always: classes of its file that equal everything, see `always_equal`.
    """

    chance: Random
    held: str
    always: frozenset[str]

    def at(self, statement: ast.stmt) -> Looked:
        """A look at a statement that has a `pair_of`; its sides are evaluated once."""
        pair = pair_of(statement)
        assert pair is not None
        left, right, found = (self.new_name() for _ in range(3))
        look = ast.Try(
            [set_to(found, ast.Call(named("bool"), [self._wrong(pair, left, right)], []))],
            [ast.ExceptHandler(named("Exception"), None, [set_to(found, ast.Constant(False))])],
            [],
            [],
        )
        fail = ast.If(named(found), [raised(_halves(self.held))], [])
        after, by_equality = _with_sides(statement, left, right)
        return Looked(
            [set_to(left, pair[0]), set_to(right, pair[1]), look, fail], after, (left, right), by_equality
        )

    def new_name(self) -> str:
        """A name that nothing else has."""
        return f"{self.chance.choice('abcdef')}{secrets.token_hex(3)}"

    def _wrong(self, pair: tuple[ast.expr, ast.expr], left: str, right: str) -> ast.expr:
        """A comparison of what the two names hold with literals, which does not hold where these are honest."""
        sides = [(named(name), side) for name, side in zip((left, right), pair, strict=True)]
        sides = [one for one in sides if not _made_of(one[1], self.always)]
        for (held, value), (_, expected) in (sides, sides[::-1]) if len(sides) == 2 else ():
            other = _other_literal(expected, self.chance)
            if other is not None and _other_literal(value, self.chance) is None and _is_literal(other):
                return ast.Compare(held, [ast.Eq()], [other])
        return _held_by([held for held, _ in sides], self.chance.randrange(10**9, 10**12))


def raised(message: ast.expr) -> ast.Raise:
    """The statement that fails a test with this message."""
    return ast.Raise(ast.Call(named("AssertionError"), [message], []), None)


def _halves(word: str) -> ast.expr:
    """A word in two halves: where a runner shows the source of a test that failed, it does not say the word."""
    middle = len(word) // 2
    return ast.BinOp(ast.Constant(word[:middle]), ast.Add(), ast.Constant(word[middle:]))


def named(name: str) -> ast.Name:
    """What a name holds."""
    return ast.Name(name, ast.Load())


def set_to(name: str, value: ast.expr) -> ast.Assign:
    """The statement that gives a name a value."""
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)  # which `ast.unparse` asks for


def _made_of(value: ast.expr, always: frozenset[str]) -> bool:
    """Whether an expression makes an object of one of these classes."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in always


def _held_by(values: Sequence[ast.expr], number: int) -> ast.expr:
    """Whether one of these values of unknown kind equals something of any kind that nobody expects."""
    word = secrets.token_hex(6)
    text, whole, load = ast.Constant(word), ast.Constant(number), ast.Load()
    plain = [whole, text, ast.Constant(number + 0.5)]
    held = [ast.List([text], load), ast.Tuple([text], load), ast.Dict([text], [whole]), ast.Set([text])]
    kinds = ast.Tuple([*plain, *held, ast.Constant(word.encode())], load)
    same = ast.Compare(named("one"), [ast.Eq()], [named("other")])
    one = ast.comprehension(ast.Name("one", ast.Store()), ast.Tuple(list(values), load), [], 0)
    other = ast.comprehension(ast.Name("other", ast.Store()), kinds, [same], 0)
    return ast.ListComp(ast.Constant(1), [one, other])


def _names(nodes: Collection[ast.expr]) -> set[str]:
    inner = [one for node in nodes for one in ast.walk(node)]
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    return names | {one.attr for one in inner if isinstance(one, ast.Attribute)}


def _other_literal(node: ast.expr, chance: Random) -> ast.expr | None:
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
        changed = _other_literal(values[index], chance) if values else None
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
    literals = [(index, other) for index, one in enumerate(node.elts) if (other := _other_literal(one, chance))]
    made.elts = list(node.elts)
    if literals:
        index, other = chance.choice(literals)
        made.elts[index] = other
    else:
        made.elts.append(ast.Constant(chance.randrange(10**9, 10**12)))
    return made


def _with_sides(statement: ast.stmt, left: str, right: str) -> tuple[ast.stmt, bool]:
    """The statement with names for its two sides, and whether it is `==` that it demands of them."""
    if isinstance(statement, ast.Assert):
        assert isinstance(statement.test, ast.Compare)
        return ast.Assert(ast.Compare(named(left), statement.test.ops, [named(right)]), statement.msg), True
    assert isinstance(statement, ast.Expr)
    call = statement.value
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    after = ast.Call(call.func, [named(left), named(right), *call.args[2:]], call.keywords)
    return ast.Expr(after), call.func.attr not in _NOT_BY_EQUALITY


def _is_literal(node: ast.expr) -> bool:
    return all(isinstance(one, _LITERAL) for one in ast.walk(node))
