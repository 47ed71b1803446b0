"""TextArena's LogicPuzzle: who goes with what, as far as a reader of simple sentences can tell.

Every way to match the items is judged by how many clues it breaks, and the best ones are tried in turn. A clue is
read as parts that say that items go together or do not, joined by if, only if, unless; what is said in a condition
is taken as likely. Which items a sentence names is looked at, not its grammar: it may misread one, and then
the next matching is tried.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, permutations, product

__all__ = ["logic", "matchings"]

Match = frozenset[frozenset[str]]
"""Groups of items that go together, one of each category."""
Grids = tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...]
"""Of each grid: the rows' category and items, the columns' category and items."""

_NOT = re.compile(r"\b(not?|cannot|never|exclud\w+|rules? out)\b|n't\b")
_WORD = r"\b{}(?:s|ed|ing|'s)?\b"
_LIKELY = 0.1
"""What a condition that does not hold costs, where a broken clue costs 1."""


def logic(shown: Sequence[str]) -> str | None:
    """The next mark: all of the best matching, then what the next one has otherwise; None behind the last one."""
    text = shown[0].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    board, _, clues = text.rpartition("Available Clues:")
    mark = next(
        islice(_marks(_grids(board), tuple(re.findall(r"^- (.+)$", clues, re.M))), len(shown) - 1, None), None
    )
    return f"[{mark}]" if mark else None


def _grids(board: str) -> Grids:
    found = re.findall(r"^ +([a-z]+)_([a-z]+) *\n=+\n(.+)\n-+\n((?:[a-z]+ .*\n)+)", board, re.M)
    return tuple(
        (rows, tuple(line.split()[0] for line in lines.splitlines()), columns,
         tuple(item.strip() for item in header.split("|")[:-1]))
        for rows, columns, header, lines in found
    )  # fmt: skip


def _marks(grids: Grids, clues: tuple[str, ...]) -> Iterator[str]:
    made: dict[tuple[str, str], str] = {}
    for match in matchings(grids, clues):
        for _, rows, _, columns in grids:
            for row, column in product(rows, columns):
                mark = "O" if any({row, column} <= group for group in match) else "X"
                if made.get((row, column)) != mark:
                    made[row, column] = mark
                    yield f"{row} {column} {mark}"


@lru_cache(maxsize=16)
def matchings(grids: Grids, clues: tuple[str, ...]) -> tuple[Match, ...]:
    """All ways to match, those that break the fewest clues first."""
    category, items = grids[0][:2]
    of = dict.fromkeys(items, category) | {item: name for *_, name, columns in grids for item in columns}
    matches = [
        frozenset(frozenset(group) for group in zip(items, *others, strict=True))
        for others in product(*(permutations(columns) for *_, columns in grids))
    ]
    costs = [sum(_cost(clue.lower().rstrip("."), match, of) for clue in clues) for match in matches]
    return tuple(matches[at] for at in sorted(range(len(matches)), key=lambda at: (costs[at], at)))


def _cost(clue: str, match: Match, of: Mapping[str, str]) -> float:
    """0 for a clue that holds, 1 for a broken one, a little for one whose condition does not hold."""
    if " if and only if " in clue:
        one, other = clue.split(" if and only if ")
        first, about = _holds(one, match, of)
        return 0.0 if first == _holds(other, match, of, about)[0] else 1.0
    for joint, turned in ((" only if ", False), (" unless ", True), (" if ", True), (" when ", True)):
        said, found, condition = clue.partition(joint)
        if found and said:
            if joint == " unless ":
                return _implied(condition, said, match, of, denied=True)
            return _implied(condition, said, match, of) if turned else _implied(said, condition, match, of)
    if clue.startswith(("if ", "when ")):
        condition, _, said = clue.partition(" ")[2].partition(", ")
        return _implied(condition, said.removeprefix("then "), match, of)
    return float(_holds(clue, match, of)[0] is False)


def _implied(condition: str, said: str, match: Match, of: Mapping[str, str], *, denied: bool = False) -> float:
    """What "if `condition` (`denied`: if not), `said`" costs. A condition of one item belongs to what is said."""
    met, about = _holds(condition, match, of)
    holds, _ = _holds(said, match, of, about)
    if met is None:
        return float(holds is False)
    if met == denied:
        return _LIKELY
    return float(holds is False)


def _holds(
    text: str, match: Match, of: Mapping[str, str], about: Sequence[str] = ()
) -> tuple[bool | None, Sequence[str]]:
    """Whether all that a text says of its items is so (None: it says nothing), and what it was about.

    A part without an item of the kind that the talk is about goes on about the same.
    """
    found: bool | None = None
    for part in re.split(r", | and | but |; ", text):
        places = ((place.start(), item) for item in of for place in re.finditer(_WORD.format(item), part))
        items = [item for _, item in sorted(places)]
        if items and about and of[about[0]] not in {of[item] for item in items}:
            items = [*about[:1], *items]
        others = [item for item in items if of[item] != of[items[0]]]
        if others:
            together = [any({items[0], other} <= group for group in match) for other in others]
            said = not any(together) if _NOT.search(part) else all(together)
            found = said if found is None else found and said
        about = items[:1] or about
    return found, about
