"""Frames, captures and transfers against peers that lie."""

import asyncio
import contextlib
import socket
import struct

import pytest
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.command import Capture
from envgym_sandboxes.protocol import MAX_HEAD, Decoder, ProtocolError, encode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(30)

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow])  # machines are shared
FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), st.binary(max_size=50))
)


@PATIENT
@given(frames=FRAMES, cuts=st.lists(st.integers(1, 30), min_size=1))
def test_frames_survive_any_cutting(frames, cuts):
    stream = b"".join(encode(head, body) for head, body in frames)
    decoder, found, at, turn = Decoder(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert found == frames


@PATIENT
@given(garbage=st.binary(min_size=8, max_size=100))
def test_garbage_is_refused_or_waits_for_more(garbage):
    try:
        for head, _body in Decoder().feed(garbage):
            assert isinstance(head, dict)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "lie",
    [
        struct.pack("!II", MAX_HEAD + 1, 0),
        struct.pack("!II", 2, 1 << 31),
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 3, 0) + b"\xff\xfe{",
    ],
)
def test_a_lying_peer_is_a_dead_sandbox(lie):
    async def main():
        ours, theirs = socket.socketpair()
        peer = Peer(ours, "liar")
        asking = asyncio.ensure_future(peer.ask({"op": "read"}))
        await asyncio.sleep(0)
        theirs.sendall(lie)
        with pytest.raises(SandboxDied, match="liar"):
            await asking
        with pytest.raises(SandboxDied):
            await peer.ask({"op": "read"})
        theirs.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "frames",
    [
        lambda: [encode({"id": 1}, bytes(100_000))],
        lambda: [encode({"id": 1, "more": True}, bytes(5000))] * 40,
        lambda: [encode({"id": 1, "more": True})] * 4000,
        lambda: [encode({"id": 99}, bytes(60_000))] * 40,
        lambda: [encode({"noise": 1})] * 8000,
        lambda: [encode({"id": 1})] * 8000,
    ],
    ids=["long", "many", "endless empty", "unasked", "noise", "again and again"],
)
def test_a_peer_that_sends_more_than_was_asked_for_is_ended(frames):
    async def main():
        ours, theirs = socket.socketpair()
        peer = Peer(ours, "flood")
        with peer.open({"op": "get"}, most=65536):
            theirs.setblocking(False)
            for frame in frames():
                if peer.ended:
                    break
                await asyncio.get_running_loop().sock_sendall(theirs, frame)
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert peer.ended is not None
            assert "asked for" in peer.ended
        theirs.close()

    async def broken():  # the flood may meet the closed end
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await main()

    asyncio.run(broken())


def test_a_silent_peer_is_ended_after_its_time():
    async def main():
        ours, theirs = socket.socketpair()
        peer = Peer(ours, "mute")
        with peer.open({"op": "read"}) as request, pytest.raises(SandboxDied, match="silent"):
            await request.answer(within_s=0.05)
        with pytest.raises(SandboxDied):
            await peer.ask({"op": "read"})
        theirs.close()

    asyncio.run(main())


def test_answers_to_nobodys_question_are_dropped():
    async def main():
        ours, theirs = socket.socketpair()
        peer = Peer(ours, "chatty")
        asking = asyncio.ensure_future(peer.ask({"op": "read"}))
        await asyncio.sleep(0)
        theirs.sendall(encode({"id": 77}) + encode({"id": "x"}) + encode({}) + encode({"id": 1, "v": 2}))
        assert (await asking)[0]["v"] == 2
        peer.end("done")
        theirs.close()

    asyncio.run(main())


@PATIENT
@given(limit=st.integers(2, 40), pieces=st.lists(st.binary(max_size=30)))
def test_a_capture_keeps_head_and_tail_and_counts_the_rest(limit, pieces):
    capture, whole = Capture(limit), b"".join(pieces)
    for piece in pieces:
        capture.add(piece)
    value = capture.value()
    if len(whole) <= limit:
        assert (value, capture.lost) == (whole, 0)
    else:
        assert value == whole[: limit // 2] + whole[-(limit - limit // 2) :]
        assert capture.lost == len(whole) - limit
