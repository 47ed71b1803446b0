"""`miniwob`: the pages of MiniWoB++ played in a browser with typed tools, a page's own reward at its end.

A reset begins the next problem inside the loaded page, which takes milliseconds. Snapshots and forks are replays,
checked by what was seen. A page that crashes or hangs is the world's fault, whatever was clicked, and never a
reward: a step raises EnvironmentFailure, and the next reset loads the page anew. One that the agent has left for
another document is LOST.
"""

import asyncio
import hashlib
import json
import time
from typing import Any, Literal, get_args

from pydantic import JsonValue

from envgym.browsing import Used, leave_page, open_browser, take_page
from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.page import Browser, Folder, Outcome, Page, PageLimits, PageSpec, PageView, Wanted
from envgym.page_actions import Goto, Hover, Target, Wait
from envgym.page_text import acted_text, tree_text
from envgym.page_tools import page_tools, read_page_action
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import parse_call
from envgym_environments.gui.unified import page_calls
from envgym_environments.pictures import pictured
from envgym_environments.web.miniwob.pages import (
    FIXED_DAY,
    FLIGHTS,
    ORIGIN,
    READY,
    RELOADED,
    STATE,
    TIMED,
    address,
    all_pages,
    begin_on,
    html_folder,
    page_names,
    size,
)
from envgym_environments.web.still import STILL

__all__ = ["SPEC", "Miniwob", "miniwob_tasks"]

Observed = Literal["dom", "tree", "both", "none"]
_LOADED_S = 60.0
_STATE = Wanted(tree=False, value=STATE)
_GONE: dict[str, Any] = {
    "done": False, "reward": 0, "reason": "", "utterance": "", "seen": [], "fields": [], "gone": True,
}  # fmt: skip
_TOOLS = page_tools(
    "click", "click_named", "click_at", "hover", "fill", "type_text", "press", "select", "drag", "drag_at",
    "scroll", "wait",
)  # fmt: skip


