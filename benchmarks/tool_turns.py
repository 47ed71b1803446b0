"""What one turn of the tool environments costs: sql (bar 2 ms), python warm (bar 5 ms), a service's look.

Beside each stands its floor in the same run: the same SELECT on a bare sqlite3 connection, the same cell in a bare
interpreter, the same look as a bare function. A turn is a call read, checked, done, shown and made a Step; of
`python` it is also a way into a sandbox and back, which is most of it. `fork` is a fork of the interpreter's
process (bar 5 ms).
"""

import asyncio
import sqlite3
import statistics
import time

from _harness import Row, finish, medians_of, options
from envgym_environments.tool.python.world import SPEC as PYTHON
from envgym_environments.tool.service.world import SPEC as SERVICE
from envgym_environments.tool.sql.world import SPEC as SQL
from envgym_environments.tool.sql.world import sources
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.namespace import NamespaceBackend

from envgym import Action, make
from envgym.limits import Resources
from envgym.task import World

BARE, PAUSE_S = "the interpreter alone", 0.05
CELL = "total = sum(k * k for k in range(100)); total"


def sql_turns(turns):
    task = SQL.tasks(100, complexity=5)[0]
    sql = str(task.metadata["sql"])
    env = make(SQL, task, looks=turns)
    action = Action.call("query", sql=sql)

    async def ours():
        await env.reset(seed=0)
        began = time.perf_counter()
        for _ in range(turns):
            await env.step(action)
        return (time.perf_counter() - began) / turns * 1e3

    def bare():
        connection = sqlite3.connect(":memory:")
        connection.deserialize(sources(task)[0])
        began = time.perf_counter()
        for _ in range(turns):
            connection.execute(sql).fetchmany(21)
        took = (time.perf_counter() - began) / turns * 1e3
        connection.close()
        return took

    return (lambda: asyncio.run(ours())), bare


def service_turns(turns):
    task = SERVICE.tasks(5, service="office")[0]
    env = make(SERVICE, task)

    async def ours():
        await env.reset(seed=0)
        began = time.perf_counter()
        for _ in range(turns):
            await env.step(Action.call("list_contacts"))
        return (time.perf_counter() - began) / turns * 1e3

    def bare():
        desk = env.rules._desk({"contacts": ["a"] * 14})
        began = time.perf_counter()
        for _ in range(turns):
            desk.list_contacts()
        return (time.perf_counter() - began) / turns * 1e3

    return (lambda: asyncio.run(ours())), bare


async def python_turns(turns):
    """Medians in ms: a turn, the interpreter's bare cell, a cell by `exec`, and forks of both.

    Turns and bare cells alternate, so that all see the same load. `after a pause` is what an agent waits for: the
    copy that protects a state is made after the answer, while a model thinks. `back to back` waits for that copy.
    """
    times, action = {}, Action.call("python", code=CELL)
    async with NamespaceBackend() as backend:
        env = make(PYTHON, 0, backend=backend, cells=10**9)
        await env.reset(seed=0)
        world = World(resources=Resources(output_bytes=1 << 18, memory_bytes=1 << 30))
        async with await backend.create(world) as sandbox, await open_interpreter(sandbox, seed=0) as bare:

            async def timed(name, awaitable):
                began = time.perf_counter()
                found = await awaitable
                times.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
                return found

            for pause_s, when in ((0.0, "back to back"), (PAUSE_S, "after a pause")):
                for _ in range(turns):
                    await asyncio.sleep(pause_s)
                    await timed(f"turn, {when}", env.step(action))
                for _ in range(turns):
                    await asyncio.sleep(pause_s)
                    await timed(f"cell, {when}", bare.run(CELL))
            for _ in range(max(3, turns // 5)):
                await asyncio.sleep(PAUSE_S)
                await (await timed("environment's fork", env.fork())).close()
                await asyncio.sleep(PAUSE_S)
                await (await timed("interpreter's fork", bare.fork())).close()
        await env.close()
    return {name: statistics.median(found) for name, found in times.items()}


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats, turns = (1, 20) if given.quick else (9, 300)
    sql, bare_sql, service, bare_service = medians_of(repeats, *sql_turns(turns), *service_turns(turns))
    python = asyncio.run(python_turns(10 if given.quick else 200))
    pairs = [(f"turn, {when}", f"cell, {when}") for when in ("after a pause", "back to back")]
    pairs.append(("environment's fork", "interpreter's fork"))
    rows = [
        Row("sql turn", sql, bare_sql, "bare sqlite3", "ms", 2.0, absolute=True),
        *(
            Row(f"python {ours}", python[ours], python[floor], BARE, "ms", 5.0, absolute=True)
            for ours, floor in pairs
        ),
        Row("service look", service, bare_service, "bare function", "ms"),
    ]
    finish("tool_turns", rows, given, turns=turns)


if __name__ == "__main__":
    main()
