"""`propose-solve`: what is a task, what is right, what both roles earn, and the contract of environments."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from envgym_environments.tool.propose_solve.agents import KnowingPlayer, expert
from envgym_environments.tool.propose_solve.executor import Executor
from envgym_environments.tool.propose_solve.library import Triple
from envgym_environments.tool.propose_solve.programs import Refused, arguments, checked, same
from envgym_environments.tool.propose_solve.rewards import UNREADABLE, WRONG, learnability, solved
from envgym_environments.tool.propose_solve.tasks import SPEC, harvested, propose_solve_tasks, write_triples

from envgym.credit.ledger import Ledger
from envgym.env import Step, StopReason
from envgym.episode import Episode, Group
from envgym.jobs import Job, run_episode
from envgym.messages import Action, ToolSpec
from envgym.registry import make, make_backend
from envgym.rollout import Rollout
from envgym.testing import check_env, check_task

IDENTITY = "def f(x):\n    return x\n"
SANDBOXED = [pytest.mark.slow, pytest.mark.namespaces, pytest.mark.timeout(300)]


def sandboxed(function: Any) -> Any:
    for mark in SANDBOXED:
        function = mark(function)
    return function


def test_a_proposer_earns_nothing_at_the_ends_and_else_what_was_not_solved() -> None:
    assert learnability([True] * 4) == learnability([False] * 4) == 0.0
    assert learnability([True, False, False, False]) == 0.75
    assert learnability([True, True, True, False]) == 0.25
    assert (solved(True), solved(False), UNREADABLE) == (1.0, WRONG, -1.0)
    with pytest.raises(ValueError, match="no attempt"):
        learnability([])


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def g(x): return x", "no function f"),
        ("def f(x: return", "no Python"),
        ("import random\ndef f(x): return random.random()", "imports random"),
        ("from os import getpid\ndef f(x): return getpid()", "imports os"),
        ("def f(x): return open('/etc/passwd').read()", "uses open"),
        ("def f(x): return ().__class__", "reaches for __class__"),
        ("def f(x): return " + "(" * 3000 + "x" + ")" * 3000, "characters"),
        ("def f(x): return " + "(" * 900 + "x" + ")" * 900, "no Python"),
    ],
)
def test_what_is_no_program_is_refused_with_its_reason(program: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        checked(program)


def test_values_are_compared_as_literals_of_one_kind() -> None:
    assert same("[1, 2.0]", "[1,2.0000000000001]")
    assert same("{'a': (1,)}", "{ 'a':(1,) }")
    assert not same("1", "True")
    assert not same("[1]", "(1,)")
    assert arguments("'John', {'age': 20}") == "('John', {'age': 20})"
    assert arguments("") == "()"
    for text in ("f(1)", "__import__('os')", "1)+(2", "x"):
        with pytest.raises(Refused):
            arguments(text)


def test_options_and_tasks_that_cannot_be_are_refused() -> None:
    for bad in ({"kind": "reduction"}, {"references": 0}, {"count": 0}):
        with pytest.raises(ValueError, match="must be"):
            propose_solve_tasks(**bad)
    assert [task.split for task in propose_solve_tasks(5)].count("heldout") == 1
    assert {task.metadata["kind"] for task in propose_solve_tasks(3)} == {"deduction", "abduction", "induction"}


def test_no_proposal_that_is_asked_for_in_training_is_held_out(tmp_path) -> None:
    def asked(split: str) -> set[str]:
        return {str(task.metadata) for task in propose_solve_tasks(500).split(split)}

    assert not asked("train") & asked("heldout")
    write_triples(tmp_path / "one.jsonl", [Triple(program=IDENTITY, inputs=("(1,)",))])
    assert len(propose_solve_tasks(5, path=str(tmp_path / "one.jsonl"))) == 5, "of one program all ask the same"


@sandboxed
def test_a_program_whose_output_changes_fails_or_hangs_has_no_task() -> None:
    async def run() -> None:
        async with make_backend("namespace") as backend:
            executor = Executor(backend, seconds=1.0)
            try:
                assert await executor.outputs("def f(a, b=2): return a * b", ["(3,)", "(1, 4)"]) == ("6", "4")
                for program, why in (
                    ("def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})", "not the same"),
                    ("def f(x): return 1 / 0", "ZeroDivisionError"),
                    ("def f(x):\n    while True: pass", "time"),
                    ("def f(x): return f", "no Python literal"),
                    ("def f(x): return f(x)", "RecursionError"),
                    (
                        "import sys\ndef f(x):\n    sys.stdout.write('[]')\n    sys.stdout.flush()",
                        "ended|results|no Python",
                    ),
                ):
                    with pytest.raises(Refused, match=why):
                        await executor.outputs(program, ["(1,)"])
            finally:
                await executor.close()

    asyncio.run(run())


async def _steps(env: Any, *actions: Action) -> list[Step]:
    steps = [await env.reset(seed=0)]
    for action in actions:
        steps.append(await env.step(action))
    return steps


@sandboxed
def test_each_kind_pays_who_is_right_and_the_proposer_by_the_share() -> None:
    proposals = {
        "deduction": (Action.call("propose", program="def f(a, b): return a - b", input="5, 3"), "2", "3"),
        "abduction": (Action.call("propose", program="def f(a): return a * a", input="-3"), "3", "9"),
        "induction": (
            Action.call("propose_inputs", inputs=[str(n) for n in range(6)], message="who knows"),
            IDENTITY,
            "def f(x): return 0",
        ),
    }

    async def run() -> None:
        async with make_backend("namespace") as backend:
            for kind, (proposal, right, wrong) in proposals.items():
                task = propose_solve_tasks(30, kind=kind)[0]
                if kind == "induction":
                    task = task.model_copy(update={"metadata": {**task.metadata, "program": IDENTITY}})
                env = make(SPEC, task, backend=backend, attempts=3)
                said = [Action.call("answer", value=right), Action.call("answer", value=wrong), Action.say("eh")]
                steps = await _steps(env, proposal, *said, Action.say("done"))
                assert [step.reward for step in steps] == [None, None, 1.0, WRONG, UNREADABLE, pytest.approx(2 / 3)]
                assert [step.next_actor for step in steps[:-1]] == [
                    "proposer", "solver-1", "solver-2", "solver-3", "proposer",
                ]  # fmt: skip
                assert steps[-1].stop is StopReason.SUBMITTED
                assert steps[1].text == steps[2].text == steps[3].text, "all are asked the same"
                await env.close()

    asyncio.run(run())


@sandboxed
def test_what_is_no_proposal_ends_the_episode_at_the_price_of_its_form() -> None:
    async def run() -> None:
        async with make_backend("namespace") as backend:
            env = make(SPEC, propose_solve_tasks(9, kind="deduction")[0], backend=backend)
            for action, reward in (
                (Action.say("hello"), UNREADABLE),
                (Action.call("answer", value="1"), UNREADABLE),
                (Action.call("propose", program="def f(x): return 1 / x", input="0"), WRONG),
                (Action.call("propose", program="import os\ndef f(x): return 1", input="0"), WRONG),
            ):
                step = (await _steps(env, action))[-1]
                assert (step.reward, step.stop, step.next_actor) == (reward, StopReason.SUBMITTED, "proposer")
            await env.close()

    asyncio.run(run())


PROPOSED = {
    "deduction": Action.call("propose", program=IDENTITY, input="1"),
    "abduction": Action.call("propose", program="def f(x): return x % 2", input="1"),
    "induction": Action.call("propose_inputs", inputs=["1", "2", "3", "4"], message="who knows"),
}


@sandboxed
@pytest.mark.turns
@pytest.mark.parametrize("kind", PROPOSED)
def test_each_kind_keeps_both_contracts(kind: str) -> None:
    answers = ("0", "1", IDENTITY, "def f(x): return 0")

    def saying(step: Step, tools: Sequence[ToolSpec], rng: np.random.Generator) -> Action:
        if step.next_actor == "proposer":
            return PROPOSED[kind]
        return Action.call("answer", value=answers[int(rng.integers(len(answers)))])

    async def run() -> None:
        async with make_backend("namespace") as backend:
            tasks = propose_solve_tasks(60, kind=kind)
            given = tasks[0].model_copy(update={"metadata": {**tasks[0].metadata, "program": IDENTITY}})
            report = await check_env(
                lambda: make(SPEC, given, backend=backend, attempts=2), policy=saying, turns=5, deadline_s=120
            )
            assert not report.unreached
            # all solvers right is the most that all actors of an episode can earn together
            await check_task(tasks[::13], lambda task: make(SPEC, task, backend=backend, attempts=2), expert,
                             seeds=(0,), full=2.0)  # fmt: skip

    asyncio.run(run())


@sandboxed
def test_a_played_game_credits_each_actor_and_its_proposals_become_new_references(tmp_path) -> None:
    async def run() -> list[Episode]:
        async with make_backend("namespace") as backend:
            episodes = []
            for index in range(3):
                task = propose_solve_tasks(9)[index]

                async def world(task=task):
                    return make(SPEC, task, backend=backend, attempts=4)

                player = KnowingPlayer(index, skill=0.5)
                job = Job(world, lambda _env, player=player: player, task.id, index, f"e{index}", Rollout())
                episodes.append(await run_episode(job))
            return episodes

    episodes = asyncio.run(run())
    for episode in episodes:
        assert episode.failure is None
        assert {turn.actor for turn in episode.turns} == {"proposer", *(f"solver-{n}" for n in range(1, 5))}
        rate = episode.turns[-1].step.channels["solve_rate"]
        assert episode.turns[-1].step.reward == learnability(
            [True] * round(4 * rate) + [False] * round(4 - 4 * rate)
        )
    ledger = Ledger.of([Group(episodes[0].task_id, tuple(episodes[:1]))])
    assert len(set(ledger.actor_G.tolist())) == 5, "each actor has a row of its own"
    triples = harvested(episodes)
    assert triples
    write_triples(tmp_path / "triples.jsonl", triples)
    tasks = propose_solve_tasks(4, path=str(tmp_path / "triples.jsonl"))
    assert {one["program"] for one in tasks[0].metadata["references"]} <= {triple.program for triple in triples}
