"""What written tests are run against: the code as it is, mutants of it and probes in it, each in a new disguise.

Every state has a fresh sandbox. What must pass and what must fail are run in a random order, some of them twice:
tests that fail by chance, or by looking at the code, are found to be wrong about one or the other.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

from envgym_environments.code_repair.kinds.disguise import disguised
from envgym_environments.code_repair.operators import Mutation, apply
from envgym_environments.code_repair.runner import Layout, run_tests
from envgym_environments.code_repair.trials import Trials

__all__ = ["States", "Tried", "blocks", "probed", "try_tests"]

_EQUAL = 6
_TWICE = 6
"""What looks at the code's form, not at what it does, comes out one way or the other by the disguise. So often must
right code pass, and so many wrong states must come out alike twice."""


@dataclass(frozen=True, slots=True)
class States:
    """The module under test and what is made of it. mutants, probes: texts that good tests tell from `source`."""

    path: str
    source: str
    mutants: tuple[str, ...]
    probes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """What tests did. valid: they passed on the code as it is, every time. void: why they are worth nothing.

    mutants, probes: which of them they failed on, in order. repeats: see `TestReport.repeats`.
    """

    valid: bool
    mutants: tuple[bool, ...] = ()
    probes: tuple[bool, ...] = ()
    void: str = ""
    repeats: bool = True


def function_at(tree: ast.Module, name: str) -> ast.FunctionDef:
    """A function at the top of a module, or "Class.method". Raises ValueError."""
    body: Sequence[ast.stmt] = tree.body
    *above, last = name.split(".")
    for part in above:
        body = next((one.body for one in body if isinstance(one, ast.ClassDef) and one.name == part), [])
    for one in body:
        if isinstance(one, ast.FunctionDef) and one.name == last:
            return one
    raise ValueError(f"there is no function {name}")


def blocks(function: ast.FunctionDef) -> list[list[ast.stmt]]:
    """The blocks of a function, its own first, without those of functions inside."""
    found: list[list[ast.stmt]] = [function.body]
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                found.append(block)
        queue += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
    return found


def probed(source: str, name: str, number: int) -> str:
    """The module with an exception at the beginning of one block of a function: tests that run it notice."""
    tree = ast.parse(source)
    block = blocks(function_at(tree, name))[number]
    block.insert(0, ast.parse("raise RuntimeError('reached')").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def mutated(source: str, edits: Sequence[Mapping[str, Any]]) -> list[str]:
    """The module with each mutation of a goal."""
    return [apply(source, Mutation(**edit)) for edit in edits]


async def try_tests(
    trials: Trials, target: str, text: str, states: States, *, chance: Random | None = None
) -> Tried:
    """Run the tests of one file against every state."""
    chance = chance or SystemRandom()
    layout, source = trials.facts.layout, states.source
    assert isinstance(layout, Layout)
    own = layout.model_copy(update={"tests": (target,), "deselect": ()})
    told: dict[int, bool] = {}
    wrong = [*states.mutants, *states.probes]
    twice = chance.sample(range(len(wrong)), min(_TWICE, len(wrong)))
    first = await _run(trials, own, target, text, states.path, disguised(source, chance))
    if not first[0]:
        return Tried(False, repeats=first[1])
    repeats = first[1]
    order = [*range(len(wrong)), *twice, *[-1] * (_EQUAL - 1)]
    chance.shuffle(order)
    for number in order:
        state = source if number < 0 else wrong[number]
        passed, same = await _run(trials, own, target, text, states.path, disguised(state, chance))
        repeats = repeats and same
        if number < 0 and not passed:
            return Tried(False, void="the tests fail on code that does the same", repeats=repeats)
        if number >= 0 and told.setdefault(number, not passed) == passed:
            return Tried(False, void="the tests fail by chance", repeats=repeats)
    found = [told[number] for number in range(len(wrong))]
    count = len(states.mutants)
    return Tried(True, tuple(found[:count]), tuple(found[count:]), "", repeats)


async def _run(trials: Trials, layout: Layout, target: str, text: str, path: str, state: str) -> tuple[bool, bool]:
    """(whether all tests passed, whether that repeats) with a file of tests and one module."""
    async with await trials.backend.create(trials.world) as sandbox:
        await sandbox.write(target, text.encode("utf-8", "surrogatepass"))
        await sandbox.write(path, state.encode("utf-8", "surrogatepass"))
        facts = trials.facts
        report = await run_tests(
            sandbox, layout, fail_fast=True, timeout_s=facts.run_s, test_timeout_s=facts.test_s
        )
        return report.ok, report.repeats
