"""Who plays `household` by what is seen alone: looks for each thing, and remembers where things are."""

import re
from collections.abc import Callable, Generator, Sequence
from functools import partial

from envgym.env import Step

__all__ = ["WAYS", "explored"]

WAYS = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
"""The directions, and where they lead on the grid."""

Cell = tuple[int, int]
Play = Generator[str, Step, None]

_ERRAND = re.compile(r"put the (?:(clean|hot) )?(\S+) into the ([^\s;.]+)")
_ROOM = re.compile(r"You are in the (\S+)\. Here: (.*)\. You carry: ")
_PLACE = re.compile(r"(\S+) \((.*?)\)")


def explored(seen: Sequence[Step]) -> str:
    """The next action after all that was seen. Raises ValueError for what is no household."""
    first, *answers = seen
    play = _Walk(first).errands(first.text)
    said = next(play)
    for answer in answers:
        said = play.send(answer)
    return said


class _Walk:
    """What was seen on the way. ways: of each room that was entered, by its cell. found: where things were seen."""

    def __init__(self, first: Step) -> None:
        self.at: Cell = (0, 0)
        self.ways: dict[Cell, dict[str, Cell]] = {}
        self.names: dict[str, Cell] = {}
        self.shut: dict[Cell, list[str]] = {}
        self.found: dict[str, str] = {}
        self._look(first)

    def errands(self, told: str) -> Play:
        """One errand after the other; the last ends the episode."""
        for made, thing, target in _ERRAND.findall(told.partition("\n")[0]):
            yield from self._until(partial(self.found.__contains__, thing))
            yield from self._reach(self.found[thing])
            yield from self._act(f"take {thing}")
            if made:
                yield from self._reach("bathroom" if made == "clean" else "kitchen")
                yield from self._act("wash" if made == "clean" else "heat")
            yield from self._reach(target)
            yield from self._act(f"put {target}")

    def _act(self, action: str) -> Play:
        answer = yield action
        if action.startswith("go "):
            self.at = self.ways[self.at][action.partition(" ")[2]]
        self._look(answer)

    def _look(self, step: Step) -> None:
        shown = _ROOM.search(step.text)
        if shown is None:
            raise ValueError(f"no room is seen in {step.text[:200]!r}")
        x, y = self.at
        legal = [call.partition(" ")[2] for call in step.legal or () if call.startswith("go ")]
        self.ways[self.at] = {way: (x + WAYS[way][0], y + WAYS[way][1]) for way in legal}
        self.names[shown[1]] = self.at
        self.shut[self.at] = []
        for place, inside in _PLACE.findall(shown[2]):
            if inside == "shut":
                self.shut[self.at].append(place)
            else:
                self.found.update(dict.fromkeys(inside.split(", "), place))

    def _reach(self, place: str) -> Play:
        """Go into a room, or to a place, whose name begins with its room's, and open it."""
        room = place.partition("-")[0]
        yield from self._until(lambda: room in self.names, opening=False)
        yield from self._go(lambda cell: cell == self.names[room])
        if place in self.shut[self.at]:
            yield from self._act(f"open {place}")

    def _until(self, known: Callable[[], bool], *, opening: bool = True) -> Play:
        """Look further, where nobody was yet or, of things, into what is shut, the nearest first."""
        while not known():
            if opening and self.shut[self.at]:
                yield from self._act(f"open {self.shut[self.at][0]}")
            else:
                yield from self._go(lambda cell: cell not in self.ways or (opening and bool(self.shut[cell])))

    def _go(self, there: Callable[[Cell], bool]) -> Play:
        """By the shortest known way to the nearest such cell. Raises ValueError where there is none."""
        paths, waiting = {self.at: list[str]()}, [self.at]
        while not there(waiting[0]):
            cell = waiting.pop(0)
            for way, to in self.ways.get(cell, {}).items():
                if to not in paths:
                    paths[to] = [*paths[cell], way]
                    waiting.append(to)
            if not waiting:
                raise ValueError("all was seen, and it is not there")
        for way in paths[waiting[0]]:
            yield from self._act(f"go {way}")
