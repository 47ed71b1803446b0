"""What is fuzzed, each as a function of bytes that fails when a lie is believed: used by hypothesis and by atheris.

The bytes are choices: which call is made, what the other side answers to it, and where that is bent. An honest answer
is the start, so that most of what comes is nearly right. Allowed ends are those of the contract, nothing else.
"""

import asyncio
import contextlib
import json
import math
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
from envgym_sandboxes import exchange, interpreter_answers, protocol
from envgym_sandboxes.channel import Peer, ZygoteClient
from envgym_sandboxes.children import Children
from envgym_sandboxes.interpreter_line import Down, Line
from envgym_sandboxes.proxy_request import Refused, understand
from envgym_sandboxes.transfer import Arrival, Tally

from envgym.egress import EgressRule, Place, parse_place
from envgym.errors import InfrastructureFailure, SandboxDied
from envgym.limits import Resources
from envgym.sandbox import ExecResult, ProcessStatus

__all__ = ["TARGETS", "Choices"]

RESOURCES = Resources(transfer_bytes=1 << 20, inodes=64, output_bytes=1 << 10)
_OVER_S = 20.0


class Choices:
    """A stream of choices out of bytes; without bytes left the first one of each."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        if self._at >= len(self._data) or below <= 1:
            return 0
        size = 1 if below <= 256 else 4
        value = int.from_bytes(self._data[self._at : self._at + size])
        self._at += size
        return value % below

    def one_of(self, *options: Any) -> Any:
        return options[self.number(len(options))]

    def bytes(self, most: int) -> bytes:
        size = self.number(most + 1)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def rest(self) -> bytes:
        return self.bytes(len(self._data))

    def value(self, depth: int = 0) -> Any:
        """Any JSON value, odd ones above all."""
        kind = self.number(12 if depth < 3 else 9)
        if kind < 3:
            return self.one_of(
                0, 1, -1, 2, 255, 1 << 31, 1 << 63, -(1 << 63), 10**30, 10**400, 110, 11, self.number(1 << 31)
            )
        if kind < 5:
            return self.one_of(
                "",
                "x",
                "x" * 5000,
                "\0",
                "..",
                "/",
                "/etc/passwd",
                "\ud800",
                "p1",
                "a/b",
                "y\n",
                self.bytes(9).decode("latin-1"),
            )
        if kind == 5:
            return self.one_of(0.5, -1.0, math.nan, math.inf, 1e308, -0.0)
        if kind == 6:
            return self.one_of(True, False)
        if kind == 7:
            return None
        if kind == 8:
            return [[[[[]]]]]
        if kind < 11:
            return [self.value(depth + 1) for _ in range(self.number(4))]
        return {
            self.one_of("path", "id", "x", "kind", "size"): self.value(depth + 1) for _ in range(self.number(4))
        }

    def bent(self, honest: dict[str, Any]) -> dict[str, Any]:
        """An honest head with some of it changed, missing or new."""
        head = dict(honest)
        for _ in range(self.number(4)):
            names = [*head, "id", "more", "errno", "error", "dead", "ready", "stream", "do", "size", "port", "new"]
            name = names[self.number(len(names))]
            if self.number(3) == 0:
                head.pop(name, None)
            else:
                head[name] = self.value()
        return head

    def frame(self, honest: dict[str, Any], body: bytes) -> bytes:
        """A frame as a hostile peer sends it."""
        kind = self.number(12)
        if kind == 0:
            return self.bytes(40)
        if kind == 1:
            return struct.pack("!II", self.value_of_size(), self.value_of_size()) + self.bytes(20)
        if kind == 2:
            text = self.one_of(
                b"[" * 100_000,
                b"{}",
                b"null",
                b'{"id":1e999}',
                b'{"id":' + b"9" * 5000 + b"}",
                b'{"id":1,"id":2}',
                b"\xff",
            )
            return struct.pack("!II", len(text), 0) + text
        body = self.one_of(body, b"", body + self.bytes(50), body[:-1], bytes(1 << 17))
        return protocol.encode(self.bent(honest), body)

    def value_of_size(self) -> int:
        return self.one_of(0, 1, 2, 1 << 20, (1 << 20) + 1, (1 << 32) - 1, 1 << 30, self.number(1 << 31))


# -- the peer of a sandbox -----------------------------------------------------------------------------------------

Answers = list[tuple[dict[str, Any], bytes]]


def _run_is_sane(result: object) -> None:
    assert isinstance(result, ExecResult)
    assert result.exit_code is None or (type(result.exit_code) is int and abs(result.exit_code) < 1 << 32)
    assert math.isfinite(result.wall_s)
    assert result.wall_s >= 0
    assert len(result.stdout) + len(result.stderr) <= (1 << 18) + 4096
    assert all(type(lost) is int and 0 <= lost < 1 << 63 for lost in result.lost_bytes)
    assert result.cpu_s is None or (math.isfinite(result.cpu_s) and result.cpu_s >= 0)
    assert result.peak_bytes is None or 0 <= result.peak_bytes < 1 << 63
    assert type(result.timed_out) is bool


def _status_is_sane(result: object) -> None:
    assert isinstance(result, ProcessStatus)
    assert type(result.running) is bool
    assert result.exit_code is None or (type(result.exit_code) is int and abs(result.exit_code) < 1 << 32)


def _bytes_are_sane(result: object) -> None:
    assert isinstance(result, bytes)
    assert len(result) <= RESOURCES.transfer_bytes


def _stand_is_sane(result: object) -> None:
    assert isinstance(result, exchange.Stand)
    assert isinstance(result.cwd, str)
    assert type(result.background) is int
    assert result.background >= 0


def _nothing(result: object) -> None:
    assert result is None


class _Place:
    """A directory to copy from and to, with something beside it that must stay as it is."""

    def __init__(self) -> None:
        self.top = Path(
            tempfile.mkdtemp(prefix="envgym-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        )
        (self.top / "outside").mkdir()
        (self.top / "outside/file").write_text("kept")
        (self.top / "source").mkdir()
        (self.top / "source/file").write_bytes(b"content")

    def check(self) -> None:
        assert sorted(os.listdir(self.top)) in (["outside", "source"], ["outside", "source", "target"])
        assert os.listdir(self.top / "outside") == ["file"]
        assert (self.top / "outside/file").read_text() == "kept"

    def remove(self) -> None:
        shutil.rmtree(self.top, ignore_errors=False)


async def _start_and(peer: Peer, then: str) -> object:
    children = Children()
    name = await children.start(peer, {"argv": ["x"], "cwd": None, "env": {}, "warm": False}, b"")
    if then == "poll":
        return await children.poll(peer, name, wait_s=0.0, most=1 << 10)
    if then == "signal":
        return await children.signal(peer, name, 15)
    return await children.collect(peer, most=1 << 10)


async def _dial(peer: Peer) -> bytes:
    stream = await peer.streams.open(80)
    await stream.send(b"x" * 100)
    stream.end()
    data = b""
    while piece := await stream.receive():
        data += piece
    return data


async def _serve_streams(peer: Peer) -> None:
    """The inside opens streams to whoever takes them."""
    taken = []
    peer.streams.on_open = taken.append
    with contextlib.suppress(SandboxDied):
        await exchange.hold_still(peer, still=True)
    for stream in taken:
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(stream.receive(), 5)
        stream.reset()


_RESULT = {
    "id": 1,
    "code": 0,
    "out": 3,
    "lost": [0, 0],
    "timed_out": False,
    "wall_s": 0.1,
    "cpu_s": 0.1,
    "peak_bytes": 1,
}
_FILE = {"path": ["f"], "kind": "file", "mode": 420, "first": True, "last": True}
_TREE: Answers = [
    ({"id": 1, "more": True, "piece": {"path": [], "kind": "directory", "mode": 493}}, b""),
    ({"id": 1, "more": True, "piece": {"path": ["l"], "kind": "link", "mode": 511, "target": "../outside"}}, b""),
    ({"id": 1, "more": True, "piece": _FILE}, b"content"),
    ({"id": 1, "more": False}, b""),
]
_STATUS = {"id": 2, "known": True, "code": None, "out": 2, "lost": [0, 0]}
_COLLECTED = {"id": 2, "statuses": [{"name": "p1", "code": 0, "out": 1, "lost": [0, 0], "size": 2}]}
_STREAM: Answers = [
    ({"id": 1}, b""), ({"stream": 1, "do": "data"}, b"abc"), ({"stream": 1, "do": "credit", "size": 100}, b""), ({"stream": 1, "do": "end"}, b""),
]  # fmt: skip
_OPENED: Answers = [
    ({"stream": -1, "do": "open"}, b""), ({"stream": -1, "do": "data"}, b"GET"), ({"stream": -2, "do": "open"}, b""),
    ({"stream": -1, "do": "end"}, b""), ({"id": 1}, b""),
]  # fmt: skip
_HEAD = {"op": "shell", "size": 4, "timeout_s": 1.0, "limit": 1 << 10}
Call = Callable[[Peer, _Place], Any]
CALLS: dict[str, tuple[Call, Answers, Callable[[object], None]]] = {
    "run": (lambda peer, _: exchange.run(peer, _HEAD, b"true", out_of_memory=lambda: False), [(_RESULT, b"outerr")], _run_is_sane),
    "read": (lambda peer, _: exchange.read(peer, RESOURCES, "f"), [({"id": 1, "more": True}, b"a"), ({"id": 1, "more": False}, b"b")], _bytes_are_sane),
    "get": (lambda peer, place: exchange.get(peer, RESOURCES, "t", str(place.top / "target")), _TREE, _nothing),
    "write": (lambda peer, _: exchange.write(peer, RESOURCES, "f", b"x"), [({"id": 1}, b"")], _nothing),
    "put": (lambda peer, place: exchange.put(peer, RESOURCES, str(place.top / "source"), "t"), [({"id": 1}, b""), ({"id": 2}, b"")], _nothing),
    "freeze": (lambda peer, _: exchange.freeze(peer), [({"id": 1, "cwd": "/", "background": 0}, b"x=1")], _stand_is_sane),
    "hold": (lambda peer, _: exchange.hold_still(peer, still=True), [({"id": 1}, b"")], _nothing),
    "poll": (lambda peer, _: _start_and(peer, "poll"), [({"id": 1}, b""), (_STATUS, b"ab")], _status_is_sane),
    "signal": (lambda peer, _: _start_and(peer, "signal"), [({"id": 1}, b""), ({"id": 2, "known": True}, b"")], _nothing),
    "collect": (lambda peer, _: _start_and(peer, "collect"), [({"id": 1}, b""), (_COLLECTED, b"ab")], _nothing),
    "dial": (lambda peer, _: _dial(peer), _STREAM, _bytes_are_sane),
    "streams": (lambda peer, _: _serve_streams(peer), _OPENED, _nothing),
}  # fmt: skip


def peer(data: bytes) -> None:
    """A sandbox's init lies: every call ends with a sane result, SandboxDied or OSError, and none hangs."""
    choices = Choices(data)
    call, honest, sane = CALLS[list(CALLS)[choices.number(len(CALLS))]]
    place = _Place()
    try:
        asyncio.run(_lie(choices, lambda peer: call(peer, place), honest, sane))
        place.check()
    finally:
        place.remove()


