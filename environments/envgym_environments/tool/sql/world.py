"""`sql`: a question in words, a database that the agent has to get to know, and one query that answers it.

The agent looks (`tables`, `describe`, `query`) as often as its budget allows and ends with `submit`. Databases are
drawn with schema and data from the task's seed; the split is by database, so that held-out ones were never seen.
Nothing is drawn from an episode's seed: an answer must not depend on it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envgym.env import Step, StopReason
from envgym.errors import GraderFailure
from envgym.messages import Action, ToolCall, ToolSpec
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, played
from envgym_environments.tool.sql.build import build
from envgym_environments.tool.sql.domains import draw_schema
from envgym_environments.tool.sql.engine import Database, Rows, shown
from envgym_environments.tool.sql.folders import folder_tasks
from envgym_environments.tool.sql.grade import grade, references
from envgym_environments.tool.sql.questions import LEVELS, Asked, find

__all__ = ["SPEC", "Sql", "SqlState", "expert", "sources", "sql_tasks"]

_PER_DATABASE = 10


def tables() -> None:
    """List the tables with their numbers of rows."""


def describe(table: str) -> None:
    """Show a table's columns and three of its rows."""


def query(sql: str) -> None:
    """Run one read-only SELECT (SQLite) and show up to 20 of its rows."""


def submit(sql: str) -> None:
    """Give the one query that answers the question. This ends the episode."""


@dataclass(slots=True)
class SqlState:
    """left: looks that are left. wrong: queries that failed."""

    left: int
    wrong: int = 0


class Sql(Rules[SqlState]):
    """Rules of `sql`; see `envgym_environments.played.Rules`.

    looks: how many tables, describe and query calls there are before only `submit` is answered.
    instructions: the bound of one query's work, in instructions of SQLite. given: whether the tables' statements
    come with the question, as in most of the literature on text-to-SQL; `submit` is then the only tool.
    """

    tools: tuple[ToolSpec, ...] = (tool_spec(tables), tool_spec(describe), tool_spec(query), tool_spec(submit))
    state = SqlState
    uses_seed = False

    def __init__(self, task: Task, *, looks: int = 12, instructions: int = 1_000_000, given: bool = False) -> None:
        if looks < 0 or instructions < 1000:
            raise ValueError(f"looks is {looks} and instructions {instructions}; they must be at least 0 and 1000")
        self.task, self._looks, self._instructions, self._given = task, looks, instructions, given
        if given:
            self.tools = (tool_spec(submit),)
        self._databases = [Database(source, instructions=instructions) for source in sources(task)]
        self._right: list[Rows] = []

    def begin(self, seed: int) -> tuple[SqlState, str]:
        """The question; how the database looks is said before it, or has to be found out.

        Raises GraderFailure, with the task, where its own query does not run: before anybody has worked at it.
        """
        self._wanted()
        schema = "\n".join(sql for _name, sql in self._databases[0].tables()) if self._given else ""
        return SqlState(self._looks), f"{schema}\n{self.task.prompt}".lstrip()

    def move(self, state: SqlState, said: ToolCall | str) -> Answer:
        """One look, or the answer."""
        assert isinstance(said, ToolCall)
        if said.name == "submit":
            channels = self._grade(str(said.arguments["sql"]))
            stop = StopReason.GOAL if channels["reward"] else StopReason.SUBMITTED
            return Answer(
                "right" if channels["reward"] else "wrong",
                channels["reward"],
                stop,
                channels,
                submission=str(said.arguments["sql"]),
            )
        if not state.left:
            return Answer("error: no looks are left; call submit")
        state.left -= 1
        database = self._databases[0]
        match said.name:
            case "tables":
                text = _list(database)
            case "describe":
                text = _describe(database, str(said.arguments["table"]))
            case _:
                text = shown(database.query(str(said.arguments["sql"]), most=20))
        state.wrong += text.startswith("error: ")
        return Answer(text)

    def _grade(self, sql: str) -> dict[str, float]:
        return grade(sql, self._wanted(), self._databases, ordered=bool(self.task.metadata["ordered"]))

    def _wanted(self) -> list[Rows]:
        if not self._right:
            try:
                self._right = references(str(self.task.metadata["sql"]), self._databases)
            except GraderFailure as error:
                raise GraderFailure(f"task {self.task.id!r}: {error}; leave it out, or mend its query") from None
        return self._right

    def key(self, state: SqlState) -> str:
        """Looking changes nothing, so all states of a task before its end are alike but for what is left."""
        return f"{state.left}"

    def close(self) -> None:
        """Close the connections."""
        for database in self._databases:
            database.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(database: Database) -> str:
    counts = [(name, database.query(f"SELECT COUNT(*) FROM {_quoted(name)}").rows) for name, _ in database.tables()]
    return "\n".join(f"{name} ({rows[0][0]!r} rows)" if rows else f"{name} (many rows)" for name, rows in counts)


