"""Durable snapshots: what survives, what it costs, who may share it, and what damage does."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from envgym_sandboxes.durable.records import decode_manifest, encode_manifest
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

from envgym.errors import SandboxUnavailable, SnapshotGone, StoreCorrupt
from envgym.task import Tree, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]


@pytest.fixture
def planted(tmp_path):
    top = tmp_path / "tree"
    (top / "inner").mkdir(parents=True)
    (top / "inner/file").write_text("of the tree\n")
    return top


def things(kept):
    return sorted((kept / "objects").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NamespaceBackend, LocalBackend, LandlockBackend])
def test_a_durable_snapshot_is_restored_by_another_backend_without_its_trees(state, run, kept, planted, kind):
    world = World(
        trees=(Tree(source=str(planted), target="/work/tree"),),
        files={"/work/given.txt": "given\n"},
        setup=("echo made > by-setup",),
    )

    async def main():
        async with kind(root=state, snapshots=kept) as backend, await backend.create(world) as sandbox:
            await sandbox.exec("echo one > f; rm given.txt; cd tree; v=1; ln ../f ../g; mkdir ../d; ln -s f ../l")
            snapshot = await sandbox.snapshot(durable=True)
            await sandbox.exec("echo two > ../f; rm -r inner; echo late > late")
            later = await sandbox.snapshot(durable=True)
        for path in (planted / "inner/file", planted / "inner", planted):
            path.unlink() if path.is_file() else path.rmdir()
        async with kind(root=state, snapshots=kept) as backend:
            assert {one.id for one in await backend.snapshots()} == {snapshot.id, later.id}
            for one, wanted in ((snapshot, b"tree one of the tree made 1\n"), (later, b"tree two late made 1\n")):
                async with await backend.restore(one) as again:
                    assert again.world == world
                    result = await again.exec('echo $(basename "$PWD") $(cat ../f inner/file late ../by-setup) $v')
                    assert result.stdout.endswith(wanted), result
                    assert await again.digest() == one.digest
                    assert (await again.exec("test ../f -ef ../g || test -e late; test ! -e ../given.txt")).ok
                    async with await again.fork() as forked:
                        await forked.exec("echo three > ../f")
                        assert await forked.diff(one) != {}
                await backend.release(one)
            assert things(kept) == [], "with the last snapshot goes all that it stood on"
            assert await backend.snapshots() == []

    run(main())


def test_what_was_given_outside_the_workdir_can_be_written_to_after_a_restore(make, run, planted):
    world = World(trees=(Tree(source=str(planted), target="/opt2/pkg"),), files={"/srv/x/given": "given\n"})

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.exec("echo 1 > /opt2/pkg/inner/file; echo 1 > /srv/x/given")
            snapshot = await sandbox.snapshot(durable=True)
        async with make() as backend, await backend.restore(snapshot) as again:
            result = await again.exec("echo 2 >> /opt2/pkg/inner/file; echo 2 >> /srv/x/given; cat /srv/x/given")
            assert result.stdout == b"1\n2\n", result
            assert await again.read("/opt2/pkg/inner/file") == b"1\n2\n"

    run(main())


@pytest.mark.slow
def test_each_layer_is_written_once_however_many_snapshots_stand_on_it(make, run, kept):
    turns, size = 60, 20_000

    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            taken = []
            for turn in range(turns):
                await sandbox.write(f"{turn}", os.urandom(size))
                taken.append(await sandbox.snapshot(durable=True))
            layers = [path for path in things(kept) if path.read_bytes().startswith(b"envgym-layer")]
            assert len(layers) == turns + 1, "one per turn, and the world's own"
            assert sum(path.stat().st_size for path in layers) < turns * (size + 1000)
            assert len(things(kept)) - len(layers) < turns / 4 + turns + 8, "lists, shells and a world"
        async with make() as backend:
            for turn in (0, 7, 8, 31, 59):
                async with await backend.restore(taken[turn]) as again:
                    listed = await again.exec("ls | wc -l; wc -c < " + str(turn))
                    assert listed.stdout.split() == [b"%d" % (turn + 1), b"%d" % size]
                    assert len(again._frozen.chain) < 16, "a restored chain is as short as it was"
                    snapshot = await again.snapshot(durable=True)
                    await backend.release(snapshot)
            assert len(things(kept)) == len(things(kept))
            for one in taken:
                await backend.release(one)
        assert things(kept) == []

    run(main())


OWNER = """
import asyncio, os, sys
from envgym.task import World
from envgym_sandboxes.namespace import NamespaceBackend

