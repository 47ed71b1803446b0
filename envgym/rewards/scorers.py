"""Channels as a `Grader`: named scorers over (task, submission), so that stored episodes can be graded again."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from envgym.env import Grade
from envgym.errors import EnvgymError, GraderFailure
from envgym.rewards.channels import Mixture, Score
from envgym.task import Task

__all__ = ["ChannelGrader", "Scorer", "named_scorer", "scored"]

Scorer = Callable[[Task, str], Score | Awaitable[Score]]
"""``score(task, submission)``: a finite number, or None for nothing."""


def named_scorer(place: str) -> Scorer:
    """The scorer that "module:name" names. Raises ValueError where there is none."""
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{place!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"{place!r} is no function ``score(task, submission)``")
    return found  # type: ignore[no-any-return]


async def scored(name: str, scorer: Scorer, task: Task, submission: str) -> Score:
    """What a scorer says. Raises GraderFailure, with its name, where it breaks."""
    try:
        score = scorer(task, submission)
        return await score if inspect.isawaitable(score) else score
    except EnvgymError:
        raise
    except Exception as error:
        raise GraderFailure(f"channel {name!r} of {task.id!r}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class ChannelGrader:
    """Satisfies `envgym.Grader`: a grade's channels are the scores and, where one can be told, their reward."""

    name: str
    version: str
    scorers: Mapping[str, Scorer]
    mixture: Mixture

    async def grade(self, task: Task, submission: str) -> Grade:
        """Score and mix. Raises GraderFailure, with its name, for a scorer that breaks."""
        scores = {name: await scored(name, one, task, submission) for name, one in self.scorers.items()}
        try:
            total = self.mixture.total(scores)
        except ValueError as error:
            raise GraderFailure(f"task {task.id!r}: {error}") from error
        channels = dict(total.channels) | ({} if total.reward is None else {"reward": total.reward})
        return Grade(grader=self.name, version=self.version, channels=channels)
