"""`household`: rooms, cupboards and things on a small grid of doors; errands that take tens of turns.

One goes from room to room, opens, takes, washes, heats and puts things until all errands are done, and sees
only the room one is in. Every action that is possible is listed, and the world knows no chance, so that long
horizons can be studied without a model that reads well. Each errand pays its share when it is done, all
together 1.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.splits import of_split
from envgym_environments.text.explorer import WAYS, explored
from envgym_environments.words import pick, some

__all__ = ["SPEC", "Household", "HouseholdState", "expert", "household_tasks"]

_ROOMS = ("kitchen", "hall", "bedroom", "bathroom", "study", "garage", "cellar", "pantry", "nursery")
_PLACES = ("cupboard", "shelf", "drawer", "table", "box", "rack")
_SHUT = ("cupboard", "drawer", "box")
_THINGS = ("mug", "plate", "apple", "towel", "book", "lamp", "key", "radio", "potato", "spoon", "shirt", "bottle")
_COLOURS = ("red", "blue", "green", "white", "black", "yellow")
_WASHED, _HEATED = "clean", "hot"
_APART = 1_000_000_000_000
"""Between the numbers of one task's draws: no seed and index below it share one."""


def go(way: str) -> None:
    """Go north, south, west or east."""


def open_place(place: str) -> None:
    """Open a place in this room."""


def take(thing: str) -> None:
    """Take a thing; one carries one thing at a time."""


def put(place: str) -> None:
    """Put what one carries into a place in this room."""


def wash() -> None:
    """Wash what one carries, in the bathroom."""


def heat() -> None:
    """Heat what one carries, in the kitchen."""


@dataclass(slots=True)
class HouseholdState:
    """The whole state.

    room: where one is. where: the place of each thing ("" carried). open: opened places. made: clean or hot
    things. done: errands that are done. turns: that were taken.
    """

    room: str
    where: dict[str, str]
    open: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    turns: int = 0


@dataclass(frozen=True, slots=True)
class _House:
    """rooms: by their cell. places: of each room. things: where each is at first. errands: thing, state, place."""

    rooms: dict[tuple[int, int], str]
    places: dict[str, tuple[str, ...]]
    things: dict[str, str]
    errands: tuple[tuple[str, str, str], ...]


class Household(Rules[HouseholdState]):
    """Rules of `household`. turns: after which the episode is over."""

    tools = (
        tool_spec(go),
        tool_spec(open_place, name="open"),
        tool_spec(take),
        tool_spec(put),
        tool_spec(wash),
        tool_spec(heat),
    )
    state = HouseholdState
    uses_seed = False

    def __init__(self, task: Task, *, turns: int = 200) -> None:
        if turns < 1:
            raise ValueError(f"turns is {turns}; it must be at least 1")
        self.task, self._turns = task, turns
        data = task.metadata
        self._house = _drawn(task.seed, int(str(data["rooms"])), int(str(data["errands"])))
        self._cells = {room: cell for cell, room in self._house.rooms.items()}

    def begin(self, seed: int) -> tuple[HouseholdState, str]:
        """The errands and the room one begins in."""
        state = HouseholdState(next(iter(self._cells)), dict(self._house.things))
        return state, f"{self.task.prompt}\n{self._look(state)}"

    def move(self, state: HouseholdState, said: ToolCall | str) -> Answer:
        """One action; what is not possible costs a turn."""
        assert isinstance(said, ToolCall)
        state.turns += 1
        call = " ".join([said.name, *map(str, said.arguments.values())])
        text = self._do(state, said) if call in self.legal(state) else "That is not possible here."
        reward = self._earned(state)
        if len(state.done) == len(self._house.errands):
            return Answer(f"{text} All errands are done.", reward, StopReason.GOAL, self._channels(state))
        if state.turns >= self._turns:
            return Answer(f"{text} The day is over.", reward, StopReason.TURN_LIMIT, self._channels(state))
        return Answer(f"{text}\n{self._look(state)}", reward)

    def _channels(self, state: HouseholdState) -> dict[str, float]:
        return {"reward": len(state.done) / len(self._house.errands), "turns": float(state.turns)}

    def _do(self, state: HouseholdState, said: ToolCall) -> str:
        what = str(next(iter(said.arguments.values()), ""))
        carried = _carried(state)
        match said.name:
            case "go":
                (x, y), (dx, dy) = self._cells[state.room], WAYS[what]
                state.room = self._house.rooms[x + dx, y + dy]
                return f"You go {what}."
            case "open":
                state.open = sorted([*state.open, what])
                return f"You open the {what}."
            case "take":
                state.where[what] = ""
                return f"You take the {what}."
            case "put":
                state.where[str(carried)] = what
                return f"You put the {carried} into the {what}."
        made = _WASHED if said.name == "wash" else _HEATED
        state.made = sorted({*state.made, f"{made} {carried}"})
        return f"The {carried} is {made} now."

    def _earned(self, state: HouseholdState) -> float | None:
        done = [
            number
            for number, (thing, made, place) in enumerate(self._house.errands)
            if state.where[thing] == place and (not made or f"{made} {thing}" in state.made)
        ]
        new = [number for number in done if number not in state.done]
        state.done = sorted([*state.done, *new])
        return len(new) / len(self._house.errands) if new else None

    def _look(self, state: HouseholdState) -> str:
        places = self._house.places[state.room]
        seen = []
        for place in places:
            inside = [thing for thing, where in state.where.items() if where == place]
            shut = _shut(place) and place not in state.open
            seen.append(f"{place} (shut)" if shut else f"{place} ({', '.join(inside) or 'empty'})")
        return f"You are in the {state.room}. Here: {'; '.join(seen)}. You carry: {_carried(state) or 'nothing'}."

    def legal(self, state: HouseholdState) -> tuple[str, ...]:
        """Every action that is possible."""
        x, y = self._cells[state.room]
        found = [f"go {way}" for way, (dx, dy) in WAYS.items() if (x + dx, y + dy) in self._house.rooms]
        carried = _carried(state)
        for place in self._house.places[state.room]:
            if _shut(place) and place not in state.open:
                found.append(f"open {place}")
            elif carried:
                found.append(f"put {place}")
            else:
                found += [f"take {thing}" for thing, where in state.where.items() if where == place]
        if carried and state.room == "bathroom":
            found.append("wash")
        if carried and state.room == "kitchen":
            found.append("heat")
        return tuple(found)

    def key(self, state: HouseholdState) -> str:
        """Where everything is, and what was done with it. How late it is only cuts a day off."""
        return f"{state.room}/{sorted(state.where.items())}/{state.open}/{state.made}/{state.done}"


