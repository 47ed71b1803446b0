"""What a snapshot holds, as a law: whatever was done in between and merged since, each restores its own tree."""

import asyncio
import json

import pytest
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from envgym.sandbox import WARM_PYTHON
from envgym.task import Tree, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]

NAMES = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "given.txt", "t", "t/f", "t/x", "t/x/g"]

PLAY = """
import json, os, shutil, stat, sys
def sparse(p, n):
    with opened(p, os.O_TRUNC) as f:
        f.seek(300000 + n); f.write("end"); f.truncate(900000 + n)
def fresh(p):
    if os.path.isdir(p) and not os.path.islink(p): shutil.rmtree(p)
    elif os.path.lexists(p): os.unlink(p)
def replaced(p, make):
    fresh(p); make(p)
def opened(p, how):
    return os.fdopen(os.open(p, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how), "w")  # not waiting at a fifo
acts = {
    "write": lambda p, q, n: opened(p, os.O_TRUNC).write(f"{q}{n}" * n),
    "append": lambda p, q, n: opened(p, os.O_APPEND).write(f"{n}"),
    "sparse": lambda p, q, n: sparse(p, n),
    "remove": lambda p, q, n: fresh(p),
    "rename": lambda p, q, n: os.rename(p, q),
    "mkdir": lambda p, q, n: os.makedirs(p, exist_ok=True),
    "emptied": lambda p, q, n: replaced(p, os.mkdir),
    "file": lambda p, q, n: replaced(p, lambda p: open(p, "w").write(str(n))),
    "link": lambda p, q, n: os.link(p, q),
    "symlink": lambda p, q, n: replaced(p, lambda p: os.symlink(q, p)),
    "mode": lambda p, q, n: os.chmod(p, [0o700, 0o6755, 0o777, 0o555, 0o1777][n % 5]),
    "time": lambda p, q, n: os.utime(p, ns=(10**18 + n, 10**18 + n)),
    "attribute": lambda p, q, n: os.setxattr(p, f"user.{q[0]}", str(n).encode()),
    "trick": lambda p, q, n: os.setxattr(p, ["user.overlay.opaque", "user.overlay.whiteout"][n % 2], b"y"),
    "plain": lambda p, q, n: [os.removexattr(p, name) for name in os.listxattr(p)],
    "fifo": lambda p, q, n: replaced(p, os.mkfifo),
    "socket": lambda p, q, n: replaced(p, lambda p: os.mknod(p, stat.S_IFSOCK | 0o700)),
}
for act, p, q, n in json.loads(sys.argv[1]):
    try: acts[act](p, q, n)
    except OSError: pass
"""

LOOK = """
import hashlib, json, os, stat, sys
found, names = {}, {}
def look(p):
    info = os.lstat(p)
    kind = stat.S_IFMT(info.st_mode)
    told = [oct(info.st_mode), info.st_mtime_ns]
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        names_of = [name for name in sorted(os.listxattr(p)) if name[:5] == "user."]
        told.append([[name, os.getxattr(p, name).decode()] for name in names_of])
    if kind == stat.S_IFREG:
        told += [info.st_size, hashlib.sha256(open(p, "rb").read()).hexdigest()]
        names.setdefault((info.st_dev, info.st_ino), []).append(p)
    if kind == stat.S_IFLNK:
        told.append(os.readlink(p))
    if kind == stat.S_IFDIR:
        for name in sorted(os.listdir(p)):
            look(p + "/" + name)
    found[p] = told
look(".")
print(json.dumps([found, sorted(group for group in names.values() if len(group) > 1)]))
"""

ACTS = st.sampled_from(
    [
        *("write", "append", "sparse", "remove", "rename", "mkdir", "emptied", "file", "link", "symlink", "mode"),
        *("time", "attribute", "trick", "plain", "fifo", "socket"),
    ]
)
TURNS = st.lists(
    st.lists(
        st.tuples(ACTS, st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(1, 5)), min_size=1, max_size=5
    ),
    min_size=3,
    max_size=9,
)
BUDGET = settings(
    max_examples=12,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # an example takes long: one that fails is shown as it is
)


def namespace(root):
    return NamespaceBackend(root=root)


def unprivileged(root):
    """The mode of an ordinary user: a user namespace, and overlay's attributes under other names."""
    backend = NamespaceBackend(root=root)
    backend._privileged, backend._uid = False, 1000
    backend._worlds._owner = 1000
    return backend


