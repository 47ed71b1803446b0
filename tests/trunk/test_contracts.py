"""The small contracts of the trunk: errors, limits, messages, tasks, tools, replay, episodes, groups, registry."""

import asyncio
import copy
import inspect
import itertools
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envgym import errors, registry
from envgym.env import Snapshot, Step, StopReason, observation_digest
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, DeadlineExceeded, EnvgymError, Failure, ReplayDiverged, SandboxDied, boundary
from envgym.limits import Limits, Resources, Sampling
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall, text_of
from envgym.replay import Replaying
from envgym.task import Task, TaskSet, World, evenly
from envgym.testing.fakes import MEMORY, MemoryEnv
from envgym.tools import check_call, compact, parse_call, tool_spec
from envgym.wire import action_from_json, action_to_json

NOTE = Action.call("note", text="x")


# errors


@pytest.mark.parametrize("party", list(Boundary))
def test_a_boundary_attributes_what_escapes_to_its_party_and_chains_it(party: Boundary) -> None:
    with pytest.raises(EnvgymError, match="doing it: KeyError: 'k'") as caught, boundary(party, "doing it"):
        raise KeyError("k")
    assert caught.value.boundary == party
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_program_that_exits_is_a_failure_of_its_party() -> None:
    with (
        pytest.raises(errors.EnvironmentFailure, match="step: SystemExit: 3"),
        boundary(Boundary.ENVIRONMENT, "step"),
    ):
        raise SystemExit(3)


def test_a_boundary_lets_pass_what_knows_its_party_and_what_is_no_failure() -> None:
    with pytest.raises(SandboxDied) as caught, boundary(Boundary.AGENT, "x"):
        raise SandboxDied("gone")
    assert caught.value.boundary == Boundary.INFRASTRUCTURE
    for passing in (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(passing), boundary(Boundary.AGENT, "x"):
            raise passing
    with boundary(Boundary.AGENT, "x"):
        pass


def test_every_error_has_a_boundary_and_becomes_a_stored_failure() -> None:
    for name in errors.__all__:
        found = getattr(errors, name)
        if isinstance(found, type) and issubclass(found, EnvgymError):
            error = found("what", 3.0) if found is DeadlineExceeded else found("what")
            failure = Failure.of(error, where="step", turn=2)
            assert failure == Failure.model_validate_json(failure.model_dump_json())
            assert (failure.kind, failure.boundary) == (name, error.boundary)


# limits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limits(turns=0), "turns"),
        (lambda: Limits(step_s=0), "step_s"),
        (lambda: Limits(trns=3), "trns"),  # type: ignore[call-arg]
        (lambda: Resources(memory_bytes=1), "memory_bytes"),
        (lambda: Sampling(max_tokens=0), "max_tokens is 0"),
        (lambda: Sampling(temperature=-1), "temperature is -1"),
        (lambda: Sampling(top_p=0), "top_p is 0"),
        (lambda: Sampling(allowed=()), "allowed is empty"),
    ],
)
def test_bounds_out_of_range_are_refused_with_their_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# messages


def test_messages_are_frozen_closed_and_read_their_text() -> None:
    message = Message(role="user", content=(TextPart(text="a"), ImagePart(sha256="0" * 64), TextPart(text="b")))
    assert text_of(message) == "ab"
    assert Action.say("hi").text == "hi"
    with pytest.raises(ValidationError):
        message.role = "system"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Message(role="user", text="x")  # type: ignore[call-arg]


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())), st.text(st.characters()))
def test_actions_read_back_from_json_with_every_text(arguments: dict[str, Any], name: str) -> None:
    action = Action(message=Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),)))
    assert action_from_json(action_to_json(action)) == action


# tasks


def test_a_task_set_indexes_slices_and_splits() -> None:
    tasks = TaskSet([Task(id=str(k), prompt="p", split="test" if k % 3 == 0 else "train") for k in range(10)])
    assert [task.id for task in tasks[2:8:2]] == ["2", "4", "6"]
    assert [task.id for task in tasks[::-1][:2]] == ["9", "8"]
    assert tasks[-1].id == "9"
    assert [task.id for task in tasks.split("test")] == ["0", "3", "6", "9"]
    assert len(tasks.take(99)) == 10
    for bad in (10, -11):
        with pytest.raises(IndexError, match="10 tasks"):
            tasks[bad]


