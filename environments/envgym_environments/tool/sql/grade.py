"""Whether a query answers a question: by what it gives, on the database that was seen and on one that was not.

Two queries are the same when their rows are (as a bag, in order where order was asked for; numbers to nine digits;
names of columns do not count). The second database, of the same schema with other data, tells a query from a
constant: Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites" (2020), section 3.
"""

from collections import Counter
from collections.abc import Sequence

from envgym_environments.tool.sql.engine import Cell, Database, Rows

__all__ = ["grade", "same"]

_MOST = 2000


def grade(submitted: str, reference: str, databases: Sequence[Database], *, ordered: bool) -> dict[str, float]:
    """The channels of a submission.

    reward: 1.0 when its rows are right on every database. Of the first one: executes, seen (right there), width (as
    many columns as the reference), rows (share of the reference's rows).

    Raises ValueError for a reference that does not run.
    """
    right: list[bool] = []
    channels = {"reward": 0.0, "executes": 0.0, "seen": 0.0, "width": 0.0, "rows": 0.0}
    for number, database in enumerate(databases):
        wanted, got = database.query(reference, most=_MOST), database.query(submitted, most=_MOST)
        if wanted.error:
            raise ValueError(f"the reference does not run ({wanted.error}): {reference}")
        right.append(same(got, wanted, ordered=ordered))
        if number == 0:
            channels |= _parts(got, wanted) | {"seen": float(right[0])}
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
    return tuple(map(_cell, row))


def _cell(cell: Cell) -> object:
    """A cell to compare: 3 and 3.0 are the same, and so are two sums that were added in another order."""
    if isinstance(cell, int):
        return ("number", cell)
    if isinstance(cell, float):
        rounded = float(f"{cell:.9g}")
        return ("number", int(rounded) if rounded.is_integer() else rounded)
    return cell
