"""Questions to a database, in words and as the SQL that answers them, of five levels.

1 a filter; 2 an aggregate or a ranking; 3 a join or groups; 4 groups with conditions, two joins; 5 comparisons with
an average, absences, shares. Every question says which columns its answer has. One whose answer would be empty, too
long, or decided by a tie is never asked: `find` looks at several databases of the schema.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envgym_environments.tool.sql.domains import Column, Schema, Table
from envgym_environments.tool.sql.engine import Database
from envgym_environments.words import pick

__all__ = ["LEVELS", "Asked", "find"]

MOST_ROWS = 40
_WORDS = {"MAX": "highest", "MIN": "lowest", "AVG": "average", "SUM": "total", "DESC": "highest", "ASC": "lowest"}
"""What SQL's aggregates and orders are called in a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """text, sql: the question and its reference answer. ordered: whether the order of rows counts.

    ranks: for a question about the first k of a ranking, k and the SQL of all ranks in order, to see ties.
    """

    text: str
    sql: str
    ordered: bool = False
    ranks: tuple[int, str] | None = None


class Edge(NamedTuple):
    """A table that refers to another: c and p in SQL."""

    child: Table
    parent: Table
    link: Column

    @property
    def up(self) -> str:
        """The join from the child's side."""
        return f"{self.child.name} c JOIN {self.parent.name} p {self._on}"

    @property
    def down(self) -> str:
        """The join from the parent's side."""
        return f"{self.parent.name} p JOIN {self.child.name} c {self._on}"

    @property
    def _on(self) -> str:
        return f"ON c.{self.link.name} = p.{self.parent.key.name}"


@dataclass(frozen=True, slots=True)
class Scene:
    """What a question is made from."""

    schema: Schema
    database: Database
    rng: np.random.Generator

    def table(self, wanted: Callable[[Table], object] = lambda table: True) -> Table:
        """A table that has what is wanted. Raises LookupError."""
        found = [table for table in self.schema.tables if wanted(table)]
        if not found:
            raise LookupError("no such table")
        return pick(self.rng, found)

    def numeric(self, table: Table) -> Column:
        """A column of numbers. Raises LookupError."""
        return self._column(table, lambda column: column.numeric)

    def grouping(self, table: Table) -> Column:
        """A column of few values. Raises LookupError."""
        return self._column(table, lambda column: column.kind in ("pick", "town"))

    def _column(self, table: Table, wanted: Callable[[Column], bool]) -> Column:
        found = [column for column in table.columns[1:] if wanted(column)]
        if not found:
            raise LookupError("no such column")
        return pick(self.rng, found)

    def edge(self) -> Edge:
        """A child, its parent, and the column that refers. Raises LookupError."""
        child = self.table(lambda table: any(column.parent for column in table.columns))
        column = pick(self.rng, [column for column in child.columns if column.parent])
        return Edge(child, self.schema.table(column.parent), column)

    def measure(self, *functions: str) -> tuple[str, str]:
        """One of SQL's functions or orders, and its word."""
        function = pick(self.rng, functions)
        return function, _WORDS[function]

    def condition(self, table: Table, *, alias: str = "") -> tuple[str, str]:
        """A condition on a table that some rows meet, in words and in SQL. Raises LookupError."""
        column = self._column(table, lambda column: column.kind in ("pick", "town", "int", "real", "date"))
        name = f"{alias}.{column.name}" if alias else column.name
        rows = self.database.query(f"SELECT {column.name} FROM {table.name}", most=400).rows
        value = pick(self.rng, [row[0] for row in rows if not isinstance(row[0], bytes)])
        if column.kind in ("pick", "town"):
            return f"whose {column.words} is {value}", f"{name} = '{value}'"
        if column.kind == "date":
            year = str(value)[:4]
            if self.rng.integers(2):
                return f"whose {column.words} is in {year}", f"{name} LIKE '{year}-%'"
            return f"whose {column.words} is before {value}", f"{name} < '{value}'"
        bound = value if column.kind == "int" else round(float(str(value)))
        sign, says = pick(self.rng, ((">", "greater than"), ("<", "less than"), (">=", "at least")))
        return f"whose {column.words} is {says} {bound}", f"{name} {sign} {bound}"


def _count(s: Scene) -> Asked:
    table = s.table()
    says, where = s.condition(table)
    lead = pick(s.rng, ("How many {} are there {}?", "Count the {} {}.", "What is the number of {} {}?"))
    return Asked(lead.format(table.many, says), f"SELECT COUNT(*) FROM {table.name} WHERE {where}")


