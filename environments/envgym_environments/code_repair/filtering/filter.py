"""Drop tasks that another of the set resembles, or that what is held out resembles; say which, and why.

Of a task three texts are compared: its prompt, its answer (the lines that the patch changes), and, with what is
held out only, the code that the patch repairs. The first of several alike stays. What stays says by which filter.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from envgym.task import Task
from envgym_environments.code_repair.filtering.near import Neighbours, shingles
from envgym_environments.code_repair.patch_text import patch_paths
from envgym_environments.code_repair.trials import world_text

__all__ = ["Dropped", "Filtered", "HeldOut", "filter_tasks", "views"]

VIEWS = ("prompt", "patch", "code")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Texts that must not be met again. texts: key -> view ("any" for plain text) -> text; sha256: of the file."""

    name: str
    sha256: str
    texts: Mapping[str, Mapping[str, str]]

    @classmethod
    def of_tasks(cls, path: Path, tasks: Sequence[Task]) -> "HeldOut":
        """Every view of the tasks of a file."""
        return cls(path.name, _sha256(path), {task.id: views(task) for task in tasks})

    @classmethod
    def of_text(cls, path: Path) -> "HeldOut":
        """A source file or any other text, whole. Raises ValueError for one that is no text."""
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text, and no task file; name one of both") from error
        return cls(path.name, _sha256(path), {path.name: {"any": text}})


def _sha256(path: Path) -> str:
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for one in sorted(path.rglob("*")):
        if one.is_file():
            total.update(f"{one.relative_to(path)}\0".encode() + hashlib.sha256(one.read_bytes()).digest())
    return total.hexdigest()


@dataclass(frozen=True, slots=True)
class Dropped:
    """One task that went. why: "duplicate" (of the set) or "held_out". like: of what; view: by which text."""

    task: str
    why: str
    like: str
    view: str
    similarity: float


@dataclass(slots=True)
class Filtered:
    """What stayed, and what went."""

    kept: list[Task] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """As plain JSON: settings with what was held out, counts, and every task that went with the reason."""
        why = [one.why for one in self.dropped]
        rows = [
            {"task": one.task, "why": one.why, "like": one.like, "view": one.view,
             "similarity": round(one.similarity, 4)}
            for one in self.dropped
        ]  # fmt: skip
        counts = {
            "kept": len(self.kept),
            "duplicates": why.count("duplicate"),
            "contaminated": why.count("held_out"),
        }
        return {**self.settings, **counts, "dropped": rows}


def views(task: Task) -> dict[str, str]:
    """The texts by which a task is compared; one that it does not have is ""."""
    gold = task.metadata.get("gold")
    patch = str(gold.get("patch", "")) if isinstance(gold, Mapping) else ""
    lines = patch.split("\n")
    changed = [line[1:] for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    paths = dict.fromkeys(path for _, path in patch_paths(patch))
    world = task.world
    code = [world_text(world, path) or "" for path in paths] if world is not None else []
    return {"prompt": task.prompt, "patch": "\n".join(changed), "code": "\n".join(code)}


def filter_tasks(
    tasks: Sequence[Task],
    held_out: Sequence[HeldOut] = (),
    *,
    threshold: float = 0.8,
    within: Sequence[str] = ("patch",),
    against: Sequence[str] = VIEWS,
) -> Filtered:
    """The tasks without near-duplicates and without what is held out, in their order.

    within: the views of which one alike makes two tasks of the set duplicates, all of them at once ("prompt" alone
    would drop every task whose text was made by one template). against: the views that are compared with what is
    held out, each by itself. Raises ValueError for an unknown view.
    """
    for name, given in (("within", within), ("against", against)):
        if wrong := [view for view in given if view not in VIEWS]:
            raise ValueError(f"{name} has {wrong[0]!r}; the views of a task are {', '.join(VIEWS)}")
    settings = {
        "threshold": threshold,
        "within": list(within),
        "against": list(against) if held_out else [],
        "held_out": [{"name": one.name, "sha256": one.sha256, "texts": len(one.texts)} for one in held_out],
        "datasketch": version("datasketch"),
    }
    digest = hashlib.blake2b(repr(sorted(settings.items())).encode(), digest_size=8).hexdigest()
    outside = {view: _known(held_out, view, threshold) for view in against}
    inside = Neighbours(threshold)
    found = Filtered(settings={**settings, "filter": digest})
    for task in tasks:
        texts = views(task)
        gone = _met(task, texts, outside) or _again(task, texts, inside, within)
        if gone is not None:
            found.dropped.append(gone)
            continue
        found.kept.append(task.model_copy(update={"metadata": {**task.metadata, "filtered_by": digest}}))
    return found


def _known(held_out: Sequence[HeldOut], view: str, threshold: float) -> Neighbours:
    known = Neighbours(threshold)
    for number, one in enumerate(held_out):
        for key, texts in one.texts.items():
            known.add(f"{number}:{one.name}:{key}", shingles(texts.get(view) or texts.get("any", "")))
    return known


def _met(task: Task, texts: Mapping[str, str], outside: Mapping[str, Neighbours]) -> Dropped | None:
    for view, known in outside.items():
        for key, similarity in known.like(shingles(texts[view])):
            return Dropped(task.id, "held_out", key.partition(":")[2], view, similarity)
    return None


def _again(task: Task, texts: Mapping[str, str], inside: Neighbours, within: Sequence[str]) -> Dropped | None:
    """Whether an earlier task resembles it; it is known from now on where none does."""
    if not within:
        return None
    whole = frozenset(f"{view} {one}" for view in within for one in shingles(texts[view]))
    for key, similarity in inside.like(whole):
        return Dropped(task.id, "duplicate", key, "+".join(within), similarity)
    inside.add(task.id, whole)
    return None
