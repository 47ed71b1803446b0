"""TRL's advantages by TRL's own statements: cut out of the installed trainer, run on rewards [episodes] in float64.

TRL computes them in the middle of a method of six hundred lines that generates, scores and logs, so they cannot be
called. The statements from the first that reads the rewards to the last that makes advantages are compiled from the
installed file as they stand there; nothing of TRL is imported (its dependencies are many), and nothing is copied.
"""

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
from _harness import beside

__all__ = ["Formula", "installed", "trl_formula"]

VERSION = "1.16.0"
_METHOD, _FIRST, _LAST = "_generate_and_score_completions", "unscorable_mask", "advantages"


@dataclass(frozen=True, slots=True)
class Formula:
    """A trainer's advantages as a function. code: its statements; known: the functions that they call."""

    code: CodeType
    known: Mapping[str, Any]

    def __call__(self, rewards: Sequence[float], *, group: int, **settings: Any) -> np.ndarray:
        """Advantages [episodes] in float64; NaN is a reward that no function gave. group: members of each group.

        settings: what the trainer's arguments would be (scale_rewards, multi_objective_aggregation, ...).
        """
        import torch

        given = {
            "scale_rewards": "none", "multi_objective_aggregation": "sum_then_normalize", "beta": 0.0,
            "reward_clip_range": None, "normalize_advantages": False, "reward_funcs": [None],
            "reward_weights": torch.ones(1, dtype=torch.float64), "num_generations": group, **settings,
        }  # fmt: skip
        names = {
            **self.known, "self": SimpleNamespace(**given), "device": "cpu", "num_generations": group,
            "rewards_per_func": torch.tensor(rewards, dtype=torch.float64)[:, None],
        }  # fmt: skip
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # TRL divides counts by counts, which gives the default type
        try:
            exec(self.code, names)  # the peer's own statements, of the version that is pinned
        finally:
            torch.set_default_dtype(usual)
        return names[_LAST].numpy()


def installed() -> Path | None:
    """The folder of TRL's package, which may lie beside the environment; None without.

    Raises SystemExit for another version: what was cut out of it might be something else.
    """
    if (folder := str(beside())) not in sys.path:
        sys.path.append(folder)
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        return None
    if (version := importlib.metadata.version("trl")) != VERSION:
        raise SystemExit(f"credit_peers: trl is {version}; the comparison was written for trl=={VERSION}")
    return Path(found.origin).parent


@cache
def trl_formula(trainer: str) -> Formula:
    """The advantages of "grpo" or "rloo". Raises SystemExit where the statements are not found."""
    import torch

    folder = installed()
    if folder is None:
        raise SystemExit(
            f"credit_peers: trl is neither installed nor in {beside()}: scripts/setup.sh puts it there"
        )
    path = folder / "trainer" / f"{trainer}_trainer.py"
    method = _function(path, _METHOD)
    begins = [place for place, one in enumerate(method.body) if _assigns(one, _FIRST)]
    ends = [
        place for place, one in enumerate(method.body) if _assigns(one, _LAST) and "nan_to_num" in ast.dump(one)
    ]
    if not begins or not ends or ends[-1] < begins[0]:
        raise SystemExit(f"credit_peers: {path} has no statements from {_FIRST} to {_LAST} in {_METHOD}")
    known: dict[str, Any] = {"torch": torch}
    helper = _function(folder / "trainer" / "utils.py", "nanstd")
    exec(compile(ast.Module([helper], []), str(path), "exec"), known)
    body = method.body[begins[0] : ends[-1] + 1]
    return Formula(compile(ast.Module(body, []), str(path), "exec"), known)


def _function(path: Path, name: str) -> ast.FunctionDef:
    for one in ast.walk(ast.parse(path.read_text())):
        if isinstance(one, ast.FunctionDef) and one.name == name:
            return one
    raise SystemExit(f"credit_peers: {path} has no function {name}")


def _assigns(one: ast.stmt, name: str) -> bool:
    return isinstance(one, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in one.targets)
