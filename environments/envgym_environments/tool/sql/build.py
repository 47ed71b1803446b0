"""From a schema to a filled database, as the bytes of a SQLite file.

Rows are drawn so that questions have answers: few towns per database, and foreign keys that favour some parents, as
some customers order more than others do.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import numpy as np

from envgym_environments import words
from envgym_environments.tool.sql.domains import Column, Schema, Table
from envgym_environments.tool.sql.engine import Cell

__all__ = ["build", "rows_of"]

_WORDS: dict[str, Callable[[np.random.Generator], str]] = {
    "person": words.person, "town": words.town, "product": words.product, "title": words.title,
    "company": words.company, "date": words.date,
}  # fmt: skip


def build(schema: Schema, rng: np.random.Generator, rows: int) -> bytes:
    """A database of about `rows` rows in its largest table."""
    with closing(sqlite3.connect(":memory:")) as connection:
        counts: dict[str, int] = {}
        towns = words.some(rng, sorted({words.town(rng) for _ in range(40)}), 8)
        for table in schema.tables:
            connection.execute(_create(table))
            counts[table.name] = rows_of(table, rng, rows)
            filled = [_row(table, number, counts, towns, rng) for number in range(1, counts[table.name] + 1)]
            marks = ",".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", filled)
        connection.commit()
        return connection.serialize()


def rows_of(table: Table, rng: np.random.Generator, rows: int) -> int:
    """How many rows: tables that refer to others are the large ones; few departments, many assignments."""
    parents = sum(bool(column.parent) for column in table.columns)
    share = (0.3, 0.7, 1.0)[min(parents, 2)]
    return max(4, int(rows * share * rng.uniform(0.7, 1.0)))


def _create(table: Table) -> str:
    parts = [f"{table.key.name} INTEGER PRIMARY KEY"]
    for column in table.columns[1:]:
        parts.append(f"{column.name} {column.sql_type}" + (f" REFERENCES {column.parent}" if column.parent else ""))
    return f"CREATE TABLE {table.name} (" + ", ".join(parts) + ")"


def _row(
    table: Table, number: int, counts: dict[str, int], towns: list[str], rng: np.random.Generator
) -> list[Cell]:
    return [number, *(_value(column, counts, towns, rng) for column in table.columns[1:])]


def _value(column: Column, counts: dict[str, int], towns: list[str], rng: np.random.Generator) -> Cell:
    if column.parent:  # the square favours the first parents, as some customers order more than others
        return 1 + int(counts[column.parent] * rng.random() ** 1.6)
    match column.kind:
        case "int":
            return int(rng.integers(int(column.arguments[0]), int(column.arguments[1]) + 1))
        case "real":
            return round(float(rng.uniform(float(column.arguments[0]), float(column.arguments[1]))), 2)
        case "pick":
            return words.pick(rng, column.arguments)
        case "town":
            return words.pick(rng, towns)
    return _WORDS[column.kind](rng)
