"""`retry`: what counts as the same answer and the same state, and worlds that act in sandboxes."""

import asyncio
from typing import Any

import pytest
from envgym_environments.played import Rules
from envgym_environments.text import retry
from envgym_environments.text.retry import SANDBOXED, SPEC, Retry, retry_tasks, sandboxed_tasks

from envgym.env import Durable, Snapshot, Step, StopReason
from envgym.messages import Action, Message, ToolCall
from envgym.registry import make, make_backend
from envgym.replay import Replaying
from envgym.sandbox import SandboxSnapshot
from envgym.task import Task
from envgym.testing import check_env, check_task


def wrong_answers(task: Task) -> list[str]:
    inner: Any = task.metadata["task"]
    data = inner["metadata"]
    return [one for one in data["choices"].split("|") if one != data["truth"]]


def test_what_the_inner_environment_says_of_its_seed_is_said_here_and_nothing_where_it_says_nothing() -> None:
    class Silent:
        task, tools = retry_tasks("synthetic", count=5)[0], ()

    for inner, said in (("guess", True), ("synthetic", False)):
        env = make(SPEC, retry_tasks(inner, count=5)[0])
        assert isinstance(env, Retry)
        assert env.uses_seed is said
    assert Retry(Silent.task, Silent()).uses_seed is None  # type: ignore[arg-type]
    assert Rules.uses_seed is None


async def _last(env: Retry, *actions: Action) -> Step:
    step = await env.reset(seed=0)
    for action in actions:
        step = await env.step(action)
    return step


def saying(text: str, thought: str, name: str) -> Action:
    call = ToolCall(id=name, name="answer", arguments={"text": text})
    return Action(message=Message(role="assistant", content=thought, tool_calls=(call,)))


def test_an_answer_is_the_same_whatever_is_thought_beside_it_and_however_its_call_is_named() -> None:
    task = retry_tasks("synthetic", count=5)[0]
    one, other = wrong_answers(task)[:2]

    async def run() -> tuple[Step, Step]:
        env = make(SPEC, task)
        assert isinstance(env, Retry)
        same = await _last(env, saying(one, "I see", "a"), saying(one, "It must be so", "b"))
        return same, await _last(env, saying(one, "I see", "a"), saying(other, "I see", "a"))

    same, another = asyncio.run(run())
    assert (same.channels["repeated"], same.reward) == (1.0, -0.1)
    assert (another.channels["repeated"], another.reward) == (0.0, None)


def test_long_answers_that_differ_at_their_end_only_are_different() -> None:
    task = retry_tasks("synthetic", count=5)[0]

    async def run() -> Step:
        env = make(SPEC, task)
        assert isinstance(env, Retry)
        return await _last(env, *(Action.call("answer", text="x" * 5000 + end) for end in "ab"))

    assert asyncio.run(run()).channels["repeated"] == 0.0


def test_states_in_which_other_answers_were_given_are_told_apart() -> None:
    task = retry_tasks("synthetic", count=5)[0]
    one, other = wrong_answers(task)[:2]

    async def run() -> list[str]:
        env = make(SPEC, task)
        assert isinstance(env, Retry)
        says = {name: Action.call("answer", text=text) for name, text in (("a", one), ("b", other))}
        return [(await _last(env, *(says[name] for name in order))).state_key for order in ("a", "b", "ab", "ba")]

    first, second, both, reverse = asyncio.run(run())
    assert first != second, "a repetition of the one costs in one of them only"
    assert both == reverse


class Toll:
    """Two turns: whatever is said first, then an answer; each costs, the last one most."""

    tools = ()

    def __init__(self, task: Task) -> None:
        self.task, self.turn = task, 0

    async def reset(self, *, seed: int) -> Step:
        self.turn = 0
        return Step((Message(role="user", content="well?"),))

    async def step(self, action: Action) -> Step:
        self.turn += 1
        seen, cost = (Message(role="user", content="and?"),), {"usd": float(self.turn), "looks": 1.0}
        if self.turn == 1:
            return Step(seen, cost=cost)
        return Step(seen, reward=float(action.text == "yes"), stop=StopReason.SUBMITTED, cost=cost)

    async def close(self) -> None:
        """Nothing."""


