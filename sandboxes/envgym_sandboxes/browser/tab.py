"""One tab: what happens in it, heard as events; whether it is quiet; and its end where it hangs or crashes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from envgym.errors import EnvironmentFailure
from envgym.page import Dialog, PageSpec
from envgym_sandboxes.browser.gate import origin_of
from envgym_sandboxes.browser.wire import Refused, Wire

__all__ = ["MOST_TEXT", "Crashed", "Facts", "Hung", "Tab", "size_of"]

T = TypeVar("T")

QUIET = Path(__file__).with_name("scripts").joinpath("quiet.js").read_text()
MOST_TEXT = 5_000_000
"""Characters of a page and all that is in its frames that are looked at."""
_SIZE = Path(__file__).with_name("scripts").joinpath("size.js").read_text()
_FACTS = """(() => { try { return [String(document.title).slice(0, 500), ...(%s),
    window.__quiet ? __quiet.frameCount() : 0]; } catch { return true; } })()"""
_LATELY_S = 0.05


def size_of(spec: PageSpec) -> str:
    """An expression: the elements and characters of the document that it is asked of, counted up to the bounds."""
    return f"({_SIZE})({spec.limits.tree_nodes * 10}, {MOST_TEXT})"


class Hung(Exception):
    """The page did not answer in time."""


class Crashed(Exception):
    """The page's process is gone."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What says whether a document can be looked at: title, elements, characters, frames; and when it was so."""

    title: str
    elements: int
    letters: int
    frames: int
    at: float


