"""Every registered environment keeps both contracts on a sample of its tasks, and none is left out.

What needs no sandbox and no browser is played here; the others where their backends are.
"""

import asyncio
import os
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from envgym_environments.text import twenty, wordle
from envgym_environments.text.arena import GAMES, UNFAIR

from envgym.env import Step
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import find, make, names, spec
from envgym.task import Task, TaskSet, evenly
from envgym.testing import check_env_sync, check_task_sync

HERE = {
    "ask": 30, "corridor": 6, "desk": 6, "guess": 30, "household": 12, "reasoning-gym": 105, "retry": 12,
    "route": 30, "search": 18, "service": 18, "sql": 30, "synthetic": 30, "textarena": 22, "tool": 30,
    "twenty-questions": 12, "vault": 6, "wordle": 12,
}  # fmt: skip
"""Of each, how many tasks three commits play: evenly spread over the first 600; of reasoning-gym one of each
generator, of textarena one of each kind."""
ELSEWHERE = {
    "code-repair": "code_repair/test_env.py",
    "desktop": "gui/test_desktop.py",
    "desktop-grounding": "gui/test_grounding_screens.py",
    "grounding": "gui/test_grounding_screens.py",
    "mind2web": "gui/test_mind2web.py",
    "miniwob": "web/test_miniwob.py",
    "propose-solve": "tool/test_propose_solve.py",
    "python": "tool/test_python.py",
    "render": "render/test_render.py",
    "render-plot": "render/test_render.py",
    "retry-sandboxed": "text/test_retry.py",
    "self-play": "code_repair/self_play/test_play.py",
    "textworld": "text/test_peers.py",
    "synthesized": "../trunk/synthesis/test_synthesis.py",
    "synthesized-sandboxed": "../trunk/synthesis/test_synthesis.py",  # the same environment, given a backend
    "tool-sandboxed": "tool/test_mcp.py",
    "web-sites": "web/sites/test_world.py",
    "web-sites-sandboxed": "web/test_program.py",
}
SOLVED_ELSEWHERE = {"corridor", "desk", "vault", "textarena", "reasoning-gym"}
"""By `envgym.oracle`, exactly; in test_arena_expert; in test_peers."""


def sample(name: str) -> TaskSet:
    tasks: list[Task] = list(spec(name).tasks().take(HERE[name] if name == "reasoning-gym" else 600))
    if name == "textarena":
        tasks += [spec(name).tasks(1, game=game)[0] for game in UNFAIR]  # played by name only, Bandit among them
        tasks = list({str(task.metadata["game"]).partition("-v0")[0]: task for task in reversed(tasks)}.values())
    return TaskSet(evenly(tasks, HERE[name]))


@pytest.mark.slow
def test_the_sample_of_textarena_has_one_of_each_kind_those_that_are_played_by_name_among_them() -> None:
    kinds = [str(task.metadata["game"]).partition("-v0")[0] for task in sample("textarena")]
    assert len(kinds) == len(set(kinds)) == HERE["textarena"] == 22
    assert {game.partition("-v0")[0] for game in GAMES} == set(kinds)


def of_this_turn(tasks: TaskSet, turn: str) -> TaskSet:
    """A third of a sample, one task at least: every environment is played for each commit, its tasks take turns."""
    if turn == "all":
        return tasks
    third = tasks[int(turn) % 3 :: 3]
    return third if len(third) else tasks[int(turn) % len(tasks) :][:1]


def _word(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("guess", word=wordle.WORDS[int(rng.integers(99))])


def _slot(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("ask", slot=("name", "town", "day", "budget", "phone")[int(rng.integers(5))])


def _property(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("ask", property=str(rng.choice(twenty.PROPERTIES)))


POLICIES = {"wordle": _word, "ask": _slot, "twenty-questions": _property}
"""What a drive does where calls drawn from the schemas would meet nothing that a seed decides."""


def test_no_registered_environment_is_left_out() -> None:
    ours = {name for name in names("environments") if not name.startswith("test")}
    assert ours == set(HERE) | set(ELSEWHERE)
    here = Path(__file__).parent
    for name, file in ELSEWHERE.items():
        assert re.search(r"\bcheck_env(_sync)?\(", (here / file).read_text()), f"{name} is checked in {file}"


def test_every_environment_tells_states_apart_from_the_first_one_on() -> None:
    """An empty key means unknown, compared with nothing; the first state is the one that all of a group share."""

    async def first(name: str, seed: int) -> str:
        env = make(name, 0)
        step = await env.reset(seed=seed)
        await env.close()
        return step.state_key

    for name in HERE:
        key = asyncio.run(first(name, 0))
        assert key, name
        assert key == asyncio.run(first(name, 0)), f"{name}: it is the state's, not the process's"


def test_the_table_of_snapshots_in_the_document_says_what_each_environment_makes() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "tool-environments.md").read_text()
    rows = text.partition("## Snapshots and forks")[2].partition("\n## ")[0].splitlines()
    told = {
        name.strip("` "): kind.strip() for _, ours, kind, *_ in (row.split("|") for row in rows if row[:3] == "| `")
        for name in ours.split(",")
    }  # fmt: skip
    of_others = {"corridor", "desk", "vault"}  # of the oracle, which is told of elsewhere
    assert set(HERE) - of_others <= told.keys()

    async def made(name: str) -> str:
        env = make(name, 0)
        await env.reset(seed=0)
        snapshot = await env.snapshot()
        await env.release(snapshot)
        await env.close()
        return snapshot.restore

    played = {name: asyncio.run(made(name)) for name in HERE if told.get(name) not in (None, "as inside")}
    assert played == {name: told[name] for name in played}


def test_each_commit_plays_every_environment_and_three_in_a_row_play_the_whole_sample() -> None:
    for count, numbers in product((1, 2, 4, 22), ("012", "345")):
        tasks = TaskSet([Task(id=str(number), prompt="") for number in range(count)])
        turns = [[task.id for task in of_this_turn(tasks, turn)] for turn in numbers]
        assert all(turns)
        assert (
            set().union(*turns) == {task.id for task in of_this_turn(tasks, "all")} == set(map(str, range(count)))
        )
        assert max(map(len, turns)) <= 1 + count // 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", HERE)
def test_a_sample_of_tasks_keeps_both_contracts(name: str) -> None:
    tasks = of_this_turn(sample(name), os.environ.get("ENVGYM_TURN", "all"))
    for task in tasks:
        check_env_sync(lambda task=task: make(name, task), turns=8, policy=POLICIES.get(name))
    if name not in SOLVED_ELSEWHERE:
        limits = Limits(turns=150)
        check_task_sync(tasks, lambda task: make(name, task), find("agents", f"{name}-expert"), seeds=(0,),
                        limits=limits, seeded=spec(name).seeded, content=spec(name).content)  # fmt: skip
