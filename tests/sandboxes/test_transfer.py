"""Trees and files between a host and a sandbox that may lie: bounds, links, races, and what arrives."""

import asyncio
import contextlib
import errno
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from envgym_sandboxes import exchange
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.protocol import Decoder, encode
from envgym_sandboxes.transfer import PIECE, Arrival, Tally, pack, unpack

from envgym.errors import SandboxDied
from envgym.limits import Resources

pytestmark = pytest.mark.timeout(60)

TOP = {"path": [], "kind": "directory", "mode": 0o755}
FILE = {"kind": "file", "mode": 0o644, "first": True, "last": True}
SMALL = Resources(transfer_bytes=4 << 20, inodes=64)


def much():
    return Tally(1 << 30, 1 << 18)


def arrival(place: Path) -> Arrival:
    return Arrival(str(place / "target"), much())


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b", 7])
def test_nothing_is_written_outside_of_the_target(tmp_path, name):
    arriving = arrival(tmp_path)
    arriving.add(TOP, b"")
    with pytest.raises(ValueError, match="not a file name"):
        arriving.add(FILE | {"path": [name]}, b"x")
    with pytest.raises(ValueError, match="not a file name"):
        unpack(str(tmp_path / "target"), FILE | {"path": [name]}, b"x")


def test_an_arrival_walks_through_no_symlink(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    arriving = arrival(tmp_path)
    arriving.add(TOP, b"")
    arriving.add({"path": ["out"], "kind": "link", "mode": 0o777, "target": str(outside)}, b"")
    with pytest.raises(OSError, match="Not a directory"):
        arriving.add(FILE | {"path": ["out", "x"]}, b"x")
    arriving.add({"path": ["file"], "kind": "link", "mode": 0o777, "target": str(outside / "victim")}, b"")
    arriving.add(FILE | {"path": ["file"]}, b"x")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "target/file").read_bytes() == b"x"


