"""Tests that must pass, in another shape: each does all that its test does, and then fails with a secret word.

So a run of them says more than one of the tests themselves. Code that recognises a test by its name or by how it
looks, and lets the runner pass it over, reports a pass of what cannot pass; code that leaves alone what it does not
recognise fails where its mistake is, without the word. At some comparisons the compared value is also held against
something else. Tests behind decorators that may call them several times, or take a failure for granted, and such
as return early, get no disguise: see `twins` for these. Nothing here runs code.
"""

import ast
import copy
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random, SystemRandom

from envgym_environments.code_repair.twins import (
    Function,
    held_by_either,
    other_literal,
    pair_of,
    parsed,
    raised,
    statements_of,
)

__all__ = ["Disguise", "make_disguise"]

_MOST_CHARACTERS = 2_000_000
_MOST_SITES, _MOST_MARKS = 4, 6
_NOT_BY_EQUALITY = ("assertCountEqual", "assertSequenceEqual")
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop, ast.expr_context)
_PLAIN = ("pytest.mark.", "mock.patch", "unittest.mock.patch", "patch", "skip", "unittest.skip")
"""Beginnings of decorators that call a test once and let its failure through."""

Body = ast.Module | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Disguise:
    """Files of disguised tests, path -> text; words: function ("file::Class::test") -> its two words.

    The first word says that a comparison held which must not, the second that the test came to its end.
    """

    files: Mapping[str, str]
    words: Mapping[str, tuple[str, str]]