def test_what_each_turn_cost_is_told_also_of_the_last_of_an_attempt() -> None:
    task = Task(id="toll", prompt="")

    async def costs() -> list[dict[str, float]]:
        env = Retry(task, Replaying(lambda: Toll(task)), tries=3)
        await env.reset(seed=0)
        return [dict((await env.step(Action.say(said))).cost) for said in ("a", "no", "b", "no", "c", "yes")]

    each = asyncio.run(costs())
    assert [one["usd"] for one in each] == [1.0, 2.0] * 3, "of wrong attempts' ends, and of the right one's"
    assert sum(one["looks"] for one in each) == 6.0


def test_a_sandboxs_snapshot_stays_where_who_holds_it_looks() -> None:
    class Durably:
        """An environment with a sandbox's snapshots, whose states are texts."""

        tools = ()

        def __init__(self) -> None:
            self.task, self.released = Task(id="inner", prompt=""), list[Snapshot]()

        async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
            return Step((Message(role="user", content="?"),), state_key="" if start is None else start.state)

        async def step(self, action: Action) -> Step:
            return Step((Message(role="user", content="no"),), 0.0, {}, StopReason.LOST)

        async def snapshot(self) -> Snapshot:
            kept = SandboxSnapshot(id="s", backend="here")
            return Snapshot(restore="exact", task_id="inner", seed=7, state="inside", sandbox=kept)

        async def durable_snapshot(self) -> Snapshot:
            taken = await self.snapshot()
            assert taken.sandbox is not None
            return taken.model_copy(update={"sandbox": taken.sandbox.model_copy(update={"durable": True})})

        async def release(self, snapshot: Snapshot) -> None:
            self.released.append(snapshot)

        async def fork(self) -> "Durably":
            return Durably()

        async def close(self) -> None:
            pass

    async def run() -> None:
        inner = Durably()
        env = Retry(Task(id="outer", prompt=""), inner)
        assert isinstance(env, Durable)
        await env.reset(seed=7)
        await env.step(Action.say("a"))
        taken, durable = await env.snapshot(), await env.durable_snapshot()
        assert taken.sandbox is not None
        assert durable.sandbox is not None
        assert (taken.sandbox.durable, durable.sandbox.durable, taken.task_id) == (False, True, "outer")
        assert (await env.reset(seed=1, start=taken)).state_key.endswith("/inside")
        await env.release(taken)
        assert inner.released == [await inner.snapshot()]

    asyncio.run(run())


def test_what_acts_in_a_sandbox_is_refused_without_one_by_the_name_of_what_plays_it() -> None:
    with pytest.raises(ValueError, match=r"'python' acts in a sandbox.*by 'retry-sandboxed'"):
        make(SPEC, sandboxed_tasks(count=5)[0])


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_world_in_a_sandbox_keeps_both_contracts_and_begins_each_attempt_anew() -> None:
    tasks = sandboxed_tasks(count=60)[::20]

    async def run() -> list[Step]:
        async with make_backend("namespace") as backend:

            def world(task: Task) -> Any:
                return make(SANDBOXED, task, backend=backend)

            def choose(step: Step, tools: Any, rng: Any) -> Action:
                code = ("x = 1\nx", "x", "1 / 0")[int(rng.integers(3))]
                ending = Action.call("answer", value=str(int(rng.integers(2))))
                return ending if rng.random() < 0.4 else Action.call("python", code=code)

            await check_env(lambda: world(tasks[0]), policy=choose, turns=4, deadline_s=120)
            await check_task(tasks, world, retry.expert, seeds=(0,))
            env = world(tasks[0])
            steps = [await env.reset(seed=0)]
            for action in (Action.call("python", code="x = 1"), Action.call("answer", value="none"),
                           Action.call("python", code="x"), Action.call("answer", value="None"),
                           Action.call("answer", value=answer_of(tasks[0]))):  # fmt: skip
                steps.append(await env.step(action))
            await env.close()
            return steps

    steps = asyncio.run(run())
    assert steps[2].text == "That is not right. Try again."
    assert "NameError" in steps[3].text
    assert steps[-1].stop is StopReason.GOAL
    assert steps[-1].reward == pytest.approx(0.64)


def answer_of(task: Task) -> str:
    inner: Any = task.metadata["task"]
    return str(inner["metadata"]["answer"])
