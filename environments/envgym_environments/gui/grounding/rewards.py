"""The rule-based rewards of UI-R1, GUI-R1 and VLM-R1 for one answer to one screenshot, as pure functions.

UI-R1: Lu et al. 2025, "UI-R1: Enhancing Action Prediction of GUI Agents by Reinforcement Learning", section 3.2;
its published reward code says what a coordinate earns where nothing is clicked. GUI-R1: Luo et al. 2025, "GUI-R1: A
Generalist R1-Style Vision-Language Action Model for GUI Agents", section 3.2, adds up what action, point and text
earn (`gui_r1_paper`); its published code pays for all of them together or for none, and has weights (`gui_r1`, what
its models were trained with). VLM-R1: Shen et al. 2025, "VLM-R1: A Stable and Generalizable R1-style Large
Vision-Language Model" (arXiv 2504.07615), section 3: the overlap of boxes, and the factor by which surplus
ones cost; where several are asked for, mean average precision in the place of the overlap (Lin et al. 2014,
"Microsoft COCO", as its evaluation counts it).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from envgym_environments.gui.grounding.answers import NO_TEXT, Answer, boxes, well_formed
from envgym_environments.gui.grounding.asking import Box

__all__ = [
    "BOXED",
    "FORMAT_SHARE",
    "NEAR",
    "RULES",
    "SEVERAL",
    "TEXT_F1",
    "Truth",
    "average_precision",
    "gui_r1",
    "gui_r1_paper",
    "iou",
    "text_f1",
    "ui_r1",
    "vlm_r1",
    "vlm_r1_detection",
]

FORMAT_SHARE = 0.2
"""GUI-R1: the share of the form in the reward; the rest is the action's."""
TEXT_F1 = 0.5
"""GUI-R1: the least F1 of words that counts as the same text."""
NEAR = 140.0
"""GUI-R1: pixels within which a click is right where the truth is a point and no box is known."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The action that is right. box: left, top, right, bottom in pixels of the screenshot; point: or this.

    boxes: all that are asked for, where it is several.
    """

    action: str
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
    text: str = NO_TEXT
    boxes: tuple[Box, ...] = ()

    def inside(self, point: tuple[float, float], *, edges: bool) -> bool:
        """Whether a point is in the box, its edges included or not; near enough where there is only a point."""
        if self.box is not None:
            (x, y), (left, top, right, bottom) = point, self.box
            return left <= x <= right and top <= y <= bottom if edges else left < x < right and top < y < bottom
        if self.point is None:
            return False
        return (point[0] - self.point[0]) ** 2 + (point[1] - self.point[1]) ** 2 < NEAR**2

    @property
    def answer(self) -> Answer:
        """The answer that earns everything."""
        if self.box is not None:
            left, top, right, bottom = self.box
            return Answer(self.action, (int((left + right) / 2), int((top + bottom) / 2)), self.text)
        at = None if self.point is None else (int(self.point[0]), int(self.point[1]))
        return Answer(self.action, at, self.text)


def text_f1(said: str, wanted: str) -> float:
    """F1 of the sets of words, in lower case and without brackets.

    One word against one word is right where one contains the other (GUI-R1's code). 0 where either is empty.
    """
    ours, theirs = (set(text.replace("[", "").replace("]", "").lower().split()) for text in (said, wanted))
    if len(ours) == len(theirs) == 1:
        (one,), (other,) = ours, theirs
        if one in other or other in one:
            return 1.0
    common = len(ours & theirs)
    return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


def ui_r1(said: str, truth: Truth) -> dict[str, float]:
    """Channels type, point and format, each 0 or 1, and their sum as reward, 0 to 3.

    type: the action is the right one. point: and, where that is a click, its point is in the box, edges included;
    other actions have no point to miss. format: thoughts and an answer in their marks.
    """
    answer = Answer.read(said, bare=True)
    same = answer.action == truth.action
    hit = same and (
        truth.action != "click" or (answer.point is not None and truth.inside(answer.point, edges=True))
    )
    channels = {"type": float(same), "point": float(hit), "format": float(well_formed(said, strict=False))}
    return channels | {"reward": sum(channels.values())}


def gui_r1(said: str, truth: Truth) -> dict[str, float]:
    """Channels type, point, text, format and accuracy, each 0 or 1, and the reward, 0 to 1: the published code.

    accuracy: the action is the right one, and a click is inside the box (edges excluded; within `NEAR` of a point
    where only that is known), what is typed, selected or scrolled has an F1 of at least `TEXT_F1`. point and text
    say that of their own; they are there where the truth has one. reward: 0.8 accuracy + 0.2 format.
    """
    answer = Answer.read(said)
    channels = {"type": float(answer.action == truth.action)}
    right = bool(channels["type"])
    if truth.action == "click":
        channels["point"] = float(answer.point is not None and truth.inside(answer.point, edges=False))
        right = right and bool(channels["point"])
    if truth.action in ("type", "select", "scroll"):
        channels["text"] = float(text_f1(answer.text, truth.text) >= TEXT_F1)
        right = right and bool(channels["text"])
    channels |= {"format": float(well_formed(said)), "accuracy": float(right)}
    return channels | {"reward": (1 - FORMAT_SHARE) * channels["accuracy"] + FORMAT_SHARE * channels["format"]}


