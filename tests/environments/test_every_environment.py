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
from envgym.task import TaskSet, evenly
from envgym.testing import check_env_sync, check_task_sync

HERE = {
    "ask": 6, "corridor": 2, "desk": 2, "guess": 4, "household": 4, "reasoning-gym": 105, "retry": 4, "route": 6,
    "search": 6, "service": 15, "sql": 10, "synthetic": 6, "textarena": 57, "textworld": 3, "tool": 6,
    "twenty-questions": 4, "vault": 2, "wordle": 4,
}  # fmt: skip
"""Of each, how many tasks are played: evenly spread over the first 600, or one of each kind where it has kinds."""
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
    "self-play": "code_repair/self_play/test_play.py",
    "synthesized": "../trunk/synthesis/test_synthesis.py",
    "web-sites": "web/sites/test_world.py",
}
UNSOLVED = {"corridor", "desk", "vault", "textarena", "reasoning-gym"}
"""Not played by an expert here: solved exactly by `envgym.oracle`; or in test_arena_expert and test_peers."""


def sample(name: str) -> TaskSet:
    options = {"rooms": 2, "objects": 3, "quest": 2} if name == "textworld" else {}
    tasks = spec(name).tasks(**options)
    some = tasks.take(HERE[name] if name in ("textarena", "reasoning-gym") else 600)
    return TaskSet(evenly(list(some), HERE[name]))


def _word(step: Step, tools: object, rng: np.random.Generator) -> Action:
    return Action.call("guess", word=wordle.WORDS[int(rng.integers(99))])


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
def test_a_sample_of_tasks_keeps_both_contracts(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    tasks = sample(name)
    for task in tasks:
        check_env_sync(
            lambda task=task: make(name, task), turns=3, policy=_word if name == "wordle" else None, deadline_s=300
        )
    if name not in UNSOLVED:
        limits = Limits(turns=150, reset_s=300)
        check_task_sync(tasks, lambda task: make(name, task), find("agents", f"{name}-expert"), seeds=(0,),
                        limits=limits)  # fmt: skip
