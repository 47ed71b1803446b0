"""What one turn of the tool environments costs: sql (bar 2 ms), python warm (bar 5 ms), a service's look.

Beside each stands its floor in the same run: the same SELECT on a bare sqlite3 connection, the same cell by `exec`
in this process, the same look as a bare function. A turn is a call read, checked, done, shown and made a Step; of
`python` it is also a way into a sandbox and back. `fork` is an
environment's fork: for `python` a fork of the interpreter's process (bar 5 ms).
"""

import asyncio
import sqlite3
import time

from _harness import Row, finish, medians_of, options
from envgym_environments.tool.python.world import SPEC as PYTHON
from envgym_environments.tool.service.world import SPEC as SERVICE
from envgym_environments.tool.sql.world import SPEC as SQL
from envgym_environments.tool.sql.world import sources
from envgym_sandboxes.namespace import NamespaceBackend

from envgym import Action, make

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


async def python_turns(rounds, turns):
    """Medians over rounds: ms of a turn, of its floor, of an environment's fork."""
    ours, floor, forks = [], [], []
    async with NamespaceBackend() as backend:
        env = make(PYTHON, 0, backend=backend, cells=10**9)
        await env.reset(seed=0)
        action, names = Action.call("python", code=CELL), {}
        await env.step(action)
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(turns):
                await env.step(action)
            ours.append((time.perf_counter() - began) / turns * 1e3)
            began = time.perf_counter()
            for _ in range(turns):
                exec(compile(CELL, "cell", "exec"), names)
            floor.append((time.perf_counter() - began) / turns * 1e3)
            began = time.perf_counter()
            fork = await env.fork()
            forks.append((time.perf_counter() - began) * 1e3)
            await fork.close()
        await env.close()
    return [sorted(values)[len(values) // 2] for values in (ours, floor, forks)]


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats, turns = (1, 20) if given.quick else (9, 300)
    sql, bare_sql, service, bare_service = medians_of(repeats, *sql_turns(turns), *service_turns(turns))
    python, bare_python, fork = asyncio.run(python_turns(max(3, repeats), 10 if given.quick else 50))
    rows = [
        Row("sql turn", sql, bare_sql, "bare sqlite3", "ms", 2.0, absolute=True),
        Row("python turn, warm", python, bare_python, "exec in process", "ms", 5.0, absolute=True),
        Row("python fork", fork, python, "one turn", "ms", 5.0, absolute=True),
        Row("service look", service, bare_service, "bare function", "ms"),
    ]
    finish("tool_turns", rows, given, turns=turns)


if __name__ == "__main__":
    main()
