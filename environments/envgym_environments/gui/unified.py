"""What other agents write, read as calls of tools: GUI-R1's one action space, and programs of pyautogui.

So a model that was trained on screenshots (`grounding`) or on another desktop acts here as it is. Nothing of it is
run: a program is a list of calls with literal arguments, read from its syntax tree, or a mistake that is told.
"""

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from envgym.messages import ParseError, ToolCall
from envgym.screen import LONGEST_WAIT_S
from envgym_environments.gui.grounding.answers import NO_TEXT, Answer

__all__ = ["page_calls", "screen_calls"]

Calls = list[ToolCall | ParseError]
_ANSWERED = re.compile(r"<answer>.*</answer>", re.DOTALL)
_FENCED = re.compile(r"```(?:python|code)?\n(.*?)```", re.DOTALL)
_MOST_CALLS, _LONGEST = 16, 20_000
"""Statements of a program and keys of one of them; characters that are looked at."""
_NOTCHES, _PIXELS = 5, 400
"""How far one scroll of the unified space goes: notches of a wheel, pixels of a page."""
_WAYS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}


def screen_calls(text: str, size: tuple[int, int]) -> Calls | None:
    """A text as calls of `envgym.SCREEN_TOOLS` and `done`; None where it is in neither notation.

    size: of the screen, whose middle is scrolled over.
    """
    text = text[:_LONGEST]
    if _ANSWERED.search(text):
        return [_read(text, _on_screens(size))]
    return _program(text, size) if "pyautogui." in text else None


def page_calls(text: str) -> Calls | None:
    """A text as calls of `envgym.page_tools`, `done` and `answer_text`; None where it is no such answer."""
    return [_read(text, _ON_PAGES)] if _ANSWERED.search(text[:_LONGEST]) else None


# the unified space

_Means = Mapping[str, Callable[[Answer], ToolCall]]


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def _read(text: str, means: _Means) -> ToolCall | ParseError:
    answer = Answer.read(text)
    if answer.action not in means:
        return ParseError(message=f"there is no action {answer.action[:40]!r} here; there are {', '.join(means)}")
    if answer.action == "click" and answer.point is None:
        return ParseError(message="a click has a point: 'point': [x, y]")
    if answer.action == "scroll" and answer.text not in _WAYS:
        return ParseError(message="a scroll has a direction: 'input_text': 'up', 'down', 'left' or 'right'")
    return means[answer.action](answer)


def _on_screens(size: tuple[int, int]) -> _Means:
    middle = f"{size[0] // 2},{size[1] // 2}"

    def scroll(answer: Answer) -> ToolCall:
        right, down = _WAYS[answer.text]
        return _call("scroll", target=_at(answer, middle), down=down * _NOTCHES, right=right * _NOTCHES)

    return {
        "click": lambda answer: _call("click", target=_at(answer, middle)),
        "type": lambda answer: _call("type_text", text=answer.text),
        "scroll": scroll,
        "enter": lambda _: _call("press", keys="Return"),
        "press_back": lambda _: _call("press", keys="alt+Left"),
        "close": lambda _: _call("press", keys="alt+F4"),
        "wait": lambda _: _call("wait", seconds=1.0),
        "complete": lambda _: _call("done"),
    }


def _at(answer: Answer, otherwise: str) -> str:
    return otherwise if answer.point is None else f"{answer.point[0]},{answer.point[1]}"


def _over(answer: Answer) -> ToolCall:
    right, down = _WAYS[answer.text]
    return _call("scroll", dy=float(down * _PIXELS), dx=float(right * _PIXELS))


def _clicked(answer: Answer) -> ToolCall:
    assert answer.point is not None
    return _call("click_at", x=float(answer.point[0]), y=float(answer.point[1]))


def _completed(answer: Answer) -> ToolCall:
    return _call("done") if answer.text == NO_TEXT else _call("answer_text", text=answer.text)


_ON_PAGES: _Means = {
    "click": _clicked,
    "type": lambda answer: _call("type_text", text=answer.text),
    "scroll": _over,
    "enter": lambda _: _call("press", keys="Enter"),
    "press_back": lambda _: _call("back"),
    "wait": lambda _: _call("wait", seconds=1.0),
    "complete": _completed,
}
"""A question is answered by completing with a text; whoever grades takes a number in it for one (`web.play`)."""


# pyautogui


