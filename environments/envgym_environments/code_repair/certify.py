"""Certificates: what was run before a task entered a set, kept with it, and checked when it is read.

The answer restores the package's files byte by byte, so every run of the unbroken package is a run of the answer:
the suite's runs under all conditions count once per package, the answer's own failing tests once per task. The
broken state was run as `Bug.runs` says. Last the grader itself graded both (`graded`). A certificate
is bound to the task's tests, files and answer by a digest: a task that was changed afterwards does not load.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ConfigDict, Field

from envgym.task import Task
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.conditions import Seen, clock_library

if TYPE_CHECKING:
    from envgym_environments.code_repair.judge import Bug

__all__ = [
    "Certificate",
    "as_graded",
    "certificate_of",
    "certified",
    "content_digest",
    "counted",
    "with_certificate",
]


class Certificate(BaseModel):
    """What a task was seen to do.

    gold: condition -> runs of the repaired state that passed, of as many. untouched: condition -> runs of the
    broken state in which every failing test failed, of as many. quarantined: test -> why it is in no list, of the
    package's suite and of this task. date_shifted: whether the host could shift the date. seconds: of the task's
    own judging. digest: of what it was seen of (`content_digest`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gold: dict[str, tuple[int, int]]
    untouched: dict[str, tuple[int, int]]
    quarantined: dict[str, str] = Field(default_factory=dict)
    date_shifted: bool
    network: bool = False
    versions: dict[str, str]
    seconds: float = Field(ge=0, allow_inf_nan=False)
    digest: str

    @property
    def runs(self) -> int:
        """How many runs there were in all."""
        return sum(of for _, of in (*self.gold.values(), *self.untouched.values()))


def content_digest(task: Task) -> str:
    """A digest of what decides a task: its files, tests and answer; not of its prompt or of durations."""
    kept = ("package", "version", "sha256", "layout", "fail_to_pass", "pass_to_pass", "gold")
    content = {name: task.metadata.get(name) for name in kept} | {"files": task.world.files if task.world else {}}
    content |= {
        name: task.metadata[name]
        for name in ("kind", "goal", "writes", "suite", "guards", "test_patch", "files", "rules")
        if name in task.metadata
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def certified(task: Task, baseline: Baseline, bug: "Bug") -> Task:
    """The task with the certificate of a valid bug."""
    certificate = Certificate(
        gold=counted([*(seen for seen in baseline.runs if seen[0] != "traced"), ("restored by the answer", True)]),
        untouched=counted(bug.runs),
        quarantined={**baseline.quarantined, **bug.quarantined},
        date_shifted=clock_library() is not None,
        versions={"python": platform.python_version(), "pytest": pytest.__version__},
        seconds=round(bug.seconds, 3),
        digest="",
    )
    return with_certificate(task, certificate)


def with_certificate(task: Task, certificate: Certificate) -> Task:
    """The task with a certificate that is bound to it."""
    bound = certificate.model_copy(update={"digest": content_digest(task)})
    return task.model_copy(update={"metadata": {**task.metadata, "certificate": bound.model_dump(mode="json")}})


def as_graded(task: Task) -> Task:
    """The certified task after its two grades: the answer's was the full reward, the untouched state's none."""
    found = certificate_of(task)
    assert found is not None
    seen = {"gold": {**found.gold, "graded": (1, 1)}, "untouched": {**found.untouched, "graded": (1, 1)}}
    return with_certificate(task, found.model_copy(update=seen))


def counted(runs: Iterable[Seen]) -> dict[str, tuple[int, int]]:
    """Condition -> good runs, of as many."""
    found: dict[str, tuple[int, int]] = {}
    for name, fine in runs:
        good, of = found.get(name, (0, 0))
        found[name] = (good + fine, of + 1)
    return found


def certificate_of(task: Task) -> Certificate | None:
    """A task's certificate, None where it has none.

    Raises ValueError when it is malformed, does not fit the task, or certifies a run that went wrong.
    """
    raw = task.metadata.get("certificate")
    if raw is None:
        return None
    found = Certificate.model_validate(raw)
    if found.digest != content_digest(task):
        raise ValueError(f"task {task.id!r} is not what its certificate was given for: it was changed afterwards")
    _all_of("gold", task, found.gold)
    _all_of("untouched", task, found.untouched)
    return found


def _all_of(what: str, task: Task, counts: Mapping[str, tuple[int, int]]) -> None:
    for name, (good, of) in counts.items():
        if good != of or not of:
            raise ValueError(
                f"the certificate of task {task.id!r} has {good} good of {of} runs of {what} under {name!r}; every "
                "one has to be good"
            )
    if not counts:
        raise ValueError(f"the certificate of task {task.id!r} has no run of {what}")
