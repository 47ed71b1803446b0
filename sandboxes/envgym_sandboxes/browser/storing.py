"""Cookies and local storage of a context, read and written as plain data."""

import json
from typing import TYPE_CHECKING

from envgym.page import Storage
from envgym_sandboxes.browser.gate import BLANK_PATH, origin_of

if TYPE_CHECKING:
    from envgym_sandboxes.browser.context import Context

__all__ = ["read_storage", "write_storage"]

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
