"""What a display is made of, without one: clocks of who sleeps, PNGs, the bus's protocol."""

import io
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from envgym_sandboxes.desktop.inside.dbus import BusGone, Call, Connection
from envgym_sandboxes.desktop.inside.png import Png
from envgym_sandboxes.desktop.inside.programs import listens
from envgym_sandboxes.desktop.inside.rest import FRAME_MS, START_MS, Clocks, clocks, threads
from PIL import Image

POLL = "import select\nprint(flush=True)\nfor _ in range(500): select.poll().poll({})"
EPOLL = "import select\nprint(flush=True)\nfor _ in range(500): select.epoll().poll({})"
SLEEP = "import time\nprint(flush=True)\nfor _ in range(500): time.sleep({})"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="poll(2) has no number here; fix: a machine with x86-64")
@pytest.mark.parametrize(
    ("code", "due", "blind"),
    [
        (POLL.format(60), True, False), (POLL.format(60_000), False, False), (POLL.format(-1), False, False),
        (EPOLL.format(0.06), True, False), (EPOLL.format(60), False, False), (SLEEP.format(60), False, True),
    ],
)  # fmt: skip
def test_who_sleeps_until_a_near_timer_is_not_at_rest(code: str, due: bool, blind: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        until = time.monotonic() + 10
        while not (found := clocks(threads(os.getpid()), START_MS)).due and due and time.monotonic() < until:
            time.sleep(0.001)
        while found.blind != blind and time.monotonic() < until:  # it has not gone to sleep yet
            found = clocks(threads(os.getpid()), START_MS)
        child.kill()
    assert (bool(found.due), found.blind) == (due, blind)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="poll(2) has no number here; fix: a machine with x86-64")
def test_a_frame_and_a_half_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", POLL.format(25)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        until = time.monotonic() + 10
        while not clocks(threads(os.getpid()), FRAME_MS).due:
            assert time.monotonic() < until
        child.kill()


def test_what_a_terminal_still_has_to_hand_on_is_not_seen() -> None:
    master, slave = os.openpty()
    code = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert clocks(threads(os.getpid()), START_MS) == Clocks("", True)
        child.kill()
    os.close(master)
    os.close(slave)


def test_a_png_has_the_pixels_in_their_order():
    made = Image.open(io.BytesIO(Png((1, 2)).of(bytes([1, 2, 3, 0, 4, 5, 6, 0]))))
    assert (made.mode, made.size, made.tobytes()) == ("RGB", (1, 2), bytes([3, 2, 1, 6, 5, 4]))
    with pytest.raises(ValueError, match="bytes of pixels"):
        Png((1, 1)).of(b"abc")


def test_a_png_hangs_on_its_pixels_alone_and_not_on_the_picture_before():
    width, height = size = (31, 61)  # bands of 24, 24 and 13 rows
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(height, width, 4), dtype=np.uint8)
    one = Png(size)
    for row in (0, 23, 24, 47, 48, 60, 5, None):
        if row is not None:
            pixels[row, int(rng.integers(width))] ^= 255
        made = one.of(pixels.tobytes())
        assert made == Png(size).of(pixels.tobytes())
        assert (np.asarray(Image.open(io.BytesIO(made))) == pixels[:, :, 2::-1]).all()


def message(kind: int, answers: int, signature: str, body: bytes, *, order: str = "<") -> bytes:
    """An answer (2), an error (3) or a question (1), by the specification: fields are padded to eight bytes."""
    fields = bytes([5, 1]) + b"u\0" + struct.pack(f"{order}I", answers)
    if signature:
        fields += bytes([8, 1]) + b"g\0" + bytes([len(signature)]) + signature.encode() + b"\0"
    head = struct.pack(f"{order}cBBBIII", b"l" if order == "<" else b"B", kind, 0, 1, len(body), 99, len(fields))
    return head + fields + bytes(-len(fields) % 8) + body


def text(content: str) -> bytes:
    return struct.pack("<I", len(content)) + content.encode() + b"\0"


def test_answers_come_in_any_order_and_what_is_none_is_none(tmp_path: Path) -> None:
    item = text("a") + bytes(2) + struct.pack("<i", -7) + struct.pack("<I", 8) + struct.pack("<II", 1, 2)
    listed = struct.pack("<I", len(item)) + bytes(4) + item
    said = [
        message(2, 5, "as", struct.pack("<I", 6) + text("x")),  # of other types than were asked for
        message(2, 4, "v", b"\x01d\0" + bytes(5) + struct.pack("<d", 2.5)),
        message(2, 2, "u", struct.pack(">I", 5), order=">"),  # the other byte order: not read
        message(3, 3, "s", text("no such thing")),
        message(2, 6, "a(siau)", listed),
        message(2, 4000, "s", text("of nobody")),
        message(3, 2, "s", text("late")),
    ]
    asked = [Call("n", "/p", "i", "m", gives) for gives in ("u", "s", "vd", "s", "a(siau)")]

    def bus(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            assert peer.recv(4096).startswith(b"\0AUTH EXTERNAL ")
            peer.sendall(b"OK 0\r\n")
            heard = b""
            while b"Hello" not in heard:
                heard += peer.recv(4096)
            peer.sendall(message(2, 1, "s", text(":1.1")))
            while heard.count(b"/p") < len(asked):
                heard += peer.recv(4096)
            whole = b"".join(said)
            for at in range(0, len(whole), 7):  # however it is cut
                peer.sendall(whole[at : at + 7])

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "bus"))
        server.listen()
        serving = threading.Thread(target=bus, args=(server,))
        serving.start()
        connection = Connection(f"unix:path={tmp_path}/none;unix:path={tmp_path}/bus,guid=0")
        assert connection.ask(asked, 60.0) == [None, None, 2.5, None, [("a", -7, [1, 2])]]
        serving.join()
        for _ in range(2):  # it stays gone: an answer of nothing would look like a screen without a program
            with pytest.raises(BusGone, match="the bus is gone"):
                connection.ask(asked[:1], 60.0)
        connection.close()
    with pytest.raises(ConnectionRefusedError, match="no address of a unix socket"):
        Connection("tcp:host=localhost")


def test_a_bus_is_there_when_it_takes_connections_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    assert not listens(path)
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(path))
        assert path.exists()
        assert not listens(path)
        bus.listen()
        assert listens(path)
    assert not listens(path), "nobody is there any more"
