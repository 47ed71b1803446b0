"""An environment of any web application that runs as a program: one `WebApp`, tasks with a world, one call.

What is asked is a task's own: statements that make the wanted rows, an answer, or a judge of yours. Who plays, what
is seen and how episodes fork is as in `web-sites`.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from envgym.errors import Misconfigured
from envgym.registry import EnvSpec
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet, World
from envgym_environments.web.database import Changes, Database, Rows, by_rows, same_answer, wanted_changes
from envgym_environments.web.looks import Looks, See
from envgym_environments.web.play import Question, WebPlay
from envgym_environments.web.program import Program, WebApp

__all__ = ["Judge", "WebApp", "by_task", "web_environment", "web_task"]

Judge = Callable[[Task, Database, str, str | float | None], dict[str, float]]
"""``judge(task, database, url, answer) -> channels``, "reward" among them.

database: the rows as they are in the end, `Database.pristine` as they were; url: the page that is open.
"""


def web_task(
    id: str,  # as `Task` names it
    prompt: str,
    world: World,
    *,
    changes: Sequence[tuple[str, Sequence[str | float | None]]] = (),
    answer: str | float | None = None,
    files: Mapping[str, str] | None = None,
    split: str = "train",
) -> Task:
    """A task for `by_task`: in a world with an application's files and database.

    changes: SQL statements with their values that make the wanted rows of those that the world begins with. answer:
    what a question's answer is; None where none is wanted. files: texts that may be uploaded, by name. Raises
    ValueError where nothing is asked: neither changes nor an answer; changes that change nothing, or cannot be
    made, end the run at the task's first reset, which has the rows (Misconfigured).
    """
    if not changes and answer is None:
        raise ValueError(f"task {id!r} wants neither changes nor an answer, and would be done before it is begun")
    asked: dict[str, Any] = {"changes": [[sql, list(values)] for sql, values in changes], "answer": answer}
    return Task(id=id, prompt=prompt, split=split, world=world, metadata=asked | {"files": dict(files or {})})


def by_task(task: Task, database: Database, url: str, answer: str | float | None) -> dict[str, float]:
    """The verdict of a task of `web_task`: all rows of all tables, and the answer, where one is wanted."""
    before, changes = _wanted(task, database)
    channels = by_rows(database, before, changes)
    right: Any = task.metadata["answer"]
    if right is not None:
        channels["answered"] = float(answer is not None and same_answer(answer, right))
    return {"reward": float(channels["state"] and channels.get("answered", 1.0)), **channels}


def _wanted(task: Task, database: Database) -> tuple[Rows, Changes]:
    """As `wanted_changes`, of a task of `web_task`. Raises Misconfigured where that is nothing, or cannot be."""
    wanted: Any = task.metadata
    try:
        before, changes = wanted_changes(database, wanted["changes"])
    except sqlite3.Error as error:
        raise Misconfigured(
            f"the changes of task {task.id!r} cannot be made in the application's own database: {error}"
        ) from error
    if not changes and wanted["answer"] is None:
        raise Misconfigured(
            f"the changes of task {task.id!r} change no row that counts in the application's own database: it "
            "would be done before it is begun; give others, or an answer"
        )
    return before, changes


def web_environment(
    name: str, app: WebApp, tasks: Callable[..., TaskSet], *, judge: Judge = by_task, description: str = ""
) -> EnvSpec:
    """What is registered: by an entry point of the group ``envgym.environments``, or `envgym.register`.

    tasks: ``tasks(**options) -> TaskSet`` of tasks with a `World`. judge: see `Judge`; with another than `by_task`
    a task's metadata may say ``asks`` (an answer is wanted) and ``files``, and is else the judge's own. Options of
    the environment: those of `Looks`, and ``ahead`` of `Program`.
    """
    make = _Made(app, judge)
    return EnvSpec(name=name, tasks=tasks, make=make, description=description, sandbox=True)


@dataclass(frozen=True, slots=True)
class _Made:
    """Makes an environment of a task."""

    app: WebApp
    judge: Judge

    def __call__(  # one parameter per option
        self,
        task: Task,
        *,
        backend: SandboxBackend,
        browser: str = "chromium",
        diffs: bool = False,
        see: See = "tree",
        marks: bool = False,
        ahead: int = 0,
    ) -> WebPlay:
        app, world = self.app, task.world
        if world is None:
            raise ValueError(f"task {task.id!r} has no world; it must have one with the files of {app.name!r}")
        known: Any = task.metadata
        files = {str(file): str(text).encode() for file, text in known.get("files", {}).items()}
        asks = bool(known.get("asks", known.get("answer") is not None))
        check = partial(_wanted, task) if self.judge is by_task else None
        question = Question(task.prompt, partial(self.judge, task), asks, files, check=check)
        looks = Looks(browser, diffs, see, marks)
        return WebPlay(task, question, lambda: Program(app, world, backend, ahead=ahead), looks)
