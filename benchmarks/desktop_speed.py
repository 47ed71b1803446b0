"""A desktop's times: warm reset (bar 300 ms), a step with screenshot and tree (bar 60 ms), displays side by side.

Beside them stand floors of the same run: for the reset, the same application's process start until it has a window,
without emptying anything; for the step, a look at the screen without an action. The tree is the calculator's: about
80 elements of the toolkit, of which 36 are told.
"""

import asyncio
import statistics
import time

from _harness import Row, finish, options
from envgym_sandboxes.desktop.screen import open_desktop
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.screen import Click
from envgym.task import World

PROGRAM = ["galculator"]


async def timed(work):
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def one(repeats):
    """Medians in ms: opening, reset, launch alone, step, view alone, act alone."""
    async with NamespaceBackend() as backend, await backend.create(World()) as sandbox:
        began = time.perf_counter()
        screen = await open_desktop(sandbox)
        opened = (time.perf_counter() - began) * 1e3
        launches, resets, steps, views, acts = [], [], [], [], []
        for _ in range(repeats):
            cleared = await timed(screen.clear())
            launches.append(await timed(screen.launch(PROGRAM)))
            resets.append(cleared + launches[-1])
        key = (await screen.view()).find("toggle button", "7")[0].ref
        for _ in range(3 * repeats):
            acted = await timed(screen.act(Click(key)))
            viewed = await timed(screen.view(image=True, tree=True))
            steps.append(acted + viewed)
            views.append(viewed)
            acts.append(acted)
        await screen.close()
    return [opened, *(statistics.median(values) for values in (resets, launches, steps, views, acts))]


async def many(count):
    """Seconds until `count` displays have an application each, and steps per second on all of them at once."""

    async def begin(sandbox):
        screen = await open_desktop(sandbox)
        await screen.launch(PROGRAM, within_s=300)
        return screen

    async with NamespaceBackend() as backend:
        began = time.perf_counter()
        sandboxes = await asyncio.gather(*(backend.create(World()) for _ in range(count)))
        screens = await asyncio.gather(*map(begin, sandboxes))
        started = time.perf_counter() - began
        began = time.perf_counter()
        digits = await asyncio.gather(*map(press, screens, range(count)))
        rate = 2 * count / (time.perf_counter() - began)
        crossed = sum(shown != str(at % 10) * 2 for at, shown in enumerate(digits))
        for sandbox in sandboxes:
            await sandbox.close()
    return started, rate, crossed


async def press(screen, at):
    """Press one digit twice; what the display shows then."""
    key = (await screen.view()).find("toggle button", str(at % 10))[0].ref
    for _ in range(2):
        await screen.act(Click(key))
    shown = (await screen.view(image=True)).find("text")[0].text
    return shown if at % 10 else shown * 2  # a zero is one zero


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats, displays = (2, 2) if given.quick else (7, 16)
    opened, reset, launch, step, view, act = asyncio.run(one(repeats))
    started, rate, crossed = asyncio.run(many(displays))
    rows = [
        Row("warm reset", reset, launch, "start of the application", "ms", 300.0, absolute=True),
        Row("step: click, tree, screenshot", step, view, "tree and screenshot", "ms", 60.0, absolute=True),
        Row("click until all rest", act, view, "tree and screenshot", "ms"),
        Row("opening a display", opened, launch, "start of the application", "ms"),
        Row(f"{displays} displays with an application", started, opened / 1e3, "opening one", "s"),
        Row("displays that show another's digits", crossed, displays, "displays", "number", 0, absolute=True),
    ]
    finish("desktop_speed", rows, given, steps_per_second=rate, displays=displays)


if __name__ == "__main__":
    main()
