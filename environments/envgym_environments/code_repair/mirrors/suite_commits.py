"""Commits of a local git repository in any language as tasks: the earlier tree under the later tests.

How the repository is built and tested is said by a project of a recipe (see `suites.projects`). Its own suite
proves the task, as it proves those of the factory, and the grader has to agree. A commit is not split, as it is for
Python packages: it gives one task, and its whole change of code is the answer.
"""

import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from envgym.errors import EnvironmentFailure
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.graded import believed
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.mirrors.commits import Repository, notes_of, parents_of
from envgym_environments.code_repair.mirrors.groups import Bounds
from envgym_environments.code_repair.mirrors.mirror import MirrorYield
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.quality import patch_lines
from envgym_environments.code_repair.suites.baseline import SuiteBaseline, measure_suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT
from envgym_environments.code_repair.suites.describe import certified_by, facts_of
from envgym_environments.code_repair.suites.issue import told_by_people
from envgym_environments.code_repair.suites.judge import Proof, Texts, lay, prove
from envgym_environments.code_repair.suites.local import local_project
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.tree import project_tree, project_world

__all__ = ["SuitePair", "mirror_suite_tasks", "suite_pairs"]


@dataclass(frozen=True, slots=True)
class SuitePair:
    """A commit and its parent. project: of the composed tree. broken, fixed: the code that the commit changes."""

    project: Project
    broken: Texts
    fixed: Texts
    notes: tuple[str, ...]
    provenance: Mapping[str, JsonValue]


def suite_pairs(
    repository: Repository, project: Project, cache: Path
) -> Iterator[tuple[str, Callable[[], SuitePair | str]]]:
    """Each commit of the range, latest first, with what makes its pair, or gives the reason why there is none.

    Raises ValueError when there is no such repository or range.
    """
    for commit, parents in parents_of(repository):
        yield commit, partial(_pair, repository, project, commit, parents, cache)


def _pair(
    repository: Repository, project: Project, commit: str, parents: tuple[str, ...], cache: Path
) -> SuitePair | str:
    if len(parents) != 1:
        return "merge" if parents else "first_commit"
    (parent,), suite = parents, project.suite
    changed = repository.git("diff-tree", "-r", "--name-only", "--no-renames", parent, commit).splitlines()
    code = [name for name in changed if suite.repairs(name)]
    if not code:
        return "no_code"
    tests = [name for name in changed if suite.is_test(name)]
    if not tests:
        return "no_code_and_tests"
    old, new = repository.tree_of(parent, cache), repository.tree_of(commit, cache)
    try:
        broken, fixed = ({name: _text(tree / name) for name in code} for tree in (old, new))
    except UnicodeDecodeError:
        return "no_text"
    if any("\r" in (text or "") for text in (*broken.values(), *fixed.values())):
        return "no_text"  # a patch has no place for foreign line ends
    return SuitePair(
        project=_composed(
            project.model_copy(update={"version": f"{parent[:10]}..{commit[:10]}"}), old, new, tests, cache
        ),
        broken=broken,
        fixed=fixed,
        notes=notes_of(repository, commit),
        provenance={"kind": "commit", "old": {"commit": parent}, "new": {"commit": commit}},
    )


def _text(path: Path) -> str | None:
    return path.read_bytes().decode() if path.is_file() else None


def _composed(project: Project, old: Path, new: Path, tests: Sequence[str], cache: Path) -> Project:
    """The project of the earlier tree with these files of the later one.

    Nothing else of the later tree is taken: what is built of code may be committed beside it.
    """
    with tempfile.TemporaryDirectory(prefix="envgym-commit-") as place:
        top = Path(place) / "tree"
        shutil.copytree(old, top, symlinks=True)
        for path in tests:
            (top / path).unlink(missing_ok=True)
            if (new / path).is_file():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(new / path, top / path)
        there = project.model_copy(update={"origin": "local", "source": str(top)})
        return local_project(there, beside=Path(place), cache=cache).model_copy(update={"source": project.name})


async def mirror_suite_tasks(
    pair: SuitePair, backend: SandboxBackend, cache: Path, *, bounds: Bounds, counts: MirrorYield
) -> AsyncIterator[Task]:
    """The task of one pair, if its suite proves it; what became of it is added to `counts`."""
    if patch_lines(pair.broken, pair.fixed) > bounds.most_lines or len(pair.fixed) > bounds.most_files:
        counts.pairs["too_large"] += 1
        return
    try:
        tree = await project_tree(pair.project, backend, cache=cache)
        baseline, proof = await _proved(pair, tree, backend, cache, bounds)
    except EnvironmentFailure as error:
        counts.pairs["suite_does_not_run"] += 1
        counts.said.append(f"{pair.project.slug}: {error}")
        return
    counts.runs += len(baseline.runs) + len(proof.runs)
    if proof.verdict is not Verdict.VALID:
        counts.pairs["no_failing_tests" if proof.verdict is Verdict.SURVIVED else str(proof.verdict)] += 1
        return
    found = await believed(certified_by(_task(pair, baseline, tree, proof, cache), baseline, proof), backend)
    if isinstance(found, Verdict):
        counts.groups[_NOT_BELIEVED[found]] += 1
        counts.pairs["no_valid_group"] += 1
        return
    counts.groups["valid"] += 1
    counts.pairs["used"] += 1
    yield found


async def _proved(
    pair: SuitePair, tree: Path, backend: SandboxBackend, cache: Path, bounds: Bounds
) -> tuple[SuiteBaseline, Proof]:
    """What the suite does with the later code, and with the earlier."""
    plan = Plan(certify=True, repetitions=bounds.repetitions)
    async with await backend.create(project_world(pair.project, tree, cache=cache)) as base:
        await lay(base, pair.fixed)
        baseline = await measure_suite(base, pair.project, conditions=ON_PROJECT)
        proof = await prove(base, baseline, pair.broken, pair.fixed, plan=plan)
    return baseline, proof


def _task(pair: SuitePair, baseline: SuiteBaseline, tree: Path, proof: Proof, cache: Path) -> Task:
    project, patch = pair.project, make_patch(pair.broken, pair.fixed)
    digest = hashlib.blake2b(patch.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    facts = facts_of(baseline, tree, proof)
    own: dict[str, Any] = {
        "module": min(pair.fixed),
        "operator": "commit-mirror",
        "gold": {"patch": patch, "hunks": [digest], "lines": patch_lines(pair.broken, pair.fixed)},
        "provenance": {**pair.provenance, "paths": sorted(pair.fixed)},
    }
    return Task(
        id=f"code-repair/{project.slug}/commit-mirror-{digest}",
        prompt=told_by_people(facts, pair.notes),
        world=project_world(project, tree, cache=cache),
        split=project.split,
        metadata=facts | own,
    )


_NOT_BELIEVED = {
    Verdict.NOT_RESTORED: "not_repaired",
    Verdict.SURVIVED: "passes_untouched",
    Verdict.CRASHES: "crashes",
}
"""What a group is counted as whose task the grader does not agree with."""