@given(st.integers(0, 200), st.integers(0, 250))
def test_an_even_part_is_in_order_and_leaves_equal_gaps(length: int, most: int) -> None:
    chosen = list(evenly(range(length), most))
    assert len(chosen) == min(length, most)
    gaps = [after - before for before, after in itertools.pairwise([*chosen, length])] or [1]
    assert chosen[:1] in ([], [0])
    assert max(gaps) - min(gaps) <= 1
    assert evenly(range(length), None) == range(length)


def test_an_even_part_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="most is -1"):
        evenly([1], -1)


def test_an_endless_task_set_is_lazy_and_refuses_what_has_no_end() -> None:
    asked: list[int] = []

    def make(index: int) -> Task:
        asked.append(index)
        return Task(id=str(index), prompt="p")

    tasks = TaskSet.lazy(make)
    assert [task.id for task in tasks[10:16:3]] == ["10", "13"]
    assert asked == [10, 13]
    assert tasks[5:].infinite
    assert tasks[5:][2].id == "7"
    for refused in (lambda: len(tasks), lambda: tasks.split("train")):
        with pytest.raises(TypeError, match="infinite"):
            refused()
    for index in (-1, slice(-3, None)):
        with pytest.raises(IndexError, match="infinite"):
            tasks[index]


@given(st.integers(0, 30), st.none() | st.integers(-40, 40), st.none() | st.integers(-40, 40), st.integers(-5, 5))
def test_slices_of_a_finite_set_are_those_of_a_list(length: int, start: Any, stop: Any, step: int) -> None:
    plain = [Task(id=str(k), prompt="p") for k in range(length)]
    cut = slice(start, stop, step or None)
    assert list(TaskSet(plain)[cut]) == plain[cut]


def test_a_world_reads_back_from_json() -> None:
    world = World(files={"/work/a": "x"}, setup=("true",), env={"A": "b"}, network=True)
    assert World.model_validate_json(world.model_dump_json()) == world


# tools


def add(left: int, right: int = 1, label: str = "sum", exact: bool = True) -> str:
    """Add two numbers."""
    return f"{label} {left + right} {exact}"


ADD = tool_spec(add)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("add 3", {"left": 3}),
        ("  add 3 4 'a b'\n", {"left": 3, "right": 4, "label": "a b"}),
        ('{"name": "add", "arguments": {"left": "7", "exact": "false"}}', {"left": 7, "exact": False}),
    ],
)
def test_both_notations_are_read_and_coerced(text: str, arguments: dict[str, Any]) -> None:
    assert parse_call(text, [ADD]) == ToolCall(name="add", arguments=arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty action"),
        ("subtract 1", "unknown tool 'subtract'; the tools are: add"),
        ("add", "lacks its argument"),
        ("add x", "not a valid integer"),
        ("add 1 2 3 true 5", "takes at most 4 arguments"),
        ("add 'open", "not a tool call"),
        ("{", "not a tool call"),
        ('{"name": "add", "arguments": {"left": 1, "down": 2}}', "no argument 'down'"),
        ('{"arguments": {}}', "not a tool call"),
        ('{"name": 3}', "not a tool call"),
        ("[1]", "unknown tool"),
    ],
)
def test_a_bad_call_is_a_parse_error_that_says_why(text: str, message: str) -> None:
    found = parse_call(text, [ADD])
    assert isinstance(found, ParseError)
    assert message in found.message


