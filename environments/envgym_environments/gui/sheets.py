"""What is asked of the spreadsheet: real documents, graded by the values that its own converter reads in them.

Documents are the plain form of Gnumeric's own format ("The Gnumeric File Format", chapter 2: cells with a row, a
column and a type of value).
"""

import re
import zlib
from collections.abc import Sequence
from xml.sax.saxutils import escape

import numpy as np

from envgym_environments.gui.problem import NAMES, TASK, Problem, Way, named
from envgym_environments.words import pick

__all__ = ["enter", "fill", "sheet", "timeless", "total"]

_TIMES = re.compile(rb"<(meta:creation-date|dc:date)>[^<]*</\1>")
_MOST_BYTES = 1 << 24
"""Of a document, unpacked."""
_TEXT, _WHOLE = 60, 30
_SAVE = (("press", "ctrl+s"),)
_HEAD = ("thing", "price", "number")


def sheet(rows: Sequence[Sequence[str]]) -> str:
    """A document of one sheet with these texts and whole numbers."""
    cells = "".join(_cell(row, column, text) for row, texts in enumerate(rows) for column, text in enumerate(texts))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<gnm:Workbook xmlns:gnm="http://www.gnumeric.org/v10.dtd">'
        "<gnm:SheetNameIndex><gnm:SheetName>Sheet1</gnm:SheetName></gnm:SheetNameIndex>"
        f"<gnm:Sheets><gnm:Sheet><gnm:Name>Sheet1</gnm:Name><gnm:Cells>{cells}</gnm:Cells></gnm:Sheet></gnm:Sheets>"
        "</gnm:Workbook>\n"
    )


def timeless(document: bytes) -> bytes:
    """What two savings of one sheet have in common: the document as it is unpacked, without the times in it."""
    try:
        plain = zlib.decompressobj(31).decompress(document, _MOST_BYTES)  # 31: in the form of GZIP
    except zlib.error:
        plain = document
    return _TIMES.sub(b"", plain)


def _cell(row: int, column: int, text: str) -> str:
    kind = _WHOLE if text.isdigit() else _TEXT
    return f'<gnm:Cell Row="{row}" Col="{column}" ValueType="{kind}">{escape(text)}</gnm:Cell>'


def _goods(rng: np.random.Generator, level: int) -> list[list[str]]:
    """A head, and goods with prices and numbers."""
    numbers = ([str(int(rng.integers(2, 90))) for _ in range(2)] for _ in range(2 + level))
    return [list(_HEAD), *([thing, *pair] for thing, pair in zip(named(rng, 2 + level), numbers, strict=True))]


def _at(cell: str, text: str) -> Way:
    """Go to a cell by the box that shows where one is, and write into it."""
    return (("click", "@text:"), ("press", "ctrl+a"), ("type_text", f"{cell}\n"), ("type_text", f"{text}\n"))


def _asked(
    rng: np.random.Generator, before: list[list[str]], after: list[list[str]], what: str, way: Way
) -> Problem:
    name = f"{pick(rng, NAMES)}.gnumeric"
    prompt = f"{TASK}In the spreadsheet, {what} Save {name} as it is named, and change nothing else."
    values = tuple(tuple(row) for row in after)
    return Problem(prompt, ("gnumeric", name), way + _SAVE, {name: sheet(before)}, table=(name, values))


def enter(rng: np.random.Generator, level: int) -> Problem:
    """Other numbers in as many cells as half the level, and one more."""
    before = _goods(rng, level)
    after = [list(row) for row in before]
    rows = [int(row) for row in rng.permutation(np.arange(1, len(before)))[: 1 + level // 2]]
    told: list[str] = []
    way: Way = ()
    for row in rows:
        column = int(rng.integers(1, 3))
        after[row][column] = new = str(int(before[row][column]) + int(rng.integers(1, 50)))
        told.append(f"make the {_HEAD[column]} of {before[row][0]} {new}")
        way += _at(f"{'ABC'[column]}{row + 1}", new)
    return _asked(rng, before, after, f"{' and '.join(told)}.", way)


def total(rng: np.random.Generator, level: int) -> Problem:
    """The sum of a column below it."""
    before = _goods(rng, level)
    column = int(rng.integers(1, 3))
    letter, last = "ABC"[column], len(before)
    value = sum(int(row[column]) for row in before[1:])
    row = [""] * column + [str(value)]
    what = f"write the sum of the column {_HEAD[column]} into {letter}{last + 1}, below the last row."
    way = _at(f"{letter}{last + 1}", f"=SUM({letter}2:{letter}{last})")
    return _asked(rng, before, [*before, row], what, way)


def fill(rng: np.random.Generator, level: int) -> Problem:
    """A new column: the price times the number, with a head."""
    before = _goods(rng, level)
    after = [[*row, str(int(row[1]) * int(row[2]))] if at else [*row, "worth"] for at, row in enumerate(before)]
    lines = ["worth", *(f"=B{row}*C{row}" for row in range(2, len(before) + 1))]
    what = "write worth into D1, and below it in each row the price times the number."
    return _asked(rng, before, after, what, _at("D1", "\n".join(lines)))
