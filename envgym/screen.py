"""A display with pointer, keys and an accessibility tree: one space of actions, views paid for if asked.

The contract only: frozen actions in, frozen views out. The actions are those of GUI-R1's unified space (Xia and Luo
2025, section 3), which hold for desktops, web and phones alike, and those by reference into the accessibility tree.
An implementation lives in a leaf and is found by name (`envgym.open_screen`); `envgym.screen_tools` makes calls of
models into these actions.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from envgym.sandbox import Sandbox

__all__ = [
    "CLOSED", "Acted", "Box", "Button", "Click", "Drag", "Invoke", "Move", "Node", "Press", "Screen",
    "ScreenAction", "ScreenView", "Scroll", "SetText", "Target", "Type", "Wait", "Window",
]  # fmt: skip

Target = str | tuple[int, int]
"""Where to act: the ref of a node, such as "e7", whose middle is meant, or a pixel (x, y) from the top left."""
Button = Literal["left", "middle", "right"]

LONGEST_TEXT = 10_000
"""Characters of one `Type` or `SetText`."""
LONGEST_WAIT_S = 10.0
CLOSED = "closed"
"""In `ScreenView.files` in the place of a digest: what may not be read."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels: its left and top edge, its width and height."""

    x: int
    y: int
    width: int
    height: int

    @property
    def center(self) -> tuple[int, int]:
        """The pixel in the middle."""
        return self.x + self.width // 2, self.y + self.height // 2

    def contains(self, x: float, y: float) -> bool:
        """Whether a point is inside; the right and bottom edges are not."""
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


@dataclass(frozen=True, slots=True)
class Node:
    """One element of the accessibility tree, as it is shown.

    ref: what actions call it, the same for as long as it lives. depth: below how many others of the view it is.
    states: of "focused", "checked", "selected", "expanded", "editable", "disabled", in this order.
    text: what it contains where that can be edited or read; None where it holds no text of its own.
    """

    ref: str
    role: str
    name: str
    box: Box
    depth: int = 0
    states: tuple[str, ...] = ()
    text: str | None = None

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        states = f" ({', '.join(self.states)})" if self.states else ""
        text = "" if self.text is None or self.text == self.name else f": {self.text!r}"
        return f"{'  ' * self.depth}{self.ref} {self.role}{name}{states}{text}"


@dataclass(frozen=True, slots=True)
class Window:
    """One window, from the bottom up; `box` is its content without the frame around it."""

    title: str
    box: Box
    active: bool = False


@dataclass(frozen=True, slots=True)
class ScreenView:
    """What was asked for and nothing else: None is what was not asked for.

    size: width and height in pixels. tree: in reading order, shown elements only. image: PNG, without the pointer.
    cut: how many elements or characters of `tree` were left out because there were too many; a program that does
    not answer counts as one. files: name below the home of programs -> sha256 of its bytes, `CLOSED` for what may
    not be read; of very many, those beyond the first are one entry, named "". It is what the display's own user
    sees: a grader who must not be deceived looks from outside.
    """

    size: tuple[int, int]
    tree: tuple[Node, ...] | None = None
    image: bytes | None = None
    windows: tuple[Window, ...] | None = None
    cut: int = 0
    files: Mapping[str, str] | None = None

    def node(self, ref: str) -> Node | None:
        """The element of that ref, if it is shown."""
        return next((node for node in self.tree or () if node.ref == ref), None)

    def find(self, role: str = "", name: str | None = None) -> tuple[Node, ...]:
        """The elements of a role ("": any) and a name (None: any)."""
        return tuple(
            node for node in self.tree or () if role in ("", node.role) and (name is None or node.name == name)
        )

    def __str__(self) -> str:
        lines = [f"window {window.title!r}{' (active)' if window.active else ''}" for window in self.windows or ()]
        lines += map(str, self.tree or ())
        return "\n".join([*lines, f"[{self.cut} more left out]"] if self.cut else lines)


def _checked_target(what: str, target: object) -> None:
    if isinstance(target, str):
        if not target:
            raise ValueError(f"{what} is ''; it must be the ref of an element, or a pixel (x, y)")
        return
    whole = isinstance(target, tuple) and len(target) == 2 and all(type(part) is int for part in target)
    if not whole:
        raise TypeError(f"{what} is {target!r}; it must be the ref of an element, or a pixel (x, y) of two ints")


