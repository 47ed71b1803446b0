"""The sum of a collection, for people and for scripts."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from envgym.cli.plan import Plan
from envgym.cli.spending import Meter
from envgym.episode import Episode
from envgym.plain_text import visible

__all__ = ["Tally", "show"]


class Tally:
    """Counts of a plan's episodes. What differs in the ids of task and episode alone is one failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.turns = self.sampled = self.failed = 0
        self.seen: set[str] = set()
        self.acted: set[str] = set()
        self.rewards: list[float] = []
        self.stops: Counter[str] = Counter()
        self.failures: dict[tuple[str, ...], dict[str, Any]] = {}
        self._due = self._taken = False

    @property
    def done(self) -> int:
        """How many were counted."""
        return len(self.seen)

    def add(self, episode: Episode, *, earlier: bool = False) -> None:
        """Count one episode. earlier: it ended in another call, which may have been asked for other things."""
        self.seen.add(episode.id)
        self.turns += len(episode.turns)
        self.acted.update(turn.actor for turn in episode.turns)
        self.sampled += episode.sampled_tokens
        if not earlier:
            self._due = self._due or len(episode.turns) > self.plan.snapshot_every
            self._taken = self._taken or any(turn.snapshot is not None for turn in episode.turns)
        if episode.failure is None:
            self.stops[str(episode.stop)] += 1
            self.rewards += [] if episode.reward is None else [episode.reward]
            return
        self.failed += 1
        failure, general = episode.failure, episode.failure.message
        for name in (episode.id, episode.task_id):
            general = general.replace(name, "")
        row = {"boundary": str(failure.boundary), "kind": failure.kind, "where": failure.where}
        first = {**row, "message": failure.message[:300], "count": 0}
        self.failures.setdefault((*row.values(), general), first)["count"] += 1

    def notes(self) -> Iterator[str]:
        """What was asked for and did nothing."""
        plan = self.plan
        if plan.snapshot_every and self._due and not self._taken:
            yield (
                f"--snapshot-every {plan.snapshot_every} kept none: the worlds of {plan.env!r} take no snapshots "
                "that outlive a process here; what is killed goes on by replay"
            )
        if last := plan.episodes % plan.group:
            yield f"-n {plan.episodes} is no multiple of --group {plan.group}: the last group is one of {last}"
        for actor in sorted(self.plan.others.keys() - self.acted) if self.turns else ():
            known = ", ".join(sorted(self.acted))
            yield f"--actor {actor}: no episode asked for an actor of that name; those that acted: {known}"
        if not self.turns and self.stops.get("context_limit"):
            yield "no episode had room for an answer: its task is longer than the context that the agent has"

    def note(self, meter: Meter) -> str:
        """The present rates, on one line."""
        new, here_s = meter.spent - meter.before, max(meter.here_s, 1e-9)
        parts = [f"{new.tokens / here_s:.0f} tokens/s"] if new.tokens else []
        parts += [f"{meter.spent.usd:.4f} usd"] if meter.spent.usd else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return "  ".join(parts)

    def summary(self, out: Path | None, meter: Meter) -> dict[str, Any]:
        """What a script is told. ended_by: the budget that is spent, where it kept an episode from being played."""
        cut = self.done < self.plan.episodes
        return {
            "environment": self.plan.env,
            "agent": self.plan.agent,
            "episodes": self.done,
            "of": self.plan.episodes,
            "group": self.plan.group,
            "ended_by": meter.over if cut else None,
            "failed": self.failed,
            "turns": self.turns,
            "sampled_tokens": self.sampled,
            "mean_reward": float(np.mean(self.rewards)) if self.rewards else None,
            "stops": dict(self.stops.most_common()),
            "failures": sorted(self.failures.values(), key=lambda row: -row["count"]),
            "tokens": meter.spent.tokens,
            "usd": meter.spent.usd,
            "wall_s": meter.here_s,
            "all_calls_s": meter.wall_s,
            "out": None if out is None else str(out),
        }


def show(summary: dict[str, Any]) -> None:
    """Print a summary."""
    mean = summary["mean_reward"]
    print(
        f"{summary['episodes']} episodes of {summary['environment']} by {summary['agent']} in "
        f"{summary['wall_s']:.1f} s: {summary['turns']} turns, mean reward "
        f"{'none' if mean is None else f'{mean:.3f}'}"
    )
    for stop, count in summary["stops"].items():
        print(f"  {count:6}  {stop}")
    if summary["failures"]:
        print(f"{summary['failed']} failed; they have no reward and are in no mean:")
    for row in summary["failures"]:
        first = visible((row["message"].splitlines() or [""])[0])
        print(f"  {row['count']:6}  {row['boundary']}  {row['kind']}: {first}")
    if summary["tokens"]:
        print(f"spent: {summary['tokens']} tokens, {summary['usd']:.4f} usd")
    if summary["ended_by"]:
        print(f"{summary['ended_by']}: {summary['episodes']} of {summary['of']} episodes were played")
    if summary["out"]:
        if summary["failed"]:
            print("the same command with --retry-failed plays those that failed again")
        if summary["ended_by"]:
            print("the same command with a larger budget goes on")
        if summary["group"] == 1 and summary["episodes"] > 1:
            print("every group is one episode: for pairs and credit by comparison, --group K plays K of each task")
        print(f"written to {summary['out']}; look at them with: envgym show {shlex.quote(summary['out'])}")
