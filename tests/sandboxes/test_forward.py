"""Streams: windows between two honest ends, an inside that lies, and slow sides that fill nobody's memory."""

import asyncio
import contextlib
import socket

import pytest
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.flow import MOST_STREAMS, PIECE, WINDOW, Flow
from envgym_sandboxes.protocol import Decoder, ProtocolError, encode
from envgym_sandboxes.streams import Streams
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(60)


@given(pieces=st.lists(st.integers(1, WINDOW), max_size=30))
def test_two_ends_agree_on_what_may_be_sent(pieces):
    sender, taker = Flow(), Flow()
    for piece in pieces:
        size = min(piece, sender.credit)
        if size:
            sender.sent(size)
            taker.arrived(size)
            if grant := taker.delivered(size):
                sender.granted(grant)
        assert sender.credit == taker.room
        assert sender.credit > WINDOW // 2, "what is delivered is granted again"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda flow: flow.arrived(WINDOW + 1),
        lambda flow: flow.arrived(0),
        lambda flow: (flow.arrived(WINDOW), flow.arrived(1)),
        lambda flow: flow.granted(1),
        lambda flow: flow.granted(0),
        lambda flow: (flow.sent(5), flow.granted(6)),
        lambda flow: (flow.sent(5), flow.granted(-5)),
        lambda flow: (flow.ended(), flow.arrived(1)),
        lambda flow: (flow.ended(), flow.ended()),
    ],
)
def test_an_end_that_breaks_the_windows_is_found_out(wrong):
    with pytest.raises(ProtocolError):
        wrong(Flow())


