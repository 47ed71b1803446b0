"""Tasks of peers, unmodified: reasoning-gym, TextArena, TextWorld."""

import asyncio
import json
from pathlib import Path
from random import getstate
from typing import Any

import pytest
from envgym_environments.text import arena, arena_expert, reasoning, textworld_games

from envgym.env import Step, StopReason
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import make
from envgym.task import TaskSet
from envgym.testing import check_env_sync, check_task_sync, check_tasks

WITHOUT_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
QUICK = ("chain_sum", "leg_counting", "spell_backward", "word_sorting", "base_conversion", "caesar_cipher")


def test_reasoning_gym_meets_both_contracts() -> None:
    tasks = reasoning.reasoning_tasks(12, generators=QUICK)
    check_tasks(tasks, splits=("train", "heldout"))
    check_env_sync(lambda: make(reasoning.SPEC, tasks[0]))
    check_task_sync(tasks, lambda task: make(reasoning.SPEC, task), reasoning.expert, seeds=(0,))
    assert reasoning.reasoning_tasks(None, generators="chain_sum")[123_456].prompt
    with pytest.raises(ValueError, match="chain_summ"):
        reasoning.reasoning_tasks(generators="chain_summ")


def test_the_second_thousand_of_a_generator_is_not_the_first_one_again() -> None:
    """The library draws by seed and place together: data sets of the seeds 0 and 1 have 999 entries in common."""
    tasks = reasoning.reasoning_tasks(None, generators="chain_sum")
    first, second = ({tasks[start + k].prompt for k in range(50)} for start in (0, 1000))
    assert len(first) == len(second) == 50
    assert not first & second


def test_levels_are_the_librarys_own_and_what_has_none_is_left_out_or_refused() -> None:
    easy, hard = (reasoning.reasoning_tasks(20, generators="chain_sum", level=level) for level in (0, 3))
    assert sum(len(task.prompt) for task in easy) < sum(len(task.prompt) for task in hard)
    few = reasoning.reasoning_tasks(3, generators="chain_sum", level=3)
    check_task_sync(few, lambda task: make(reasoning.SPEC, task), reasoning.expert, seeds=(0,))
    without = {"acre", "gsm_symbolic", "list_functions", "knight_swap"}  # the last one's makes no valid level
    names = {reasoning.GENERATORS[k] for k in range(len(reasoning.GENERATORS))}
    known = {name for name in names if reasoning._has(name, 1)}
    assert names - known >= without
    assert len(known) >= 100
    for name in without:
        with pytest.raises(ValueError, match=f"{name}.*no level 1"):
            reasoning.reasoning_tasks(generators=name, level=1)
    with pytest.raises(ValueError, match="level is -1"):
        reasoning.reasoning_tasks(level=-1)
    assert "level" not in reasoning.reasoning_tasks(1, generators="chain_sum")[0].metadata


async def _answered(task: Any) -> Step:
    env, agent = make(reasoning.SPEC, task), reasoning.expert(task)
    return await env.step((await agent.act(await env.reset(seed=0))).action)


async def _silent(task: Any) -> Step:
    env = make(reasoning.SPEC, task)
    await env.reset(seed=0)
    return await env.step(Action.say(""))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_generator_of_reasoning_gym_is_played_and_scores_its_own_answer_full() -> None:
    assert len(reasoning.GENERATORS) >= 105
    tasks = reasoning.reasoning_tasks(len(reasoning.GENERATORS))
    named = [(str(task.metadata["generator"]), task) for task in tasks]
    assert {name for name, task in named if asyncio.run(_answered(task)).reward != 1.0} == set()
    assert max(asyncio.run(_silent(task)).reward or 0.0 for _, task in named) <= 0.05  # as the library has it


@pytest.mark.parametrize("generator", WITHOUT_ANSWER)
def test_the_expert_finds_an_answer_where_the_library_gives_none(generator: str) -> None:
    tasks = reasoning.reasoning_tasks(8, generators=generator)
    level = 0 if generator == "rubiks_cube" else 2  # above it cubes are larger, and have no example
    hard = reasoning.reasoning_tasks(2, generators=generator, level=level)
    assert all(reasoning.found(task)[1]["answer"] is None for task in [*tasks, *hard])
    assert [asyncio.run(_answered(task)).reward for task in [*tasks, *hard]] == [1.0] * 10


def test_textarena_meets_the_contract_and_leaves_the_processs_chance_alone() -> None:
    check_tasks(arena.arena_tasks(120), splits=("train", "heldout"), content=arena.SPEC.content)
    before = getstate()
    check_env_sync(lambda: make(arena.SPEC, arena.arena_tasks(game="GuessTheNumber-v0")[1]), uses_seed=False)
    assert getstate() == before
    with pytest.raises(ValueError, match="Chess"):
        arena.arena_tasks(game="Chess-v0")


