"""What is shown, as the programs themselves describe it through AT-SPI: roles, names, states, texts, boxes.

A program tells all of its elements in one answer; what it leaves out of that, open menus and the cells of tables,
is asked for in rounds, and then the boxes and texts of what is shown, all together. Nothing is kept from look to
look but refs. Elements that only arrange others are left out, and what is not shown is not looked into. A ref is
given to an element when it is first seen and kept for as long as it lives, so the same doings give the same refs.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from envgym_sandboxes.desktop.inside.accessibility import ACCESSIBLE, ROOT, Bus, Place, asked, asked_value
from envgym_sandboxes.desktop.inside.dbus import Call
from envgym_sandboxes.desktop.inside.roles import ROLES

__all__ = ["Tree"]

_ARRANGE = frozenset(
    ("filler", "panel", "scroll pane", "viewport", "split pane", "separator", "unknown", "redundant object",
     "application", "layered pane", "section", "grouping", "root pane", "glass pane", "option pane")
)  # fmt: skip
_PASSING = frozenset(("tool tip", "notification"))
"""They come and go by time, not by what is done."""
_SENSITIVE, _SHOWING, _MANAGES, _SELECTED = 24, 25, 31, 23
_STATES = (("focused", 12), ("checked", 4), ("selected", _SELECTED), ("expanded", 10), ("editable", 7))
"""Names of states as they are told, and their bits (`AtspiStateType` of at-spi2-core)."""
_UNVALUED = ("scroll bar", "split pane")
_MOST_NODES, _MOST_TEXT, _DEEPEST = 500, 4000, 40
_SPARSE = 6
"""Where fewer than one in so many elements of a program is looked at, they are asked for one by one."""
_CACHE = "/org/a11y/atspi/cache"
_NOWHERE = [-1, -1, -1, -1]
_ON_SCREEN = 0


class _Item(NamedTuple):
    """An element as its program tells it. at: its place in its parent; children: how many; -1: it is not told."""

    place: Place
    role: str
    name: str
    states: int
    interfaces: frozenset[str]
    parent: str = ""
    at: int = -1
    children: int = -1

    def has(self, state: int) -> bool:
        """Whether a bit of the states is set."""
        return bool(self.states >> state & 1)

    @property
    def inside(self) -> bool:
        """Whether what is in it is looked at: a closed menu has hundreds of entries."""
        return self.children != 0 and (self.role != "menu" or self.has(_SELECTED))


class _Program:
    """The elements of one program, and which are in which, as far as known."""

    def __init__(self, told: Iterable[Any]) -> None:
        self.items: dict[str, _Item] = {}
        found: dict[str, list[_Item]] = {}
        for place, _program, parent, at, count, interfaces, name, role, _description, states in told:
            item = _item(place, role, name, states, interfaces)._replace(parent=parent[1], at=at, children=count)
            self.items[place[1]] = item
            found.setdefault(parent[1], []).append(item)
        # where places in the parent are not told, or some are missing, the parent is asked
        self.children = {
            path: sorted(items, key=lambda item: item.at)
            for path, items in found.items()
            if path in self.items and sorted(item.at for item in items) == list(range(self.items[path].children))
        }
        self.unknown: list[_Item] = []
        self.visited = 0

    def shown(self) -> list[tuple[_Item, int]]:
        """What is shown below the root and how deep; `unknown` is then what must be asked for its children."""
        self.unknown, self.visited = [], 0
        windows = self.children.get(ROOT)
        if windows is None:
            self.unknown += [self.items[ROOT]] if ROOT in self.items else []
        return [found for window in windows or () for found in self._below(window, 0, 0)]

    def _below(self, item: _Item, depth: int, level: int) -> Iterator[tuple[_Item, int]]:
        self.visited += 1
        if level > _DEEPEST or not item.has(_SHOWING) or item.role in _PASSING:
            return
        told = item.role not in _ARRANGE or bool(item.name)
        if told:
            yield item, depth
        if not item.inside:
            return
        path = item.place[1]
        if path not in self.children:
            self.unknown.append(item)
        for child in self.children.get(path, ()):
            yield from self._below(child, depth + told, level + 1)


class Tree:
    """The accessibility tree of all programs on one bus, whose session's address it is made with."""

    def __init__(self, session: str) -> None:
        self._bus = Bus(session)
        self.forget()

    def forget(self) -> None:
        """The programs have ended: refs begin anew. Raises BusGone where nothing could be seen of later ones."""
        self._bus.programs()
        self._large: dict[str, int] = {}
        self._refs: dict[Place, str] = {}
        self._places: dict[str, Place] = {}

    def look(self) -> tuple[list[dict[str, Any]], int]:
        """What is shown, in reading order, and how many more there would be; a silent program counts as one."""
        found: list[tuple[_Item, int]] = []
        silent = 0
        for program in self._programs():
            silent += program is None
            found += self._whole(program) if program else []
        return self._told(found[:_MOST_NODES]), silent + len(found[_MOST_NODES:])

    def _programs(self) -> Iterator[_Program | None]:
        """Every program as it tells itself; only its root where that would be much for little; None: no answer."""
        roots = self._bus.programs()
        whole = [(name, _CACHE) for name, _path in roots if name not in self._large]
        told = dict(zip(whole, self._bus.ask([asked(place, "Cache", "GetItems") for place in whole]), strict=True))
        for root in roots:
            if root[0] in self._large:
                program = _Program(())
                program.items = {item.place[1]: item for item in self._items([root])}
                yield program if program.items else None
            else:
                answer = told[root[0], _CACHE]
                yield None if answer is None else _Program(answer)

    def _whole(self, program: _Program) -> list[tuple[_Item, int]]:
        """What a program shows, once all that must be asked for has been."""
        for _round in range(_DEEPEST):
            found = program.shown()
            if not program.unknown:
                break
            self._open(program)
        self._weigh(program)
        return found

    def _weigh(self, program: _Program) -> None:
        """Which way is the shorter one next time: all elements in one answer, or those that matter in rounds."""
        name = next(iter(program.items.values())).place[0]
        count = self._large.pop(name, len(program.items))
        if program.visited * _SPARSE < count:
            self._large[name] = count

    def _open(self, program: _Program) -> None:
        """Ask for the children of what is unknown, and for what they are."""
        open_ = [item for item in program.unknown if not item.has(_MANAGES)]
        managing = [item for item in program.unknown if item.has(_MANAGES)]
        for item in managing:
            program.children[item.place[1]] = []
        # a table of a million cells makes each when it is asked for
        counts = self._bus.ask([asked_value(item.place, ACCESSIBLE, "ChildCount", "i") for item in managing])
        open_ += [item for item, count in zip(managing, counts, strict=True) if 0 < (count or 0) <= _MOST_NODES]
        answers = self._bus.ask([asked(item.place, ACCESSIBLE, "GetChildren") for item in open_])
        children: list[list[Place]] = [answer or [] for answer in answers]
        new = [place for places in children for place in places if place[1] not in program.items]
        program.items |= {item.place[1]: item for item in self._items(new)}
        for item, places in zip(open_, children, strict=True):
            inside = [program.items[path] for _name, path in places if path in program.items]
            program.children[item.place[1]] = inside

    def _items(self, places: list[Place]) -> Iterator[_Item]:
        """Elements that their program has not told of itself; those that are gone meanwhile are left out."""
        calls: list[Call] = []
        for place in places:
            calls += [
                asked(place, ACCESSIBLE, "GetRole"), asked_value(place, ACCESSIBLE, "Name", "s"),
                asked(place, ACCESSIBLE, "GetState"), asked(place, ACCESSIBLE, "GetInterfaces"),
            ]  # fmt: skip
        answers = iter(self._bus.ask(calls))
        for place, *parts in zip(places, answers, answers, answers, answers, strict=True):
            if None not in parts:
                yield _item(place, *parts)

    def _told(self, found: list[tuple[_Item, int]]) -> list[dict[str, Any]]:
        boxes = [_extents(item.place) for item, _depth in found]
        texts = [(at, call) for at, (item, _depth) in enumerate(found) if (call := _content(item)) is not None]
        answers = self._bus.ask([*boxes, *(call for _at, call in texts)])
        contents = dict(zip((at for at, _call in texts), answers[len(found) :], strict=True))
        nodes = []
        for at, ((item, depth), box) in enumerate(zip(found, answers[: len(found)], strict=True)):
            states = [name for name, state in _STATES if item.has(state)]
            node: dict[str, Any] = {
                "ref": self._ref(item.place), "role": item.role, "name": item.name, "depth": depth,
                "box": list(box or _NOWHERE),
                "states": states if item.has(_SENSITIVE) else [*states, "disabled"],
            }  # fmt: skip
            if (content := contents.get(at)) is not None:
                node["text"] = content[:_MOST_TEXT] if isinstance(content, str) else f"{content:g}"
            nodes.append(node)
        return nodes

    def _ref(self, place: Place) -> str:
        if place not in self._refs:
            self._refs[place] = ref = f"e{len(self._refs) + 1}"
            self._places[ref] = place
        return self._refs[place]

    def box(self, ref: str) -> list[int] | None:
        """Where an element is; None for an unknown ref, no width for one that is gone."""
        place = self._places.get(ref)
        if place is None:
            return None
        return list(self._bus.one(_extents(place)) or _NOWHERE)

    def invoke(self, ref: str, action: str) -> str:
        """Do what an element can do. Returns why not, "" when it is done."""
        place = self._places.get(ref)
        if place is None:
            return f"there is no element {ref}"
        count = self._bus.one(asked_value(place, "Action", "NActions", "i")) or 0
        names = [name or "" for name in self._bus.ask([_action(place, "GetName", at) for at in range(count)])]
        if not names or (action and action not in names):
            return f"{ref} has no action {action!r}; it has: {', '.join(names) or 'none'}"
        done = self._bus.one(_action(place, "DoAction", names.index(action) if action else 0))
        return "" if done else f"{ref} does not do it"

    def set_text(self, ref: str, text: str) -> str:
        """Replace an element's text. Returns why not, "" when it is done."""
        place = self._places.get(ref)
        if place is None:
            return f"there is no element {ref}"
        if "EditableText" not in _names(self._bus.one(asked(place, ACCESSIBLE, "GetInterfaces")) or ()):
            role = self._bus.one(asked(place, ACCESSIBLE, "GetRole"))
            return f"{ref} is {'gone' if role is None else f'a {_role(role)}, whose text cannot be set'}"
        done = self._bus.one(asked(place, "EditableText", "SetTextContents", ("s",), (text,)))
        return "" if done else f"{ref} does not take the text"


def _item(place: Any, role: int, name: str, states: list[int], interfaces: list[str]) -> _Item:
    """name: without the room that a menu leaves for its keys."""
    bits = sum(part << 32 * at for at, part in enumerate(states))
    return _Item(tuple(place), _role(role), name.strip(), bits, _names(interfaces))


def _role(number: int) -> str:
    return ROLES[number] if number < len(ROLES) else "unknown"


def _names(interfaces: Iterable[str]) -> frozenset[str]:
    return frozenset(one.rpartition(".")[2] for one in interfaces)


def _action(place: Place, method: str, at: int) -> Call:
    return asked(place, "Action", method, ("i",), (at,))


def _extents(place: Place) -> Call:
    return asked(place, "Component", "GetExtents", ("u",), (_ON_SCREEN,))


def _content(item: _Item) -> Call | None:
    """The question for what an element contains; None where it holds nothing of its own."""
    if "Text" in item.interfaces:
        return asked(item.place, "Text", "GetText", ("i", "i"), (0, -1))
    if "Value" in item.interfaces and item.role not in _UNVALUED:
        return asked_value(item.place, "Value", "CurrentValue", "d")
    return None
