"""What a kind of task is: places where it can be asked, what trying one shows, and the texts that follow from both.

A draft is a pure function of the package's tree, a place and what was seen, so that a task is made again from these
alone (see `index`). Places and what was seen hold names, numbers and test ids, never code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.runner import Layout

__all__ = ["Draft", "Kind", "Place", "Seen"]

Place = Mapping[str, Any]
"""Where a task is asked, as JSON; "form" says which of a kind's forms, for the yield."""
Seen = Mapping[str, Any]
"""What was measured there, as JSON: it becomes part of the task's metadata as it stands."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The texts of one task.

    name: a word for its id. prompt: what the agent reads. before: path -> text of the agent's world where it is
    not the tree's; "" blanks a file. withheld: those of them that the grader's world has as the tree has them.
    answer: path -> text, what the reference solution writes. goal: what the judge needs beside the tests; never
    shown. writes: files that count as work beside the package's code. size: how much is asked, by name: it is the
    task's difficulty before anybody has tried it.
    """

    name: str
    prompt: str
    before: Mapping[str, str]
    answer: Mapping[str, str]
    goal: Mapping[str, Any] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    size: Mapping[str, float] = field(default_factory=dict)


class Kind(Protocol):
    """One kind. `name` is what `envgym tasks build --kind` takes."""

    @property
    def name(self) -> str:
        """Kebab-case."""
        ...

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Where it can be asked of this package, in text order. Runs nothing."""
        ...

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """Try a place in forks of the unbroken package: what was seen, or why it is none."""
        ...

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The texts. Raises ValueError where the place is not in this tree."""
        ...