def test_a_seed_of_textarena_is_honoured_whatever_else_is_played_between() -> None:
    task = arena.arena_tasks(game="Minesweeper-v0-small")[0]

    async def boards(*seeds: int) -> list[str]:
        envs = [make(arena.SPEC, task) for _ in seeds]
        for env, seed in zip(envs, seeds, strict=True):
            await env.reset(seed=seed)
        return [(await env.step(Action.say("[2 3]"))).text for env in envs]

    one, two, again = asyncio.run(boards(1, 2, 1))
    assert one == again
    assert one != two


def test_games_that_nobody_can_win_are_played_by_their_name_only() -> None:
    named = {str(task.metadata["game"]) for task in arena.arena_tasks()}
    assert named == set(arena.GAMES) - set(arena.UNFAIR)
    assert arena.arena_tasks(2, game="Bandit-v0")[1].metadata["game"] == "Bandit-v0"


@pytest.mark.slow
def test_saying_nothing_wins_no_game_of_textarena_and_earns_a_part_in_three_kinds_only() -> None:
    async def silent(game: str) -> tuple[float, StopReason | None]:
        env = make(arena.SPEC, arena.arena_tasks(game=game)[0])
        step, earned = await env.reset(seed=0), 0.0
        while step.stop is None:
            step = await env.step(Action.say(""))
            earned += step.reward or 0.0
        return earned, step.stop

    kinds = {game.partition("-v0")[0]: game for game in reversed(arena.GAMES)}
    found = {kind: asyncio.run(silent(game)) for kind, game in kinds.items()}
    assert not [kind for kind, (_, stop) in found.items() if stop is StopReason.GOAL]
    assert {kind for kind, (earned, _) in found.items() if earned > 0} == {"2048", "PegJump", "RushHour"}
    assert max(earned for earned, _ in found.values()) < 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_fifty_games_of_textarena_are_played_to_an_end() -> None:
    async def play(game: str) -> str:
        env = make(arena.SPEC, arena.arena_tasks(game=game)[0])
        step = await env.reset(seed=0)
        assert step.text
        for _ in range(200):
            if step.stop is not None:
                break
            step = await env.step(Action.say("[0 0] [1] up"))
        return str(step.stop)

    ends = [asyncio.run(play(game)) for game in arena.GAMES]
    assert len(ends) >= 50
    assert sum(end != "None" for end in ends) >= 50


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_textworld_generates_a_game_that_its_walkthrough_wins(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    shapes = ((2, 3, 2, 1), (1, 2, 1, 0), (3, 5, 3, 2))
    tasks = TaskSet([textworld_games.textworld_tasks(5, rooms=rooms, objects=objects, quest=quest)[index]
                     for rooms, objects, quest, index in shapes])  # fmt: skip
    assert {task.split for task in tasks} == {"train", "heldout"}
    check_task_sync(tasks, lambda task: make(textworld_games.SPEC, task), textworld_games.expert, seeds=(0,),
                    limits=Limits(turns=8, reset_s=300))  # fmt: skip
    for task in tasks.take(2):
        check_env_sync(lambda task=task: make(textworld_games.SPEC, task), turns=3)
    made = [path.suffix for path in sorted((tmp_path / "textworld").iterdir())]
    assert made == [".json", ".z8"] * len(shapes), "a game is compiled once"


def test_the_numbers_in_the_document_are_those_that_were_recorded() -> None:
    root = Path(__file__).resolve().parents[3]
    found = json.loads((root / "benchmarks" / "results" / "peer_tasks.json").read_text())
    assert not found["quick"]
    played = {row["name"] for row in found["rows"] if row["name"].startswith("textarena ")}
    known = {f"textarena {game}" for game in arena.GAMES if game.partition("-v0")[0] in arena_expert.KNOWN}
    assert played == known, "every id that an expert plays is told of"
    assert len(played) >= 50
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        kinds.setdefault(row["name"].partition("-v0")[0].removeprefix("textarena "), []).append(row)
    text = (root / "docs" / "tool-environments.md").read_text()
    for kind, rows in kinds.items():
        names = ", ".join(row["name"].rpartition("-v0")[2].lstrip("-") or "plain" for row in rows)
        told = f"{kind}: {names}" if rows[0]["name"].startswith("textarena") else kind
        ours, line = (" ".join(f"{row[which]:.2f}" for row in rows) for which in ("ours", "reference"))
        won = " ".join(f"{found['won'][row['name']]:.2f}" for row in rows)
        tasks = " ".join(str(found["episodes"][row["name"]]) for row in rows)
        assert f"| {told} | {ours} | {won} | {line} | {tasks} |" in text
