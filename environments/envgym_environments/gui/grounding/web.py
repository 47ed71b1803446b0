"""Screens of the web: a page of MiniWoB++, or a page of a self-hosted site somewhere on an expert's path.

Each gives a screenshot, the elements on it with their boxes, and on a path the act that the expert does next. The
browser stays warm between tasks, and so does the page of the same site or the same name.
"""

from dataclasses import dataclass, replace

from envgym.browsing import open_browser
from envgym.errors import EnvironmentFailure
from envgym.page import Browser, Folder, Node, Page, PageLimits, PageSpec, PageView, Wanted
from envgym.page_actions import Click, Fill, Hover, PageAction, Select, Target, Upload
from envgym.page_text import acted_text
from envgym_environments.gui.grounding.asking import Mark, clipped
from envgym_environments.gui.grounding.rewards import Truth
from envgym_environments.web.miniwob.pages import FIXED_DAY, ORIGIN, address, begin, html_folder
from envgym_environments.web.sites.episode import Served
from envgym_environments.web.sites.goals import Do, Goal, Key, build
from envgym_environments.web.still import STILL

__all__ = ["PAGES", "Shown", "WebScreens", "next_act"]

PAGES = (
    "book-flight", "buy-ticket", "click-button", "click-checkboxes", "click-option", "click-tab-2",
    "click-test-2", "enter-password", "enter-text-2", "find-word", "form-sequence-2", "login-user",
    "login-user-popup", "multi-layouts", "multi-orderings", "search-engine", "use-autocomplete",
)  # fmt: skip
"""Pages of MiniWoB++ that have elements with names."""

SIZE, SMALL = (1024, 768), (480, 320)
_PATIENT = PageLimits(act_s=60.0, settle_s=30.0)
"""A screen is shown when it is whole, on a loaded machine too."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A screenshot (PNG), its size in pixels, what is on it, and the act that comes next where one is known."""

    image: bytes
    size: tuple[int, int]
    marks: tuple[Mark, ...]
    act: Truth | None = None


class WebScreens:
    """Renders pages in one browser; `close` ends its share of it."""

    def __init__(self, browser: str = "chromium") -> None:
        self._kind = browser
        self._browser: Browser | None = None
        self._page: Page | None = None
        self._shows: tuple[str, object] = ("", None)
        self._served: Served | None = None

    async def miniwob(self, name: str, seed: str) -> Shown:
        """A problem of a page of MiniWoB++, as it begins."""
        if self._shows != ("miniwob", name):
            await self._leave()
            site = {ORIGIN: Folder(str(html_folder()))}
            spec = PageSpec(site, start=address(name), size=SMALL, scripts=(FIXED_DAY, STILL), limits=_PATIENT)
            self._page = await self._opened().page(spec)
            self._shows = ("miniwob", name)
        page = self._page
        assert page is not None
        if trouble := await page.run(begin(seed)):
            raise EnvironmentFailure(f"page {name!r} does not begin: {trouble}")
        return await self._shown(page)

    async def site(self, key: Key, goal: Goal, count: int) -> Shown:
        """A site after the first `count` acts of a goal's path, with the act that comes then."""
        if self._shows != ("site", key):
            await self._leave()
            self._served = Served(key.site, build(key))
            sites = {key.site.origin: await self._served.open()}
            spec = PageSpec(sites, start=f"{key.site.origin}/", size=SIZE, scripts=(STILL,), limits=_PATIENT)
            await self._served.reset()
            self._page = await self._opened().page(spec)
            self._shows = ("site", key)
        elif self._served is not None and self._page is not None:
            await self._served.reset()
            await self._page.restart()
        page = self._page
        assert page is not None
        for do in goal.path[:count]:
            acted = await page.act(_page_act(do, await page.view(Wanted()), goal))
            if not acted.outcome.ok:
                raise EnvironmentFailure(
                    f"the expert's {do} cannot be done in {key.site.name}: {acted_text(acted)}"
                )
        shown = await self._shown(page)
        view = await page.view(Wanted(tree=True, boxes=True))
        return replace(shown, act=next_act(goal, count, view, shown.size))

    def _opened(self) -> Browser:
        self._browser = self._browser or open_browser(self._kind)
        return self._browser

    async def _shown(self, page: Page) -> Shown:
        await page.act(Hover(Target(x=page.spec.size[0] - 1, y=page.spec.size[1] - 1)))
        view = await page.view(Wanted(tree=False, screenshot=True, boxes=True))
        if view.error or view.screenshot is None:
            raise EnvironmentFailure(f"{view.url} cannot be seen: {view.error}")
        size = page.spec.size
        boxes = ((node, _box(node)) for node in view.marks or ())
        marks = tuple(
            Mark(node.role, node.name, seen)
            for node, box in boxes
            if box is not None and (seen := clipped(box, size)) is not None
        )
        return Shown(view.screenshot, size, marks)

    async def _leave(self) -> None:
        page, self._page, served, self._served = self._page, None, self._served, None
        self._shows = ("", None)
        if page is not None:
            await page.close()
        if served is not None:
            await served.close()

    async def close(self) -> None:
        """Close the page, its server and the browser. Idempotent."""
        await self._leave()
        browser, self._browser = self._browser, None
        if browser is not None:
            await browser.close()


def _box(node: Node) -> tuple[float, float, float, float] | None:
    if node.box is None:
        return None
    left, top, width, height = node.box
    return left, top, left + width, top + height


def _found(do: Do, nodes: tuple[Node, ...]) -> Node | None:
    """The element that an act means: of its role, by its whole name, else by a part of it."""
    roles, name = do.role.split("|"), " ".join(do.name.split())
    own = [(node, " ".join(node.name.split())) for node in nodes if node.role in roles and node.ref]
    for fits in (lambda known: known == name, lambda known: name in known):
        for node, known in own:
            if fits(known):
                return node
    return None


def _page_act(do: Do, view: PageView, goal: Goal) -> PageAction:
    node = _found(do, view.tree or ())
    if node is None:
        raise EnvironmentFailure(f"{view.url} has no {do.role} {do.name!r}, which the expert uses")
    target = Target(ref=node.ref)
    if do.what == "click":
        return Click(target)
    if do.what == "upload":
        return Upload(target, {do.value: goal.files[do.value]})
    return Select(target, (do.value,)) if do.what == "select" else Fill(target, do.value)


def next_act(goal: Goal, count: int, view: PageView, size: tuple[int, int]) -> Truth:
    """What the expert does after `count` acts, in the unified space: what is out of sight is scrolled to first."""
    if count >= len(goal.path):
        return Truth("complete")
    do = goal.path[count]
    node = _found(do, view.tree or ())
    if node is None:
        raise EnvironmentFailure(f"{view.url} has no {do.role} {do.name!r}, which the expert uses")
    if do.what != "click":
        return Truth("select" if do.what == "select" else "type", text=do.value)
    marks = {mark.ref: mark for mark in view.marks or ()}
    box = _box(marks[node.ref]) if node.ref in marks else None
    seen = None if box is None else clipped(box, size)
    if seen is not None:
        return Truth("click", seen)
    order = [one.ref for one in view.tree or ()]
    first = next((ref for ref in order if ref in marks), order[-1])
    return Truth("scroll", text="up" if order.index(node.ref) < order.index(first) else "down")