def make_disguise(
    tests: Sequence[str],
    read: Callable[[str], str | None],
    *,
    beside: Collection[str] = (),
    chance: Random | None = None,
) -> Disguise:
    """Disguises of all of these tests that can have one. A file is given without the tests that nobody wants.

    beside: functions that are left as they are, and wanted.
    """
    chance = chance or SystemRandom()
    functions = sorted({name.partition("[")[0] for name in tests} | set(beside))
    files: dict[str, str] = {}
    words: dict[str, tuple[str, str]] = {}
    for path in sorted({name.partition("::")[0] for name in functions}):
        text = read(path)
        if text is None or len(text) > _MOST_CHARACTERS:
            continue
        wanted = tuple(name.partition("::")[2] for name in functions if name.startswith(f"{path}::"))
        frame = _frame(text, wanted, frozenset(name for name in wanted if f"{path}::{name}" in beside))
        if frame is None:
            continue
        inside = {place: _Inside(chance) for place in frame.places}
        written = {place: one.written(*frame.places[place]) for place, one in inside.items()}
        files[path] = "\n".join(written.get(line.strip(), line) for line in frame.text.split("\n"))
        words |= {
            f"{path}::{name}": (inside[place].held, "".join(inside[place].trail))
            for name, place in frame.tests.items()
        }
    return Disguise(files, words)


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is left of a file, with a name alone on its line where each disguised test will stand.

    places: such a name -> the test, its text, and how many classes it is in. tests: test -> the name of its place.
    """

    text: str
    places: Mapping[str, tuple[Function, str, int]]
    tests: Mapping[str, str]


@lru_cache(maxsize=64)  # the same in every grade of a task, and as long to write as a failing test to run
def _frame(text: str, wanted: tuple[str, ...], beside: frozenset[str]) -> _Frame | None:
    """Of one file; None where none of the `wanted` can have a disguise."""
    module = parsed(text)
    if module is None:
        return None
    found = {name: place for name in wanted if (place := _place(module, name.split("::")))}
    made = {place for name, place in found.items() if name not in beside and _fits(place)}
    if not made:
        return None
    stay = {*found.values(), *_undisguised(module, wanted, found)}
    kept = _Kept(made, stay, _referred(text))
    body = ast.Module(kept.body(module.body), [])
    return _Frame(
        text=ast.unparse(ast.fix_missing_locations(body)),
        places={name: (node, ast.unparse(node), depth) for node, (name, depth) in kept.places.items()},
        tests={name: kept.places[place][0] for name, place in found.items() if place in made},
    )


def _undisguised(module: ast.Module, wanted: Sequence[str], found: Mapping[str, Function]) -> list[Function]:
    """Where a wanted test was not found (it is inherited from elsewhere), everything of its name stays."""
    names = {name.rpartition("::")[2] for name in wanted if name not in found}
    return [node for node in ast.walk(module) if isinstance(node, Function) and node.name in names] if names else []


def _place(body: Body, parts: Sequence[str], classes: Mapping[str, ast.ClassDef] | None = None) -> Function | None:
    """The function of a test: in its class, or in a base of it that the file defines."""
    classes = classes or {node.name: node for node in body.body if isinstance(node, ast.ClassDef)}
    last = None
    for node in body.body:
        if isinstance(node, (Function, ast.ClassDef)) and node.name == parts[0]:
            last = node
    if isinstance(last, ast.ClassDef) and len(parts) > 1:
        return _place(last, parts[1:], classes)
    if isinstance(last, Function):
        return last if len(parts) == 1 else None
    if isinstance(body, ast.ClassDef) and len(parts) == 1:
        for base in body.bases:
            above = classes.get(base.id) if isinstance(base, ast.Name) else None
            if above is not None and above is not body and (found := _place(above, parts, classes)):
                return found
    return None


def _fits(test: Function) -> bool:
    """Whether a test's body surely runs once, to its last statement, and its failure is the test's."""
    for decorator in test.decorator_list:
        name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if not name.startswith(_PLAIN) or "xfail" in name:
            return False
    return not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(test)) and not _returns(test)


def _returns(test: ast.AST) -> bool:
    """Whether a function may end before its last statement: then it does not leave its whole trail."""
    for node in ast.iter_child_nodes(test):
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, (Function, ast.ClassDef, ast.Lambda)) and _returns(node):
            return True
    return False


@lru_cache(maxsize=64)
def _referred(text: str) -> frozenset[str]:
    """Names that begin with "test" and are used in a file: other code may call a function that is called so."""
    module = parsed(text)
    nodes = [] if module is None else list(ast.walk(module))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return frozenset(name for name in names if name.startswith("test"))


class _Kept:
    """What is left of a file: all that is no test, and a name for each disguised one. `places`: name and depth."""

    def __init__(self, made: set[Function], stay: set[Function], used: frozenset[str]) -> None:
        self._made, self._stay, self._used = made, stay, used
        self.places: dict[Function, tuple[str, int]] = {}

    def body(self, nodes: Sequence[ast.stmt], depth: int = 0) -> list[ast.stmt]:
        """The statements of a module or a class."""
        kept: list[ast.stmt] = []
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                shell = copy.copy(node)
                shell.body = self.body(node.body, depth + 1) or [ast.Pass()]
                kept.append(shell)
            elif isinstance(node, Function) and node in self._made:
                name = f"place_{secrets.token_hex(8)}"
                self.places[node] = name, depth
                kept.append(ast.Expr(_name(name)))
            elif not isinstance(node, Function) or self._stays(node):
                kept.append(node)
        return kept

    def _stays(self, node: Function) -> bool:
        return not node.name.startswith("test") or node in self._stay or node.name in self._used


class _Inside:
    """One test's disguise: its body in a function of its own, called once; behind the call it fails with its trail.

    The body leaves the trail: a piece behind statements, and at comparisons a piece that depends on their result,
    so that neither leaping over the body nor over an assertion in it gives the word. held: said where something
    compared equal that must not. trail: the pieces of the word, complete once `disguised` has returned.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._list = self._new_name()
        self.held = secrets.token_hex(6)
        self.trail: list[str] = []

    def written(self, test: Function, source: str, depth: int) -> str:
        """The text of the test, whose own is `source`, in its disguise, as it stands inside `depth` classes."""
        node: ast.stmt = self.disguised(test, source)
        for _ in range(depth):  # indenting the text would change strings of several lines
            node = ast.ClassDef("_", [], [], [node], [])
        text = ast.unparse(ast.fix_missing_locations(ast.Module([node], [])))
        for level in range(depth):
            text = text.lstrip("\n").removeprefix(f"{'    ' * level}class _:\n")
        return text

    def disguised(self, test: Function, source: str) -> Function:
        """The test in its disguise."""
        inner, outer = ast.parse(source).body[0], copy.copy(test)  # a deep copy takes ten times as long
        assert isinstance(inner, Function)
        sites = [(block, index) for block, index in statements_of(inner) if pair_of(block[index])]
        chosen = self._chance.sample(sites, min(_MOST_SITES, len(sites)))
        top = {id(block[index]) for block, index in chosen if block is inner.body}
        for block, index in sorted(chosen, key=lambda one: -one[1]):
            if block is not inner.body:
                block[index : index + 1] = self._checked(block[index], marked=False)
        last = len(inner.body) - 1
        marks = {last, *self._chance.sample(range(last + 1), min(_MOST_MARKS, last + 1))}
        body: list[ast.stmt] = []
        for index, statement in enumerate(inner.body):
            body += self._checked(statement, marked=True) if id(statement) in top else [statement]
            if index in marks:
                body.append(self._mark(ast.Constant(self._piece())))
        inner.body, inner.decorator_list, inner.returns = body, [], None
        inner.args, call = _called(test)
        said = ast.Call(ast.Attribute(ast.Constant(""), "join", ast.Load()), [_name(self._list)], [])
        outer.body = [_set(self._list, ast.List([], ast.Load())), inner, ast.Expr(call), raised(said)]
        return outer

    def _new_name(self) -> str:
        return f"{self._chance.choice('abcdef')}{secrets.token_hex(3)}"

    def _piece(self) -> str:
        self.trail.append(secrets.token_hex(3))
        return self.trail[-1]

    def _mark(self, piece: ast.expr) -> ast.stmt:
        return ast.Expr(ast.Call(ast.Attribute(_name(self._list), "append", ast.Load()), [piece], []))

    def _checked(self, statement: ast.stmt, *, marked: bool) -> list[ast.stmt]:
        """The statement, its sides evaluated once; before it a look whether something wrong equals them too."""
        pair = pair_of(statement)
        assert pair is not None
        left, right, found = (self._new_name() for _ in range(3))
        look = ast.Try(
            [_set(found, ast.Call(_name("bool"), [_wrong(pair, left, right, self._chance)], []))],
            [ast.ExceptHandler(_name("Exception"), None, [_set(found, ast.Constant(False))])],
            [],
            [],
        )
        fail = ast.If(_name(found), [raised(ast.Constant(self.held))], [])
        after, by_equality = _with_sides(statement, left, right)
        made = [_set(left, pair[0]), _set(right, pair[1]), look, fail]
        if marked and by_equality:
            same = ast.Compare(_name(left), [ast.Eq()], [_name(right)])
            other = ast.Constant(secrets.token_hex(3))
            made.append(self._mark(ast.IfExp(same, ast.Constant(self._piece()), other)))
        return [*made, after]


