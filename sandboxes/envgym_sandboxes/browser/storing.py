"""What a context keeps for its sites: read and written as plain data, and forgotten."""

import asyncio
import json
from typing import TYPE_CHECKING

from envgym.page import Storage
from envgym_sandboxes.browser.gate import BLANK_PATH, origin_of

if TYPE_CHECKING:
    from envgym_sandboxes.browser.context import Context
    from envgym_sandboxes.browser.tab import Tab

__all__ = ["empty", "read_storage", "write_storage"]

_CLEARED = "location.href === %s && (sessionStorage.clear(), localStorage.clear(), window.name = '', true)"
_READ = "JSON.stringify(Object.fromEntries(Object.entries(localStorage)))"


async def read_storage(context: "Context") -> Storage:
    """Everything that is kept: cookies of all sites, local storage of those that a tab shows."""
    said = await context.wire.call("Storage.getCookies", browserContextId=context.name)
    local: dict[str, dict[str, str]] = {}
    for tab in context.tabs:
        origin = origin_of(tab.url)
        if origin in context.spec.sites and origin not in local:
            local[str(origin)] = json.loads(await tab.run(_READ))
    return Storage(tuple(said["cookies"]), {origin: kept for origin, kept in local.items() if kept})


async def write_storage(context: "Context", storage: Storage) -> None:
    """Put it there, before any page of the sites is shown; each site's empty page takes its local storage."""
    if storage.cookies:
        cookies = [{**cookie} for cookie in storage.cookies]
        for cookie in cookies:
            cookie.pop("size", None)
            if cookie.pop("session", False):
                cookie.pop("expires", None)
        await context.wire.call("Storage.setCookies", cookies=cookies, browserContextId=context.name)
    for origin, kept in storage.local.items():
        tab = context.tabs[0]
        await tab.call("Page.navigate", url=origin + BLANK_PATH)
        await tab.settle()
        await tab.run(f"for (const [name, text] of {json.dumps([*kept.items()])}) localStorage.setItem(name, text)")


async def empty(context: "Context", tab: "Tab") -> None:
    """Nothing is left in a tab, of the tab itself nor of the sites: not the cache, nor its window's name.

    The page goes first, since it may write as it goes; what it kept is cleared on each site's empty page, and
    last on the one that is begun with: from there the way to it is short.
    """
    start = origin_of(context.spec.start)
    for origin in sorted(tab.visited & set(context.spec.sites), key=lambda one: (one == start, one)):
        await tab.call("Page.navigate", url=origin + BLANK_PATH)
        while not await tab.run(_CLEARED % json.dumps(origin + BLANK_PATH)):  # still the page before
            await tab.event()
    tab.visited.clear()
    if not context.spec.start:
        await tab.call("Page.navigate", url="about:blank")
        await tab.settle()
    calls = [
        tab.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all") for origin in context.spec.sites
    ]
    calls += [tab.call("Network.clearBrowserCache"), tab.call("Network.clearBrowserCookies")]
    await asyncio.gather(*calls)
