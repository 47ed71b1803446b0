"""Data problems: a CSV file with the faults of real ones, a question about it, and the program that answers it.

From level 2 on some values are missing, from level 3 on some rows stand twice and texts are written in several
ways; the question says how each is to be treated, so that it has one answer.
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envgym_environments import words

__all__ = ["draw_table"]

_KINDS = {
    "sales": ("region", ("amount", 5, 900), ("units", 1, 40)),
    "sensors": ("station", ("temperature", -20, 45), ("humidity", 5, 100)),
    "rides": ("district", ("distance", 1, 60), ("minutes", 3, 150)),
    "exams": ("school", ("score", 0, 100), ("hours", 0, 60)),
}

Number = tuple[str, int, int]
"""A column of numbers: its name, the least and the most of it."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a table and a question about it are made from: the column of groups, the groups, two columns of numbers.

    level: 1 to 5, how many faults the file has.
    """

    rng: np.random.Generator
    level: int
    group: str
    groups: list[str]
    first: Number
    second: Number

    def totals(self, by: str, value: str) -> str:
        """A program's lines that add up a value for each of what `by` says."""
        return f"totals = {{}}\nfor r in rows:\n    totals[{by}] = totals.get({by}, 0) + {value}\n"


_READ = """\
import csv, statistics
rows = list(csv.DictReader(open('data.csv')))
"""


def draw_table(rng: np.random.Generator, level: int) -> tuple[str, str, str]:
    """Question, program and the content of data.csv."""
    kind = words.pick(rng, sorted(_KINDS))
    group, first, second = _KINDS[kind]
    groups = words.some(rng, sorted({words.town(rng) for _ in range(30)}), 3 + level)
    sheet = Sheet(rng, level, group, groups, first, second)
    lines = [_line(sheet, number) for number in range(40 * level)]
    if level >= 3:
        lines += [lines[int(place)] for place in rng.permutation(len(lines))[: 2 * level]]
        lines = [lines[int(place)] for place in rng.permutation(len(lines))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "date", group, first[0], second[0]])
    writer.writerows(lines)
    read, rules = _READ, []
    if level >= 3:
        read += "rows = list({r['id']: r for r in rows}.values())\n"
        read += f"for r in rows:\n    r[{group!r}] = r[{group!r}].strip().title()\n"
        rules.append(f"Rows with the same id are one. Letter case and blanks around a {group} mean nothing.")
    if level >= 2:
        rules.append(f"Leave out rows in which {first[0]} is empty.")
        read += f"rows = [r for r in rows if r[{first[0]!r}]]\n"
    asked, program = words.pick(rng, _ASKED)(sheet)
    question = f"data.csv holds {kind}, one a line. {' '.join([*rules, asked])}"
    return question, read + program, text.getvalue()


def _line(sheet: Sheet, number: int) -> list[object]:
    rng, level = sheet.rng, sheet.level
    place = words.pick(rng, sheet.groups)
    if level >= 3 and rng.random() < 0.2:
        place = words.pick(rng, (place.upper(), place.lower(), f" {place} "))
    value: object = round(float(rng.uniform(*sheet.first[1:])), 1)
    if level >= 2 and rng.random() < 0.08:
        value = ""
    least, most = sheet.second[1:]
    return [1000 + number, words.date(rng, -365), place, value, int(rng.integers(least, most + 1))]


def _best(sheet: Sheet) -> tuple[str, str]:
    first = sheet.first[0]
    totals = sheet.totals(f"r[{sheet.group!r}]", f"float(r[{first!r}])")
    return f"Which {sheet.group} has the highest total {first}?", f"{totals}print(max(totals, key=totals.get))"


def _mean(sheet: Sheet) -> tuple[str, str]:
    group, first, one = sheet.group, sheet.first[0], words.pick(sheet.rng, sheet.groups)
    return (
        f"What is the mean {first} of the {group} {one}, to 3 decimals?",
        f"print(round(statistics.mean(float(r[{first!r}]) for r in rows if r[{group!r}] == {one!r}), 3))",
    )


def _median(sheet: Sheet) -> tuple[str, str]:
    first, second, least = sheet.first[0], sheet.second[0], int(sheet.rng.integers(5, 30))
    return (
        f"What is the median {first} of the rows whose {second} is at least {least}, to 3 decimals?",
        f"print(round(statistics.median(float(r[{first!r}]) for r in rows if int(r[{second!r}]) >= {least}), 3))",
    )


def _together(sheet: Sheet) -> tuple[str, str]:
    first, second = sheet.first[0], sheet.second[0]
    return (
        f"What is Pearson's correlation of {first} and {second}, to 4 decimals?",
        f"print(round(statistics.correlation([float(r[{first!r}]) for r in rows], "
        f"[int(r[{second!r}]) for r in rows]), 4))",
    )


def _month(sheet: Sheet) -> tuple[str, str]:
    second = sheet.second[0]
    return (
        f"In which month (as YYYY-MM) is the total {second} the highest? If several, the earliest.",
        sheet.totals("r['date'][:7]", f"int(r[{second!r}])") + "print(min(totals, key=lambda m: (-totals[m], m)))",
    )


def _above(sheet: Sheet) -> tuple[str, str]:
    group, first = sheet.group, sheet.first[0]
    return (
        f"How many rows have a {first} greater than the mean {first} of their {group}?",
        f"by = {{}}\nfor r in rows:\n    by.setdefault(r[{group!r}], []).append(float(r[{first!r}]))\n"
        f"print(sum(float(r[{first!r}]) > statistics.mean(by[r[{group!r}]]) for r in rows))",
    )


_ASKED: tuple[Callable[[Sheet], tuple[str, str]], ...] = (_best, _mean, _median, _together, _month, _above)
