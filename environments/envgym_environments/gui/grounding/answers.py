"""What a model answers to a screenshot: thoughts, then one action of the unified space, read and written as text.

The form is that of GUI-R1 (Luo et al. 2025) and UI-R1 (Lu et al. 2025): ``<think>..</think><answer>[{'action': ..,
'point': [x, y], 'input_text': ..}]</answer>``. Nothing is graded here.
"""

import ast
import re
from dataclasses import dataclass
from typing import Any

from envgym_environments.gui.grounding.asking import Box

__all__ = ["ACTIONS", "DIRECTIONS", "NO_TEXT", "Answer", "boxes", "well_formed", "written", "written_box"]

ACTIONS = (
    "click", "type", "select", "scroll", "enter", "open_app", "press_home", "press_back", "complete", "close",
    "long_press", "wait",
)  # fmt: skip
"""GUI-R1's unified space, with the opening of an application (UI-R1's) and AndroidControl's two of its own."""
DIRECTIONS = ("up", "down", "left", "right")
NO_TEXT = "no input text"
"""What stands in ``input_text`` where an action has none."""

_SHAPE = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ACTION = re.compile(r"'action':\s*'(\w+)'")
_BARE = re.compile(r"'action':\s*(\w+)")
_TEXT = re.compile(r"'input_text':\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")")
_POINT = re.compile(r"\[(\d+),\s*(\d+)\]")
_BOX = re.compile(r"\[\s*" + r",\s*".join([r"(\d+(?:\.\d+)?)"] * 4) + r"\s*\]")
_LONGEST = 20_000
"""Characters of an answer that are looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be found in an answer, well-formed or not. action: "" for none. point: pixels."""

    action: str = ""
    point: tuple[int, int] | None = None
    text: str = NO_TEXT

    @classmethod
    def read(cls, said: str, *, bare: bool = False) -> "Answer":
        """The first action between the answer's marks; where there are none, nothing is found.

        bare: UI-R1's reading, in which an action's name may stand without quotes and keeps its case; GUI-R1's is
        quoted and in lower case. Of several actions both codes take the first name, and GUI-R1's the last point:
        here an action's own.
        """
        found = _ANSWER.search(said[:_LONGEST])
        if found is None:
            return cls()
        inside = found[1].strip()
        action, text, point = _ACTION.search(inside), _TEXT.search(inside), _POINT.search(inside)
        action = action or (_BARE.search(inside) if bare else None)
        name = action[1] if action else ""
        return cls(
            name if bare else name.lower(),
            (int(point[1][:9]), int(point[2][:9])) if point else None,
            _unescaped(text[0].partition(":")[2].strip()) if text else NO_TEXT,
        )


def _unescaped(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal[1:-1]


def written(answer: Answer, *, thought: str = "") -> str:
    """An answer as a model is asked to write it."""
    point = list(answer.point or (-100, -100))
    action = {"action": answer.action, "point": point, "input_text": answer.text}
    return f"<think>{thought}</think><answer>[{action!r}]</answer>"


def boxes(said: str) -> list[Box]:
    """The boxes between the answer's marks, in order; turned round ones and those without an inside are none."""
    inside = _ANSWER.search(said[:_LONGEST])
    found = [] if inside is None else [tuple(float(side[:9]) for side in one) for one in _BOX.findall(inside[1])]
    return [(left, top, right, bottom) for left, top, right, bottom in found if left < right and top < bottom]


def written_box(*told: Box, thought: str = "") -> str:
    """An answer that is a box, or several, as VLM-R1 has it, in whole pixels around each."""
    sides = ([int(left), int(top), int(right + 0.999), int(bottom + 0.999)] for left, top, right, bottom in told)
    listed = ", ".join(f"{{'bbox_2d': {one}}}" for one in sides)
    return f"<think>{thought}</think><answer>[{listed}]</answer>"


def well_formed(said: str, *, strict: bool = True) -> bool:
    """Whether an answer has the form: thoughts and answer in their marks and nothing around them.

    strict: GUI-R1's rule, by which the answer is also a list of actions, each with three fields, a point of whole
    numbers, a text where one types, selects or opens, and a direction where one scrolls. Without: UI-R1's.
    """
    said = said[:_LONGEST]
    if not _SHAPE.fullmatch(said):
        return False
    found = _ANSWER.search(said)
    if not strict or found is None:
        return found is not None
    try:
        actions = ast.literal_eval(found[1].strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return isinstance(actions, list) and bool(actions) and all(map(_sound, actions))


def _sound(action: Any) -> bool:
    if not isinstance(action, dict) or not {"action", "point", "input_text"} <= action.keys():
        return False
    kind, point, text = action["action"], action["point"], action["input_text"]
    if not isinstance(kind, str) or not isinstance(text, str) or not isinstance(point, list) or len(point) < 2:
        return False
    if not all(type(part) is int for part in point[:2]):
        return False
    if kind in ("type", "select", "open_app"):
        return text != NO_TEXT
    return kind != "scroll" or text in DIRECTIONS
