"""`web-sites`: a small web application, a page of a browser on it, and something to do or to find out there.

The agent uses the page by typed tools and ends with `done`, or with an answer. A snapshot is the database's changed
pages, the last document's anchor and the calls since; it is restored by loading that document again, playing the
calls, and comparing what is then seen with what was seen. Nothing is drawn from an episode's seed.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, get_args

from envgym.browsing import open_browser
from envgym.env import Snapshot, Step, StopReason
from envgym.errors import EnvironmentFailure, ReplayDiverged
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.page import Browser, Page, PageSpec, PageView, Storage, UnixSocket, Wanted
from envgym.page_actions import Goto
from envgym.page_text import acted_text, view_diff, view_text
from envgym.page_tools import page_tools, read_page_action
from envgym.replay import forked
from envgym.task import Task
from envgym.tools import check_call, parse_call, tool_spec
from envgym.wire import step_from_json, step_to_json
from envgym_environments.gui.unified import page_calls
from envgym_environments.pictures import pictured
from envgym_environments.played import bounded
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.episode import Anchor, Served
from envgym_environments.web.sites.goals import build, drawn, grade, task_key
from envgym_environments.web.still import STILL

__all__ = ["See", "WebSites"]

See = Literal["tree", "image", "both"]


def back() -> None:
    """Go back to the page before."""


def done() -> None:
    """Say that all is done. This ends the episode."""


def answer_number(number: float) -> None:
    """Answer the question with a number; an amount of money in euros. This ends the episode."""


def answer_text(text: str) -> None:
    """Answer the question with a text. This ends the episode."""


_PAGE = page_tools("click", "click_named", "click_at", "fill", "select", "press", "type_text", "scroll", "goto")
_OURS = (tool_spec(back), tool_spec(answer_number), tool_spec(answer_text), tool_spec(done))


@dataclass(slots=True)
class _Browsing:
    """What the page's state is made of. calls: since the anchor. history: documents that were left, the last one last."""

    anchor: Anchor
    calls: list[ToolCall] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    tabs: bool = False


