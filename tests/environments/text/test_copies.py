"""Forks of peers' games are copies: nothing is played again, and laws j and k hold for every one of them."""

import asyncio
from collections.abc import Callable

import pytest
from envgym_environments.text import arena, textworld_games
from envgym_environments.text.arena_expert import KNOWN, expert

from envgym import Replaying
from envgym.env import Env, Playable, Step, observation_digest
from envgym.messages import Action
from envgym.policy import Agent


async def _played(env: Env, step: Step, agent: Agent, turns: int) -> tuple[list[Action], list[Step]]:
    """What an agent does in so many turns, and what comes of it."""
    actions: list[Action] = []
    steps = [step]
    while steps[-1].stop is None and len(actions) < turns:
        actions.append((await agent.act(steps[-1])).action)
        steps.append(await env.step(actions[-1]))
    return actions, steps[1:]


async def _forks(make: Callable[[], Playable], agent: Agent, *, before: int, after: int) -> int:
    """Fork after some turns; the fork goes its way, then one of it, then the first the same way. Turns compared."""
    made: list[Playable] = []

    def counted() -> Playable:
        made.append(make())
        return made[-1]

    env = Replaying(counted)
    _, steps = await _played(env, root := await env.reset(seed=5), agent, before)
    fork = await env.fork()
    actions, futures = await _played(fork, steps[-1] if steps else root, agent, after)
    again = await env.fork()  # of the parent, after its fork has gone on
    for other in (again, env):
        found = [await other.step(action) for action in actions]
        assert list(map(observation_digest, found)) == list(map(observation_digest, futures))
    assert len(made) == 1, "no other game was begun, so that nothing was played again"
    snapshot = await env.snapshot()
    assert (snapshot.restore, len(snapshot.actions), len(snapshot.digests)) == (
        "replay", len(steps) + len(actions), len(steps) + len(actions) + 1,
    )  # fmt: skip
    for one in (env, fork, again):
        await one.close()
    return len(actions)


PLAYED = [game for game in arena.GAMES if game.partition("-v0")[0] in KNOWN]


LONG = ("Sokoban-v0-medium", "Sudoku-v0-hard", "Mastermind-v0-extreme", "RushHour-v0")


@pytest.mark.parametrize("game", [pytest.param(one, marks=[pytest.mark.slow] * (one in LONG)) for one in PLAYED])
@pytest.mark.timeout(300)
def test_a_game_of_textarena_is_forked_by_a_copy(game: str) -> None:
    short = game.startswith(
        ("Countdown", "Crosswords", "Cryptarithm", "Set-", "ThreeCardMonte", "Sudoku", "LogicPuzzle")
    )
    for task in arena.arena_tasks(game=game)[1:4]:  # a secret may be found by the second guess
        compared = asyncio.run(
            _forks(lambda task=task: arena.Arena(task), expert(task), before=0 if short else 2, after=4)
        )
        if compared:
            break
    assert compared > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_game_of_textworld_is_forked_by_a_copy_of_its_interpreter(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    task = textworld_games.textworld_tasks(rooms=2, objects=4, quest=4)[3]

    async def keys(*said: str) -> list[str]:
        game = textworld_games.TextWorld(task)
        steps = [await game.reset(seed=0), *[await game.step(Action.say(one)) for one in said]]
        await game.close()
        return [step.state_key for step in steps]

    walk = textworld_games.expert(task)
    first = asyncio.run(textworld_games.TextWorld(task).reset(seed=0))
    there = asyncio.run(walk.act(first)).action.text
    looked, moved = asyncio.run(keys("look", "inventory")), asyncio.run(keys(there))
    assert looked[0] == looked[1] == looked[2] == moved[0] != moved[1], "looking changes nothing, an act does"
    player = textworld_games.expert(task)
    assert asyncio.run(_forks(lambda: textworld_games.TextWorld(task), player, before=2, after=4)) >= 2