async def main():
    async with NamespaceBackend(root=sys.argv[1], snapshots=sys.argv[2]) as backend:
        sandbox = await backend.create(World())
        for turn in range(10_000):
            await sandbox.write(f"{turn}", os.urandom(50_000))
            snapshot = await sandbox.snapshot(durable=True)
            print(turn, snapshot.id, snapshot.digest, flush=True)
            if turn % 3 == 2:
                await backend.release(snapshot)
                print("released", snapshot.id, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_what_was_told_survives_a_kill_of_its_owner_at_any_moment(make, run, state, kept, after):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state), str(kept)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        for _ in range(after):
            owner.stdout.readline()
        owner.send_signal(signal.SIGKILL)
        told = owner.stdout.read().splitlines()

    async def main():
        async with make() as backend:
            listed = {one.id: one for one in await backend.snapshots()}
            released = {line.split()[1] for line in told if line.startswith("released")}
            for line in told:
                if line.startswith("released"):
                    continue
                turn, name, digest = line.split()
                if name in released:
                    assert name not in listed
                elif name in listed:
                    async with await backend.restore(listed[name]) as again:
                        assert await again.digest() == digest
                        assert len(await again.read(turn)) == 50_000
            backend.reap()
            assert list((kept / "making").iterdir()) == [], "what was half written is removed"
            for one in listed.values():
                await backend.release(one)
        assert things(kept) == []

    run(main())


COUNTER = """
import asyncio, sys
from envgym_sandboxes.namespace import NamespaceBackend

async def main():
    backend = NamespaceBackend(root=sys.argv[1], snapshots=sys.argv[2])
    [snapshot] = await backend.snapshots()
    for _ in range(30):
        await backend.retain(snapshot)
    for _ in range(30 - int(sys.argv[3])):
        await backend.release(snapshot)

asyncio.run(main())
"""


@pytest.mark.slow
def test_processes_count_references_together(make, run, state, kept):
    async def take():
        async with make() as backend, await backend.create(World()) as sandbox:
            return await sandbox.snapshot(durable=True)

    snapshot = run(take())
    command = [sys.executable, "-c", COUNTER, str(state), str(kept)]
    counters = [subprocess.Popen([*command, str(more)]) for more in (0, 2, 3)]
    assert [counter.wait(60) for counter in counters] == [0, 0, 0]
    assert Store(kept).find(snapshot.id).references == 1 + 0 + 2 + 3

    async def release():
        backend = make()
        for _ in range(6):
            await backend.release(snapshot)
        with pytest.raises(SnapshotGone):
            await backend.release(snapshot)

    run(release())
    assert things(kept) == []


def test_only_what_nobody_names_is_collected(make, run, kept):
    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            await sandbox.write("f", b"x")
            first = await sandbox.snapshot(durable=True)
            await sandbox.write("g", b"x")
            second = await sandbox.snapshot(durable=True)
            await backend.release(second)
            left = set(things(kept))
            (kept / "objects" / ("0" * 64)).write_bytes(b"envgym-layer 1\n of a process that was killed")
            assert len(backend.reap()) == 1
            assert set(things(kept)) == left
            # A manifest that cannot be read may name anything
            manifest = kept / "snapshots" / f"{first.id}.json"
            text = manifest.read_bytes()
            manifest.write_bytes(text[:-20])
            (kept / "objects" / ("0" * 64)).write_bytes(b"envgym-layer 1\n")
            assert [line for line in backend.reap() if not line.startswith("cgroup")] == []
            manifest.write_bytes(text)
            assert len(backend.reap()) == 1
            async with await backend.restore(first) as again:
                assert await again.read("f") == b"x"

    run(main())


