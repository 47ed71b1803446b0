"""A run that lost a process of its learner goes on by itself, from its last checkpoint, a bounded number of times.

What the run had open is closed and opened again, as `--resume` in a new command would: the others cannot leave a
group of which one is missing, so all begin anew. Each loss is a line of `restarts.jsonl` in the run folder.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from envgym.errors import HostLost, LearnerDied

__all__ = ["RESTARTS", "going_on"]

RESTARTS = "restarts.jsonl"
"""In a run's folder: when a process of the learner was lost, and how."""

T = TypeVar("T")


def going_on(work: Callable[[bool], T], folder: str | Path, *, most: int, console: Console | None = None) -> T:
    """What `work` returns, which is called with False, and after each loss again with True: `most` times more.

    Raises LearnerDied with the first loss that is one too many; HostLost where nothing could be begun at all, or
    not in the place of what was lost.
    """
    for number in range(1, most + 1):
        try:
            return work(number > 1)
        except (LearnerDied, HostLost) as error:
            if isinstance(error, HostLost) and number == 1:
                raise
            _note(Path(folder), error)
            if console is not None:
                console.print(f"{error}\nthis run does so now, {number} of at most {most} times", style="yellow")
    return work(most > 0)


def _note(folder: Path, error: Exception) -> None:
    line = json.dumps({"time": time.time(), "error": type(error).__name__, "lost": str(error)})
    with open(folder / RESTARTS, "a") as file:
        file.write(line + "\n")
