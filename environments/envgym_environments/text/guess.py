"""Guess a number in a few tries: the smallest multi-turn environment, for smoke tests and as an example.

It has only `reset`, `step` and `close`; snapshots and forks come from `envgym.env.Replaying`. The secret is drawn
from the seed, so every episode of a task may hide another number.
"""

from collections.abc import Sequence

import numpy as np

from envgym.env import Step, StopReason
from envgym.messages import Action, Message, ParseError, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import check_call, parse_call, tool_spec
from envgym_environments.experts import expert_of

__all__ = ["SPEC", "Guess", "expert", "guess_tasks"]


def guess(number: int) -> None:
    """Guess the number; the answer says whether the secret is higher or lower."""


class Guess:
    """Implements `envgym.env.Playable`. Reward 1.0 for the right guess (GOAL), 0.0 without tries left (LOST)."""

    uses_seed = True
    tools: tuple[ToolSpec, ...] = (tool_spec(guess),)

    def __init__(self, task: Task) -> None:
        self.task = task
        self._most, self._tries = int(str(task.metadata["most"])), int(str(task.metadata["tries"]))
        self._secret = self._left = self._low = self._high = 0

    async def reset(self, *, seed: int) -> Step:
        """A secret in 1..most, drawn from `seed`."""
        self._secret = int(np.random.default_rng([seed, self.task.seed]).integers(1, self._most + 1))
        self._left, self._low, self._high = self._tries, 1, self._most
        return self._step(self.task.prompt)

    async def step(self, action: Action) -> Step:
        """Take one guess; anything else costs nothing and is told what is wrong."""
        found = action.calls[0] if action.calls else parse_call(action.text, self.tools)
        call = action.error or (found if isinstance(found, ParseError) else check_call(found, self.tools))
        if isinstance(call, ParseError):
            return self._step(f"not a guess: {call.message[:200]}")
        number = int(str(call.arguments["number"]))
        self._left -= 1
        if number == self._secret:
            return self._step(f"{number} is right", StopReason.GOAL)
        if not self._left:
            return self._step(f"no tries left; it was {self._secret}", StopReason.LOST)
        if number < self._secret:
            self._low = max(self._low, number + 1)
            return self._step(f"higher than {number}; tries left {self._left}")
        self._high = min(self._high, number - 1)
        return self._step(f"lower than {number}; tries left {self._left}")

    def _step(self, text: str, stop: StopReason | None = None) -> Step:
        reward = None if stop is None else float(stop is StopReason.GOAL)
        numbers = range(self._low, self._high + 1)
        return Step(
            observation=(Message(role="user", content=text),),
            reward=reward,
            channels={} if reward is None else {"reward": reward},
            stop=stop,
            state_key=f"{self._low}-{self._high}/{self._left}",
            legal=None if stop else tuple(f"guess {number}" for number in numbers),
        )

    async def close(self) -> None:
        """It holds nothing."""


def guess_tasks(count: int = 100, *, most: int = 20, tries: int = 5) -> TaskSet:
    """`count` tasks; every fifth is of split "heldout". Raises ValueError for bounds that make no game."""
    if most < 2 or tries < 1:
        raise ValueError(f"most is {most} and tries {tries}; they must be at least 2 and 1")
    prompt = f"I think of a number from 1 to {most}. You have {tries} tries."
    return TaskSet.lazy(lambda index: _task(index, prompt, most, tries), length=count)


def _task(index: int, prompt: str, most: int, tries: int) -> Task:
    split = "train" if index % 5 else "heldout"
    return Task(
        id=f"guess/{index}", prompt=prompt, split=split, seed=index, metadata={"most": most, "tries": tries}
    )


def _decide(task: Task, seen: Sequence[Step]) -> str:
    """The middle of what is left."""
    left = seen[-1].legal or ()
    return left[len(left) // 2]


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="guess",
    tasks=guess_tasks,
    make=Guess,
    description="Guess a number in a few tries; a smoke test.",
    in_process=True,
    seeded=True,
)