def gui_r1_paper(said: str, truth: Truth) -> dict[str, float]:
    """The paper's sum: channels type, point, text and format, each 0 or 1, accuracy, and the reward, 0 to 3.

    accuracy is type + point + text, each for its own: a point in the box (edges included, as the paper's box is a
    set of points) earns whatever the action is called, and so does a text whose F1 is above `TEXT_F1`. point and
    text are there where the truth has one. reward: accuracy + format; `gui_r1` has the code's weights.
    """
    answer = Answer.read(said)
    channels = {"type": float(answer.action == truth.action)}
    if truth.box is not None or truth.point is not None:
        channels["point"] = float(answer.point is not None and truth.inside(answer.point, edges=True))
    if truth.text != NO_TEXT:
        channels["text"] = float(text_f1(answer.text, truth.text) > TEXT_F1)
    accuracy = sum(channels.values())
    channels |= {"format": float(well_formed(said)), "accuracy": accuracy}
    return channels | {"reward": accuracy + channels["format"]}


def iou(one: Box, other: Box) -> float:
    """Intersection over union of two boxes, 0 to 1; 0.0 where they do not meet."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    if wide <= 0 or high <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return wide * high / (areas - wide * high)


def vlm_r1(said: str, truth: Truth) -> dict[str, float]:
    """Channels iou, surplus, format and accuracy, and the reward, 0 to 2: iou times surplus, and format.

    The answer is a box. iou: of the first one with the box that is right. surplus: VLM-R1's factor against boxes
    that are told on the chance that one fits, min(1, those that are wanted / those that are told); one is wanted.
    format: thoughts and an answer with a box, in their marks. accuracy: whether the product is above 0.5.
    """
    told = boxes(said)
    overlap = iou(told[0], truth.box) if told and truth.box is not None else 0.0
    surplus = 1.0 / max(len(told), 1)
    channels = {"iou": overlap, "surplus": surplus, "format": float(bool(told) and well_formed(said, strict=False))}
    channels["accuracy"] = float(overlap * surplus > 0.5)
    return channels | {"reward": overlap * surplus + channels["format"]}


_OVERLAPS = tuple(level / 100 for level in range(50, 100, 5))
_RECALLS = 101


def average_precision(told: Sequence[Box], wanted: Sequence[Box], least: float) -> float:
    """COCO's AP of boxes without confidences, taken in their order, 0 to 1.

    Each takes, of the wanted boxes that are left, the one that it overlaps most, and is right where that is by
    `least` or more. Precision at a recall is the best at that or a higher one, over 101 recalls from 0 to 1. 1.0
    where nothing is wanted and nothing told; 0.0 where one of them is nothing.
    """
    if not told or not wanted:
        return float(not told and not wanted)
    left, right, curve = list(wanted), 0, []
    for count, box in enumerate(told, 1):
        best = max(left, key=lambda one: iou(box, one), default=None)
        if best is not None and iou(box, best) >= least:
            left.remove(best)
            right += 1
        curve.append((right, right / count))
    # whole numbers are compared: a recall of n wanted boxes out of N is reached where n / N is
    reached = (
        max((precision for found, precision in curve if found * (_RECALLS - 1) >= at * len(wanted)), default=0.0)
        for at in range(_RECALLS)
    )
    return sum(reached) / _RECALLS


def vlm_r1_detection(said: str, truth: Truth) -> dict[str, float]:
    """Channels map, surplus, format and accuracy, and the reward, 0 to 2: map times surplus, and format.

    The answer is a box for each element that is asked for. map: `average_precision`, the mean over overlaps of 0.5,
    0.55, ... 0.95. surplus and accuracy: as of `vlm_r1`.
    """
    told = boxes(said)
    found = sum(average_precision(told, truth.boxes, least) for least in _OVERLAPS) / len(_OVERLAPS)
    surplus = min(1.0, len(truth.boxes) / max(len(told), 1))
    channels = {"map": found, "surplus": surplus, "format": float(bool(told) and well_formed(said, strict=False))}
    channels["accuracy"] = float(found * surplus > 0.5)
    return channels | {"reward": found * surplus + channels["format"]}


RULES: Mapping[str, Callable[[str, Truth], dict[str, float]]] = MappingProxyType(
    {
        "gui-r1": gui_r1,
        "gui-r1-paper": gui_r1_paper,
        "ui-r1": ui_r1,
        "vlm-r1": vlm_r1,
        "vlm-r1-detection": vlm_r1_detection,
    }
)
"""Rewards by their papers' names."""
BOXED = frozenset(("vlm-r1", "vlm-r1-detection"))
"""Those whose answer is a box, or boxes, and no action."""
SEVERAL = frozenset(("vlm-r1-detection",))
"""Those of questions that ask for several."""
