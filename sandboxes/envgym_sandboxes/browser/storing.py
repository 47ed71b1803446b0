"""What a context keeps for its sites: read and written as plain data, and forgotten."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

from envgym.page import Storage
from envgym_sandboxes.browser.gate import BLANK_PATH, origin_of

if TYPE_CHECKING:
    from envgym_sandboxes.browser.context import Context
    from envgym_sandboxes.browser.tab import Tab

__all__ = ["empty", "read_storage", "write_storage"]

_CLEARED = "(sessionStorage.clear(), localStorage.clear(), window.name = '')"
_READ = "JSON.stringify(Object.fromEntries(Object.entries(localStorage)))"


async def read_storage(context: "Context") -> Storage:
    """Everything that is kept: cookies of all sites, local storage of those that a tab shows."""
    cookies = context.wire.call("Storage.getCookies", browserContextId=context.name)  # on its way meanwhile
    local: dict[str, dict[str, str]] = {}
    for tab in context.tabs:
        origin = origin_of(tab.url)
        if origin in context.spec.sites and origin not in local:
            local[str(origin)] = json.loads(await tab.run(_READ))
    return Storage(tuple((await cookies)["cookies"]), {origin: kept for origin, kept in local.items() if kept})


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


async def empty(context: "Context", tab: "Tab", *, keeps: bool) -> None:
    """Nothing is left in a tab, of the tab itself nor of the sites: not the cache, nor its window's name.

    The page goes first, since it may write as it goes; what it kept is cleared on each site's empty page, and
    last on the one that is begun with: from there the way to it is short. Without `keeps` none of that can be: what
    is still loaded is stopped, and cookies and cache go.
    """
    if not keeps and context.spec.start:
        if tab.loads:
            await tab.call("Page.stopLoading")
        await asyncio.gather(*_forgotten(context, tab))
        return
    start = origin_of(context.spec.start)
    kept = None
    for origin in sorted(tab.visited & set(context.spec.sites), key=lambda one: (one == start, one)):
        if kept is not None:
            await tab.valued(kept)
        await _leave(tab, origin + BLANK_PATH)
        kept = tab.asked(_CLEARED)  # on its way while the rest is cleared
    tab.visited.clear()
    if not context.spec.start:
        if kept is not None:
            await tab.valued(kept)
        await tab.call("Page.navigate", url="about:blank")
        await tab.settle()
        kept = None
    calls = [
        tab.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all") for origin in context.spec.sites
    ]
    await asyncio.gather(*calls, *_forgotten(context, tab))
    if kept is not None:
        await tab.valued(kept)


def _forgotten(context: "Context", tab: "Tab") -> "list[asyncio.Future[dict[str, Any]]]":
    """Cookies, and the cache where there is anything in it: to empty it takes longer than all else."""
    calls = [tab.call("Network.clearBrowserCookies")]
    if context.gate.stored:
        context.gate.stored = False
        calls.append(tab.call("Network.clearBrowserCache"))
    return calls


async def _leave(tab: "Tab", url: str) -> None:
    """Go to an empty page, until the page before is gone with its last words: an address it could take itself."""
    said = await tab.call("Page.navigate", url=url)
    while tab.document != said.get("loaderId"):
        await tab.event()
