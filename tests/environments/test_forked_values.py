"""Forked values of real environments: their truth known by a solver, or their agent a script."""

import asyncio

import numpy as np
import pytest
from envgym_agents.scripted import RandomAgent
from envgym_environments.text.guess import SPEC

from envgym.credit import Ledger, group_mean, outcome, spread
from envgym.env import Env
from envgym.episode import Group
from envgym.limits import Limits
from envgym.oracle.bench import Candidate
from envgym.oracle.choosing import Spot
from envgym.oracle.forking import Place, grow, measured
from envgym.oracle.stored import held
from envgym.registry import make
from envgym.rollout import Origin, Rollout, play

LONG = Rollout(limits=Limits(turns=50))


async def _new(tries: int = 4) -> Env:
    return make(SPEC, SPEC.tasks(1, most=8, tries=tries)[0])


def _agent(seed: int) -> RandomAgent:
    return RandomAgent(seed + 1000)  # the world draws its number from the same seed, and would be guessed at once


async def _played(seeds: range, tries: int = 4) -> Group:
    members = []
    for seed in seeds:
        env = await _new(tries)
        origin = Origin(f"e{seed}", seed)
        members.append(await play(env, {"agent": _agent(seed)}, origin=origin, rollout=LONG))
    return Group(members[0].task_id, tuple(members))


def random_guesser(low: int, high: int, tries: int, secret: int) -> float:
    """The chance to win of one who guesses at random among what is possible, and the secret is known to us."""
    if not tries:
        return 0.0
    size = high - low + 1
    later = [
        random_guesser(guess + 1, high, tries - 1, secret) if guess < secret
        else random_guesser(low, guess - 1, tries - 1, secret)
        for guess in range(low, high + 1) if guess != secret
    ]  # fmt: skip
    return (1 + sum(later)) / size


@pytest.mark.slow
@pytest.mark.parametrize("future", ["fresh", "same"])
def test_forks_of_guess_measure_what_its_hidden_number_makes_true(future: str):
    group = asyncio.run(_played(range(2)))
    spots = [Spot(0, episode.id, turn, 150) for episode in group for turn in range(len(episode.turns))]
    there = Place(_new, _agent, future)  # type: ignore[arg-type]
    found = asyncio.run(grow([group], spots, lambda _group: there, rollout=LONG, seed=1))
    ledger = Ledger.of(found.groups)
    values = measured(ledger)
    keys = [step.state_key for step in ledger.all_states()]
    for row in range(2):
        secret = int(np.random.default_rng([group.episodes[row].seed, 0]).integers(1, 9))
        for state in range(ledger.turns[row] + row, ledger.last_G[row]):
            bounds, tries = keys[state].split("/")
            low, high = bounds.split("-")
            true = random_guesser(int(low), int(high), int(tries), secret)
            assert abs(values.value_M[state] - true) <= 4.5 * values.error_M[state] + 0.03
    assert all(episode.failure is None for episode in found.groups[0])


def test_an_agent_that_says_something_else_gives_failed_continuations():
    played = asyncio.run(_played(range(10)))
    one = next(episode for episode in played if len(episode.turns) >= 3)
    group = Group(played.task_id, (one,))
    there = Place(_new, lambda seed: _agent(seed + 50))
    found = asyncio.run(grow([group], [Spot(0, one.id, 2, 2)], lambda _group: there, rollout=LONG))
    assert [fork.failure and fork.failure.kind for fork in found.groups[0].episodes[1:]] == ["ReplayDiverged"] * 2


def test_bias_and_variance_of_stored_episodes_are_told_apart_by_halves_of_their_groups():
    group = asyncio.run(_played(range(12), tries=2))
    spots = [Spot(0, one.id, turn, 4) for one in group for turn in range(len(one.turns))]
    there = Place(lambda: _new(2), _agent)
    found = asyncio.run(grow([group], spots, lambda _group: there, rollout=LONG, seed=1))
    peers = outcome() >> group_mean() >> spread()
    nothing = 0.0 * (outcome() >> group_mean()) >> spread()
    candidates = [Candidate("nothing", nothing), Candidate("peers", peers), Candidate("peers", peers, "forks")]
    none, alone, forked = held(found.groups, candidates)
    assert none.variance == 0
    assert none.bias2 == pytest.approx(none.power)  # what says nothing is wrong by what is true
    assert none.mse == pytest.approx(none.power)
    assert len({one.reward for one in group}) == 2  # some won, some lost
    for one in (alone, forked):
        assert one.variance > 0  # other halves, other means
        assert np.isfinite(one.bias2)
    assert held(found.groups, candidates)[1] == alone  # the cuts are the same each time
    pair = Group(group.task_id, tuple(one for one in found.groups[0] if one.id in ("e0", "e1")))
    assert np.isnan(held([pair], candidates)[1].variance)
