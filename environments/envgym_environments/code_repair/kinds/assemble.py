"""A task of any kind from its place and what was seen there: the same again from the same, byte by byte.

The format is that of repair tasks; ``metadata["kind"]`` says what is asked, "place" and "seen" where it comes from.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from _pytest.assertion import rewrite
from pydantic import JsonValue

from envgym.task import Task
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.describe import overlay
from envgym_environments.code_repair.kinds.contract import Kind, Place, Seen
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.runner import WORKDIR, Layout
from envgym_environments.code_repair.sources import Package

__all__ = ["assemble", "read_text", "whole"]


def read_text(tree: Path, path: str) -> str | None:
    """A file of the tree as text, None where there is none."""
    place = tree / path
    return place.read_bytes().decode("utf-8", "replace") if place.is_file() else None


def assemble(kind: Kind, package: Package, layout: Layout, tree: Path, place: Place, seen: Seen) -> Task:
    """The task. Raises ValueError where the place is not in this tree."""
    draft = kind.draft(tree, layout, place, seen)
    laid: dict[str, str] = {}
    for path, text in draft.before.items():
        laid |= _laid(path, text)
    base = {path: draft.before.get(path, read_text(tree, path)) for path in draft.answer}
    metadata: dict[str, JsonValue] = {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "licence": package.licence,
        "layout": layout.model_dump(mode="json"),
        "kind": kind.name,
        "operator": str(place["form"]),
        "place": dict(place),
        "seen": list(seen),
        **seen,
        "goal": dict(draft.goal),
        "writes": list(draft.writes),
        "withheld": list(draft.withheld),
        "difficulty": dict(draft.size),
        "gold": {"patch": make_patch(base, draft.answer)},
    }
    return Task(
        id=f"code-repair/{package.slug}/{kind.name}-{draft.name}-{_digest(kind.name, place)}",
        prompt=draft.prompt,
        world=package_world(tree, laid),
        split=package.split,
        seed=int(seen["seed"]),
        metadata=json.loads(json.dumps(metadata)),
    )


def _digest(kind: str, place: Place) -> str:
    text = json.dumps([kind, place], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _laid(path: str, text: str) -> Mapping[str, str]:
    """The file, and nothing in the place of any byte code of it, pytest's included."""
    place = PurePosixPath(WORKDIR) / path
    found = overlay(path, text)
    if place.suffix == ".py":
        found[str(place.parent / "__pycache__" / f"{place.stem}{rewrite.PYC_TAIL}")] = ""
    return found


def whole(task: Task) -> Task:
    """The task with what was withheld from the agent in its world again: the one that is graded."""
    withheld = task.metadata.get("withheld")
    if not isinstance(withheld, list) or task.world is None:
        return task
    gone = {name for path in withheld for name in _laid(str(path), "")}
    files = {name: text for name, text in task.world.files.items() if name not in gone}
    return task.model_copy(update={"world": task.world.model_copy(update={"files": files})})
