"""Forked values: states of played episodes are gone back to and continued, to see what they are worth.

Every continuation is an episode of the same group, a child of the one it left, so credit reads them like any others
(`envgym.credit.forked`). A world that cannot be brought back, or breaks, is a continuation that failed.
"""

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envgym.arguments import checked_count
from envgym.clean_up import close_both, end_all, release_all
from envgym.credit import Ledger, nodes
from envgym.credit.tree import returns_at_states
from envgym.deadlines import deadline
from envgym.env import Env
from envgym.episode import Began, Episode, ForkPoint, Group, Unfinished
from envgym.errors import Boundary, EnvgymError, Failure, boundary
from envgym.oracle.choosing import Spot
from envgym.policy import Agent
from envgym.regain import regain
from envgym.rollout import Origin, Rollout, branch, play, unplayed

__all__ = ["Grown", "Measured", "Place", "Worth", "grow", "measured", "worth"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """How a group's worlds and agents are made again.

    make_env: a fresh environment of the group's task. make_agent: ``make_agent(seed)``, the agent that an episode
    of that seed had. future: what a continuation's world has in store. "same": what the original had (the world is
    forked), so a value is that of this very future, and chance that is not yet seen counts as known. "fresh": the
    world starts from a snapshot with a seed of its own, which draws chance anew in worlds that honour it.
    """

    make_env: Callable[[], Coroutine[Any, Any, Env]]
    make_agent: Callable[[int], Agent]
    future: Literal["fresh", "same"] = "fresh"


@dataclass(frozen=True, slots=True)
class Grown:
    """Groups with their continuations, and what those cost: sampled tokens, turns, seconds of the clock."""

    groups: tuple[Group, ...]
    tokens: int
    turns: int
    seconds: float


async def grow(
    groups: Sequence[Group],
    spots: Sequence[Spot],
    place: Callable[[Group], Place],
    *,
    rollout: Rollout,
    seed: int = 0,
    at_once: int = 16,
) -> Grown:
    """Play the continuations of `spots`, at most `at_once` spots at a time, and add them to their groups.

    Their seeds are a function of (seed, episode, turn, number). Raises ValueError for a spot that is not a turn of
    an episode that was played from its beginning.
    """
    checked_count("at_once", at_once, least=1)
    for spot in spots:
        _checked(groups, spot)
    gate, started = asyncio.Semaphore(at_once), perf_counter()

    async def one(spot: Spot) -> tuple[Episode, ...]:
        async with gate:
            group = groups[spot.group]
            return await _continued(group, spot, place(group), rollout, seed)

    found = await asyncio.gather(*(one(spot) for spot in spots))
    grown = [list(group) for group in groups]
    for spot, children in zip(spots, found, strict=True):
        grown[spot.group] += children
    new = [episode for children in found for episode in children]
    return Grown(
        tuple(Group(group.task_id, tuple(members)) for group, members in zip(groups, grown, strict=True)),
        sum(episode.sampled_tokens for episode in new),
        sum(len(episode.turns) for episode in new),
        perf_counter() - started,
    )


def _checked(groups: Sequence[Group], spot: Spot) -> None:
    if not 0 <= spot.group < len(groups):
        raise ValueError(f"{spot}: there are {len(groups)} groups")
    found = next((episode for episode in groups[spot.group] if episode.id == spot.episode), None)
    if found is None or found.parent is not None or not 0 <= spot.turn < len(found.turns):
        raise ValueError(f"{spot} is no turn of an episode that was played from its beginning in that group")


async def _continued(group: Group, spot: Spot, place: Place, rollout: Rollout, seed: int) -> tuple[Episode, ...]:
    """The continuations of one turn: the world and the agent are brought there once, and go on `times` times."""
    owner = next(episode for episode in group if episode.id == spot.episode)
    at = Origin(
        f"{owner.id}/{spot.turn}",
        owner.seed,
        ForkPoint(owner.id, spot.turn),
        owner.group,
        step=replace((owner.root, *(turn.step for turn in owner.turns))[spot.turn], reward=None),
    )
    code = zlib.crc32(owner.id.encode())
    seeds = [
        int(np.random.SeedSequence([seed, code, spot.turn, number]).generate_state(1)[0])
        for number in range(spot.times)
    ]
    started, env, agent = perf_counter(), None, None
    try:
        try:
            with boundary(Boundary.INFRASTRUCTURE, f"making the environment of task {group.task_id!r}"):
                env = await deadline(place.make_env(), rollout.limits.reset_s, "make", Boundary.INFRASTRUCTURE)
            agent = place.make_agent(owner.seed)
            found = Unfinished(Began.of(owner), list(owner.turns[: spot.turn]))
            await regain(env, agent, found, rollout.limits)
        except EnvgymError as error:
            failure = Failure.of(error, where="fork", turn=0)
            origins = [replace(at, episode_id=f"{at.episode_id}/{k}", seed=one) for k, one in enumerate(seeds)]
            return tuple(unplayed(group.task_id, origin, rollout, failure, started) for origin in origins)
        if place.future == "same":
            return await branch(env, agent, at=at, seeds=seeds, rollout=rollout)
        return await _anew(env, agent, at, seeds, place, rollout)
    finally:
        await close_both(env, agent, rollout.limits.close_s)


async def _anew(
    env: Env, agent: Agent, at: Origin, seeds: Sequence[int], place: Place, rollout: Rollout
) -> tuple[Episode, ...]:
    """One continuation for each seed, each in a world that begins at a snapshot of this one."""
    limits, started = rollout.limits, perf_counter()
    try:
        with boundary(Boundary.ENVIRONMENT, "snapshot"):
            stored = await deadline(env.snapshot(), limits.step_s, "snapshot", Boundary.ENVIRONMENT)
    except EnvgymError as error:
        failure = Failure.of(error, where="snapshot", turn=0)
        return tuple(
            unplayed(
                env.task.id, replace(at, episode_id=f"{at.episode_id}/{k}", seed=seed), rollout, failure, started
            )
            for k, seed in enumerate(seeds)
        )

    async def one(number: int, seed: int) -> Episode:
        origin = replace(at, episode_id=f"{at.episode_id}/{number}", seed=seed)
        other: Env | None = None
        forked: Agent | None = None
        try:
            try:
                with boundary(Boundary.INFRASTRUCTURE, f"making the environment of task {env.task.id!r}"):
                    made = await deadline(place.make_env(), limits.reset_s, "make", Boundary.INFRASTRUCTURE)
                other = made
                with boundary(Boundary.ENVIRONMENT, "reset"):
                    reset = made.reset(seed=seed, start=stored)
                    await deadline(reset, limits.reset_s, "reset", Boundary.ENVIRONMENT)
                with boundary(Boundary.AGENT, "fork"):
                    forked = agent.fork(seed=seed)
            except EnvgymError as error:
                return unplayed(env.task.id, origin, rollout, Failure.of(error, where="fork", turn=0), started)
            # what a reset says of a snapshot is the environment's affair: the agent goes on from the recorded step
            return await play(made, {forked.name: forked}, origin=origin, rollout=rollout)
        finally:
            await close_both(other, forked, limits.close_s)

    playing = [asyncio.create_task(one(number, seed)) for number, seed in enumerate(seeds)]
    try:
        return tuple(await asyncio.gather(*playing))
    finally:
        await end_all(playing)
        await release_all(env, [stored], limits)


@dataclass(frozen=True, eq=False)
class Measured:
    """What forks say of states [M] and turns [N] of a ledger; NaN where nobody forked.

    value_M, error_M: the mean return of the continuations from a state, and its standard error (NaN for fewer than
    two). advantage_N, advantage_error_N: of turns between two states that are known so, or an end.
    """

    value_M: Floats
    error_M: Floats
    advantage_N: Floats
    advantage_error_N: Floats

    @property
    def variance(self) -> float:
        """The mean squared standard error of the advantages; NaN without one."""
        known = ~np.isnan(self.advantage_error_N)
        return float(np.mean(self.advantage_error_N[known] ** 2)) if known.any() else np.nan


def measured(ledger: Ledger, *, gamma: float = 1.0) -> Measured:
    """The values and advantages that the forks in a ledger measure, with their errors.

    An advantage is ``r + gamma * V(after) - V(before)``: that of what happened, the world's chance included. Where
    the world is not deterministic it scatters around the action's.
    Source: Monte-Carlo values of intermediate states, VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679).
    """
    at = nodes(ledger)
    begins = (ledger.turns[:-1] + np.arange(ledger.rows))[ledger.fork_G >= 0]
    earned = returns_at_states(ledger, gamma=gamma, truncation=0.0)[begins]
    places, values = at[begins][~np.isnan(earned)], earned[~np.isnan(earned)]
    size = len(at)
    count = np.bincount(places, minlength=size)
    mean = np.bincount(places, values, minlength=size) / np.maximum(count, 1)
    square = np.bincount(places, (values - mean[places]) ** 2, minlength=size)
    error = np.sqrt(square / np.maximum(count - 1, 1) / np.maximum(count, 1))
    value_M = np.where(count > 0, mean, np.nan)[at]
    error_M = np.where(count > 1, error, np.nan)[at]
    ended = ledger.last_G[ledger.alive_G & ~ledger.truncated_G]
    value_M[ended], error_M[ended] = 0.0, 0.0
    before, after = ledger.before_N, ledger.before_N + 1
    return Measured(
        value_M,
        error_M,
        ledger.reward_N + gamma * value_M[after] - value_M[before],
        np.sqrt(error_M[before] ** 2 + (gamma * error_M[after]) ** 2),
    )


@dataclass(frozen=True, slots=True)
class Worth:
    """What forks cost, beside what they take off the variance of an advantage.

    variance: the mean squared standard error of the measured advantages. outcome_variance: that of outcomes around
    their group's mean, the error that group-relative credit gives each turn. reduction: how many times less.
    """

    tokens: int
    turns: int
    seconds: float
    variance: float
    outcome_variance: float

    @property
    def reduction(self) -> float:
        """outcome_variance / variance; NaN where either is not known."""
        return self.outcome_variance / self.variance if self.variance > 0 else np.nan


def worth(grown: Grown) -> Worth:
    """The worth of continuations that were played; NaN for a variance that nothing measures."""
    ledger = Ledger.of(grown.groups)
    held = (ledger.fork_G < 0) & ~np.isnan(ledger.outcome_G)
    group, outcomes = ledger.group_G[held], ledger.outcome_G[held]
    count = np.bincount(group)
    mean = np.bincount(group, outcomes) / np.maximum(count, 1)
    free = int((count - 1)[count > 1].sum())
    square = float(((outcomes - mean[group]) ** 2).sum())
    return Worth(
        grown.tokens, grown.turns, grown.seconds, measured(ledger).variance, square / free if free else np.nan
    )
