"""A task's own answer, as the files that it leaves: for a grader, never for who plays."""

from collections.abc import Mapping

from envgym.errors import GraderFailure
from envgym.task import Task
from envgym_environments.code_repair.patch import Malformed, sort_patch
from envgym_environments.code_repair.patch_text import header_name
from envgym_environments.code_repair.trials import Trials

__all__ = ["answer_of", "gold_patch", "named_paths"]


def gold_patch(task: Task) -> str:
    """The answer as a patch, "" where the task has none."""
    gold = task.metadata.get("gold")
    patch = gold.get("patch") if isinstance(gold, dict) else None
    return patch if isinstance(patch, str) else ""


def named_paths(patch: str) -> set[str]:
    """Every path that a patch may name."""
    heads = [header_name(line[4:]) for line in patch.split("\n") if line[:4] in ("--- ", "+++ ")]
    names = {head[2:] if head[:2] in ("a/", "b/") else head for head in heads}
    return {name for name in names if name and "\0" not in name and not name.startswith("/") and ".." not in name}


async def answer_of(trials: Trials) -> Mapping[str, str | None]:
    """The task's own repair: path -> text. Raises GraderFailure where it does not apply."""
    patch = gold_patch(trials.task)
    texts = {path: await trials.source(path) for path in named_paths(patch)}
    try:
        return sort_patch(patch, trials.facts.layout, texts.get, writes=trials.facts.writes)[0]
    except Malformed as error:
        raise GraderFailure(f"the answer of task {trials.task.id!r} does not apply to it: {error}") from error
