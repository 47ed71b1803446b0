"""Where a package can be broken: each single mistake that its tests can notice, and what became of those tried."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Candidate, Judged, Plan, Verdict
from envgym_environments.code_repair.operators import OPERATORS, SMALL, candidates
from envgym_environments.code_repair.patch import counts as counts_as_source
from envgym_environments.code_repair.runner import Layout

__all__ = ["Yield", "covered_sources", "find_candidates", "readable"]


@dataclass(slots=True)
class Yield:
    """Counts of verdicts by operator, over one or more packages.

    Places that no test executes are `uncovered`, those that too many execute `crowded`. tasks: how many were made
    of the valid ones. foreign: modules left out for what lines end with (see `covered_sources`).
    """

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    uncovered: int = 0
    crowded: int = 0
    seconds: float = 0.0
    tasks: int = 0
    foreign: int = 0

    def add(self, bug: Judged) -> None:
        """Count one judged candidate."""
        self.verdicts.setdefault(bug.candidate.operator, Counter())[bug.verdict] += 1

    def take_back(self, bug: Judged, verdict: Verdict) -> None:
        """Count a bug that was valid by its tests as what the grader says of its task."""
        self.verdicts[bug.candidate.operator].subtract([Verdict.VALID])
        self.verdicts[bug.candidate.operator][verdict] += 1

    @property
    def valid(self) -> int:
        """How many were valid."""
        return sum(counts[Verdict.VALID] for counts in self.verdicts.values())

    @property
    def tried(self) -> int:
        """How many were judged."""
        return sum(counts.total() for counts in self.verdicts.values())


def covered_sources(tree: Path, layout: Layout, covered: Sequence[str]) -> list[tuple[str, str]]:
    """(path, text) of the package's modules that tests execute.

    Files with foreign line ends, with form feeds, or that are no UTF-8 are left out; ValueError where all are.
    """
    modules = [path for path in sorted(covered) if counts_as_source(path, layout)]
    return readable(tree, modules, "\r\ufffd\f")


def readable(tree: Path, paths: Sequence[str], foreign: str) -> list[tuple[str, str]]:
    """(path, text) of the files without one of these characters. Raises ValueError where there is none without."""
    found = []
    for path in paths:
        text = (tree / path).read_bytes().decode("utf-8", "replace")
        if not any(letter in text for letter in foreign):
            found.append((path, text))
    if paths and not found:
        more = f" and {len(paths) - 1} more" * (len(paths) > 1)
        raise ValueError(
            f"nothing can be broken: {paths[0]}{more} have other line ends than \\n (as CRLF), form feeds, or are "
            "no UTF-8; patches and line numbers would not hold there"
        )
    return found


def find_candidates(tree: Path, baseline: Baseline, plan: Plan, counts: Yield) -> list[Candidate]:
    """Every single mistake of the package that some tests, and not too many, can notice."""
    found: list[Candidate] = []
    operators = SMALL if plan.operators == "small" else OPERATORS
    sources = covered_sources(tree, baseline.layout, list(baseline.covers))
    counts.foreign += sum(counts_as_source(path, baseline.layout) for path in baseline.covers) - len(sources)
    for path, source in sources:
        for mutation in candidates(source, operators=operators):
            covering = baseline.covering(path, mutation.first_line, mutation.last_line)
            if 0 < len(covering) <= plan.most_covering:
                found.append(Candidate(path, source, mutation, covering))
            counts.uncovered += not covering
            counts.crowded += len(covering) > plan.most_covering
    return found
