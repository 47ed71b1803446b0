"""Which changes repair which tests: the failing tests of a pair, in groups with the same smallest set of changes.

A group's changes are 1-minimal: with them its tests pass and no test that passed breaks; without any single one
that is no longer so. It makes no tasks and reads no issue.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from envgym_environments.code_repair.mirrors.hunks import Hunk, places
from envgym_environments.code_repair.mirrors.minimise import TooManyTrials, minimise
from envgym_environments.code_repair.mirrors.states import States
from envgym_environments.code_repair.runner import TestReport

__all__ = ["Bounds", "Group", "Survey", "Unusable", "bridge", "executed", "groups", "survey"]

_LEAST_PASSING = 0.5
_MOST_BROKEN = 20
_MOST_TRACED = 200
_MOST_SINGLE = 24

_Holds = Callable[[tuple[Hunk, ...]], Awaitable[bool]]
_Likely = Mapping[str, Sequence[Sequence[Hunk]]]


class Unusable(Exception):
    """A pair that can give no task; the first argument is the reason as it is counted."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a repair may be, how often a state must repeat, and how much a search may cost.

    most_lines, most_files: of one repair. repetitions: runs that must agree. most_trials: subsets tried for one
    test. most_runs: runs for one pair; the search ends there. slowest_suite_s: a slower suite is left out.
    certify: keep a task only after it was run under other conditions, with the certificate of that.
    """

    most_lines: int = 120
    most_files: int = 6
    repetitions: int = 2
    most_trials: int = 150
    most_runs: int = 300
    slowest_suite_s: float = 25.0
    certify: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """What the tests do without the changes and with all of them.

    failing: test -> error, of those that fail without and pass with, every time. passing: those that pass in all
    runs. names: every test seen. flaky: those whose runs did not agree.
    """

    failing: Mapping[str, str]
    passing: tuple[str, ...]
    names: tuple[str, ...]
    flaky: tuple[str, ...]
    suite_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Tests with their smallest set of changes; `kept` pass before and after, `names` are all tests that ran."""

    gold: tuple[Hunk, ...]
    tests: tuple[str, ...]
    kept: tuple[str, ...]
    names: tuple[str, ...]


async def bridge(states: States, hunks: Sequence[Hunk], plain: TestReport, bounds: Bounds) -> tuple[Hunk, ...]:
    """The fewest changes without which test files cannot even be collected that can be with all of them.

    They are laid into the base: usually a new name that a test file imports at its top. plain: a run of the base.
    """
    missing = [
        file
        for file in states.layout.tests
        if file in plain.collection_errors or not any(name.startswith(f"{file}::") for name in plain.outcomes)
    ]
    needed: set[Hunk] = set()
    for file in missing:
        if await states.collected(sorted(needed, key=_place), file) or not await states.collected(hunks, file):
            continue

        async def holds(some: tuple[Hunk, ...], file: str = file) -> bool:
            return await states.collected(some, file)

        try:
            needed |= set(await _smallest(hunks, holds, bounds) or ())
        except TooManyTrials:
            continue  # this file's tests are lost; those of the other files are not
    return tuple(sorted(needed, key=_place))


def _place(hunk: Hunk) -> tuple[str, int]:
    return hunk.path, hunk.order


async def _smallest(
    hunks: Sequence[Hunk], holds: _Holds, bounds: Bounds, likely: Sequence[Sequence[Hunk]] = ()
) -> tuple[Hunk, ...] | None:
    """`minimise`, in the first of the `likely` sets that suffices, else file by file: most need one file only."""
    for some in likely:
        if 0 < len(some) < len(hunks) and await holds(tuple(some)):
            return await minimise(some, holds, most_trials=bounds.most_trials)
    paths = tuple(dict.fromkeys(hunk.path for hunk in hunks))

    async def by_path(some: tuple[str, ...]) -> bool:
        return bool(await holds(tuple(hunk for hunk in hunks if hunk.path in set(some))))

    chosen = await minimise(paths, by_path, most_trials=bounds.most_trials)
    if chosen is None:
        return None
    return await minimise(
        [hunk for hunk in hunks if hunk.path in set(chosen)], holds, most_trials=bounds.most_trials
    )


