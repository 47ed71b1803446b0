"""The task of a broken project in any language: its prompt, its world, its lists, its answer."""

from pathlib import Path

from pydantic import JsonValue

from envgym.task import Task, evenly
from envgym_environments.code_repair.describe import Part, gold_of, name_of
from envgym_environments.code_repair.filtering.licences import sources_of_tree
from envgym_environments.code_repair.judge import Plan
from envgym_environments.code_repair.suites.baseline import SuiteBaseline
from envgym_environments.code_repair.suites.conditions import suite_certificate
from envgym_environments.code_repair.suites.issue import issue_of_suite
from envgym_environments.code_repair.suites.judge import Proof, SuiteBug
from envgym_environments.code_repair.suites.tree import project_world

__all__ = ["certified_by", "facts_of", "make_suite_task"]

_MOST_GUARDS = 300


def make_suite_task(
    baseline: SuiteBaseline, tree: Path, bug: SuiteBug, plan: Plan, *, cache: Path | None = None
) -> Task:
    """The task of a valid bug. Its id depends on the project's version, the files and the mistakes only."""
    project = baseline.project
    parts = [Part(one.path, one.source, one.mutation) for one in bug.candidate.parts]
    (first, *_) = parts
    facts: dict[str, JsonValue] = {
        "module": first.path,
        "function": first.mutation.function,
        "functions": [part.mutation.function for part in parts],
        "operator": bug.candidate.operator,
        "operators": [part.mutation.operator for part in parts],
        "line": first.mutation.line,
        "bugs": len(parts),
        "distance": plan.distance if len(parts) > 1 else "",
        "interacting": bug.interacting,
        "issue": plan.issue,
        "gold": gold_of(parts, bug.patch),
    }
    if plan.rewrite is not None:
        facts["written_by"] = plan.rewrite.writer.told
    metadata = facts_of(baseline, tree, bug.proof) | facts
    return Task(
        id=f"code-repair/{project.slug}/{bug.candidate.operator}-{name_of(parts)}",
        prompt=issue_of_suite(metadata),
        world=project_world(project, tree, bug.candidate.broken, cache=cache),
        split=project.split,
        metadata=metadata,
    )


def facts_of(baseline: SuiteBaseline, tree: Path, proof: Proof) -> dict[str, JsonValue]:
    """What a task says of its project and of its tests."""
    project = baseline.project
    return {
        "package": project.name,
        "version": project.version,
        "sha256": project.sha256,
        "origin": project.origin,
        "licence": project.licence,
        "sources": sources_of_tree(
            tree,
            origin=f"{project.origin} {project.source}=={project.version}",
            sha256=project.sha256,
            licence=project.licence,
        ),
        "language": project.language,
        "suite": baseline.suite.model_dump(mode="json"),
        "fail_to_pass": list(proof.failing),
        "pass_to_pass": list(evenly(proof.passing, _MOST_GUARDS)),
        "errors": dict(zip(proof.failing, _errors(proof), strict=True)),
        "tests": len(baseline.tests),
        "suite_s": round(baseline.suite_s + baseline.build_s, 3),
        "guards": baseline.guards.of(proof.failing).model_dump(mode="json"),
    }


def certified_by(task: Task, baseline: SuiteBaseline, proof: Proof) -> Task:
    """The task with its certificate.

    The answer restores the unbroken files byte by byte: a run of the unbroken project is one of the answer.
    """
    return suite_certificate(
        task,
        baseline.suite,
        gold=[*baseline.runs, *proof.repaired],
        untouched=proof.runs,
        versions=baseline.versions,
        seconds=proof.seconds,
        date=baseline.dated,
    )


def _errors(proof: Proof) -> list[str]:
    return [proof.errors.get(test, "not run: what holds it broke") for test in proof.failing]
