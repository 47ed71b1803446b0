"""Every registered environment keeps both contracts on a sample of its tasks, and none is left out.

What needs no sandbox and no browser is played here; the others where their backends are.
"""

from pathlib import Path

import numpy as np
import pytest
from envgym_environments.text import wordle

from envgym.env import Step
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import find, make, names, spec
from envgym.task import Task, TaskSet, evenly
from envgym.testing import check_env_sync, check_task_sync

HERE = {
    "ask": 6, "corridor": 2, "desk": 2, "guess": 4, "household": 4, "reasoning-gym": 21, "retry": 4, "route": 6,
    "search": 6, "service": 9, "sql": 10, "synthetic": 6, "textarena": 22, "tool": 6, "twenty-questions": 4,
    "vault": 2, "wordle": 4,
}  # fmt: skip
"""Of each, how many tasks are played: evenly spread over the first 600; of textarena, one of each kind of game."""
ELSEWHERE = {
    "code-repair": "code_repair/test_env.py",
    "desktop": "gui/test_desktop.py",
    "desktop-grounding": "gui/test_grounding_screens.py",
    "grounding": "gui/test_grounding_screens.py",
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
}
SOLVED_ELSEWHERE = {"corridor", "desk", "vault", "textarena", "reasoning-gym"}
"""By `envgym.oracle`, exactly; in test_arena_expert; in test_peers."""


def sample(name: str) -> TaskSet:
    tasks: list[Task] = list(spec(name).tasks().take(600))
    if name == "textarena":
        tasks = list({str(task.metadata["game"]).partition("-v0")[0]: task for task in reversed(tasks)}.values())
    return TaskSet(evenly(tasks, HERE[name]))


def _word(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("guess", word=wordle.WORDS[int(rng.integers(99))])


def _slot(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("ask", slot=("name", "town", "day", "budget", "phone")[int(rng.integers(5))])


POLICIES = {"wordle": _word, "ask": _slot}
"""What a drive does where calls drawn from the schemas would meet nothing that a seed decides."""


def test_no_registered_environment_is_left_out() -> None:
    ours = {name for name in names("environments") if not name.startswith("test")}
    assert ours == set(HERE) | set(ELSEWHERE)
    here = Path(__file__).parent
    for name, file in ELSEWHERE.items():
        assert "check_env" in (here / file).read_text(), f"{name} is checked in {file}"


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", HERE)
def test_a_sample_of_tasks_keeps_both_contracts(name: str) -> None:
    tasks = sample(name)
    for task in tasks:
        check_env_sync(lambda task=task: make(name, task), turns=8, policy=POLICIES.get(name))
    if name not in SOLVED_ELSEWHERE:
        limits = Limits(turns=150)
        check_task_sync(tasks, lambda task: make(name, task), find("agents", f"{name}-expert"), seeds=(0,),
                        limits=limits)  # fmt: skip
