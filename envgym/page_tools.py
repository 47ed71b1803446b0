"""The typed tools by which an agent uses a page: their specs, and a call read as a `PageAction`.

No code of a model is ever run: a call is one of these tools with checked arguments, or an error that it is told.
`upload` gives a file of the files that the environment offers by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from envgym.messages import ParseError, ToolCall, ToolSpec
from envgym.page_actions import (
    Back,
    Click,
    CloseTab,
    Drag,
    Fill,
    Forward,
    Goto,
    Hover,
    NewTab,
    PageAction,
    Press,
    Scroll,
    Select,
    SwitchTab,
    Target,
    TypeText,
    Upload,
    Wait,
)
from envgym.tools import check_call, tool_spec

__all__ = ["PAGE_TOOLS", "page_tools", "read_page_action"]


def click(ref: str, button: Literal["left", "middle", "right"] = "left", count: int = 1) -> PageAction:
    """Click an element, by the ref that stands before it, such as e7. count 2 is a double click."""
    return Click(Target(ref=ref), button, _times(count))


def click_named(name: str, role: str = "", nth: int = 0) -> PageAction:
    """Click what has this text, and this role (button, link, ...) where one is given; nth of several, from 0."""
    return Click(Target(role=role, name=name, nth=nth))


def click_at(x: float, y: float, button: Literal["left", "middle", "right"] = "left", count: int = 1) -> PageAction:
    """Click at a point, in pixels from the top left corner."""
    return Click(Target(x=x, y=y), button, _times(count))


def _times(count: int) -> int:
    if not 1 <= count <= 3:
        raise ValueError(f"count is {count}; it must be 1 to 3")
    return count


def hover(ref: str) -> PageAction:
    """Move the mouse over an element."""
    return Hover(Target(ref=ref))


def fill(ref: str, text: str) -> PageAction:
    """Put a text into a field, instead of what is in it."""
    return Fill(Target(ref=ref), _short(text, 100_000, "no field takes that much"))


def type_text(text: str) -> PageAction:
    """Type into what has the focus, key by key: at most 1,000 characters."""
    return TypeText(_short(text, 1000, "fill puts longer texts into a field"))


def _short(text: str, most: int, instead: str) -> str:
    if len(text) > most:
        raise ValueError(f"the text has {len(text):,} characters; it may have {most:,}: {instead}")
    return text


def press(keys: str) -> PageAction:
    """Press a key, such as Enter, Tab, ArrowDown, a, or with others held: Control+a, Shift+Tab."""
    return Press(keys)


def scroll(dy: float, dx: float = 0.0, ref: str = "") -> PageAction:
    """Turn the wheel, in pixels (down and right are positive), over an element or the middle of the page."""
    return Scroll(dx, dy, Target(ref=ref) if ref else None)


def select(ref: str, options: list[str]) -> PageAction:
    """Choose options of a selection field, by their texts."""
    return Select(Target(ref=ref), tuple(options))


def drag(start: str, end: str) -> PageAction:
    """Drag an element onto another, by their refs."""
    return Drag(Target(ref=start), Target(ref=end))


def drag_at(x: float, y: float, to_x: float, to_y: float) -> PageAction:
    """Drag from a point to a point."""
    return Drag(Target(x=x, y=y), Target(x=to_x, y=to_y))


def upload(ref: str, file: str) -> PageAction:
    """Give a file field one of the files that are offered, by its name."""
    return Upload(Target(ref=ref), {file: b""})


def back() -> PageAction:
    """Go back to the page before."""
    return Back()


def forward() -> PageAction:
    """Go forward again."""
    return Forward()


def goto(url: str) -> PageAction:
    """Load an address."""
    return Goto(url)


def new_tab(url: str = "") -> PageAction:
    """Open a tab, with an address or empty, and go on in it."""
    return NewTab(url)


def switch_tab(tab: int) -> PageAction:
    """Go on in the tab with this number, from 0."""
    return SwitchTab(tab)


def close_tab() -> PageAction:
    """Close this tab."""
    return CloseTab()


def wait(seconds: float = 0.0) -> PageAction:
    """Do nothing until the page is quiet, or for some seconds (at most 5)."""
    return Wait(min(max(seconds, 0.0), 5.0))


_MAKERS: dict[str, Callable[..., PageAction]] = {
    made.__name__: made
    for made in (
        click, click_named, click_at, hover, fill, type_text, press, scroll, select, drag, drag_at, upload, back,
        forward, goto, new_tab, switch_tab, close_tab, wait,
    )
}  # fmt: skip

PAGE_TOOLS: tuple[ToolSpec, ...] = tuple(tool_spec(make) for make in _MAKERS.values())
"""Every tool of a page."""


def page_tools(*names: str) -> tuple[ToolSpec, ...]:
    """The specs of these tools, in the order given. Raises ValueError for an unknown name."""
    specs = {spec.name: spec for spec in PAGE_TOOLS}
    if lacking := [name for name in names if name not in specs]:
        raise ValueError(f"no page tools {lacking}; there are {', '.join(specs)}")
    return tuple(specs[name] for name in names)


def read_page_action(
    call: ToolCall, specs: Sequence[ToolSpec] = PAGE_TOOLS, *, files: Mapping[str, bytes] | None = None
) -> PageAction | ParseError:
    """A call as an action, or what is wrong with it, to be told to the model. files: what `upload` may give."""
    checked = check_call(call, specs)
    if isinstance(checked, ParseError):
        return checked
    if checked.name not in _MAKERS:
        raise ValueError(f"{checked.name!r} is no page tool: give read_page_action only calls of PAGE_TOOLS")
    try:
        action = _MAKERS[checked.name](**checked.arguments)
    except ValueError as error:
        return ParseError(message=str(error))
    if isinstance(action, Upload):
        offered = files or {}
        (name,) = action.files
        if name not in offered:
            return ParseError(message=f"no file {name[:80]!r} is offered; there are {', '.join(offered) or 'none'}")
        return Upload(action.target, {name: offered[name]})
    return action