async def survey(states: States, hunks: Sequence[Hunk], bounds: Bounds) -> Survey:
    """Run both states several times. Raises Unusable when the suite cannot be used."""
    fixed = [await states.run(hunks)]
    _check_usable(fixed[0], bounds)
    slowest = max(fixed[0].seconds.values(), default=0.0)
    states.run_s, states.test_s = 20.0 + 6.0 * fixed[0].wall_s, 2.0 + 8.0 * slowest
    plain = [await states.run(())]
    if any(plain[0].outcomes.get(name) in ("failed", "error") for name in fixed[0].passing):
        for _ in range(bounds.repetitions - 1):
            plain.append(await states.run(()))
            fixed.append(await states.run(hunks))
    names = tuple(dict.fromkeys(name for run in (*fixed, *plain) for name in run.outcomes))
    failing, passing, flaky = {}, [], []
    for name in names:
        before = {run.outcomes.get(name) for run in plain}
        after = {run.outcomes.get(name) for run in fixed}
        if len(before) > 1 or len(after) > 1:
            flaky.append(name)
        elif after == {"passed"} and before <= {"failed", "error"}:
            failing[name] = plain[0].errors.get(name, "")
        elif after == before == {"passed"}:
            passing.append(name)
    return Survey(failing, tuple(passing), names, tuple(flaky), min(run.wall_s for run in fixed))


def _check_usable(report: TestReport, bounds: Bounds) -> None:
    ran = [name for name, outcome in report.outcomes.items() if outcome != "skipped"]
    if report.timed_out or report.wall_s > bounds.slowest_suite_s:
        raise Unusable("too_slow", f"the suite takes {report.wall_s:.0f} s; the bound is {bounds.slowest_suite_s}")
    if not ran:
        why = dict(list(report.collection_errors.items())[:2]) or report.doubt or report.stderr[-200:]
        raise Unusable("does_not_import", f"no test of the later state runs: {why}")
    if len(report.passing) < _LEAST_PASSING * len(ran):
        raise Unusable("suite_broken", f"only {len(report.passing)} of {len(ran)} tests pass in the later state")


async def executed(states: States, hunks: Sequence[Hunk], tests: Sequence[str]) -> _Likely:
    """Test -> the changes whose lines it executes when all are applied; those, and what runs at import."""
    report = await states.run(hunks, tests[:_MOST_TRACED], trace=True)
    at = places(hunks)

    def hit(hunk: Hunk, lines: Sequence[int]) -> bool:
        return any(at[hunk].start - 1 <= line <= at[hunk].stop for line in lines)

    loaded = [hunk for hunk in hunks if hit(hunk, report.import_lines.get(hunk.path, ()))]
    found: dict[str, Sequence[Sequence[Hunk]]] = {}
    for test, files in report.lines.items():
        run = {hunk for hunk in hunks if hit(hunk, files.get(hunk.path, ()))}
        near = {hunk for hunk in loaded if hunk.path in files}
        found[test] = [[hunk for hunk in hunks if hunk in some] for some in (run, run | near, run | {*loaded})]
    return found


