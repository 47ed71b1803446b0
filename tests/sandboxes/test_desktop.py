"""A display in a sandbox: what it shows, what can be done on it, and that nothing of it is left."""

import asyncio
import hashlib
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from envgym_sandboxes.desktop.inside.home import CLOSED, digests
from envgym_sandboxes.desktop.inside.leavings import contents, grounds, layers, put_back
from envgym_sandboxes.desktop.inside.rest import descendants
from envgym_sandboxes.desktop.screen import open_desktop

from envgym.errors import EnvironmentFailure, InfrastructureFailure, SandboxUnavailable
from envgym.sandbox import Sandbox
from envgym.screen import CLOSED as screen_closed
from envgym.screen import Click, Drag, Invoke, Move, Press, Screen, Scroll, SetText, Type, Wait
from envgym.task import World

NEEDED = ("/usr/bin/Xvfb", "/usr/bin/openbox", "/usr/libexec/at-spi-bus-launcher", "/usr/bin/mousepad")
installed = pytest.mark.skipif(
    not all(map(os.path.exists, NEEDED)), reason="no display here; fix: scripts/setup.sh as root"
)


KILL_SERVER = 'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = Xvfb ] && kill -9 "${p#/proc/}"; done'


def on_screen(make: Callable[[], Any], use: Callable[[Sandbox, Screen], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with (
            make() as backend,
            await backend.create(World()) as sandbox,
            await open_desktop(sandbox, width=640, height=480) as screen,
        ):
            await use(sandbox, screen)

    asyncio.run(run())


@pytest.mark.slow
@installed
@pytest.mark.timeout(120)
def test_a_sandbox_that_hides_its_processes_has_no_display_and_says_why(make_landlock) -> None:
    async def run() -> None:
        async with make_landlock() as backend, await backend.create(World()) as sandbox:
            with pytest.raises(SandboxUnavailable, match="/proc cannot be read there") as said:
                await open_desktop(sandbox)
            assert "apt-get" not in str(said.value), "no package would help"
            left = await sandbox.exec(["/bin/sh", "-c", "ls -d ${TMPDIR:-/tmp}/desktop-*"])
            assert left.stdout == b""

    asyncio.run(run())


async def looks(screen: Screen, times: int) -> None:
    for _ in range(times):
        await screen.view()


def ppm(image: bytes) -> tuple[tuple[int, int], bytes]:
    """Size and raw rows of a PNG of ours, read independently of what wrote it."""
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, size = 8, b"", (0, 0)
    while at < len(image):
        length, kind = struct.unpack(">I4s", image[at : at + 8])
        body = image[at + 8 : at + 8 + length]
        assert struct.unpack(">I", image[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    return size, zlib.decompress(data)


def test_descendants_are_the_living_ones_below_a_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        assert child.pid not in descendants(child.pid)
        child.communicate(b"\n", timeout=60)
    assert child.pid not in descendants(os.getpid())


def test_on_a_machine_that_is_no_sandbox_nothing_is_looked_for_to_be_removed(tmp_path):
    assert layers() == []
    assert grounds(tmp_path) == {}


def test_files_are_put_back_as_they_were(tmp_path):
    folder = tmp_path / "cache"
    (folder / "fonts").mkdir(parents=True)
    (folder / "fonts/a").write_bytes(b"a")
    first = contents(folder)
    (folder / "fonts/a").write_bytes(b"b")
    (folder / "new").symlink_to(tmp_path)
    put_back(folder, first)
    assert contents(folder) == first
    (folder / "fonts/a").unlink()
    (folder / "fonts").rmdir()
    (folder / "fonts").symlink_to(tmp_path)
    put_back(folder, first)
    assert contents(folder) == first
    assert sorted(path.name for path in folder.iterdir()) == ["fonts"]
    assert not (folder / "fonts").is_symlink()


def test_a_home_is_read_anew_and_whole(tmp_path):
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/a b\n").write_bytes(b"one")
    (tmp_path / "link").symlink_to(tmp_path / "d/e/a b\n")
    os.mkfifo(tmp_path / "pipe")
    assert digests(str(tmp_path)) == {"d/e/a b\n": hashlib.sha256(b"one").hexdigest()}, (
        "links and pipes are no files"
    )
    before = os.stat(tmp_path / "d/e/a b\n")
    (tmp_path / "d/e/a b\n").write_bytes(b"two")
    os.utime(tmp_path / "d/e/a b\n", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests(str(tmp_path)) == {"d/e/a b\n": hashlib.sha256(b"two").hexdigest()}, "times are not believed"
    for number in range(1200):
        (tmp_path / f"f{number:04}").touch()
    many = digests(str(tmp_path))
    assert (len(many), len(many[""])) == (1001, 64)
    (tmp_path / "f1199").write_bytes(b"x")
    assert digests(str(tmp_path))[""] != many[""]
    assert digests(str(tmp_path / "gone")) == {}
    assert screen_closed == CLOSED


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_what_is_typed_clicked_and_set_is_shown_and_nothing_is_left_after_clear(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        await sandbox.write("/work/a.txt", b"one\n")
        await screen.launch(["mousepad", "a.txt"])
        first = await screen.view(image=True, windows=True)
        again = await screen.view(image=True, windows=True)
        assert str(first) == str(again)
        assert first.image is not None
        assert first.image == again.image, "nothing blinks"
        assert ppm(first.image)[0] == (640, 480)
        assert first.windows is not None
        assert [window.title for window in first.windows] == ["~/a.txt - Mousepad"]
        (text,) = first.find("text")
        assert text.text == "one\n"
        for action in (Press(("ctrl", "End")), Type("zwei é ☃ {}\n")):
            assert (await screen.act(action)).fault == ""
        seen = await screen.view()
        assert seen.image is None
        assert seen.windows is None
        assert [node.text for node in seen.find("text")] == ["one\nzwei é ☃ {}\n"]
        assert seen.find("text")[0].ref == text.ref, "an element keeps its ref"
        (menu,) = seen.find("menu", "File")
        await screen.act(Click(menu.ref))
        opened = await screen.view()
        assert opened.find("menu item", "Save"), str(opened)
        await screen.act(Press(("Escape",)))
        assert (await screen.act(SetText(text.ref, "new\n"))).fault == ""
        await screen.act(Press(("ctrl", "s")))
        assert await sandbox.read("/work/a.txt") == b"new\n"
        await sandbox.exec("mkdir d && echo x > b && echo x > d/c && chmod 0 b d")
        lies = (await screen.view(tree=False, files=True)).files
        assert lies == {"a.txt": hashlib.sha256(b"new\n").hexdigest(), "b": CLOSED, "d/": CLOSED}
        assert (await screen.view()).files is None, "paid for only if asked"
        await screen.clear()
        empty = await screen.view(windows=True)
        assert empty.tree == ()
        assert empty.windows == ()
        assert (await sandbox.exec(["/bin/ls", "-A", "/work"])).stdout == b""
        await sandbox.write("/work/a.txt", b"one\n")
        await screen.launch(["mousepad", "a.txt"])
        fresh = await screen.view(image=True, windows=True)
        assert str(fresh) == str(first), "as it was, refs included"
        assert fresh.image == first.image

    on_screen(make, use)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_a_picture_shows_what_was_done_before_it(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        await screen.launch(["galculator"])
        view = await screen.view()
        for digit in "123456789":
            await screen.act(Click(view.find("toggle button", digit)[0].ref))
            at_once = (await screen.view(image=True)).image
            await looks(screen, 10)
            assert (await screen.view(image=True)).image == at_once, f"no frame was to come after {digit}"

    on_screen(make, use)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
@pytest.mark.skipif(not os.path.exists("/usr/bin/thunar"), reason="no thunar here; fix: scripts/setup.sh as root")
def test_what_is_dragged_is_dropped(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        await sandbox.write("/work/box/keep.txt", b"k\n")
        await sandbox.write("/work/tea.txt", b"tea\n")
        await screen.launch(["thunar", "/work"])
        view = await screen.view()
        (file,), (folder,) = view.find("table cell", "tea.txt"), view.find("table cell", "box")
        assert (await screen.act(Drag(file.ref, folder.ref))).fault == ""
        lies = (await screen.view(tree=False, files=True)).files
        assert lies is not None
        assert "box/tea.txt" in lies, "copied or moved, as the file manager has it between layers of a sandbox"
        await screen.clear()
        await sandbox.write("/work/a.txt", b"one two\n")
        await screen.launch(["mousepad", "a.txt"])
        box = (await screen.view()).find("text")[0].box
        await screen.act(Drag((box.x + 1, box.y + 8), (box.x + 300, box.y + 8)))
        await screen.act(Type("six"))
        assert (await screen.view()).find("text")[0].text == "six\n"

    on_screen(make, use)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_what_cannot_be_done_is_told_and_what_is_gone_is_raised(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        for action in (
            Click("e999"), Click((640, 0)), Move((0, -1)), Drag((1, 1), (9999, 1)), Press(("ctrl", "nokey")),
            Type("a\x00"), Invoke("e1"), SetText("e1", "x"), Scroll("e5", 1),
        ):  # fmt: skip
            assert (await screen.act(action)).fault, action
        assert (await screen.act(Wait(0.5))).settled
        with pytest.raises(EnvironmentFailure, match="no-such-program"):
            await screen.launch(["no-such-program"])
        with pytest.raises(EnvironmentFailure, match="shows no window"):
            await screen.launch(["/bin/sh", "-c", "echo why >&2; exit 3"])
        await sandbox.exec(["/bin/sh", "-c", KILL_SERVER])
        with pytest.raises(InfrastructureFailure):
            await looks(screen, 100)

    on_screen(make, use)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_a_bus_that_is_gone_is_a_failure_and_no_empty_screen(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        await screen.launch(["mousepad"])
        wrong = SetText((await screen.view()).find("text")[0].ref, "a b")
        object.__setattr__(wrong, "text", "a\0b")  # the bus closes the connection, and goes on
        for asked in (lambda: screen.act(wrong), screen.view, screen.clear):
            with pytest.raises(InfrastructureFailure, match="the bus is gone"):
                await asked()

    on_screen(make, use)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_a_closed_display_leaves_no_process_and_no_file_and_its_sandbox_goes_on(make):
    async def run() -> None:
        async with make() as backend, await backend.create(World()) as sandbox:
            screens = [await open_desktop(sandbox, width=640, height=480) for _ in range(2)]
            await screens[1].launch(["mousepad"])
            assert (await screens[0].view(windows=True)).windows == (), "two displays, two worlds"
            for screen in screens:
                await screen.close()
                await screen.close()
            with pytest.raises(RuntimeError, match="closed"):
                await screens[0].view()
            left = (await sandbox.exec(["/bin/ps", "-e", "-o", "comm="])).stdout.decode().split()
            assert not {"Xvfb", "openbox", "dbus-daemon", "at-spi2-registr", "mousepad", "python3"} & set(left)
            files = await sandbox.exec(["/usr/bin/find", "/tmp", "/work", "!", "-type", "d"])
            assert files.stdout == b"", files.stdout

    asyncio.run(run())


def differing(pixels: bytes, rows: bytes, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Where pixels of a picture (blue, green, red, nothing) and of a PNG's rows are not the same."""
    width, height = size
    return [
        (x, y)
        for y in range(height)
        for x in range(width)
        if pixels[(at := 4 * (y * width + x)) : at + 3][::-1]
        != rows[(at := y * (3 * width + 1) + 3 * x + 1) : at + 3]
    ]


async def frame(place: tuple[str, int], *, keys: str = "") -> tuple[tuple[int, int], bytes]:
    """Size and pixels (blue, green, red, nothing) of a VNC server's picture, by RFC 6143; keys are typed before."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        assert await reader.readexactly(12) == b"RFB 003.008\n"
        writer.write(b"RFB 003.008\n")
        assert 1 in await reader.readexactly((await reader.readexactly(1))[0]), "no password is asked for"
        writer.write(b"\x01")
        assert await reader.readexactly(4) == bytes(4)
        writer.write(b"\x01")
        *size, length = struct.unpack(">HH16xI", await reader.readexactly(24))
        await reader.readexactly(length)
        writer.write(struct.pack(">B3xBBBBHHHBBB3x", 0, 32, 24, 0, 1, 255, 255, 255, 16, 8, 0))
        writer.write(struct.pack(">BxHi", 2, 1, 0))
        for key in keys:
            writer.write(b"".join(struct.pack(">BB2xI", 4, down, ord(key)) for down in (1, 0)))
        writer.write(struct.pack(">BBHHHH", 3, 0, 0, 0, *size))
        pixels = bytearray(4 * size[0] * size[1])
        kind, count = struct.unpack(">BxH", await reader.readexactly(4))
        assert kind == 0
        for _ in range(count):
            left, top, width, height, encoding = struct.unpack(">HHHHi", await reader.readexactly(12))
            assert encoding == 0
            for row in range(top, top + height):
                at = 4 * (row * size[0] + left)
                pixels[at : at + 4 * width] = await reader.readexactly(4 * width)
        return (size[0], size[1]), bytes(pixels)
    finally:
        writer.close()


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_a_viewer_sees_the_screen_and_changes_nothing_unless_it_may(make):
    async def use(sandbox: Sandbox, screen: Screen) -> None:
        await sandbox.write("/work/a.txt", b"one\n")
        await screen.launch(["mousepad", "a.txt"])
        async with screen.watched() as place:
            seen = (await screen.view(image=True)).image
            assert seen is not None
            size, pixels = await asyncio.wait_for(frame(place, keys="zz"), 60)
            shape, rows = ppm(seen)
            assert size == shape
            others = [(x, y) for x, y in differing(pixels, rows, size) if x < size[0] - 32 or y < size[1] - 32]
            assert others == [], "nothing differs but the pointer, which waits in a corner"
            assert (await screen.act(Wait(2.0))).settled, "who watches is no work of the programs"
            assert (await screen.view()).find("text")[0].text == "one\n"
        with pytest.raises(OSError, match=r"Connect|refused"):
            await frame(place)
        async with screen.watched(control=True) as place:
            while (await screen.view()).find("text")[0].text == "one\n":
                await asyncio.wait_for(frame(place, keys="z"), 60)
        assert (await screen.view()).find("text")[0].text.startswith("z")
        box = (await screen.view()).find("text")[0].box
        for _ in range(2):
            await screen.act(Click((box.x + 12, box.y + 10)))
        await screen.act(Type("!"))
        text = (await screen.view()).find("text")[0].text
        assert "one" in text, "two clicks that follow each other are no double click, which would select a word"
        assert "!" in text

    on_screen(make, use)


OWNER = """
import asyncio, sys
from envgym_sandboxes.desktop.screen import open_desktop
from envgym_sandboxes.namespace import NamespaceBackend
from envgym.task import World
async def main():
    async with NamespaceBackend(root=sys.argv[1]) as backend:
        sandbox = await backend.create(World())
        screen = await open_desktop(sandbox)
        await screen.launch(["mousepad"])
        print("ready", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(400)
@installed
def test_a_killed_owner_leaves_no_display(make, state):
    with subprocess.Popen([sys.executable, "-c", OWNER, str(state)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            mine = {pid for pid in descendants(owner.pid) if name_of(pid) in ("Xvfb", "mousepad", "openbox")}
            assert len(mine) == 3
        finally:
            os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 100
    while left := {pid: name for pid in mine if (name := name_of(pid))}:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def name_of(pid: int) -> str:
    """A living process's name; "" for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return "" if text.rpartition(")")[2].split()[0] == "Z" else text[text.index("(") + 1 : text.rindex(")")]
