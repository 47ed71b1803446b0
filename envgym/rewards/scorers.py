"""Channels as a `Grader`: named scorers over (task, submission), so that stored episodes can be graded again."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from envgym.env import Grade
from envgym.errors import EnvgymError, GraderFailure
from envgym.rewards.channels import Mixture, Score
from envgym.task import Task

__all__ = ["ChannelGrader", "Scorer"]

Scorer = Callable[[Task, str], Score | Awaitable[Score]]
"""``score(task, submission)``: a finite number, or None for nothing."""


@dataclass(frozen=True, slots=True)
class ChannelGrader:
    """Satisfies `envgym.Grader`: a grade's channels are the scores and, where one can be told, their reward."""

    name: str
    version: str
    scorers: Mapping[str, Scorer]
    mixture: Mixture

    async def grade(self, task: Task, submission: str) -> Grade:
        """Score and mix. Raises GraderFailure, with its name, for a scorer that breaks."""
        scores: dict[str, Score] = {}
        for name, scorer in self.scorers.items():
            try:
                score = scorer(task, submission)
                scores[name] = await score if inspect.isawaitable(score) else score
            except EnvgymError:
                raise
            except Exception as error:
                raise GraderFailure(f"channel {name!r} of {task.id!r}: {type(error).__name__}: {error}") from error
        try:
            total = self.mixture.total(scores)
        except ValueError as error:
            raise GraderFailure(f"task {task.id!r}: {error}") from error
        channels = dict(total.channels) | ({} if total.reward is None else {"reward": total.reward})
        return Grade(grader=self.name, version=self.version, channels=channels)
