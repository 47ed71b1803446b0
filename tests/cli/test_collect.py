"""`envgym collect`: budgets, what is spent, and that the same command goes on whatever stopped it."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.cli.spending import Budget, Meter, Spent
from envgym.env import Step
from envgym.episode import Began, Episode, Turn
from envgym.errors import Boundary, Failure
from envgym.messages import Message
from envgym.policy import Reply
from envgym.registry import register, unregister
from envgym.store import StoreReader, StoreWriter, is_store
from envgym.testing.fakes import MEMORY, FakeBackend, RandomAgent

PROMPTS = 40


class Paid(RandomAgent):
    """It costs a cent and ten tokens an answer, and takes its time."""

    async def act(self, step: Step) -> Reply:
        await asyncio.sleep(0.02)
        reply = await super().act(step)
        return Reply(reply.action, cost={"usd": 0.01, "prompt_tokens": 6, "completion_tokens": 4})


@pytest.fixture
def paid() -> Iterator[None]:
    def maker(task: object, *, seed: int, tools: tuple[Any, ...] = ()) -> Paid:
        """A random agent that is paid."""
        return Paid(tools, seed=seed)

    register("agents", "paid", maker)
    yield
    unregister("agents", "paid")


def collect(envgym: Any, out: Path | None, *more: str, status: int = 0) -> dict[str, Any]:
    kept = () if out is None else ("--out", str(out))
    options = ("--agent", "paid", "-n", str(PROMPTS), "--concurrency", "3", "--json")
    ran = envgym("collect", "guess", *options, *kept, *more)
    assert ran.code == status, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def spent_in(out: Path) -> Spent:
    with StoreReader(out) as reader:
        turns = [turn for episode in reader for turn in episode.turns]
        for found in reader.unfinished.values():
            turns += [*found.turns, *([] if found.said is None else [found.said])]
    return sum(map(Spent.of, turns), Spent())


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("option", "bound", "name"), [("tokens", 300, "tokens"), ("cost", 0.3, "usd")])
def test_a_spent_budget_begins_nothing_and_finishes_what_plays(
    envgym: Any, paid: None, tmp_path: Path, option: str, bound: float, name: str, kept: bool
) -> None:
    out = tmp_path / "store" if kept else None
    found = collect(envgym, out, f"--budget-{option}", str(bound))
    assert found["ended_by"].startswith(f"--budget-{option} {bound} is spent (")
    assert bound <= found[name] < bound * (1 + 3 * 5 / 30), "three episodes of at most five turns were played"
    assert (found["of"], found["failed"]) == (PROMPTS, 0)
    assert 3 <= found["episodes"] < PROMPTS
    if out is None:
        return
    assert not StoreReader(out).unfinished
    assert found["tokens"] == spent_in(out).tokens
    again = collect(envgym, out, f"--budget-{option}", str(bound))
    assert (again["episodes"], again[name]) == (found["episodes"], found[name]), "it is spent already"
    more = collect(envgym, out, f"--budget-{option}", str(2 * bound))
    assert found["episodes"] < more["episodes"] < PROMPTS
    assert more[name] >= 2 * bound
    whole = collect(envgym, out)
    assert (whole["episodes"], whole["ended_by"]) == (PROMPTS, None)
    assert whole["tokens"] == spent_in(out).tokens
    assert len(set(StoreReader(out).ids)) == len(StoreReader(out)) == PROMPTS


@pytest.mark.slow
def test_when_the_time_is_up_the_same_command_with_more_of_it_goes_on(
    envgym: Any, paid: None, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    found = collect(envgym, out, "--budget-s", "0.4")
    assert found["ended_by"].startswith("--budget-s 0.4 is spent (")
    assert found["episodes"] == len(StoreReader(out)) < PROMPTS
    assert StoreReader(out).unfinished
    spent = collect(envgym, out, "--budget-s", "0.4")
    assert (spent["episodes"], spent["turns"]) == (found["episodes"], found["turns"])
    assert spent["all_calls_s"] >= 0.4
    whole = collect(envgym, out, "--budget-s", "3600")
    assert (whole["episodes"], whole["ended_by"]) == (PROMPTS, None)
    assert whole["all_calls_s"] > found["all_calls_s"]
    assert len(StoreReader(out)) == PROMPTS
    assert not StoreReader(out).unfinished


@pytest.mark.slow
def test_the_summary_says_which_budget_and_how_to_go_on(envgym: Any, paid: None, tmp_path: Path) -> None:
    options = ("--agent", "paid", "-n", str(PROMPTS), "--budget-tokens", "100", "--out", str(tmp_path / "store"))
    said = envgym("collect", "guess", *options).out
    assert "--budget-tokens 100 is spent (" in said
    assert f" of {PROMPTS} episodes were played\nthe same command with a larger budget goes on\n" in said


@pytest.mark.parametrize(
    ("option", "value"), [("tokens", "0"), ("s", "0"), ("s", "nan"), ("cost", "-1"), ("cost", "inf")]
)
def test_a_budget_that_cannot_be_is_the_callers_mistake(envgym: Any, option: str, value: str) -> None:
    ran = envgym("collect", "guess", f"--budget-{option}", value)
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_a_budget_that_nothing_counts_towards_is_said(envgym: Any) -> None:
    for option in ("tokens", "cost"):
        ran = envgym("collect", "guess", "-n", "2", f"--budget-{option}", "5")
        assert (ran.code, f"envgym: --budget-{option} 5 bounded nothing: no turn " in ran.err) == (0, True)


def turn(cost: dict[str, Any]) -> Turn:
    return Turn("agent", (Message(role="assistant"),), Step(cost=cost))


costs = st.fixed_dictionaries(
    {}, optional={"usd": st.floats(), "prompt_tokens": st.integers(-5, 9), "completion_tokens": st.floats()}
)


@given(st.lists(costs, max_size=5))
def test_no_cost_makes_a_budget_larger(found: list[dict[str, Any]]) -> None:
    for cost in found:
        spent = Spent.of(turn(cost))
        assert spent.tokens >= 0
        assert 0 <= spent.usd < float("inf")


def test_tries_that_were_played_again_are_spent(tmp_path: Path) -> None:
    began = Began("e", "t", Step(), 0)
    paid = turn({"usd": 1.0})
    with StoreWriter(tmp_path / "s") as store:
        meter = Meter(Budget(), store)
        for _ in range(2):
            meter.begin(began)
            meter.said("e", 0, paid)
            meter.turn("e", 0, turn({"usd": 1.5}))
            meter.said("e", 1, paid)
        assert meter.spent.usd == 5.0
        meter.save()
    with StoreWriter(tmp_path / "s") as store:
        again = Meter(Budget(usd=5.0), store, spent=Spent(usd=2.5))
        assert again.spent.usd == 5.0
        assert again.over == "--budget-cost 5 is spent (5.0000 usd)"
        again.turn("e", 1, turn({"usd": 1.25}))
        assert again.spent.usd == 5.25, "what was said before is not spent twice"


def test_what_the_world_never_answered_is_spent(tmp_path: Path) -> None:
    began, paid = Began("e", "t", Step(), 0), turn({"usd": 1.0})
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="SandboxDied", message="gone", where="step", turn=1)
    with StoreWriter(tmp_path / "s") as store:
        meter = Meter(Budget(), store)
        meter.begin(began)
        meter.turn("e", 0, paid)
        meter.said("e", 1, paid)
        meter.append(Episode(id="e", task_id="t", root=Step(), turns=(paid,), seed=0, failure=failure))
    with StoreWriter(tmp_path / "s") as store:
        assert Meter(Budget(), store, spent=spent_in(tmp_path / "s")).spent == meter.spent == Spent(usd=2.0)


@pytest.mark.slow
def test_what_a_kill_made_an_agent_say_again_is_spent_twice_and_in_the_episode_once(
    envgym: Any, paid: None, tmp_path: Path
) -> None:
    out, began = tmp_path / "store", None
    whole = collect(envgym, tmp_path / "whole")
    episode = next(one for one in StoreReader(tmp_path / "whole") if len(one.turns) > 2)
    with StoreWriter(out) as store:
        began = Began.of(episode)
        store.begin(began)
        for index, one in enumerate(episode.turns[:2]):
            store.turn(began.id, index, one)
    found = collect(envgym, out)
    assert next(one for one in StoreReader(out) if one.id == began.id) == episode
    assert found["usd"] == pytest.approx(whole["usd"] + 0.02)
    assert found["tokens"] == whole["tokens"] + 20
    again = collect(envgym, out)
    assert (again["usd"], again["tokens"]) == (pytest.approx(found["usd"]), found["tokens"])


@pytest.mark.parametrize("what", ["begin", "append"])
def test_a_kill_before_the_store_lets_turns_go_counts_them_once(tmp_path: Path, what: str) -> None:
    class Killed(Exception):
        """Here the process ended."""

    class Dying(StoreWriter):
        dying = False

        def begin(self, began: Began) -> None:
            if self.dying:
                raise Killed
            super().begin(began)

        def append(self, episode: Episode) -> None:
            raise Killed

    began, paid = Began("e", "t", Step(), 0), turn({"usd": 1.0})
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="SandboxDied", message="gone", where="step", turn=1)
    with Dying(tmp_path / "s") as store:
        meter = Meter(Budget(), store)
        meter.begin(began)
        meter.turn("e", 0, paid)
        meter.said("e", 1, paid)
        store.dying = True
        ended = Episode(id="e", task_id="t", root=Step(), turns=(paid,), seed=0, failure=failure)
        lets_go = partial(meter.begin, began) if what == "begin" else partial(meter.append, ended)
        with pytest.raises(Killed):
            lets_go()
    for _ in range(2):
        with StoreWriter(tmp_path / "s") as store:
            meter = Meter(Budget(), store, spent=spent_in(tmp_path / "s"))
            assert meter.spent == Spent(usd=2.0)
            meter.played = True
            meter.save()
    with StoreWriter(tmp_path / "s") as store:
        meter = Meter(Budget(), store, spent=spent_in(tmp_path / "s"))
        meter.begin(began)
        meter.turn("e", 0, paid)
    with StoreWriter(tmp_path / "s") as store:
        assert Meter(Budget(), store, spent=spent_in(tmp_path / "s")).spent == Spent(usd=3.0)


@pytest.mark.parametrize("env", ["memory", "guess"])
def test_snapshots_of_worlds_without_a_sandbox_change_nothing_of_what_is_played(
    envgym: Any, memory: None, tmp_path: Path, env: str
) -> None:
    """Those of the first hold its state; the second has none, and is replayed."""
    whole, out, options = tmp_path / "whole", tmp_path / "store", ("--agent", "player", "-n", "6", "--turns", "8")
    assert envgym("collect", env, *options, "--out", str(whole)).code == 0
    want = {episode.id: episode for episode in StoreReader(whole)}
    with StoreWriter(out) as store:
        for episode in want.values():
            store.begin(Began.of(episode))
            store.turn(episode.id, 0, episode.turns[0])
    ran = envgym("collect", env, *options, "--out", str(out), "--snapshot-every", "2")
    assert (ran.code, "begins again" in ran.err) == (0, False)
    found = {episode.id: episode for episode in StoreReader(out)}
    taken = [[turn.snapshot is not None for turn in episode.turns] for episode in found.values()]
    assert all(one == [env == "memory" and k > 0 and k % 2 == 0 for k in range(len(one))] for one in taken)
    bare = {
        name: replace(one, turns=tuple(replace(turn, snapshot=None) for turn in one.turns))
        for name, one in found.items()
    }
    assert bare == want
    assert not (out / "snapshots").exists()
    assert envgym("collect", env, *options, "--out", str(out)).code == 0, "another call may take none"


def test_snapshots_need_a_store_and_a_backend_that_keeps_them(envgym: Any, tmp_path: Path) -> None:
    ran = envgym("collect", "guess", "-n", "2", "--snapshot-every", "2")
    assert (ran.code, "--snapshot-every without --out" in ran.err) == (2, True)
    register("environments", "boxed", replace(MEMORY, name="boxed", sandbox=True))
    register("sandboxes", "fake", FakeBackend)
    try:
        out = str(tmp_path / "store")
        options = ("boxed", "-n", "2", "--sandbox", "fake", "--out", out)
        ran = envgym("collect", *options, "--snapshot-every", "2")
        assert (ran.code, "backend 'fake' cannot keep snapshots in" in ran.err) == (2, True)
    finally:
        unregister("environments", "boxed")
        unregister("sandboxes", "fake")


def test_a_ledger_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s") as store:
        (tmp_path / "s" / "spending.json").write_text("{")
        with pytest.raises(ValueError, match=r"spending.json does not say what was spent .*; remove it"):
            Meter(Budget(), store)


_PROGRAM = """
import asyncio, sys
from envgym.cli import run
from envgym.registry import register
from envgym.policy import Reply
from envgym.testing.actions import sample_action
from envgym.testing.fakes import MEMORY, FakeBackend, RandomAgent

