"""`open_screen`: a display by the name of its kind, in any sandbox that has the programs for it."""

from typing import Any

from envgym.options import wrong_option
from envgym.registry import find
from envgym.sandbox import Sandbox
from envgym.screen import Screen

__all__ = ["open_screen"]


async def open_screen(sandbox: Sandbox, *, kind: str = "desktop", **options: Any) -> Screen:
    """A display in a sandbox; `options` are those of its kind, see ``envgym list``.

    It lives in processes of the sandbox, and ends with it. Raises ValueError for an unknown kind or option.
    """
    opened = find("screens", kind)
    if wrong := wrong_option(f"screen {kind!r}: options", options, opened, skip=1):
        raise ValueError(wrong)
    screen: Screen = await opened(sandbox, **options)
    return screen
