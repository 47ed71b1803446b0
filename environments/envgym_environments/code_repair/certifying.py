"""Many tasks certified one after another: one that cannot be run stops none, and what is known is kept.

A certified task may be written to a journal as soon as it is one, by a digest of what it was and of how it was run;
the run that goes on after a kill takes it over. What got no certificate is tried again. Which runs make a
certificate is the matter of `recheck` and `kinds`.
"""

import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from envgym.errors import EnvgymError
from envgym.plain_text import visible
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.build import graded_again
from envgym_environments.code_repair.recheck import certified_again

__all__ = ["certified_each"]

_MOST_REASON = 2000


async def certified_each(
    tasks: Sequence[Task], backend: SandboxBackend, *, runs: int = 1, journal: Path | None = None
) -> AsyncGenerator[Task | str, None]:
    """For each task, in order: the task with its certificate, or why it gets none.

    A task that cannot be run (its image is not here, its answer is no patch) is the reason why, as a world that
    breaks is. runs: of each state under each condition. journal: where certified tasks are kept, and found again.
    """
    kept = {} if journal is None else _kept(journal)
    for task in tasks:
        key = _key(task, backend, runs)
        if key in kept:
            yield kept[key]
            continue
        again = graded_again if task.metadata.get("kind") else certified_again
        try:
            found = await again(task, backend, runs=runs)
        except (EnvgymError, ValueError) as error:
            yield visible(f"it could not be run: {type(error).__name__}: {error}", _MOST_REASON)
            continue
        if journal is not None and isinstance(found, Task):
            with journal.open("ab") as file:
                file.write(json.dumps({"key": key, "task": found.model_dump(mode="json")}).encode() + b"\n")
        yield found


def _key(task: Task, backend: SandboxBackend, runs: int) -> str:
    text = json.dumps(task.model_dump(mode="json"), sort_keys=True)
    how = repr((CodeRepairGrader.version, type(backend).__name__, runs))
    return hashlib.blake2b((how + text).encode(), digest_size=16).hexdigest()


def _kept(journal: Path) -> dict[str, Task]:
    """What a journal holds; a last line that a kill cut off is removed from it."""
    if not journal.exists():
        journal.parent.mkdir(parents=True, exist_ok=True)
        return {}
    data = journal.read_bytes()
    *lines, rest = data.split(b"\n")
    found: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            found[row["key"]] = Task.model_validate(row["task"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{journal}, line {number}: not of a certification's journal ({type(error).__name__}); remove the "
                "file to certify anew"
            ) from error
    if rest:
        with journal.open("r+b") as file:  # what comes next has a line of its own
            file.truncate(len(data) - len(rest))
    return found
