"""Issues that a writer tells of tasks: what a user saw, never where the mistake is or how it is repaired.

The writer is shown the failing tests, their errors and their source, not the answer. What it writes is kept only if
it names neither the broken place nor a line of the answer; otherwise it is told why and asked again, and in the end
the task keeps the text it had. Tests, files and answer do not change, so a certificate stays valid.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgym.task import Task
from envgym_environments.code_repair.issue import hidden_names
from envgym_environments.code_repair.mirrors.classify import sources_of
from envgym_environments.code_repair.rewrite.writer import Writer
from envgym_environments.code_repair.trials import world_text

__all__ = ["Told", "refusal", "told_again", "write_issues"]

_SHOWN_TESTS = 3
_MOST_CHARACTERS = 4000
_LEAST_CHARACTERS = 40
_LEAST_LINE = 12


@dataclass(slots=True)
class Told:
    """What came of it: the tasks, as many as there were, and how many issues were written, or refused by reason."""

    tasks: list[Task] = field(default_factory=list)
    written: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def refusal(task: Task, text: str) -> str:
    """Why a text cannot be the issue of a task, or ""."""
    if not _LEAST_CHARACTERS <= len(text.strip()) <= _MOST_CHARACTERS:
        return "length"
    data: dict[str, Any] = dict(task.metadata)
    gold = data.get("gold")
    if not isinstance(gold, dict):
        return "no_answer"  # what must not be told is not known
    bare = (
        {name for name in hidden_names({"functions": [], **data}) if len(name) > 3} if gold.get("bugs") else set()
    )
    bare -= set(_words(" ".join(_shown(task))))  # what a user calls, they may name
    words = set(_words(text))
    if bare & words or any("/" in name and name in text for name in bare):
        return "names_the_place"
    patch = [line[1:].strip() for line in str(gold.get("patch", "")).split("\n") if line[:1] in "+-"]
    told = " ".join(text.split())
    if any(len(line) >= _LEAST_LINE and " ".join(line.split()) in told for line in patch):
        return "tells_the_answer"
    return ""


def _words(text: str) -> list[str]:
    found = "".join(letter if letter.isalnum() or letter in "_." else " " for letter in text).split()
    return [*found, *(part for word in found for part in word.split("."))]


def _shown(task: Task) -> list[str]:
    """The source of the tests that the writer sees."""
    found = task.metadata.get("fail_to_pass")
    failing = [str(name) for name in found[:_SHOWN_TESTS]] if isinstance(found, list) else []
    paths = {name.partition("::")[0] for name in failing}
    world = task.world
    texts = {path: (world_text(world, path) if world is not None else None) or "" for path in paths}
    return sources_of(texts, failing)


def _question(task: Task) -> str:
    data: dict[str, Any] = dict(task.metadata)
    failing, shown = [str(name) for name in data["fail_to_pass"]], _shown(task)
    errors = [f"- {name}: {data.get('errors', {}).get(name, '')[:200]}" for name in failing[:_SHOWN_TESTS]]
    return "\n".join(
        (
            _ASK.format(package=data.get("package")),
            f"{len(failing)} tests of the package fail:",
            *errors,
            "",
            "\n\n".join(shown),
        )
    )


_ASK = """Write an issue for the tracker of {package}, as a user would who met this bug in a program of their own: a
title, what they did (a short example of code, not the tests themselves), what happened, what they expected. They do
not know the package's code: name no function or file inside of it that the example does not call, no tests, no
cause, no repair. Answer with the issue only.
"""

_WHY = {
    "length": f"it must have {_LEAST_CHARACTERS} to {_MOST_CHARACTERS} characters",
    "names_the_place": "it names the function or the file in which the mistake is; say what is seen from outside",
    "tells_the_answer": "it holds a line of the repair",
}


async def told_again(task: Task, writer: Writer, *, seed: int, tries: int = 3) -> tuple[Task, str]:
    """The task with an issue of the writer's, or as it was and why. Raises EnvgymError where nobody answers."""
    question, why = _question(task), ""
    for number in range(tries):
        asked = f"{question}\n\nYour last text cannot be used: {_WHY.get(why, why)}." if why else question
        text = (await writer.ask(asked, about=task, seed=seed * 1_000_003 + number)).strip()
        why = refusal(task, text)
        if not why:
            data: dict[str, Any] = dict(task.metadata)
            code = (data.get("layout") or {}).get("package") or ", ".join(
                (data.get("suite") or {}).get("source", ())
            )
            tail = f"\n\nThe code is in {code}. Repair it; its tests will decide." if code else ""
            metadata = {**task.metadata, "issue": "written", "issue_by": writer.told}
            return task.model_copy(update={"prompt": text + tail, "metadata": metadata}), ""
        if why == "no_answer":
            break
    return task, why


async def write_issues(
    tasks: Sequence[Task],
    writer: Writer,
    *,
    seed: int = 0,
    tries: int = 3,
    progress: Callable[[int], None] = lambda count: None,
) -> Told:
    """Every task with an issue of the writer's where it gave a good one."""
    told = Told()
    for number, task in enumerate(tasks):
        again, why = await told_again(task, writer, seed=seed + number, tries=tries)
        told.tasks.append(again)
        told.written += not why
        if why:
            told.refused[why] += 1
        progress(number + 1)
    return told
