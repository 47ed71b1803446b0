"""What a problem on a desktop is: plain data, with its application, its files, its goal and a way to it.

A way is a reference solution in steps that name elements by role and name, which the expert looks up in what it
sees; no observation shows it.
"""

from dataclasses import dataclass, field

import numpy as np

__all__ = ["NAMES", "TASK", "THINGS", "Problem", "Table", "Way", "named"]

Way = tuple[tuple[str, ...], ...]
"""Steps: a tool's name and its arguments; ``@role:name`` stands for the ref of an element."""
Table = tuple[tuple[str, ...], ...]
"""The values of a sheet as texts, row by row, without what is empty at the end of rows and below the last."""
TASK = "Do this on the desktop, then call done. "
THINGS = (
    "apples", "bolts", "candles", "drums", "envelopes", "folders", "gloves", "hinges", "inks", "jars", "kettles",
    "lamps", "mirrors", "nails", "ovens", "pencils", "quilts", "ropes", "stamps", "towels",
)  # fmt: skip
NAMES = ("list", "notes", "order", "stock", "plan", "memo")


@dataclass(frozen=True, slots=True)
class Problem:
    """files: name -> text, in the home. wanted: the files at the end, all of them, None: as they were.

    shows: (role, text): an element of that role must show that text at the end; None: whatever.
    table: (file, values): that spreadsheet must have these values, as the spreadsheet's own converter reads it, and
    its bytes are not compared; None: there is none.
    """

    prompt: str
    program: tuple[str, ...]
    way: Way
    files: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, str] | None = None
    shows: tuple[str, str] | None = None
    table: tuple[str, Table] | None = None


def named(rng: np.random.Generator, count: int) -> list[str]:
    """So many different things."""
    return [str(one) for one in rng.permutation(THINGS)[:count]]