@pytest.mark.slow
def test_a_damaged_file_is_named_and_never_half_restored(make, run, kept):
    async def take():
        async with make() as backend, await backend.create(World(files={"/work/given": "x"})) as sandbox:
            await sandbox.exec("head -c 300000 /dev/urandom > f; v=1")
            return await sandbox.snapshot(durable=True)

    snapshot = run(take())

    async def restore():
        async with make() as backend, await backend.restore(snapshot) as again:
            return await again.exec("echo $v")

    for path in [*things(kept), kept / "snapshots" / f"{snapshot.id}.json"]:
        whole = path.read_bytes()
        for damaged in (
            whole[:-2],
            whole[: len(whole) // 2],
            b"",
            whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        ):
            path.write_bytes(damaged)
            with pytest.raises(StoreCorrupt, match=path.name):
                run(restore())
        path.unlink()
        with pytest.raises((StoreCorrupt, SnapshotGone), match=path.stem):
            run(restore())
        path.write_bytes(whole)
    assert run(restore()).stdout == b"1\n"


def test_a_snapshot_stands_on_the_image_that_it_was_taken_on(make, run, kept):
    async def main():
        async with make() as backend:
            async with await backend.create(World()) as sandbox:
                snapshot = await sandbox.snapshot(durable=True)
            path = kept / "snapshots" / f"{snapshot.id}.json"
            manifest = decode_manifest(path.read_bytes())
            assert manifest.identity["image"] == "host"
            older = manifest.identity | {"release": "debian 3", "python": "2.7.18"}
            path.write_bytes(encode_manifest(manifest.model_copy(update={"identity": older})))
        async with make() as backend:
            with pytest.raises(SandboxUnavailable, match=r"release 'debian 3' there.*python '2.7.18' there"):
                await backend.restore(snapshot)
            file = kept / "file"
            path.write_bytes(encode_manifest(manifest))
            await backend.export_snapshot(snapshot, str(file))
        async with LocalBackend(root=kept / "root", snapshots=kept / "other") as other:
            with pytest.raises(ValueError, match="taken by the 'namespace' backend"):
                await other.import_snapshot(str(file))
            with pytest.raises(SnapshotGone):
                await other.restore(snapshot)
            assert await other.snapshots() == []
            assert things(kept / "other") == []

    run(main())


def test_names_that_lead_elsewhere_are_no_snapshots(make, run, kept):
    async def main():
        backend = make()
        async with backend, await backend.create(World()) as sandbox:
            snapshot = await sandbox.snapshot(durable=True)
            for name in ("../../etc/passwd", "", snapshot.id.upper() + "/", "0" * 24):
                with pytest.raises(SnapshotGone):
                    await backend.restore(snapshot.model_copy(update={"id": name}))

    run(main())


@pytest.mark.slow
def test_a_snapshot_taken_as_root_is_restored_as_an_ordinary_user_and_back(state, run, kept):
    """Overlay's marks have other names there, and belong to other users."""

    def unprivileged():
        backend = NamespaceBackend(root=state, snapshots=kept)
        backend._privileged, backend._uid = False, 1000
        backend._worlds._owner = 1000
        return backend

    def privileged():
        return NamespaceBackend(root=state, snapshots=kept)

    tree = "mkdir -p d/e; echo 1 > d/e/f; echo x > gone; touch /tmp/t"
    change = "rm gone; rm -r d; mkdir d; echo 2 > d/n; setfattr -n user.overlay.opaque -v y d; ls -A d; id -u"

    async def main():
        for first, second in ((privileged, unprivileged), (unprivileged, privileged)):
            async with first() as backend, await backend.create(World(setup=(tree,))) as sandbox:
                await sandbox.exec(change)
                snapshot = await sandbox.snapshot(durable=True)
            async with second() as backend, await backend.restore(snapshot) as again:
                result = await again.exec("ls -A . d; stat -c %u d /tmp/t; touch /tmp/u d/m")
                assert result.stdout == b".:\nd\n\nd:\nn\n1000\n1000\n", result
                assert result.ok
                await backend.release(snapshot)

    if os.geteuid() != 0:
        pytest.skip("both need root")
    run(main())


@pytest.mark.slow
def test_durable_snapshots_do_not_pile_up_in_memory(make, run):
    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            taken = []
            for turn in range(50):
                await sandbox.write("f", b"%d" % turn)
                taken.append(await sandbox.snapshot(durable=True))
            await backend.states.layers.quiet()
            assert len(backend.states.layers.known) < 50
            async with await backend.restore(taken[0]) as again:
                assert await again.read("f") == b"0"
            assert len(backend.states.snapshots._open) <= 32
            restored = await asyncio.gather(*(backend.restore(one) for one in taken[:40]))
            for turn, again in enumerate(restored):
                assert await again.read("f") == b"%d" % turn
                await again.close()

    run(main())


def test_an_export_appears_complete_or_not_at_all(make, run, kept, tmp_path):
    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            await sandbox.write("f", b"x" * 100_000)
            plain = await sandbox.snapshot()
            assert not plain.durable
            await backend.export_snapshot(plain, str(tmp_path / "file"))
            assert things(kept) == [], "what was stored for the file only is removed"
            with pytest.raises(OSError, match="nowhere"):
                await backend.export_snapshot(plain, str(tmp_path / "nowhere/file"))
            assert things(kept) == []
            await backend.release(plain)
            with pytest.raises(SnapshotGone):
                await backend.export_snapshot(plain, str(tmp_path / "other"))
            imported = await backend.import_snapshot(str(tmp_path / "file"))
            async with await backend.restore(imported) as again:
                assert await again.read("f") == b"x" * 100_000
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kept"]

    run(main())


def test_the_store_is_readable_by_its_owner_only(make, run, kept):
    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            await sandbox.snapshot(durable=True)

    run(main())
    for path in (kept / "objects", kept / "snapshots", kept / "making"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert Path(kept).is_dir()


@pytest.mark.slow
def test_who_takes_and_who_releases_at_once_do_not_wait_for_each_other_for_good(make, run):
    """A lock that is shared over several calls needs threads, which must not all wait for that lock."""

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with make() as backend:

            async def one(number):
                async with await backend.create(World()) as sandbox:
                    for turn in range(4):
                        await sandbox.write("f", f"{number} {turn}".encode())
                        kept = await sandbox.snapshot(durable=True)
                        await backend.retain(kept)
                        await backend.release(kept)
                        await backend.release(kept)

            async with asyncio.timeout(60):
                await asyncio.gather(*(one(number) for number in range(6)))
            assert await backend.snapshots() == []

    run(main())
