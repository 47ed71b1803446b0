"""What the grader itself says of a task: its answer is worth everything, and doing nothing is worth nothing."""

from collections.abc import Mapping

from envgym.errors import GraderFailure, InfrastructureFailure, SandboxDied
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.certify import as_graded
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.judge import Verdict
from envgym_environments.code_repair.memo import Memo

__all__ = ["WRONG", "believed", "graded"]

WRONG: Mapping[Verdict, str] = {
    Verdict.NOT_RESTORED: "the answer does not get the full reward",
    Verdict.SURVIVED: "the untouched state gets a reward",
    Verdict.CRASHES: "it cannot be graded",
}
"""What is wrong with a task of such a verdict."""


async def graded(task: Task, backend: SandboxBackend, *, runs: int = 1) -> Verdict | None:
    """Why a task may not enter a set, None where it may: so many grades of each state, none remembering another.

    Tests that pass with the answer are not enough: the grader has to believe them too (`disguise`, `twins`), also
    where chance draws other comparisons, so it is thorough here. Raises GraderFailure where the world around the
    sandbox fails, where a sandbox that dies is the task's doing, and ValueError for a task without an answer.
    """
    gold = task.metadata.get("gold")
    if not isinstance(gold, dict) or "patch" not in gold:
        raise ValueError(f"task {task.id!r} has no answer that could be run")
    for submission, full, wrong in [
        (str(gold["patch"]), 1.0, Verdict.NOT_RESTORED),
        ("", 0.0, Verdict.SURVIVED),
    ] * runs:
        try:
            grade = await CodeRepairGrader(backend, memo=Memo(), thorough=True).grade(task, submission)
        except GraderFailure as failure:
            cause = failure.__cause__
            if isinstance(cause, InfrastructureFailure) and not isinstance(cause, SandboxDied):
                raise
            return Verdict.CRASHES
        if grade.channels["reward"] != full:
            return wrong
    return None


async def believed(task: Task, backend: SandboxBackend) -> Task | Verdict:
    """The certified task with the grader's word in its certificate, or why it may not enter a set: the one way."""
    wrong = await graded(task, backend)
    return as_graded(task) if wrong is None else wrong
