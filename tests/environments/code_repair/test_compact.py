import asyncio
import json

import numpy as np
import pytest
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.memo import Memo, Unwritten

from envgym.env import Step, StopReason
from envgym.messages import Action

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]


def numbered(step: Step, part: str) -> str:
    """The number or name of the row that holds `part`."""
    row = next(row for row in step.text.split("\n") if part in row)
    return row.split(" ")[0]


async def play(env: CodeRepair, *calls: str) -> Step:
    step = Step()
    for call in calls:
        step = await env.step(Action.say(call))
    return step


@pytest.mark.slow
def test_an_episode_from_the_issue_to_the_repair(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend, tools="compact")
        step = await env.reset(seed=0)
        assert step.text == (
            "2 tests fail: test_total AssertionError; test_total_from_a_start AssertionError\ntests left 4"
        )
        assert step.legal == ("localise", "submit")
        step = await play(env, "localise")
        line = numbered(step, "result -= value")
        step = await play(env, f"suggest {line}")
        assert "sub-to-add" in step.text.split("\n")
        assert f"suggest {line}" not in (step.legal or ())
        before = step.state_key
        step = await play(env, "apply sub-to-add")
        assert (step.text, step.legal) == ("edited: result += value", ("test", "revert", "submit"))
        assert step.state_key != before
        step = await play(env, "test")
        assert (step.text, step.legal) == ("pass 5; tests left 3", ("revert", "submit"))
        assert step.cost == {"tests_run": 1.0}
        step = await play(env, "submit")
        assert (step.reward, step.stop, step.legal) == (1.0, StopReason.SUBMITTED, None)
        assert (step.channels["resolved"], step.channels["tests_run"]) == (1.0, 1.0)
        assert step.submission is not None
        assert "-        result -= value\n+        result += value\n" in step.submission

    in_backend(body)


@pytest.mark.slow
def test_a_failed_fix_is_never_offered_again_and_numbers_and_names_stay(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend, tools="compact", test_budget=1)
        await env.reset(seed=0)
        first = await play(env, "localise")
        line = numbered(first, "result -= value")
        listed = await play(env, f"suggest {line}")
        fixes = [row.split(" ")[0] for row in listed.text.split("\n")]
        bad = next(name for name in fixes if name != "sub-to-add")
        failed = await play(env, f"apply {bad}", "test")
        assert failed.text.startswith("fail ")
        assert failed.text.endswith("tests left 0")
        assert failed.legal == ("revert", "submit")
        back = await play(env, "revert")
        assert back.text == "reverted"
        assert f"apply {bad}" not in (back.legal or ())
        other = next(call for call in back.legal or () if call.startswith("suggest "))
        again = await play(env, other, f"suggest {line}")
        assert [row.split(" ")[0] for row in again.text.split("\n")] == [name for name in fixes if name != bad]
        edited = await play(env, "apply sub-to-add")
        assert edited.legal == ("revert", "submit")
        assert (await play(env, "submit")).reward == 1.0

    in_backend(body)


def test_a_call_that_is_not_possible_changes_nothing_and_says_what_is(broken, in_backend) -> None:
    async def body(backend) -> None:
        env = CodeRepair(broken, backend, tools="compact")
        start = await env.reset(seed=0)
        for call in ("test", "suggest 1", "apply variable", "revert", "suggest x", "think", ""):
            step = await play(env, call)
            assert step.stop is None
            assert (step.legal, step.state_key) == (start.legal, start.state_key)
        assert (await play(env, "test")).text == "not possible now; possible: localise, submit"

    in_backend(body)


@pytest.mark.slow
def test_observations_are_short(broken, in_backend) -> None:
    async def body(backend) -> None:
        env, rng = CodeRepair(broken, backend, tools="compact"), np.random.default_rng(0)
        step = await env.reset(seed=0)
        for _ in range(60):
            step = await env.reset(seed=0) if step.stop else step
            calls = [call for call in step.legal or () if call != "submit" or rng.random() < 0.1]
            call = calls[int(rng.integers(len(calls)))] if calls else "submit"
            step = await play(env, call)
            limit = {"localise": 8 * 52, "suggest": 12 * 60}.get(call.split(" ")[0], 70)
            assert len(step.text) <= limit
            assert all(row == row.strip() and row for row in step.text.split("\n"))

    in_backend(body)


@pytest.mark.slow
def test_what_is_remembered_needs_no_sandbox(broken, in_backend, tmp_path) -> None:
    """An episode whose results are all known starts none: here the second backend could not even make one."""

    class NoBackend:
        name = "none"

    calls = ("localise", "suggest 1", "submit")

    async def body(backend) -> None:
        memo = Memo(tmp_path / "memo.jsonl")
        env = CodeRepair(broken, backend, tools="compact", memo=memo)
        await env.reset(seed=0)
        first = [await env.step(Action.say(call)) for call in calls]
        again = CodeRepair(broken, NoBackend(), tools="compact", memo=Memo(tmp_path / "memo.jsonl"))  # type: ignore[arg-type]
        await again.reset(seed=1)
        assert [await again.step(Action.say(call)) for call in calls] == first

    in_backend(body)


def test_a_memo_computes_a_key_once_however_many_ask_and_keeps_no_failure() -> None:
    async def body() -> None:
        memo, made = Memo(), []

        async def make() -> int:
            made.append(1)
            await asyncio.sleep(0)
            if len(made) == 1:
                raise OSError("the first one fails")
            return 7

        found = await asyncio.gather(*(memo.get("key", make) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [OSError, int, int, int, int]
        assert len(made) == 2

    asyncio.run(body())


def test_what_might_not_repeat_is_computed_once_and_not_written(tmp_path) -> None:
    async def body() -> None:
        path = tmp_path / "memo.jsonl"

        async def make() -> object:
            return Unwritten(7)

        memo = Memo(path)
        assert await asyncio.gather(*(memo.get("key", make) for _ in range(3))) == [7, 7, 7]
        assert (memo.misses, len(memo), len(Memo(path))) == (1, 1, 0)

    asyncio.run(body())


def test_a_torn_or_changed_line_costs_a_memo_that_line_only(tmp_path) -> None:
    async def body() -> None:
        path = tmp_path / "memo.jsonl"

        async def value(number: int) -> dict[str, int]:
            return {"number": number}

        memo = Memo(path)
        for number in range(4):
            await memo.get(str(number), lambda number=number: value(number))
        rows = [row for row in path.read_bytes().split(b"\n") if row]
        rows[1] = rows[1].replace(b'"number":1', b'"number":9')
        path.write_bytes(b"\n".join(rows)[:-5])
        await Memo(path).get("new", lambda: value(5))
        again = Memo(path)
        assert len(again) == 3
        assert await again.get("0", lambda: value(-1)) == {"number": 0}
        assert await again.get("new", lambda: value(-1)) == {"number": 5}
        assert await again.get("1", lambda: value(-1)) == {"number": -1}

    asyncio.run(body())


def test_a_memo_forgets_the_longest_unused() -> None:
    async def body() -> None:
        memo = Memo(entries=2)

        async def make() -> str:
            return json.dumps("x")

        for key in ("a", "b", "a", "c"):
            await memo.get(key, make)
        assert memo.misses == 3
        await memo.get("a", make)
        await memo.get("b", make)
        assert memo.misses == 4

    asyncio.run(body())
