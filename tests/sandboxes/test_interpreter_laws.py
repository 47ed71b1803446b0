"""Laws j, k and m of the interpreter: random programs over branches, against Python itself in this process."""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.namespace import NamespaceBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.limits import Resources
from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(110)]

BUDGET = settings(max_examples=6, suppress_health_check=list(HealthCheck), derandomize=True)
WORLD = World(resources=Resources(memory_bytes=512 << 20), files={"/work/given.txt": "given\n"})
FIRST = "import os, random\nrandom.seed(1)\nitems = []\nlog = open('log.txt', 'a')"
DEATH = "items.append('dead'); os._exit(1)"
NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 9)
CELLS = st.one_of(
    st.builds("{0} = {1}".format, NAMES, NUMBERS),
    st.builds("{0} = globals().get('{1}', 0) + {2}".format, NAMES, NAMES, NUMBERS),
    st.builds("items.append({0}); items[-3:]".format, NUMBERS),
    st.builds("{0} = items".format, NAMES),
    st.builds("def {0}(n={1}):\n    return n + len(items)".format, NAMES, NUMBERS),
    st.builds("del {0}".format, NAMES),
    st.builds("{0} = {1}\nraise ValueError({1})".format, NAMES, NUMBERS),
    st.builds("log.write('{0} '); log.flush()".format, NUMBERS),
    st.builds("open('made.txt', 'a').write('{0}')".format, NUMBERS),
    st.builds("os.makedirs('d{0}', exist_ok=True); sorted(os.listdir())".format, NUMBERS),
    st.sampled_from(
        [
            "random.random()",
            "items.sort(key=str); items",
            "items = {*items}; items = sorted(items, key=str)",
            "g = (n * n for n in range(100))",
            "next(g)",
            "a()",
            "print(sorted(name for name in globals() if len(name) == 1))",
            "open('log.txt').read(), os.path.exists('made.txt') and open('made.txt').read()",
            DEATH,
        ]
    ),
)


REFERENCE = """
import contextlib, json, sys
names = {}
for cell in json.loads(sys.argv[1]):
    with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
        exec(cell, names)
print(repr(eval(sys.argv[2], names)), end='')
"""
LOOK = """
[
    {n: 'f' if callable(v) else v for n, v in globals().items() if n in ('a', 'b', 'c', 'items')},
    {n: open(n).read() for n in sorted(os.listdir()) if os.path.isfile(n)},
    random.random(),
]
"""


def reference(history: list[str]) -> str:
    """What LOOK gives after these cells, as Python itself makes it; a cell that dies does nothing."""
    cells = json.dumps([cell for cell in history if cell != DEATH])
    with tempfile.TemporaryDirectory() as place:
        Path(place, "given.txt").write_text("given\n")
        command = [sys.executable, "-I", "-c", REFERENCE, cells, LOOK.strip()]
        return subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
@BUDGET
@given(data=st.data())
def test_k_every_branch_is_its_own_history_and_nobody_elses(state_for_laws, data):
    async def main():
        async with NamespaceBackend(root=state_for_laws) as backend, await backend.create(WORLD) as sandbox:
            first = await open_interpreter(sandbox)
            await first.run(FIRST)
            family, histories, kept = [first], [[FIRST]], []
            for _ in range(data.draw(st.integers(3, 10))):
                member = data.draw(st.integers(0, len(family) - 1))
                what = data.draw(st.sampled_from(["run", "run", "run", "fork", "snapshot", "restore", "close"]))
                if what == "fork":
                    family.append(await family[member].fork())
                    histories.append([*histories[member]])
                elif what == "snapshot":
                    kept.append((await family[member].snapshot(), [*histories[member]]))
                elif what == "restore" and kept:
                    snapshot, history = kept[data.draw(st.integers(0, len(kept) - 1))]
                    family.append(await family[member].restore(snapshot))
                    histories.append([*history])
                elif what == "close" and len(family) > 1:
                    await family.pop(member).close()
                    histories.pop(member)
                elif what == "run":
                    cells = data.draw(st.lists(CELLS, min_size=1, max_size=3))
                    for cell in cells:
                        result = await family[member].run(cell)
                        assert (result.state == "rolled back") == (cell == DEATH), result
                    histories[member] += cells
            for one, history in zip(family, histories, strict=True):
                assert one.unforked == ()
                found = await one.run(LOOK)
                assert found.ok, found
                assert found.value == reference(history), "a state is its own history's, nobody else's"

    asyncio.run(main())


def told(result):
    """What a result says but for the time that it took."""
    return (result.stdout, result.stderr, result.value, result.error, result.state, result.notes)


@pytest.mark.slow
@BUDGET
@given(before=st.lists(CELLS, max_size=4), after=st.lists(CELLS, min_size=1, max_size=5))
def test_j_a_fork_has_its_originals_future(state_for_laws, before, after):
    async def main():
        async with NamespaceBackend(root=state_for_laws) as backend, await backend.create(WORLD) as sandbox:
            one = await open_interpreter(sandbox)
            alone = await open_interpreter(sandbox)  # in another family, never forked
            for cell in (FIRST, *before):
                assert told(await one.run(cell)) == told(await alone.run(cell))
            fork = await one.fork()
            kept = await fork.snapshot()
            restored = await one.restore(kept)
            for cell in after:
                futures = [told(await branch.run(cell)) for branch in (alone, one, fork, restored)]
                assert futures.count(futures[0]) == 4, futures
            digests = {await branch.digest() for branch in (alone, one, fork, restored)}
            assert len(digests) == 1

    asyncio.run(main())


class Household:
    """Branches and kept states that come and go; each method is one thing that can happen to a branch."""

    def __init__(self, sandbox, first):
        self.sandbox, self.family, self.kept = sandbox, [first], []

    async def open(self, _one):
        self.family.append(await open_interpreter(self.sandbox))

    async def fork(self, one):
        self.family.append(await one.fork())

    async def snapshot(self, one):
        self.kept.append((one, await one.snapshot()))

    async def release(self, _one):
        for owner, snapshot in [self.kept.pop()] if self.kept and self.kept[-1][0] in self.family else []:
            await owner.release(snapshot)

    async def close(self, one):
        if len(self.family) > 1:
            self.family.remove(one)
            await asyncio.gather(one.close(), one.close())

    async def die(self, one):
        await one.run("import os; os._exit(1)")

    async def background(self, one):
        await one.run("import subprocess; subprocess.Popen(['sleep', '4245'])")

    async def run(self, one):
        await one.run("open('file', 'w').close(); x = 1")


EVENTS = st.sampled_from(["open", "fork", "snapshot", "release", "close", "die", "background", "run"])


@pytest.mark.slow
@BUDGET
@given(events=st.lists(st.tuples(EVENTS, st.integers(0, 99)), max_size=10))
def test_m_whatever_was_done_closing_leaves_nothing(state_for_laws, events):
    async def main():
        async with NamespaceBackend(root=state_for_laws) as backend, await backend.create(WORLD) as sandbox:
            household = Household(sandbox, await open_interpreter(sandbox))
            for name, number in events:
                await getattr(household, name)(household.family[number % len(household.family)])
            for one in household.family:
                await one.close()
            left = await sandbox.exec(
                "ls -A ~/.interpreters; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[4]245 '"
            )
            assert left.stdout == b"0\n", left
            assert not (await sandbox.snapshot()).partial, "no process is left"

    asyncio.run(main())
