"""What a client that knows the token may take of a server, and what is left when it goes."""

import asyncio
import contextlib
import os

import pytest
from envgym_sandboxes import protocol
from envgym_sandboxes.remote import RemoteBackend, SandboxServer, ServerBounds
from envgym_sandboxes.remote import link as link_module
from envgym_sandboxes.remote.link import PIECE, Link

from envgym.errors import InfrastructureFailure
from envgym.task import World
from envgym.testing.fake_sandbox import FakeBackend

pytestmark = pytest.mark.timeout(60)
TOKEN = "t" * 40


async def connected(serve, **options):
    """A raw stream to a link that serves, and that link's end as a future."""
    over, met = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(lambda r, w: met.set_result((r, w)), "127.0.0.1", 0)
    ours = await asyncio.open_connection("127.0.0.1", listener.sockets[0].getsockname()[1])
    link = Link(*(await met), serve=serve, on_end=over.set_result, **options)
    listener.close()
    return ours, link, over


async def answer_when_complete(call):
    return {"bytes": len(await call.collected(1 << 30))}, b""


async def waiting(_call):
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def heard(reader, count):
    """That many frames of a stream."""
    decoder, found = protocol.Decoder(), []
    while len(found) < count:
        found += [head for head, _body in decoder.feed(await reader.read(1 << 16))]
    return found


def test_a_second_end_of_one_call_ends_the_connection(run):
    async def main():
        (_reader, writer), link, over = await connected(waiting)
        writer.write(protocol.encode({"id": 1, "op": "x", "with": {}}))
        writer.writelines([protocol.encode({"id": 1, "end": True})] * 2)
        assert "ended twice" in await asyncio.wait_for(over, 60)
        await link.closed()
        writer.close()

    run(main())


def test_a_piece_after_the_end_ends_the_connection(run):
    async def main():
        (_reader, writer), link, over = await connected(waiting)
        writer.write(protocol.encode({"id": 1, "op": "x", "with": {}, "end": True}))
        writer.write(protocol.encode({"id": 1, "piece": None}, b"x"))
        assert "more pieces" in await asyncio.wait_for(over, 60)
        await link.closed()
        writer.close()

    run(main())


@pytest.mark.slow
def test_who_asks_and_never_reads_is_left(run, monkeypatch):
    monkeypatch.setattr(link_module, "MOST_UNREAD", 1 << 16)

    async def main():
        (reader, writer), link, over = await connected(waiting)
        reader._transport.pause_reading()
        pings = protocol.encode({"ping": True}) * 10_000

        async def ask_for_ever():
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(pings)
                    await writer.drain()

        asking = asyncio.ensure_future(ask_for_ever())
        assert "has not read" in await asyncio.wait_for(over, 30)
        await link.closed()
        await asking
        writer.close()

    run(main())


def test_a_request_that_holds_too_much_is_refused_and_the_others_go_on(run):
    async def main():
        (reader, writer), link, over = await connected(answer_when_complete, most_held=5 * PIECE)
        for number in (1, 2):
            writer.write(protocol.encode({"id": number, "op": "take", "with": {}}))
        for _ in range(3):
            for number in (1, 2):
                writer.write(protocol.encode({"id": number, "piece": None}, b"x" * PIECE))
                await asyncio.sleep(0.02)
        writer.write(protocol.encode({"id": 1, "end": True}))
        ends = [head for head in await heard(reader, 7) if "done" in head or "error" in head]
        assert [head["id"] for head in ends] == [2, 1]
        assert ends[0]["error"]["kind"] == "InfrastructureFailure"
        assert str(5 * PIECE) in ends[0]["error"]["message"]
        assert ends[1]["done"] == {"bytes": 3 * PIECE}
        assert link._held == 0
        assert not over.done()
        writer.close()
        await over
        await link.closed()

    run(main())