async def groups(
    states: States, hunks: Sequence[Hunk], found: Survey, tests: Sequence[str], bounds: Bounds, lost: Counter[str]
) -> AsyncIterator[Group]:
    """The groups of `tests`, in running order; tests that end in none are counted in `lost` by reason."""
    left, likely = list(tests), await executed(states, hunks, tests)
    states.known[frozenset()] = dict.fromkeys(tests, False)
    while left:
        if states.runs >= bounds.most_runs:
            lost["out_of_runs"] += len(left)
            return
        first = left[0]
        try:
            await _try_singly(states, first, left, likely)
            gold = _alone(states, first) or await _gold(states, hunks, (first,), bounds, likely.get(first, ()))
        except TooManyTrials:
            lost["too_many_trials"] += 1
            left.remove(first)
            continue
        if not gold:
            lost["flaky"] += 1  # alone it does not do what it does in the suite
            left.remove(first)
            continue
        if not _small(gold, bounds):
            same = await _needing_both_halves(states, gold, left)
            lost["too_large"] += len({first, *same})
            left = [test for test in left if test not in {first, *same}]
            continue
        group = await _group(states, hunks, gold, left, found, bounds)
        if group is None or first not in group.tests or not _small(group.gold, bounds):
            lost["flaky" if group is None else "too_large"] += 1
            left.remove(first)
            continue
        left = [test for test in left if test not in group.tests]
        yield group


async def _try_singly(states: States, first: str, left: Sequence[str], likely: _Likely) -> None:
    """Try each change that a test executes by itself, on all tests that execute it: most bugs need one change."""
    nearest = {test: frozenset(likely[test][0]) for test in left if test in likely}
    some = likely[first][0] if first in likely else ()
    for hunk in some if len(some) <= _MOST_SINGLE else ():
        await states.passing((hunk,), [test for test in left if hunk in nearest.get(test, ())])
        if states.known[frozenset({hunk})][first]:
            return


def _alone(states: States, test: str) -> tuple[Hunk, ...] | None:
    """The one change that repairs a test, if one that was tried by itself does."""
    return next((tuple(some) for some, found in states.known.items() if len(some) == 1 and found.get(test)), None)


def _small(gold: Sequence[Hunk], bounds: Bounds) -> bool:
    return (
        sum(hunk.size for hunk in gold) <= bounds.most_lines
        and len({hunk.path for hunk in gold}) <= bounds.most_files
    )


async def _gold(
    states: States,
    hunks: Sequence[Hunk],
    tests: Sequence[str],
    bounds: Bounds,
    likely: Sequence[Sequence[Hunk]] = (),
) -> tuple[Hunk, ...] | None:
    async def holds(some: tuple[Hunk, ...]) -> bool:
        return len(await states.passing(some, tests)) == len(tests)

    return await _smallest(hunks, holds, bounds, likely)


async def _needing_both_halves(states: States, gold: Sequence[Hunk], tests: Sequence[str]) -> frozenset[str]:
    """Tests that a large set of changes repairs and neither half of it does: they are lost together."""
    half = len(gold) // 2
    repaired = await states.passing(gold, tests)
    parts = [await states.passing(part, sorted(repaired)) for part in (gold[:half], gold[half:]) if repaired]
    return repaired.difference(*parts)


async def _group(
    states: States,
    hunks: Sequence[Hunk],
    gold: tuple[Hunk, ...],
    left: Sequence[str],
    found: Survey,
    bounds: Bounds,
) -> Group | None:
    """The tests of `left` with this gold, enlarged where it breaks other tests; None when runs do not agree."""
    first = left[0]
    whole = await states.run(gold)
    broken = [test for test in found.passing if whole.outcomes.get(test) != "passed"]
    if broken:
        try:
            larger = await _gold(states, hunks, (first, *broken[:_MOST_BROKEN]), bounds)
        except TooManyTrials:
            return None
        if not larger:
            return None
        gold = larger
        whole = await states.run(gold)
        if any(whole.outcomes.get(test) != "passed" for test in found.passing):
            return None
    if whole.outcomes.get(first) != "passed":
        return None
    same = [test for test in left if whole.outcomes.get(test) == "passed"]
    if len(gold) > 1 and len(same) > 1:
        for hunk in gold:
            without = tuple(other for other in gold if other != hunk)
            passing = await states.passing(without, same)
            same = [test for test in same if test not in passing or test == first]
    kept = tuple(test for test in found.passing if whole.outcomes.get(test) == "passed")
    names = tuple(dict.fromkeys((*found.names, *whole.outcomes)))
    return Group(gold, tuple(same), kept, names)
