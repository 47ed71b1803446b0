"""TextArena's Crosswords: words by their clues, which the library's own list of words and clues has.

A clue is looked up as it is shown; nothing is read of what the game hides. A clue of several words is taken for the
first of them that fits the letters before it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

__all__ = ["crosswords", "words_of"]

_CLUE = re.compile(r"^\d+\. (.*): \((\d+), (\d+), '(across|down)'\)$", re.M)


def crosswords(shown: Sequence[str]) -> str | None:
    """Every letter at once; None where a clue is not in the list, and after the first move."""
    if len(shown) > 1:
        return None
    letters: dict[tuple[int, int], str] = {}
    for clue, row, column, way in _CLUE.findall(shown[0]):
        down, right = (1, 0) if way == "down" else (0, 1)
        for word in words_of().get(clue.strip(), ()):
            cells = {(int(row) + k * down, int(column) + k * right): sign for k, sign in enumerate(word)}
            if all(letters.get(cell, sign) == sign for cell, sign in cells.items()):
                letters |= cells
                break
        else:
            return None
    return " ".join(f"[{row} {column} {sign}]" for (row, column), sign in letters.items()) or None


@lru_cache(maxsize=1)
def words_of() -> Mapping[str, tuple[str, ...]]:
    """The words of each clue, in the list's order."""
    found: dict[str, tuple[str, ...]] = {}
    lines = files("textarena.envs.Crosswords").joinpath("words_clues.jsonl").read_text(encoding="utf-8")
    for line in lines.splitlines():
        entry = json.loads(line)
        for clue in entry["clues"].values():
            found[clue.strip()] = (*found.get(clue.strip(), ()), entry["word"])
    return found
