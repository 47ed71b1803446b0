"""What can be done to a web page: frozen actions on places named by ref, by role and text, or by coordinates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Back",
    "Click",
    "CloseTab",
    "Drag",
    "Fill",
    "Forward",
    "Goto",
    "Hover",
    "NewTab",
    "PageAction",
    "Press",
    "Scroll",
    "Select",
    "SwitchTab",
    "Target",
    "TypeText",
    "Upload",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Target:
    """Which place on the page: exactly one of an element's ref, its role with its name, or coordinates.

    ref: as `Node.ref` of the last tree that was asked for; it names the same element as long as that is there.
    role, name: of the accessibility tree; either may be "". A name is matched whole, else as a part; `nth` chooses
        among several, in document order.
    x, y: in CSS pixels from the viewport's top left corner.
    """

    ref: str = ""
    role: str = ""
    name: str = ""
    nth: int = 0
    x: float | None = None
    y: float | None = None

    def __post_init__(self) -> None:
        at = self.x is not None or self.y is not None
        ways = [bool(self.ref), bool(self.role or self.name), at]
        if sum(ways) != 1 or (at and (self.x is None or self.y is None)):
            raise ValueError(f"{self!r} must be exactly one of: a ref, a role and/or name, coordinates x and y")
        if self.nth < 0:
            raise ValueError(f"nth is {self.nth}; it must be at least 0")


@dataclass(frozen=True, slots=True)
class Click:
    """Press a button of the mouse on a place, `count` times (2: a double click)."""

    target: Target
    button: Literal["left", "middle", "right"] = "left"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the mouse to a place."""

    target: Target


@dataclass(frozen=True, slots=True)
class Fill:
    """Put `text` into a field, instead of what is in it."""

    target: Target
    text: str


@dataclass(frozen=True, slots=True)
class TypeText:
    """Type into what has the focus, key by key."""

    text: str


@dataclass(frozen=True, slots=True)
class Press:
    """Press a key, with what is held meanwhile: "Enter", "Control+a", "Shift+Tab"."""

    keys: str


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel over a place (None: the middle of the page), in CSS pixels; down and right are positive."""

    dx: float = 0.0
    dy: float = 0.0
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Choose options of a selection field, by label or value; a field for one takes one."""

    target: Target
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the mouse on `start`, move to `end`, and let go."""

    start: Target
    end: Target


@dataclass(frozen=True, slots=True)
class Upload:
    """Give a file field files: name -> content."""

    target: Target
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Back:
    """Go back in this tab's history."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Go forward in this tab's history."""


@dataclass(frozen=True, slots=True)
class Goto:
    """Load a URL of one of the episode's sites."""

    url: str


@dataclass(frozen=True, slots=True)
class NewTab:
    """Open a tab, with a URL or empty, and go on in it."""

    url: str = ""


@dataclass(frozen=True, slots=True)
class SwitchTab:
    """Go on in the tab with this number, from 0."""

    tab: int


@dataclass(frozen=True, slots=True)
class CloseTab:
    """Close a tab (None: this one) and go on in the one before; the last one stays."""

    tab: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until the page is quiet, at least for `seconds` of its own time."""

    seconds: float = 0.0


PageAction = (
    Click | Hover | Fill | TypeText | Press | Scroll | Select | Drag | Upload | Back | Forward | Goto
    | NewTab | SwitchTab | CloseTab | Wait
)  # fmt: skip