class Inside:
    """The other end of a peer's socket, scripted: it answers dials and says whatever it is told to."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.peer = Peer(ours, "liar")
        self.decoder = Decoder()
        self.frames: list[tuple[dict, bytes]] = []

    async def heard(self, do):
        """The next frame that does this; for a dial, answered."""
        loop = asyncio.get_running_loop()
        while True:
            while self.frames:
                head, body = self.frames.pop(0)
                if head["op"] == "dial" and do == "dial":
                    await self.say({"id": head["id"]})
                if do in (head["op"], head.get("do")):
                    return head, body
            self.frames += self.decoder.feed(await loop.sock_recv(self.sock, 1 << 20))

    async def say(self, head, body=b""):
        await asyncio.get_running_loop().sock_sendall(self.sock, encode(head, body))

    async def opened(self):
        opening = asyncio.ensure_future(self.peer.streams.open(80))
        await self.heard("dial")
        return await opening

    async def heard_all(self):
        """Wait until the host has taken all that was said."""
        asking = asyncio.ensure_future(self.peer.ask({"op": "read"}))
        head, _body = await self.heard("read")
        await self.say({"id": head["id"]})
        await asking

    def close(self):
        self.peer.end("done")
        self.sock.close()


async def read_on(stream):
    """Read until it ends or breaks."""
    with contextlib.suppress(ConnectionResetError):
        while await stream.receive():
            pass


def scripted(script):
    async def main():
        with contextlib.closing(Inside()) as inside:
            await asyncio.wait_for(script(inside), 30)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    "lies",
    [
        [({"stream": 2, "do": "data"}, b"x")],
        [({"stream": -1, "do": "open"}, b"")],
        [({"stream": "1", "do": "data"}, b"x")],
        [({"stream": True, "do": "data"}, b"x")],
        [({"stream": None}, b"")],
        [({"stream": 1, "do": ["data"]}, b"x")],
        [({"stream": 1, "do": "open"}, b"")],
        [({"stream": 1, "do": "data"}, b"")],
        [({"stream": 1, "do": "data"}, bytes(PIECE + 1))],
        [({"stream": 1, "do": "data"}, bytes(PIECE))] * (WINDOW // PIECE + 1),
        [({"stream": 1, "do": "credit", "size": 1}, b"")],
        [({"stream": 1, "do": "credit", "size": 10**30}, b"")],
        [({"stream": 1, "do": "credit", "size": "9"}, b"")],
        [({"stream": 1, "do": "credit"}, b"")],
        [({"stream": 1, "do": "end"}, b""), ({"stream": 1, "do": "data"}, b"x")],
        [({"stream": 1, "do": "end"}, b""), ({"stream": 1, "do": "end"}, b"")],
        [({"stream": 1, "do": "reset"}, b"")] + [({"stream": 1, "do": "data"}, bytes(PIECE))] * 20,
        [({"stream": 1, "do": "reset"}, b"")] * 300_000,
    ],
)
def test_an_inside_that_lies_about_streams_is_a_dead_sandbox(lies):
    async def script(inside):
        stream = await inside.opened()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await inside.say({})
            data = b"".join(encode(head, body) for head, body in lies)
            await asyncio.get_running_loop().sock_sendall(inside.sock, data)
        await read_on(stream)
        with pytest.raises(SandboxDied, match="broken stream"):
            await asyncio.wait_for(inside.peer.ask({"op": "read"}), 10)
        with pytest.raises(ConnectionResetError):
            await stream.send(b"x")

    scripted(script)


def test_a_flood_for_a_stream_that_was_reset_here_is_bounded():
    async def script(inside):
        stream = await inside.opened()
        stream.reset()
        for _ in range(WINDOW // PIECE):
            await inside.say({"stream": 1, "do": "data"}, bytes(PIECE))  # it may not have known yet
        await inside.say({"stream": 1, "do": "end"})
        again = await inside.opened()
        await inside.say({"stream": 2, "do": "data"}, b"still alive")
        assert await again.receive() == b"still alive"
        for _ in range(3):
            await inside.say({"stream": 1, "do": "data"}, bytes(PIECE))
        with pytest.raises(ConnectionResetError):
            await again.receive()

    scripted(script)


def test_nobody_sends_more_than_the_other_side_takes():
    async def script(inside):
        stream = await inside.opened()
        sending = asyncio.ensure_future(stream.send(bytes(4 * WINDOW)))
        got = 0
        while got < WINDOW:
            got += len((await inside.heard("data"))[1])
        await asyncio.sleep(0)
        assert (got, sending.done()) == (WINDOW, False)
        await inside.say({"stream": 1, "do": "credit", "size": 7})
        assert len((await inside.heard("data"))[1]) == 7
        for _ in range(WINDOW // PIECE):
            await inside.say({"stream": 1, "do": "data"}, bytes(PIECE))
        await inside.say({"stream": 1, "do": "end"})
        received = 0
        while data := await stream.receive():
            received += len(data)
        assert received == WINDOW
        sending.cancel()

    scripted(script)


def test_what_came_before_the_end_of_a_sandbox_is_whole_or_an_error():
    async def script(inside):
        whole, cut = await inside.opened(), await inside.opened()
        await inside.say({"stream": 1, "do": "data"}, b"all")
        await inside.say({"stream": 1, "do": "end"})
        await inside.say({"stream": 2, "do": "data"}, b"not al")
        await inside.heard_all()
        inside.peer.end("gone")
        assert await whole.receive() == b"all"
        assert await whole.receive() == b""
        with pytest.raises(ConnectionResetError, match="gone"):
            await cut.receive()
        with pytest.raises(ConnectionResetError):
            await whole.send(b"x")

    scripted(script)


def test_streams_opened_by_the_inside_are_counted():
    async def script(inside):
        taken = []
        inside.peer.streams.on_open = taken.append
        for number in range(1, MOST_STREAMS + 1):
            await inside.say({"stream": -number, "do": "open"})
        await inside.say({"stream": -1, "do": "data"}, b"hello")
        await inside.heard_all()
        assert len(taken) == MOST_STREAMS
        assert await taken[0].receive() == b"hello"
        taken[0].end()
        await inside.say({"stream": -1, "do": "end"})
        await inside.say({"stream": -MOST_STREAMS - 1, "do": "open"})
        await inside.heard_all()
        assert len(taken) == MOST_STREAMS + 1, "one is over, one may begin"
        await inside.say({"stream": -MOST_STREAMS - 2, "do": "open"})
        with pytest.raises(ConnectionResetError):
            await taken[1].receive()
        assert "more than" in inside.peer.ended

    scripted(script)


@given(
    frames=st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["open", "data", "credit", "end", "reset", "?"])))
)
def test_no_order_of_frames_confuses_the_host(frames):
    class Deaf:
        def send(self, head, body=b""):
            return 0

    async def main():
        streams = Streams(Deaf())
        streams.on_open = lambda stream: None
        with contextlib.suppress(ProtocolError):
            for number, do in frames:
                streams.take({"stream": number, "do": do, "size": 1}, b"x" if do == "data" else b"")
        assert len(streams) <= 6
        streams.fail("over")
        assert len(streams) == 0

    asyncio.run(main())


SLOW = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
if sys.argv[1] == "deaf":
    sys.stdin.read()
    import time; time.sleep(97)
connection.sendall(bytes(64 << 20))
"""


