"""Groups of episodes with anything a model and a world can produce, forks included, for the laws of formats."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from envgym.env import Grade, Snapshot, Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall
from envgym.policy import VersionRun
from envgym.sandbox import SandboxSnapshot

texts = st.text(alphabet=st.characters(), max_size=12)
names = st.text(alphabet=st.characters(), min_size=1, max_size=8)
floats = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, json_values, max_size=2)
calls = st.builds(ToolCall, name=names, arguments=objects, id=texts)
parts = st.builds(TextPart, text=texts) | st.builds(ImagePart, sha256=st.text("0123456789abcdef", min_size=64, max_size=64))
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts | st.lists(parts, max_size=2).map(tuple),
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=texts,
)
spoken = st.builds(Message, role=st.just("assistant"), content=texts, tool_calls=st.lists(calls, max_size=1).map(tuple))
heard = st.lists(messages, max_size=2).map(tuple)
said = spoken.map(lambda message: (message,)) | st.lists(messages, max_size=2).map(tuple)
numbers = st.dictionaries(names, floats, max_size=2)
actions = st.builds(Action, message=messages, error=st.none() | st.builds(ParseError, message=texts, text=texts))
snapshots = st.builds(
    Snapshot,
    restore=st.sampled_from(["exact", "replay"]),
    task_id=names,
    seed=st.integers(0, 2**63),
    state=texts,
    sandbox=st.none() | st.builds(SandboxSnapshot, id=names, backend=names, digest=texts),
    actions=st.lists(actions, max_size=1).map(tuple),
)
failures = st.builds(
    Failure, boundary=st.sampled_from(Boundary), kind=names, message=texts, where=names, turn=st.integers(0, 9),
    trace=texts,
)  # fmt: skip
grades = st.builds(Grade, grader=names, version=texts, channels=numbers)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=4)
seconds = st.floats(0, 1e6)


def steps(stop: st.SearchStrategy[StopReason | None]) -> st.SearchStrategy[Step]:
    return st.builds(
        Step, observation=heard, reward=st.none() | floats, channels=numbers, stop=stop, state_key=texts,
        legal=st.none() | st.lists(texts, max_size=2).map(tuple), submission=st.none() | texts, cost=numbers,
        info=objects, next_actor=names,
    )  # fmt: skip


@st.composite
def turns(draw: Callable[[st.SearchStrategy[Any]], Any], at: tuple[int, int]) -> tuple[Turn, ...]:
    """Turns that keep the prefix rule from the context `at` (segment, length) on."""
    found, (segment, length) = [], at
    for _ in range(draw(st.integers(0, 3))):
        actor, words, step = draw(st.just("agent") | names), draw(said), draw(steps(st.none()))
        took = {"act_s": draw(seconds), "step_s": draw(seconds), "snapshot": draw(st.none() | snapshots)}
        if draw(st.booleans()):
            found.append(Turn(actor, words, step, **took))
            continue
        if draw(st.integers(0, 3)) == 0:
            segment, length = segment + 1, 0
        prompt, sampled = draw(ids), draw(ids) or [7]
        odds = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(sampled), max_size=len(sampled)))
        arrays = (np.array(prompt, np.int32), np.array(sampled, np.int32), np.array(odds, np.float32))
        runs = tuple(VersionRun(k, draw(st.integers(0, 2**40))) for k in range(0, len(sampled), 2))
        allowed = draw(st.none() | ids.map(tuple))
        found.append(Turn(actor, words, step, *arrays, runs, segment, length, allowed, **took))
        length += len(prompt) + len(sampled)
    return tuple(found)


def _after(path: tuple[Turn, ...]) -> tuple[int, int]:
    """The context that a path ends in."""
    for turn in reversed(path):
        if added := len(turn.prompt_ids) + len(turn.sampled_ids):
            return turn.segment, turn.position + added
    return 0, 0


@st.composite
def groups(draw: Callable[[st.SearchStrategy[Any]], Any], most: int = 3) -> Group:
    """A group whose later episodes may be forks of earlier ones, at any turn and within it."""
    task, members, paths = draw(names), [], {}
    for name in draw(st.lists(names, min_size=1, max_size=most, unique=True)):
        parent, before = None, ()
        if members and draw(st.booleans()):
            owner = draw(st.sampled_from(members))
            whole = paths[owner.id]
            turn = draw(st.integers(0, len(whole)))
            within = len(whole[turn].sampled_ids) if turn < len(whole) else 0
            parent, before = ForkPoint(owner.id, turn, draw(st.integers(0, within))), whole[:turn]
        own = draw(turns(_after(before)))
        failure = draw(st.none() | failures)
        episode = Episode(
            id=name, task_id=task, root=draw(steps(st.none())), turns=own, seed=draw(st.integers(0, 2**63)),
            stop=None if failure else draw(st.sampled_from(StopReason)), failure=failure, parent=parent,
            grades=tuple(draw(st.lists(grades, max_size=1))), group=draw(texts),
            provenance=tuple(draw(st.lists(st.tuples(names, texts), max_size=2))), wall_s=draw(seconds),
        )  # fmt: skip
        members.append(episode)
        paths[name] = (*before, *own)
    return Group(task, tuple(members))
