"""One episode's page: a context of Chromium with its tabs, where everything that goes wrong is its own matter."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import JsonValue

from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.page import Acted, Outcome, PageSpec, PageView, Storage, Wanted
from envgym.page import Tab as SeenTab
from envgym.page_actions import (
    Back,
    CloseTab,
    Forward,
    Goto,
    NewTab,
    PageAction,
    SwitchTab,
    Wait,
)
from envgym_sandboxes.browser.acting import Missed, perform
from envgym_sandboxes.browser.downloads import Downloads
from envgym_sandboxes.browser.gate import Gate, origin_of
from envgym_sandboxes.browser.process import Process
from envgym_sandboxes.browser.seeing import everywhere, look
from envgym_sandboxes.browser.storing import empty, read_storage, write_storage
from envgym_sandboxes.browser.tab import Crashed, Hung, Tab
from envgym_sandboxes.browser.wire import Refused, Wire

__all__ = ["Context"]

T = TypeVar("T")


class Context:
    """See `envgym.page.Page`."""

    def __init__(self, spec: PageSpec, name: str, wire: Wire, gate: Gate, process: Process) -> None:
        self.spec, self.name, self.wire, self.gate = spec, name, wire, gate
        self.on_close: Callable[[], object] = lambda: None
        self.downloads = Downloads(wire, name, process, spec.limits.download_bytes)
        self.tabs: list[Tab] = []
        self._active: Tab | None = None
        self._creating = 0
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._unprepared = ""
        self._opened = 0
        self._clipboard: list[str] = []
        self._lock = asyncio.Lock()
        self._closed = False

    # what Chromium tells

    def attached(self, info: dict[str, Any], session: str) -> None:
        """A tab of this context is there; its scripts wait until it is prepared."""
        own = self._creating > 0 and "openerId" not in info
        self._creating -= own
        self._opened += not own
        if self._closed or (not own and len(self.tabs) >= self.spec.limits.tabs):
            self.wire.tell("Runtime.runIfWaitingForDebugger", session)  # its opener waits for it
            self.wire.tell("Target.closeTarget", targetId=info["targetId"])
            return
        tab = Tab(info["targetId"], session, self.wire, self.spec)
        tab.on_download = self.downloads.began
        self.tabs.append(tab)
        task = asyncio.get_running_loop().create_task(self._prepare(tab))
        self._preparing[tab.target] = task

    async def _prepare(self, tab: Tab) -> None:
        try:
            await tab.prepare()
        except (Hung, Crashed, Refused, SandboxDied) as error:
            if isinstance(error, Refused) and await self._there(tab):
                self._unprepared = str(error)
            tab.close()  # nothing is shown that could not be prepared

    async def _there(self, tab: Tab) -> bool:
        """Whether Chromium still has a tab: one that its opener closed at once refuses what it is asked."""
        try:
            await self.wire.call("Target.getTargetInfo", targetId=tab.target)
        except (Refused, SandboxDied):
            return False
        return True

    def target_event(self, method: str, params: dict[str, Any]) -> None:
        """Something became of a tab, perhaps one of these."""
        target = params.get("targetId") or params["targetInfo"]["targetId"]
        tab = next((one for one in self.tabs if one.target == target), None)
        if tab is not None:
            tab.died()
            if method == "Target.targetDestroyed" and tab is not self._active:
                self._forget(tab)

    def lost(self) -> None:
        """The browser is gone."""
        for tab in self.tabs:
            tab.died()

    # the contract

    async def begin(self) -> None:
        """Open the first tab at the spec's start. Raises EnvironmentFailure when that cannot be loaded."""
        await self._show(await self._open())
        if self.spec.storage is not None:
            await write_storage(self, self.spec.storage)
        await self._load_start()

    async def _load_start(self) -> None:
        if self.spec.start:
            acted = await self.act(Goto(self.spec.start))
            if not acted.outcome.ok:
                raise EnvironmentFailure(f"{self.spec.start} cannot be loaded: {acted.outcome}: {acted.message}")
        self._now().forget_history()

    async def restart(self, storage: Storage | None = None, *, keeps: bool = True) -> None:
        """As a new page with the same spec: one tab, and of cookies and storage what is given alone."""
        async with self._lock:
            self._living()
            tab = self._now()
            for other in [one for one in self.tabs if one is not tab]:
                self._forget(other)
                other.close()
            try:
                await tab.within(empty(self, tab, keeps=keeps), self.spec.limits.act_s)
            except (Hung, Crashed, Refused) as error:
                await self._replaced(tab, error)
            self._clipboard.clear()
            await self.downloads.clear()
        given = storage or self.spec.storage
        if given is not None:
            await write_storage(self, given)
        await self._load_start()

    async def act(self, action: PageAction) -> Acted:
        """Do it and wait for quiet."""
        async with self._lock:
            self._living()
            began, tab = time.perf_counter(), self._now()
            self._opened = 0
            self.gate.refused.clear()
            tab.begin()
            outcome, message = await self._outcome(tab, action)
            shown = tab if tab.dialogs else self._now()
            return Acted(
                outcome,
                message,
                dialogs=tuple(shown.dialogs),
                downloads=self.downloads.done(),
                refused=tuple(sorted(self.gate.refused)),
                opened=self._opened,
                wall_s=time.perf_counter() - began,
            )

    async def _outcome(self, tab: Tab, action: PageAction) -> tuple[Outcome, str]:
        try:
            try:
                await tab.within(self._do(tab, action), self.spec.limits.act_s)
            except Missed as missed:
                return missed.outcome, missed.message
            except Refused as error:
                await self._after(tab)  # where it crashed or hangs, that is why
                return Outcome.INVALID, f"the browser refuses that: {error}"
            quiet = await self._after(self._now())
        except (Hung, Crashed, SandboxDied) as error:
            return await self._replaced(self._now() if tab not in self.tabs else tab, error)
        here = self._now()
        if self.gate.refused and here.url != "about:blank" and origin_of(here.url) not in self.spec.sites:
            return Outcome.REFUSED, f"{self.gate.refused[-1]} is outside the sites of this task"
        if here.failed and not self.downloads.any:
            return Outcome.NOT_LOADED, f"the page could not be loaded: {here.failed}"
        return (Outcome.DONE, "") if quiet else (Outcome.BUSY, "the page is still busy")

    async def _after(self, tab: Tab) -> bool:
        """Wait for quiet in the active tab, in those that it opened, and for what is downloaded."""
        quiet = await tab.settle()
        if self._preparing:
            await asyncio.gather(*self._preparing.values())
            self._all_prepared()
            for target in list(self._preparing):
                del self._preparing[target]
                for popup in [one for one in self.tabs if one.target == target and one is not tab]:
                    quiet = await self._popup_settled(popup) and quiet
        for popup in [one for one in self.tabs if one is not tab and one.dead.done()]:
            self._forget(popup)
        await self.downloads.finish(self.spec.limits.settle_s)
        return quiet

    async def _popup_settled(self, tab: Tab) -> bool:
        try:
            return await tab.settle()
        except (Hung, Crashed):
            self._forget(tab)
            tab.kill()
            tab.close()
            return False

    async def _do(self, tab: Tab, action: PageAction) -> None:
        match action:
            case Goto(url):
                await self._goto(tab, url)
            case Back() | Forward():
                await self._history(tab, -1 if isinstance(action, Back) else 1)
            case NewTab(url):
                await self._new_tab(url)
            case SwitchTab(number):
                await self._show(self._numbered(number))
            case CloseTab(number):
                await self._close_tab(self._now() if number is None else self._numbered(number))
            case Wait(seconds):
                if seconds > 0:
                    await tab.run(f"new Promise(done => setTimeout(done, {min(seconds, 5.0) * 1000}))")
            case _:
                await perform(tab, action, self._clipboard)

    async def _new_tab(self, url: str) -> None:
        self._allowed(url)
        if len(self.tabs) >= self.spec.limits.tabs:
            raise Missed(Outcome.INVALID, f"there are {len(self.tabs)} tabs, and no more are allowed")
        await self._show(await self._open())
        if url:
            await self._goto(self._now(), url)

    async def _close_tab(self, closing: Tab) -> None:
        if len(self.tabs) == 1:
            raise Missed(Outcome.INVALID, "the last tab stays open")
        at = self.tabs.index(closing)
        self._forget(closing)
        closing.close()
        if closing is self._active:
            await self._show(self.tabs[max(at - 1, 0)])

    def _allowed(self, url: str) -> None:
        if url not in ("", "about:blank") and origin_of(url) not in self.spec.sites:
            raise Missed(
                Outcome.REFUSED, f"{url[:200]} is outside the sites of this task: {', '.join(self.spec.sites)}"
            )

    async def _goto(self, tab: Tab, url: str) -> None:
        self._allowed(url)
        said = await tab.call("Page.navigate", url=url)
        if error := said.get("errorText"):
            if said.get("isDownload") or error == "net::ERR_ABORTED":
                return
            raise Missed(Outcome.NOT_LOADED, f"{url[:200]} could not be loaded: {error}")

    async def _history(self, tab: Tab, way: int) -> None:
        said = await tab.call("Page.getNavigationHistory")
        at = said["currentIndex"] + way
        if not 0 <= at < len(said["entries"]):
            raise Missed(Outcome.INVALID, f"there is no page {'before' if way < 0 else 'after'} this one")
        await tab.call("Page.navigateToHistoryEntry", entryId=said["entries"][at]["id"])

    async def view(self, wanted: Wanted = Wanted()) -> PageView:  # noqa: B008  # frozen
        """What there is to see now."""
        async with self._lock:
            self._living()
            tab, value = self._now(), None
            try:
                facts = await tab.facts()
                value = tab.asked(wanted.value) if wanted.value else None
                seen = await look(tab, wanted, facts)
            except (Hung, Crashed, Refused, EnvironmentFailure) as error:
                _, message = await self._replaced(tab, error)
                seen, value = PageView(self._now().url, "", error=message), None
            if value is not None:
                seen = replace(seen, value=await self._asked(lambda tab: tab.valued(value)))
            here = self._now()
            others = [one for one in self.tabs if one is not here]
            told = await asyncio.gather(*(_title(one) for one in others))
            titles = {here: seen.title, **dict(zip(others, told, strict=True))}
            return replace(seen, tabs=tuple(SeenTab(one.url, titles[one], one is here) for one in self.tabs))

    async def run(self, expression: str) -> JsonValue:
        """The value of an expression."""
        async with self._lock:
            value: JsonValue = await self._asked(lambda tab: tab.run(expression))
            self._now().ran = True
            return value

    def forget(self) -> None:
        """Refs are given anew, and the clipboard is empty."""
        self._clipboard.clear()
        for tab in self.tabs:
            tab.forget_refs()

    async def storage(self) -> Storage:
        """Cookies, and the local storage of the sites that are open."""
        async with self._lock:
            return await self._asked(lambda _: read_storage(self))

    async def digest(self) -> str:
        """A digest of what is there."""
        async with self._lock:
            return await self._asked(lambda _: self._digest())

    async def _digest(self) -> str:
        seen = await everywhere(self.tabs)  # first: what a script wrote into cookies is there once one reads them
        said = await self.wire.call("Storage.getCookies", browserContextId=self.name)
        cookies = sorted([str(one[of]) for of in ("domain", "path", "name", "value")] for one in said["cookies"])
        there = json.dumps((cookies, seen)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(there, digest_size=16).hexdigest()

    async def _asked(self, work: Callable[[Tab], Awaitable[T]]) -> T:
        self._living()
        tab = self._now()
        try:
            return await work(tab)
        except (Hung, Crashed, Refused) as error:
            _, message = await self._replaced(tab, error)
            raise EnvironmentFailure(f"the page gave no answer: {message}") from error

    async def close(self) -> None:
        """End the context."""
        if self._closed:
            return
        self._closed = True
        self.on_close()
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        for tab in self.tabs:
            if tab.busy:  # disposing waits for a page that answers nothing
                tab.kill()
            self.wire.handle(tab.session, None)
        if not self.wire.gone:
            with contextlib.suppress(SandboxDied):
                await self.downloads.clear()
            await asyncio.wait(
                (self.wire.call("Target.disposeBrowserContext", browserContextId=self.name),), timeout=5
            )
        await self.gate.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    # tabs

    def _living(self) -> None:
        if self._closed:
            raise RuntimeError("this page is closed; ask the browser for another one")
        if self.wire.gone:
            raise SandboxDied(self.wire.gone)

    def _now(self) -> Tab:
        assert self._active is not None, "a page has a tab from its begin on"
        return self._active

    def _numbered(self, number: int) -> Tab:
        if not 0 <= number < len(self.tabs):
            raise Missed(Outcome.INVALID, f"there is no tab {number}; they are 0 to {len(self.tabs) - 1}")
        return self.tabs[number]

    def _forget(self, tab: Tab) -> None:
        if tab in self.tabs:
            self.tabs.remove(tab)

    async def _open(self) -> Tab:
        """A new empty tab."""
        self._creating += 1
        made = await self.wire.call("Target.createTarget", url="about:blank", browserContextId=self.name)
        target = made["targetId"]
        if (task := self._preparing.pop(target, None)) is not None:
            await task
        self._all_prepared()
        tab = next((one for one in self.tabs if one.target == target), None)
        if tab is None or tab.dead.done():
            raise SandboxDied("Chromium gave no tab" + (f": {self.wire.gone}" if self.wire.gone else ""))
        return tab

    def _all_prepared(self) -> None:
        why, self._unprepared = self._unprepared, ""
        if why:
            raise EnvironmentFailure(f"a tab could not be prepared, and was closed: {why}")

    async def _show(self, tab: Tab) -> None:
        self._active = tab
        self.wire.tell("Page.bringToFront", tab.session)

    async def _replaced(self, tab: Tab, error: Exception) -> tuple[Outcome, str]:
        """End a tab that hangs or crashed, and go on in an empty one in its place."""
        if self.wire.gone:
            raise SandboxDied(self.wire.gone) from error
        crashed, stormed = isinstance(error, Crashed), tab.stormed
        if not crashed:
            tab.kill()
        at = self.tabs.index(tab) if tab in self.tabs else 0
        self._forget(tab)
        tab.close()
        fresh = await self._open()
        self.tabs.remove(fresh)
        self.tabs.insert(at, fresh)
        fresh.dialogs[:] = tab.dialogs
        await self._show(fresh)
        if stormed:
            return Outcome.HUNG, "the page asks dialogs without end; the tab was ended and is empty now"
        if crashed:
            return Outcome.CRASHED, "the page crashed; the tab is empty now"
        return Outcome.HUNG, f"{error}; the tab was ended and is empty now"


async def _title(tab: Tab) -> str:
    """The title of a tab behind; one that does not say has none."""
    try:
        return str(await tab.run("document.title", seconds=1.0))[:500]
    except (Hung, Crashed, Refused, EnvironmentFailure):
        return ""
