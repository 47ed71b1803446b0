"""How environments come by a browser, by its name, without knowing the leaf that it is in; and by pages once used.

A new page costs a renderer, and the last page of a browser takes it along. Where many episodes are played, one
after the other, pages wait for the next (`pages_kept`): an environment that can begin anew in a page that was used
asks `take_page` first and says `leave_page` in the end. Elsewhere nothing waits, and a page ends with its episode.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.options import wrong_option
from envgym.page import Browser, Page
from envgym.registry import find

__all__ = ["Used", "leave_page", "open_browser", "pages_kept", "take_page"]


def open_browser(kind: str = "chromium", **options: Any) -> Browser:
    """A share of this event loop's browser; `options` are those of its kind. Nothing is started before a page is.

    Whoever opened it closes it; the last one ends the browser. Raises ValueError for an unknown kind or option.
    """
    opened = find("browsers", kind)
    if wrong := wrong_option(f"browser {kind!r}: options", options, opened):
        raise ValueError(wrong)
    browser: Browser = opened(**options)
    return browser


class Used(NamedTuple):
    """A page that was used, and the share of the browser that it is of: whoever has both closes the share."""

    browser: Browser
    page: Page


@dataclass(slots=True)
class _Kept:
    """The pages that wait, those that were left last at the end. most: how many may."""

    most: int
    loop: asyncio.AbstractEventLoop
    waiting: deque[tuple[str, Used]] = field(default_factory=deque)


_KEPT: ContextVar[_Kept | None] = ContextVar("pages kept", default=None)


def _here() -> _Kept | None:
    """What keeps pages for this event loop: a thread with another has the context, and none of its pages."""
    kept = _KEPT.get()
    return kept if kept is not None and kept.loop is asyncio.get_running_loop() else None


@asynccontextmanager
async def pages_kept(most: int) -> AsyncIterator[None]:
    """Within it, and in tasks begun within it, the `most` pages that were left last wait; at its end they close."""
    if most < 1:
        raise ValueError(f"pages_kept(most={most}); it must be at least 1")
    kept = _Kept(most, asyncio.get_running_loop())
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)
        kept.most = 0  # who leaves one later, in a task that is not over, closes it
        await _close_beyond(kept)


async def _close_beyond(kept: _Kept) -> None:
    while len(kept.waiting) > kept.most:
        _, used = kept.waiting.popleft()
        await used.browser.close()


async def take_page(key: str, *, family: str = "") -> Used | None:
    """A page that waits and still answers, now the caller's; None where there is none.

    The one that was left last under this key; else, where a family is given, the one that was left first under a
    key that begins with it: it has something else in it, and costs no new renderer.
    """
    kept = _here()
    while kept is not None and (entry := _fitting(kept, key, family)):
        kept.waiting.remove(entry)
        used = entry[1]
        try:
            await used.page.run("true")
        except (SandboxDied, EnvironmentFailure):  # it died while it waited, or with the browser
            await used.browser.close()
        except BaseException:
            await used.browser.close()
            raise
        else:
            return used
    return None


def _fitting(kept: _Kept, key: str, family: str) -> tuple[str, Used] | None:
    own = (entry for entry in reversed(kept.waiting) if entry[0] == key)
    akin = (entry for entry in kept.waiting if family and entry[0].startswith(family))
    return next(own, None) or next(akin, None)


async def leave_page(key: str, used: Used) -> None:
    """Give up a page: it waits for the next who asks for `key`, or is closed where none are kept."""
    kept = _here()
    if kept is None:
        await used.browser.close()
        return
    kept.waiting.append((key, used))
    await _close_beyond(kept)
