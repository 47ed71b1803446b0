"""What is expected of rows by who played what: keys of rows, and running means under them that a trainer keeps.

A scheme is pure, so a mean that runs over training cannot live in it. It is a value of its own, `Running`: read as
a term by a scheme, made anew from the episodes by whoever trains, stored as JSON beside the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from envgym.arguments import checked_between
from envgym.credit.checks import checked_finite, checked_labels
from envgym.credit.ledger import Floats, Ints, Ledger
from envgym.credit.sources import Truncation, outcome
from envgym.credit.term import Level, Meaning, Term
from envgym.episode import Group

__all__ = ["Key", "Running", "constant", "keys", "means_of", "numbered"]

Key = tuple[str, ...]
_ALWAYS = ("actor", "task", "group", "environment")
"""Names that a key may have whatever the episodes' provenance says: one that says nothing of its world has ""."""


def keys(ledger: Ledger, by: Sequence[str]) -> list[Key]:
    """The key of every row [G], one text for each name in `by`.

    "actor": who acted; "task": the task's id; "group": the episode's group, or its task where it has none. Any
    other name is looked up in the episode's provenance ("environment", what a recipe wrote there), "" without it.
    """
    found = []
    for episode, numbers in ledger.parts:
        known = {
            **dict(episode.provenance),
            "actor": episode.turns[numbers[0] if numbers else 0].actor if episode.turns else "",
            "task": episode.task_id,
            "group": episode.group or episode.task_id,
        }
        found.append(tuple(known.get(name, "") for name in by))
    _check_met(ledger, by)
    return found


def _check_met(ledger: Ledger, by: Sequence[str]) -> None:
    """Raise ValueError for a name that no episode's provenance has, where there is provenance at all."""
    said = {name for episode, _ in ledger.parts for name, _ in episode.provenance}
    for name in by:
        if said and name not in said and name not in _ALWAYS:
            known = ", ".join(sorted({*_ALWAYS, *said}))
            raise ValueError(f"by has {name!r}, which no episode's provenance has; known here: {known}")


def numbered(found: Sequence[Key]) -> Ints:
    """A number for every key, equal for equal ones."""
    codes: dict[Key, int] = {}
    return np.array([codes.setdefault(key, len(codes)) for key in found], np.intp)


def constant(value: float) -> Term:
    """One expected value for every episode [G]."""
    checked_finite("value", value)
    return Term(
        f"constant({value:g})", Level.EPISODE, Meaning.VALUE, lambda ledger: np.full(ledger.rows, float(value))
    )


@dataclass(frozen=True)
class Running:
    """Exponential means of outcomes, one for each key (see `keys`); () as `by` has one mean for everything.

    ``mean <- decay^n * mean + (1 - decay^n) * (mean of the n new outcomes)``: what one update per episode gives on
    average, without depending on their order. start: the mean before anything was seen; None begins with the first
    outcomes (the mean divided by 1 - decay^n, as Adam does), and expects nothing of a key that was never met.
    means: for each key its running mean and how many outcomes are in it.
    Source: role-conditioned advantage estimation, SPIRAL (Liu et al. 2025, arXiv 2506.24119: decay 0.95, start 0).
    """

    by: Key = ()
    decay: float = 0.95
    start: float | None = 0.0
    means: Mapping[Key, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "by", checked_labels("by", self.by, "the name of what parts means, such as 'task'")
        )
        checked_between("decay", self.decay, 0, 1)
        if self.decay == 1:
            raise ValueError("decay is 1; it must be less than 1, or nothing is ever learned")
        if self.start is not None:
            checked_finite("start", self.start)

    def updated(self, groups: Sequence[Group], *, truncation: Truncation = "mask") -> "Running":
        """The same after these episodes; those whose outcome is not known change nothing."""
        ledger = Ledger.of(groups)
        earned = outcome(truncation=truncation).of(ledger)
        seen: dict[Key, list[float]] = {}
        for key, value in zip(keys(ledger, self.by), earned.tolist(), strict=True):
            if value == value:
                seen.setdefault(key, []).append(value)
        means = dict(self.means)
        for key, values in seen.items():
            before, count = means.get(key, (self.start or 0.0, 0))
            kept = self.decay ** len(values)
            means[key] = (kept * before + (1 - kept) * float(np.mean(values)), count + len(values))
        return replace(self, means=means)

    def expects(self, key: Key) -> float:
        """The mean under a key; NaN for one that was never met and has no `start`."""
        if key not in self.means:
            return np.nan if self.start is None else float(self.start)
        mean, count = self.means[key]
        return mean if self.start is not None else mean / (1 - self.decay**count)

    def expected(self) -> Term:
        """These means as values of episodes [G]."""

        def run(ledger: Ledger) -> Floats:
            return np.array([self.expects(key) for key in keys(ledger, self.by)], np.float64)

        return Term(f"running(by={self.by})", Level.EPISODE, Meaning.VALUE, run)

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        means = [[list(key), mean, count] for key, (mean, count) in self.means.items()]
        return {"by": list(self.by), "decay": self.decay, "start": self.start, "means": means}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Running":
        """What `state` gave, as it was."""
        means = {tuple(key): (float(mean), int(count)) for key, mean, count in state["means"]}
        return cls(tuple(state["by"]), state["decay"], state["start"], means)


def means_of(
    groups: Sequence[Group], by: Key = ("task", "group", "actor"), *, truncation: Truncation = "mask"
) -> Running:
    """The plain means of these groups' outcomes, to be expected elsewhere: all that was sampled, for what was kept.

    Groups of several runs may be named alike: those of one task alone are compared.

    Source: the baseline over all samples of an adaptive phase, Reinforce-Ada (Xiong et al. 2025, arXiv 2510.04996).
    """
    return Running(by, decay=0.0, start=None).updated(groups, truncation=truncation)
