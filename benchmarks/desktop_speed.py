"""A desktop's times: warm reset (bar 300 ms), a step with screenshot and tree (bar 60 ms), 16 displays at once.

Reset and step are the environment's: what an agent waits for, from its action to what it is shown, home and state
key included. Beside them stand floors of the same run, on the same display: for the reset, the same application's
process start until it has a window, without emptying anything; for a look with tree and picture, and for the step,
GNOME's libatspi, Xlib and zlib alone (`_desktop_floor.py`: the same content, a click that is not waited for). Below
the step stand our own click and look without the environment. For a new environment that takes a display which
waited, there is one that opens its own; for memory, a display without application. The tree is the calculator's: 81
elements of the toolkit, of which 36 are told. Memory is the proportional share (PSS) of all processes of the
sandboxes.
"""

import asyncio
import json
import os
import statistics
import time
from itertools import cycle
from pathlib import Path

from _harness import Row, finish, options
from envgym_environments.gui.desktop import desktop_tasks
from envgym_sandboxes.desktop.inside.rest import descendants
from envgym_sandboxes.desktop.screen import open_desktop
from envgym_sandboxes.namespace import NamespaceBackend

from envgym import Action
from envgym.registry import make
from envgym.screen import Click
from envgym.task import World

PROGRAM = ["galculator"]
FLOOR = Path(__file__).with_name("_desktop_floor.py").read_text()
DIGITS = (*"12345678", "AC", *"98765432", "AC")


async def timed(work):
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1e3


async def one(repeats):
    """Medians in ms, by name, of one environment and of its display; MB of a display alone."""
    took = {name: [] for name in ("reset", "launch", "step", "below", "act", "view")}
    async with NamespaceBackend() as backend:
        async with await backend.create(World()) as sandbox:
            began = time.perf_counter()
            screen = await open_desktop(sandbox)
            opened = (time.perf_counter() - began) * 1e3
            alone = memory_mb()
            await screen.close()
        env = make("desktop", desktop_tasks(kind="arithmetic")[0], backend=backend, see="both")
        await env.reset(seed=0)
        screen = env.inner._display.screen
        for _ in range(repeats):
            await screen.clear()
            took["launch"].append(await timed(screen.launch(PROGRAM)))
            took["reset"].append(await timed(env.reset(seed=0)))
        view = await screen.view()
        keys = cycle(view.find("toggle button", name)[0].ref for name in DIGITS)  # so that each click shows another
        for _ in range(3 * repeats):
            took["step"].append(await timed(env.step(Action.call("click", target=next(keys)))))
            took["act"].append(await timed(screen.act(Click(next(keys)))))
            took["view"].append(await timed(screen.view(image=True, tree=True)))
            took["below"].append(took["act"][-1] + took["view"][-1])
        plain = await floor(screen.sandbox, 3 * repeats)
        await env.close()
    mid = {name: statistics.median(values) for name, values in took.items()}
    return mid | {"opened": opened, "alone": alone, "plain look": plain["tree"] + plain["picture"], **plain}


async def floor(sandbox, repeats):
    """Medians in ms of the same click and look by libraries alone."""
    told = await sandbox.exec(["/usr/bin/python3", "-c", FLOOR, *PROGRAM, str(repeats)], timeout_s=120)
    if told.exit_code:
        raise RuntimeError(f"the floor: {told.stderr.decode()[-1000:]}")
    return json.loads(told.stdout)


async def environments(repeats):
    """Medians in ms from a new environment to its first observation: with a display that waited, and without."""
    task = desktop_tasks(kind="arithmetic")[0]
    async with NamespaceBackend() as backend:
        found = []
        for warm in (1, 0):
            times = []
            for _ in range(repeats + warm):
                env = make("desktop", task, backend=backend, warm=warm)
                times.append(await timed(env.reset(seed=0)))
                await env.close()
            found.append(statistics.median(times[warm:]))  # the first opened its own
    return found


def memory_mb():
    """The proportional share of all processes below this one."""
    shares = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in descendants(os.getpid())]
    return (
        sum(int(line.split()[1]) for text in shares for line in text.splitlines() if line.startswith("Pss:")) / 1024
    )


async def many(count):
    """Seconds until `count` displays have an application each, steps per second on all, MB of each, mistakes."""

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
        share = memory_mb() / count
        crossed = sum(shown != str(at % 10) * 2 for at, shown in enumerate(digits))
        for sandbox in sandboxes:
            await sandbox.close()
    return started, rate, share, crossed


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
    mid = asyncio.run(one(repeats))
    launch, plain = mid["launch"], "libatspi, Xlib and zlib"
    waited, fresh = asyncio.run(environments(repeats))
    started, rate, share, crossed = asyncio.run(many(displays))
    rows = [
        Row("warm reset", mid["reset"], launch, "start of the application", "ms", 300.0, absolute=True),
        Row(
            "step: click, tree, screenshot",
            mid["step"],
            mid["click"] + mid["plain look"],
            plain,
            "ms",
            60.0,
            absolute=True,
        ),
        Row("tree and screenshot", mid["view"], mid["plain look"], plain, "ms"),
        Row("click until all rest", mid["act"], mid["click"], "a click not waited for", "ms"),
        Row("click and look", mid["below"], mid["step"], "the environment's step", "ms"),
        Row("new environment, display waited", waited, fresh, "with a display of its own", "ms"),
        Row("opening a display", mid["opened"], launch, "start of the application", "ms"),
        Row(f"{displays} displays with an application", started, mid["opened"] / 1e3, "opening one", "s"),
        Row(f"memory of each of {displays}", share, mid["alone"], "a display alone", "MB"),
        Row("displays that show another's digits", crossed, displays, "displays", "number", 0, absolute=True),
    ]
    finish("desktop_speed", rows, given, steps_per_second=rate, displays=displays)


if __name__ == "__main__":
    main()
