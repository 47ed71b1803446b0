"""Grades again what was submitted, without playing it; a verdict that cannot be reached is named, not guessed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from envgym.env import Grade, Grader
from envgym.episode import Episode
from envgym.errors import EnvgymError, Failure, GraderFailure
from envgym.store import StoreWriter
from envgym.task import Task

__all__ = ["Regraded", "regrade"]


@dataclass(frozen=True, slots=True)
class Regraded:
    """What came of one episode: its new grade, or the grader's failure; neither where nothing was submitted."""

    episode: str
    grade: Grade | None = None
    failure: Failure | None = None


async def regrade(
    writer: StoreWriter,
    ids: Collection[str],
    grader: Grader,
    task_of: Callable[[str], Task],
    *,
    concurrency: int = 8,
    again: bool = False,
) -> AsyncIterator[Regraded]:
    """Append a grade to each of the named episodes that submitted something, and tell how it went, as it goes.

    task_of: the task of an id. Episodes that the grader judged in this very version are left as they are, so
    that what was interrupted can be called again; with `again` they are judged once more, as for tasks that have
    changed under their ids, and a grade is appended whatever it says.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
    room = asyncio.Semaphore(concurrency)

    async def one(name: str) -> Regraded:
        async with room:
            return await judged(name)

    async def judged(name: str) -> Regraded:
        episode = writer[name]
        submission = _submission(episode)
        by = (grader.name, grader.version)
        judged_so = not again and any((grade.grader, grade.version) == by for grade in episode.grades)
        if submission is None or judged_so:
            return Regraded(name)
        try:
            grade = await grader.grade(task_of(episode.task_id), submission)
        except EnvgymError as error:
            return Regraded(name, failure=Failure.of(error, where="grade", turn=len(episode.turns)))
        except Exception as error:
            broken = GraderFailure(f"grading {name}: {type(error).__name__}: {error}")
            return Regraded(name, failure=Failure.of(broken, where="grade", turn=len(episode.turns)))
        writer.grade(name, grade)
        return Regraded(name, grade)

    running = [asyncio.create_task(one(name)) for name in ids]
    try:
        for task in asyncio.as_completed(running):
            yield await task
    finally:
        for left in running:
            left.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _submission(episode: Episode) -> str | None:
    if episode.failure is not None:
        return None
    return next(
        (turn.step.submission for turn in reversed(episode.turns) if turn.step.submission is not None), None
    )
