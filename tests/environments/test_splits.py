"""Training and held-out tasks ask for different things, as far as anybody draws."""

import asyncio
import json
from pathlib import Path

import pytest
from envgym_environments.splits import belongs, of_split
from envgym_environments.text import arena
from envgym_environments.text.household import household_tasks
from envgym_environments.text.reasoning import reasoning_tasks
from envgym_environments.text.synthetic import synthetic_tasks
from envgym_environments.text.textworld_games import game_content, textworld_tasks
from envgym_environments.text.twenty import twenty_tasks
from envgym_environments.text.wordle import Wordle, wordle_tasks
from envgym_environments.tool.ask import ask_tasks
from envgym_environments.tool.python.world import python_tasks
from envgym_environments.tool.registered import tool_tasks
from envgym_environments.tool.route import route_tasks
from envgym_environments.tool.search import search_tasks
from envgym_environments.tool.service.world import _scene, service_tasks
from envgym_environments.tool.sql.world import sources, sql_tasks

from envgym.task import Task, TaskSet
from envgym.testing import check_tasks


def asked(task: Task) -> str:
    """What an agent is asked for: of a service all that the user says, else all that the task is made of."""
    if "service" in task.metadata:
        case = _scene(task)[1]
        return json.dumps([task.metadata["service"], case.opening, case.wants, case.facts])
    return json.dumps([task.prompt, dict(task.metadata)])


@pytest.mark.parametrize(
    ("tasks", "varied"),
    [
        (tool_tasks(2500), 450), (tool_tasks(2500, seed=7), 450), (tool_tasks(2500, things=1), 3),
        (tool_tasks(2500, things=10), 450), (ask_tasks(None), 450), (ask_tasks(None, missing=1, seed=3), 400),
        (route_tasks(None), 450), (twenty_tasks(None), 450),
        pytest.param(service_tasks(None), 450, marks=pytest.mark.slow),
    ],
    ids=["tool", "tool of another seed", "one thing", "ten things", "ask", "ask of another seed", "route",
         "twenty questions", "service"],
)  # fmt: skip
def test_the_first_500_tasks_of_each_split_have_nothing_in_common(tasks: TaskSet, varied: int) -> None:
    both: dict[str, set[str]] = {}
    for split, numbers in (("heldout", range(0, 2500, 5)), ("train", [k for k in range(625) if k % 5])):
        members = [tasks[number] for number in numbers]
        assert (len(members), {task.split for task in members}) == (500, {split})
        both[split] = set(map(asked, members))
    assert not both["train"] & both["heldout"]
    assert min(map(len, both.values())) >= varied


def sampled(tasks: TaskSet, each: int) -> dict[str, list[str]]:
    """What the first tasks of each split ask for, `each` of both; what only says where it was drawn is left out.

    A `wordle` asks for the word that its task's own seed draws.
    """
    found: dict[str, list[str]] = {"train": [], "heldout": []}
    for number in range(12 * each):
        task = tasks[number]
        if len(found[task.split]) < each:
            data = {name: value for name, value in task.metadata.items() if name not in ("world", "database")}
            told = [Wordle(task).begin(task.seed)[0].secret] if "tries" in data else [task.prompt, data]
            found[task.split].append(json.dumps(told))
        if min(map(len, found.values())) == each:
            break
    return found


@pytest.mark.parametrize(
    ("tasks", "varied"),
    [
        (python_tasks(None, topic="maths", difficulty=1), 75),
        (python_tasks(None, topic="maths", difficulty=2), 90),
        (python_tasks(None, topic="data", difficulty=1), 100), (search_tasks(None), 90),
        (household_tasks(None), 100), (household_tasks(None, rooms=2, errands=1), 90), (synthetic_tasks(None), 95),
        (synthetic_tasks(None, depth=1), 95), (wordle_tasks(None), 50),
        (reasoning_tasks(None, generators="coin_flip"), 50),
    ],
    ids=["easy maths", "maths", "data", "search", "household", "one errand", "synthetic", "one skill", "wordle",
         "reasoning-gym"],
)  # fmt: skip
def test_100_tasks_of_each_split_have_nothing_in_common(tasks: TaskSet, varied: int) -> None:
    both = sampled(tasks, 100)
    assert [len(both[split]) for split in ("train", "heldout")] == [100, 100]
    assert not set(both["train"]) & set(both["heldout"])
    assert min(len(set(found)) for found in both.values()) >= varied


