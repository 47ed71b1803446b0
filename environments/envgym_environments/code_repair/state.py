"""An episode's own state as plain data: what a snapshot stores beside the sandbox's. No behaviour."""

from pydantic import BaseModel, ConfigDict

from envgym.sandbox import SandboxSnapshot

__all__ = ["CompactState", "FullState"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CompactState(_Frozen):
    """Where a compact episode is. Lines and fixes are numbered from 1, as the agent sees them.

    open: the line whose fixes are shown. pending: (line, fix) of the last edit that is in the source; kept: of
    those before it, where a task has several mistakes. verdict: what the tests said of it, "" before. tried: (line,
    fix) pairs whose tests failed. failing: the last failing set the agent saw. shown: the last observation.
    """

    localised: bool = False
    open: int | None = None
    pending: tuple[int, int] | None = None
    kept: tuple[tuple[int, int], ...] = ()
    verdict: str = ""
    tests_run: int = 0
    tried: tuple[tuple[int, int], ...] = ()
    failing: tuple[str, ...] = ()
    shown: str = ""
    ended: bool = False


class FullState(_Frozen):
    """Where an episode with the full tools is.

    undo: sandbox states to go back to, the newest last. forgotten: there were older ones, which are not kept.
    """

    tests_run: int = 0
    failing: tuple[str, ...] = ()
    undo: tuple[SandboxSnapshot, ...] = ()
    forgotten: bool = False
    shown: str = ""
    ended: bool = False
