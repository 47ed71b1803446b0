"""A page of MiniWoB++: reset, step and view, beside BrowserGym and MiniWoB++'s Selenium, and beside bare commands.

    PEERS=FOLDER python benchmarks/web_speed.py    # `make bars` fills the folder

The floor sends the same work as Chromium's own commands and awaits nothing else: the page's reset; three mouse
events and the reward; the same and the accessibility tree. Each peer plays the same pages and sees what ours sees:
BrowserGym tree, DOM, screenshot, boxes and focus; Selenium the DOM, with and without a screenshot. They take turns,
one reset or step each. Beside BrowserGym bare commands that ask for the same content take turns: what that costs
without an environment around it. It is no bound: what a page does with a frame makes the same commands faster or
slower (docs/web.md). A peer that is not here has no rows: what it lacks is printed and noted. Pages side by side
say how many steps a second there are and what one more page weighs.
"""

import asyncio
import os
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from _harness import Row, finish, options, scratch_folder
from _web_peers import CLICK, KINDS, Peer, missing
from envgym_environments.web.miniwob.env import Miniwob, miniwob_tasks
from envgym_environments.web.miniwob.pages import begin

from envgym.browsing import open_browser
from envgym.messages import Action
from envgym.page import Folder, PageSpec, Wanted
from envgym.page_actions import Click, Target

PAGE = "click-checkboxes"
PEERS_PAGES = (PAGE, "enter-text", "login-user")
"""On none of them is anything at `CLICK`."""
STEPS = 3
"""Of an episode, the last of which ends ours. A reset is that of an episode that is over, as in use; "reset midway"
of one that is not, as the peers' resets are here: nothing is at `CLICK`."""
SECRET = re.compile(r"secret-\d+-\d+")


async def median_ms(work: Callable[[], Awaitable[object]], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken[1:])


async def _bare_click(tab: Any, x: float, y: float) -> None:
    kinds = ("mouseMoved", "mousePressed", "mouseReleased")
    await asyncio.gather(
        *(tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, x=x, y=y) for kind in kinds)
    )
    await tab.call("Runtime.evaluate", expression="WOB_RAW_REWARD_GLOBAL", returnByValue=True)


