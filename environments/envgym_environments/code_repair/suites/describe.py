"""The task of a broken project in any language: its prompt, its world, its lists, its answer."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from envgym.task import Task, evenly
from envgym_environments.code_repair.filtering.licences import sources_of_tree
from envgym_environments.code_repair.operators import apply
from envgym_environments.code_repair.suites.baseline import SuiteBaseline
from envgym_environments.code_repair.suites.conditions import suite_certificate
from envgym_environments.code_repair.suites.judge import Proof, SuiteBug
from envgym_environments.code_repair.suites.tree import project_world

__all__ = ["certified_by", "facts_of", "make_suite_task", "prompt_of"]

_MOST_GUARDS = 300
_SHOWN = 5
_LINE = 200


def make_suite_task(baseline: SuiteBaseline, tree: Path, bug: SuiteBug, *, cache: Path | None = None) -> Task:
    """The task of a valid bug. Its id depends on the project's version, the file and the bug only."""
    trial, project = bug.trial, baseline.project
    mutation, path = trial.mutation, trial.path
    digest = hashlib.blake2b(trial.key.encode(), digest_size=5).hexdigest()
    where: dict[str, JsonValue] = {
        "module": path,
        "function": mutation.function,
        "operator": mutation.operator,
        "line": mutation.line,
    }
    gold: dict[str, JsonValue] = {
        "path": path,
        "line": mutation.line,
        "column": mutation.column,
        "wrong": mutation.after,
        "right": mutation.before,
        "patch": bug.patch,
    }
    return Task(
        id=f"code-repair/{project.slug}/{mutation.operator}-{digest}",
        prompt=prompt_of(baseline, bug.proof),
        world=project_world(project, tree, {path: apply(trial.source, mutation)}, cache=cache),
        split=project.split,
        metadata=facts_of(baseline, tree, bug.proof) | where | {"gold": gold},
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
        gold=[*baseline.conditions, "restored by the answer"],
        untouched=proof.conditions,
        versions=baseline.versions,
        seconds=proof.seconds,
    )


def prompt_of(baseline: SuiteBaseline, proof: Proof, *, notes: Sequence[str] | None = None) -> str:
    """What the model reads. notes: what those who repaired it wrote; None where one place was broken on purpose."""
    project, failing = baseline.project, proof.failing
    since = f"{project.name} does not do what it should:" if notes is not None else "Since the last change,"
    lines = [
        f"{since} {len(failing)} of the {len(baseline.tests)} tests of {project.name} "
        f"{project.version} ({project.language}) fail{'s' if len(failing) == 1 else ''}:",
        "",
    ]
    lines += [
        f"- {test}\n  {line[:_LINE]}" for test, line in list(zip(failing, _errors(proof), strict=True))[:_SHOWN]
    ]
    if len(failing) > _SHOWN:
        lines.append(f"- and {len(failing) - _SHOWN} more")
    if notes:
        lines += ["", "Those who repaired it wrote:", "", *notes]
    place = "" if notes is not None else " The mistake is in one place of that code;"
    code = f"The code is in {', '.join(baseline.suite.source)}.{place}"
    right = "the tests are right." if place else "The tests are right."
    lines += ["", f"{code} {right} Repair it, so that these tests pass again and no other test breaks."]
    commands = " && ".join([*baseline.suite.build, baseline.suite.test.replace(" {tests}", "")])
    return "\n".join([*lines, "", f"The whole suite is run by: {commands}"])


def _errors(proof: Proof) -> list[str]:
    return [proof.errors.get(test, "not run: what holds it broke") for test in proof.failing]