def _shut(place: str) -> bool:
    return place.partition("-")[2] in _SHUT


def _carried(state: HouseholdState) -> str | None:
    return next((thing for thing, where in state.where.items() if not where), None)


def _drawn(seed: int, rooms: int, errands: int) -> _House:
    rng = draws(seed, rooms, errands, 0x40)
    names = ["kitchen", "bathroom", *some(rng, [one for one in _ROOMS if one not in ("kitchen", "bathroom")], 7)]
    cells: list[tuple[int, int]] = [(0, 0)]
    while len(cells) < rooms:
        x, y = pick(rng, cells)
        dx, dy = pick(rng, sorted(WAYS.values()))
        if (x + dx, y + dy) not in cells:
            cells.append((x + dx, y + dy))
    chosen = some(rng, names[:rooms], rooms)
    # one word each, so that a call names it without quotes
    places = {room: tuple(f"{room}-{place}" for place in some(rng, _PLACES, 2)) for room in chosen}
    everywhere = [place for found in places.values() for place in found]
    both = [f"{colour}-{thing}" for colour in _COLOURS for thing in _THINGS]
    things = {thing: pick(rng, everywhere) for thing in some(rng, both, errands + 4)}
    wanted = []
    for thing in list(things)[:errands]:
        target = pick(rng, [place for place in everywhere if place != things[thing]])
        wanted.append((thing, pick(rng, ("", _WASHED, _HEATED)), target))
    return _House(dict(zip(cells, chosen, strict=True)), places, things, tuple(wanted))


def _asked(house: _House) -> str:
    return "; ".join(
        f"put the {f'{made} ' if made else ''}{thing} into the {place}" for thing, made, place in house.errands
    )


def household_tasks(count: int | None = 500, *, rooms: int = 5, errands: int = 3, seed: int = 0) -> TaskSet:
    """`count` houses (None: without end); no training task has the errands of a held-out one.

    Raises ValueError for rooms outside 2 to 9, errands outside 1 to 12.
    """
    if not 2 <= rooms <= 9 or not 1 <= errands <= 12:
        raise ValueError(f"rooms is {rooms} and errands {errands}; they must be 2 to 9 and 1 to 12")

    def make(index: int, split: str) -> Task:
        first = seed * 1_000_003 + index
        number = of_split(
            split, lambda draw: first + draw * _APART, lambda one: _asked(_drawn(one, rooms, errands))
        )
        return Task(
            id=f"household/{seed}/{rooms}/{errands}/{index}",
            prompt=f"Your errands: {_asked(_drawn(number, rooms, errands))}.",
            split=split,
            seed=number,
            metadata={"rooms": rooms, "errands": errands},
        )

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Knows no more of the house than was seen: looks for each thing, and remembers what it saw."""
    return Action.say(explored(seen))


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="household",
    tasks=household_tasks,
    make=played(Household),
    description="Rooms, cupboards and things: errands with long horizons, every possible action listed.",
    in_process=True,
)
