"""Copies between host and sandbox while the sandbox changes what is copied, and names made to lead astray."""

import contextlib
import os
import time

import pytest

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(60)

SWAP = """
import itertools
os.makedirs("t/d", exist_ok=True)
open("t/d/f", "w").write("mine")
open("t/f", "w").write("mine")
targets = sys.argv[1:]
open("ready", "w").close()
for turn in itertools.count():
    for make in (lambda name: os.symlink(targets[turn % len(targets)], name), os.mkfifo, os.mkdir, lambda name: os.link("t/keep", name)):
        for name in ("t/d", "t/f", "t/d/f"):
            try:
                os.rename(name, "t/aside")
                make(name)
                try:
                    os.rmdir(name)
                except OSError:
                    os.unlink(name)
                os.rename("t/aside", name)
            except OSError:
                continue
"""


def swapping(prisoner, *targets):
    prisoner.call("write", "swap.py", ("import os, sys\n" + SWAP).encode())
    ending = prisoner.begin("exec", ["python3", "swap.py", *targets], timeout_s=12)
    prisoner.run("for i in $(seq 100); do [ -e ready ] && break; sleep 0.02; done")
    return ending


@pytest.mark.slow
def test_a_tree_that_changes_while_it_is_fetched_brings_nothing_of_the_host(cell):
    prisoner = cell.create()
    secrets = (
        [str(path) for path in cell.host.files]
        + [str(path.parent) for path in cell.host.files]
        + ["/etc", "/", "/proc/1"]
    )
    swapping(prisoner, *secrets)
    end, turn = time.monotonic() + 2.5, 0
    while time.monotonic() < end:
        turn += 1
        with contextlib.suppress(OSError):
            prisoner.call("get", "t", str(cell.scratch / f"got{turn}"))
        for name in ("t/f", "t/d/f"):
            with contextlib.suppress(OSError):
                prisoner.call("read", name)
    assert turn > 3
    for path in cell.scratch.rglob("*"):
        assert path.is_symlink() or path.resolve().is_relative_to(cell.scratch.resolve()), path


@pytest.mark.slow
def test_a_tree_that_changes_while_it_is_brought_changes_nothing_of_the_host(cell):
    prisoner = cell.create()
    source = cell.scratch / "source"
    (source / "d").mkdir(parents=True)
    for name in ("f", "d/f", "keep"):
        (source / name).write_bytes(b"brought" * 1000)
    writable = cell.scratch / "victim"
    writable.mkdir()
    (writable / "f").write_text("of the host")
    swapping(prisoner, str(writable), str(writable / "f"), "/tmp", "/usr", "/proc/1/root" + str(writable))
    end, turn = time.monotonic() + 2.5, 0
    while time.monotonic() < end:
        turn += 1
        with contextlib.suppress(OSError):
            prisoner.call("put", str(source), "t")
        with contextlib.suppress(OSError):
            prisoner.call("write", "t/d/f", b"written")
    assert turn > 3
    assert (writable / "f").read_text() == "of the host"
    assert os.listdir(writable) == ["f"]


def test_pipes_and_devices_in_the_way_of_a_copy_hang_nothing(cell):
    prisoner = cell.create()
    prisoner.run(
        "mkfifo pipe; ln -s /dev/zero zero; ln -s /dev/full full; ln -s loop loop; mkdir d; mkfifo d/pipe; ln -s /proc/self/fd/0 in; ln -s /dev/tty tty"
    )
    (cell.scratch / "file").write_bytes(b"x" * 3_000_000)
    began = time.monotonic()
    for name in ("pipe", "zero", "full", "loop", "in", "tty", "/dev/random", "/proc/self/pagemap", "/dev/stdin"):
        for method, arguments in (
            ("read", (name,)),
            ("write", (name, b"x")),
            ("put", (str(cell.scratch / "file"), name)),
            ("get", (name, str(cell.scratch / "got"))),
        ):
            with contextlib.suppress(OSError):
                prisoner.call(method, *arguments)
    prisoner.call("get", "d", str(cell.scratch / "d"))
    assert os.listdir(cell.scratch / "d") == []
    assert time.monotonic() - began < 30


