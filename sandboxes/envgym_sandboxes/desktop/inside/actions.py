"""Doing what was asked: every action of `envgym.screen`, on the display or through the accessibility interface."""

import math
import time
from collections.abc import Callable
from typing import Any

from envgym_sandboxes.desktop.inside.keys import Keyboard, NoKey
from envgym_sandboxes.desktop.inside.programs import TWICE_MS
from envgym_sandboxes.desktop.inside.tree import Tree
from envgym_sandboxes.desktop.inside.x11 import XDisplay

__all__ = ["Hand"]

_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7
_DRAG_STEPS = 8
_DRAG_RESTS = (0, _DRAG_STEPS // 2, _DRAG_STEPS)
_DRAG_REST_S = 1.0
"""After which steps programs are waited for, and at most how long: some never rest."""
_NEAR = 20
"""Pixels: clicks that are farther apart are no double click to any program."""


class _Nowhere(Exception):
    """A target that is no place on the screen."""


class Hand:
    """Who moves the pointer and presses the keys. rest: waits for the programs, at most so many seconds."""

    def __init__(self, x: XDisplay, keyboard: Keyboard, tree: Tree, rest: Callable[[float], bool]) -> None:
        self._x, self._keyboard, self._tree, self._rest = x, keyboard, tree, rest
        self._clicked = ((-_NEAR, -_NEAR), 0.0)
        self._kinds: dict[str, Callable[..., str | None]] = {
            "Click": self._click, "Move": self._move, "Drag": self._drag, "Scroll": self._scroll,
            "Type": keyboard.type, "Press": keyboard.press, "Wait": lambda seconds: None,
            "Invoke": tree.invoke, "SetText": tree.set_text,
        }  # fmt: skip

    def do(self, kind: str, given: dict[str, Any]) -> str:
        """Do it. Returns why it could not be done, "" when it was."""
        try:
            return self._kinds[kind](**given) or ""
        except (NoKey, _Nowhere) as error:
            return str(error)

    def _place(self, target: str | list[int]) -> tuple[int, int]:
        width, height = self._x.size
        if isinstance(target, str):
            box = self._tree.box(target)
            if box is None:
                raise _Nowhere(f"there is no element {target}")
            left, top, wide, high = box
            if wide <= 0 or high <= 0:
                raise _Nowhere(f"{target} is not shown")
            x, y = left + wide // 2, top + high // 2
        else:
            x, y = target
        if not (0 <= x < width and 0 <= y < height):
            raise _Nowhere(f"{target} is at {x},{y}, outside the screen of {width} x {height}")
        return x, y

    def _go(self, target: str | list[int]) -> None:
        self._x.move(*self._place(target))

    def _click(self, target: str | list[int], button: str, count: int) -> None:
        place = self._place(target)
        if math.dist(place, self._clicked[0]) < _NEAR:  # two actions are no double click, however fast they follow
            time.sleep(max(0.0, self._clicked[1] + 1.2 * TWICE_MS / 1000 - time.monotonic()))
        self._x.move(*place)
        for _ in range(count):
            self._x.button(_BUTTONS[button], True)
            self._x.button(_BUTTONS[button], False)
        self._x.sync()
        self._clicked = place, time.monotonic()

    def _move(self, target: str | list[int]) -> None:
        self._go(target)
        self._x.sync()

    def _drag(self, start: str | list[int], end: str | list[int]) -> None:
        """Programs get to see that something is dragged, and over what it is let go.

        Nothing rests longer than that: what is held outside of its box scrolls by a timer.
        """
        (x, y), (to_x, to_y) = self._place(start), self._place(end)
        self._x.move(x, y)
        self._x.button(1, True)
        for step in range(_DRAG_STEPS + 1):
            self._x.move(x + (to_x - x) * step // _DRAG_STEPS, y + (to_y - y) * step // _DRAG_STEPS)
            if step in _DRAG_RESTS:
                self._rest(_DRAG_REST_S)
        self._x.button(1, False)
        self._x.sync()

    def _scroll(self, target: str | list[int], down: int, right: int) -> None:
        self._go(target)
        for number, times in ((_DOWN, down), (_UP, -down), (_RIGHT, right), (_LEFT, -right)):
            for _ in range(times):
                self._x.button(number, True)
                self._x.button(number, False)
        self._x.sync()
