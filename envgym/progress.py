"""Progress for people: a bar on a terminal, a line now and then elsewhere, and an estimate from measured steps.

The estimate is the mean duration of the last steps times the steps that are left, never more than what remains of
a time budget; before the first step is done there is none. A mean, because what is rare and slow (an evaluation, a
burst of episodes that end together) comes again.
"""

import time
from collections import deque
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Bar", "Eta", "clock"]


def clock(seconds: float | None) -> str:
    """Seconds as h:mm:ss, "?" when unknown."""
    if seconds is None:
        return "?"
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Eta:
    """Seconds left, from the durations of the last steps (a tenth of all, at least 20).

    total: steps in all; budget_s: a bound on the seconds in all, or None.
    """

    def __init__(self, total: int, *, budget_s: float | None = None) -> None:
        self.total, self.budget_s = total, budget_s
        self._durations: deque[float] = deque(maxlen=max(20, total // 10))

    def left(self, done: int, elapsed_s: float, last_s: float | None = None) -> float | None:
        """Take in the last step's duration and estimate; None before any step was measured."""
        if last_s is not None:
            self._durations.append(last_s)
        if not self._durations:
            return None
        by_steps = fmean(self._durations) * max(0, self.total - done)
        return by_steps if self.budget_s is None else min(by_steps, max(0.0, self.budget_s - elapsed_s))


class Bar:
    """One stage's progress, a context manager. Without a console it shows nothing."""

    def __init__(self, console: Console | None, label: str, total: int, *, budget_s: float | None = None) -> None:
        self._console, self._label, self._total = console, label, total
        self._eta = Eta(total, budget_s=budget_s)
        self._started = self._last = time.perf_counter()
        self._said = 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("eta {task.fields[eta]}  {task.fields[note]}"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._label, total=self._total, eta="?", note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._console is not None:
            self._console.print(line, highlight=False, soft_wrap=True)

    def tell(self, note: str) -> None:
        """Show another note on a terminal; nothing else has changed."""
        if self._bar is not None:
            self._bar.update(self._task, note=note)

    def update(
        self,
        done: int,
        note: str = "",
        *,
        elapsed_s: float | None = None,
        measured: bool = True,
        at_most_s: float | None = None,
    ) -> None:
        """`done` steps are complete; `elapsed_s` counts what an earlier, resumed run spent too.

        measured: whether the last one was done now, so that its duration tells of those to come. at_most_s: a bound
        on the seconds that are left.
        """
        now = time.perf_counter()
        elapsed = now - self._started if elapsed_s is None else elapsed_s
        left = self._eta.left(done, elapsed, now - self._last if measured else None)
        if left is not None and at_most_s is not None:
            left = min(left, at_most_s)
        self._last = now
        if self._bar is not None:
            self._bar.update(self._task, completed=done, eta=clock(left), note=note)
        elif self._console is not None and (now - self._said > 10 or done >= self._total):
            self._said = now
            self._console.print(
                f"{self._label} {done}/{self._total}  {clock(elapsed)}  eta {clock(left)}  {note}",
                highlight=False,
                soft_wrap=True,
            )
