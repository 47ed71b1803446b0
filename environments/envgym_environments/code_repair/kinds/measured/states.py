"""Fresh sandboxes in the states that are compared: the task's own, the submission's and the answer's."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.patch import sort_patch
from envgym_environments.code_repair.trials import Trials

__all__ = ["answer_of", "changed"]


async def answer_of(trials: Trials) -> Mapping[str, str | None]:
    """Path -> text of what the task's answer changes."""
    gold: Any = trials.task.metadata["gold"]
    paths = {line[6:].split("\t")[0] for line in str(gold["patch"]).split("\n") if line[:6] in ("--- a/", "+++ b/")}
    texts = {path: await trials.source(path) for path in paths}
    return sort_patch(str(gold["patch"]), trials.facts.layout, texts.get, writes=trials.facts.writes)[0]


@asynccontextmanager
async def changed(trials: Trials, files: Mapping[str, str | None]) -> AsyncIterator[Sandbox]:
    """A sandbox of its own in the task's base state with these files; None deletes one."""
    async with await trials.backend.create(trials.world) as sandbox:
        for path, text in files.items():
            if text is None:
                await sandbox.exec(["rm", "-f", "--", path])
            else:
                await sandbox.write(path, text.encode("utf-8", "surrogatepass"))
        yield sandbox
