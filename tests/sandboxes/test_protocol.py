"""Frames, captures and transfers against peers that lie."""

import asyncio
import json
import os
import socket
import struct

import pytest
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.command import Capture
from envgym_sandboxes.protocol import MAX_HEAD, Decoder, ProtocolError, encode
from envgym_sandboxes.transfer import Unpacker, pack
from hypothesis import given
from hypothesis import strategies as st

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(30)

FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), st.binary(max_size=50))
)


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 30), min_size=1))
def test_frames_survive_any_cutting(frames, cuts):
    stream = b"".join(encode(head, body) for head, body in frames)
    decoder, found, at, turn = Decoder(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += decoder.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert found == frames


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


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b", 7])
def test_an_unpacker_writes_nothing_outside_its_target(tmp_path, name):
    unpacker = Unpacker(str(tmp_path / "target"))
    unpacker.add({"path": [], "kind": "directory", "mode": 0o755}, b"")
    with pytest.raises(ValueError, match="not a file name"):
        unpacker.add({"path": [name], "kind": "file", "mode": 0o644, "first": True}, b"x")


def test_an_unpacker_walks_through_no_symlink(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    unpacker = Unpacker(str(tmp_path / "target"))
    unpacker.add({"path": [], "kind": "directory", "mode": 0o755}, b"")
    unpacker.add({"path": ["out"], "kind": "link", "mode": 0o777, "target": str(outside)}, b"")
    with pytest.raises(OSError, match="Not a directory"):
        unpacker.add({"path": ["out", "x"], "kind": "file", "mode": 0o644, "first": True}, b"x")
    unpacker.add({"path": ["file"], "kind": "link", "mode": 0o777, "target": str(outside / "victim")}, b"")
    unpacker.add({"path": ["file"], "kind": "file", "mode": 0o644, "first": True}, b"x")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "target/file").read_bytes() == b"x"


def test_pack_and_unpack_are_inverse(tmp_path):
    source = tmp_path / "source"
    (source / "d/e").mkdir(parents=True)
    (source / "d/big").write_bytes(os.urandom(3 << 20))
    (source / "d/link").symlink_to("big")
    (source / "run").write_bytes(b"")
    (source / "run").chmod(0o755)
    os.mkfifo(source / "pipe")
    unpacker = Unpacker(str(tmp_path / "copy"))
    for head, body in pack(str(source)):
        unpacker.add(json.loads(json.dumps(head)), body)
    copy = tmp_path / "copy"
    assert (copy / "d/big").read_bytes() == (source / "d/big").read_bytes()
    assert os.readlink(copy / "d/link") == "big"
    assert os.access(copy / "run", os.X_OK)
    assert (copy / "d/e").is_dir()
    assert not (copy / "pipe").exists()
