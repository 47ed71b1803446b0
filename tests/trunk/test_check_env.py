"""The conformance kits let good environments pass and name the sentence that a broken one breaks."""

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.env import Snapshot, Step, StopReason
from envgym.errors import SandboxDied
from envgym.messages import Action, Message, ToolSpec
from envgym.replay import Replaying
from envgym.task import Task, TaskSet
from envgym.testing import check_env, check_env_sync, check_task_sync, check_tasks
from envgym.testing.actions import sample_value
from envgym.testing.fakes import MemoryEnv, ScriptedAgent, SlowEnv, memory_solution, memory_tasks

counter = itertools.count()


class Plain:
    """The least an environment can be: no tools, no snapshots."""

    tools: tuple[ToolSpec, ...] = ()

    def __init__(self) -> None:
        self.task = Task(id="plain", prompt="Say something.")
        self._said: list[str] | None = None

    async def reset(self, *, seed: int) -> Step:
        self._said = []
        return Step(observation=(Message(role="user", content=f"say something, {seed}"),))

    async def step(self, action: Action) -> Step:
        if self._said is None:
            raise RuntimeError("reset first")
        self._said.append(action.text)
        stop = StopReason.SUBMITTED if len(self._said) == 5 else None
        return Step(
            observation=(Message(role="user", content=f"{len(self._said)}: {action.text[:50]}"),), stop=stop
        )

    async def close(self) -> None:
        pass


def test_good_environments_pass() -> None:
    assert check_env_sync(MemoryEnv, uses_seed=True).unreached == ()
    assert check_env_sync(Plain, uses_seed=True).unreached == ()


def test_an_environment_that_waits_passes_and_an_awaitable_make_is_awaited() -> None:
    async def make() -> SlowEnv:
        return SlowEnv(MemoryEnv(), mean_s=1e-4, rng=np.random.default_rng(0))

    asyncio.run(check_env(make, turns=3))


def test_what_could_not_be_reached_is_reported() -> None:
    class Endless(Plain):
        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), stop=None)

    (unreached,) = check_env_sync(Endless, turns=3, uses_seed=True).unreached
    assert "no episode ended" in unreached


class Drifting(MemoryEnv):
    async def step(self, action: Action) -> Step:
        return replace(await super().step(action), state_key=str(next(counter)))


