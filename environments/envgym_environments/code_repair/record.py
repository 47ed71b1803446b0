"""A repair task of any origin as one value: what is needed to rebuild, run and grade it offline.

Data sets of other tools become records (`envgym_environments.code_repair.formats`), records become tasks and tasks
records again, without loss. A record runs nothing and reads no file.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from envgym.task import Task, World
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.patch_text import patch_paths, stays_inside
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.worlds import added_setup

__all__ = ["Attached", "NotPlayable", "Origin", "RepairRecord"]

_MOST_ID = 300
_CHARACTERS_OF_AN_EXAMPLE = 80
_NAMED = re.compile(r"^diff --git ", re.MULTILINE)  # bits and empty files change without any other name


class NotPlayable(ValueError):
    """A record that is well formed, but says too little to be played: names what is missing."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Attached(_Frozen):
    """A file that comes with a task.

    role: "test" is laid over the submission when it is graded, at `target`; "solution" and "build" belong to the
        reference solution and to the recipe of the image; "other" is only kept.
    path: where it is in the data set's folder of the task; it stays below that.
    target: where it is laid in the world: absolute, or relative to the workdir.
    data: its text, or with encoding "base64" its bytes.
    """

    role: Literal["test", "solution", "build", "other"]
    path: str
    data: str
    target: str = ""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    executable: bool = False

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if not stays_inside(self.path):
            raise ValueError(f"path is {self.path!r}; it must be relative and stay below the task's folder")
        if "\0" in self.target or ".." in PurePosixPath(self.target).parts:
            raise ValueError(f"target is {self.target!r}; it must not lead out with '..'")
        return self


class Origin(_Frozen):
    """Where a record was read from, and what it said there that has no other place.

    file: the name of the file or folder, without its directory. place: which record of it. digest: BLAKE2b of 128
        bits of the row's JSON, or of the folder's files.
    fields: the row's own fields as they stood. style: how the format spelled what the record holds.
    """

    format: str
    file: str = ""
    place: str = ""
    digest: str = ""
    fields: dict[str, JsonValue] = Field(default_factory=dict)
    style: tuple[str, ...] = ()


