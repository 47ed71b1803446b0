"""Playing a web application: a page of a browser on it, and something to do or to find out there.

The agent uses the page by typed tools and ends with `done`, or with an answer. A snapshot is exact of the server as
it was when the last document was asked for, its anchor. The browser's part is that anchor and the calls since: the
document is loaded again, the calls are played, and what is then there must have the digest of what was. Nothing is
drawn from an episode's seed. What serves the application is a `Service`; what is asked, a `Question`.
"""

import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from envgym.browsing import open_browser
from envgym.env import Snapshot, Step, StopReason
from envgym.errors import EnvironmentFailure, ReplayDiverged
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.page import Browser, Page, PageSpec, PageView, Storage, Wanted
from envgym.page_actions import Goto, Hover, PageAction, Target
from envgym.page_text import acted_text, view_diff, view_text
from envgym.page_tools import page_tools, read_page_action
from envgym.replay import forked
from envgym.task import Task
from envgym.tools import check_call, parse_call, tool_spec
from envgym.wire import step_from_json, step_to_json
from envgym_environments.gui.unified import page_calls
from envgym_environments.pictures import pictured
from envgym_environments.played import bounded
from envgym_environments.web.cookies import cookies_then
from envgym_environments.web.database import Database
from envgym_environments.web.leaving import went_away
from envgym_environments.web.looks import Looks
from envgym_environments.web.service import Anchor, Kept, Service
from envgym_environments.web.still import STILL
from envgym_environments.web.trail import Trail

__all__ = ["Question", "WebPlay"]


def back() -> None:
    """Go back to the page before."""


def forward() -> None:
    """Go to the page that was gone back from, where no other way was taken since."""


def done() -> None:
    """Say that all is done. This ends the episode."""


def answer_number(number: float) -> None:
    """Answer the question with a number; an amount of money in euros. This ends the episode."""


def answer_text(text: str) -> None:
    """Answer the question with a text. This ends the episode."""


