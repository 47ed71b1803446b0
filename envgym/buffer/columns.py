"""Rows of numbers that stay dense while rows come and go: the table behind `Replay`.

Appending and removing cost O(1) (removing moves the last row into the gap), and every column is one array without
gaps, which is what sampling over all rows at once needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Table"]


class Table:
    """Columns of equal length by name. The column "number" names a row for good; the other columns are free."""

    def __init__(self, kinds: Mapping[str, type[np.generic]]) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(16, kind) for name, kind in kinds.items()}
        self._row: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, number: int) -> bool:
        return number in self._row

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column: a view of the rows there are, good until the table changes."""
        return self._columns[name][: len(self)]

    def row(self, number: int) -> int:
        """Where a row is now."""
        return self._row[number]

    def append(self, row: Mapping[str, float]) -> None:
        """One more row; it says every column."""
        at = len(self)
        if at == len(self._columns["number"]):
            self._columns = {name: np.concatenate([old, np.zeros_like(old)]) for name, old in self._columns.items()}
        for name, column in self._columns.items():
            column[at] = row[name]
        self._row[int(row["number"])] = at

    def remove(self, number: int) -> None:
        """Take a row out; the last one fills its place."""
        at, last = self._row.pop(number), len(self)  # the length is one less by now
        if at != last:
            for column in self._columns.values():
                column[at] = column[last]
            self._row[int(self._columns["number"][at])] = at

    def lists(self) -> dict[str, list[Any]]:
        """Every column as a plain list, in the order of the rows."""
        return {name: self[name].tolist() for name in self._columns}

    def fill(self, columns: Mapping[str, Sequence[float]]) -> None:
        """Append the rows of what `lists` gave."""
        for values in zip(*(columns[name] for name in self._columns), strict=True):
            self.append(dict(zip(self._columns, values, strict=True)))
