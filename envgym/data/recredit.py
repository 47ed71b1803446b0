"""Credit of stored groups by any scheme, as a table beside the store: episodes are never touched by it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from envgym.credit import Scheme, by_grade, checked_credit, grade_of
from envgym.episode import Group
from envgym.whole import new_target

__all__ = ["CREDITS", "Recredited", "recredit"]

CREDITS = pa.schema(
    [("episode", pa.string()), ("group", pa.int64()), ("credit", pa.list_(pa.float32()))],
)
"""credit: one for each sampled token of the episode's own turns, in order. group: its number."""


@dataclass(slots=True)
class Recredited:
    """What was credited: episodes, of these forks and failed ones, their groups and sampled tokens.

    split: groups in which outcomes differ. credited: tokens whose credit is not 0. channels: of the turns' rewards.
    """

    episodes: int = 0
    groups: int = 0
    forks: int = 0
    failed: int = 0
    split: int = 0
    tokens: int = 0
    credited: int = 0
    channels: set[str] = field(default_factory=set)

    def count(self, groups: Sequence[Group], credits: Sequence[NDArray[np.float32]]) -> None:
        """Add some groups and what they got."""
        episodes = [episode for group in groups for episode in group]
        self.episodes, self.groups = self.episodes + len(episodes), self.groups + len(groups)
        self.forks += sum(one.parent is not None for one in episodes)
        self.failed += sum(one.failure is not None for one in episodes)
        for group in groups:  # a fork earned what its whole path did
            paths = [group.path(one) for one in group.scored]
            self.split += len({sum(turn.step.reward or 0.0 for turn in path) for path in paths}) > 1
        self.tokens += sum(len(credit) for credit in credits)
        self.credited += sum(int(np.count_nonzero(credit)) for credit in credits)
        self.channels.update(name for one in episodes for turn in one.turns for name in turn.step.channels)


def recredit(
    groups: Iterable[Group],
    scheme: Scheme,
    path: Path,
    *,
    grade: tuple[str, str] | None = None,
    together: int = 64,
) -> Recredited:
    """Write the credit of every episode to a Parquet file; says what was credited.

    grade: (grader, channel): credit by that grade instead of by what was earned while playing (`by_grade`).
    together: how many groups are credited at once, as in a step of training; it matters for schemes that compare
    groups with each other, and bounds memory. An episode whose world failed has what the scheme gives it.
    Raises FileExistsError when there is such a file, FileNotFoundError where its folder is not, ValueError when no
    episode has the grade, ValueError or TypeError when what the scheme gave is not credit (`checked_credit`);
    nothing is left then (`new_target`).
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be made: there is no folder {path.parent}")
    found, graded, first = Recredited(), grade is None, 0
    with new_target(path) as part, part.open("wb") as file:
        with pq.ParquetWriter(file, CREDITS) as writer:
            for some in _batches(groups, together):
                if grade is not None:
                    graded |= any(grade_of(episode, *grade) is not None for group in some for episode in group)
                read = some if grade is None else by_grade(some, *grade)
                credits = checked_credit(read, scheme(read))
                members = [(episode.id, first + k) for k, group in enumerate(some) for episode in group]
                columns = [
                    pa.array([name for name, _ in members], pa.string()),
                    pa.array([number for _, number in members], pa.int64()),
                    pa.array(credits, pa.list_(pa.float32())),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=CREDITS))
                found.count(read, credits)
                first += len(some)
        if not graded and grade is not None:
            raise ValueError(f"no episode has a grade {'/'.join(grade)}: see `envgym data stats`, or grade first")
    return found


def _batches(groups: Iterable[Group], size: int) -> Iterator[list[Group]]:
    some: list[Group] = []
    for group in groups:
        some.append(group)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some
