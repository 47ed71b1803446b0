"""Screen actions as tools of a model: their specs, and the action that a call means.

A place is one word, a ref or ``x,y``, so that small models can write ``click e7`` and large ones pixels.
"""

from collections.abc import Callable
from typing import Any, Literal

from envgym.messages import ParseError, ToolCall, ToolSpec
from envgym.screen import Click, Drag, Invoke, Move, Press, ScreenAction, Scroll, SetText, Type, Wait
from envgym.tools import check_call, tool_spec

__all__ = ["SCREEN_TOOLS", "screen_action"]


def click(target: str, button: Literal["left", "middle", "right"] = "left", count: int = 1) -> ScreenAction:
    """Click an element or a pixel.

    Args:
        target: the ref of an element, such as e7, or a pixel x,y
        button: which button
        count: 2 is a double click
    """
    return Click(_place(target), button, count)


def move(target: str) -> ScreenAction:
    """Move the pointer to an element or a pixel.

    Args:
        target: the ref of an element, such as e7, or a pixel x,y
    """
    return Move(_place(target))


def drag(start: str, end: str) -> ScreenAction:
    """Drag with the left button from one place to another.

    Args:
        start: a ref or a pixel x,y
        end: a ref or a pixel x,y
    """
    return Drag(_place(start), _place(end))


def scroll(target: str, down: int = 3, right: int = 0) -> ScreenAction:
    """Turn the wheel over a place; negative numbers go up and left.

    Args:
        target: a ref or a pixel x,y
        down: notches
        right: notches
    """
    return Scroll(_place(target), down, right)


def type_text(text: str) -> ScreenAction:
    """Type text on the keyboard, to what has the focus."""
    return Type(text)


def press(keys: str) -> ScreenAction:
    """Press a key or a combination, such as Return, ctrl+s or alt+F4."""
    return Press(tuple(part or "plus" for part in keys.split("+")))


def wait(seconds: float = 1.0) -> ScreenAction:
    """Wait until nothing changes any more, at most so many seconds."""
    return Wait(seconds)


def invoke(ref: str, action: str = "") -> ScreenAction:
    """Do what an element does when it is used, wherever it is: press a button, open a menu.

    Args:
        ref: the ref of an element, such as e7
        action: which of its actions; empty for the first
    """
    return Invoke(ref, action)


def set_text(ref: str, text: str) -> ScreenAction:
    """Replace all text of an editable element."""
    return SetText(ref, text)


_FUNCTIONS: dict[str, Callable[..., ScreenAction]] = {
    function.__name__: function
    for function in (click, move, drag, scroll, type_text, press, wait, invoke, set_text)
}
SCREEN_TOOLS: tuple[ToolSpec, ...] = tuple(map(tool_spec, _FUNCTIONS.values()))
"""What a model may call on a screen."""


def screen_action(call: ToolCall) -> ScreenAction | ParseError:
    """The action that a call of one of `SCREEN_TOOLS` means, or what is wrong with it."""
    checked = check_call(call, SCREEN_TOOLS)
    if isinstance(checked, ParseError):
        return checked
    given: dict[str, Any] = dict(checked.arguments)
    try:
        return _FUNCTIONS[checked.name](**given)
    except (ValueError, TypeError, OverflowError) as error:  # the actions' own rules, or infinite pixels
        return ParseError(message=f"{checked.name}: {error}")


def _place(text: str) -> str | tuple[int, int]:
    """A ref, or a pixel. Raises ValueError for numbers that are no pixel."""
    text = text.strip().strip("()[]")
    if "," not in text:
        return text
    x, _, y = text.partition(",")
    return int(float(x)), int(float(y))