class Miniwob:
    """One page of MiniWoB++.

    observe: the page as pruned HTML ("dom"), as accessibility tree ("tree"), both, or "none" where a picture says
    it; refs name elements in either. screenshot: whether observations have a picture (an `ImagePart` in the last
    message, whose PNG is in `Step.images`). marks: whether the refs of what can be acted on are drawn into it.
    tools: which there are, by names with commas between; "" for all. A small model pays for each in its prompt.
    turns: after which an episode is over.
    browser: the kind of browser. It is started by the first reset, and shared with others of this event loop.
    """

    def __init__(  # one parameter per option
        self,
        task: Task,
        *,
        observe: Observed = "dom",
        tools: str = "",
        turns: int = 20,
        screenshot: bool = False,
        marks: bool = False,
        browser: str = "chromium",
    ) -> None:
        if observe not in get_args(Observed):
            raise ValueError(f"observe is {observe!r}; it must be one of {', '.join(get_args(Observed))}")
        if turns < 1:
            raise ValueError(f"turns is {turns}; it must be at least 1")
        if not screenshot and (marks or observe == "none"):
            told = "marks are drawn into a picture" if marks else "observe is 'none', which leaves the picture"
            raise ValueError(f"{told}, and screenshot is false: give screenshot=true")
        drawing = open_browser(browser)  # an unknown one is refused before anything is played
        if screenshot and not drawing.draws:
            raise ValueError(f"browser {browser!r} draws no pages: leave screenshot false, or take another one")
        self.task, self.tools = task, _chosen(tools)
        self._name = str(task.metadata["page"])
        if self._name not in all_pages():
            raise ValueError(f"MiniWoB++ has no page {self._name!r}; it has {', '.join(all_pages())}")
        self._wanted = Wanted(
            tree=observe in ("tree", "both"), dom=observe in ("dom", "both"), screenshot=screenshot, marks=marks,
            value=STATE,
        )  # fmt: skip
        self._turns, self._kind = turns, browser
        still = "pictures/" if screenshot else ""  # such pages have another style
        kind = "moving" if self._name in TIMED else "flights" if self._name in FLIGHTS else "still"
        self._family = f"miniwob/{browser}/{still}{kind}/"
        self._browser: Browser | None = None
        self._page: Page | None = None
        self._turn = 0
        self._over = True
        self._leaving: asyncio.Task[None] | None = None

    async def reset(self, *, seed: int) -> Step:
        """The task's problem from its beginning; the seed changes nothing, for the task has its own."""
        asked = begin_on(self._name, f"{self._name}/{self.task.seed}")
        if self._page is None and (used := await self._used()) is not None:
            self._browser, self._page = used
        left, page, said = await self._mouse_left(), self._page, None
        if page is not None and self._name not in RELOADED:
            if not left:
                await self._leave_mouse(page)
            said = await page.run(asked)
        if page is None or said is None:
            page = await self._loaded()
            await self._leave_mouse(page)
            said = await self._begun(page, asked)
            if not said and self._name in FLIGHTS:
                said = await self._begun(page, READY)
        if said:
            raise EnvironmentFailure(f"page {self._name!r} does not begin: {said}")
        page.forget()
        await page.act(Wait())
        self._turn, self._over = 0, False
        return self._seen(await self._viewed(page, self._wanted), [])

    async def _loaded(self) -> Page:
        if self._page is None:
            # moving pages are never quiet: what they are waited for is how long a turn takes
            moving = self._name in TIMED
            limits = PageLimits(act_s=30.0, settle_s=0.2 if moving else 10.0, quiet_s=0.02)
            site = {ORIGIN: Folder(str(html_folder()))}
            scripts = (FIXED_DAY, STILL) if self._wanted.screenshot else (FIXED_DAY,)
            spec = PageSpec(site, start=address(self._name), size=size(self._name), scripts=scripts, limits=limits)
            self._browser = self._browser or open_browser(self._kind)
            self._page = await self._browser.page(spec)
        else:
            acted = await self._page.act(Goto(address(self._name)))
            if not acted.outcome.ok:
                raise EnvironmentFailure(f"page {self._name!r} is not loaded: {acted_text(acted)}")
        return self._page

    async def _leave_mouse(self, page: Page) -> None:
        """The mouse goes to the corner before a problem begins: where it was is no part of one.

        That is a frame of the browser, for which the picture of the first observation would wait. So it is begun as
        soon as an episode is over, and nobody waits for it before the next one.
        """
        wide, high = page.spec.size
        await page.act(Hover(Target(x=wide - 1, y=high - 1)))

    async def _mouse_left(self) -> bool:
        """Whether the mouse went to the corner after the episode before."""
        leaving, self._leaving = self._leaving, None
        if leaving is None:
            return False
        await asyncio.wait((leaving,))
        return leaving.exception() is None

    async def _used(self) -> Used | None:
        """A page that was played in: this one, or another of those that are waited for as this one is."""
        return await take_page(self._family + self._name, family=self._family)

    async def _begun(self, page: Page, asked: str) -> JsonValue:
        """Begin as soon as the page is there: one that moves is not waited for by its quiet, and may be loading."""
        until = time.monotonic() + _LOADED_S
        while (said := await page.run(asked)) is None:
            if time.monotonic() > until:
                raise EnvironmentFailure(f"page {self._name!r} is not loaded within {_LOADED_S:g} s")
            await page.act(Wait(0.02))
        return said

    async def step(self, action: Action) -> Step:
        """Do what is called, call by call, until the page says that the problem is over."""
        if self._over or self._page is None:
            raise RuntimeError(f"step outside an episode in task {self.task.id!r}: call reset(seed=...) first")
        self._turn += 1
        messages: list[Message] = []
        calls = self._read(action)
        for number, call in enumerate(calls, start=1):
            text = await self._do(self._page, call)
            name = call.id if isinstance(call, ToolCall) else ""
            role: Literal["tool", "user"] = "tool" if name else "user"
            messages.append(Message(role=role, content=text, tool_call_id=name))
            view = await self._viewed(self._page, self._wanted if number == len(calls) else _STATE)
            if _state(view)["done"] or view.value is None:
                break
        seen = self._seen(view, messages)
        if self._over and view.value is not None:
            self._leaving = asyncio.create_task(self._leave_mouse(self._page))
        return seen

    def _read(self, action: Action) -> tuple[ToolCall | ParseError, ...]:
        if action.error is not None:
            return (action.error,)
        return action.calls or tuple(page_calls(action.text) or [parse_call(action.text, self.tools)])

    async def _do(self, page: Page, call: ToolCall | ParseError) -> str:
        read = call if isinstance(call, ParseError) else read_page_action(call, self.tools)
        if isinstance(read, ParseError):
            return f"error: {read.message[:500]}"
        acted = await page.act(read)
        if acted.outcome in (Outcome.CRASHED, Outcome.HUNG):
            raise self._failed(acted_text(acted))
        return acted_text(acted) or "done"

    async def _viewed(self, page: Page, wanted: Wanted) -> PageView:
        view = await page.view(wanted)
        if view.error and view.value is None:
            raise self._failed(view.error)
        return view

    def _failed(self, why: str) -> EnvironmentFailure:
        """The end of an episode whose page did not live through it."""
        self._over = True
        return EnvironmentFailure(f"page {self._name!r} did not go on: {why}")

    def _seen(self, view: PageView, said: list[Message]) -> Step:
        state = _state(view)
        if state["done"]:
            self._over = True
            reward = float(state["reward"])
            told = f"The problem is over: reward {reward:g}. {state['reason']}".strip()
            return Step(
                (*said, Message(role="user", content=told)),
                reward=reward,
                channels={"reward": reward, "turns": float(self._turn)},
                stop=StopReason.GOAL if reward > 0 else StopReason.LOST,
                state_key=f"{self.task.id}/over/{reward:g}",
            )
        stop = None
        if state.get("gone") or self._turn >= self._turns:
            stop = StopReason.LOST if state.get("gone") else StopReason.TURN_LIMIT
            self._over = True
        text = f"{state['utterance']}\n{self._shown(view)}" if not state.get("gone") else "The page is gone."
        shown, images = Message(role="user", content=text), dict[str, bytes]()
        if view.screenshot is not None:
            shown, images = pictured(shown, view.screenshot)
        return Step(
            (*said, shown),
            reward=0.0 if stop is StopReason.LOST else None,
            channels={"reward": 0.0, "turns": float(self._turn)} if stop else {},
            stop=stop,
            state_key=_key(self.task.id, state),
            images=images,
        )

    def _shown(self, view: PageView) -> str:
        parts = [f"error: {view.error}"] if view.error else []
        if view.tree is not None:
            parts.append(tree_text(view.tree))
        if view.dom is not None:
            parts.append(view.dom)
        return "\n".join(parts)

    async def close(self) -> None:
        """Close the page and give the browser back, or leave both for the next episode (`pages_kept`)."""
        self._over = True
        await self._mouse_left()
        browser, page, self._browser, self._page = self._browser, self._page, None, None
        if browser is not None and page is not None:
            await leave_page(self._family + self._name, Used(browser, page))
        elif browser is not None:
            await browser.close()