class Slow(RandomAgent):
    async def act(self, step):
        with open(sys.argv[1], "a") as told:
            told.write("x")
        await asyncio.sleep(0.005)
        reply = await super().act(step)
        return Reply(reply.action, cost={"usd": 0.01})
    def recall(self, step, turn):
        sample_action(step, self._tools, self._rng)

def slow(task, *, seed, tools=()):
    return Slow(tools, seed=seed)

register("agents", "slow", slow)
sys.exit(run(sys.argv[2:]))
"""


def program(told: Path, out: Path, *more: str) -> list[str]:
    options = ("collect", "guess", "--agent", "slow", "-n", "60", "--concurrency", "4", "--out", str(out), *more)
    return [sys.executable, "-c", _PROGRAM, str(told), *options]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_stops_it_the_same_command_plays_every_prompt_once(tmp_path: Path, number: signal.Signals) -> None:
    told, out = tmp_path / "told", tmp_path / "store"
    rng = random.Random(number)
    # tests that run in the background of a script inherit that interrupts are ignored
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    for _ in range(3):
        before = told.stat().st_size if told.exists() else 0
        upto = before + rng.randrange(5, 60)
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(program(told, out), preexec_fn=listening, **pipes) as running:
            while not told.exists() or told.stat().st_size < upto:
                assert running.poll() is None
                time.sleep(0.001)
            running.send_signal(number)
            said = running.communicate(timeout=60)[1]
        want = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number]
        assert running.returncode == want, said
        if number != signal.SIGKILL:
            word = "interrupted" if number == signal.SIGINT else "terminated"
            last = f"envgym: {word}; {len(StoreReader(out))} of 60 episodes were played, kept in {out}; "
            assert said.splitlines()[-1] == last + "the same command goes on"
            assert "Traceback" not in said
    ended = subprocess.run(program(told, out, "--json"), capture_output=True, text=True, check=True, timeout=100)
    summary = json.loads(ended.stdout)
    ids = StoreReader(out).ids
    assert sorted(ids) == [f"guess-s0-{n:06d}" for n in range(60)]
    assert not StoreReader(out).unfinished
    assert (summary["episodes"], summary["failed"]) == (60, 0)
    turns = sum(len(episode.turns) for episode in StoreReader(out))
    assert turns <= told.stat().st_size <= turns + 3 * 4, "at most what four were saying at each stop is said again"
    assert summary["usd"] == pytest.approx(turns * 0.01)
    fresh = subprocess.run(
        program(tmp_path / "t", tmp_path / "whole"), capture_output=True, check=True, timeout=100
    )
    assert fresh.returncode == 0
    whole = {episode.id: episode for episode in StoreReader(tmp_path / "whole")}
    assert {episode.id: episode for episode in StoreReader(out)} == whole


@pytest.mark.slow
def test_a_second_termination_does_not_stop_the_cleaning_up(tmp_path: Path) -> None:
    told, out = tmp_path / "told", tmp_path / "store"
    with subprocess.Popen(program(told, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        while not is_store(out) or not told.exists() or told.stat().st_size < 20:
            assert running.poll() is None
            time.sleep(0.001)
        for _ in range(2):
            os.kill(running.pid, signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode in (143, -signal.SIGTERM)  # the second may come after all is closed
    with StoreReader(out) as reader:
        assert len(reader) + len(reader.unfinished) > 0