async def measured(repeats: int) -> list[Row]:
    env = Miniwob(miniwob_tasks(1, pages=PAGE)[0], observe="tree", turns=1_000_000)
    await env.reset(seed=0)
    page = env._page
    tab = page.tabs[0]
    at = {"x": 240, "y": 300}

    async def bare_reset() -> None:
        await tab.call("Runtime.evaluate", expression=begin("floor"), returnByValue=True)

    async def bare_click() -> None:
        await _bare_click(tab, **at)

    async def bare_step() -> None:
        await bare_click()
        await tab.call("Accessibility.getFullAXTree")

    async def bare_picture() -> None:
        await tab.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)

    rows = [
        ("reset inside the page, with tree", lambda: env.reset(seed=0), bare_reset, "the page's reset alone", 16.0),
        (
            "step: click by coordinates, tree",
            lambda: env.step(Action.call("click_at", **at)),
            bare_step,
            "bare",
            22.0,
        ),
        ("action alone", lambda: page.act(Click(Target(**at))), bare_click, "bare, with reward", None),
        ("screenshot", lambda: page.view(Wanted(tree=False, screenshot=True)), bare_picture, "bare", None),
    ]
    found = [
        Row(name, await median_ms(ours, repeats), await median_ms(floor, repeats), what, "ms", bar, absolute=True)
        for name, ours, floor, what, bar in rows
    ]
    restart = await median_ms(page.restart, max(repeats // 5, 3))
    told = "what sites may take"
    found.append(Row("restart of a page", restart, 100.0, told, "ms", 100.0, absolute=True))
    await env.close()
    return found


Taken = dict[tuple[str, str], list[float]]
"""Milliseconds by who ("ours", "bare", "peer") and what ("reset", "step"; ours also "reset midway")."""


class Bare:
    """The same resets and steps, with the same content asked for, by commands alone; in a page of its own."""

    def __init__(self, env: Miniwob) -> None:
        assert env._page is not None
        self._tab: Any = env._page.tabs[0]  # of Chromium

    async def play(self, what: str) -> None:
        if what == "reset":
            await self._tab.call("Runtime.evaluate", expression=begin("bare"), returnByValue=True)
        else:
            await _bare_click(self._tab, *CLICK)
        await asyncio.gather(
            self._tab.call("Accessibility.getFullAXTree"),
            self._tab.call("DOMSnapshot.captureSnapshot", computedStyles=[], includeDOMRects=False),
            self._tab.call("Page.captureScreenshot", format="png", optimizeForSpeed=True),
        )


async def in_turn(kind: str, page: str, repeats: int) -> Taken:
    """Resets and steps of a page in turn with a peer's, with the observation that it gives; all but the first."""
    gym = kind.startswith("browsergym")
    pictured = gym or kind.endswith("screenshots")
    task = miniwob_tasks(1, pages=page)[0]
    env, other = (Miniwob(task, screenshot=pictured, turns=STEPS) for _ in range(2))
    if gym:  # all that it gives: boxes and focus, too
        env._wanted = replace(env._wanted, tree=True, dom=True, boxes=True, focused=True)
    peer = await asyncio.to_thread(Peer, kind, page)
    click = Action.call("click_at", x=CLICK[0], y=CLICK[1])
    taken: Taken = {}

    async def timed(who: str, what: str, work: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        await work()
        taken.setdefault((who, what), []).append((time.perf_counter() - began) * 1000)

    try:
        await other.reset(seed=0)
        bare = Bare(other)
        for _ in range(repeats + 1):
            for what, work in (("reset", lambda: env.reset(seed=0)), *[("step", lambda: env.step(click))] * STEPS):
                await timed("ours", what, work)
                if what == "reset":
                    await env.step(click)
                    await timed("ours", "reset midway", work)
                if gym:
                    await timed("bare", what, partial(bare.play, what))
                taken.setdefault(("peer", what), []).append(await asyncio.to_thread(peer.ms, what))
    finally:
        await asyncio.to_thread(peer.close)
        await env.close()
        await other.close()
    return {which: times[1:] for which, times in taken.items()}


async def beside(kind: str, pages: Sequence[str], repeats: int) -> list[Row]:
    """Rows of a peer over some pages; what each page alone came to is printed."""
    pooled: Taken = {}
    for page in pages:
        taken = await in_turn(kind, page, repeats)
        middle = {which: statistics.median(times) for which, times in taken.items()}
        told = ", ".join(f"{who} {what} {ms:.3g} ms" for (who, what), ms in sorted(middle.items()))
        print(f"{KINDS[kind]}, {page}: {told}")
        for which, times in taken.items():
            pooled.setdefault(which, []).extend(times)
    whole = {which: statistics.median(times) for which, times in pooled.items()}
    rows = []
    for what in ("reset", "step"):
        peer = whole["peer", what]
        rows.append(Row(f"{what}: beside {KINDS[kind]}", whole["ours", what], peer, "peer", "ms", BARS[kind, what]))
        if ("bare", what) in whole:
            name = f"bare commands: {what} with the same content"
            rows.append(Row(name, whole["bare", what], peer, "peer", "ms"))
    name, peer = f"reset in mid-episode: beside {KINDS[kind]}", whole["peer", "reset"]
    rows.append(Row(name, whole["ours", "reset midway"], peer, "peer", "ms", BARS[kind, "reset"]))
    return rows


BARS = {
    ("browsergym", "reset"): 1 / 100, ("browsergym", "step"): 1 / 20,
    ("browsergym-tuned", "reset"): None, ("browsergym-tuned", "step"): 1 / 8,
    ("selenium-screenshots", "reset"): 1.0, ("selenium-screenshots", "step"): 1.0,
    ("selenium", "reset"): 1.0, ("selenium", "step"): 1.0,
}  # fmt: skip


def resident_mb() -> float:
    """MB of this process's descendants, each page of memory divided among those that share it (PSS)."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    ours, total = {os.getpid()}, 0
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for pid in ours - {os.getpid()}:
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("Pss:")[2].split()[0])
    return total * 1024 / 1e6


async def side_by_side(pages: int, steps: int) -> list[Row]:
    """Pages of one browser at once: steps a second with trees, and MB of one more page."""
    envs = [Miniwob(task, observe="tree", turns=1_000_000) for task in miniwob_tasks(pages, pages=PAGE)]
    click = Action.call("click_at", x=CLICK[0], y=CLICK[1])
    try:
        await envs[0].reset(seed=0)
        alone = resident_mb()
        for env in envs[1:]:
            await env.reset(seed=0)
        each = (resident_mb() - alone) / max(pages - 1, 1)

        async def played(env: Miniwob) -> None:
            for _ in range(steps):
                await env.step(click)

        rates = {}
        for some in (1, pages):
            began = time.perf_counter()
            await asyncio.gather(*(played(env) for env in envs[:some]))
            rates[some] = some * steps / (time.perf_counter() - began)
    finally:
        for env in envs:
            await env.close()
    return [
        Row(
            f"step of {pages} pages at once",
            1000 / rates[pages],
            1000 / rates[1],
            "one page",
            "ms",
            10.0,
            absolute=True,
        ),
        Row(f"one more page of {pages}", each, 92.0, "bare page of 16, quiet", "MB", 92.0, absolute=True),
    ]


async def strangers(count: int) -> int:
    """Of so many episodes at once on sites of one name: how many saw another's secret, in page or storage."""
    secrets = [f"secret-{number:02d}-{number * 7919 % 10007}" for number in range(count)]
    browser = open_browser()

    def site(folder: Path, secret: str) -> Folder:
        folder.mkdir()
        (folder / "index.html").write_text(f"<!doctype html><title>{secret}</title><button>{secret}</button>")
        return Folder(str(folder))

    async def one(folder: Path, secret: str) -> set[str]:
        keep = f"document.cookie = localStorage.all = document.cookie + localStorage.all + '{secret}'"
        found: set[str] = set()
        spec = PageSpec({"http://a.test": site(folder, secret)}, start="http://a.test/")
        async with await browser.page(spec) as page:
            for _ in range(3):
                await page.act(Click(Target(role="button")))
                kept = [await page.run(keep), await page.storage()]
                found |= set(SECRET.findall(f"{await page.view(Wanted(tree=True, dom=True))}{kept}"))
        return found

    try:
        with scratch_folder() as place:
            seen = await asyncio.gather(*(one(place / secret, secret) for secret in secrets))
    finally:
        await browser.close()
    if any(secret not in found for secret, found in zip(secrets, seen, strict=True)):
        raise RuntimeError("an episode does not see its own secret: nothing was compared")
    return sum(found != {secret} for secret, found in zip(secrets, seen, strict=True))


async def compared(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All rows, and what is lacking of peers."""
    rows = await measured(10 if quick else 100)
    rows += await side_by_side(2 if quick else 16, 5 if quick else 40)
    count = 8 if quick else 32
    rows.append(
        Row(
            f"of {count} episodes at once, those that saw another's secret",
            await strangers(count),
            count,
            "episodes",
            "number",
            0.0,
            absolute=True,
        )
    )
    lacking = {kind: why for kind in KINDS if (why := missing(kind))}
    for kind in KINDS:
        if kind in lacking:
            print(f"{KINDS[kind]}: not measured, lacking {lacking[kind]}")
        else:
            rows += await beside(kind, PEERS_PAGES[:1] if quick else PEERS_PAGES, 2 if quick else 6)
    return rows, lacking


def main() -> None:
    given = options(__doc__ or "")
    rows, lacking = asyncio.run(compared(given.quick))
    finish(
        "web_speed",
        rows,
        given,
        page=PAGE,
        peers_pages=PEERS_PAGES[:1] if given.quick else PEERS_PAGES,
        not_measured=lacking,
    )


if __name__ == "__main__":
    main()