def _checked_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is {text!r}; it must be a str")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{what} has {len(text)} characters; at most {LONGEST_TEXT} go at once")


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release a button at a place, `count` times: 2 is a double click."""

    target: Target
    button: Button = "left"
    count: int = 1

    def __post_init__(self) -> None:
        _checked_target("Click.target", self.target)
        if self.button not in ("left", "middle", "right"):
            raise ValueError(f"Click.button is {self.button!r}; it must be 'left', 'middle' or 'right'")
        if not 1 <= self.count <= 3:
            raise ValueError(f"Click.count is {self.count}; it must be 1 to 3")


@dataclass(frozen=True, slots=True)
class Move:
    """Move the pointer, pressing nothing."""

    target: Target

    def __post_init__(self) -> None:
        _checked_target("Move.target", self.target)


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the left button at `start`, move to `end`, release."""

    start: Target
    end: Target

    def __post_init__(self) -> None:
        _checked_target("Drag.start", self.start)
        _checked_target("Drag.end", self.end)


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel over a place by notches: down and right are positive."""

    target: Target
    down: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        _checked_target("Scroll.target", self.target)
        if max(abs(self.down), abs(self.right)) > 100:
            raise ValueError(f"Scroll is {self.down} down and {self.right} right; at most 100 notches go at once")


@dataclass(frozen=True, slots=True)
class Type:
    """Type text with the keyboard, to whatever has the focus; a newline is the Return key."""

    text: str

    def __post_init__(self) -> None:
        _checked_text("Type.text", self.text)


@dataclass(frozen=True, slots=True)
class Press:
    """Press keys together and release them: ``Press(("ctrl", "s"))``. Names are X11's, and those of `KEY_NAMES`."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.keys or len(self.keys) > 5 or not all(isinstance(key, str) and key for key in self.keys):
            raise ValueError(f"Press.keys is {self.keys!r}; it must be one to five names of keys")


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until nothing on the screen works any more, at most so long."""

    seconds: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= LONGEST_WAIT_S:
            raise ValueError(f"Wait.seconds is {self.seconds}; it must be above 0 and at most {LONGEST_WAIT_S:g}")


@dataclass(frozen=True, slots=True)
class Invoke:
    """What an element can do, by the accessibility interface: its first action, or one by name.

    A name that it does not have is answered with those that it has.
    """

    ref: str
    action: str = ""

    def __post_init__(self) -> None:
        _checked_target("Invoke.ref", self.ref)


@dataclass(frozen=True, slots=True)
class SetText:
    """Replace all text of an editable element, by the accessibility interface."""

    ref: str
    text: str

    def __post_init__(self) -> None:
        _checked_target("SetText.ref", self.ref)
        _checked_text("SetText.text", self.text)
        for character in self.text:  # the interface's texts are UTF-8 without NUL: a bus ends who sends others
            if character == "\0" or "\ud800" <= character <= "\udfff":
                raise ValueError(f"SetText.text has the character {character!r}, which no element takes")


ScreenAction = Click | Move | Drag | Scroll | Type | Press | Wait | Invoke | SetText


@dataclass(frozen=True, slots=True)
class Acted:
    """What came of an action. fault: why nothing was done, which is data; "" when it was done.

    settled: whether all programs came to rest after it within the deadline; if not, what is seen may still change.
    """

    fault: str = ""
    settled: bool = True


class Screen(Protocol):
    """One display in a sandbox. An async context manager; `close` is idempotent. Calls run one after the other.

    Programs live in processes of `sandbox`, see its files, and end with it. Raises, from every method,
    InfrastructureFailure when the display is gone and SandboxDied when the sandbox is.
    """

    @property
    def sandbox(self) -> Sandbox:
        """Where its programs run; `sandbox.world.workdir` is their home."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        ...

    @property
    def thorough(self) -> bool:
        """Whether `clear` also removes what programs left outside of their home."""
        ...

    async def launch(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, within_s: float = 60.0
    ) -> None:
        """Start a program and wait until it has a window and has come to rest.

        Raises EnvironmentFailure, with what it said, when it ends or has none by then.
        """
        ...

    async def act(self, action: ScreenAction) -> Acted:
        """Do something, and wait until all programs rest. What cannot be done is `Acted.fault`."""
        ...

    async def view(
        self, *, tree: bool = True, image: bool = False, windows: bool = False, files: bool = False
    ) -> ScreenView:
        """What is shown, and what lies in the home, now."""
        ...

    async def clear(self) -> None:
        """End all programs, empty their home, forget refs, clipboard and locked keys: as it was when opened."""
        ...

    def watched(self, *, control: bool = False) -> AbstractAsyncContextManager[tuple[str, int]]:
        """While this lasts, people can look at the display by VNC: the host and port, on the host's own loopback.

        control: they may point and type, too. Whether somebody watches changes nothing that programs do; the
        picture moves between calls. Every user of the host may connect. Raises ValueError where the sandbox cannot
        forward.
        """
        ...

    async def ended(self) -> None:
        """Wait until the display is gone, by itself or with its sandbox. May be cancelled; no call meanwhile."""
        ...

    async def close(self) -> None:
        """End the display and all that it shows; the sandbox goes on."""
        ...

    async def __aenter__(self) -> Self:
        """Open already."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        ...