@pytest.mark.parametrize(
    "pieces",
    [
        [{"path": [], "kind": "link", "mode": 0o777, "target": "/etc"}],
        [FILE | {"path": ["a"]}],
        [TOP, TOP],
        [TOP, FILE | {"path": []}],
        [FILE | {"path": []}, FILE | {"path": []}],
        [FILE | {"path": [], "last": False}, FILE | {"path": ["below"]}],
        [TOP, FILE | {"path": ["a"], "first": False}],
        [TOP, FILE | {"path": ["a"]}, FILE | {"path": ["b"], "first": False}],
        [TOP, {"path": ["d"], "kind": "device", "mode": 0o777}],
        [TOP, {"path": ["d"], "kind": "directory", "mode": "0"}],
        [TOP, {"path": ["d"], "kind": "directory", "mode": -1}],
        [TOP, {"path": ["d"], "kind": "link", "mode": 0o777}],
        [TOP, {"path": ["d"], "kind": "link", "mode": 0o777, "target": "a\0"}],
        [TOP, {"path": "d", "kind": "directory", "mode": 0}],
        [TOP, {"kind": "directory", "mode": 0}],
        [TOP, None],
    ],
)
def test_what_no_honest_sender_sends_is_refused(tmp_path, pieces):
    arriving = arrival(tmp_path)
    for piece in pieces[:-1]:
        arriving.add(piece, b"")
    with pytest.raises(ValueError):  # noqa: PT011  # one of many sentences
        arriving.add(pieces[-1], b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == (["target"] if len(pieces) > 1 else [])


def test_pack_and_arrival_are_inverse(tmp_path):
    source = tmp_path / "source"
    (source / "d/e").mkdir(parents=True)
    (source / "d/big").write_bytes(os.urandom(3 << 20))
    (source / "d/big").chmod(0o444)
    (source / "d/exact").write_bytes(bytes(PIECE))
    (source / "d/link").symlink_to("big")
    (source / "run").write_bytes(b"")
    (source / "run").chmod(0o755)
    (source / os.fsdecode(b"odd \xff \n")).write_bytes(b"odd")
    os.mkfifo(source / "pipe")
    arriving = Arrival(str(tmp_path / "copy"), much())
    for head, body in pack(str(source), much()):
        arriving.add(json.loads(json.dumps(head)), body)
    copy = tmp_path / "copy"
    for name in ("d/big", "d/exact", "run", os.fsdecode(b"odd \xff \n")):
        assert (copy / name).read_bytes() == (source / name).read_bytes()
        assert (copy / name).stat().st_mode == (source / name).stat().st_mode
    assert os.readlink(copy / "d/link") == "big"
    assert (copy / "d/e").is_dir()
    assert not (copy / "pipe").exists()


def test_a_pack_opens_no_more_than_it_needs_and_closes_all(tmp_path):
    deep = tmp_path
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
        (deep / "f").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="inodes allows 50"):
        list(pack(str(tmp_path), Tally(1 << 20, 50)))
    assert len(list(pack(str(tmp_path), much()))) == 201
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_deeper_than_anybody_walks_is_refused_before_the_recursion_of_others_ends(tmp_path):
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(600):  # its path is longer than one call takes
        os.mkdir("a-name-that-is-long", dir_fd=at)
        below = os.open("a-name-that-is-long", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(OSError, match="at most 256") as caught:
        list(pack(str(tmp_path), much()))
    assert caught.value.errno == errno.ENAMETOOLONG
    arriving = arrival(tmp_path)
    arriving.add(TOP, b"")
    with pytest.raises(OSError, match="at most 256"):
        arriving.add({"path": ["d"] * 1_000_000, "kind": "directory", "mode": 0o755}, b"")


def test_a_file_that_turns_into_a_pipe_is_not_waited_for(tmp_path):
    """The race of a look and an open: an open that waits would stop whoever serves all requests."""
    stop = threading.Event()
    victim = tmp_path / "tree/victim"
    victim.parent.mkdir()

    def flip() -> None:
        while not stop.is_set():
            for make in (lambda: (tmp_path / "new").write_bytes(b"x"), lambda: os.mkfifo(tmp_path / "new")):
                make()
                os.rename(tmp_path / "new", victim)

    victim.write_bytes(b"x")
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(300):
            with contextlib.suppress(FileNotFoundError):
                for head, _body in pack(str(tmp_path / "tree"), much()):
                    assert head["kind"] != "pipe"
    finally:
        stop.set()
        thread.join()


# -- a host against a hostile inside -------------------------------------------------------------------------------


def flood(answers):
    """A sandbox that answers the first request with whatever it likes."""

    async def serve(theirs: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        theirs.setblocking(False)
        decoder = Decoder()
        while True:
            for head, _body in decoder.feed(await loop.sock_recv(theirs, 1 << 20)):
                for frame in answers(head):
                    await loop.sock_sendall(theirs, frame)

    return serve


def against(answers, ask):
    async def main():
        ours, theirs = socket.socketpair()
        peer = Peer(ours, "hostile", most_head=exchange.MOST_HEAD)
        serving = asyncio.create_task(flood(answers)(theirs))
        try:
            return await ask(peer)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            peer.end("done")
            theirs.close()

    return asyncio.run(asyncio.wait_for(main(), 30))


def endless_file(head):
    yield encode({"id": head["id"], "more": True, "piece": FILE | {"path": [], "last": False}}, bytes(PIECE))
    while True:
        piece = FILE | {"path": [], "first": False, "last": False}
        yield encode({"id": head["id"], "more": True, "piece": piece}, bytes(PIECE))


def endless_entries(head):
    yield encode({"id": head["id"], "more": True, "piece": TOP})
    for number in range(10_000_000):
        piece = {"path": [f"{number}"], "kind": "directory", "mode": 0o755}
        yield encode({"id": head["id"], "more": True, "piece": piece})


def endless_levels(head):
    yield encode({"id": head["id"], "more": True, "piece": TOP})
    yield encode(
        {"id": head["id"], "more": True, "piece": {"path": ["d"] * 200_000, "kind": "directory", "mode": 0o755}}
    )


@pytest.mark.parametrize("answers", [endless_file, endless_entries, endless_levels])
def test_get_takes_no_more_than_its_bounds_from_a_hostile_sandbox(tmp_path, answers):
    target = tmp_path / "target"
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the errno says which
        against(answers, lambda peer: exchange.get(peer, SMALL, "x", str(target)))
    assert caught.value.errno in (errno.EFBIG, errno.ENAMETOOLONG)
    if target.is_dir():
        assert len(list(target.rglob("*"))) <= SMALL.inodes
    else:
        assert target.stat().st_size <= SMALL.transfer_bytes


@pytest.mark.parametrize("piece", [{"path": [], "kind": "link", "mode": 0o777, "target": "/etc"}, 7, None, {}])
def test_a_sandbox_that_sends_what_is_no_piece_is_dead(tmp_path, piece):
    answers = lambda head: [encode({"id": head["id"], "more": True, "piece": piece})]  # noqa: E731
    with pytest.raises(SandboxDied):
        against(answers, lambda peer: exchange.get(peer, SMALL, "x", str(tmp_path / "target")))
    assert not os.path.lexists(tmp_path / "target")


def test_read_takes_no_more_than_its_bound_from_a_hostile_sandbox():
    def answers(head):
        while True:
            yield encode({"id": head["id"], "more": True}, bytes(PIECE))

    with pytest.raises(OSError, match="transfer_bytes allows 4194304"):
        against(answers, lambda peer: exchange.read(peer, SMALL, "x"))


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"code": "0"},
        {"code": 0, "out": 5, "lost": [0, 0], "timed_out": False, "wall_s": 0.1},
        {"code": 0, "out": -1, "lost": [0, 0], "timed_out": False, "wall_s": 0.1},
        {"code": 0, "out": 0, "lost": [0], "timed_out": False, "wall_s": 0.1},
        {"code": 0, "out": 0, "lost": 7, "timed_out": False, "wall_s": 0.1},
        {"code": 0, "out": 0, "lost": [0, -1], "timed_out": False, "wall_s": 0.1},
        {"code": 0, "out": 0, "lost": [0, 0], "timed_out": False, "wall_s": float("nan")},
        {"code": 0, "out": 0, "lost": [0, 0], "timed_out": False, "wall_s": "x"},
        {"code": 0, "out": 0, "lost": [0, 0], "timed_out": False, "wall_s": 0.1, "cpu_s": -1},
        {"code": 0, "out": 0, "lost": [0, 0], "timed_out": False, "wall_s": 0.1, "peak_bytes": 1.5},
    ],
)
def test_a_result_that_is_none_is_a_dead_sandbox(lie):
    answers = lambda head: [encode({"id": head["id"], **lie})]  # noqa: E731
    head = {"op": "exec", "timeout_s": 5.0, "limit": 1024}
    with pytest.raises(SandboxDied, match="hostile"):
        against(answers, lambda peer: exchange.run(peer, head, b"", out_of_memory=lambda: False))


def test_output_beyond_the_cap_is_a_dead_sandbox():
    answer = {"code": 0, "out": 0, "lost": [0, 0], "timed_out": False, "wall_s": 0.1}
    answers = lambda head: [encode({"id": head["id"], **answer}, bytes(1 << 20))]  # noqa: E731
    head = {"op": "exec", "timeout_s": 5.0, "limit": 1024}
    with pytest.raises(SandboxDied, match="asked for"):
        against(answers, lambda peer: exchange.run(peer, head, b"", out_of_memory=lambda: False))
