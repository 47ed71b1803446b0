"""Peers that passed the handshake and then lie: whatever they send, nobody crashes and nobody waits for ever."""

import asyncio
import contextlib
import struct
import time

import pytest
from envgym_sandboxes import protocol
from envgym_sandboxes.remote.link import PIECE, WINDOW, Link, LinkLost
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envgym.errors import EnvgymError

pytestmark = pytest.mark.timeout(120)

IDS = st.integers(-1, 3) | st.none() | st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HEADS = st.dictionaries(
    st.sampled_from(["id", "op", "with", "end", "piece", "ack", "cancel", "done", "error", "ping", "pong", "x"]),
    IDS | JSON,
    max_size=5,
)
SAID = st.lists(st.builds(protocol.encode, HEADS, st.binary(max_size=20)) | st.binary(max_size=30), max_size=8)
LAW = settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)


async def ends():
    """A pair of connected streams."""
    met = asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(lambda r, w: met.set_result((r, w)), "127.0.0.1", 0)
    ours = await asyncio.open_connection("127.0.0.1", listener.sockets[0].getsockname()[1])
    theirs = await met
    listener.close()
    return ours, theirs


async def drained(reader):
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


@pytest.mark.slow
@LAW
@given(said=SAID)
@example(said=[protocol.encode({"id": 1, "op": "echo", "with": {}, "end": True}, b"x")] * 3)
@example(said=[struct.pack("!II", 50_000, 0) + b"[" * 50_000])
@example(said=[struct.pack("!II", 2, PIECE + 1) + b"{}"])
@example(
    said=[protocol.encode({"id": 1, "op": "wait", "with": {}}), *[protocol.encode({"id": 1, "piece": 0})] * 20]
)
def test_a_server_survives_whatever_a_client_sends(said):
    async def answer(call):
        if call.op == "wait":
            await asyncio.Event().wait()
        return {"op": call.op}, await call.collected(1000)

    async def main():
        (reader, writer), theirs = await ends()
        over, ended = asyncio.Event(), []
        link = Link(*theirs, serve=answer, on_end=lambda reason: (ended.append(reason), over.set()))
        reading = asyncio.ensure_future(drained(reader))
        writer.write(b"".join(said))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            writer.write_eof()
        async with asyncio.timeout(20):
            await over.wait()
            await link.closed()
            await reading
        assert len(ended) == 1
        assert not link._calls
        writer.close()

    asyncio.run(main())


@pytest.mark.slow
@LAW
@given(said=SAID)
@example(said=[protocol.encode({"id": 1, "done": {}}, b"x" * 100)])
@example(said=[protocol.encode({"id": 1, "piece": None}, b"x" * 2000)])
def test_a_client_gets_an_answer_or_an_error_whatever_a_server_sends(said):
    async def main():
        (reader, writer), theirs = await ends()
        link = Link(*theirs)
        reading = asyncio.ensure_future(drained(reader))

        async def ask():
            try:
                return await link.ask("x", {}, b"body", most=1000)
            except (EnvgymError, OSError, ValueError, TypeError) as error:
                return error

        asked = [asyncio.ensure_future(ask()) for _ in range(3)]
        await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(said))
            await writer.drain()
            writer.write_eof()
        async with asyncio.timeout(20):
            await asyncio.gather(*asked)
            link.end("done")
            await link.closed()
            await reading
        writer.close()

    asyncio.run(main())


@pytest.mark.slow
def test_no_more_than_a_window_of_pieces_is_on_its_way(run):
    async def main():
        (reader, writer), theirs = await ends()
        link = Link(*theirs)
        async with link.call("put", {}) as call:
            sending = asyncio.ensure_future(call.send_bytes(b"x" * (PIECE * 20)))
            decoder, pieces = protocol.Decoder(), 0
            async with asyncio.timeout(60):
                while pieces < WINDOW:
                    pieces += sum("piece" in head for head, _body in decoder.feed(await reader.read(1 << 20)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):  # and no more of them
                    while data := await reader.read(1 << 20):
                        pieces += sum("piece" in head for head, _body in decoder.feed(data))
            assert pieces == WINDOW
            for _ in range(3):
                writer.write(protocol.encode({"id": call.number, "ack": 1}))
            async with asyncio.timeout(60):
                while pieces < WINDOW + 3:
                    pieces += sum("piece" in head for head, _body in decoder.feed(await reader.read(1 << 20)))
            writer.write(protocol.encode({"id": call.number, "done": {}}))
            await sending
        link.end("done")
        await link.closed()
        writer.close()

    run(main())


@pytest.mark.slow
def test_a_blocked_loop_is_not_taken_for_a_silent_peer(run):
    async def main():
        (reader, writer), theirs = await ends()
        Link(reader, writer, serve=lambda call: None)
        link = Link(*theirs)
        link.watch(0.05, 4)
        await asyncio.sleep(0.1)
        time.sleep(1.0)  # noqa: ASYNC251  # what a user's training step does
        await asyncio.sleep(0.3)
        assert link.ended is None
        link.end("done")
        await link.closed()

    run(main())


def test_a_link_that_is_over_says_so(run):
    async def main():
        (_reader, writer), theirs = await ends()
        link = Link(*theirs)
        writer.close()
        with pytest.raises(LinkLost, match="was lost"):
            await link.ask("x", {})
        with pytest.raises(LinkLost, match="is over"):
            await link.ask("x", {})
        await link.closed()

    run(main())