_PAGE = page_tools(
    "click", "click_named", "click_at", "hover", "fill", "select", "press", "type_text", "scroll", "drag",
    "drag_at", "upload", "wait", "goto", "new_tab", "switch_tab", "close_tab",
)  # fmt: skip
_MOST_CALLS = 16
"""So many are done in one step."""
_OURS = (tool_spec(back), tool_spec(forward), tool_spec(answer_number), tool_spec(answer_text), tool_spec(done))


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of who plays.

    prompt: in words. judge: ``judge(database, url, answer) -> channels`` with the channel "reward" among them, of
    the rows and the page that are there in the end. asks: whether an answer is wanted. files: what may be uploaded.
    note: a sentence that is told of the site. check: raises Misconfigured at the first reset where the rows that
    there are then have no room for what is asked.
    """

    prompt: str
    judge: Callable[[Database, str, str | float | None], dict[str, float]]
    asks: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    note: str = ""
    check: Callable[[Database], object] | None = None


class WebPlay:
    """An `Env`. serve: makes the service of one episode. tools: with `upload` where the question has files."""

    uses_seed = False

    def __init__(self, task: Task, question: Question, serve: Callable[[], Service], looks: Looks) -> None:
        self.task, self._question, self._serve, self._looks = task, question, serve, looks
        self._wanted = Wanted(screenshot=looks.see != "tree", marks=looks.marks)
        self.tools: tuple[ToolSpec, ...] = tuple(
            tool for tool in (*_PAGE, *_OURS) if question.files or tool.name != "upload"
        )
        self.served = serve()
        self._browser: Browser | None = None
        self._page: Page | None = None
        self._view: PageView | None = None
        self._trail: Trail | None = None
        self._seed = 0
        self._last: Step | None = None
        self._checked = question.check is None

    # its life

    async def reset(self, *, seed: int, start: Snapshot | None = None) -> Step:
        """The site as it was made, at its start page; or the state of `start`. Raises ReplayDiverged."""
        if start is not None:
            return await self._restore(start)
        await self._go_away()
        await self.served.reset()
        await self._check()
        origin = self.served.origin
        await self._open("/", None)
        self._seed = seed
        question = self._question
        files = f"Your files are {', '.join(question.files)}. " if question.files else ""
        note = f"{question.note} " if question.note else ""
        ends = "Answer with answer_number or answer_text." if question.asks else "Call done at the end."
        text = f"{question.prompt}\n\nThe site is {origin}; nothing else can be reached. {note}{files}{ends}"
        said = (Message(role="user", content=f"{text}\n\n{self._seen(None)}"),)
        return await self._answered(said)

    async def _check(self) -> None:
        """What is asked can be done of the rows that are there: of a task, and so once. Raises Misconfigured."""
        if not self._checked and self._question.check is not None:
            with closing(await self.served.copied()) as database:
                self._question.check(database)
            self._checked = True

    async def _open(self, path: str, storage: Storage | None) -> None:
        """A page without a past on a path, which becomes the anchor; the one that is there is used again."""
        site = await self.served.open()
        self.served.door.ajar()
        start = f"{self.served.origin}{path}"
        page = self._page
        sites = {self.served.origin: site}
        if page is not None and page.spec.start == start and page.spec.storage is None:
            await page.restart(storage, keeps=not self.served.quiet)
        else:
            await self._leave()
            if self._browser is None:
                self._browser = open_browser(self._looks.browser)
            scripts = () if self._looks.see == "tree" else (STILL,)
            spec = PageSpec(sites, start=start, storage=storage, scripts=scripts)
            page = self._page = await self._browser.page(spec)
        await self._away(page)
        await self.served.sound()
        if self.served.asked is None:
            raise EnvironmentFailure(
                f"{start} was not asked for as a document by the browser {self._looks.browser!r}"
            )
        # a page without a past has the cookies that it was given: the browser need not be asked for them
        anchor = replace(self.served.asked, path=path, cookies=storage.cookies if storage is not None else ())
        self._trail = Trail(self.served.origin, anchor, (path,))
        await self.served.hold(anchor)
        await self._look(page, pictures=True)

    async def _go_away(self) -> None:
        """Nobody is answered until a new document is asked for; what may write of the episode before is gone."""
        self.served.door.shut()
        if self._page is not None and not self.served.quiet and not await went_away(self._page, self.served.door):
            await self._leave()

    async def _follow(self, trail: Trail) -> None:
        """Hold what will be gone back to, first: another document may be asked for at any time."""
        new = self._trail is not trail
        self._trail = trail
        await self.served.hold(trail.anchor)
        if new and self._page is not None:
            asked, host = trail.anchor, f"{self.served.name}.test"
            kept = (await self._page.storage()).cookies
            trail.anchor = replace(asked, cookies=cookies_then(asked.sent, asked.path, kept, host))

    async def _look(self, page: Page, *, pictures: bool) -> None:
        """See the page as it is now; pictures: with the one that is shown, where any are."""
        view = await page.view(self._wanted if pictures else Wanted())
        self._view = replace(view, marks=None)  # the picture has them, and the tree has their refs

    async def _away(self, page: Page) -> None:
        """The mouse goes to a corner: over what it rests in a document that just came is no part of an anchor."""
        wide, high = page.spec.size
        await page.act(Hover(Target(x=wide - 1, y=high - 1)))

    async def _leave(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    async def close(self) -> None:
        """Close page, server and browser. Idempotent."""
        self._last = self._trail = None
        browser, self._browser = self._browser, None
        async with AsyncExitStack() as all_of_it:  # each, whatever another one raises
            if browser is not None:
                all_of_it.push_async_callback(browser.close)
            all_of_it.push_async_callback(self.served.close)
            all_of_it.push_async_callback(self._leave)

    # a step

    async def step(self, action: Action) -> Step:
        """Do what was said, call by call; a mistake is answered and changes nothing."""
        self._going("step")
        if action.error is not None:
            return await self._answered((Message(role="user", content=f"error: {action.error.message[:500]}"),))
        calls, untyped = action.calls, False
        if not calls:
            unified = page_calls(action.text)
            untyped = unified is not None
            read = (unified or [parse_call(action.text, self.tools)])[0]
            if isinstance(read, ParseError):
                return await self._answered((Message(role="user", content=f"error: {read.message[:500]}"),))
            calls = (read,)
        messages: list[Message] = []
        calls, late = calls[:_MOST_CALLS], calls[_MOST_CALLS:]
        for number, call in enumerate(calls, start=1):
            checked = check_call(call, self.tools)
            if isinstance(checked, ParseError):
                text = f"error: {checked.message[:500]}"
            elif checked.name in ("done", "answer_number", "answer_text"):
                return await self._graded(checked, messages, untyped=untyped)
            else:
                text = await self._do(checked, pictures=number == len(calls))
            messages.append(Message(role="tool", content=text, tool_call_id=call.id))
        told = f"error: not done: at most {_MOST_CALLS} calls go at once, and these are {len(calls) + len(late)}"
        messages += [Message(role="tool", content=told, tool_call_id=call.id) for call in late]
        assert self._view is not None
        assert self._page is not None
        if self._wanted.screenshot and self._view.screenshot is None:  # the last call was a mistake
            await self._look(self._page, pictures=True)
        return await self._answered(tuple(messages))

    async def _answered(self, messages: tuple[Message, ...]) -> Step:
        """The step of some messages, the last of which shows the picture, where there is one."""
        assert self._view is not None
        if self._view.screenshot is None:
            self._last = Step(messages, state_key=await self._key())
        else:
            shown, images = pictured(messages[-1], self._view.screenshot)
            self._last = Step((*messages[:-1], shown), state_key=await self._key(), images=images)
        return self._last

    async def _graded(self, call: ToolCall, before: list[Message], *, untyped: bool) -> Step:
        """The last step. untyped: the answer was given in a notation that has texts alone."""
        value = next(iter(call.arguments.values()), None)
        answer = value if isinstance(value, (str, int, float)) else None
        assert self._view is not None
        readings = _readings(answer) if untyped and isinstance(answer, str) else (answer,)
        with closing(await self.served.copied()) as database:
            verdicts = [self._question.judge(database, self._view.url, reading) for reading in readings]
        channels = max(verdicts, key=lambda verdict: (verdict["reward"], verdict.get("answered", 0.0)))
        stop = StopReason.GOAL if channels["reward"] else StopReason.SUBMITTED
        said = Message(role="tool", content="The end.", tool_call_id=call.id)
        submission = None if answer is None else str(answer)
        key = await self._key()
        self._last = Step((*before, said), channels["reward"], channels, stop, key, submission=submission)
        return self._last

    async def _do(self, call: ToolCall, *, pictures: bool = False) -> str:
        """Carry out a call on the page, and tell what is then seen. pictures: see `_look`."""
        assert self._page is not None
        assert self._trail is not None
        action: PageAction | ParseError
        if call.name in ("back", "forward"):
            action = self._travel(call.name)
        else:
            action = read_page_action(call, _PAGE, files=self._question.files)
        if isinstance(action, ParseError):
            return f"error: {action.message[:500]}"
        self.served.asked = None
        old = self._view
        acted = await self._page.act(action)
        if self.served.asked is not None:
            await self._away(self._page)
        await self._look(self._page, pictures=pictures)
        await self.served.sound()
        assert self._view is not None
        await self._follow(self._trail.after(call, self._view, self.served.asked))
        told = acted_text(acted)
        return f"{told}\n{self._seen(old)}" if told else self._seen(old)

    def _travel(self, way: str) -> Goto | ParseError:
        """Back is the address before, loaded again, and forward the one after it."""
        assert self._trail is not None
        path = self._trail.back if way == "back" else self._trail.forward
        if path is None:
            return ParseError(message=f"there is no page {'before' if way == 'back' else 'after'} this one")
        return Goto(f"{self.served.origin}{path}")

    def _seen(self, old: PageView | None) -> str:
        """The page as text; beside a picture alone, only where one is."""
        assert self._view is not None
        view = replace(self._view, tree=None) if self._looks.see == "image" else self._view
        return bounded(view_diff(old, view) if self._looks.diffs else view_text(view))

    async def _key(self) -> str:
        """The normalised tree (no refs) and the rows that count."""
        assert self._view is not None
        nodes = [(node.depth, node.role, node.name, node.value, node.states) for node in self._view.tree or ()]
        seen = repr((self._view.url, nodes, self._view.error)).encode("utf-8", "surrogatepass")
        return f"{hashlib.blake2b(seen, digest_size=12).hexdigest()}/{await self.served.digest()}"

    def _going(self, what: str) -> Step:
        if self._last is None:
            raise RuntimeError(f"{what} before reset in task {self.task.id!r}: call reset(seed=...) first")
        if what == "step" and self._last.stop is not None:
            raise RuntimeError(f"step after the end ({self._last.stop}) in task {self.task.id!r}: call reset first")
        return self._last

    # snapshots

    async def snapshot(self) -> Snapshot:
        """Server, anchor, calls since, what is seen, and the digest of what is there."""
        last, trail = self._going("snapshot"), self._trail
        assert trail is not None
        assert self._page is not None
        assert self._view is not None
        state: dict[str, Any] = {
            "anchor": {
                "path": trail.anchor.path,
                "cookies": [dict(one) for one in trail.anchor.cookies],
                "state": trail.anchor.state,
            },
            "before": trail.before,
            "later": trail.later,
            "calls": [call.model_dump() for call in trail.calls],
            "seen": view_text(self._view),
            "digest": await self._page.digest(),
            "last": step_to_json(last),
        }
        if self._view.screenshot is not None:
            state["picture"] = b64encode(self._view.screenshot).decode()
        kept = await self.served.keep(trail.anchor)
        state["now"] = kept.now
        return Snapshot(
            restore="exact", task_id=self.task.id, seed=self._seed, state=json.dumps(state), sandbox=kept.sandbox
        )

    async def _restore(self, start: Snapshot) -> Step:
        if start.restore != "exact" or start.task_id != self.task.id:
            raise ValueError(
                f"cannot start task {self.task.id!r} from a {start.restore!r} snapshot of task {start.task_id!r}; "
                "it needs an exact snapshot of the same task"
            )
        state = json.loads(start.state)
        anchor = Anchor(**state["anchor"] | {"cookies": tuple(state["anchor"]["cookies"])}, sandbox=start.sandbox)
        await self._go_away()
        await self.served.put(anchor)
        await self._open(anchor.path, Storage(anchor.cookies) if anchor.cookies else None)
        assert self._trail is not None  # its anchor is of this episode's own service, and the same
        mine, before = self._trail.anchor, tuple(state["before"])
        self._trail = Trail(self.served.origin, mine, before, tuple(state.get("later", ())))
        for call in state["calls"]:
            await self._do(ToolCall(**call))
        await self._compared(state, anchor.path)
        await self.served.catch_up(_kept(start), self.task.id)
        self._seed = start.seed
        last = replace(step_from_json(state["last"]), reward=None, channels={})
        assert self._view is not None
        if "picture" in state:  # the very bytes that the step shows
            image = b64decode(state["picture"])
            self._view = replace(self._view, screenshot=image)
            last = replace(last, images=pictured(last.observation[-1], image)[1])
        self._last = last
        return last

    async def _compared(self, state: Mapping[str, Any], path: str) -> None:
        """Raise ReplayDiverged unless what is seen, and the digest of what is there, are those of a snapshot."""
        assert self._page is not None
        assert self._view is not None
        told = (
            f"the page of task {self.task.id!r} was restored as something else, {len(state['calls'])} calls after"
        )
        if (seen := view_text(self._view)) != state["seen"]:
            raise ReplayDiverged(f"{told} {path}: {_difference(state['seen'], seen)}")
        if await self._page.digest() != state["digest"]:
            raise ReplayDiverged(
                f"{told} {path}: the same is seen, but fields, scrolling or what the browser keeps are others"
            )

    async def release(self, snapshot: Snapshot) -> None:
        """Give up what the server's part of a snapshot holds."""
        await self.served.release(_kept(snapshot))

    async def fork(self) -> "WebPlay":
        """An independent episode in the same state, with a server and a page of its own."""
        return await forked(self, WebPlay(self.task, self._question, self._serve, self._looks))


def _kept(snapshot: Snapshot) -> Kept:
    return Kept(json.loads(snapshot.state)["now"], snapshot.sandbox)


def _difference(wanted: str, found: str) -> str:
    for one, other in zip(wanted.split("\n"), found.split("\n"), strict=False):
        if one != other:
            return f"{other[:200]!r} instead of {one[:200]!r}"
    return f"{len(found)} characters instead of {len(wanted)}"


def _readings(text: str) -> tuple[str | float, ...]:
    """What a text may mean where there is no other way to give a number: itself, and the number that it is."""
    try:
        number = float(text)
    except ValueError:
        return (text,)
    return (text, number) if math.isfinite(number) else (text,)