def _frames(choices: Choices, honest: Answers) -> list[bytes]:
    order = [*honest]
    for _ in range(choices.number(3)):
        order.insert(choices.number(len(order) + 1), order[choices.number(len(order))])
    frames = [choices.frame(head, body) for head, body in order]
    return frames[: len(frames) - choices.number(2)]


async def _lie(
    choices: Choices, call: Callable[[Peer], Any], honest: Answers, sane: Callable[[object], None]
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    peer = Peer(ours, "liar", most_head=exchange.MOST_HEAD)
    calling = asyncio.ensure_future(call(peer))
    with theirs:
        await asyncio.sleep(0)
        for frame in _frames(choices, honest):
            with contextlib.suppress(OSError):  # the host has let go
                await asyncio.get_running_loop().sock_sendall(theirs, frame)
            for _ in range(3):
                await asyncio.sleep(0)
    done, _pending = await asyncio.wait([calling], timeout=_OVER_S)
    assert done, "the host hangs"
    error = calling.exception()
    if error is None:
        sane(calling.result())
    else:
        unknown = isinstance(error, ValueError) and "background process" in str(error)
        assert unknown or isinstance(error, SandboxDied | OSError), repr(error)
        assert len(str(error)) < 5000
    peer.end("done")
    for _ in range(3):
        await asyncio.sleep(0)
    assert faults == [], faults


# -- the zygote ----------------------------------------------------------------------------------------------------


def zygote(data: bytes) -> None:
    """A zygote that makes no sense is one that is gone."""
    asyncio.run(_zygote(Choices(data)))


async def _zygote(choices: Choices) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = ZygoteClient(ours)
    exited = client.exit_of("s")
    asked = [client.ready, client.ask("start", sandbox="s"), client.ask("drop", names=["s"])]
    honest: Answers = [
        ({"id": 0, "result": None}, b""),
        ({"id": 1, "result": 7}, b""),
        ({"event": "exit", "sandbox": "s", "status": 0}, b""),
    ]
    descriptors = len(os.listdir("/proc/self/fd"))
    with theirs:
        theirs.setblocking(False)
        for frame in _frames(choices, honest):
            with contextlib.suppress(OSError):
                socket.send_fds(theirs, [frame or b"x"], [0] * choices.number(3))
            await asyncio.sleep(0)
    try:
        for future in asked:
            with contextlib.suppress(InfrastructureFailure, OSError):
                await asyncio.wait_for(future, _OVER_S)
        assert type(await asyncio.wait_for(exited, _OVER_S)) is int
    except TimeoutError as error:
        raise AssertionError("the host hangs") from error
    finally:
        client.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors, "descriptors that came along are closed"
    assert faults == [], faults


# -- smaller parties -----------------------------------------------------------------------------------------------


def decoder(data: bytes) -> None:
    """Any stream, cut anywhere, is frames or a ProtocolError."""
    choices = Choices(data)
    limit = choices.one_of(64, 1 << 20)
    found = protocol.Decoder(most_head=limit, most_body=lambda _head: limit)
    stream = (
        b"".join(choices.frame({"id": 1, "x": "y"}, b"body") for _ in range(1 + choices.number(4))) + choices.rest()
    )
    try:
        while stream:
            size = 1 + choices.number(1 << 13)
            for head, body in found.feed(stream[:size]):
                assert isinstance(head, dict)
                assert len(body) <= limit
            stream = stream[size:]
    except protocol.ProtocolError:
        pass


def arrival(data: bytes) -> None:
    """Whatever pieces come, nothing is written outside of the target, and not more than was allowed."""
    choices = Choices(data)
    place = _Place()
    taking = Arrival(str(place.top / "target"), Tally(1 << 16, 16))
    pieces = [head["piece"] for head, _ in _TREE if "piece" in head]
    names = ["a", "l", "f", "..", ".", "", "l/file", "/", "\0", "outside", "file"]
    try:
        for _ in range(1 + choices.number(12)):
            piece = choices.bent(pieces[choices.number(len(pieces))])
            if choices.number(2):
                piece["path"] = [names[choices.number(len(names))] for _ in range(choices.number(4))]
            with contextlib.suppress(ValueError, OSError):
                taking.add(piece, choices.one_of(b"", b"x", bytes(1 << 15)))
        place.check()
        held = sum(
            path.lstat().st_size
            for path in (place.top / "target").rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        assert held <= 1 << 16
    finally:
        place.remove()


class _Sandbox:
    """As much of a sandbox as a `Line` needs; what its process says is hostile."""

    def __init__(self, said: list[bytes], files: Callable[[], bytes]) -> None:
        self.said = said
        self.files = files

    async def write(self, _path: str, _content: bytes) -> None:
        await asyncio.sleep(0)

    async def signal(self, _process: str, _number: int) -> None:
        await asyncio.sleep(0)

    async def read(self, _path: str) -> bytes:
        return self.files()

    async def poll(self, _process: str, **_options: Any) -> ProcessStatus:
        await asyncio.sleep(0)
        return ProcessStatus(bool(self.said), None if self.said else 0, self.said.pop(0) if self.said else b"", b"")


def interpreter(data: bytes) -> None:
    """An interpreter's server that lies is down; a result that is believed has the promised types."""
    asyncio.run(_interpreter(Choices(data)))


async def _interpreter(choices: Choices) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    result = {"id": 1, "state": "kept", "timed_out": False, "out": "", "err": "", "value": None, "error": None, "images": [], "wall_s": 0.1,
              "cpu_s": 0.1, "lost": [0, 0], "notes": [], "branch": 1, "directory": "/", "unforked": [], "found": []}  # fmt: skip

    def line(honest: dict[str, Any]) -> bytes:
        if choices.number(8) == 0:
            return choices.bytes(30) + b"\n"
        value = choices.value() if choices.number(8) == 0 else choices.bent(honest)
        return json.dumps(value).encode() + b"\n"

    said = [line({"ready": "/tmp/x", "knock": False}), line(result), line(result | {"file": "0" * 64})]
    talk = Line(_Sandbox(said, lambda: line(result)), "p1")  # type: ignore[arg-type]
    read = (
        interpreter_answers.cell_result,
        interpreter_answers.made,
        interpreter_answers.digest,
        interpreter_answers.variables,
    )
    try:
        await talk.ready(0.5)
        answer = await talk.ask({"op": "x"}, within_s=0.5)
        found = read[choices.number(len(read))](answer)
        assert found is not None
    except (Down, SandboxDied, OSError):
        pass
    for _ in range(3):
        await asyncio.sleep(0)
    assert faults == [], faults


def place(data: bytes) -> None:
    """A place that is understood has one meaning: written and read again it is the same."""
    choices = Choices(data)
    parts = [
        "example.org",
        "127.0.0.1",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        ":80",
        ":",
        "@",
        "%",
        "*.",
        ".",
        "\0",
        "é",
        "1",
        ":99999",
        "a" * 70,
        "[",
        "]",
        "-",
        "_",
    ]
    text = "".join(parts[choices.number(len(parts))] for _ in range(choices.number(6))) + choices.rest().decode(
        "latin-1"
    )
    with contextlib.suppress(ValueError):
        found = parse_place(text, choices.one_of(80, None))
        assert 1 <= found.port <= 65535
        assert parse_place(str(found)) == found
        assert not set(found.host) & set("@/\\?#% \t\r\n\0")
        assert not EgressRule.parse("*.allowed.example").allows(found) or found.host.endswith(".allowed.example")
    with contextlib.suppress(ValueError):
        EgressRule.parse(text)


def proxied(data: bytes) -> None:
    """A request to the proxy that is understood goes on as one request, to the place that was judged."""
    choices = Choices(data)
    lines = [b"GET http://a.example/x HTTP/1.1", b"CONNECT a.example:443 HTTP/1.1", b"POST http://a.example HTTP/1.1", b"Host: a.example",
             b"Host: b.example", b"Content-Length: 3", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Connection: close, x", b"X: y",
             b"Transfer-Encoding: identity", b" folded", b"Expect: 100-continue", b"Proxy-Authorization: x", b"GET / HTTP/1.0", b""]  # fmt: skip
    text = (
        b"\r\n".join(lines[choices.number(len(lines))] for _ in range(1 + choices.number(8)))
        + b"\r\n\r\n"
        + choices.rest()
    )
    http = h11.Connection(h11.SERVER)
    try:
        http.receive_data(text)
        event = http.next_event()
        if not isinstance(event, h11.Request):
            return
        wanted = understand(event)
    except (h11.RemoteProtocolError, Refused):
        return
    assert isinstance(wanted.place, Place)
    if wanted.is_tunnel:
        return
    onwards = h11.Connection(h11.CLIENT)
    try:
        sent = onwards.send(h11.Request(method=wanted.method, target=wanted.target, headers=list(wanted.headers)))
    except h11.LocalProtocolError:
        return
    assert sent is not None
    assert sent.count(b"\r\n\r\n") == 1
    again = h11.Connection(h11.SERVER)
    again.receive_data(sent)
    seen = again.next_event()
    assert isinstance(seen, h11.Request)
    hosts = [value for name, value in seen.headers if name == b"host"]
    assert [parse_place(host.decode(), 80) for host in hosts] == [wanted.place]
    framing = [name for name, _value in seen.headers if name in (b"content-length", b"transfer-encoding")]
    assert len(framing) <= 1


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (peer, zygote, decoder, arrival, interpreter, place, proxied)
}