class RepairRecord(_Frozen):
    """One repair task.

    statement: what the agent reads. hints: what a data set says beside it; never shown.
    world: where it is played, before `bug_patch`. suite, layout: how tests run, one of the two; both None where
        the data set does not say.
    gold_patch: the answer. bug_patch: what is broken before the agent begins. test_patch: what the grader changes
        in the tests before it runs them. All three are unified diffs relative to the workdir.
    rules: how outcomes are compared with the lists. extra: what else the task's metadata says.
    """

    id: str
    statement: str
    repo: str = ""
    version: str = ""
    base_commit: str = ""
    language: str = ""
    split: str = "train"
    seed: int = 0
    created_at: str = ""
    hints: str = ""
    licence: str = ""
    world: World | None = None
    suite: Suite | None = None
    layout: Layout | None = None
    gold_patch: str = ""
    bug_patch: str = ""
    test_patch: str = ""
    files: tuple[Attached, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    rules: Rules = Rules()
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    origin: Origin | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        _check_id(self.id)
        for field in ("gold_patch", "bug_patch", "test_patch"):
            for number, path in patch_paths(getattr(self, field)):
                if not stays_inside(path):
                    raise ValueError(f"{field}, line {number}: {path!r} leads out of the tree")
        for field in ("fail_to_pass", "pass_to_pass"):
            for test in getattr(self, field):
                _check_test(field, test)
        if self.suite is not None and self.layout is not None:
            raise ValueError("it has a suite and a layout; one of them says how its tests are run")
        if taken := sorted(set(self.extra) & _RESERVED):
            raise ValueError(f"extra has {taken[0]!r}, which is the name of a field of its own")
        return self

    # -- tasks -------------------------------------------------------------------------------------------------

    def to_task(self) -> Task:
        """The task that is played. Raises NotPlayable when the record says too little for that."""
        world = self._playable()
        metadata: dict[str, JsonValue] = {
            **self.extra,
            "fail_to_pass": list(self.fail_to_pass),
            "pass_to_pass": list(self.pass_to_pass),
        }
        said = self.model_dump(mode="json", exclude_defaults=True)
        for name, key in _KEYS.items():
            if name in said:
                metadata[key] = said[name]
        if self.gold_patch:
            beside = metadata.get("gold")
            metadata["gold"] = {**(beside if isinstance(beside, dict) else {}), "patch": self.gold_patch}
        if self.suite is not None:
            metadata.setdefault("suite_s", _suite_s(self.suite))
        added = added_setup(world, self.bug_patch)
        if added:
            metadata["setup_added"] = len(added)
            world = world.model_copy(update={"setup": (*world.setup, *added)})
        return Task(
            id=self.id, prompt=self.statement, world=world, split=self.split, seed=self.seed, metadata=metadata
        )

    def _playable(self) -> World:
        where = f"task {self.id!r}"
        if self.world is None:
            raise NotPlayable(f"{where} has no world: no image, and no source tree")
        if self.suite is None and self.layout is None:
            raise NotPlayable(f"{where} has no suite: nothing says how its tests are run")
        if not self.fail_to_pass and "kind" not in self.extra:
            raise NotPlayable(f"{where} has no fail_to_pass: no test would show that it is solved")
        if self.gold_patch and not patch_paths(self.gold_patch) and not _NAMED.search(self.gold_patch):
            raise NotPlayable(f"{where} has an answer that is no patch: it names no file")
        if self.rules.absent_passes:
            raise NotPlayable(f"{where} counts tests that are not in the log as passed, which nobody can check")
        return self.world

    @classmethod
    def from_task(cls, task: Task) -> "RepairRecord":
        """The record of a task that `to_task` or the factory made. Raises ValueError for another's."""
        data: dict[str, Any] = dict(task.metadata)
        if not data.get("fail_to_pass") and not data.get("kind"):
            raise ValueError(f"task {task.id!r} has no 'fail_to_pass'; it is not a code-repair task")
        fields: dict[str, Any] = {name: data.pop(key) for name, key in _KEYS.items() if key in data}
        for name in ("fail_to_pass", "pass_to_pass"):
            fields[name] = data.pop(name, ())
        gold = data.pop("gold", None)
        if isinstance(gold, Mapping):
            fields["gold_patch"] = gold.get("patch", "")
            if beside := {key: value for key, value in gold.items() if key != "patch"}:
                data["gold"] = beside
        if "suite" in fields and data.get("suite_s") == _suite_s(Suite.model_validate(fields["suite"])):
            del data["suite_s"]
        world, added = task.world, data.pop("setup_added", 0)
        if world is not None and added:
            world = world.model_copy(update={"setup": world.setup[:-added]})
        return cls(
            id=task.id, statement=task.prompt, split=task.split, seed=task.seed, world=world, extra=data, **fields
        )


_KEYS = {
    "repo": "package", "version": "version", "base_commit": "base_commit", "language": "language",
    "created_at": "created_at", "hints": "hints", "licence": "licence", "suite": "suite", "layout": "layout",
    "bug_patch": "bug_patch", "test_patch": "test_patch", "files": "files", "rules": "rules",
    "origin": "imported_from",
}  # fmt: skip
"""Fields of a record that a task keeps in its metadata -> the key there."""

_RESERVED = {*_KEYS.values(), "fail_to_pass", "pass_to_pass", "setup_added"}


def _suite_s(suite: Suite) -> float:
    """How long a suite may take that nobody has timed: what its time limit is made of (see `Facts.run_s`)."""
    return max(0.1, (suite.timeout_s - 30.0) / 10.0)


def _check_id(name: str) -> None:
    if not name or len(name) > _MOST_ID or any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise ValueError(
            f"id is {name[:_CHARACTERS_OF_AN_EXAMPLE]!r}; it must have 1 to {_MOST_ID} characters, none of control"
        )
    if not stays_inside(name) or name.startswith("."):
        raise ValueError(f"id is {name!r}; it must not be, or have in it, a way out such as '..' or a leading '/'")


def _check_test(field: str, test: str) -> None:
    shown = repr(test[:_CHARACTERS_OF_AN_EXAMPLE])
    if not test or "\0" in test or "\n" in test:
        raise ValueError(f"{field} has {shown}; a test id is one line and not empty")
    file, found, _ = test.partition("::")
    if found and "/" in file and not stays_inside(file):
        raise ValueError(f"{field} has {shown}; a test's file must stay below the workdir")