class WebSites:
    """An `Env`.

    see: what an observation shows of the page: its tree as text, a picture (an `ImagePart` in the last message, whose
    PNG is in `Step.images`), or both. marks: whether the refs of what can be acted on are drawn into the picture.
    browser: which registered kind shows the page. diffs: whether of the tree only what changed is shown.
    """

    tools: tuple[ToolSpec, ...] = (*_PAGE, *_OURS)
    uses_seed = False

    def __init__(
        self, task: Task, *, browser: str = "chromium", diffs: bool = False, see: See = "tree", marks: bool = False
    ) -> None:
        if see not in get_args(See):
            raise ValueError(f"see is {see!r}; it must be one of {', '.join(get_args(See))}")
        if marks and see == "tree":
            raise ValueError("marks are drawn into pictures, and see is 'tree': give see='image' or 'both'")
        drawing = open_browser(browser)  # an unknown one is refused before anything is played
        if see != "tree" and not drawing.draws:
            raise ValueError(f"browser {browser!r} draws no pages: see is {see!r}, it must be 'tree' there")
        self.task, self._kind, self._diffs, self._see, self._marks = task, browser, diffs, see, marks
        self._wanted = Wanted(screenshot=see != "tree", marks=marks)
        key = task_key(task, SITES)
        self._goal = drawn(key, str(task.metadata["kind"]), task.seed)
        self.served = Served(key.site, build(key))
        self._browser: Browser | None = None
        self._page: Page | None = None
        self._view: PageView | None = None
        self._browsing: _Browsing | None = None
        self._seed = 0
        self._last: Step | None = None

    # its life

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The site as it was made, at its start page; or the state of `start`. Raises ReplayDiverged."""
        if start is not None:
            return await self._restore(start)
        self.served.reset()
        origin = self.served.site.origin
        await self._open("/", None)
        self._seed = seed
        text = (
            f"{self._goal.prompt}\n\nThe site is {origin}; nothing else can be reached. Today is as it says. "
            f"{'Answer with answer_number or answer_text.' if self._goal.answer is not None else 'Call done at the end.'}"
        )
        said = (Message(role="user", content=f"{text}\n\n{self._seen(None)}"),)
        return self._answered(said)

    async def _open(self, path: str, storage: Storage | None) -> None:
        """A page without a past on a path, which becomes the anchor; the one that is there is used again."""
        await self.served.server.open()
        start = f"{self.served.site.origin}{path}"
        page = self._page
        if page is not None and page.spec.start == start and page.spec.storage is None:
            await page.restart(storage)
        else:
            await self._leave()
            if self._browser is None:
                self._browser = open_browser(self._kind)
            sites = {self.served.site.origin: UnixSocket(self.served.server.path)}
            scripts = () if self._see == "tree" else (STILL,)
            spec = PageSpec(sites, start=start, storage=storage, scripts=scripts)
            page = self._page = await self._browser.page(spec)
        self._sound()
        if self.served.asked is None:
            raise EnvironmentFailure(f"{start} was not asked for as a document by the browser {self._kind!r}")
        self._browsing = _Browsing(self.served.asked)
        await self._look(page, pictures=True)

    async def _look(self, page: Page, *, pictures: bool) -> None:
        """See the page as it is now; pictures: with the one that is shown, where any are."""
        view = await page.view(self._wanted if pictures else Wanted())
        self._view = replace(view, marks=None)  # the picture has them, and the tree has their refs

    async def _leave(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    async def close(self) -> None:
        """Close page, server and browser. Idempotent."""
        self._last = self._browsing = None
        await self._leave()
        await self.served.close()
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.close()

    # a step

    async def step(self, action: Action) -> Step:
        """Do what was said, call by call; a mistake is answered and changes nothing."""
        self._going("step")
        if action.error is not None:
            return self._answered((Message(role="user", content=f"error: {action.error.message[:500]}"),))
        calls = action.calls
        if not calls:
            read = (page_calls(action.text) or [parse_call(action.text, self.tools)])[0]
            if isinstance(read, ParseError):
                return self._answered((Message(role="user", content=f"error: {read.message[:500]}"),))
            calls = (read,)
        messages: list[Message] = []
        calls = calls[:16]
        for number, call in enumerate(calls, start=1):
            checked = check_call(call, self.tools)
            if isinstance(checked, ParseError):
                text = f"error: {checked.message[:500]}"
            elif checked.name in ("done", "answer_number", "answer_text"):
                return self._graded(checked, messages)
            else:
                text = await self._do(checked, pictures=number == len(calls))
            messages.append(Message(role="tool", content=text, tool_call_id=call.id))
        assert self._view is not None
        assert self._page is not None
        if self._wanted.screenshot and self._view.screenshot is None:  # the last call was a mistake
            await self._look(self._page, pictures=True)
        return self._answered(tuple(messages))

    def _answered(self, messages: tuple[Message, ...]) -> Step:
        """The step of some messages, the last of which shows the picture, where there is one."""
        assert self._view is not None
        if self._view.screenshot is None:
            self._last = Step(messages, state_key=self._key())
        else:
            shown, images = pictured(messages[-1], self._view.screenshot)
            self._last = Step((*messages[:-1], shown), state_key=self._key(), images=images)
        return self._last

    def _graded(self, call: ToolCall, before: list[Message]) -> Step:
        value = next(iter(call.arguments.values()), None)
        answer = value if isinstance(value, (str, int, float)) else None
        assert self._view is not None
        channels = grade(self.served.site, self._goal, self.served.database, url=self._view.url, answer=answer)
        stop = StopReason.GOAL if channels["reward"] else StopReason.SUBMITTED
        said = Message(role="tool", content="The end.", tool_call_id=call.id)
        submission = None if answer is None else str(answer)
        key = self._key()
        self._last = Step((*before, said), channels["reward"], channels, stop, key, submission=submission)
        return self._last

    async def _do(self, call: ToolCall, *, pictures: bool = False) -> str:
        """Carry out a call on the page, and tell what is then seen. pictures: see `_look`."""
        assert self._page is not None
        assert self._browsing is not None
        action = read_page_action(call, _PAGE) if call.name != "back" else self._before()
        if isinstance(action, ParseError):
            return f"error: {action.message[:500]}"
        self.served.asked = None
        old = self._view
        acted = await self._page.act(action)
        await self._look(self._page, pictures=pictures)
        self._sound()
        self._note(call, old)
        told = acted_text(acted)
        return f"{told}\n{self._seen(old)}" if told else self._seen(old)

    def _before(self) -> Goto | ParseError:
        """Back is the address before, loaded again: a browser's own history could not be restored."""
        assert self._browsing is not None
        if not self._browsing.history:
            return ParseError(message="there is no page before this one")
        return Goto(f"{self.served.site.origin}{self._browsing.history[-1]}")

    def _note(self, call: ToolCall, old: PageView | None) -> None:
        """Whether a new document is here, from which on alone calls need to be played again."""
        assert self._browsing is not None
        assert self._view is not None
        browsing, asked = self._browsing, self.served.asked
        browsing.tabs = browsing.tabs or len(self._view.tabs) > 1
        browsing.calls.append(call)
        if asked is None:
            return
        left = browsing.anchor.path
        history = browsing.history[:-1] if call.name == "back" else [*browsing.history, left]
        browsing.history = history[-50:]
        if not browsing.tabs and not self._view.error:
            self._browsing = _Browsing(asked, history=browsing.history)

    def _seen(self, old: PageView | None) -> str:
        """The page as text; beside a picture alone, only where one is."""
        assert self._view is not None
        view = replace(self._view, tree=None) if self._see == "image" else self._view
        return bounded(view_diff(old, view) if self._diffs else view_text(view))

    def _sound(self) -> None:
        """Raise EnvironmentFailure where the application itself failed."""
        crashed, self.served.server.crashed = self.served.server.crashed, None
        if crashed is not None:
            site = self.served.site.name
            raise EnvironmentFailure(f"the site {site!r} failed: {type(crashed).__name__}: {crashed}") from crashed

    def _key(self) -> str:
        """The normalised tree (no refs) and the rows that count."""
        assert self._view is not None
        nodes = [(node.depth, node.role, node.name, node.value, node.states) for node in self._view.tree or ()]
        seen = repr((self._view.url, nodes, self._view.error)).encode("utf-8", "surrogatepass")
        return f"{hashlib.blake2b(seen, digest_size=12).hexdigest()}/{self.served.database.digest()}"

    def _going(self, what: str) -> Step:
        if self._last is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if what == "step" and self._last.stop is not None:
            raise RuntimeError(f"step after the end ({self._last.stop}) in task {self.task.id!r}: call reset first")
        return self._last

    # snapshots

    async def snapshot(self) -> Snapshot:
        """Database, anchor, calls since, and what is seen."""
        last, browsing = self._going("snapshot"), self._browsing
        assert browsing is not None
        assert self._view is not None
        state = {
            "database": self.served.database.snapshot(),
            "anchor": asdict(browsing.anchor),
            "calls": [call.model_dump() for call in browsing.calls],
            "history": browsing.history,
            "tabs": browsing.tabs,
            "seen": view_text(self._view),
            "last": step_to_json(last),
        }
        if self._view.screenshot is not None:
            state["picture"] = b64encode(self._view.screenshot).decode()
        return Snapshot(restore="exact", task_id=self.task.id, seed=self._seed, state=json.dumps(state))

    async def _restore(self, start: Snapshot) -> Step:
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "it needs an exact snapshot of the same task"
            )
        state = json.loads(start.state)
        anchor = Anchor(**state["anchor"])
        self.served.reset()
        self.served.database.restore(anchor.database)
        await self._open(anchor.path, _storage(anchor.cookies, f"{self.served.site.name}.test"))
        assert self._browsing is not None
        self._browsing.history, self._browsing.tabs = list(state["history"]), state["tabs"]
        for call in state["calls"]:
            await self._do(ToolCall(**call))
        assert self._view is not None
        if (seen := view_text(self._view)) != state["seen"]:
            raise ReplayDiverged(
                f"the page of task {self.task.id!r} was restored as something else, {len(state['calls'])} calls after "
                f"{anchor.path}: {_difference(state['seen'], seen)}"
            )
        self.served.database.restore(state["database"])
        self._browsing = _Browsing(
            anchor, [ToolCall(**call) for call in state["calls"]], list(state["history"]), state["tabs"]
        )
        self._seed = start.seed
        last = replace(step_from_json(state["last"]), reward=None, channels={})
        if "picture" in state:  # the very bytes that the step shows
            image = b64decode(state["picture"])
            self._view = replace(self._view, screenshot=image)
            last = replace(last, images=pictured(last.observation[-1], image)[1])
        self._last = last
        return last

    async def release(self, snapshot: Snapshot) -> None:
        """A snapshot owns nothing."""

    async def fork(self) -> "WebSites":
        """An independent episode in the same state, with a server and a page of its own."""
        other = WebSites(self.task, browser=self._kind, diffs=self._diffs, see=self._see, marks=self._marks)
        return await forked(self, other)


def _storage(cookies: Mapping[str, str], host: str) -> Storage | None:
    if not cookies:
        return None
    return Storage(
        tuple({"name": name, "value": value, "domain": host, "path": "/"} for name, value in cookies.items())
    )


def _difference(wanted: str, found: str) -> str:
    for one, other in zip(wanted.split("\n"), found.split("\n"), strict=False):
        if one != other:
            return f"{other[:200]!r} instead of {one[:200]!r}"
    return f"{len(found)} characters instead of {len(wanted)}"
