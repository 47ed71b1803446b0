"""Who decides: `Policy` samples tokens; `Agent` turns a conversation into tokens and tokens into an action.

The trunk only fixes the seam. Token ids and log-probabilities are kept exactly as sampled; nothing is ever
re-tokenised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, runtime_checkable

from envgym.env import Step
from envgym.frozen import quick
from envgym.limits import Sampling
from envgym.messages import Action, Message
from envgym.task import Task

_NOTHING: Mapping[str, float] = Step().cost  # what steps without any share

__all__ = [
    "ROLES", "Agent", "AgentFactory", "Completion", "Policy", "Prompt", "Reply", "Roles", "Session", "VersionRun",
    "shared_versions",
]  # fmt: skip

Roles = tuple[tuple[str, int], ...]
"""Whose some ids are: runs of (role, how many), in order, that make up all of them. () where nobody knows."""

ROLES = ("unknown", "template", "system", "user", "assistant", "tool")
"""The roles of a run: "template" is what a chat template puts around the text of messages; the others are their
messages'. What a policy samples is not said here: it is the assistant's, and kept apart."""


@dataclass(frozen=True, slots=True)
class VersionRun:
    """From sampled token `start` on, the weights of `version` were used."""

    start: int
    version: int


_MOST = 1024
"""Versions that turns share, at a time."""
_ONE: dict[int, tuple[VersionRun, ...]] = {}


def shared_versions(versions: tuple[VersionRun, ...]) -> tuple[VersionRun, ...]:
    """The first tuple with this value: nearly all turns of a training step were sampled by one version."""
    if len(versions) != 1 or versions[0].start:
        return _interned(versions)
    known = _ONE.get(version := versions[0].version)  # a number has a quicker hash than a tuple of values
    if known is None:
        if len(_ONE) >= _MOST:
            _ONE.clear()
        known = _ONE[version] = versions
    return known


@lru_cache(maxsize=_MOST)
def _interned(versions: tuple[VersionRun, ...]) -> tuple[VersionRun, ...]:
    return versions


@dataclass(frozen=True, slots=True)
class Prompt:
    """The whole token context. A session recomputes only what its cache does not hold yet.

    ids: int token ids; the sequence may be the agent's own append-only list (it is not modified).
    """

    ids: Sequence[int]
    media: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled: ids [T], logprobs [T] (nats, of the distribution sampled from), version runs, ending.

    finish: "stop" (a stop id was sampled; it is the last id), "length", or "abort".
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionRun, ...]
    finish: Literal["stop", "length", "abort"]


class Session(Protocol):
    """The cache of one growing context."""

    def fork(self) -> "Session":
        """A session with the same cache, independent from here on."""
        ...

    def close(self) -> None:
        """Free the cache; idempotent."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Samples tokens. `version` counts weight updates."""

    version: int

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        """Sample a completion of the prompt. Calls that wait at the same time are batched."""
        ...

    def session(self) -> Session:
        """A fresh, empty session."""
        ...


@quick
@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent answers to a step: the action, and the tokens behind it where a policy sampled them.

    prompt_ids: the ids added to the context since the previous turn's sampled ids (the delta).
    segment: counts contexts; it grows by one when the context was re-rendered or compacted, and then
        `prompt_ids` is the whole new context.
    position: how many ids the segment already held before `prompt_ids`; checked by `Episode`.
    allowed: the ids the first sampled token was restricted to, None when unrestricted.
    cost: what the answer cost, by name, where the agent knows: "usd", "prompt_tokens", "completion_tokens". Finite
        and not negative; it is added to the cost of the step that follows.
    roles: whose tokens `prompt_ids` are.
    shown: what stands in those ids besides what the world said: a system prompt, tools, a question of the agent
        program's own; and what was sampled where the action is put in other words.
    thoughts: what the policy sampled before, since the last action; the world never hears of it.
    """

    action: Action
    prompt_ids: Sequence[int] = ()
    completion: Completion | None = None
    segment: int = 0
    position: int = 0
    allowed: tuple[int, ...] | None = None
    cost: Mapping[str, float] = _NOTHING
    roles: Roles = ()
    shown: tuple[Message, ...] = ()
    thoughts: "tuple[Reply, ...]" = ()


@runtime_checkable
class Agent(Protocol):
    """One actor in one episode. It holds the conversation; it forks with its environment."""

    name: str

    async def act(self, step: Step) -> Reply:
        """Answer a step (the first one is what reset gave).

        A malformed model output is data: an Action with its parse error. Raises AgentFailure when the policy
        or the agent program behind it is gone, ContextFull when the conversation fits its context no longer, and
        Misconfigured for what every episode would meet again.
        """
        ...

    def fork(self, *, seed: int) -> "Agent":
        """An agent with the same history whose further draws come from `seed`."""
        ...

    async def close(self) -> None:
        """Release sessions and programs; idempotent."""
        ...


class AgentFactory(Protocol):
    """Makes one agent for one episode."""

    def __call__(self, task: Task, *, seed: int) -> Agent:
        """An agent for `task` whose every draw comes from `seed`."""
        ...
