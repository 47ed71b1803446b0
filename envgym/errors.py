"""The error tree: whose fault a failure is, and what happened.

The model's fault is data and never appears here. The programmer's fault is a plain ``ValueError`` or
``TypeError``. Everything in this file is the *world's* fault::

    EnvgymError
    +-- AgentFailure              the agent program or its policy broke         boundary "agent"
    |   +-- Overloaded            the policy's server takes no more for now (HTTP 429, 503)
    |   +-- ContextFull           the conversation fits its context no longer; played, it is a stop and no failure
    +-- EnvironmentFailure        reset/step/close raised or lied               boundary "environment"
    |   +-- ReplayDiverged        a replayed action gave another state
    +-- GraderFailure             no verdict could be reached                   boundary "grader"
    +-- InfrastructureFailure     what everything stands on broke               boundary "infrastructure"
    |   +-- SandboxDied           the sandbox is gone (killed, out of memory)
    |   +-- SandboxUnavailable    this backend cannot run here; says what is missing and the fix
    |   +-- PoolFull              a pool had no room in time; says what is used by whom
    |   +-- LearnerDied           a process of the learner is gone, and the others cannot go on without it
    |   +-- HostLost              a process that played or sampled elsewhere is gone, or its host
    |   +-- WorkersLost           all of them are, and no more can be begun: nothing is played any more
    |   +-- SnapshotGone          the snapshot was released, or was never here
    |   +-- StoreCorrupt          a stored record fails its checksum
    +-- DeadlineExceeded          a call outlived its deadline (boundary: that of the call)

A failure is recorded as a `Failure` on the episode by the rollout; it is never a reward, and never zero.
`Misconfigured` is none of these: it is the caller's fault, found out by asking somebody else.
"""

import traceback
from asyncio import CancelledError
from enum import StrEnum
from types import TracebackType

from pydantic import BaseModel, ConfigDict

__all__ = [
    "AgentFailure",
    "Boundary",
    "ContextFull",
    "DeadlineExceeded",
    "EnvgymError",
    "EnvironmentFailure",
    "Failure",
    "GraderFailure",
    "HostLost",
    "InfrastructureFailure",
    "LearnerDied",
    "Misconfigured",
    "Overloaded",
    "PoolFull",
    "ReplayDiverged",
    "SandboxDied",
    "SandboxUnavailable",
    "SnapshotGone",
    "StoreCorrupt",
    "WorkersLost",
    "boundary",
]


class Boundary(StrEnum):
    """Which party broke."""

    AGENT = "agent"
    ENVIRONMENT = "environment"
    GRADER = "grader"
    INFRASTRUCTURE = "infrastructure"


class EnvgymError(Exception):
    """Root of the world's faults."""

    boundary: Boundary = Boundary.INFRASTRUCTURE


class AgentFailure(EnvgymError):
    """The agent program or the policy behind it broke."""

    boundary = Boundary.AGENT


class Overloaded(AgentFailure):
    """The server behind the policy takes no more for now (HTTP 429, 503), and did not within the time."""


class ContextFull(AgentFailure):
    """The conversation is longer than the agent's context; `play` ends the episode with `CONTEXT_LIMIT`."""


class Misconfigured(ValueError):
    """What was configured (a key, an address, a model's name, a price) is refused, and would be in every episode.

    It ends the run: no episode comes of it, and what had begun goes on after it was mended.
    """


class EnvironmentFailure(EnvgymError):
    """An environment's own code raised, or broke its contract."""

    boundary = Boundary.ENVIRONMENT


class ReplayDiverged(EnvironmentFailure):
    """Replaying recorded actions reached another state than the recorded one."""


class GraderFailure(EnvgymError):
    """The grader reached no verdict."""

    boundary = Boundary.GRADER


class InfrastructureFailure(EnvgymError):
    """What everything stands on broke: a sandbox, a store, a daemon."""


class SandboxDied(InfrastructureFailure):
    """The sandbox is gone; nothing more can be asked of it."""


class SandboxUnavailable(InfrastructureFailure):
    """This backend cannot run on this host; the message names what is missing and the fix."""


class LearnerDied(InfrastructureFailure):
    """A process that a learner is divided over is gone or broke, and its work cannot be finished without it."""


class HostLost(InfrastructureFailure):
    """A process on another host that played or sampled is gone, or does not answer; what it did is to be redone."""


class WorkersLost(InfrastructureFailure):
    """Nobody is left to play, and nobody can be begun in their place; the message says what was lost."""


class PoolFull(InfrastructureFailure):
    """A pool of sandboxes had no room for one within the time; the message says what is used by whom."""


class SnapshotGone(InfrastructureFailure):
    """The snapshot was released, or never existed on this host."""


class StoreCorrupt(InfrastructureFailure):
    """A stored record fails its checksum; the message names file and offset."""


class DeadlineExceeded(EnvgymError):
    """A call outlived its deadline.

    `what` names the call, `limit_s` the bound; the boundary is that of the call.
    """

    def __init__(self, what: str, limit_s: float, boundary: Boundary = Boundary.ENVIRONMENT) -> None:
        super().__init__(f"{what} did not finish within its deadline of {limit_s:g} s")
        self.what = what
        self.limit_s = limit_s
        self.boundary = boundary


class Failure(BaseModel):
    """What is stored of a world's fault: boundary, kind (class name), message, and where it happened."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    boundary: Boundary
    kind: str
    message: str
    where: str
    turn: int
    trace: str = ""

    @classmethod
    def of(cls, error: EnvgymError, *, where: str, turn: int) -> "Failure":
        """Record `error`, raised in `where` ("reset", "step", "act", ...) after `turn` complete turns."""
        trace = "".join(traceback.format_exception(error))[-4000:]
        return cls(
            boundary=error.boundary,
            kind=type(error).__name__,
            message=str(error),
            where=where,
            turn=turn,
            trace=trace,
        )


_WRAP: dict[Boundary, type[EnvgymError]] = {
    Boundary.AGENT: AgentFailure,
    Boundary.ENVIRONMENT: EnvironmentFailure,
    Boundary.GRADER: GraderFailure,
    Boundary.INFRASTRUCTURE: InfrastructureFailure,
}


_NEVER = (EnvgymError, CancelledError, KeyboardInterrupt, GeneratorExit)
"""What is nobody's fault, or already knows whose it is."""


class boundary:  # reads as a statement: ``with boundary(...)``
    """Attribute whatever escapes the block to `party`.

    An `EnvgymError` passes unchanged (it already knows whose fault it is); anything else becomes the error class
    of `party`, chained, with `what` in its message: a SystemExit too, which would end the whole run without a
    word. Cancellation and an interrupt pass through, and so do the classes in `passing`. It is a class and not a
    generator because every recorded step enters two of them.
    """

    __slots__ = ("_party", "_passing", "_what")

    def __init__(self, party: Boundary, what: str, *, passing: tuple[type[Exception], ...] = ()) -> None:
        self._party, self._what = party, what
        self._passing: tuple[type[BaseException], ...] = (*_NEVER, *passing) if passing else _NEVER

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, self._passing):
            return
        raise _WRAP[self._party](f"{self._what}: {type(error).__name__}: {error}") from error