class Leaky(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        kept = [] if self._board is None else self._board.opened
        step = await super().reset(seed=seed, start=start)
        assert self._board is not None
        self._board.opened = kept
        return step


class Seedless(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return await super().reset(seed=7, start=start)


class Fragile(MemoryEnv):
    async def step(self, action: Action) -> Step:
        if action.calls:
            action.calls[0].arguments["cell"]
        return await super().step(action)


class Shared(MemoryEnv):
    async def fork(self) -> "Shared":
        other = Shared(self.task)
        other._seed, other._board = self._seed, self._board
        return other


class Forgetful(MemoryEnv):
    async def snapshot(self) -> Snapshot:
        board = self._board
        snapshot = await super().snapshot()
        assert board is not None
        return snapshot.model_copy(
            update={"state": snapshot.state.replace(f'"{(board.notes or ["?"])[-1]}"', '"lost"')}
        )


class Endless(MemoryEnv):
    async def step(self, action: Action) -> Step:
        if self._board is not None and self._board.stop is not None:
            return Step()
        return await super().step(action)


class Unborn(MemoryEnv):
    async def step(self, action: Action) -> Step:
        return Step() if self._board is None else await super().step(action)


class Illegal(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return replace(await super().reset(seed=seed, start=start), legal=("jump 3",))


class Infinite(MemoryEnv):
    async def step(self, action: Action) -> Step:
        return replace(await super().step(action), reward=float("inf"))


class Unstorable(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return replace(await super().reset(seed=seed, start=start), info={"board": self})


class Paid(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return replace(await super().reset(seed=seed, start=start), reward=0.0)


class Hoarder(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        os.pipe()
        return await super().reset(seed=seed, start=start)


class Parent(MemoryEnv):
    started: list[subprocess.Popen[bytes]] = []  # noqa: RUF012  # ended by the test

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        self.started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))  # noqa: ASYNC220
        return await super().reset(seed=seed, start=start)


class Spawner(MemoryEnv):
    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        self._waiting = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        return await super().reset(seed=seed, start=start)


class Oddly(MemoryEnv):
    tools = (ToolSpec(name="two words", description="x", parameters={"type": "object", "properties": {}}),)


class Stuck(MemoryEnv):
    async def step(self, action: Action) -> Step:
        await asyncio.Event().wait()
        return Step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Drifting, "same task, seed and actions give the same"),
        (Leaky, "a second reset leaks nothing|same task, seed"),
        (Seedless, "a seed that is accepted is honoured"),
        (Fragile, "a bad action is data"),
        (Shared, "fork"),
        (Forgetful, "a snapshot restores the state"),
        (Endless, "step after the end raises RuntimeError"),
        (Unborn, "step before reset raises RuntimeError"),
        (Illegal, "every legal string is a call"),
        (Infinite, "it must be a finite float"),
        (Unstorable, "a Step can be stored"),
        (Paid, "reset gives no reward"),
        (Hoarder, "leaves nothing behind; left: .* descriptor"),
        (Spawner, "leaves nothing behind; left: .* asyncio task"),
        (Oddly, "a tool name is one word"),
        (Stuck, "every call answers"),
    ],
)
def test_each_broken_environment_fails_with_its_sentence(broken: Callable[[], Any], sentence: str) -> None:
    def noting(step: Step, tools: Any, rng: np.random.Generator) -> Action:
        return Action.call("note", text=f"n{rng.integers(1000)}") if rng.random() < 0.7 else Action.call("give_up")

    policy = noting if broken in (Forgetful, Shared) else None
    with pytest.raises(AssertionError, match=sentence):
        check_env_sync(broken, uses_seed=True, policy=policy, deadline_s=0.2 if broken is Stuck else 60)


class Seeds(Plain):
    """Says that a seed decides nothing, where `Plain` shows it at once."""

    uses_seed = False


class Late(Plain):
    """What its seed decides is seen at the end alone, and by few seeds."""

    uses_seed = True

    async def reset(self, *, seed: int) -> Step:
        await super().reset(seed=0)
        self._drawn = seed % 5 == 4
        return Step(observation=(Message(role="user", content="say something"),))

    async def step(self, action: Action) -> Step:
        step = await super().step(action)
        return replace(step, reward=float(self._drawn)) if step.stop else step


class Never(Late):
    """Says that a seed decides something, and none does."""

    async def reset(self, *, seed: int) -> Step:
        return await super().reset(seed=0)


class Unheeding(Never):
    uses_seed = False


class Unfaithful(Late):
    uses_seed = False


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Seeds, "uses_seed is False.*seed 0 and seed 1 differ in step 0"),
        (Unfaithful, "uses_seed is False.*seed 0 and seed 4 differ in step 5"),
        (Never, "a seed that is accepted is honoured"),
        (Late, ""),
        (Unheeding, ""),
    ],
)
def test_what_an_environment_says_of_its_seed_is_tried_also_where_it_is_replayed(env, sentence: str) -> None:
    def spoken(step: Step, tools: Any, rng: np.random.Generator) -> Action:
        return Action.say(f"{rng.integers(9)}")

    if not sentence:
        assert check_env_sync(env, policy=spoken).unreached == ()
        return
    seeds = range(5) if env is Unfaithful else (0, 1)
    with pytest.raises(AssertionError, match=sentence):
        check_env_sync(env, policy=spoken, seeds=seeds)
    with pytest.raises(AssertionError, match=sentence):
        check_env_sync(lambda: Replaying(env), policy=spoken, seeds=seeds)


def test_an_environment_that_says_nothing_of_its_seed_is_told_so() -> None:
    (unreached,) = check_env_sync(Plain).unreached
    assert "uses_seed" in unreached


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda task: {task.prompt}, "content is JSON; that of task 'memory/0' is not"),
        (lambda task: float("nan"), "content is JSON; that of task 'memory/0' is not"),
        (lambda task: id(task), "content is a function of a task's data; of task 'memory/0', stored, it differs"),
        (lambda task: task.metadata, ""),
    ],
)
def test_what_a_specification_says_that_tasks_ask_is_tried(content, sentence: str) -> None:
    if not sentence:
        check_tasks(memory_tasks(), content=content)
        return
    with pytest.raises(AssertionError, match=sentence):
        check_tasks(memory_tasks(), content=content)