async def look(sandbox):
    result = await sandbox.exec([WARM_PYTHON, "-c", LOOK])
    assert result.ok, result
    return json.loads(result.stdout)


async def play(sandbox, turn):
    result = await sandbox.exec([WARM_PYTHON, "-c", PLAY, json.dumps(turn)])
    assert result.ok, result


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    top = tmp_path_factory.mktemp("planted")
    (top / "x").mkdir()
    (top / "f").write_text("tree\n")
    (top / "x/g").write_text("deep\n")
    return top


async def check_diffs(sandbox, kept):
    """A diff since a snapshot is what the two trees say, whatever layers they stand on by now."""
    now = await look(sandbox)
    for snapshot, then in kept:
        found = await sandbox.diff(snapshot)
        files = {path: told for path, told in now[0].items() if int(told[0], 8) >> 12 in (0o10, 0o12)}
        wanted = {path for path, told in files.items() if without_times(then[0].get(path)) != without_times(told)}
        wanted |= set(then[0]) - set(now[0])
        assert {path.replace("/work", ".", 1) for path in found} == wanted
        for path in set(then[0]) - set(now[0]):
            assert found[path.replace(".", "/work", 1)] is None


def without_times(told):
    return told and [told[0], *told[2:]]


SLOW = pytest.mark.slow
MODES = [namespace, pytest.param(unprivileged, marks=SLOW), pytest.param(LocalBackend, marks=SLOW)]


@pytest.mark.slow
@pytest.mark.parametrize("make", MODES)
@BUDGET
@given(turns=TURNS)
def test_every_snapshot_restores_the_tree_it_had(state_for_laws, planted, make, turns):
    async def main():
        backend = make(root=state_for_laws)
        backend.states.layers.width = 2
        world = World(files={"/work/given.txt": "given\n"}, trees=(Tree(source=str(planted), target="/work/t"),))
        async with backend, await backend.create(world) as sandbox:
            kept = []
            for turn in turns:
                await play(sandbox, turn)
                before = await look(sandbox)
                snapshot = await sandbox.snapshot()
                assert await look(sandbox) == before, "a snapshot changes nothing"
                kept.append((snapshot, before))
            await backend.states.layers.quiet()
            for snapshot, tree in kept:
                async with await backend.restore(snapshot) as again:
                    assert await look(again) == tree
                    assert await again.digest() == snapshot.digest
                    assert await again.diff(snapshot) == {}
            await check_diffs(sandbox, kept)
            for snapshot, _tree in kept[::2]:
                await backend.release(snapshot)
            kept = kept[1::2]
            await check_diffs(sandbox, kept)
            for layer in backend.states.layers.known.values():
                layer.total = None
            for snapshot, _tree in kept:
                async with await backend.restore(snapshot) as again:
                    assert await again.digest() == snapshot.digest, "a digest is the state's, not its history's"

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("make", [namespace, unprivileged, LocalBackend])
@settings(BUDGET, max_examples=6)
@given(turns=TURNS)
def test_every_durable_snapshot_restores_the_tree_it_had_in_another_backend(
    state_for_laws, planted, make, turns, tmp_path_factory
):
    place = tmp_path_factory.mktemp("kept")

    def made():
        backend = make(root=state_for_laws)
        backend.states.keeping.store = Store(place)
        backend.states.layers.width = 2
        return backend

    async def main():
        world = World(files={"/work/given.txt": "given\n"}, trees=(Tree(source=str(planted), target="/work/t"),))
        kept = []
        async with made() as backend, await backend.create(world) as sandbox:
            for number, turn in enumerate(turns):
                await play(sandbox, turn)
                if number % 3 == 1:  # some layers are stored only after they were merged
                    await backend.release(await sandbox.snapshot())
                    continue
                before = await look(sandbox)
                kept.append((await sandbox.snapshot(durable=True), before))
            await backend.states.layers.quiet()
        async with made() as backend:
            for snapshot, tree in reversed(kept):
                async with await backend.restore(snapshot) as again:
                    assert await look(again) == tree
                    again_kept = await again.snapshot(durable=True)
                    assert again_kept.digest == snapshot.digest
                    await backend.release(again_kept)
                await backend.release(snapshot)
        assert list((place / "objects").iterdir()) == []

    asyncio.run(main())
