"""What is left, and what is said, when a client, a server or a call ends at the wrong moment."""

import asyncio
import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from envgym_sandboxes.remote import RemoteBackend, SandboxServer, ServerBounds
from envgym_sandboxes.remote.parcels import disk_root
from envgym_sandboxes.tree import live_processes

from envgym.errors import (
    EnvgymError,
    InfrastructureFailure,
    SandboxDied,
    SandboxUnavailable,
    SnapshotGone,
    StoreCorrupt,
)
from envgym.task import Tree, World
from envgym.testing.fakes import FakeBackend

pytestmark = pytest.mark.timeout(60)
TOKEN = "t" * 32


def sleepers(pid):
    """How many of the sandboxes' long sleeps run below a process."""
    lines = []
    for child in live_processes(pid):
        try:
            lines.append(Path(f"/proc/{child}/cmdline").read_bytes())
        except OSError:
            continue
    return lines.count(b"sleep\x004244\x00")


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_killed_server_ends_its_sandboxes_and_the_next_one_serves_the_same_client(
    served, serve, namespace, run, settle
):
    async def main():
        async with served.client() as client:
            sandbox = await client.create(World())
            snapshot = await sandbox.snapshot()
            running = asyncio.ensure_future(sandbox.exec(["sleep", "4244"]))
            await settle(lambda: sleepers(served.process.pid) == 1)
            below = set(live_processes(served.process.pid))
            served.process.kill()
            with pytest.raises(SandboxDied, match="is gone"):
                await running
            with pytest.raises(SandboxDied):
                await sandbox.read("/etc/passwd")
            with pytest.raises(SandboxUnavailable):
                await client.create(World())
            await sandbox.close()
            await settle(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
            again = ("--listen", served.address)
            with serve(served.token_file, *namespace, *again):
                with pytest.raises(SnapshotGone):
                    await client.restore(snapshot)
                async with await client.create(World()) as other:
                    assert (await other.exec("echo back")).stdout == b"back\n"
                with pytest.raises(SandboxDied):
                    await sandbox.exec("true")

    run(main())


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_server_that_falls_silent_is_gone_after_a_while(served, run):
    async def main():
        async with served.client(patience_s=1.0) as client:
            sandbox = await client.create(World())
            calls = [sandbox.exec(["sleep", "4244"]), sandbox.read("/etc/passwd"), client.create(World())]
            served.process.send_signal(signal.SIGSTOP)
            try:
                ended = await asyncio.gather(*calls, return_exceptions=True)
            finally:
                served.process.send_signal(signal.SIGCONT)
            assert [type(error) for error in ended[:2]] == [SandboxDied, SandboxDied]
            assert isinstance(ended[2], InfrastructureFailure)

    run(main())


CLIENT = """
import asyncio, sys
from envgym.task import Tree, World
from envgym_sandboxes.remote import RemoteBackend

async def main():
    client = RemoteBackend(sys.argv[1], token_file=sys.argv[2])
    sandbox = await client.create(World())
    await sandbox.snapshot()
    print("ready", flush=True)
    await sandbox.exec(["sleep", "4244"])

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_killed_client_leaves_nothing_on_the_server(served, run, settle):
    async def main():
        command = [sys.executable, "-c", CLIENT, served.address, str(served.token_file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:  # noqa: ASYNC220  # to be killed
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            await settle(lambda: sleepers(served.process.pid) == 1)
            client.kill()
        await settle(lambda: sleepers(served.process.pid) == 0)
        async with served.client() as other, await other.create(World()) as sandbox:
            assert (await sandbox.exec("true")).ok

    run(main())


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_cancelled_command_is_killed_before_the_next_one_runs(served, run):
    async def main():
        async with served.client() as client, await client.create(World()) as sandbox:
            for command in ("echo $$ > pid; sleep 4244", ["sh", "-c", "echo $$ > pid; exec sleep 4244"]):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(sandbox.exec(command), 0.3)
                result = await sandbox.exec("kill -0 $(cat pid) && echo alive")
                assert b"alive" not in result.stdout

    run(main())


def local_server(backend, **bounds):
    return SandboxServer(backend, TOKEN, bounds=ServerBounds(**bounds))


def test_what_a_cancelled_caller_did_not_get_is_given_back(run, settle):
    async def main():
        gate = asyncio.Event()

        async def start(_world):
            try:
                await gate.wait()
            except asyncio.CancelledError:
                await gate.wait()  # a backend that was too far to turn back

        backend = FakeBackend(start=start)
        async with local_server(backend) as server, RemoteBackend(server.address, token=TOKEN) as client:
            creating = asyncio.ensure_future(client.create(World()))
            await settle(lambda: backend.starting == 1)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
            gate.set()
            await settle(lambda: backend.starting == 0)
            sandbox = await client.create(World())
            await settle(lambda: list(backend.open) == [sandbox.id])
            snapshotting = asyncio.ensure_future(sandbox.snapshot())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            snapshotting.cancel()
            await asyncio.gather(snapshotting, return_exceptions=True)
            assert await sandbox.digest()
            await settle(lambda: not backend.held)

    run(main())


def test_goodbye_closes_everything_of_this_client_and_of_no_other(run, settle):
    async def main():
        backend = FakeBackend()
        async with local_server(backend) as server, RemoteBackend(server.address, token=TOKEN) as other:
            theirs = await other.create(World())
            async with RemoteBackend(server.address, token=TOKEN) as client:
                sandboxes = [await client.create(World()) for _ in range(3)]
                snapshot = await sandboxes[0].snapshot()
                await client.retain(snapshot)
                with pytest.raises(SnapshotGone):
                    await other.restore(snapshot)
                with pytest.raises(SnapshotGone):
                    await other.release(snapshot)
            assert list(backend.open) == [theirs.id]
            assert not backend.held
            for call in (sandboxes[0].exec("x"), sandboxes[0].fork(), sandboxes[0].snapshot(), sandboxes[0].diff()):
                with pytest.raises(SandboxDied):
                    await call

    run(main())


@pytest.mark.parametrize("ready", ["while it closes", "when it has closed", "in spite of all"])
def test_a_sandbox_that_is_ready_after_goodbye_is_closed_on_the_server(run, settle, ready):
    async def main():
        gate = asyncio.Event()
        gate.set()

        async def start(_world):
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    if ready != "in spite of all":
                        raise

        backend = FakeBackend(start=start)
        async with local_server(backend) as server:
            client = RemoteBackend(server.address, token=TOKEN)
            sandbox = await client.create(World())
            snapshot = await sandbox.snapshot()
            gate.clear()
            calls = (client.create(World()), client.restore(snapshot), sandbox.fork())
            making = [asyncio.ensure_future(call) for call in calls]
            await settle(lambda: backend.starting == 3)
            closing = asyncio.ensure_future(client.close())
            if ready == "while it closes":
                gate.set()
            elif ready == "in spite of all":
                await asyncio.sleep(0.05)
                gate.set()
            await closing
            assert not backend.open
            assert not backend.held
            made = await asyncio.gather(*making, return_exceptions=True)
            assert [isinstance(one, InfrastructureFailure) for one in made] == [True] * 3, made
            for one in made[:2]:
                assert "this remote backend is closed" in str(one)

    run(main())


@pytest.mark.parametrize("lead_ms", [0, 0.5, 1, 2, 3, 5, 8])
def test_a_client_that_closes_during_a_create_leaves_nothing_on_the_server(run, lead_ms, tmp_path):
    (tmp_path / "f").write_text("x")

    async def main():
        backend = FakeBackend()
        async with local_server(backend) as server:
            for world in (World(), World(trees=(Tree(source=str(tmp_path), target="/work/t"),))):
                client = RemoteBackend(server.address, token=TOKEN)
                making = asyncio.ensure_future(client.create(world))
                await asyncio.sleep(lead_ms / 1000)
                before = making.done()
                await client.close()
                assert not backend.open
                [made] = await asyncio.gather(making, return_exceptions=True)
                assert before or isinstance(made, InfrastructureFailure), made

    run(main())


async def cut(client, settle):
    """Break a client's connection, as a network does."""
    link = client._opened._link
    link._writer.transport.abort()
    await settle(lambda: link.ended is not None)


def test_without_grace_a_broken_connection_is_the_end_of_its_sandboxes(run, settle):
    async def main():
        backend = FakeBackend()
        async with local_server(backend) as server, RemoteBackend(server.address, token=TOKEN) as client:
            sandbox = await client.create(World())
            running = asyncio.ensure_future(sandbox.exec(["hold"]))
            await settle(lambda: backend.open[sandbox.id].held == 1)
            await cut(client, settle)
            with pytest.raises(SandboxDied):
                await running
            await settle(lambda: not backend.open)
            with pytest.raises(SandboxDied):
                await sandbox.exec("x")
            async with await client.create(World()) as other:
                assert (await other.exec("x")).ok

    run(main())


def test_with_grace_a_client_that_comes_back_goes_on_with_its_sandboxes(run, settle):
    async def main():
        backend = FakeBackend()
        async with (
            local_server(backend, grace_s=30) as server,
            RemoteBackend(server.address, token=TOKEN) as client,
        ):
            sandbox = await client.create(World())
            await sandbox.write("/work/a", b"kept")
            running = asyncio.ensure_future(sandbox.exec(["hold"]))
            inner = backend.open[sandbox.id]
            await settle(lambda: inner.held == 1)
            await cut(client, settle)
            with pytest.raises(InfrastructureFailure, match="not known"):
                await running
            await settle(lambda: inner.held == 0)  # what nobody waits for is cancelled
            assert await sandbox.read("/work/a") == b"kept"
            async with await sandbox.fork() as fork:
                assert await fork.read("/work/a") == b"kept"

    run(main())


def test_with_grace_a_client_that_does_not_come_back_is_forgotten(run, settle):
    async def main():
        backend = FakeBackend()
        async with (
            local_server(backend, grace_s=0.2) as server,
            RemoteBackend(server.address, token=TOKEN) as client,
        ):
            sandbox = await client.create(World())
            await cut(client, settle)
            await settle(lambda: not backend.open)
            with pytest.raises(SandboxDied):
                await sandbox.read("/work/a")

    run(main())


def test_a_client_that_was_not_told_of_its_sandbox_does_not_keep_it(run, settle):
    async def main():
        backend = FakeBackend()
        async with (
            local_server(backend, grace_s=30) as server,
            RemoteBackend(server.address, token=TOKEN) as client,
        ):
            sandbox = await client.create(World())
            session = next(iter(server._clients.values())).session
            lost = await backend.create(World())
            session._sandboxes[lost.id] = lost
            await cut(client, settle)
            await sandbox.write("/work/a", b"x")
            assert list(backend.open) == [sandbox.id]

    run(main())


def test_a_served_backend_that_breaks_is_said_as_it_is(run):
    async def main():
        backend = FakeBackend()
        async with local_server(backend) as server, RemoteBackend(server.address, token=TOKEN) as client:
            sandbox = await client.create(World())
            backend.break_down("the disk is on fire")
            with pytest.raises(SandboxDied):
                await sandbox.exec("x")
            with pytest.raises(EnvgymError, match="the disk is on fire"):
                await client.create(World())

    run(main())


class Full(FakeBackend):
    """A host whose disk is full."""

    async def export_snapshot(self, snapshot, path):
        raise OSError(errno.ENOSPC, f"No space left on device, for {snapshot.id}")


def test_what_fails_on_the_server_does_not_bear_the_name_of_the_clients_file(run, tmp_path):
    async def main():
        async with local_server(Full()) as server, RemoteBackend(server.address, token=TOKEN) as client:
            sandbox = await client.create(World())
            snapshot = await sandbox.snapshot()
            with pytest.raises(OSError, match="No space left") as met:
                await client.export_snapshot(snapshot, str(tmp_path / "file"))
            assert met.value.filename is None
        assert list(tmp_path.iterdir()) == []

    run(main())


def test_the_end_of_a_server_reaches_clients_at_once(run, settle):
    async def main():
        backend = FakeBackend()
        async with local_server(backend) as server:
            client = RemoteBackend(server.address, token=TOKEN)
            sandbox = await client.create(World())
            running = asyncio.ensure_future(sandbox.exec(["hold"]))
            await settle(lambda: backend.open[sandbox.id].held == 1)
        with pytest.raises(SandboxDied):
            await running
        await client.close()

    run(main())


@pytest.mark.slow
@pytest.mark.namespaces
def test_durable_snapshots_are_every_clients_and_outlive_the_server(serve, namespace, tmp_path, run):
    token, kept = tmp_path / "token", ("--backend-option", f"snapshots={tmp_path / 'kept'}")

    async def first(served):
        async with served.client() as one, served.client() as two:
            sandbox = await one.create(World())
            await sandbox.write("f", b"kept")
            durable, passing = await sandbox.snapshot(durable=True), await sandbox.snapshot()
            assert await two.snapshots() == [durable]
            async with await two.restore(durable) as again:
                assert await again.read("f") == b"kept"
            for wrong in (passing, passing.model_copy(update={"durable": True})):
                with pytest.raises(SnapshotGone):
                    await two.restore(wrong)
            await one.export_snapshot(passing, str(tmp_path / "exported"))
            with pytest.raises(SnapshotGone):
                await two.export_snapshot(passing, str(tmp_path / "not"))
        assert [path.name for path in tmp_path.iterdir() if "not" in path.name or "part" in path.name] == []
        return durable

    async def second(served, durable):
        async with served.client() as client:
            assert await client.snapshots() == [durable]
            for path, kind, of in (
                (tmp_path, IsADirectoryError, tmp_path),
                (tmp_path / "none/file", FileNotFoundError, tmp_path / "none"),
            ):
                with pytest.raises(kind) as met:
                    await client.export_snapshot(durable, str(path))
                assert met.value.filename == str(of)
            damaged = tmp_path / "damaged"
            damaged.write_bytes((tmp_path / "exported").read_bytes()[:-40])
            with pytest.raises(StoreCorrupt, match=f"^{damaged} cannot be imported: "):
                await client.import_snapshot(str(damaged))
            await client.release(durable)
            with pytest.raises(SnapshotGone):
                await client.restore(durable)
            imported = await client.import_snapshot(str(tmp_path / "exported"))
            async with await client.restore(imported) as again:
                assert await again.read("f") == b"kept"
            await client.release(imported)

    with serve(token, *namespace, *kept) as served:
        durable = run(first(served))
    with serve(token, *namespace, *kept) as served:
        run(second(served, durable))
    assert not list(disk_root().glob(f"{served.process.pid}-*"))
