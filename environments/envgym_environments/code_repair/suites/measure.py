"""Which guards a project can have, seen on its unbroken code: one run of ends and canaries, a few runs of twins.

What does not do what it should on right code (an end that nothing reaches, a twin that passes, a file that does not
compile with it) is left out. A kind of canary that does not fail there is a mistake of the recipe.
"""

import posixpath
from collections.abc import Sequence

import numpy as np

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.suites.bodies import Body, bodies
from envgym_environments.code_repair.suites.guards import Edit, Guards, Insertion, edit_of, place_of, placed
from envgym_environments.code_repair.suites.look import Look, drawn, look
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.suites.syntax.grammar import GRAMMARS

__all__ = ["measure_guards"]

_FAILED = ("failed", "error")
_MOST_FILES = 400


async def measure_guards(
    base: Sandbox,
    suite: Suite,
    canaries: Sequence[Sequence[Insertion]],
    tests: Sequence[str],
    *,
    seed: int = 0,
    rounds: int = 3,
) -> Guards:
    """The guards of a project. base: a built sandbox of its unbroken code. tests: those that pass every time.

    Raises EnvironmentFailure where a kind of canary does not fail, or has no place.
    """
    rng = np.random.default_rng(seed)
    found = await _bodies(base, suite)
    ends, seen = await _ends(base, suite, canaries, found, tests, rng)
    if canaries and (seen.unseen or seen.passed):
        raise EnvironmentFailure(
            f"canaries do not fail before any bug ({len(seen.unseen)} were not seen, {len(seen.passed)} passed): "
            f"{seen.report.doubt or seen.report.collection_errors or 'nothing runs them where they are put'}"
        )
    twins: list[Edit] = []
    for _ in range(rounds if ends else 0):
        chosen = _draw(found, ends, rng)
        shown = await look(base, suite, drawn(canaries, rng), chosen, rng, names=tests, timeout_s=suite.timeout_s)
        if not shown.report.doubt and not shown.report.collection_errors:
            twins += _failing(chosen, shown.report)
    known = {(edit.path, edit.at): edit for edit in twins}
    return Guards(canaries=tuple(map(tuple, canaries)), ends=tuple(ends), twins=tuple(known.values()))


async def _bodies(base: Sandbox, suite: Suite) -> list[tuple[str, Body]]:
    """Every test of the test files, with the file that holds it."""
    language = suite.language
    suffixes = (".py",) if language == "python" else GRAMMARS[language].suffixes
    listed = await base.exec(["find", ".", "-type", "f", "-not", "-path", "*/node_modules/*"], output_bytes=8 << 20)
    lines = listed.stdout.decode("utf-8", "surrogateescape").splitlines()
    paths = sorted(path for line in lines if suite.is_test(path := posixpath.normpath(line)))
    found = []
    for path in [path for path in paths if path.endswith(tuple(suffixes))][:_MOST_FILES]:
        text = (await base.read(path)).decode("utf-8", "surrogateescape")
        found += [(path, body) for body in bodies(text, language)]
    return found


async def _ends(
    base: Sandbox,
    suite: Suite,
    canaries: Sequence[Sequence[Insertion]],
    found: Sequence[tuple[str, Body]],
    tests: Sequence[str],
    rng: np.random.Generator,
) -> tuple[list[Edit], Look]:
    """The ends that are reached, with the tests that fail by them; files that do not compile with theirs go."""
    left, kinds = list(found), await placed(base, canaries)
    while True:
        edits = [edit_of(path, body.end, ("?",)) for path, body in left]
        seen = await look(base, suite, kinds, edits, rng, names=tests, timeout_s=suite.timeout_s)
        said = f"{seen.report.doubt} {seen.report.collection_errors} {seen.report.stderr}"
        if not seen.report.doubt and not seen.report.collection_errors:
            return _mapped(left, edits, seen, tests), seen
        kept = [one for one in left if posixpath.basename(one[0]) not in said]
        if not left:
            return [], seen
        left = kept if len(kept) < len(left) else []


def _mapped(
    found: Sequence[tuple[str, Body]], edits: Sequence[Edit], seen: Look, tests: Sequence[str]
) -> list[Edit]:
    """Each end with the tests whose error says its word.

    Where errors say no words (a reader gives one line), names tell: the function's own, or the file's where a test
    is a whole program. The word was said in any case.
    """
    errors, outcomes = seen.report.errors, seen.report.outcomes
    failed = [test for test in tests if outcomes.get(test) in _FAILED]
    silent = {test for test in failed if not any(word in errors.get(test, "") for word in seen.words.values())}
    mapped = []
    for (path, body), edit in zip(found, edits, strict=True):
        if not seen.by(edit):
            continue
        said, stem = seen.words[place_of(edit)], posixpath.basename(path).partition(".")[0]
        mine = tuple(
            test
            for test in failed
            if said in errors.get(test, "")
            or test == stem
            or (test in silent and test.rpartition("::")[2].partition("[")[0] == body.name)
        )
        if mine:
            mapped.append(edit.model_copy(update={"tests": mine}))
    return mapped


def _draw(found: Sequence[tuple[str, Body]], ends: Sequence[Edit], rng: np.random.Generator) -> list[Edit]:
    """A changed literal for as many tests as can be told apart: no test has two."""
    by_end = {(edit.path, edit.at): edit.tests for edit in ends}
    used: set[str] = set()
    drawn: list[Edit] = []
    taken: set[tuple[str, int]] = set()
    for index in rng.permutation(len(found)):
        path, body = found[int(index)]
        tests = by_end.get((path, body.end.at), ())
        if not tests or not body.twins or used & set(tests):
            continue
        change = body.twins[int(rng.integers(len(body.twins)))]
        if (path, change.at) not in taken:
            taken.add((path, change.at))
            used |= set(tests)
            drawn.append(edit_of(path, change, tests))
    return drawn


def _failing(edits: Sequence[Edit], report: TestReport) -> list[Edit]:
    """The twins by which tests fail, with these."""
    kept = []
    for edit in edits:
        mine = tuple(test for test in edit.tests if report.outcomes.get(test) in _FAILED)
        if mine:
            kept.append(edit.model_copy(update={"tests": mine}))
    return kept