async def port_of(sandbox, program, *arguments):
    process = await sandbox.start(["@python", "-c", program, *arguments])
    return int((await sandbox.poll(process, wait_s=20)).stdout)


def reset(writer):
    """Close as one who crashed does, not as one who has sent all."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def rss_of_inits(sandbox):
    result = await sandbox.exec(["sh", "-c", "grep VmRSS /proc/1/status | tr -dc 0-9"])
    return int(result.stdout) << 10


@pytest.mark.slow
def test_a_slow_side_fills_nobodys_memory(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            port = await port_of(sandbox, SLOW, "deaf")
            before = await rss_of_inits(sandbox)
            async with sandbox.forward(port) as address:
                _reader, writer = await asyncio.open_connection(*address)
                writer.transport.set_write_buffer_limits(high=1)
                sent = 0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        while sent < 64:
                            writer.write(bytes(1 << 20))
                            await writer.drain()
                            sent += 1
                assert sent < 32, "what the inside does not read is not taken"
                assert await rss_of_inits(sandbox) < before + (4 << 20)
                writer.transport.abort()
            port = await port_of(sandbox, SLOW, "talks")
            async with sandbox.forward(port) as address:
                reader, writer = await asyncio.open_connection(*address, limit=1 << 16)
                assert await reader.readexactly(1) == b"\0"
                assert await rss_of_inits(sandbox) < before + (4 << 20)
                assert len(await reader.read(-1)) == (64 << 20) - 1, "and all of it comes when it is asked for"
                writer.close()
                await writer.wait_closed()

    run(main())


def test_connections_beyond_the_bound_are_closed_and_then_free_again(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            port = await port_of(
                sandbox,
                "import socket\n"
                "listener = socket.create_server(('127.0.0.1', 0), backlog=200)\n"
                "print(listener.getsockname()[1], flush=True)\n"
                "kept = []\n"
                "while True:\n"
                "    kept.append(listener.accept()[0]); kept[-1].sendall(b'x')",
            )
            async with sandbox.forward(port) as address:
                connections = [await asyncio.open_connection(*address) for _ in range(MOST_STREAMS)]
                for reader, _writer in connections:
                    assert await reader.readexactly(1) == b"x"
                reader, writer = await asyncio.open_connection(*address)
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.transport.abort()
                reset(connections[0][1])
                said = b""
                for _ in range(500):
                    reader, writer = await asyncio.open_connection(*address)
                    connections.append((reader, writer))
                    with contextlib.suppress(ConnectionResetError):
                        said = await reader.read(1)
                    if said:
                        break
                    await asyncio.sleep(0.01)
                assert said == b"x"
                for _reader, writer in connections:
                    writer.transport.abort()

    run(main())


def test_a_server_that_is_on_the_other_loopback_is_found(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            port = await port_of(
                sandbox,
                "import socket\n"
                "listener = socket.create_server(('::1', 0), family=socket.AF_INET6)\n"
                "print(listener.getsockname()[1], flush=True)\n"
                "listener.accept()[0].sendall(b'six')",
            )
            async with sandbox.forward(port) as address:
                reader, writer = await asyncio.open_connection(*address)
                assert await reader.read() == b"six"
                writer.close()
                await writer.wait_closed()

    run(main())


def test_a_reset_on_one_side_is_a_reset_on_the_other(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            process = await sandbox.start(
                [
                    "@python",
                    "-c",
                    "import socket, struct\n"
                    "listener = socket.create_server(('127.0.0.1', 0))\n"
                    "print(listener.getsockname()[1], flush=True)\n"
                    "first = listener.accept()[0]\n"
                    "first.recv(1)\n"
                    "first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
                    "first.close()\n"
                    "second = listener.accept()[0]\n"
                    "try:\n"
                    "    while second.recv(9): pass\n"
                    "    print('end')\n"
                    "except ConnectionResetError:\n"
                    "    print('reset')",
                ]
            )
            port = int((await sandbox.poll(process, wait_s=20)).stdout)
            async with sandbox.forward(port) as address:
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"x")
                with pytest.raises(ConnectionResetError):
                    await reader.read()
                writer.transport.abort()
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"x")
                await writer.drain()
                reset(writer)
                assert (await sandbox.poll(process, wait_s=20)).stdout == b"reset\n"

    run(main())
