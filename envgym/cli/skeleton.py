"""The text of a new environment, ready to run: its package, its entry point and its test."""

import re

__all__ = ["files_of"]

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "envgym-@NAME@"
version = "0.1.0"
description = "The environment @NAME@ for envgym."
requires-python = ">=3.11"
dependencies = ["envgym"]

[project.entry-points."envgym.environments"]
@NAME@ = "@MODULE@:SPEC"

[tool.hatch.build.targets.wheel]
packages = ["@MODULE@"]
"""

_ENVIRONMENT = '''\
"""@NAME@: find a hidden number by asking whether it is larger. Replace the game."""

import numpy as np
from envgym import (
    Action,
    EnvSpec,
    Message,
    ParseError,
    Step,
    StopReason,
    Task,
    TaskSet,
    ToolSpec,
    check_call,
    parse_call,
    tool_spec,
)


def ask(number: int) -> None:
    """Ask whether the hidden number is larger than this one."""


def answer(number: int) -> None:
    """Answer with the hidden number. This ends the game."""


class @CLASS@:
    """One game: `reset`, `step`, `close`. Snapshots and forks replay its actions."""

    tools: tuple[ToolSpec, ...] = (tool_spec(ask), tool_spec(answer))

    def __init__(self, task: Task) -> None:
        self.task = task
        self.size = int(str(task.metadata["size"]))
        self.hidden: int | None = None
        self.stop: StopReason | None = None

    async def reset(self, *, seed: int) -> Step:
        """A fresh game. Everything random comes from `seed`."""
        rng = np.random.default_rng([seed, self.task.seed])
        self.hidden = int(rng.integers(self.size))
        self.stop = None
        return self._see(self.task.prompt)

    async def step(self, action: Action) -> Step:
        """Play one call. A bad one is the model's fault: answer it, never raise."""
        if self.hidden is None or self.stop is not None:
            raise RuntimeError(f"{self.task.id}: step before reset or after the end")
        call = action.error or (
            check_call(action.calls[0], self.tools)
            if action.calls
            else parse_call(action.text, self.tools)
        )
        if isinstance(call, ParseError):
            return self._see(call.message)
        number = int(str(call.arguments["number"]))
        if call.name == "ask":
            return self._see("yes" if self.hidden > number else "no", reward=-0.01)
        right = number == self.hidden
        self.stop = StopReason.GOAL if right else StopReason.LOST
        return self._see("right" if right else "wrong", reward=float(right))

    async def close(self) -> None:
        """Release what the game holds: nothing."""

    def _see(self, text: str, *, reward: float | None = None) -> Step:
        seen = (Message(role="user", content=text),)
        if self.stop is not None:
            return Step(seen, reward=reward, stop=self.stop)
        names = [tool.name for tool in self.tools]
        legal = tuple(f"{name} {n}" for name in names for n in range(self.size))
        return Step(seen, reward=reward, legal=legal)


def tasks(count: int = 50, size: int = 8) -> TaskSet:
    """The tasks, every fifth held out; their options are this function's arguments."""
    prompt = f"I hide a number from 0 to {size - 1}. Ask, then answer."
    return TaskSet([_task(n, prompt, size) for n in range(count)])


def _task(n: int, prompt: str, size: int) -> Task:
    split = "train" if n % 5 else "heldout"
    name, about = f"{size}-{n}", {"size": size}
    return Task(id=name, prompt=prompt, split=split, seed=n, metadata=about)


SPEC = EnvSpec(
    "@NAME@", tasks, @CLASS@, description="Find a hidden number.", in_process=True, seeded=True
)
'''

_TEST = '''\
"""The contract of environments holds for ours."""

from envgym.testing import check_env_sync

from @MODULE@ import SPEC, @CLASS@


def test_the_contract_is_kept() -> None:
    game = SPEC.tasks()[0]
    check_env_sync(lambda: @CLASS@(game), seeds=range(8), uses_seed=True)
'''

_README = """\
# @NAME@

An environment for envgym. Install it, check it, play it, train on it:

```bash
pip install -e .
envgym check @NAME@
envgym collect @NAME@ --agent random -n 100 --out runs/random
python -m pytest tests
envgym train --set env=@NAME@ --set expert=random --set model.size=tiny --set turns=8 \\
  --set warm_start.minutes=2 --set reinforce.minutes=5 --out runs/@NAME@
```

The default expert knows code-repair only, so training names another one: `random`, whose successful games are
imitated, or an agent of your own. The sizes are for a first look, some ten minutes on two cores; without them a run
takes hours. `--plan` says beforehand what a run will do, `envgym train --settings` prints all settings.
"""


def files_of(name: str) -> dict[str, str]:
    """Relative path -> text of every file of the environment `name`. Raises ValueError unless it is kebab-case."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(f"{name!r} is not kebab-case: lower-case letters and digits joined by single hyphens")
    module = name.replace("-", "_") + "_env"
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(part.title() for part in name.split("-")) + "Env",
    }

    def filled(text: str) -> str:
        for mark, word in words.items():
            text = text.replace(mark, word)
        return text

    return {
        "pyproject.toml": filled(_PYPROJECT),
        "README.md": filled(_README),
        f"{module}/__init__.py": filled(_ENVIRONMENT),
        f"tests/test_{module}.py": filled(_TEST),
    }