def test_what_is_passed_on_is_not_held(run):
    async def passed_on(call):
        return {"bytes": sum([len(body) async for _piece, body in call.pieces()])}, b""

    async def main():
        (reader, writer), link, over = await connected(passed_on, most_held=5 * PIECE)
        ours = Link(reader, writer)
        async with ours.call("take", {}) as call:
            for _ in range(40):
                assert await call.send(None, b"x" * PIECE)
            await call.end_input()
            done, _body = await call.result
        assert done == {"bytes": 40 * PIECE}
        assert link._held == 0
        ours.end("the test is over")
        await over
        await asyncio.gather(ours.closed(), link.closed())

    run(main())


def test_a_call_that_left_before_its_turn_is_forgotten(run):
    async def main():
        (reader, writer), link, over = await connected(answer_when_complete)
        ours = Link(reader, writer)
        async with ours._turn:
            asking = asyncio.ensure_future(ours.ask("take", {}))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert not ours._calls
        assert (await ours.ask("take", {}, b"abc"))[0] == {"bytes": 3}
        ours.end("the test is over")
        await over
        await asyncio.gather(ours.closed(), link.closed())

    run(main())


def test_a_client_has_no_more_sandboxes_than_the_bound(run):
    async def main():
        backend = FakeBackend()
        bounds = ServerBounds(sandboxes=3)
        async with (
            SandboxServer(backend, TOKEN, bounds=bounds) as server,
            RemoteBackend(server.address, token=TOKEN) as client,
            RemoteBackend(server.address, token=TOKEN) as other,
        ):
            made = await asyncio.gather(*(client.create(World()) for _ in range(5)), return_exceptions=True)
            refused = [one for one in made if isinstance(one, InfrastructureFailure)]
            sandboxes = [one for one in made if not isinstance(one, BaseException)]
            assert (len(refused), len(sandboxes)) == (2, 3)
            assert "3 sandboxes" in str(refused[0])
            with pytest.raises(InfrastructureFailure, match="3 sandboxes"):
                await sandboxes[0].fork()
            await other.create(World())
            await sandboxes[0].close()
            await sandboxes[1].fork()

    run(main())


def test_a_session_takes_its_folders_with_it(run, settle, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("envgym_sandboxes.remote.server.default_root", lambda: tmp_path / "memory")
    monkeypatch.setattr("envgym_sandboxes.remote.server.disk_root", lambda: tmp_path / "disk")

    def folders():
        return [path for path in tmp_path.rglob("files-*")]

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            for _ in range(3):
                async with RemoteBackend(server.address, token=TOKEN) as client:
                    await client.create(World())
                    assert len(folders()) == 2
                await settle(lambda: not folders())

    run(main())


def test_a_sandbox_whose_end_was_cut_off_ends_with_its_client(run, settle):
    async def main():
        gate = asyncio.Event()
        backend = FakeBackend()
        async with SandboxServer(backend, TOKEN) as server:
            async with RemoteBackend(server.address, token=TOKEN) as client:
                sandbox = await client.create(World())
                inner = backend.open[sandbox.id]
                close, tries = inner.close, []

                async def slow():
                    tries.append(gate.is_set())
                    await gate.wait()
                    await close()

                inner.close = slow
                closing = asyncio.ensure_future(
                    (await client._connection().link()).ask("close", {"sandbox": sandbox.id})
                )
                await settle(lambda: bool(tries))
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                gate.set()
            assert backend.open == {}

    run(main())


@pytest.mark.parametrize("name", ["sandboxes", "held_bytes"])
def test_a_bound_must_be_positive(name):
    with pytest.raises(ValueError, match=name):
        ServerBounds(**{name: 0})


def test_the_process_has_no_more_descriptors_after_many_clients(run):
    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            counts = []
            for _ in range(6):
                async with RemoteBackend(server.address, token=TOKEN) as client:
                    await client.create(World())
                await asyncio.sleep(0.05)
                counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[-1] <= counts[1]

    run(main())