def test_a_reference_that_scores_more_than_full_says_that_full_is_not_the_most() -> None:
    with pytest.raises(AssertionError, match=r"scores full: 1.0, not 0.5"):
        check_task_sync(memory_tasks(), lambda task: MemoryEnv(task), memory_solution, full=0.5)


def spoiled(base: type[Any], **methods: Any) -> type[Any]:
    return type("Spoiled", (base,), methods)


def raises(error: BaseException) -> Any:
    async def method(self: Any, *given: Any, **named: Any) -> Any:
        raise error

    return method


def answers(answer: Callable[[Step], Any]) -> Callable[[type[Any]], Any]:
    def method(base: type[Any]) -> Any:
        async def step(self: Any, action: Action) -> Any:
            return answer(await base.step(self, action))

        return step

    return method


@pytest.mark.parametrize("base", [MemoryEnv, Plain])
@pytest.mark.parametrize("name", ["reset", "step", "close"])
@pytest.mark.parametrize(
    "error", [OSError("boom"), RuntimeError("boom"), AssertionError("boom"), SystemExit("boom")]
)
def test_what_an_environment_raises_is_a_broken_sentence_with_its_cause(
    base: type[Any], name: str, error: BaseException
) -> None:
    sentence = (
        f"{name} raised {type(error).__name__}: boom|step before reset .* raised {type(error).__name__}: boom"
    )
    with pytest.raises(AssertionError, match=sentence) as caught:
        check_env_sync(spoiled(base, **{name: raises(error)}))
    assert error in (caught.value.__cause__, getattr(caught.value.__cause__, "__cause__", None))


def test_what_is_not_the_environments_fault_keeps_its_class() -> None:
    with pytest.raises(SandboxDied, match="gone"):
        check_env_sync(spoiled(Plain, step=raises(SandboxDied("gone"))))


