"""A page of MiniWoB++: reset, step and view by the contract, beside bare debugging commands in the same browser.

The floor sends the same work as Chromium's own commands and awaits nothing else: the page's reset; three mouse
events and the reward; the same and the accessibility tree. Peers are not installed beside this project (BrowserGym
pins an older Playwright, MiniWoB++'s own environment needs a driver): the bars are their figures on such a
machine, divided by what is asked: a reset of 1.6 s by 100, a step of 0.18 s (its sleeps tuned away) by 8.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from _harness import Row, finish, options
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


def main() -> None:
    given = options(__doc__ or "")
    finish("web_speed", asyncio.run(measured(10 if given.quick else 100)), given, page=PAGE)


if __name__ == "__main__":
    main()
