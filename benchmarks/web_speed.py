"""A page of MiniWoB++: reset, step and view, beside BrowserGym and MiniWoB++'s Selenium, and beside bare commands.

    PEERS=FOLDER python benchmarks/web_speed.py    # `make bars` fills the folder

The floor sends the same work as Chromium's own commands and awaits nothing else: the page's reset; three mouse
events and the reward; the same and the accessibility tree. Each peer plays the same page and sees what ours sees:
BrowserGym tree, DOM, screenshot, boxes and focus; Selenium the DOM, with and without a screenshot. They take turns,
one reset or step each. A peer that is not here has no rows: what it lacks is printed and noted. Pages side by side
say how many steps a second there are and what one more page weighs.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from _harness import Row, finish, options
from _web_peers import CLICK, KINDS, Peer, missing
from envgym_environments.web.miniwob.env import SIZE, Miniwob, miniwob_tasks
from envgym_environments.web.miniwob.pages import begin

from envgym.messages import Action
from envgym.page import Wanted
from envgym.page_actions import Click, Target

PAGE = "click-checkboxes"


async def median_ms(work: Callable[[], Awaitable[object]], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken[1:])


async def measured(repeats: int) -> list[Row]:
    env = Miniwob(miniwob_tasks(1, pages=PAGE)[0], observe="tree", turns=1_000_000)
    await env.reset(seed=0)
    page = env._page
    tab = page.tabs[0]
    at = {"x": SIZE[0] / 2, "y": SIZE[1] - 20}

    async def bare_reset() -> None:
        await tab.call("Runtime.evaluate", expression=begin("floor"), returnByValue=True)

    async def bare_click() -> None:
        kinds = ("mouseMoved", "mousePressed", "mouseReleased")
        await asyncio.gather(
            *(tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at) for kind in kinds)
        )
        await tab.call("Runtime.evaluate", expression="WOB_RAW_REWARD_GLOBAL", returnByValue=True)

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


async def beside(kind: str, repeats: int) -> list[Row]:
    """Resets and steps in turn with a peer's, with the observation that it gives."""
    gym = kind.startswith("browsergym")
    pictured = gym or kind.endswith("screenshots")
    env = Miniwob(miniwob_tasks(1, pages=PAGE)[0], screenshot=pictured, turns=1_000_000)
    if gym:  # all that it gives: boxes and focus, too
        env._wanted = replace(env._wanted, tree=True, dom=True, boxes=True, focused=True)
    peer = await asyncio.to_thread(Peer, kind, PAGE)
    click = Action.call("click_at", x=CLICK[0], y=CLICK[1])
    ours: dict[str, list[float]] = {"reset": [], "step": []}
    theirs: dict[str, list[float]] = {"reset": [], "step": []}
    try:
        for _ in range(repeats + 1):
            for what, work in (("reset", lambda: env.reset(seed=0)), *[("step", lambda: env.step(click))] * 3):
                began = time.perf_counter()
                await work()
                ours[what].append((time.perf_counter() - began) * 1000)
                theirs[what].append(await asyncio.to_thread(peer.ms, what))
    finally:
        await asyncio.to_thread(peer.close)
        await env.close()
    return [
        Row(f"{what}: beside {KINDS[kind]}", *(statistics.median(one[what][1:]) for one in (ours, theirs)), "peer",
            "ms", BARS[kind, what])
        for what in ("reset", "step")
    ]  # fmt: skip


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


async def compared(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All rows, and what is lacking of peers."""
    rows = await measured(10 if quick else 100)
    rows += await side_by_side(2 if quick else 16, 5 if quick else 40)
    lacking = {kind: why for kind in KINDS if (why := missing(kind))}
    for kind in KINDS:
        if kind in lacking:
            print(f"{KINDS[kind]}: not measured, lacking {lacking[kind]}")
        else:
            rows += await beside(kind, 2 if quick else 6)
    return rows, lacking


def main() -> None:
    given = options(__doc__ or "")
    rows, lacking = asyncio.run(compared(given.quick))
    finish("web_speed", rows, given, page=PAGE, not_measured=lacking)


if __name__ == "__main__":
    main()
