"""What an episode's pages download: kept as data, within a bound, and never left on a disk."""

import asyncio
from typing import Any

from envgym.page import Download
from envgym_sandboxes.browser.process import Process
from envgym_sandboxes.browser.wire import Wire

__all__ = ["Downloads"]

_MOST = 20


class Downloads:
    """Those of one context; of more than 20 at a time only the first are kept."""

    def __init__(self, wire: Wire, context: str, process: Process, most_bytes: int) -> None:
        self._wire, self._context, self._process, self._most = wire, context, process, most_bytes
        self._begun: dict[str, tuple[str, str]] = {}
        self._over: dict[str, bool] = {}
        self._changed = asyncio.Event()
        self._kept: list[Download] = []

    @property
    def any(self) -> bool:
        """Whether something was downloaded."""
        return bool(self._begun or self._kept)

    async def clear(self) -> None:
        """Forget all of it, and leave nothing behind. Raises SandboxDied."""
        await self.finish(0.0)
        self._kept.clear()

    def began(self, params: dict[str, Any]) -> None:
        """A tab of this context downloads something."""
        if len(self._begun) >= _MOST:
            self._cancel(params["guid"])
        else:
            self._begun[params["guid"]] = (params.get("suggestedFilename", ""), params["url"])
        self._changed.set()

    def _cancel(self, guid: str) -> None:
        self._wire.tell("Browser.cancelDownload", guid=guid, browserContextId=self._context)

    def progress(self, params: dict[str, Any]) -> None:
        """How far some download is, perhaps one of these: each began here before Chromium says how far it is."""
        guid = params["guid"]
        if guid not in self._begun:
            return
        if params.get("receivedBytes", 0) > self._most:
            self._cancel(guid)
        if params["state"] != "inProgress":
            self._over[guid] = params["state"] == "completed"
            self._changed.set()

    async def finish(self, seconds: float) -> None:
        """Wait until all are over, and take their content; what does not come in time has none."""
        try:
            async with asyncio.timeout(seconds):
                while not all(guid in self._over for guid in self._begun):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        for guid in tuple(self._begun):  # more may begin while a content comes
            name, url = self._begun.pop(guid)
            whole = self._over.pop(guid, False)
            if not whole:
                self._cancel(guid)
            content = await asyncio.to_thread(self._process.take, guid, self._most) if whole else None
            self._kept.append(Download(name[:255], url[:2_000], content))

    def done(self) -> tuple[Download, ...]:
        """What came since this was last asked: what Chromium tells of late is the next action's."""
        kept = tuple(self._kept)
        self._kept.clear()
        return kept