def _list(s: Scene) -> Asked:
    table = s.table()
    says, where = s.condition(table)
    lead = pick(s.rng, ("List the {} of the {} {}.", "What is the {} of each of the {} {}?"))
    return Asked(
        lead.format(table.label.words, table.many, says),
        f"SELECT {table.label.name} FROM {table.name} WHERE {where}",
    )


def _extreme(s: Scene) -> Asked:
    table = s.table()
    column = s.numeric(table)
    function, says = s.measure("MAX", "MIN", "AVG", "SUM")
    return Asked(
        f"What is the {says} {column.words} of all {table.many}?",
        f"SELECT {function}({column.name}) FROM {table.name}",
    )


def _aggregate(s: Scene) -> Asked:
    table = s.table()
    column = s.numeric(table)
    says, where = s.condition(table)
    function, word = s.measure("AVG", "SUM", "MAX", "MIN")
    return Asked(
        f"What is the {word} {column.words} of the {table.many} {says}?",
        f"SELECT {function}({column.name}) FROM {table.name} WHERE {where}",
    )


def _distinct(s: Scene) -> Asked:
    table = s.table()
    column = s.grouping(table)
    says, where = s.condition(table)
    return Asked(
        f"How many different values of {column.words} do the {table.many} have {says}?",
        f"SELECT COUNT(DISTINCT {column.name}) FROM {table.name} WHERE {where}",
    )


def _top(s: Scene) -> Asked:
    table = s.table()
    column, k = s.numeric(table), int(s.rng.integers(1, 6))
    order, word = s.measure("DESC", "ASC")
    what = f"the {table.one}" if k == 1 else f"the {k} {table.many}"
    ranks = f"SELECT {column.name} FROM {table.name} ORDER BY 1 {order}"
    return Asked(
        f"Give {table.key.words} and {column.words} of {what} with the {word} {column.words}"
        + (", in this order." if k > 1 else "."),
        f"SELECT {table.key.name}, {column.name} FROM {table.name} ORDER BY {column.name} {order} LIMIT {k}",
        ordered=True,
        ranks=(k, ranks),
    )


def _parents_with(s: Scene) -> Asked:
    child, parent, _ = edge = s.edge()
    says, where = s.condition(child, alias="c")
    return Asked(
        f"Give the {parent.key.words} of every {parent.one} that has at least one {child.one} {says}.",
        f"SELECT DISTINCT p.{parent.key.name} FROM {edge.down} WHERE {where}",
    )


def _joined(s: Scene) -> Asked:
    child, parent, _ = edge = s.edge()
    column = s.numeric(child)
    says, where = s.condition(parent, alias="p")
    function, word = s.measure("SUM", "AVG", "MAX")
    return Asked(
        f"Over the {child.many} of {parent.many} {says}: what is the {word} {column.words}?",
        f"SELECT {function}(c.{column.name}) FROM {edge.up} WHERE {where}",
    )


def _groups(s: Scene) -> Asked:
    table = s.table()
    by = s.grouping(table)
    if s.rng.integers(2):
        return Asked(
            f"For each {by.words}, give it and how many {table.many} have it.",
            f"SELECT {by.name}, COUNT(*) FROM {table.name} GROUP BY {by.name}",
        )
    column = s.numeric(table)
    return Asked(
        f"For each {by.words} of the {table.many}, give it and the average {column.words}.",
        f"SELECT {by.name}, AVG({column.name}) FROM {table.name} GROUP BY {by.name}",
    )


def _having(s: Scene) -> Asked:
    child, parent, link = s.edge()
    least = int(s.rng.integers(2, 7))
    return Asked(
        f"Give {parent.key.words} and number of {child.many} of every {parent.one} with at least {least} of them.",
        f"SELECT {link.name}, COUNT(*) FROM {child.name} GROUP BY {link.name} HAVING COUNT(*) >= {least}",
    )


def _busiest(s: Scene) -> Asked:
    child, parent, _ = edge = s.edge()
    body = f"FROM {edge.up} GROUP BY p.{parent.key.name}"
    shown = dict.fromkeys((parent.label.name, parent.key.name))
    says = " and ".join(dict.fromkeys((parent.label.words, parent.key.words)))
    return Asked(
        f"Which {parent.one} has the most {child.many}? Give {says}.",
        f"SELECT {', '.join(f'p.{name}' for name in shown)} {body} ORDER BY COUNT(*) DESC LIMIT 1",
        ranks=(1, f"SELECT COUNT(*) {body} ORDER BY 1 DESC"),
    )