def _describe(database: Database, table: str) -> str:
    found = {name.lower(): (name, sql) for name, sql in database.tables()}
    if table.lower() not in found:
        return f"error: no table {table[:80]!r}; the tables are: {', '.join(name for name, _ in found.values())}"
    name, sql = found[table.lower()]
    return f"{sql}\n{shown(database.query(f'SELECT * FROM {_quoted(name)}', most=3))}"


def sources(task: Task) -> list[bytes | Path]:
    """The databases of a task: a file that it names, or two that are drawn (the second is only graded on)."""
    if "file" in task.metadata:
        return [Path(str(task.metadata["file"]))]
    return list(_drawn(int(str(task.metadata["database"])), int(str(task.metadata["complexity"]))))


@lru_cache(maxsize=64)
def _drawn(database: int, complexity: int) -> tuple[bytes, bytes]:
    rng = draws(database, complexity, 0x5C)
    schema = draw_schema(rng, complexity)
    return build(schema, rng, 30 * complexity), build(schema, rng, 30 * complexity)


@lru_cache(maxsize=512)
def _questions(database: int, complexity: int) -> tuple[Asked, ...]:
    """The questions to a database, all different; a small one may give occasion to fewer kinds, never to fewer."""
    schema = draw_schema(draws(database, complexity, 0x5C), complexity)
    opened = [Database(source) for source in _drawn(database, complexity)]
    rng = draws(database, complexity, 0xA5)
    found: dict[str, Asked] = {}
    try:
        while len(found) < _PER_DATABASE:
            asked = find(schema, opened, rng, complexity, taken=found)
            found[asked.text] = asked
    finally:
        for one in opened:
            one.close()
    return tuple(found.values())


def sql_tasks(
    count: int | None = 1000,
    *,
    complexity: int | None = None,
    seed: int = 0,
    path: str | None = None,
    checked: bool = False,
) -> TaskSet:
    """`count` generated tasks (None: without end), ten to a database; or those of a Spider or BIRD folder.

    complexity: 1 to 5; None takes all of them in turn, database by database. Every fifth database is of the split
    "heldout". path: a folder of Spider or BIRD, see `envgym_environments.tool.sql.folders`; `count` then bounds it.
    checked: run the query of each task of a folder once, which takes a while for thousands. Raises ValueError for a
    complexity out of bounds, a count below one, and, where `checked`, for queries that do not run, by task.
    """
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")
    if path is not None:
        found = folder_tasks(Path(path))[:count]
        if checked and (broken := [why for task in found if (why := _broken(task))]):
            raise ValueError(f"{len(broken)} of the {len(found)} tasks of {path} are broken:\n" + "\n".join(broken))
        return found
    if checked:
        raise ValueError("checked is for the tasks of a folder, and path names none; drawn queries all run")
    if complexity is not None and not 1 <= complexity <= len(LEVELS):
        raise ValueError(f"complexity is {complexity}; it must be 1 to {len(LEVELS)}, or None for all in turn")
    return TaskSet.lazy(lambda index: _task(index, complexity, seed), length=count, split_of=_split_of)


def _split_of(index: int) -> str:
    return "train" if index // _PER_DATABASE % 5 != 4 else "heldout"


def _broken(task: Task) -> str:
    """Why a task's own query cannot be graded by; "" where it can."""
    rules = Sql(task)
    try:
        rules.begin(0)
    except GraderFailure as error:
        return str(error)
    finally:
        rules.close()
    return ""


def _task(index: int, complexity: int | None, seed: int) -> Task:
    place = index // _PER_DATABASE
    level = complexity or 1 + (place + place // 5) % len(LEVELS)  # held-out ones have all levels too
    number = seed * 1_000_003 + place
    asked = _questions(number, level)[index % _PER_DATABASE]
    return Task(
        id=f"sql/{seed}/{level}/{index}",
        prompt=f"{asked.text}\nAnswer it with one SQLite query over a database that you can look at.",
        split=_split_of(index),
        seed=index,
        metadata={"database": number, "complexity": level, "sql": asked.sql, "ordered": asked.ordered},
    )


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Look at the tables, at those that the answer needs, and submit it; at once where they were given."""
    sql = str(task.metadata["sql"])
    if "CREATE TABLE" in seen[0].text:
        return Action.call("submit", sql=sql)
    if len(seen) == 1:
        return Action.call("tables")
    found = [line.rpartition(" (")[0] for line in seen[1].text.splitlines()]
    needed = [name for name in found if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)]
    if len(seen) - 2 < min(len(needed), 4):
        return Action.call("describe", table=needed[len(seen) - 2])
    return Action.call("submit", sql=sql)


expert = expert_of(_decide)
"""Reads the reference in the task's metadata; what it shows is how to look before one answers."""

SPEC = EnvSpec(
    name="sql",
    tasks=sql_tasks,
    make=played(Sql),
    description="Questions to generated databases, explored over several turns and graded by execution.",
    in_process=True,
)
