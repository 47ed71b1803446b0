"""One Chromium for an event loop, shared by whoever opens it: contexts in, contexts out, one end for all.

`Share` is what `envgym.open_browser` gives. The first page starts the browser; a browser that died is started again
for the next page, and its own pages raise SandboxDied. When the last share is closed it ends.
"""

import asyncio
import os
import weakref
from types import TracebackType
from typing import Any, Self

from envgym.backend_report import BackendReport
from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.page import PageSpec
from envgym_sandboxes.browser.context import Context
from envgym_sandboxes.browser.gate import Gate, origin_of
from envgym_sandboxes.browser.process import DOWNLOADS, Process, chromium_report, start_chromium
from envgym_sandboxes.browser.wire import Refused, Wire

__all__ = ["Engine", "Share", "open_chromium"]


class Engine:
    """A started Chromium. Raises what `start_chromium` raises; SandboxDied by all calls once it is gone."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wire = Wire(process.commands, process.answers, self._gone)
        self.wire.handle("", self._event)
        self._contexts: dict[str, Context] = {}

    async def start(self) -> None:
        """Wait until it answers, and hear of every page from now on, before its own scripts run."""
        try:
            async with asyncio.timeout(60):
                await self.wire.call("Target.setDiscoverTargets", discover=True)
                await self.wire.call(
                    "Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True
                )
        except (SandboxDied, TimeoutError) as error:
            words = self.process.last_words()
            self.end()
            raise SandboxDied(f"Chromium did not start: {words or error}") from error

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self.wire.gone

    async def context(self, spec: PageSpec) -> Context:
        """A new context behind a proxy of its own, with one tab."""
        listener, port = self.process.listen()
        gate = Gate(listener, spec.sites)
        context = None
        try:
            made = await self.wire.call(
                "Target.createBrowserContext",
                disposeOnDetach=True,
                proxyServer=f"http://127.0.0.1:{port}",
                proxyBypassList="<-loopback>",
            )
            name = made["browserContextId"]
            context = Context(spec, name, self.wire, gate, self.process)
            self._contexts[name] = context
            context.on_close = lambda: self._contexts.pop(name, None)
            self.wire.tell(
                "Browser.setDownloadBehavior",
                behavior="allowAndName",
                browserContextId=name,
                downloadPath=DOWNLOADS,
                eventsEnabled=True,
            )
            await context.begin()
        except BaseException:
            await (gate.close() if context is None else context.close())
            raise
        return context

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            info = params["targetInfo"]
            context = self._contexts.get(info.get("browserContextId", ""))
            if context is not None and info["type"] == "page":
                context.attached(info, params["sessionId"])
            else:  # a page of the browser's own, or a worker that no page may have
                self.wire.tell("Runtime.runIfWaitingForDebugger", params["sessionId"])
                self.wire.tell("Target.detachFromTarget", sessionId=params["sessionId"])
        elif method in ("Target.targetDestroyed", "Target.targetCrashed"):
            for context in list(self._contexts.values()):
                context.target_event(method, params)
        elif method == "Browser.downloadProgress":
            for context in self._contexts.values():
                context.downloads.progress(params)

    def _gone(self) -> None:
        for context in list(self._contexts.values()):
            context.lost()
        self.process.end()

    def end(self) -> None:
        """End it and all its processes; idempotent."""
        self.wire.close("the browser was closed")
        self.process.end()


class _Shared:
    """What the shares of one loop have in common.

    A new page is a new renderer, which takes a core: as many as there are cores open at a time. With more, all of
    them would be late together.
    """

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.starting = asyncio.Lock()
        self.opening = asyncio.Semaphore(max(2, len(os.sched_getaffinity(0))))
        self.holders = 0

    async def started(self, program: str) -> Engine:
        async with self.starting:
            if self.engine is None or not self.engine.alive:
                process = start_chromium(program)  # its end is that of this thread: see `process`
                engine = Engine(process)
                await engine.start()
                self.engine = engine
            return self.engine

    def let_go(self) -> None:
        self.holders -= 1
        if self.holders == 0 and self.engine is not None:
            self.engine.end()
            self.engine = None


_shared: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]]" = weakref.WeakKeyDictionary()


class Share:
    """See `envgym.page.Browser`. program: Chromium's path or name; "" finds one."""

    name = "chromium"
    draws = True

    def __init__(self, program: str = "") -> None:
        self._program = program
        self._held: _Shared | None = None
        self._pages: set[Context] = set()
        self._closed = False

    def report(self) -> BackendReport:
        """Whether it works here."""
        return chromium_report(self._program)

    async def page(self, spec: PageSpec) -> Context:
        """A new context with one tab, at `PageSpec.start`."""
        _check(spec)
        if self._closed:
            raise ValueError("this share of the browser is closed; open another one")
        if self._held is None:
            here = _shared.setdefault(asyncio.get_running_loop(), {})
            self._held = here.setdefault(self._program, _Shared())
            self._held.holders += 1
        engine = await self._held.started(self._program)
        try:
            async with self._held.opening:
                page = await engine.context(spec)
        except Refused as error:
            raise EnvironmentFailure(f"Chromium made no page: {error}") from error
        self._pages.add(page)
        return page

    async def close(self) -> None:
        """Close its pages; the last share ends the browser."""
        self._closed = True
        pages, self._pages = self._pages, set()
        for page in pages:
            await page.close()
        held, self._held = self._held, None
        if held is not None:
            held.let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()


def _check(spec: PageSpec) -> None:
    for origin in spec.sites:
        if origin_of(origin) != origin:
            raise ValueError(
                f"PageSpec.sites has {origin!r}; an origin is http://host, or http://host:port where that is not 80"
            )
    if spec.start and origin_of(spec.start) not in spec.sites:
        raise ValueError(f"PageSpec.start is {spec.start!r}; it must be an address of one of {list(spec.sites)}")
    if not all(isinstance(side, int) and 16 <= side <= 8192 for side in spec.size):
        raise ValueError(f"PageSpec.size is {spec.size}; both sides must be 16 to 8192 pixels")


def open_chromium(program: str = "") -> Share:
    """A share of this event loop's Chromium. program: its path or name; "" finds one."""
    return Share(program)