@given(st.integers(-(10**6), 10**6), st.integers(-99, 99), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_compact_call_reads_back(left: int, right: int, label: str) -> None:
    call = ToolCall(name="add", arguments={"left": left, "right": right, "label": label})
    assert parse_call(compact(call), [ADD]) == call


@given(st.text(st.characters(), max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    for candidate in (text, "{" + text, "add " + text, '{"name": "add", "arguments": ' + text):
        assert isinstance(parse_call(candidate, [ADD]), ToolCall | ParseError)


def test_a_tool_needs_annotations_and_describes_itself() -> None:
    assert ADD.description == "Add two numbers."
    assert ADD.parameters["required"] == ["left"]
    with pytest.raises(TypeError, match="parameter 'x' has no type annotation"):
        tool_spec(lambda x: x)
    assert isinstance(check_call(ToolCall(name="add", arguments={"left": None}), [ADD]), ParseError)


# env


def test_stop_reasons_are_terminal_or_truncating_never_both() -> None:
    for stop in StopReason:
        step = Step(stop=stop)
        assert step.terminated != step.truncated
    assert not Step().terminated
    assert not Step().truncated


def test_a_digest_covers_what_determinism_promises_and_nothing_else() -> None:
    step = Step(observation=(Message(role="user", content="\ud800\x00"),), reward=0.0, state_key="k", legal=("a",))
    base = observation_digest(step)
    assert observation_digest(replace(step, cost={"s": 1.0}, info={"x": 1})) == base
    changes: list[dict[str, Any]] = [
        {"observation": ()}, {"reward": None}, {"channels": {"a": 1.0}}, {"stop": StopReason.GOAL},
        {"state_key": ""}, {"legal": None}, {"observation": (Message(role="tool", content="\ud800\x00"),)},
    ]  # fmt: skip
    digests = {observation_digest(replace(step, **change)) for change in changes}
    assert len(digests) == len(changes)
    assert base not in digests


def test_the_empty_mapping_of_steps_is_shared_frozen_and_survives_pickling() -> None:
    step = Step()
    assert step.info is Step().info
    assert step.info == {}
    with pytest.raises(TypeError, match="a Step is frozen"):
        step.info["x"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps(step)) == step
    assert copy.deepcopy(step) == step


class Dicey(MemoryEnv):
    """Does not honour its seed."""

    draws = iter(range(1000))

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        return replace(await super().reset(seed=seed), state_key=str(next(self.draws)))


def test_replaying_restores_by_playing_again_and_notices_a_difference() -> None:
    async def main() -> None:
        env = Replaying(MemoryEnv)
        with pytest.raises(RuntimeError, match="before reset"):
            await env.snapshot()
        await env.reset(seed=1)
        after = await env.step(NOTE)
        snapshot = await env.snapshot()
        assert (snapshot.restore, len(snapshot.actions), len(snapshot.digests)) == ("replay", 1, 2)
        fork = await env.fork()
        assert await fork.step(NOTE) == await env.step(NOTE) != after
        assert (await env.reset(seed=9, start=snapshot)) == after
        with pytest.raises(ValueError, match="cannot start task"):
            await env.reset(seed=1, start=snapshot.model_copy(update={"task_id": "other"}))
        dicey = Replaying(Dicey)
        await dicey.reset(seed=0)
        with pytest.raises(ReplayDiverged, match="step 0 of 0"):
            await dicey.fork()

    asyncio.run(main())


class Seen(dict[str, float]):
    """Channels that count how often they were read."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_a_replayed_step_of_a_wrong_kind_is_the_environments_failure() -> None:
    class Twice(MemoryEnv):
        async def step(self, action: Action) -> Any:
            step = await super().step(action)
            return step if self is first else (step.text, 0.0)

    first = Twice()
    env = Replaying(Twice, first=first)

    async def main() -> None:
        await env.reset(seed=0)
        await env.step(NOTE)
        with pytest.raises(errors.EnvironmentFailure, match="it must be a Step"):
            await env.fork()

    asyncio.run(main())


def test_a_step_is_digested_when_a_snapshot_needs_it_and_once() -> None:
    class Reading(MemoryEnv):
        seen = Seen(a=1.0)

        async def step(self, action: Action) -> Step:
            return replace(await super().step(action), channels=self.seen)

    async def main() -> None:
        env = Replaying(Reading)
        await env.reset(seed=1)
        for _ in range(3):
            await env.step(NOTE)
        assert Reading.seen.reads == 0
        first, second = await env.snapshot(), await env.snapshot()
        assert Reading.seen.reads == 3
        assert first == second
        assert len(first.digests) == 4
        await env.reset(seed=2)
        assert len((await env.snapshot()).digests) == 1

    asyncio.run(main())


# episodes


def turn(prompt: int, sampled: int, position: int, segment: int = 0, logprobs: int | None = None) -> Turn:
    count = sampled if logprobs is None else logprobs
    ids = np.zeros(prompt, np.int32), np.zeros(sampled, np.int32), np.zeros(count, np.float32)
    return Turn("agent", (), Step(reward=0.5), *ids, segment=segment, position=position)


def episode(name: str, turns: tuple[Turn, ...] = (), **other: Any) -> Episode:
    outcome: dict[str, Any] = {"stop": StopReason.GOAL}
    return Episode(id=name, task_id="t", root=Step(), turns=turns, seed=0, **(outcome | other))


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ((turn(3, 2, 0), turn(1, 1, 4)), "start at position 4 but the segment holds 5"),
        ((turn(3, 2, 0), turn(9, 1, 5, segment=1)), "starts at position 0"),
        ((turn(3, 2, 0, segment=1), turn(9, 1, 0, segment=0)), "cannot follow segment 1"),
        ((turn(1, 2, 0, logprobs=1),), "2 sampled ids but 1 log-probs"),
    ],
)
def test_the_prefix_rule_is_checked_when_an_episode_is_built(turns: tuple[Turn, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        episode("e", turns)


def test_a_forks_own_turns_have_one_log_prob_per_sampled_id() -> None:
    with pytest.raises(ValueError, match="2 sampled ids but 1 log-probs"):
        episode("c", (turn(1, 2, 4, logprobs=1),), parent=ForkPoint("r", 2))


@pytest.mark.parametrize(
    ("parent", "position", "message"),
    [
        (ForkPoint("r", 1), 4, "start at position 4 but the segment holds 2"),
        (ForkPoint("c", 1), 4, "start at position 4 but the segment holds 2"),
        (ForkPoint("c", 3), 4, "start at position 4 but the segment holds 6"),
        (ForkPoint("r", 4), 6, "forked from r after turn 4, but that path has 3 turns"),
        (ForkPoint("c", 4), 6, "forked from c after turn 4, but that path has 3 turns"),
        (ForkPoint("c", -1), 0, "forked from c after turn -1"),
        (ForkPoint("r", 1, token=2), 2, "after 2 sampled tokens of turn 1, which has 1"),
        (ForkPoint("r", 3, token=1), 6, "after 1 sampled tokens of turn 3, which has 0"),
    ],
)
def test_a_group_checks_the_prefix_rule_along_whole_paths(parent: ForkPoint, position: int, message: str) -> None:
    root = episode("r", (turn(1, 1, 0), turn(1, 1, 2), turn(1, 1, 4)))
    child = episode("c", (turn(1, 1, 4),), parent=ForkPoint("r", 2))
    with pytest.raises(ValueError, match=message):
        Group("t", (root, child, episode("g", (turn(2, 2, position),), parent=parent)))


def test_a_fork_may_go_on_in_a_new_segment_and_without_tokens() -> None:
    root = episode("r", (turn(1, 1, 0), turn(0, 0, 0), turn(5, 1, 0, segment=1)))
    forks = (
        episode("a", (turn(0, 0, 0), turn(1, 1, 2)), parent=ForkPoint("r", 2)),
        episode("b", (turn(1, 1, 6, segment=1), turn(4, 1, 0, segment=2)), parent=ForkPoint("r", 3)),
        episode("c", (turn(1, 1, 0, segment=1),), parent=ForkPoint("r", 0, token=1)),
    )
    assert len(Group("t", (root, *forks))) == 4


def test_a_long_chain_of_forks_is_checked_in_a_time_that_grows_with_its_own_turns() -> None:
    chain = [episode("0", (turn(1, 1, 0),))]
    for depth in range(1, 3000):
        chain.append(episode(str(depth), (turn(1, 1, 2 * depth),), parent=ForkPoint(str(depth - 1), depth)))
    started = time.process_time()
    Group("t", tuple(chain))
    assert time.process_time() - started < 1.0  # a few milliseconds; whole paths would be 4.5 million turns


def test_an_episode_has_a_stop_or_a_failure_and_sums_its_rewards() -> None:
    good = episode("e", (turn(3, 2, 0), turn(0, 0, 0), turn(4, 1, 0, segment=1), turn(1, 1, 5, segment=1)))
    assert (good.reward, good.sampled_tokens, good.nbytes) == (2.0, 4, 4 * (8 + 4 + 4))
    assert episode("e").reward is None
    failure = Failure(boundary=Boundary.AGENT, kind="k", message="m", where="act", turn=0)
    assert episode("e", (turn(1, 1, 0),), stop=None, failure=failure).reward is None
    for stop, broke in ((None, None), (StopReason.GOAL, failure)):
        with pytest.raises(ValueError, match="exactly one of stop"):
            episode("e", stop=stop, failure=broke)


def test_printing_an_episode_is_short_whatever_it_holds() -> None:
    shown = repr(episode("e", (turn(5000, 5000, 0),)))
    assert len(shown) < 100
    assert len(repr(turn(5000, 5000, 0))) < 100


def test_a_group_is_a_tree_of_one_task_and_gives_whole_paths() -> None:
    root = episode("r", (turn(1, 1, 0), turn(1, 1, 2), turn(1, 1, 4)))
    child = episode("c", (turn(1, 1, 4),), parent=ForkPoint("r", 2))
    grandchild = episode("g", (turn(2, 2, 6),), parent=ForkPoint("c", 3))  # counted along c's whole path
    early = episode("h", (turn(1, 1, 2),), parent=ForkPoint("c", 1))
    group = Group("t", (root, child, grandchild, early))
    assert [one.position for one in group.path(grandchild)] == [0, 2, 4, 6]
    assert [one.position for one in group.path(early)] == [0, 2]
    for members, message in (((child, root), "does not come before"), ((root, root), "twice")):
        with pytest.raises(ValueError, match=message):
            Group("t", members)
    with pytest.raises(ValueError, match="of task 't'"):
        Group("other", (root,))


# registry


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    registry.register("environments", "memory", MEMORY)
    try:
        with pytest.raises(ValueError, match="did you mean 'memory'"):
            registry.spec("memroy")
        with pytest.raises(ValueError, match="environment 'memory' is already registered"):
            registry.register("environments", "memory", replace(MEMORY))
        registry.register("environments", "memory", MEMORY)
    finally:
        registry.unregister("environments", "memory")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: registry.find("sandboxes", "foo"), "unknown sandbox 'foo'"),
        (lambda: registry.register("environment", "x", MEMORY), "unknown group 'environment'; did you mean"),
        (lambda: registry.find("environment", "x"), "unknown group 'environment'; did you mean 'environments'"),
        (lambda: registry.register("environments", "Bad Name", MEMORY), "name 'Bad Name' is not kebab-case"),
        (lambda: registry.register("environments", "number", 3), "environment 'number' is an int; give an EnvSpec"),
        (lambda: registry.register("agents", "number", 3), "agent 'number' is an int; give what makes one"),
        (lambda: registry.EnvSpec("x", 3, MEMORY.make), "environment 'x': tasks is 3; it must be a function"),
        (lambda: registry.EnvSpec("x", MEMORY.tasks, 4), "environment 'x': make is 4; it must be a function"),
        (lambda: registry.EnvSpec("X y", MEMORY.tasks, MEMORY.make), "environment name 'X y' is not kebab-case"),
        (lambda: registry.make(MEMORY, "memory/1"), "task of environment 'memory' is 'memory/1'; it must be a"),
    ],
)  # fmt: skip
def test_a_wrong_thing_name_or_group_is_refused_where_it_is_given(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert not {"x", "Bad Name", "number"} & {*registry.names("environments"), *registry.names("agents")}


def gives(tasks: Any, name: str = "odd") -> registry.EnvSpec:
    return replace(MEMORY, name=name, tasks=tasks)


def raises(error: Exception) -> Any:
    def tasks(*, many: int = 1) -> TaskSet:
        raise error

    return tasks


def test_the_mistakes_of_a_task_set_name_its_environment() -> None:
    for spec in (gives(lambda: [1]), replace(gives(lambda: [1], "other"), name="odd")):
        for call in (spec.tasks, lambda spec=spec: registry.make(spec)):
            with pytest.raises(
                TypeError, match="the tasks of environment 'odd' are a list; its `tasks` must give a"
            ):
                call()
    for error, kind, said in (
        (KeyError("k"), ValueError, "KeyError: 'k'"),
        (ValueError("many is 0"), ValueError, "had: many is 0"),
        (TypeError("no such option"), TypeError, "had: no such option"),
    ):
        with pytest.raises(kind, match=f"the tasks of environment 'odd' cannot be had: .*{said}|{said}") as caught:
            gives(raises(error)).tasks()
        assert "environment 'odd'" in str(caught.value)
        assert caught.value.__cause__ is error
    with pytest.raises(FileNotFoundError, match="no such file"):
        gives(raises(FileNotFoundError("no such file"))).tasks()
    assert list(inspect.signature(gives(raises(KeyError())).tasks).parameters) == ["many"]
    assert len(pickle.loads(pickle.dumps(replace(MEMORY, make=MemoryEnv))).tasks()) == len(MEMORY.tasks())


def test_what_an_entry_point_lacks_decides_the_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "odd_worlds-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-worlds\nVersion: 1\n")
    lines = (
        "odd-attribute = odd_worlds:SPCE",
        "odd-module = odd_worlds.gone:SPEC",
        "odd-extra = odd_worlds.extra:SPEC",
    )
    number = "odd-number = odd_worlds:SPEC"
    (place / "entry_points.txt").write_text("\n".join(["[envgym.environments]", *lines, number]))
    (tmp_path / "odd_worlds").mkdir()
    (tmp_path / "odd_worlds" / "__init__.py").write_text("SPEC = 3\n")
    (tmp_path / "odd_worlds" / "extra.py").write_text("import a_package_that_is_not_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("odd-attribute", "odd-module"):
        with pytest.raises(ImportError, match=f"see the entry point '{name}' of odd-worlds") as caught:
            registry.spec(name)
        assert "install" not in str(caught.value)
    with pytest.raises(ImportError, match="install the extra it needs"):
        registry.spec("odd-extra")
    with pytest.raises(TypeError, match="environment 'odd-number' is an int; its entry point must name an EnvSpec"):
        registry.spec("odd-number")


def test_an_environment_that_needs_a_sandbox_says_so() -> None:
    boxed = replace(MEMORY, name="boxed", sandbox=True)
    with pytest.raises(ValueError, match="'boxed' acts in a sandbox: pass backend="):
        registry.make(boxed)


def test_a_playable_is_wrapped_and_an_env_is_not() -> None:
    class Bare:
        def __init__(self, task: Task) -> None:
            self._env = MemoryEnv(task)
            self.task, self.tools = task, self._env.tools

        async def reset(self, *, seed: int) -> Step:
            return await self._env.reset(seed=seed)

        async def step(self, action: Action) -> Step:
            return await self._env.step(action)

        async def close(self) -> None: ...

    assert isinstance(registry.make(replace(MEMORY, make=Bare)), Replaying)
    assert isinstance(registry.make(MEMORY, 1), MemoryEnv)


def test_gymnasium_ids_are_derived_from_names() -> None:
    assert registry.gymnasium_id("code-repair") == "envgym/CodeRepair-v0"
    assert registry.gymnasium_id("guess") == "envgym/Guess-v0"
