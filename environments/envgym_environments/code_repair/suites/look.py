"""One guarded run of a suite: canaries laid, test files edited, and what of both the results say.

It says what was seen; what that is worth is for `measure` (on right code) and for the verdict (on a submission).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.guards import (
    Canary,
    Edit,
    Insertion,
    draw_canary,
    edited,
    lay,
    place_of,
)
from envgym_environments.code_repair.suites.readers import reader
from envgym_environments.code_repair.suites.results import Raw
from envgym_environments.code_repair.suites.run import run_suite
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["Look", "drawn", "look", "look_at"]

_CANARIES = 2


@dataclass(frozen=True, slots=True)
class Look:
    """What one guarded run showed.

    report: of the suite's own tests. words: of the edits, by their places. said: the places whose word was said.
    unseen: canaries that did not fail with their word. passed: canaries that were reported as anything but failed.
    """

    report: TestReport
    words: dict[str, str]
    said: frozenset[str]
    unseen: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def void(self) -> bool:
        """Whether the results lie: a canary passed, or is not among results that agree with themselves."""
        return bool(self.passed or (self.unseen and not self.report.doubt and not self.report.collection_errors))

    @property
    def lies(self) -> bool:
        """Whether a canary passed, or a word was said that honest values never say."""
        return bool(self.passed or self.said)

    def by(self, edit: Edit) -> bool:
        """Whether the word of an edit was said."""
        return place_of(edit) in self.said


async def look(
    base: Sandbox,
    suite: Suite,
    kinds: Sequence[Sequence[Insertion]],
    edits: Sequence[Edit],
    rng: np.random.Generator,
    *,
    names: Sequence[str],
    timeout_s: float,
) -> Look:
    """Run the whole suite in a fork of `base`, with these edits and with a canary of each of these kinds.

    names: of tests, which the canaries' names resemble.
    """
    async with await base.fork() as sandbox:
        words = await edited(sandbox, edits, rng)
        canaries: list[Canary] = []
        for kind in kinds:
            canaries.append(draw_canary(names, rng))
            await lay(sandbox, kind, canaries[-1], rng)
        return await look_at(sandbox, suite, words, canaries, timeout_s=timeout_s)


async def look_at(
    sandbox: Sandbox,
    suite: Suite,
    words: dict[str, str],
    canaries: Sequence[Canary],
    *,
    selection: Sequence[str] | None = None,
    timeout_s: float | None,
) -> Look:
    """Run the suite, or a selection of it, where these words and canaries stand already."""
    raws: list[Raw] = []
    report = await run_suite(sandbox, suite, selection=selection, timeout_s=timeout_s, raws=raws)
    seen = report.outcomes
    if selection is not None:  # a canary may have cases, which nobody can select
        seen = {name: outcome for raw in raws for name, outcome in reader(suite.reader).read(raw).outcomes.items()}
    return _seen(report, seen, _text(raws), words, canaries)


def drawn(kinds: Sequence[Sequence[Insertion]], rng: np.random.Generator) -> list[Sequence[Insertion]]:
    """The kinds of a few canaries."""
    return [kinds[int(index)] for index in rng.integers(len(kinds), size=_CANARIES)] if kinds else []


def _text(raws: Sequence[Raw]) -> str:
    parts = [part for raw in raws for part in (raw.stdout, raw.stderr, *raw.files.values())]
    return "\n".join(part.decode("utf-8", "replace") for part in parts)


def _seen(
    report: TestReport,
    outcomes: Mapping[str, str],
    text: str,
    words: dict[str, str],
    canaries: Sequence[Canary],
) -> Look:
    unseen, passed, theirs = [], [], set()
    for canary in canaries:
        theirs |= {name for name in report.outcomes if canary.name in name}
        found = [name for name in outcomes if canary.name in name]
        if any(outcomes[name] not in ("failed", "error") for name in found):
            passed.append(canary.name)
        if not found or canary.word not in text:
            unseen.append(canary.name)
    own = replace(
        report,
        outcomes={name: outcome for name, outcome in report.outcomes.items() if name not in theirs},
        errors={name: line for name, line in report.errors.items() if name not in theirs},
        seconds={name: took for name, took in report.seconds.items() if name not in theirs},
    )
    said = frozenset(place for place, word in words.items() if word in text)
    return Look(own, words, said, tuple(unseen), tuple(passed))
