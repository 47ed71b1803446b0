"""Whether a query answers a question: by what it gives, on the database that was seen and on one that was not.

Two queries are the same when their rows are (as a bag, in order where order was asked for; cells by `comparable`;
names of columns do not count). The second database, of the same schema with other data, tells a query from a
constant: Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites" (2020), section 3.
"""

import math
from collections import Counter
from collections.abc import Sequence

from envgym.errors import GraderFailure
from envgym_environments.tool.sql.engine import Cell, Database, Rows

__all__ = ["comparable", "grade", "references", "same"]

_MOST = 2000
_MOST_WANTED = 100_000


def references(reference: str, databases: Sequence[Database]) -> list[Rows]:
    """What the reference gives on each database. Raises GraderFailure where nothing can be graded by it."""
    found = [database.query(reference, most=_MOST_WANTED) for database in databases]
    for rows in found:
        if rows.error or rows.more:
            why = rows.error or f"it gives more than {_MOST_WANTED} rows"
            raise GraderFailure(f"the reference does not run ({why}): {reference[:500]}")
    return found


def grade(
    submitted: str, wanted: Sequence[Rows], databases: Sequence[Database], *, ordered: bool
) -> dict[str, float]:
    """The channels of a submission. wanted: the `references` of the databases.

    reward: 1.0 when its rows are right on every database. Of the first one: executes, seen (right there), width (as
    many columns as the reference), rows (share of the reference's rows).
    """
    right: list[bool] = []
    channels = {"reward": 0.0, "executes": 0.0, "seen": 0.0, "width": 0.0, "rows": 0.0}
    for number, (database, rows) in enumerate(zip(databases, wanted, strict=True)):
        got = database.query(submitted, most=max(_MOST, len(rows.rows)))
        right.append(same(got, rows, ordered=ordered))
        if number == 0:
            channels |= _parts(got, rows) | {"seen": float(right[0])}
    return channels | {"reward": float(all(right))}


def _parts(got: Rows, wanted: Rows) -> dict[str, float]:
    if got.error:
        return {}
    found = Counter(map(_row, got.rows)) & Counter(map(_row, wanted.rows))
    most = max(len(got.rows), len(wanted.rows))
    return {
        "executes": 1.0,
        "width": float(len(got.columns) == len(wanted.columns)),
        "rows": found.total() / most if most else 1.0,
    }


def same(got: Rows, wanted: Rows, *, ordered: bool) -> bool:
    """Whether two answers are the same."""
    if got.error or got.more != wanted.more or len(got.columns) != len(wanted.columns):
        return False
    one, two = list(map(_row, got.rows)), list(map(_row, wanted.rows))
    return one == two if ordered else Counter(one) == Counter(two)


def _row(row: Sequence[Cell]) -> tuple[object, ...]:
    return tuple(map(comparable, row))


def comparable(cell: object) -> object:
    """A value that is equal where two cells are the same, to count and compare them by.

    Numbers by value, as SQLite compares them: 3 is 3.0, and whole ones exactly, however large. What is not whole is
    rounded to nine digits or three decimals, whichever is finer (at most fifteen digits), so that two sums that
    were added in another order are the same. A text is no number, and NULL is itself.
    """
    if not isinstance(cell, float):
        return ("number", cell) if isinstance(cell, int) else cell
    if not cell.is_integer() and math.isfinite(cell):
        size = math.floor(math.log10(abs(cell)))
        cell = round(cell, min(max(3, 8 - size), 14 - size))
    return ("number", int(cell) if cell.is_integer() else cell)