def _two_joins(s: Scene) -> Asked:
    child, parent, link = edge = s.edge()
    join = f"SELECT COUNT(*) FROM {edge.up} JOIN "
    others = [column for column in child.columns if column.parent and column is not link]
    up = [column for column in parent.columns if column.parent]
    if not others and not up:
        raise LookupError("no second join")
    column = pick(s.rng, [*others, *up])
    far = s.schema.table(column.parent)
    says, where = s.condition(far, alias="f")
    if column in up:
        return Asked(
            f"How many {child.many} belong to {parent.a} that belongs to {far.a} {says}?",
            f"{join}{far.name} f ON p.{column.name} = f.{far.key.name} WHERE {where}",
        )
    also, and_where = s.condition(parent, alias="p")
    return Asked(
        f"How many {child.many} belong to {far.a} {says} and to {parent.a} {also}?",
        f"{join}{far.name} f ON c.{column.name} = f.{far.key.name} WHERE {where} AND {and_where}",
    )


def _above_average(s: Scene) -> Asked:
    table = s.table()
    column = s.numeric(table)
    sign, says = pick(s.rng, ((">", "greater"), ("<", "less")))
    return Asked(
        f"How many {table.many} have a {column.words} {says} than the average {column.words} of all {table.many}?",
        f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} {sign} "
        f"(SELECT AVG({column.name}) FROM {table.name})",
    )


def _without(s: Scene) -> Asked:
    child, parent, link = s.edge()
    says, where = s.condition(child, alias="c")
    return Asked(
        f"Give the {parent.key.words} of every {parent.one} that has no {child.one} {says}.",
        f"SELECT p.{parent.key.name} FROM {parent.name} p WHERE NOT EXISTS (SELECT 1 FROM {child.name} c "
        f"WHERE c.{link.name} = p.{parent.key.name} AND {where})",
    )


def _share(s: Scene) -> Asked:
    table = s.table()
    says, where = s.condition(table)
    return Asked(
        f"What percentage (0 to 100) of all {table.many} are ones {says}?",
        f"SELECT 100.0 * SUM(CASE WHEN {where} THEN 1 ELSE 0 END) / COUNT(*) FROM {table.name}",
    )


def _best_sum(s: Scene) -> Asked:
    child, parent, _ = edge = s.edge()
    column = s.numeric(child)
    body = f"FROM {edge.down} GROUP BY p.{parent.key.name}"
    return Asked(
        f"Which {parent.one} has the highest total {column.words} over its {child.many}? "
        f"Give {parent.key.words} and that total.",
        f"SELECT p.{parent.key.name}, SUM(c.{column.name}) {body} ORDER BY 2 DESC LIMIT 1",
        ranks=(1, f"SELECT SUM(c.{column.name}) {body} ORDER BY 1 DESC"),
    )


LEVELS: tuple[tuple[Callable[[Scene], Asked], ...], ...] = (
    (_count, _list, _extreme),
    (_aggregate, _distinct, _top, _count),
    (_parents_with, _joined, _groups, _top),
    (_having, _busiest, _two_joins, _joined),
    (_above_average, _without, _share, _best_sum, _two_joins),
)


def find(
    schema: Schema,
    databases: Sequence[Database],
    rng: np.random.Generator,
    level: int,
    *,
    taken: Collection[str] = (),
) -> Asked:
    """A question of a level (1 to 5) whose answer is well defined in all `databases` and differs between them.

    None whose text is in `taken`.

    Raises LookupError when the schema gives occasion to none.
    """
    for attempt in range(400):
        wanted = max(1, level - attempt // 100)  # small schemas have no question of some levels
        try:
            asked = pick(rng, LEVELS[wanted - 1])(Scene(schema, databases[0], rng))
        except LookupError:
            continue
        if asked.text in taken:
            continue
        answers = [_answer(asked, database) for database in databases]
        if all(answer is not None for answer in answers) and len(set(answers)) > 1:
            return asked
    raise LookupError(f"no question of level {level} to a database of {schema.domain}")


def _answer(asked: Asked, database: Database) -> str | None:
    """The answer as text, or None where it is empty, too long, trivial, or decided by a tie."""
    found = database.query(asked.sql, most=MOST_ROWS)
    if found.error:
        raise AssertionError(f"a question's own SQL runs: {found.error} in {asked.sql}")
    if not found.rows or found.more or found.rows in (((0,),), ((None,),)):
        return None
    if asked.ranks is not None:
        k, sql = asked.ranks
        ranks = database.query(sql, most=k + 1).rows
        if len(ranks) < k or len(set(ranks)) < len(ranks):
            return None
    return repr(found.rows)
