"""`textarena-expert`: it reads what is shown, wins, and says so where it cannot play."""

import asyncio
from typing import Any

import pytest
from envgym_environments.experts import expert_of
from envgym_environments.text import arena
from envgym_environments.text.arena_boards import (
    car_move,
    hanoi_move,
    lake_move,
    lights_move,
    peg_move,
    sudoku_filled,
)
from envgym_environments.text.arena_expert import KNOWN, expert

from envgym.env import Step
from envgym.errors import AgentFailure, EnvironmentFailure
from envgym.messages import Action
from envgym.registry import make, spec
from envgym.task import Task
from envgym.testing.fakes import ScriptedAgent

QUICK = (
    "GuessTheNumber-v0-hardcore",
    "Mastermind-v0",
    "FrozenLake-v0-hardcore",
    "TowerOfHanoi-v0",
    "ThreeCardMonte-v0",
)
PLAYED = [game for game in arena.GAMES if game.partition("-v0")[0] in KNOWN]


async def _end(game: str, index: int, *, agent: Any = None) -> Step:
    task = arena.arena_tasks(game=game)[index]
    env, player = make(arena.SPEC, task), agent or expert(task)
    step = await env.reset(seed=index)
    for _ in range(300):
        if step.stop is not None:
            break
        step = await env.step((await player.act(step)).action)
    await env.close()
    return step


@pytest.mark.parametrize(
    "game", [game if game in QUICK else pytest.param(game, marks=pytest.mark.slow) for game in PLAYED]
)
@pytest.mark.timeout(300)
def test_the_expert_wins_by_what_is_shown_and_one_line_again_and_again_does_not(game: str) -> None:
    for index in (1, 2):
        won = asyncio.run(_end(game, index))
        assert (won.stop, won.reward, won.channels["reward"]) == ("goal", won.reward, won.reward)
        assert won.reward is not None
        assert won.reward >= (10.0 if game.startswith("Set") else 1.0)
        lost = asyncio.run(_end(game, index, agent=ScriptedAgent(["[9 9 9]"] * 300)))
        assert lost.reward is not None
        assert (lost.stop, lost.reward < won.reward) == ("lost", True)


def test_solvers_find_the_way_or_say_that_there_is_none() -> None:
    assert hanoi_move({"A": [2, 1], "B": [], "C": []}, "C") == ("A", "B")
    assert hanoi_move({"A": [], "B": [], "C": [2, 1]}, "C") is None
    assert lake_move(["PH", "  ", "HG"]) == "down"
    assert lake_move(["PH", "HG"]) is None
    assert lights_move({(0, 0), (0, 1), (1, 0)}, 3) == (0, 0)
    assert lights_move(set(), 5) is None
    assert peg_move(frozenset({1, 2})) == (1, 4)
    assert peg_move(frozenset({1, 15})) is None
    assert car_move(["......", "......", "XX..A.", "....A.", "......", "......"]) == "A+"
    assert car_move(["....A.", "....A.", "XX..A.", "....A.", "....A.", "....A."]) is None
    solved = tuple(tuple((3 * (r % 3) + r // 3 + c) % 9 + 1 for c in range(9)) for r in range(9))
    assert sudoku_filled(((0,) * 8 + solved[0][8:], *solved[1:])) == solved
    stuck = ((1, 2, 3, 4, 5, 6, 7, 8, 0), *((0,) * 8 + (9 * (r == 1),) for r in range(1, 9)))
    assert sudoku_filled(stuck) is None  # the last cell of the first row has no digit left


def test_an_expert_says_in_a_line_that_a_task_is_not_of_its_own() -> None:
    with pytest.raises(ValueError, match="is no game that textarena-expert can play"):
        expert(arena.arena_tasks(game="Bandit-v0")[0])

    def unpack(task: Task, seen: Any) -> str:
        first, second = seen[-1].text.split(":")
        return first + second

    agent = expert_of(unpack)(Task(id="other/1", prompt=""))
    with pytest.raises(AgentFailure, match=r"cannot play task 'other/1' \(ValueError: .*named after"):
        asyncio.run(agent.act(Step()))


def test_a_game_that_ends_without_a_reward_is_a_failure() -> None:
    class Silent:
        def step(self, said: str) -> tuple[bool, dict[str, Any]]:
            return True, {}

        def close(self) -> tuple[dict[int, float], dict[str, Any]]:
            return {}, {}

    async def play() -> None:
        env = arena.Arena(arena.arena_tasks(game="GuessTheNumber-v0")[0])
        await env.reset(seed=0)
        env._game = Silent()
        await env.step(Action.say("[1]"))

    with pytest.raises(EnvironmentFailure, match="GuessTheNumber-v0 is over and says no reward"):
        asyncio.run(play())


def test_the_expert_is_registered() -> None:
    from envgym.registry import find

    assert find("agents", "textarena-expert")(spec("textarena").tasks(game="Set-v0")[0], seed=0)
