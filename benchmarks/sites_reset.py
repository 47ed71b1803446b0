"""What a reset of the self-hosted sites costs: server state by snapshot and a warm context (bar 100 ms).

The environment's whole reset (database, page, first view) stands beside its floor in the same run: loading the
start page again in the same browser and taking its tree, which resets nothing. The server's part alone stands
beside a bare `deserialize`, a step (a click on a link, its page, its tree) beside the same address loaded, a fork
in the middle of an episode beside a reset. `plain` is the browser without scripts. The rows of a sandbox are of the
same site with its server as a program in one: a reset that starts it, and one of a program that was started ahead,
while an episode would play; each beside the reset in this process.
"""

import asyncio
import sqlite3
import statistics
import time

from _harness import Row, finish, options
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.tasks import SANDBOXED, SPEC

from envgym import Action, make
from envgym.page import Wanted
from envgym.page_actions import Goto
from envgym.registry import make_backend


async def timed(work):
    began = time.perf_counter()
    made = await work
    return (time.perf_counter() - began) * 1e3, made


async def measure(site, browser, repeats):
    """Lists of ms: reset, reload + tree, step, the same address, fork."""
    env = make(SPEC, SPEC.tasks(1, site=site)[0], browser=browser)
    found = {name: [] for name in ("reset", "reload", "step", "goto", "fork")}
    link = next(name for name, path in SITES[site].nav.items() if path != "/")
    start, there = SITES[site].origin + "/", SITES[site].origin + SITES[site].nav[link]
    try:
        await env.reset(seed=0)
        for round_ in range(repeats + 1):
            took = {"reset": (await timed(env.reset(seed=0)))[0]}
            took["step"] = (await timed(env.step(Action.call("click_named", name=link, role="link"))))[0]
            took["fork"], fork = await timed(env.fork())
            await fork.close()

            async def load(url):
                await env._page.act(Goto(url))
                await env._page.view(Wanted())

            took["goto"] = (await timed(load(there)))[0]
            took["reload"] = (await timed(load(start)))[0]
            if round_:
                for name, value in took.items():
                    found[name].append(value)
    finally:
        await env.close()
    return found


def server(site, repeats):
    """Medians in ms: a database's reset; a bare deserialize of its bytes."""
    env = make(SPEC, SPEC.tasks(1, site=site)[0])
    database, bare = env.served.database, sqlite3.connect(":memory:")
    ours, floor = [], []
    for _ in range(repeats):
        database.connection.execute("CREATE TABLE _more AS SELECT 1")
        began = time.perf_counter()
        database.reset()
        ours.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        bare.deserialize(database.pristine)
        floor.append((time.perf_counter() - began) * 1e3)
    assert database.content() == database.pristine
    bare.close()
    database.close()
    return statistics.median(ours), statistics.median(floor)


async def sandboxed(browser, repeats):
    """Medians in ms of the shop: resets in this process, in a sandbox, of a program started ahead; a step there."""
    task, resets, steps = SPEC.tasks(1, site="shop")[0], {}, []
    async with make_backend() as backend:
        for ahead in (None, 0, 1):
            options = {} if ahead is None else {"backend": backend, "ahead": ahead}
            env = make(SPEC if ahead is None else SANDBOXED, task, browser=browser, **options)
            found = resets[ahead] = []
            try:
                for round_ in range(repeats + 1):
                    if ahead and round_:  # an episode would be played meanwhile
                        await asyncio.wait(env.served._place.waiting)
                    took = (await timed(env.reset(seed=0)))[0]
                    step = (await timed(env.step(Action.call("click_named", name="Products", role="link"))))[0]
                    if round_:
                        found.append(took)
                        steps += [step] if ahead == 0 else []
            finally:
                await env.close()
    return [*map(statistics.median, resets.values()), statistics.median(steps)]


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats = 2 if given.quick else 15
    sites = ["shop"] if given.quick else sorted(SITES)
    rows = []
    for browser in ("chromium", "plain"):
        all_found = [asyncio.run(measure(site, browser, repeats)) for site in sites]
        mid = {name: statistics.median(value for one in all_found for value in one[name]) for name in all_found[0]}
        bar = 100.0 if browser == "chromium" else None
        rows += [
            Row(f"{browser}: reset", mid["reset"], mid["reload"], "reload + tree", "ms", bar, absolute=True),
            Row(f"{browser}: step", mid["step"], mid["goto"], "goto + tree", "ms"),
            Row(f"{browser}: fork", mid["fork"], mid["reset"], "reset", "ms"),
        ]
    for browser in ("chromium", "plain"):
        here, begun, ahead, step = asyncio.run(sandboxed(browser, repeats))
        rows += [
            Row(f"{browser}, sandbox: reset", begun, here, "in this process", "ms"),
            Row(f"{browser}, sandbox: reset, started ahead", ahead, here, "in this process", "ms"),
            Row(f"{browser}, sandbox: step", step, here, "reset in this process", "ms"),
        ]
    ours, floor = server("shop", 20 * repeats)
    rows.append(Row("server: reset", ours, floor, "bare deserialize", "ms"))
    finish("sites_reset", rows, given, sites=sites, repeats=repeats)


if __name__ == "__main__":
    main()
