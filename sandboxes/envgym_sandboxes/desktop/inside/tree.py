"""What is shown, as the programs themselves describe it through AT-SPI: roles, names, states, texts, boxes.

Elements that only arrange others are left out, and what is not shown is not looked into. A ref is given to an
element when it is first seen and kept for as long as it lives, so the same doings give the same refs.
"""

from collections.abc import Iterator
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402  # the version must be named first

__all__ = ["Tree"]

_ARRANGE = frozenset(
    ("filler", "panel", "scroll pane", "viewport", "split pane", "separator", "unknown", "redundant object",
     "application", "layered pane", "section", "grouping", "root pane", "glass pane", "option pane")
)  # fmt: skip
_PASSING = frozenset(("tool tip", "notification"))
"""They come and go by time, not by what is done."""
_STATES = (
    ("focused", Atspi.StateType.FOCUSED), ("checked", Atspi.StateType.CHECKED),
    ("selected", Atspi.StateType.SELECTED), ("expanded", Atspi.StateType.EXPANDED),
    ("editable", Atspi.StateType.EDITABLE),
)  # fmt: skip
_MOST_NODES, _MOST_TEXT, _DEEPEST = 500, 4000, 40


class Tree:
    """The accessibility tree of all programs on one bus."""

    def __init__(self) -> None:
        Atspi.init()
        self._refs: dict[Any, str] = {}
        self._elements: dict[str, Any] = {}
        self._count = 0

    def hear(self) -> None:
        """Take in what programs have told meanwhile."""
        context = GLib.MainContext.default()
        while context.iteration(False):
            continue

    def forget(self) -> None:
        """The programs have ended: refs begin anew."""
        self._refs, self._elements, self._count = {}, {}, 0

    def element(self, ref: str) -> Any:
        """The element of a ref; None for an unknown one."""
        return self._elements.get(ref)

    def look(self) -> tuple[list[dict[str, Any]], int]:
        """What is shown, in reading order, and how many more there would be."""
        self.hear()
        desktop = Atspi.get_desktop(0)
        nodes: list[dict[str, Any]] = []
        cut = 0
        for program in _children(desktop):
            program.clear_cache()
            for window in _children(program):
                for element, depth in _shown(window, 0):
                    if len(nodes) >= _MOST_NODES:
                        cut += 1
                    else:
                        nodes.append(self._told(element, depth))
        return nodes, cut

    def _told(self, element: Any, depth: int) -> dict[str, Any]:
        role, states = element.get_role_name(), element.get_state_set()
        told: dict[str, Any] = {
            "ref": self._ref(element),
            "role": role,
            "name": _name(element),
            "box": self.box(element),
            "depth": depth,
            "states": [name for name, state in _STATES if states.contains(state)],
        }
        if not states.contains(Atspi.StateType.SENSITIVE):
            told["states"].append("disabled")
        interfaces = element.get_interfaces()
        if "Text" in interfaces:
            told["text"] = Atspi.Text.get_text(element, 0, -1)[:_MOST_TEXT]
        elif "Value" in interfaces and role not in ("scroll bar", "split pane"):
            told["text"] = f"{element.get_current_value():g}"
        return told

    def _ref(self, element: Any) -> str:
        if element not in self._refs:
            self._count += 1
            self._refs[element] = ref = f"e{self._count}"
            self._elements[ref] = element
        return self._refs[element]

    @staticmethod
    def box(element: Any) -> list[int]:
        """Where an element is."""
        found = Atspi.Component.get_extents(element, Atspi.CoordType.SCREEN)
        return [found.x, found.y, found.width, found.height]

    def invoke(self, ref: str, action: str) -> str:
        """Do what an element can do. Returns why not, "" when it is done."""
        element = self._elements.get(ref)
        if element is None:
            return f"there is no element {ref}"
        names = _actions(element) if "Action" in element.get_interfaces() else []
        if not names or (action and action not in names):
            return f"{ref} has no action {action!r}; it has: {', '.join(names) or 'none'}"
        done = Atspi.Action.do_action(element, names.index(action) if action else 0)
        return "" if done else f"{ref} does not do it"

    def set_text(self, ref: str, text: str) -> str:
        """Replace an element's text. Returns why not, "" when it is done."""
        element = self._elements.get(ref)
        if element is None:
            return f"there is no element {ref}"
        if "EditableText" not in element.get_interfaces():
            return f"{ref} is a {element.get_role_name()}, whose text cannot be set"
        return "" if Atspi.EditableText.set_text_contents(element, text) else f"{ref} does not take the text"


def _name(element: Any) -> str:
    """What an element is called, without the room that a menu leaves for its keys."""
    return (element.get_name() or "").strip()


def _actions(element: Any) -> list[str]:
    return [Atspi.Action.get_action_name(element, at) or "" for at in range(Atspi.Action.get_n_actions(element))]


def _children(element: Any) -> Iterator[Any]:
    for at in range(element.get_child_count()):
        child = element.get_child_at_index(at)
        if child is not None:
            yield child


def _shown(element: Any, depth: int, level: int = 0) -> Iterator[tuple[Any, int]]:
    """An element and what is in it, in order, with how deep each is in what is told."""
    if level > _DEEPEST:
        return
    try:
        states = element.get_state_set()
        if not states.contains(Atspi.StateType.SHOWING):  # each question is a round trip: most are saved here
            return
        role = element.get_role_name()
    except GLib.Error:  # it is gone
        return
    if role in _PASSING:
        return
    told = role not in _ARRANGE or bool(_name(element))
    if told:
        yield element, depth
    if role == "menu" and not states.contains(Atspi.StateType.SELECTED):  # closed, with hundreds of entries
        return
    if states.contains(Atspi.StateType.MANAGES_DESCENDANTS) and element.get_child_count() > _MOST_NODES:
        return  # a table of a million cells makes each when it is asked for
    for child in _children(element):
        yield from _shown(child, depth + told, level + 1)
