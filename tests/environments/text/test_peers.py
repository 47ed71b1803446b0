"""Tasks of peers, unmodified: reasoning-gym, TextArena, TextWorld."""

import asyncio
import json
from pathlib import Path
from random import getstate
from typing import Any

import pytest
from envgym_environments.text import arena, arena_expert, reasoning, textworld_games

from envgym.env import Step
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import make
from envgym.task import TaskSet
from envgym.testing import check_env_sync, check_task_sync, check_tasks

WITHOUT_ANSWER = {"graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic"}
QUICK = ("chain_sum", "leg_counting", "spell_backward", "word_sorting", "base_conversion", "caesar_cipher")


def test_reasoning_gym_meets_both_contracts() -> None:
    tasks = reasoning.reasoning_tasks(12, generators=QUICK)
    check_tasks(tasks, splits=("train", "heldout"))
    check_env_sync(lambda: make(reasoning.SPEC, tasks[0]))
    check_task_sync(tasks, lambda task: make(reasoning.SPEC, task), reasoning.expert, seeds=(0,))
    assert reasoning.reasoning_tasks(None, generators="chain_sum")[123_456].prompt
    with pytest.raises(ValueError, match="chain_summ"):
        reasoning.reasoning_tasks(generators="chain_summ")


async def _answered(task: Any) -> Step:
    env, agent = make(reasoning.SPEC, task), reasoning.expert(task)
    return await env.step((await agent.act(await env.reset(seed=0))).action)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_generator_of_reasoning_gym_is_played_and_scores_its_own_answer_full() -> None:
    assert len(reasoning.GENERATORS) >= 105
    scores = {
        str(task.metadata["generator"]): asyncio.run(_answered(task)).reward
        for task in reasoning.reasoning_tasks(len(reasoning.GENERATORS))
    }
    assert {name for name, score in scores.items() if score != 1.0} <= WITHOUT_ANSWER


def test_textarena_meets_the_contract_and_leaves_the_processs_chance_alone() -> None:
    check_tasks(arena.arena_tasks(120), splits=("train", "heldout"))
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_fifty_games_of_textarena_are_played_to_an_end() -> None:
    async def play(index: int) -> str:
        env = make(arena.SPEC, arena.arena_tasks()[index])
        step = await env.reset(seed=index)
        assert step.text
        for _ in range(200):
            if step.stop is not None:
                break
            step = await env.step(Action.say("[0 0] [1] up"))
        return str(step.stop)

    ends = [asyncio.run(play(index)) for index in range(len(arena.GAMES))]
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
