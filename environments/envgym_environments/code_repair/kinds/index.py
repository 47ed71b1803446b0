"""A task of a kind as a row of an index, and the task from the row: place, what was seen, certificate; no code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgym.task import Task
from envgym_environments.code_repair.certify import Certificate, certificate_of, with_certificate
from envgym_environments.code_repair.kinds.assemble import assemble
from envgym_environments.code_repair.kinds.registry import kind_named
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import Package

__all__ = ["asked_again", "is_of_a_kind", "row_of"]


def is_of_a_kind(task: Task) -> bool:
    """Whether it was made by `kinds.build`."""
    return bool(task.metadata.get("kind")) and "place" in task.metadata


def row_of(task: Task) -> dict[str, Any]:
    """The row. Its package and layout stand in the head of the index."""
    data: dict[str, Any] = dict(task.metadata)
    certificate = certificate_of(task)
    return {
        "kind": data["kind"],
        "place": data["place"],
        "seen": {name: data[name] for name in data["seen"]},
        "certificate": None if certificate is None else certificate.model_dump(mode="json"),
    }


def asked_again(package: Package, layout: Layout, tree: Path, row: Mapping[str, Any]) -> Task:
    """The task. Raises ValueError where its place is not in the tree, or it is not what was certified."""
    task = assemble(kind_named(row["kind"]), package, layout, tree, row["place"], row["seen"])
    if row["certificate"] is None:
        return task
    certificate = Certificate.model_validate(row["certificate"])
    made = with_certificate(task, certificate)
    if certificate_of(made) != certificate:
        raise ValueError(
            f"task {task.id!r} is not made again as it was: rebuild with the version that wrote the index"
        )
    return made
