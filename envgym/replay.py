"""Bringing an environment to the state of another: through a snapshot, or by playing the same actions again.

`Replaying` makes an `Env` of a `Playable`: it snapshots by recording the actions and forks by playing them again,
checked step by step. One that can be copied (`Copyable`) forks by its copy.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from envgym.env import Copyable, Env, Playable, Snapshot, Step, answered, observation_digest
from envgym.errors import ReplayDiverged
from envgym.messages import Action, ToolSpec

__all__ = ["Replaying", "as_env", "forked"]

E = TypeVar("E", bound=Env)


async def forked(env: Env, other: E) -> E:
    """`other`, a fresh environment of the same task, brought to the state of `env` through a snapshot.

    Whatever goes wrong closes `other` and is raised; the snapshot is released in any case.
    """
    try:
        snapshot = await env.snapshot()
        try:
            await other.reset(seed=snapshot.seed, start=snapshot)
        finally:
            await env.release(snapshot)
    except BaseException:
        await other.close()
        raise
    return other


class Replaying:
    """An `Env` over a `Playable`: snapshots are the recorded actions, forks copies, or they play them again.

    `make` builds one more independent `Playable` of the same task; `first`, when given, is played before any
    is made. A replayed step whose `observation_digest` differs from the recorded one raises ReplayDiverged (the
    environment is not deterministic).
    """

    def __init__(self, make: Callable[[], Playable], first: Playable | None = None) -> None:
        self._make = make
        self._inner = make() if first is None else first
        self.task = self._inner.task
        self._seed: int | None = None
        self._actions: list[Action] = []
        self._digests: list[str] = []
        self._undigested: list[Step] = []  # a digest costs as much as a recorded step, and few steps need theirs
        self._last: Step | None = None

    @property
    def uses_seed(self) -> bool | None:
        """What the environment inside says of its seed; None where it says nothing."""
        return getattr(self.inner, "uses_seed", None)

    @property
    def inner(self) -> Playable:
        """The environment being recorded."""
        return self._inner

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What actions may call."""
        return self._inner.tools

    @property
    def grader(self) -> Any:
        """The environment's own grader, or None."""
        return getattr(self._inner, "grader", None)

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """A fresh state, or the state of `start` reached by replay. Raises ReplayDiverged."""
        if start is not None:
            if start.restore != "replay" or start.task_id != self.task.id:
                raise ValueError(
                    f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task "
                    f"{start.task_id!r}; this environment needs a replay snapshot of the same task"
                )
            return await self._replay(start)
        self._seed, self._actions, self._digests = seed, [], []
        self._last = await self._inner.reset(seed=seed)
        self._undigested = [self._last]
        return self._last

    async def step(self, action: Action) -> Step:
        """Apply and record an action."""
        if self._last is None:
            raise RuntimeError(f"step before reset in task {self.task.id!r}: call reset(seed=...) first")
        if self._last.stop is not None:
            raise RuntimeError(f"step after the end ({self._last.stop}) in task {self.task.id!r}: call reset first")
        self._last = await self._inner.step(action)
        self._actions.append(action)
        self._undigested.append(self._last)
        return self._last

    async def snapshot(self) -> Snapshot:
        """The seed and the actions so far, with a digest of every step."""
        if self._seed is None:
            raise RuntimeError(f"snapshot before reset in task {self.task.id!r}: there is no state yet")
        return Snapshot(
            restore="replay",
            task_id=self.task.id,
            seed=self._seed,
            actions=tuple(self._actions),
            digests=tuple(self._known_digests()),
        )

    async def release(self, snapshot: Snapshot) -> None:
        """A replay snapshot owns nothing."""

    async def fork(self) -> "Replaying":
        """A new environment in the same state: a copy of one that can be copied, else brought there by replay."""
        if not isinstance(self._inner, Copyable):
            return await forked(self, Replaying(self._make))
        other = Replaying(self._make, first=self._inner.copied())
        other._seed, other._last = self._seed, self._last
        other._actions, other._digests = list(self._actions), list(self._digests)
        other._undigested = list(self._undigested)
        return other

    async def close(self) -> None:
        """Close the inner environment."""
        await self._inner.close()

    async def _replay(self, start: Snapshot) -> Step:
        step = answered(await self.reset(seed=start.seed))
        self._check(start, 0)
        for index, action in enumerate(start.actions):
            step = answered(await self.step(action))
            self._check(start, index + 1)
        return step

    def _known_digests(self) -> list[str]:
        self._digests += map(observation_digest, self._undigested)
        self._undigested.clear()
        return self._digests

    def _check(self, start: Snapshot, index: int) -> None:
        found = self._known_digests()[index]
        if found != start.digests[index]:
            raise ReplayDiverged(
                f"replay of task {self.task.id!r} diverged at step {index} of {len(start.actions)} "
                f"(digest {found} instead of {start.digests[index]}): the environment does not "
                "honour its seed or observes something that the world cannot repeat"
            )


def as_env(made: Env | Playable, again: Callable[[], Any]) -> Env:
    """`made` itself if it is an `Env`; a `Playable` in a `Replaying`, which gets more of its kind from `again`."""
    return made if isinstance(made, Env) else Replaying(again, first=made)