KINDS = sorted({game.partition("-v0")[0]: game for game in reversed(arena.GAMES)}.items())


@pytest.mark.parametrize(("kind", "game"), [pair for pair in KINDS if pair[0] not in arena._BY_NUMBER])
def test_no_game_of_textarena_begins_alike_in_both_splits_and_one_of_one_beginning_is_of_one(
    kind: str, game: str
) -> None:
    tasks = arena.arena_tasks(40, game=game)
    check_tasks(tasks, splits=("train", "heldout"), content=arena.arena_content)
    begins = {arena.arena_content(task) for task in tasks}
    splits = {task.split for task in tasks}
    assert (len(begins) == 1) == (kind in ("Countdown", "Cryptarithm", "PegJump", "TowerOfHanoi")), begins
    assert splits == {"train", "heldout"} or len(begins) <= 3, "a fifth of all beginnings is held out"
    wrong = TaskSet(
        [task.model_copy(update={"split": "heldout" if n % 5 else "train"}) for n, task in enumerate(tasks)]
    )
    if len(begins) < 15:
        with pytest.raises(AssertionError, match="splits are disjoint"):
            check_tasks(wrong, content=arena.arena_content)


def test_a_game_of_textarena_is_its_task_s_and_its_episode_s_seed_draws_what_comes_later() -> None:
    def first(game: str, number: int, seed: int) -> str:
        return asyncio.run(arena.Arena(arena.arena_tasks(9, game=game)[number]).reset(seed=seed)).text

    assert first("2048-v0", 1, 0) == first("2048-v0", 1, 7) != first("2048-v0", 2, 0)
    assert arena.arena_content(arena.arena_tasks(9, game="Bandit-v0")[1]) != arena.arena_content(
        arena.arena_tasks(9, game="Bandit-v0")[2]
    ), "what is hidden counts"


@pytest.mark.slow
def test_no_two_games_of_textworld_are_alike_where_they_are_smallest_and_an_equal_one_would_be_found() -> None:
    tasks = textworld_tasks(8, rooms=1, objects=1, quest=1)
    check_tasks(tasks, splits=("train", "heldout"), content=game_content)
    twice = tasks[1].model_copy(update={"id": "again", "split": "heldout"})
    with pytest.raises(AssertionError, match="splits are disjoint"):
        check_tasks(TaskSet([tasks[1], twice]), content=game_content)


def test_questions_of_sql_may_be_alike_in_both_splits_but_no_database_is() -> None:
    files: dict[str, set[bytes | Path]] = {"train": set(), "heldout": set()}
    for task in sql_tasks(None).take(500)[::10]:
        files[task.split] |= set(sources(task))
    assert [len(files[split]) for split in ("train", "heldout")] == [80, 20]
    assert not files["train"] & files["heldout"]


def test_every_task_of_a_service_s_first_thousand_can_be_drawn() -> None:
    """Number 773 could not: among its sixteen customers none had a case of its level."""
    assert service_tasks()[773].metadata["service"] == "retail"


def test_a_fifth_of_all_contents_is_held_out_and_too_few_are_refused() -> None:
    held = sum(belongs(["what", number], "heldout") for number in range(5000)) / 5000
    assert 0.17 < held < 0.23
    assert belongs(of_split("heldout", lambda number: number, lambda one: one), "heldout")
    only = next(split for split in ("train", "heldout") if not belongs("one thing", split))
    with pytest.raises(ValueError, match=f"none belongs to split '{only}'"):
        of_split(only, lambda number: "one thing", lambda one: one)
