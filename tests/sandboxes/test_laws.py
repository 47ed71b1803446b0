"""Laws j, k and m as properties of the real backend: random actions, forks and ends at random places."""

import asyncio
import os
from pathlib import Path

import pytest
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.namespace import NamespaceBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(90)]

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/b", "given.txt"])
ACTIONS = st.one_of(
    st.builds(lambda n, t: f"mkdir -p $(dirname ~/{n}) {n}.d; echo {t} > {n} || true", NAMES, st.integers(0, 9)),
    st.builds(lambda n, t: f"mkdir -p d/e; echo {t} >> {n}", NAMES, st.integers(0, 9)),
    st.builds(lambda n: f"rm -rf {n}; ls -R", NAMES),
    st.sampled_from(
        [
            "rm -rf d; ls",
            "rm -rf d; mkdir -p d/e; echo new > d/n",
            "ln -sf a link; ls -l link | cut -d' ' -f1",
            "chmod 600 a; stat -c %a a",
            "mv d moved; ls -R",
            "mkdir -p d/e; cd d/e; pwd",
            "cd /work; pwd",
            "n=$((n + 1)); echo $n",
            "f() { echo f $n $1; }; f x",
            "f y",
            "set -u; shopt -s nullglob; list=(*); echo ${#list[@]}",
            "python3 -c 'import os; print(sorted(os.listdir()))'",
            "exit 4",
        ]
    ),
)
BUDGET = settings(max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)


def results_of(outcome):
    return (outcome.exit_code, outcome.stdout, outcome.stderr)


async def play(sandbox, actions):
    return [results_of(await sandbox.exec(action)) for action in actions]


@pytest.mark.slow
@BUDGET
@given(before=st.lists(ACTIONS, max_size=5), after=st.lists(ACTIONS, min_size=1, max_size=5))
def test_j_a_fork_has_its_originals_future(state_for_laws, before, after):
    async def main():
        async with NamespaceBackend(root=state_for_laws) as backend:
            world = World(files={"/work/given.txt": "given\n"})
            async with await backend.create(world) as original, await backend.create(world) as unforked:
                assert await play(original, before) == await play(unforked, before)
                async with await original.fork() as fork:
                    futures = [await play(sandbox, after) for sandbox in (unforked, original, fork)]
                    assert futures[0] == futures[1] == futures[2]
                    digests = [await sandbox.digest() for sandbox in (unforked, original, fork)]
                    assert digests[0] == digests[1] == digests[2]
                    assert await fork.diff() == await unforked.diff()

    asyncio.run(main())


@pytest.mark.slow
@BUDGET
@given(data=st.data())
def test_k_nothing_done_in_a_fork_is_seen_elsewhere(state_for_laws, data):
    async def main():
        async with NamespaceBackend(root=state_for_laws) as backend:
            world = World(files={"/work/given.txt": "given\n"})
            family = [await backend.create(world)]
            histories = [[]]
            for _ in range(data.draw(st.integers(1, 4))):
                parent = data.draw(st.integers(0, len(family) - 1))
                family.append(await family[parent].fork())
                histories.append(list(histories[parent]))
                member = data.draw(st.integers(0, len(family) - 1))
                actions = data.draw(st.lists(ACTIONS, min_size=1, max_size=3))
                await play(family[member], actions)
                histories[member] += actions
            for sandbox, history in zip(family, histories, strict=True):
                async with await backend.create(world) as alone:
                    await play(alone, history)
                    assert await alone.digest() == await sandbox.digest(), (
                        "a state is its own history's, nobody else's"
                    )

    asyncio.run(main())


@pytest.mark.slow
def test_a_long_line_of_forks_stays_one_state(make, run, world):
    """Layers are merged when a chain grows long; whiteouts and replaced directories must survive that."""

    async def main():
        async with make() as backend, await backend.create(world) as plain:
            sandbox = await backend.create(world)
            steps = [
                "mkdir -p x/y; echo 1 > x/y/f",
                "rm -rf x; mkdir x; echo 2 > x/g",
                "rm given.txt",
                "echo 3 > given.txt",
            ]
            for index in range(28):
                step = [*steps, "rm -r x"][index % 5] + f"; echo {index} > n; rm -f m{index - 1}; echo > m{index}"
                await sandbox.exec(step)
                await plain.exec(step)
                child = await sandbox.fork()
                await sandbox.close()
                sandbox = child
            assert len(sandbox._frozen.chain) < 25
            assert await sandbox.digest() == await plain.digest()
            assert await sandbox.diff() == await plain.diff()
            assert (await sandbox.exec("ls -AR")).stdout == (await plain.exec("ls -AR")).stdout

    run(main())


def sleepers():
    """The processes that examples of law m leave running inside their sandboxes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command == b"sleep\x004243\x00":
                found.append(int(entry.name))
    return found


class Household:
    """Sandboxes and snapshots that come and go; each method is one thing that can happen to a member."""

    def __init__(self, backend, first):
        self.backend, self.family, self.snapshots = backend, [first], []

    async def create(self, member):
        self.family.append(await self.backend.create(World(files={"/work/f": "x"})))

    async def fork(self, member):
        self.family.append(await member.fork())

    async def snapshot(self, member):
        self.snapshots.append(await member.snapshot())

    async def restore(self, member):
        self.family += [await self.backend.restore(one) for one in self.snapshots[-1:]]

    async def release(self, member):
        if self.snapshots:
            await self.backend.release(self.snapshots.pop())

    async def work(self, member):
        await member.exec("mkdir -p d; echo x > d/f")

    async def background(self, member):
        await member.exec("setsid sleep 4243 >/dev/null 2>&1 &")

    async def close(self, member):
        if len(self.family) > 1:
            self.family.remove(member)
            await asyncio.gather(member.close(), member.close())


EVENTS = st.sampled_from(["create", "fork", "snapshot", "restore", "release", "work", "background", "close"])


@pytest.mark.slow
@BUDGET
@given(events=st.lists(st.tuples(EVENTS, st.integers(0, 99)), max_size=8))
def test_m_whatever_was_done_closing_leaves_nothing(state_for_laws, events):
    async def main():
        backend = NamespaceBackend(root=state_for_laws)
        async with backend:
            household = Household(backend, await backend.create(World()))
            for name, number in events:
                await getattr(household, name)(household.family[number % len(household.family)])
        await backend.__aexit__(None, None, None)
        for member in household.family:
            await member.close()

    asyncio.run(main())
    assert sorted(state_for_laws.iterdir()) == []
    assert sleepers() == []
    assert str(state_for_laws) not in Path("/proc/self/mounts").read_text()
    for parent in set(controllers().values()):
        assert list(Path(parent).glob(f"envgym-{os.getpid()}-*")) == []