def _state(view: PageView) -> dict[str, Any]:
    """What `STATE` found; where there is no page of MiniWoB, it is gone."""
    return view.value if isinstance(view.value, dict) else _GONE


def _chosen(names: str) -> tuple[ToolSpec, ...]:
    known = {tool.name: tool for tool in _TOOLS}
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(known)
    if wrong := [name for name in wanted if name not in known]:
        raise ValueError(f"tools has {wrong}; MiniWoB++ has {', '.join(known)}")
    return tuple(known[name] for name in wanted)


def _key(task: str, state: dict[str, Any]) -> str:
    """What the page shows and where, and what its fields hold."""
    told = json.dumps([task, state["seen"], state["fields"]])
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def miniwob_tasks(count: int | None = 1300, *, pages: str = "", seed: int = 0) -> TaskSet:
    """`count` problems (None: without end): one of each page, then the pages' next ones.

    Of each page's problems every fifth is of the split "heldout".

    pages: names separated by commas, "" for all but FlightWoB's (`FLIGHTS`). Raises ValueError for one that there
    is not, or a count below one.
    """
    names = tuple(name.strip() for name in pages.split(",") if name.strip()) or page_names()
    if wrong := [name for name in names if name not in all_pages()]:
        raise ValueError(f"MiniWoB++ has no pages {wrong}; it has {', '.join(all_pages())}")
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1, or None for tasks without end")

    def make(index: int) -> Task:
        number, page = divmod(index, len(names))
        return Task(
            id=f"miniwob/{names[page]}/{seed}/{number}",
            prompt=f"Do what the page {names[page]} asks for.",
            split="heldout" if number % 5 == 4 else "train",
            seed=seed * 1_000_003 + number,
            metadata={"page": names[page], "timed": names[page] in TIMED},
        )

    return TaskSet.lazy(make, length=count)


SPEC = EnvSpec(
    name="miniwob",
    tasks=miniwob_tasks,
    make=Miniwob,
    seeded=True,
    description="MiniWoB++: small web pages in a browser, with their own rewards.",
)
