"""What an exploration has found, as data: a state with the shortest known way to it, and single steps.

Nothing is asked and nothing is played here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envgym.env import Step
from envgym.messages import Action, Message
from envgym.synthesis.explore import Trail, seen_before, state_of
from envgym.synthesis.graph import elements_of
from envgym.tools import compact

__all__ = ["Found", "Single", "schema_of", "singles"]


@dataclass(frozen=True, slots=True)
class Found:
    """A state, the way to it, and its abstraction. last: what was then seen. walked: how many actions led there.

    told: the instruction of each action of the way, where such were written. heard: the way as a conversation that
    its world saw: what it showed and what was done, in turn, up to the last action.
    """

    seed: int
    goal: str
    way: tuple[Action, ...]
    schema: str
    last: Step
    walked: int = 1
    told: tuple[str, ...] = ()
    heard: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Single:
    """One step of a trail: what was seen, done, and then seen. lead: the actions before it."""

    seed: int
    lead: tuple[Action, ...]
    before: Step
    action: Action
    after: Step

    @property
    def deed(self) -> str:
        """What was done, with elements by what they are: ``click toggle button '7'``."""
        shown = elements_of(self.before.text)
        done = []
        for call in self.action.calls:
            given = (
                shown[value] if isinstance(value, str) and value in shown else f"{name} {value!r}"
                for name, value in call.arguments.items()
            )
            done.append(" ".join((call.name, *given)))
        return ", then ".join(done)

    @property
    def key(self) -> str:
        """The same for the same calls in the same state."""
        return f"step:{state_of(self.before)}:{'; '.join(map(compact, self.action.calls))}"


def singles(trail: Trail) -> Iterator[Single]:
    """The steps of a trail in which something was called and the state changed."""
    before = trail.first
    for at, (action, after) in enumerate(zip(trail.actions, trail.steps, strict=True)):
        if action.calls and state_of(after) != state_of(before):
            yield Single(trail.seed, trail.actions[:at], before, action, after)
        before = after


def schema_of(trail: Trail, way: Sequence[Action]) -> str:
    """A way without its particulars: tools in order, arguments `seen` where found out, else `given`."""
    texts = [trail.first.text]
    parts = []
    for at, action in enumerate(trail.actions):
        if any(action is one for one in way):
            for call in action.calls:
                slots = [f"{k}={'seen' if seen_before(v, texts) else 'given'}" for k, v in call.arguments.items()]
                parts.append(f"{call.name}({', '.join(slots)})")
        texts.append(trail.steps[at].text)
    return " > ".join(parts)
