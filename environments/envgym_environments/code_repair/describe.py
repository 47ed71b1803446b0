"""A validated bug as a `Task`: the issue a model reads, the world it plays in, and the answer kept apart from both.

``metadata["gold"]`` is the answer: only `check_task`
and analyses may read it.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from envgym.task import Task, evenly
from envgym_environments.code_repair.baseline import Baseline, package_world
from envgym_environments.code_repair.certify import certified
from envgym_environments.code_repair.filtering.licences import sources_of_tree
from envgym_environments.code_repair.issue import issue_of
from envgym_environments.code_repair.operators import Mutation, apply_all
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.runner import WORKDIR, Layout
from envgym_environments.code_repair.sources import Package

if TYPE_CHECKING:
    from envgym_environments.code_repair.judge import Bug, Plan

__all__ = [
    "Part",
    "assemble",
    "gold_of",
    "is_local",
    "make_task",
    "name_of",
    "overlay",
    "package_metadata",
    "restore",
    "restored",
]


class Part(NamedTuple):
    """One mistake: the file, its text without any, and what becomes another text."""

    path: str
    source: str
    mutation: Mutation


_MOST_GUARDS = 300
_ENOUGH_GUARDS = 60


def overlay(path: str, text: str) -> dict[str, str]:
    """The broken module, and an empty file over its byte code, which still holds the unbroken body."""
    place = PurePosixPath(WORKDIR) / path
    cached = place.parent / "__pycache__" / f"{place.stem}.{sys.implementation.cache_tag}.pyc"
    return {str(place): text, str(cached): ""}


def gold_of(parts: Sequence[Part], patch: str) -> dict[str, JsonValue]:
    """The answer: the original text in every bug's place, and the same as a patch for people.

    A place counts in the file as it was before it was broken, so several of one file are restored in their order.
    The first bug's place and texts stand there by themselves too.
    """
    places: list[JsonValue] = [
        {
            "path": part.path,
            "line": part.mutation.line,
            "column": part.mutation.column,
            "wrong": part.mutation.after,
            "right": part.mutation.before,
        }
        for part in parts
    ]
    (first, *_) = places
    assert isinstance(first, dict)
    return {**first, "patch": patch, "bugs": places}


def restore(broken: str, gold: Mapping[str, JsonValue]) -> str:
    """The file's text with one bug repaired as `gold` says. Raises ValueError when it is not this task's bug."""
    line, column, wrong = gold["line"], gold["column"], gold["wrong"]
    if not isinstance(line, int) or not isinstance(column, int) or not isinstance(wrong, str):
        raise ValueError(f"gold {gold!r} is malformed: line and column must be integers, wrong a string")
    at = sum(len(text) for text in broken.splitlines(keepends=True)[: line - 1]) + column
    if broken[at : at + len(wrong)] != wrong:
        raise ValueError(f"expected {wrong!r} at line {line}, column {column}; found {broken[at : at + 40]!r}")
    return broken[:at] + str(gold["right"]) + broken[at + len(wrong) :]


def restored(task: Task, read: Callable[[str], str]) -> dict[str, str]:
    """Path -> text of every file that the task's answer repairs; `read` gives a file's broken text.

    Raises ValueError when the task has no answer, or one that does not fit its files.
    """
    gold = task.metadata.get("gold")
    if not isinstance(gold, dict):
        raise ValueError(f"task {task.id!r} has no 'gold'; it is not a task of the factory")
    places = gold.get("bugs", [gold])
    texts: dict[str, str] = {}
    for place in places if isinstance(places, list) else []:
        if not isinstance(place, dict):
            raise ValueError(f"task {task.id!r}: a bug of its 'gold' is {place!r}, no mapping")
        path = str(place["path"])
        texts[path] = restore(texts[path] if path in texts else read(path), place)
    return texts


def _guards(baseline: Baseline, bug: "Bug") -> list[JsonValue]:
    """Tests that pass with the bug and must still pass after the repair, in running order.

    Those that run the bug's place come first; where they are few, others of the same file are added, evenly spread.
    """
    place = evenly(bug.passing, _MOST_GUARDS)
    known = {*bug.failing, *bug.candidate.covering}
    paths = {part.path for part in bug.candidate.parts}
    of_file = {test for path in paths for tests in baseline.covers[path].values() for test in tests} - known
    of_file -= set(bug.quarantined)
    others = [test for test in baseline.tests if test in of_file]
    chosen = {*place, *evenly(others, max(0, _ENOUGH_GUARDS - len(place)))}
    return [test for test in baseline.tests if test in chosen]


def make_task(baseline: Baseline, tree: Path, bug: "Bug", plan: "Plan") -> Task:
    """The task of a valid bug."""
    parts = [Part(part.path, part.source, part.mutation) for part in bug.candidate.parts]
    report = bug.report
    facts: dict[str, JsonValue] = {
        "distance": plan.distance if len(parts) > 1 else "",
        "interacting": bug.interacting,
        "issue": plan.issue,
        "seed": plan.seed,
        "fail_to_pass": list(bug.failing),
        "pass_to_pass": _guards(baseline, bug),
        "errors": {test: report.errors.get(test, "") if report else "" for test in bug.failing},
        "depths": {test: len(report.frames.get(test, ())) if report else 0 for test in bug.failing},
        "tests": len(baseline.tests),
        "suite_s": round(baseline.suite_s, 3),
    }
    if plan.rewrite is not None:
        facts["written_by"] = plan.rewrite.writer.told
    task = assemble(baseline.package, baseline.layout, tree, parts, facts)
    return certified(task, baseline, bug) if plan.certify else task


def package_metadata(package: Package, tree: Path, layout: Layout) -> dict[str, JsonValue]:
    """What every task keeps of the package that its tree is, the licences of its files included."""
    return {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "licence": package.licence,
        "sources": sources_of_tree(
            tree,
            origin=f"{package.origin} {package.name}=={package.version}",
            sha256=package.sha256,
            licence=package.licence,
        ),
        "layout": layout.model_dump(mode="json"),
    }


def assemble(
    package: Package, layout: Layout, tree: Path, parts: Sequence[Part], facts: Mapping[str, JsonValue]
) -> Task:
    """A task from its mistakes and what was seen of them: the same again from the same, byte by byte.

    parts: by path and place. facts: what of the metadata was measured or chosen. The id depends on the package's
    version, the files and the mistakes only.
    """
    originals = {part.path: part.source for part in parts}
    broken = {
        path: apply_all(text, [part.mutation for part in parts if part.path == path])
        for path, text in originals.items()
    }
    laid: dict[str, str] = {}
    for path, text in broken.items():
        laid |= overlay(path, text)
    names = [part.mutation.operator for part in parts]
    operator = names[0] if len(names) == 1 else f"{len(names)}-bugs"
    metadata: dict[str, JsonValue] = {
        **package_metadata(package, tree, layout),
        "module": parts[0].path,
        "function": parts[0].mutation.function,
        "functions": [part.mutation.function for part in parts],
        "operator": operator,
        "operators": list(names),
        "line": parts[0].mutation.line,
        "bugs": len(parts),
        "digests": [part.mutation.digest for part in parts],
        **facts,
        "gold": gold_of(parts, make_patch(broken, originals)),
    }
    return Task(
        id=f"code-repair/{package.slug}/{operator}-{name_of(parts)}",
        prompt=issue_of(metadata),
        world=package_world(tree, laid),
        split=package.split,
        metadata=metadata,
    )


def is_local(task: Task) -> bool:
    """Whether a task stands on a tree of some machine, which nothing can fetch again."""
    sources = task.metadata.get("sources")
    return isinstance(sources, dict) and str(sources.get("origin", "")).startswith("local ")


def name_of(parts: Sequence[Part]) -> str:
    """Ten hexadecimal digits that name these mistakes within a package."""
    named = "\x1f".join(f"{part.path}\x1f{part.mutation.digest}" for part in parts)
    return hashlib.blake2b(named.encode(), digest_size=5).hexdigest()