class Tab:
    """A tab that Chromium told of. heard: what its context wants to know of dialogs."""

    def __init__(self, target: str, session: str, wire: Wire, spec: PageSpec) -> None:
        self.target, self.session, self.wire, self.spec = target, session, wire, spec
        self.url = "about:blank"
        self.visited: set[str] = set()
        self.frame = ""
        self.document = ""  # Chromium's name of the document that is shown
        self.crashed = False
        self.dead = asyncio.get_running_loop().create_future()
        self.dialogs: list[Dialog] = []
        self.stormed = False
        self.refs: dict[int, str] = {}
        self.nodes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._requests: set[str] = set()
        self._loading: set[str] = set()
        self.failed = ""
        self.dragged: dict[str, Any] | None = None
        self.busy = False
        self.ran = False  # an environment's expression, which may have asked for something
        # what was done may scroll, which the document knows with its next frame; of a wheel, where all was before
        self.scrolls: bool | str = False
        self.mouse: tuple[float, float] | None = None
        self._facts: Facts | None = None
        self.on_download: Callable[[dict[str, Any]], None] = lambda _: None
        wire.handle(session, self._event)

    @property
    def loads(self) -> bool:
        """Whether something is on its way to it."""
        return bool(self._loading or self._requests)

    # what is asked of it

    def call(self, method: str, **params: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a command to this tab."""
        self._facts = None
        return self.wire.call(method, self.session, **params)

    async def prepare(self) -> None:
        """Let it hear and say what is needed, before its own scripts run; then let it run.

        Raises Refused where any of that is not so; Hung, Crashed.
        """
        wide, high = self.spec.size
        calls = [
            self.call("Page.enable"),
            self.call("Network.enable", maxPostDataSize=0),
            self.call("Network.setBypassServiceWorker", bypass=True),
            self.call("Inspector.enable"),
        ]
        for script in (QUIET, *self.spec.scripts):
            calls.append(self.call("Page.addScriptToEvaluateOnNewDocument", source=script, runImmediately=True))
        calls += [
            self.call(
                "Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False
            ),
            self.call("Emulation.setFocusEmulationEnabled", enabled=True),
            self.call("Runtime.runIfWaitingForDebugger"),
        ]
        frames = self.call("Page.getFrameTree")
        await self.within(asyncio.gather(*calls), self.spec.limits.act_s)
        tree = (await self.within(frames, self.spec.limits.act_s))["frameTree"]
        self.frame = tree["frame"]["id"]
        self.url = tree["frame"]["url"] or self.url

    async def within(self, work: Awaitable[T], seconds: float) -> T:
        """What work gives. Raises Hung when it takes longer, Crashed when the page's process ends meanwhile."""
        task = asyncio.ensure_future(work)
        self.busy = True
        try:
            await asyncio.wait((task, self.dead), timeout=max(seconds, 0.0), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            self.busy = False
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self.dead.done():
            raise Crashed("the page's process ended")
        raise Hung(f"the page gave no answer within {seconds:g} s")

    async def run(self, expression: str, *, seconds: float | None = None) -> Any:
        """The value of an expression. Raises EnvironmentFailure where it throws, Hung, Crashed, Refused."""
        return await self.valued(self.asked(expression), seconds=seconds)

    def asked(self, expression: str) -> "asyncio.Future[dict[str, Any]]":
        """Ask for the value of an expression, which `valued` waits for: others may be asked for meanwhile."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)

    async def valued(self, asked: "asyncio.Future[dict[str, Any]]", *, seconds: float | None = None) -> Any:
        """The value that was asked for. Raises as `run`."""
        said = await self.within(asked, self.spec.limits.act_s if seconds is None else seconds)
        if "exceptionDetails" in said:
            thrown = said["exceptionDetails"].get("exception", {})
            why = thrown.get("description") or thrown.get("value") or said["exceptionDetails"].get("text", "")
            raise EnvironmentFailure(f"JavaScript threw: {str(why)[:500]}")
        return said["result"].get("value")

    # what says whether it can be looked at

    async def facts(self) -> Facts:
        """What there is: as quiet found it, where nothing was asked nor heard and no time passed since.

        So a view after an action need not ask again. Raises as `run`.
        """
        lately, now = self._facts, asyncio.get_running_loop().time()
        if lately is not None and now - lately.at < _LATELY_S:
            return lately
        found = self._read(await self.run(_FACTS % size_of(self.spec)))
        if found is None:
            raise EnvironmentFailure("the page does not let itself be read")
        return found

    def _read(self, found: Any) -> Facts | None:
        if not isinstance(found, list):
            return None
        title, elements, letters, frames = found
        now = asyncio.get_running_loop().time()
        return Facts(str(title), int(elements), int(letters), int(frames), now)

    # quiet

    def begin(self) -> None:
        """An action begins: what was under way before it is not waited for, unless an environment has begun it."""
        if not self.ran:
            self._requests.clear()
        self.ran = False
        self.dialogs.clear()
        self.failed = ""
        self.scrolls = False

    async def settle(self) -> bool:
        """Wait for quiet; False where the time was up first. Raises Hung, Crashed."""
        loop, limits = asyncio.get_running_loop(), self.spec.limits
        end = loop.time() + limits.settle_s
        while (left := end - loop.time()) > 0:
            if self.loads:
                self._changed.clear()
                if not await self._event_within(left):
                    break
                continue
            if await self._document_quiet(left) and not self.loads:
                return True
        # busy, or hung: the difference is whether it can still answer at all
        await self._answers(max(limits.act_s - limits.settle_s, 0.5))
        return False

    async def event(self) -> None:
        """Wait for the next thing that happens in it. Raises Hung, Crashed."""
        self._changed.clear()
        if not await self._event_within(self.spec.limits.act_s):
            raise Hung("nothing happens in the page")

    async def _answers(self, seconds: float) -> None:
        try:
            await self.within(self.call("Runtime.evaluate", expression="1"), seconds)
        except Refused:
            return

    async def _event_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                waiting = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait((waiting, self.dead), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
        except TimeoutError:
            return False
        if self.dead.done():
            raise Crashed("the page's process ended")
        return True

    async def _document_quiet(self, seconds: float) -> bool:
        quiet_ms, most_ms = self.spec.limits.quiet_s * 1000, seconds * 1000
        waited = f"await __quiet.wait({quiet_ms}, {most_ms}, {json.dumps(self.mouse)}, {json.dumps(self.scrolls)})"
        quiet = f"(window.__quiet ? {waited} : document.readyState === 'complete')"
        told = _FACTS % size_of(self.spec)
        try:
            found = await self.run(f"(async () => {quiet} && {told})()", seconds=seconds + 0.2)
            self._facts = self._read(found)
            return bool(found)
        except (Refused, EnvironmentFailure):  # it went to another document meanwhile
            await asyncio.sleep(0)
            return False
        except Hung:
            return False

    # what happens in it

    def _event(self, method: str, params: dict[str, Any]) -> None:
        handler = _EVENTS.get(method)
        if handler is not None:
            self._facts = None
            handler(self, params)
            self._changed.set()

    def _request(self, params: dict[str, Any]) -> None:
        if params.get("type") not in ("EventSource", "WebSocket", "Ping"):
            self._requests.add(params["requestId"])

    def _request_over(self, params: dict[str, Any]) -> None:
        self._requests.discard(params["requestId"])
        if params.get("type") == "Document" and params.get("errorText"):
            self.failed = params["errorText"]

    def _frame_loading(self, params: dict[str, Any]) -> None:
        self._loading.add(params["frameId"])

    def _frame_loaded(self, params: dict[str, Any]) -> None:
        self._loading.discard(params["frameId"])

    def _navigated(self, params: dict[str, Any]) -> None:
        frame = params["frame"]
        if "parentId" not in frame:
            self.frame, self.url = (
                frame["id"],
                frame.get("unreachableUrl") or frame["url"] + frame.get("urlFragment", ""),
            )
            self.document = frame["loaderId"]
            self.forget_refs()
            if (origin := origin_of(self.url)) is not None:
                self.visited.add(origin)
        elif (origin := origin_of(frame["url"])) is not None:
            self.visited.add(origin)

    def _moved(self, params: dict[str, Any]) -> None:
        if params["frameId"] == self.frame:
            self.url = params["url"]

    def _drag(self, params: dict[str, Any]) -> None:
        self.dragged = params["data"]

    def _download(self, params: dict[str, Any]) -> None:
        self.on_download(params)

    def _dialog(self, params: dict[str, Any]) -> None:
        kind = params["type"]
        if len(self.dialogs) >= self.spec.limits.dialogs:
            self.stormed = True
            self.kill()
            return
        accepted = kind in ("alert", "beforeunload") or self.spec.accept_dialogs
        self.dialogs.append(Dialog(kind, params["message"][:2_000], accepted))
        answer = {"promptText": params.get("defaultPrompt", "")} if kind == "prompt" else {}
        self.wire.tell("Page.handleJavaScriptDialog", self.session, accept=accepted, **answer)

    def died(self, _params: dict[str, Any] | None = None) -> None:
        """Its process is gone."""
        self.crashed = True
        if not self.dead.done():
            self.dead.set_result(None)

    def forget_refs(self) -> None:
        """What is seen next is e1."""
        self.refs.clear()
        self.nodes.clear()

    # its end

    def forget_history(self) -> None:
        """There is no way back from here."""
        self.wire.tell("Page.resetNavigationHistory", self.session)

    def kill(self) -> None:
        """End the page's process, also one that answers nothing any more."""
        self.wire.tell("Page.crash", self.session)

    def close(self) -> None:
        """Close the tab."""
        self.died()
        self.wire.handle(self.session, None)
        self.wire.tell("Target.closeTarget", targetId=self.target)


_EVENTS: dict[str, Callable[[Tab, dict[str, Any]], None]] = {
    "Network.requestWillBeSent": Tab._request,
    "Network.loadingFinished": Tab._request_over,
    "Network.loadingFailed": Tab._request_over,
    "Page.frameStartedLoading": Tab._frame_loading,
    "Page.frameStoppedLoading": Tab._frame_loaded,
    "Page.frameDetached": Tab._frame_loaded,
    "Page.frameNavigated": Tab._navigated,
    "Page.navigatedWithinDocument": Tab._moved,
    "Page.javascriptDialogOpening": Tab._dialog,
    "Page.downloadWillBegin": Tab._download,
    "Input.dragIntercepted": Tab._drag,
    "Inspector.targetCrashed": Tab.died,
}
