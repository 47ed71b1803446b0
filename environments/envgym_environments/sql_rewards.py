"""Partial rewards of a SQL query: does it run, does it answer, does it look at the right things in the right words.

The channels are Reasoning-SQL's (Pourreza et al. 2025, arXiv 2503.23157), with execution weighing
most. Queries run read-only, in a bounded number of the database machine's steps, so that a verdict is the same
on every computer. Its AI feedback is `envgym.rewards.judge_rubric`, mixed in under the name "judge".
"""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp

from envgym.errors import GraderFailure
from envgym.rewards.channels import Channel, Mixture
from envgym_environments.tool.sql.functions import BY_CHANCE, replace_functions
from envgym_environments.tool.sql.grade import comparable
from envgym_environments.tool.sql.reading import TooLarge, bounded, read_rows

__all__ = [
    "REASONING_SQL",
    "Answered",
    "ngram_similarity",
    "run_query",
    "same_rows",
    "schema_linking",
    "sql_scores",
]

REASONING_SQL = Mixture(
    (
        Channel("execution", 3.0, needed=True), Channel("syntax"), Channel("schema_linking"), Channel("ngram"),
        Channel("judge"), Channel("format"),
    )
)  # fmt: skip

_EVERY = 1000
_ALLOWED = frozenset(
    {
        sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
    }
)  # fmt: skip
_BANNED_FUNCTIONS = BY_CHANCE | {"readfile", "writefile", "edit", "fts3_tokenizer"}
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Answered:
    """What a query gave: its rows, or why there are none. cut: there were more rows than were read."""

    rows: tuple[tuple[object, ...], ...] = ()
    error: str = ""
    cut: bool = False


def run_query(
    connection: sqlite3.Connection, query: str, *, steps: int = 5_000_000, most_rows: int = 10_000
) -> Answered:
    """Run one reading statement. What it does wrong is in the answer; nothing is raised and nothing is changed.

    steps: of SQLite's virtual machine, in thousands rounded up; they bound the time without a clock. What one
    function does within a step is bounded by the length of a value, a million bytes; the rows are by `read_rows`.
    As in `sql`, chance is refused and the clock stands still: the connection's own functions are replaced for good
    (`replace_functions`).
    """
    replace_functions(connection)
    left = [max(1, steps // _EVERY)]

    def tick() -> int:
        left[0] -= 1
        return int(left[0] < 0)

    def permit(action: int, _one: str | None, two: str | None, *_more: str | None) -> int:
        denied = action not in _ALLOWED or (
            action == sqlite3.SQLITE_FUNCTION and (two or "").lower() in _BANNED_FUNCTIONS
        )
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    connection.set_progress_handler(tick, _EVERY)
    connection.set_authorizer(permit)
    try:
        with bounded(connection):
            read = read_rows(connection, query, most_rows + 1, longest=_MOST_BYTES)
    except TooLarge as error:
        return Answered(error=str(error))
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        late = left[0] < 0
        return Answered(error=f"it needs more than {steps} steps" if late else f"{type(error).__name__}: {error}")
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
    rows = read[1] if read is not None else []
    return Answered(tuple(map(tuple, rows[:most_rows])), cut=len(rows) > most_rows)


def same_rows(one: Sequence[Sequence[object]], other: Sequence[Sequence[object]], *, ordered: bool) -> bool:
    """Whether two results are equal: as lists, or as multisets where the order was not asked for.

    Cells are compared as `sql` does (`comparable`); column names do not count.
    """
    if len(one) != len(other):
        return False
    plain = [[tuple(map(comparable, row)) for row in rows] for rows in (one, other)]
    if ordered:
        return plain[0] == plain[1]
    return Counter(plain[0]) == Counter(plain[1])


@lru_cache(maxsize=4096)
def _parsed(query: str, dialect: str) -> exp.Expression | None:
    try:
        found = sqlglot.parse_one(query, dialect=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError):
        return None
    return found if isinstance(found, exp.Expression) else None


def schema_items(query: str, *, dialect: str = "sqlite") -> frozenset[str] | None:
    """The tables and columns that a query names, in lower case, without aliases; None for what cannot be read."""
    tree = _parsed(query, dialect)
    if tree is None:
        return None
    made = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    tables = {table.name.lower() for table in tree.find_all(exp.Table)} - made
    columns = {f".{column.name.lower()}" for column in tree.find_all(exp.Column)}
    return frozenset(tables | columns)


def schema_linking(query: str, gold: str, *, dialect: str = "sqlite") -> float:
    """The Jaccard index of the tables and columns that two queries name; 0.0 for one that cannot be read."""
    one, other = schema_items(query, dialect=dialect), schema_items(gold, dialect=dialect)
    if one is None or other is None:
        return 0.0
    return len(one & other) / len(one | other) if one | other else 1.0


def ngram_similarity(query: str, gold: str, *, size: int = 2, dialect: str = "sqlite") -> float:
    """The Jaccard index of the token n-grams of two queries, in lower case."""
    one, other = (_grams(text, size, dialect) for text in (query, gold))
    return len(one & other) / len(one | other) if one | other else 1.0


def _grams(query: str, size: int, dialect: str) -> set[tuple[str, ...]]:
    try:
        words = [token.text.lower() for token in sqlglot.tokenize(query, read=dialect)]
    except (sqlglot.errors.SqlglotError, ValueError):
        words = query.lower().split()
    return {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))} if words else set()


def sql_scores(connection: sqlite3.Connection, query: str, gold: str) -> dict[str, float]:
    """The four channels of one query: execution, syntax, schema_linking, ngram, each in [0, 1].

    execution: its rows are the gold query's, in that order where that one orders them. syntax: it runs. Raises
    GraderFailure when the gold query does not run.
    """
    right = run_query(connection, gold)
    if right.error or right.cut:
        raise GraderFailure(f"the gold query does not run: {right.error or 'it gives too many rows'}: {gold[:200]}")
    found = run_query(connection, query)
    tree = _parsed(gold, "sqlite")
    ordered = tree is not None and tree.args.get("order") is not None
    equal = not found.error and not found.cut and same_rows(found.rows, right.rows, ordered=ordered)
    return {
        "execution": float(equal),
        "syntax": float(not found.error),
        "schema_linking": schema_linking(query, gold),
        "ngram": ngram_similarity(query, gold),
    }
