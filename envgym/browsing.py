"""How environments come by a browser: by its name, without knowing the leaf that it is in."""

from typing import Any

from envgym.options import wrong_option
from envgym.page import Browser
from envgym.registry import find

__all__ = ["open_browser"]


def open_browser(kind: str = "chromium", **options: Any) -> Browser:
    """A share of this event loop's browser; `options` are those of its kind. Nothing is started before a page is.

    Whoever opened it closes it; the last one ends the browser. Raises ValueError for an unknown kind or option.
    """
    opened = find("browsers", kind)
    if wrong := wrong_option(f"browser {kind!r}: options", options, opened):
        raise ValueError(wrong)
    browser: Browser = opened(**options)
    return browser
