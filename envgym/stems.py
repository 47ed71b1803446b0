"""Where episodes are forked while they are played, and the worlds that stand there until somebody goes on.

Before a turn whose state will be continued, the world and everybody who acts in it are forked (`Stem`). When the
episode has ended, its continuations fork the stem once more each, with draws of their own: nothing is played or
computed again of what they share. Where no stem stands (the world could not be forked then, or an earlier process
played the episode) the state is brought back by what was recorded. Which turns those are is a function of the
episode alone, so a later process finds the same. Nothing is played here.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Self

import numpy as np

from envgym.arguments import checked_count
from envgym.cast import Cast
from envgym.clean_up import close_all
from envgym.deadlines import deadline
from envgym.env import Env, Snapshot, Step
from envgym.episode import Began, Episode, ForkPoint, Turn, Unfinished
from envgym.errors import Boundary, EnvgymError, boundary
from envgym.limits import Limits
from envgym.regain import regain

__all__ = ["Branch", "Forking", "Stems"]

_LOG = logging.getLogger("envgym")


@dataclass(frozen=True, slots=True)
class Forking:
    """Which states of an episode are continued, and how often.

    points: most states of one episode. times: continuations of each. turns: how many turns all of an episode's
    continuations may be expected to take, each as many as the episode did from there on; 0: no bound.
    by: "uniform": any states, drawn by the episode's seed. "entropy": those before the turns that were least
    certain, by minus the log-probabilities of what was sampled. Sources: states of a path that are drawn, VinePPO
    (Kazemnejad et al. 2024, arXiv 2410.01679); forks where the policy is undecided, ARPO (Dong et al. 2025,
    arXiv 2507.19849), TreeRL (Hou et al. 2025, arXiv 2506.11902).
    """

    points: int
    times: int = 1
    by: Literal["uniform", "entropy"] = "uniform"
    turns: int = 0

    def __post_init__(self) -> None:
        checked_count("points", self.points, least=0)
        checked_count("times", self.times, least=1)
        checked_count("turns", self.turns, least=0)
        if self.by not in ("uniform", "entropy"):
            raise ValueError(f"by is {self.by!r}; states are chosen by 'uniform' or 'entropy'")

    def rank(self, seed: int, turns: Sequence[Turn], at: int) -> float:
        """How much the state before turn `at` is wanted: the highest are. Not yet known is infinite.

        seed: of the episode; turns: those that it has played so far.
        """
        if self.by == "uniform":
            return float(np.random.default_rng([seed, 21, at]).random())
        total = 0.0
        for turn in turns[at:]:
            total -= float(turn.logprobs.sum())
            if not turn.thought:  # what was thought on the way to an action was said in the same state
                return total
        return float("inf")

    def best(self, seed: int, turns: Sequence[Turn], among: Sequence[int]) -> list[int]:
        """The `points` states among these that are wanted most, those first; of equal ones the earlier."""
        ranks = {at: self.rank(seed, turns, at) for at in among}
        return sorted(among, key=lambda at: (-ranks[at], at))[: self.points]

    def turns_of(self, episode: Episode) -> tuple[int, ...]:
        """The turns before which an episode is continued, in their order: of one whose world failed none."""
        if episode.failure is not None:
            return ()
        turns = episode.turns
        states = [at for at in range(len(turns)) if at == 0 or not turns[at - 1].thought]
        found, left = [], self.turns or np.inf
        for at in self.best(episode.seed, turns, states):
            takes = self.times * sum(not turn.thought for turn in turns[at:])
            if takes <= left:
                left -= takes
                found.append(at)
        return tuple(sorted(found))


@dataclass(slots=True)
class Stem:
    """A world and its actors as they were before a turn.

    planned: how many are to go on from here; tried: those that did, by their seeds. forking: how many are being
    forked from it right now.
    """

    env: Env
    cast: Cast
    limits: Limits
    planned: int
    tried: set[int] = field(default_factory=set)
    forking: int = 0

    async def close(self) -> None:
        """Give both back."""
        await close_all(self.env, self.cast.everyone, self.limits.close_s)


@dataclass(slots=True)
class Stems:
    """A context manager of the stems of some episodes; what still stands at its end is closed."""

    forking: Forking
    _held: dict[tuple[str, int], Stem] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop(list(self._held))

    def __len__(self) -> int:
        return len(self._held)

    async def keep(
        self, episode: str, seed: int, turns: Sequence[Turn], env: Env, cast: Cast, limits: Limits
    ) -> None:
        """A turn follows: leave a stem where its state may be among those that are continued, and drop others.

        A world that cannot be forked leaves none; whether its state can be had otherwise is seen when it is asked
        for.
        """
        here = len(turns)
        held = [at for name, at in self._held if name == episode]
        wanted = self.forking.best(seed, turns, [*held, here])
        if self.forking.by == "entropy":  # how this one compares is known when the turn is over
            wanted = [*self.forking.best(seed, turns, held), here]
        await self._drop([(episode, at) for at in held if at not in wanted])
        if here not in wanted:
            return
        forked: Env | None = None
        try:
            with boundary(Boundary.ENVIRONMENT, "fork"):
                forked = await deadline(env.fork(), limits.reset_s, "fork", Boundary.ENVIRONMENT)
            with boundary(Boundary.AGENT, "fork"):
                actors = cast.fork(seed=seed)
        except EnvgymError as error:
            _LOG.debug("episode %s: no fork before turn %d: %s", episode, here, error)
            await close_all(forked, (), limits.close_s)
            return
        self._held[episode, here] = Stem(forked, actors, limits, self.forking.times)

    async def end(self, episode: Episode) -> None:
        """An episode is over: only the stems of states that are continued stay."""
        wanted = self.forking.turns_of(episode)
        await self._drop([key for key in self._held if key[0] == episode.id and key[1] not in wanted])

    async def fork(self, at: ForkPoint, seed: int) -> tuple[Env, Cast] | None:
        """A world and actors that go on from there with draws of their own; None where no stem stands.

        seed: of the continuation, by which it is known when it tries again. Raises what the world or an agent
        raises. A stem is closed when each of those that were planned has tried to go on from it (room is short
        where one could not), and nobody is being forked from it.
        """
        key = (at.episode, at.turn)
        stem = self._held.get(key)
        if stem is None:
            return None
        env: Env | None = None
        stem.forking += 1
        try:
            with boundary(Boundary.ENVIRONMENT, "fork"):
                env = await deadline(stem.env.fork(), stem.limits.reset_s, "fork", Boundary.ENVIRONMENT)
            with boundary(Boundary.AGENT, "fork"):
                return env, stem.cast.fork(seed=seed)
        except BaseException:
            await close_all(env, (), stem.limits.close_s)
            raise
        finally:
            stem.tried.add(seed)
            stem.forking -= 1
            if len(stem.tried) >= stem.planned and not stem.forking:
                await self._drop([key])

    async def _drop(self, keys: Sequence[tuple[str, int]]) -> None:
        for key in keys:
            stem = self._held.pop(key, None)
            if stem is not None:
                await stem.close()


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a continuation begins. before: its parent as it was recorded up to there; step: what was said last."""

    at: ForkPoint
    before: Unfinished
    step: Step
    stems: Stems

    @classmethod
    def of(cls, episode: Episode, turn: int, stems: Stems) -> "Branch":
        """Before that turn of an episode that was played from its beginning."""
        turns = episode.turns[:turn]
        step = replace(turns[-1].step if turns else episode.root, reward=None)  # which the parent has earned
        return cls(ForkPoint(episode.id, turn), Unfinished(Began.of(episode), list(turns)), step, stems)

    async def regain(
        self, env: Env, cast: Cast, *, seed: int, limits: Limits, start: Snapshot | None = None
    ) -> Cast:
        """Bring a fresh world there; the actors, with draws of their own from there on. Those of `cast` are closed.

        Raises ReplayDiverged where the world or an agent does not repeat itself.
        """
        await regain(env, cast, self.before, limits, start=start)
        with boundary(Boundary.AGENT, "fork"):
            forked = cast.fork(seed=seed)
        await close_all(None, cast.everyone, limits.close_s)
        return forked
