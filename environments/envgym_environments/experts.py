"""Scripted experts: agents that decide from the task and the steps seen so far, so that they fork for nothing.

They are reference solutions: some read the answer in their task's metadata, which no observation shows. They teach
(warm starts, imitation) and prove that a task can be solved; they are no peers to compare a model with.
"""

from collections.abc import Callable, Sequence
from typing import Any

from envgym.env import Step
from envgym.errors import AgentFailure
from envgym.messages import Action
from envgym.policy import Reply
from envgym.task import Task

__all__ = ["Decide", "Expert", "expert_of"]

Decide = Callable[[Task, Sequence[Step]], "Action | str"]
"""What to do next, of all steps so far: the first is what `reset` gave, so one action less was taken."""


class Expert:
    """An agent that asks a pure function; see `envgym.policy.Agent`."""

    def __init__(self, task: Task, decide: Decide, *, name: str = "agent", seen: Sequence[Step] = ()) -> None:
        self.name = name
        self._task, self._decide, self._seen = task, decide, list(seen)

    async def act(self, step: Step) -> Reply:
        """The decision on everything seen. Raises AgentFailure where the steps are not of its own environment."""
        self._seen.append(step)
        try:
            said = self._decide(self._task, self._seen)
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise AgentFailure(
                f"this scripted expert cannot play task {self._task.id!r} ({type(error).__name__}: {error}); an "
                "expert plays the environment that it is named after"
            ) from error
        return Reply(said if isinstance(said, Action) else Action.say(said))

    def fork(self, *, seed: int) -> "Expert":
        """The same history from here on; it draws nothing."""
        return Expert(self._task, self._decide, name=self.name, seen=self._seen)

    async def close(self) -> None:
        """It holds nothing."""


def expert_of(decide: Decide) -> Callable[..., Expert]:
    """An agent factory, as the registry wants it; it takes no options."""

    def make(task: Task, *, seed: int = 0, **options: Any) -> Expert:
        if options:
            raise TypeError(f"a scripted expert has no options; got {', '.join(options)}")
        return Expert(task, decide)

    return make
