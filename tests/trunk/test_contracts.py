"""The small contracts of the trunk: errors, limits, messages, tasks, tools, steps."""

import asyncio
import copy
import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envgym import errors
from envgym.env import Step, StopReason, observation_digest
from envgym.errors import Boundary, DeadlineExceeded, EnvgymError, Failure, SandboxDied, boundary
from envgym.limits import Limits, Resources, Sampling
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall, text_of
from envgym.task import Task, TaskSet, World, evenly
from envgym.tools import check_call, compact, parse_call, tool_spec
from envgym.wire import action_from_json, action_to_json

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


def test_a_split_that_is_known_by_the_place_makes_no_task_and_each_of_its_own_once() -> None:
    asked: list[int] = []

    def split_of(index: int) -> str:
        return "test" if index % 3 == 0 else "train"

    def make(index: int) -> Task:
        asked.append(index)
        return Task(id=str(index), prompt="p", split=split_of(index))

    tasks = TaskSet.lazy(make, length=10, split_of=split_of)
    held = tasks[1:].split("test")
    assert (len(held), tasks.split_at(3), tasks[2:][1:].split_at(0), asked) == (3, "test", "test", [])
    assert (tasks.splits(), asked) == (["test", "train"], [])
    assert [task.id for task in held] == [task.id for task in held] == ["3", "6", "9"]
    assert asked == [3, 6, 9]
    assert [task.id for task in held[1:]] == ["6", "9"]
    assert list(tasks.split("train")) == list(TaskSet(list(tasks)).split("train"))


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
    with pytest.raises(TypeError, match="a Step or an Answer is frozen"):
        step.info["x"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps(step)) == step
    assert copy.deepcopy(step) == step