def _program(text: str, size: tuple[int, int]) -> Calls:
    fenced = _FENCED.search(text)
    try:
        body = ast.parse((fenced[1] if fenced else text).strip()).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return [ParseError(message=f"not a program of pyautogui: {error}")]
    found: Calls = []
    pointer = (size[0] // 2, size[1] // 2)
    for statement in body[:_MOST_CALLS]:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        try:
            calls, pointer = _meant(statement, pointer)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return [*found, ParseError(message=f"line {statement.lineno} of the program: {error}")]
        found += calls
    return found or [ParseError(message="the program does nothing")]


def _meant(statement: ast.stmt, pointer: tuple[int, int]) -> tuple[list[ToolCall], tuple[int, int]]:
    """What one statement means, and where the pointer is then. Raises ValueError, TypeError for anything else."""
    made = statement.value if isinstance(statement, ast.Expr) else None
    function = made.func if isinstance(made, ast.Call) else None
    if not (
        isinstance(made, ast.Call) and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    ):
        raise ValueError("only calls of pyautogui, and time.sleep")
    module, name = function.value.id, function.attr
    if (module, name) != ("time", "sleep") and (module != "pyautogui" or name not in _PYAUTOGUI):
        raise ValueError(f"there is no {module}.{name} here; there are {', '.join(_PYAUTOGUI)}")
    if any(word.arg is None for word in made.keywords):
        raise ValueError("arguments are written out")
    given = [ast.literal_eval(one) for one in made.args]
    named = {str(word.arg): ast.literal_eval(word.value) for word in made.keywords}
    return _PYAUTOGUI[name](pointer, *given, **named)


_Meant = tuple[list[ToolCall], tuple[int, int]]


def _place(pointer: tuple[int, int], x: Any, y: Any) -> tuple[int, int]:
    if isinstance(x, tuple | list):
        x, y = x
    return (pointer[0] if x is None else int(x), pointer[1] if y is None else int(y))


def _click(pointer: tuple[int, int], x: Any = None, y: Any = None, clicks: int = 1, interval: float = 0.0,
           button: str = "left") -> _Meant:  # fmt: skip
    at = _place(pointer, x, y)
    return [_call("click", target=f"{at[0]},{at[1]}", button=str(button), count=int(clicks))], at


def _clicking(**always: Any) -> Callable[..., _Meant]:
    return lambda pointer, x=None, y=None: _click(pointer, x, y, **always)


def _move(pointer: tuple[int, int], x: Any, y: Any = None, duration: float = 0.0) -> _Meant:
    at = _place(pointer, x, y)
    return [_call("move", target=f"{at[0]},{at[1]}")], at


def _drag(pointer: tuple[int, int], x: Any, y: Any = None, duration: float = 0.0, button: str = "left") -> _Meant:
    if button != "left":
        raise ValueError("dragging is with the left button")
    at = _place(pointer, x, y)
    return [_call("drag", start=f"{pointer[0]},{pointer[1]}", end=f"{at[0]},{at[1]}")], at


def _wheel(pointer: tuple[int, int], clicks: int, x: Any = None, y: Any = None) -> _Meant:
    at = _place(pointer, x, y)
    return [_call("scroll", target=f"{at[0]},{at[1]}", down=-int(clicks))], at


def _write(pointer: tuple[int, int], message: str, interval: float = 0.0) -> _Meant:
    return [_call("type_text", text="".join(message))], pointer


def _press(pointer: tuple[int, int], keys: Any, presses: int = 1, interval: float = 0.0) -> _Meant:
    one = [str(keys)] if isinstance(keys, str) else [str(key) for key in keys]
    if not 0 <= len(one) * int(presses) <= _MOST_CALLS:
        raise ValueError(f"at most {_MOST_CALLS} keys at a time")
    return [_call("press", keys=key) for key in one * int(presses)], pointer


def _hotkey(pointer: tuple[int, int], *keys: str, interval: float = 0.0) -> _Meant:
    return [_call("press", keys="+".join(map(str, keys)))], pointer


def _sleep(pointer: tuple[int, int], seconds: float) -> _Meant:
    if float(seconds) < 0:
        raise ValueError("time.sleep takes no negative number")
    waited = min(float(seconds), LONGEST_WAIT_S)  # no wait is longer; who still has to can ask for another one
    return [_call("wait", seconds=waited)] if waited else [], pointer


_PYAUTOGUI: Mapping[str, Callable[..., _Meant]] = {
    "click": _click, "doubleClick": _clicking(clicks=2), "rightClick": _clicking(button="right"),
    "middleClick": _clicking(button="middle"), "moveTo": _move, "dragTo": _drag, "scroll": _wheel,
    "write": _write, "typewrite": _write, "press": _press, "hotkey": _hotkey, "sleep": _sleep,
}  # fmt: skip
