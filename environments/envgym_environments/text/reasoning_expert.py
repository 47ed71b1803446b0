"""What an expert answers where reasoning-gym's entry has no answer of its own, as several are right.

Three generators keep an example of their own beside the question (rubiks_cube for cubes of size 3; of larger ones
its scorer of 0.1.25 drops every move that begins with a digit). Of the other two the question is a plan, which is
searched for here: boxes that are carried to their targets, and a car that has to leave a car park.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["FOUND", "own_answer"]

_SIDE = 6
_EXIT = 16
"""Where the car that has to leave stands at the end: the fifth cell of the third row, and the next one."""


def own_answer(generator: str, entry: Mapping[str, Any]) -> str:
    """The library's answer, or one that it scores full; "" for a generator that nobody has told how to answer."""
    if entry["answer"] is None and generator in FOUND:
        return FOUND[generator](entry["metadata"])
    return str(entry["answer"] or "")


def _carried(data: Mapping[str, Any]) -> str:
    """boxnet: box by box, step by step, to a target of its colour that is left."""
    squares = data["initial_state"]
    targets = [(thing, square) for square, things in squares.items() for thing in things if thing[:7] == "target_"]
    plan: list[dict[str, str]] = []
    for square, things in squares.items():
        for box in (thing for thing in things if thing.startswith("box_")):
            target = f"target_{box.removeprefix('box_')}"
            there = next(place for thing, place in targets if thing == target)
            targets.remove((target, there))
            (row, column), (to_row, to_column) = (map(float, place.split("_")) for place in (square, there))
            while (row, column) != (to_row, to_column):
                before = f"Agent[{row}, {column}]"
                if row != to_row:
                    row += 1 if to_row > row else -1
                else:
                    column += 1 if to_column > column else -1
                plan.append({before: f"move({box}, square[{row}, {column}])"})
            plan.append({f"Agent[{row}, {column}]": f"move({box}, {target})"})
    return json.dumps(plan)


_Cars = tuple[int, ...]
"""The first cell of each car, in the order of their letters."""


def _driven(data: Mapping[str, Any]) -> str:
    """rush_hour: the fewest slides after which the first car is at the exit, breadth first."""
    board = data["board_config"]
    letters = sorted(set(re.sub("[ox]", "", board)))
    cells = [[at for at, sign in enumerate(board) if sign == letter] for letter in letters]
    shapes = [(len(one), one[1] - one[0]) for one in cells]
    walls = {at for at, sign in enumerate(board) if sign == "x"}
    start = tuple(one[0] for one in cells)
    came: dict[_Cars, tuple[_Cars, str]] = {start: (start, "")}
    queue = deque([start])
    while queue:
        now = queue.popleft()
        if now[0] == _EXIT:
            return " ".join(_slides_to(came, now))
        for after, slide in _slides(now, shapes, walls):
            if after not in came:
                came[after] = (now, slide)
                queue.append(after)
    raise AssertionError(f"the board {board} has no way out")


def _slides(now: _Cars, shapes: list[tuple[int, int]], walls: set[int]) -> Iterator[tuple[_Cars, str]]:
    """Where each car can go, any number of cells at once. The library names cars anew, by their order."""
    taken = walls | {
        first + k * stride for first, (size, stride) in zip(now, shapes, strict=True) for k in range(size)
    }
    for car, (first, (size, stride)) in enumerate(zip(now, shapes, strict=True)):
        for way in (-1, 1):
            steps, at = 0, first
            while (ahead := _ahead(at, size, stride, way)) is not None and ahead not in taken:
                steps, at = steps + 1, at + way * stride
                yield (*now[:car], at, *now[car + 1 :]), f"{chr(ord('A') + car)}{'+' if way > 0 else '-'}{steps}"


def _ahead(first: int, size: int, stride: int, way: int) -> int | None:
    """The cell that a car enters next; None at the board's edge."""
    cell = first + size * stride if way > 0 else first - stride
    if not 0 <= cell < _SIDE * _SIDE or (stride == 1 and cell // _SIDE != first // _SIDE):
        return None
    return cell


def _slides_to(came: Mapping[_Cars, tuple[_Cars, str]], end: _Cars) -> list[str]:
    found: list[str] = []
    while came[end][1]:
        end, slide = came[end]
        found.append(slide)
    return found[::-1]


FOUND: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "boxnet": _carried,
    "graph_color": lambda data: json.dumps(data["possible_answer"]),
    "propositional_logic": lambda data: str(data["example_answer"]),
    "rubiks_cube": lambda data: str(data["example_correct_answer"]),
    "rush_hour": _driven,
}
"""How to answer, of the question's data, for the generators whose entries have no answer."""