def test_a_host_directory_with_links_is_not_left_through_them(cell):
    """The target may hold links from an earlier copy: what comes now must not be written through them."""
    prisoner = cell.create()
    outside = cell.scratch / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    prisoner.run(
        f"mkdir -p one two/d; ln -s {outside} one/d; ln -s {outside}/file one/f; echo new > two/d/file; echo new > two/f; ln -s /etc one/e; mkdir two/e; echo new > two/e/x"
    )
    target = str(cell.scratch / "target")
    prisoner.call("get", "one", target)
    with contextlib.suppress(OSError):
        prisoner.call("get", "two", target)
    assert (outside / "file").read_text() == "kept"
    assert os.listdir(outside) == ["file"]
    assert not os.path.exists("/etc/x")


GROWING = """
open("grows", "w").close()
open("ready", "w").close()
fd = os.open("grows", os.O_WRONLY | os.O_APPEND)
while True:
    try:
        os.write(fd, bytes(1 << 20))
    except OSError:
        os.ftruncate(fd, 0)
"""


def test_a_file_that_grows_and_shrinks_while_it_is_read_is_bounded(cell):
    prisoner = cell.bounded(transfer_bytes=16 << 20)
    before = cell.owner.memory_bytes()
    prisoner.call("write", "grow.py", ("import os\n" + GROWING).encode())
    prisoner.begin("exec", ["python3", "grow.py"], timeout_s=10)
    prisoner.run("for i in $(seq 100); do [ -e ready ] && break; sleep 0.02; done")
    for turn in range(8):
        with contextlib.suppress(OSError):
            assert len(prisoner.call("read", "grows")) <= 16 << 20
        with contextlib.suppress(OSError):
            prisoner.call("get", "grows", str(cell.scratch / f"got{turn}"))
    assert all(path.stat().st_size <= 16 << 20 for path in cell.scratch.iterdir())
    assert cell.owner.memory_bytes() - before < 200 << 20
    cell.owner.seen.clear()  # zeros, many


NAMES = [
    b"\xff\xfe",
    b"a\nb",
    b"\x1b[31m\x07",
    b"..\xe2\x80\xae",
    b"-rf",
    b"~",
    b"$(id)",
    b"`id`",
    b"%s%n",
    b"a" * 255,
    "é".encode(),
]


def test_names_of_any_bytes_survive_both_ways_and_lead_nowhere(cell):
    prisoner = cell.create()
    source = cell.scratch / "source"
    source.mkdir()
    for number, name in enumerate(NAMES):
        with open(os.fsencode(source) + b"/" + name, "wb") as file:
            file.write(str(number).encode())
    prisoner.call("put", str(source), "names")
    prisoner.call("get", "names", str(cell.scratch / "back"))
    assert sorted(os.listdir(os.fsencode(cell.scratch / "back"))) == sorted(NAMES)
    for number, name in enumerate(NAMES):
        assert prisoner.call("read", "names/" + os.fsdecode(name)) == str(number).encode()
    diff = prisoner.call("diff")
    assert {os.fsencode(path.rpartition("/")[2]) for path in diff if "/names/" in path} == set(NAMES)
    for name in ("a\0b", "\0", "names/\0"):
        for method, arguments in (
            ("read", (name,)),
            ("write", (name, b"x")),
            ("get", (name, str(cell.scratch / "x"))),
        ):
            with pytest.raises((ValueError, OSError)):
                prisoner.call(method, *arguments)
    for name in ("../../../../etc/x", "/../../x", "//etc//x"):
        with contextlib.suppress(OSError):
            prisoner.call("write", name, b"x")
    assert not os.path.exists("/etc/x")
    assert not os.path.exists("/x")


def test_copies_while_the_sandbox_ends_are_told_so(cell):
    prisoner = cell.create()
    prisoner.run("head -c 30000000 /dev/zero > big")
    fetching = [prisoner.begin("get", "big", str(cell.scratch / f"got{number}")) for number in range(4)]
    prisoner.close()
    for future in fetching:
        with contextlib.suppress(SandboxDied):
            future.result(30)
