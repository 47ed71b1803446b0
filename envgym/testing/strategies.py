"""Hypothesis strategies for what the contracts allow: texts no model is known not to produce, and all made of them.

For laws of whatever stores, converts or shows episodes. Needs hypothesis (the extra `dev`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from envgym.env import Grade, Snapshot, Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall
from envgym.policy import ROLES, VersionRun
from envgym.sandbox import SandboxSnapshot
from envgym.testing.credit_groups import Make, random_groups

__all__ = [
    "Drawn", "Parts", "actions", "credit_groups", "episode_lists", "episodes", "failures", "grades", "groups",
    "json_values", "messages", "names", "paths", "snapshots", "some_parts", "steps", "texts",
]  # fmt: skip

texts = st.text(alphabet=st.characters(), max_size=20)
names = st.text(alphabet=st.characters(), min_size=1, max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(ToolCall, name=names, arguments=st.dictionaries(texts, json_values, max_size=3), id=texts)
parts = st.builds(TextPart, text=texts) | st.builds(
    ImagePart, sha256=st.text("0123456789abcdef", min_size=64, max_size=64)
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts | st.lists(parts, max_size=3).map(tuple),
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=texts,
)
many_messages = st.lists(messages, max_size=3).map(tuple)
errors = st.builds(ParseError, message=texts, text=texts)
actions = st.builds(Action, message=messages, error=st.none() | errors)
numbers = st.dictionaries(names, floats, max_size=3)


def steps(stop: st.SearchStrategy[StopReason | None]) -> st.SearchStrategy[Step]:
    """Steps whose end is drawn from `stop`."""
    return st.builds(
        Step,
        observation=many_messages,
        reward=st.none() | floats,
        channels=numbers,
        stop=stop,
        state_key=texts,
        legal=st.none() | st.lists(texts, max_size=3).map(tuple),
        submission=st.none() | texts,
        cost=numbers,
        info=st.dictionaries(texts, json_values, max_size=3),
        next_actor=names,
    )


sandboxes = st.builds(SandboxSnapshot, id=names, backend=names, partial=st.booleans(), digest=texts)
snapshots = st.builds(
    Snapshot,
    restore=st.sampled_from(["exact", "replay"]),
    task_id=names,
    seed=st.integers(0, 2**63),
    state=texts,
    sandbox=st.none() | sandboxes,
    actions=st.lists(actions, max_size=2).map(tuple),
    digests=st.lists(texts, max_size=3).map(tuple),
)
failures = st.builds(
    Failure,
    boundary=st.sampled_from(Boundary),
    kind=names,
    message=texts,
    where=names,
    turn=st.integers(0, 9),
    trace=texts,
)
grades = st.builds(Grade, grader=names, version=names, channels=numbers)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@dataclass(frozen=True, slots=True)
class Parts:
    """What episodes are made of, and meet again: each part is anything that its strategy gives.

    Episodes that draw every turn's step, messages and snapshot anew soon outgrow what hypothesis looks at, and are
    thrown away; and two of them never have anything in common.
    """

    steps: st.SearchStrategy[Step]
    said: st.SearchStrategy[tuple[Message, ...]]
    snapshots: st.SearchStrategy[Snapshot | None]
    errors: st.SearchStrategy[ParseError | None]
    names: st.SearchStrategy[str]
    grades: st.SearchStrategy[Grade]


@st.composite
def some_parts(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Parts:
    """Parts for one test: a few of each kind."""

    def few(one: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[Any]:
        return st.sampled_from(draw(st.lists(one, min_size=1, max_size=most)))

    return Parts(
        few(steps(st.none()), 3), few(many_messages), st.none() | few(snapshots, 1), st.none() | few(errors, 1),
        few(names, 4), few(grades),
    )  # fmt: skip


@st.composite
def paths(
    draw: Callable[[st.SearchStrategy[Any]], Any], at: tuple[int, int] = (0, 0), parts: Parts | None = None
) -> tuple[Turn, ...]:
    """Turns that keep the prefix rule from the context `at` (segment, length) on, some without tokens."""
    found, (segment, length) = [], at
    of = parts or draw(some_parts())
    for _ in range(draw(st.integers(0, 4))):
        step, said, actor = draw(of.steps), draw(of.said), draw(of.names)
        if draw(st.booleans()):
            found.append(Turn(actor, said, step, snapshot=draw(of.snapshots), error=draw(of.errors)))
            continue
        if draw(st.integers(0, 3)) == 0:
            segment, length = segment + 1, 0
        prompt, sampled = draw(ids), draw(ids)
        if not prompt and not sampled:
            sampled = [7]
        if length == 0 and segment and not prompt + sampled:
            prompt = [1]
        widths = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(sampled), max_size=len(sampled)))
        versions = tuple(VersionRun(k, draw(st.integers(0, 2**40))) for k in range(0, len(sampled), 2))
        arrays = (np.array(prompt, np.int32), np.array(sampled, np.int32), np.array(widths, np.float32))
        allowed, snapshot = draw(st.none() | ids.map(tuple)), draw(of.snapshots)
        took = draw(st.floats(0, 9)), draw(st.floats(0, 9))
        cuts = sorted(draw(st.sets(st.integers(1, len(prompt) - 1), max_size=2))) if len(prompt) > 1 else []
        runs = np.diff([0, *cuts, len(prompt)]).tolist() if prompt and draw(st.booleans()) else []
        roles = tuple((draw(st.sampled_from(ROLES)), length) for length in runs)
        error = draw(of.errors)
        found.append(
            Turn(actor, said, step, *arrays, versions, segment, length, allowed, snapshot, error, *took, roles)
        )
        length += len(prompt) + len(sampled)
    return tuple(found)


@st.composite
def episodes(draw: Callable[[st.SearchStrategy[Any]], Any], /, parts: Parts | None = None, **known: Any) -> Episode:
    """Episodes that the contract allows, each for itself; a parent is a name only.

    known: fields that are not drawn. Ids are drawn anew, everything else is of `parts`.
    """
    of = parts or draw(some_parts())
    failure = draw(st.none() | failures)
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "id": names, "task_id": of.names, "root": of.steps, "turns": paths(parts=of), "seed": st.integers(0, 2**63),
        "stop": st.none() if failure else st.sampled_from(StopReason),
        "parent": st.none() | st.builds(ForkPoint, of.names, st.integers(0, 9), st.integers(0, 9)),
        "grades": st.lists(of.grades, max_size=2).map(tuple), "group": st.just("") | of.names,
        "provenance": st.lists(st.tuples(of.names, texts), max_size=2).map(tuple), "wall_s": st.floats(0, 1e6),
    }  # fmt: skip
    return Episode(
        failure=failure, **{name: known[name] if name in known else draw(one) for name, one in drawn.items()}
    )


@st.composite
def episode_lists(draw: Callable[[st.SearchStrategy[Any]], Any], most: int = 4) -> list[Episode]:
    """Up to `most` episodes of the same parts; two may have one id."""
    return list(draw(st.lists(episodes(draw(some_parts())), max_size=most)))


def _after(path: tuple[Turn, ...]) -> tuple[int, int]:
    """The context that a path ends in."""
    for turn in reversed(path):
        if added := len(turn.prompt_ids) + len(turn.sampled_ids):
            return turn.segment, turn.position + added
    return 0, 0


@st.composite
def groups(draw: Callable[[st.SearchStrategy[Any]], Any], most: int = 3, parts: Parts | None = None) -> Group:
    """A group whose later episodes may be forks of earlier ones, at any turn and within it."""
    of = parts or draw(some_parts())
    task, group, members = draw(of.names), draw(texts), list[Episode]()
    whole: dict[str, tuple[Turn, ...]] = {}
    for name in draw(st.lists(names, min_size=1, max_size=most, unique=True)):
        parent: ForkPoint | None = None
        before: tuple[Turn, ...] = ()
        if members and draw(st.booleans()):
            owner = draw(st.sampled_from(members))
            turn = draw(st.integers(0, len(whole[owner.id])))
            left = len(whole[owner.id][turn].sampled_ids) if turn < len(whole[owner.id]) else 0
            parent, before = ForkPoint(owner.id, turn, draw(st.integers(0, left))), whole[owner.id][:turn]
        own = draw(paths(_after(before), of))
        members.append(draw(episodes(of, id=name, task_id=task, turns=own, parent=parent, group=group)))
        whole[name] = (*before, *own)
    return Group(task, tuple(members))


class Drawn:
    """What `random_groups` and `try_laws` ask of a Generator, drawn by hypothesis, so that failures shrink."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integers(self, low: int, high: int | None = None) -> int:
        """As `numpy.random.Generator.integers`."""
        low, high = (0, low) if high is None else (low, high)
        return int(self._draw(st.integers(low, high - 1)))

    def random(self) -> float:
        """As `numpy.random.Generator.random`, in hundredths."""
        return int(self._draw(st.integers(0, 99))) / 100

    def uniform(self, low: float, high: float) -> float:
        """As `numpy.random.Generator.uniform`, in hundredths of the range."""
        return low + (high - low) * self.random()

    def exponential(self) -> float:
        """Something above 0, as `numpy.random.Generator.exponential` gives."""
        return 0.05 + 4 * self.random()

    def permutation(self, count: int) -> list[int]:
        """As `numpy.random.Generator.permutation` of a number."""
        return list(self._draw(st.permutations(range(count))))


@st.composite
def credit_groups(draw: Callable[[st.SearchStrategy[Any]], Any], make: Make | None = None) -> list[Group]:
    """Groups as `random_groups` makes them; a failure shrinks to few members, turns and tokens."""
    return random_groups(cast(np.random.Generator, Drawn(draw)), make)
