"""A validated bug as a `Task`: the issue a model reads, the world it plays in, and the answer kept apart from both.

The prompt says what fails and how, never where the bug is. ``metadata["gold"]`` is the answer: only `check_task`
and analyses may read it.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pydantic import JsonValue

from envgym.task import Task, evenly
from envgym_environments.code_repair.baseline import Baseline, package_world
from envgym_environments.code_repair.operators import apply
from envgym_environments.code_repair.runner import WORKDIR

if TYPE_CHECKING:
    from envgym_environments.code_repair.factory import Bug

__all__ = ["make_task", "restore"]

_SHOWN = 5
_LINE = 200
_MOST_GUARDS = 300
_ENOUGH_GUARDS = 60


def _prompt(baseline: Baseline, failing: Sequence[str], errors: Sequence[str]) -> str:
    package = baseline.package
    lines = [
        f"Since the last change, {len(failing)} of the {len(baseline.tests)} tests of {package.name} "
        f"{package.version} fail{'s' if len(failing) == 1 else ''}:",
        "",
    ]
    lines += [f"- {test}\n  {error[:_LINE]}" for test, error in list(zip(failing, errors, strict=True))[:_SHOWN]]
    if len(failing) > _SHOWN:
        lines.append(f"- and {len(failing) - _SHOWN} more")
    lines += [
        "",
        f"The package's code is in {baseline.layout.package}. The mistake is in one place of that code; the tests "
        "are right. Repair it, so that these tests pass again and no other test breaks.",
    ]
    return "\n".join(lines)


def _overlay(path: str, text: str) -> dict[str, str]:
    """The broken module, and an empty file over its byte code, which still holds the unbroken body."""
    place = PurePosixPath(WORKDIR) / path
    cached = place.parent / "__pycache__" / f"{place.stem}.{sys.implementation.cache_tag}.pyc"
    return {str(place): text, str(cached): ""}


def _gold(bug: "Bug") -> dict[str, JsonValue]:
    """The answer: the file's original text in the place of the bug, and the same as a patch for people."""
    mutation = bug.candidate.mutation
    return {
        "path": bug.candidate.path,
        "line": mutation.line,
        "column": mutation.column,
        "wrong": mutation.after,
        "right": mutation.before,
        "patch": bug.patch,
    }


def restore(broken: str, gold: dict[str, JsonValue]) -> str:
    """The file's text with the bug repaired as `gold` says. Raises ValueError when it is not this task's bug."""
    line, column, wrong = gold["line"], gold["column"], gold["wrong"]
    if not isinstance(line, int) or not isinstance(column, int) or not isinstance(wrong, str):
        raise ValueError(f"gold {gold!r} is malformed: line and column must be integers, wrong a string")
    at = sum(len(text) for text in broken.splitlines(keepends=True)[: line - 1]) + column
    if broken[at : at + len(wrong)] != wrong:
        raise ValueError(f"expected {wrong!r} at line {line}, column {column}; found {broken[at : at + 40]!r}")
    return broken[:at] + str(gold["right"]) + broken[at + len(wrong) :]


def _guards(baseline: Baseline, bug: "Bug") -> list[JsonValue]:
    """Tests that pass with the bug and must still pass after the repair, in running order.

    Those that run the bug's place come first; where they are few, others of the same file are added, evenly spread.
    """
    place = evenly(bug.passing, _MOST_GUARDS)
    known = {*bug.failing, *bug.candidate.covering}
    of_file = {test for tests in baseline.covers[bug.candidate.path].values() for test in tests} - known
    others = [test for test in baseline.tests if test in of_file]
    chosen = {*place, *evenly(others, max(0, _ENOUGH_GUARDS - len(place)))}
    return [test for test in baseline.tests if test in chosen]


def make_task(baseline: Baseline, tree: Path, bug: "Bug") -> Task:
    """The task of a valid bug. Its id depends on the package's version, the file and the bug only."""
    candidate, package = bug.candidate, baseline.package
    mutation, path = candidate.mutation, candidate.path
    digest = hashlib.blake2b(f"{path}\x1f{mutation.digest}".encode(), digest_size=5).hexdigest()
    broken = apply(candidate.source, mutation)
    errors = [bug.report.errors.get(test, "") if bug.report else "" for test in bug.failing]
    metadata: dict[str, JsonValue] = {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "layout": baseline.layout.model_dump(mode="json"),
        "module": path,
        "function": mutation.function,
        "operator": mutation.operator,
        "line": mutation.line,
        "fail_to_pass": list(bug.failing),
        "pass_to_pass": _guards(baseline, bug),
        "errors": dict(zip(bug.failing, errors, strict=True)),
        "tests": len(baseline.tests),
        "suite_s": round(baseline.suite_s, 3),
        "gold": _gold(bug),
    }
    return Task(
        id=f"code-repair/{package.slug}/{mutation.operator}-{digest}",
        prompt=_prompt(baseline, bug.failing, errors),
        world=package_world(tree, _overlay(path, broken)),
        split=package.split,
        metadata=metadata,
    )