def _with_sides(statement: ast.stmt, left: str, right: str) -> tuple[ast.stmt, bool]:
    """The statement with names for its two sides, and whether it is `==` that it demands of them."""
    after = copy.deepcopy(statement)
    if isinstance(after, ast.Assert):
        assert isinstance(after.test, ast.Compare)
        after.test.left, after.test.comparators = _name(left), [_name(right)]
        return after, True
    assert isinstance(after, ast.Expr)
    assert isinstance(after.value, ast.Call)
    assert isinstance(after.value.func, ast.Attribute)
    after.value.args[:2] = [_name(left), _name(right)]
    return after, after.value.func.attr not in _NOT_BY_EQUALITY


def _called(test: Function) -> tuple[ast.arguments, ast.expr]:
    """The parameters of a function that takes all that a test takes, in order, and its call in the test."""
    given = test.args
    named = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    rest, spread = given.vararg, given.kwarg
    parameters = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in named],
        vararg=ast.arg(rest.arg) if rest else None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=ast.arg(spread.arg) if spread else None,
        defaults=[],
    )
    passed: list[ast.expr] = [_name(name) for name in named]
    if rest:
        passed.append(ast.Starred(_name(rest.arg), ast.Load()))
    call = ast.Call(_name(test.name), passed, [ast.keyword(None, _name(spread.arg))] if spread else [])
    return parameters, ast.Await(call) if isinstance(test, ast.AsyncFunctionDef) else call


def _wrong(pair: tuple[ast.expr, ast.expr], left: str, right: str, chance: Random) -> ast.expr:
    """A comparison of what the two names hold with literals, which does not hold where these are honest."""
    for name, value, expected in ((left, *pair), (right, *pair[::-1])):
        other = other_literal(expected, chance)
        if other is not None and other_literal(value, chance) is None and _is_literal(other):
            return ast.Compare(_name(name), [ast.Eq()], [other])
    return held_by_either(_name(left), _name(right), chance.randrange(10**9, 10**12))


def _is_literal(node: ast.expr) -> bool:
    return all(isinstance(one, _LITERAL) for one in ast.walk(node))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _set(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)
