"""Data problems: a CSV file with the faults of real ones, a question about it, and the program that answers it.

From level 2 on some values are missing, from level 3 on some rows stand twice and texts are written in several
ways; the question says how each is to be treated, so that it has one answer.
"""

import csv
import io
from collections.abc import Callable
from textwrap import dedent

import numpy as np

from envgym_environments import words

__all__ = ["draw_table"]

_KINDS = {
    "sales": ("region", ("amount", 5, 900), ("units", 1, 40)),
    "sensors": ("station", ("temperature", -20, 45), ("humidity", 5, 100)),
    "rides": ("district", ("distance", 1, 60), ("minutes", 3, 150)),
    "exams": ("school", ("score", 0, 100), ("hours", 0, 60)),
}

_READ = """\
import csv, statistics
rows = list(csv.DictReader(open('data.csv')))
"""


def draw_table(rng: np.random.Generator, level: int) -> tuple[str, str, str]:
    """Question, program and the content of data.csv."""
    kind = words.pick(rng, sorted(_KINDS))
    group, first, second = _KINDS[kind]
    groups = words.some(rng, sorted({words.town(rng) for _ in range(30)}), 3 + level)
    lines = [_line(rng, number, groups, first, second, level) for number in range(40 * level)]
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
    asked, program = words.pick(rng, _ASKED)(rng, group, first[0], second[0], groups)
    question = f"data.csv holds {kind}, one a line. {' '.join([*rules, asked])}"
    return question, read + dedent(program), text.getvalue()


def _line(
    rng: np.random.Generator,
    number: int,
    groups: list[str],
    first: tuple[str, int, int],
    second: tuple[str, int, int],
    level: int,
) -> list[object]:
    place = words.pick(rng, groups)
    if level >= 3 and rng.random() < 0.2:
        place = words.pick(rng, (place.upper(), place.lower(), f" {place} "))
    value: object = round(float(rng.uniform(first[1], first[2])), 1)
    if level >= 2 and rng.random() < 0.08:
        value = ""
    return [1000 + number, words.date(rng, -365), place, value, int(rng.integers(second[1], second[2] + 1))]


def _best(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    return (
        f"Which {group} has the highest total {first}?",
        f"""\
        totals = {{}}
        for r in rows:
            totals[r[{group!r}]] = totals.get(r[{group!r}], 0) + float(r[{first!r}])
        print(max(totals, key=totals.get))""",
    )


def _mean(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    one = words.pick(rng, groups)
    return (
        f"What is the mean {first} of the {group} {one}, to 3 decimals?",
        f"print(round(statistics.mean(float(r[{first!r}]) for r in rows if r[{group!r}] == {one!r}), 3))",
    )


def _median(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    least = int(rng.integers(5, 30))
    return (
        f"What is the median {first} of the rows whose {second} is at least {least}, to 3 decimals?",
        f"print(round(statistics.median(float(r[{first!r}]) for r in rows if int(r[{second!r}]) >= {least}), 3))",
    )


def _together(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    return (
        f"What is Pearson's correlation of {first} and {second}, to 4 decimals?",
        f"print(round(statistics.correlation([float(r[{first!r}]) for r in rows], "
        f"[int(r[{second!r}]) for r in rows]), 4))",
    )


def _month(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    return (
        f"In which month (as YYYY-MM) is the total {second} the highest? If several, the earliest.",
        f"""\
        totals = {{}}
        for r in rows:
            totals[r['date'][:7]] = totals.get(r['date'][:7], 0) + int(r[{second!r}])
        print(min(totals, key=lambda m: (-totals[m], m)))""",
    )


def _above(rng: np.random.Generator, group: str, first: str, second: str, groups: list[str]) -> tuple[str, str]:
    return (
        f"How many rows have a {first} greater than the mean {first} of their {group}?",
        f"""\
        by = {{}}
        for r in rows:
            by.setdefault(r[{group!r}], []).append(float(r[{first!r}]))
        print(sum(float(r[{first!r}]) > statistics.mean(by[r[{group!r}]]) for r in rows))""",
    )


_ASKED: tuple[Callable[..., tuple[str, str]], ...] = (_best, _mean, _median, _together, _month, _above)