@pytest.mark.parametrize("base", [MemoryEnv, Plain])
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda step: (step.text, 1.0, False, False, {}), "answer with a Step"),
        (lambda step: None, "answer with a Step"),
        (lambda step: Step("hello"), "an observation is a tuple of Messages"),
        (lambda step: replace(step, reward="1"), "reward is a finite number"),
        (lambda step: replace(step, reward=float("nan")), "reward is nan; it must be a finite float"),
        (lambda step: replace(step, channels={"part": None}), "part is a finite number"),
        (lambda step: replace(step, channels=None), "channels is a mapping"),
        (lambda step: replace(step, stop="goal"), "stop is a StopReason"),
        (lambda step: replace(step, legal="guess 3"), "legal is a tuple of str"),
    ],
)
def test_an_answer_of_a_wrong_kind_is_a_broken_sentence(
    base: type[Any], answer: Callable[[Step], Any], sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_env_sync(spoiled(base, step=answers(answer)(base)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("snapshot", "snapshot answers with a Snapshot"),
        ("fork", "fork answers with an Env"),
        ("step", "async def step"),
    ],
)
def test_a_method_of_a_wrong_kind_is_a_broken_sentence(name: str, sentence: str) -> None:
    async def nothing(self: Any) -> None:
        if self._board is None:
            raise RuntimeError("reset first")

    plain = lambda self, action: Step()  # noqa: E731
    with pytest.raises(AssertionError, match=sentence):
        check_env_sync(spoiled(MemoryEnv, **{name: plain if name == "step" else nothing}))


@pytest.mark.slow
def test_processes_left_behind_are_found() -> None:
    try:
        with pytest.raises(AssertionError, match="leaves nothing behind; left: process"):
            check_env_sync(Parent)
    finally:
        for process in Parent.started:
            process.communicate(b"\n", timeout=10)


@pytest.mark.slow
def test_further_leftovers_are_asked_for() -> None:
    things: list[str] = []

    class Mounting(MemoryEnv):
        async def close(self) -> None:
            things.append(f"mount {len(things)}")

    with pytest.raises(AssertionError, match=r"left: mount 19; mount 20; mount 21; mount 22$"):
        check_env_sync(Mounting, leftovers=lambda: things[12:])


def test_a_misuse_of_the_kit_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at least two different"):
        check_env_sync(MemoryEnv, seeds=(1, 1))
    with pytest.raises(ValueError, match="turns is 1"):
        check_env_sync(MemoryEnv, turns=1)


def test_tasks_that_can_be_solved_pass() -> None:
    check_task_sync(memory_tasks(), MemoryEnv, memory_solution)
    check_tasks(memory_tasks(), splits=("train", "test"))
    check_tasks(TaskSet.lazy(lambda index: Task(id=str(index), prompt=f"{index}?")))
    check_tasks(TaskSet.lazy(lambda index: Task(id=str(index), prompt=f"{index}?"), split_of=lambda _: "train"))


def test_a_reference_that_does_not_solve_and_a_reward_for_nothing_are_found() -> None:
    with pytest.raises(AssertionError, match=r"scores full: 0\.0, not 1\.0"):
        check_task_sync(memory_tasks(1), MemoryEnv, lambda task, seed: ScriptedAgent([Action.call("give_up")]))

    class Generous(MemoryEnv):
        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), reward=1.0)

    with pytest.raises(AssertionError, match=r"scores none: 8\.0"):
        check_task_sync(memory_tasks(1), Generous, memory_solution)


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ([], "at least one task"),
        ([Task(id="a", prompt="1"), Task(id="a", prompt="2")], "unique in their set; twice: \\['a'\\]"),
        ([Task(id="a", prompt="1"), Task(id="b", prompt="1", split="test")], "splits are disjoint"),
        ([Task(id="a", prompt="1"), Task(id="b", prompt="1", split="test", seed=1)], "say seeded=True"),
        ([Task(id="a", prompt="1", split="tset")], "is one of"),
    ],
)
def test_broken_task_sets_are_found(tasks: list[Task], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_tasks(TaskSet(tasks), splits=("train", "test"))


def test_tasks_that_differ_by_a_seed_that_draws_the_world_are_different_problems() -> None:
    tasks = [Task(id=str(seed), prompt="1", split=("train", "test")[seed], seed=seed) for seed in range(2)]
    check_tasks(TaskSet(tasks), seeded=True)
    with pytest.raises(AssertionError, match="split_of tells the split of task 0: 'test' is not 'train'"):
        check_tasks(TaskSet.lazy(lambda index: tasks[index], length=1, split_of=lambda index: "test"))
    with pytest.raises(AssertionError, match="splits are disjoint"):
        check_tasks(TaskSet([*tasks, tasks[1].model_copy(update={"id": "2", "split": "train"})]), seeded=True)


def test_what_is_no_task_set_is_found() -> None:
    with pytest.raises(AssertionError, match="a task set is a TaskSet; it is a list"):
        check_tasks([Task(id="a", prompt="1")])  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="holds Tasks; task 1 is a str"):
        check_tasks(TaskSet([Task(id="a", prompt="1"), "b"]))  # type: ignore[list-item]


def test_the_replay_wrapper_is_an_env_like_any_other() -> None:
    check_env_sync(lambda: Replaying(Plain))


@given(seed=st.integers(0, 2**32 - 1))
def test_sampled_values_fit_their_schema(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert -3 <= sample_value({"type": "integer", "minimum": -3, "maximum": 5}, rng) <= 5  # type: ignore[operator]
    assert sample_value({"type": "integer", "exclusiveMinimum": 4}, rng) > 4  # type: ignore[operator]
    assert sample_value({"type": "integer", "maximum": -40}, rng) <= -40  # type: ignore[operator]
    assert sample_value({"enum": ["a", "b"]}, rng) in ("a", "b")
    assert len(sample_value({"type": "string", "minLength": 50}, rng)) >= 50  # type: ignore[arg-type]
    chosen = sample_value({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/X"}]}, rng, {"X": {"const": 4}})
    assert chosen in (None, 4)
    made = sample_value({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, rng)
    assert isinstance(made, dict)
    assert isinstance(made["a"], bool)
