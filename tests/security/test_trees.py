"""What the host does with trees that hostile programs wrote: read, compare and copy them, outside any sandbox.

Plain directories stand for layers here, so that the trees can be ones that no sandbox would let anybody make.
"""

import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from envgym_sandboxes import jobs
from envgym_sandboxes.contents import content_digest
from envgym_sandboxes.protocol import MAX_BODY
from envgym_sandboxes.removal import remove_tree
from envgym_sandboxes.walk import Cursor, overlay_prefix, steps
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(60)

TERABYTE = 1 << 40


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory, and removed whatever is in it."""
    path = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp") / f"envgym-trees-{os.getpid()}"
    path.mkdir()
    yield path
    remove_tree(path)


def make_deep(top: Path, depth: int) -> None:
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def depth_of(top: Path) -> int:
    cursor, depth = Cursor(str(top), ""), 0
    while cursor.down("d"):
        depth += 1
    assert cursor.names() == ["file"]
    return depth


def stack(*chain: Path, lowers: tuple[Path, ...] = ()) -> list[str]:
    """A state, topmost first; the layers of a chain are given lowest first."""
    return [str(one) for one in (*reversed(chain), *lowers)]


def digest(*chain: Path, lowers: tuple[Path, ...] = (), privileged: bool = True) -> str:
    base, prefix = stack(lowers=lowers), overlay_prefix(privileged)
    states = {"new": stack(*chain, lowers=lowers), "old": base, "base": base}
    return jobs.run("digest", states | {"total": "", "prefix": prefix})[0]["digest"]


def diff(*chain: Path, lowers: tuple[Path, ...] = (), privileged: bool = True) -> dict[str, bytes | None]:
    states = {"new": stack(*chain, lowers=lowers), "old": stack(lowers=lowers)}
    index, body = jobs.run("diff", states | {"prefix": overlay_prefix(privileged), "most": MAX_BODY})
    found, at = {}, 0
    for path, size in index:
        found[path] = None if size < 0 else body[at : at + size]
        at += max(size, 0)
    return found


def copy(target: Path, *sources: Path, privileged: bool = True) -> None:
    target.mkdir()
    arguments = {"sources": stack(*sources), "below": [], "target": str(target)}
    jobs.run("merge", arguments | {"prefix": overlay_prefix(privileged)})


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_tree_of_thousands_of_levels_is_copied_and_compared(place, depth):
    make_deep(place / "layer", depth)
    (place / "empty").mkdir()
    copy(place / "copy", place / "layer", place / "layer")
    assert depth_of(place / "copy") == depth
    assert digest(place / "copy", lowers=(place / "empty",)) == digest(place / "layer")
    [(path, content)] = diff(place / "layer").items()
    assert (path.count("/d"), content) == (depth, b"")
    # The whole of it deleted: every path of it is one that is gone.
    make_deep(place / "base", 1500)
    (place / "over").mkdir()
    os.mknod(place / "over/d", stat.S_IFCHR, 0)
    assert len(diff(place / "over", lowers=(place / "base",))) == 1501


def test_a_tree_is_removed_whatever_its_modes_and_links(place):
    (place / "kept").mkdir()
    (place / "kept/file").write_text("kept")
    (place / "tree/a/b").mkdir(parents=True)
    (place / "tree/a/out").symlink_to(place / "kept")
    os.link(place / "kept/file", place / "tree/a/b/file")
    os.mkfifo(place / "tree/a/pipe")
    for path in ("tree/a/b", "tree/a", "tree"):
        (place / path).chmod(0)
    if os.geteuid() == 0:  # as a user whom modes bind
        for path in (place / "tree", *(place / "tree").rglob("*")):
            os.chown(path, 4242, 4242, follow_symlinks=False)
        os.chown(place, 4242, 4242)
        pid = os.fork()
        if pid == 0:
            os.setresuid(4242, 4242, 4242)
            try:
                remove_tree(place / "tree")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    else:
        remove_tree(place / "tree")
    assert sorted(os.listdir(place)) == ["kept"]
    assert (place / "kept/file").read_text() == "kept"
    remove_tree(place / "tree")
    (place / "link").symlink_to(place / "kept")
    with pytest.raises(NotADirectoryError):
        remove_tree(place / "link")


def test_a_hole_of_a_terabyte_costs_nothing(place):
    (place / "layer").mkdir()
    with open(place / "layer/hole", "wb") as file:
        file.truncate(TERABYTE)
        file.seek(TERABYTE // 2)
        file.write(b"here")
    began = time.monotonic()
    copy(place / "copy", place / "layer")
    info = (place / "copy/hole").stat()
    assert (info.st_size, info.st_blocks * 512 < 1 << 20) == (TERABYTE, True)
    assert digest(place / "copy") == digest(place / "layer")
    with pytest.raises(OSError, match="more than"):
        diff(place / "layer")
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_many_names_of_one_file_stay_one_file(place):
    (place / "layer/d").mkdir(parents=True)
    (place / "layer/big").write_bytes(os.urandom(1 << 20))
    for number in range(3000):
        os.link(place / "layer/big", place / f"layer/d/{number}")
    began = time.monotonic()
    copy(place / "copy", place / "layer")
    assert (place / "copy/big").stat().st_nlink == 3001
    assert sorted(os.listdir(place)) == ["copy", "layer"], "nothing is left beside the copy"
    assert digest(place / "copy") == digest(place / "layer")
    assert time.monotonic() - began < 20
    with pytest.raises(OSError, match="more than"):
        diff(place / "layer")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "gone"])
def test_a_file_that_becomes_something_else_while_it_is_read_is_not_followed(place, kind):
    (place / "secret").write_text("secret of the host")
    (place / "layer").mkdir()
    (place / "layer/a").write_text("mine")
    for step in steps(((Cursor(str(place / "layer"), ""),),)):
        if step.kind == "entry":
            (place / "layer/a").unlink()
            if kind == "link":
                (place / "layer/a").symlink_to(place / "secret")
            elif kind == "fifo":
                os.mkfifo(place / "layer/a")
            elif kind == "directory":
                (place / "layer/a").mkdir()
            assert step.seen[0].cursor.open("a") is None


def test_a_directory_that_becomes_a_link_while_it_is_read_is_not_followed(place):
    (place / "outside").mkdir()
    (place / "outside/secret").write_text("secret of the host")
    (place / "layer/a").mkdir(parents=True)
    names = []
    for step in steps(((Cursor(str(place / "layer"), ""),),)):
        names.append((step.kind, step.name))
        if step.kind == "entry":
            (place / "layer/a").rmdir()
            (place / "layer/a").symlink_to(place / "outside")
    assert names == [("entry", "a"), ("leave", "a"), ("leave", "")]


def test_a_directory_that_is_moved_while_it_is_read_does_not_lead_up_and_out(place):
    (place / "layer/a/b/c").mkdir(parents=True)
    (place / "outside").mkdir()
    (place / "outside/secret").write_text("secret of the host")
    walk = steps(((Cursor(str(place / "layer"), ""),),))
    assert [next(walk).name for _ in range(3)] == ["a", "b", "c"]
    (place / "layer/a/b").rename(place / "outside/b")
    with pytest.raises(OSError, match="moved"):
        list(walk)


def test_copies_raced_by_swaps_hold_nothing_of_the_host(place):
    secret = "secret of the host"
    (place / "outside").mkdir()
    (place / "outside/x").write_text(secret)
    (place / "layer/d").mkdir(parents=True)
    (place / "layer/d/x").write_text("mine")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(place / "layer/d", place / "layer/e")
            os.symlink(place / "outside", place / "layer/d")
            os.unlink(place / "layer/d")
            os.rename(place / "layer/e", place / "layer/d")
            os.rename(place / "layer/d/x", place / "layer/d/y")
            os.symlink(place / "outside/x", place / "layer/d/x")
            os.rename(place / "layer/d/y", place / "layer/d/x")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for number in range(150):
            target = place / f"copy{number}"
            try:
                copy(target, place / "layer")
                seen = diff(place / "layer")
            except OSError:
                continue
            assert secret.encode() not in [seen.get("/d/x"), seen.get("/e/x"), seen.get("/d/y"), seen.get("/e/y")]
            for path in target.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    assert path.read_text() in ("mine", ""), path
            shutil.rmtree(target)
    finally:
        stop.set()
        swapping.join()


@pytest.mark.parametrize("privileged", [True, False])
def test_marks_that_an_agent_can_set_hide_nothing(place, privileged):
    """As root, overlay's marks are trusted attributes; a user attribute of that name is any program's to set."""
    forged = "user.overlay.opaque" if privileged else "user.overlay.overlay.opaque"
    for path in ("base/d/below", "layer/d/above"):
        (place / path).parent.mkdir(parents=True)
        (place / path).write_text(path)
    try:
        os.setxattr(place / "layer/d", forged, b"y")
        if privileged:
            os.setxattr(place / "layer/d", "trusted.other", b"")
    except OSError as error:
        pytest.skip(f"no such attributes on this file system: {error}")
    found = diff(place / "layer", lowers=(place / "base",), privileged=privileged)
    assert found == {"/d/above": b"layer/d/above"}
    copy(place / "copy", place / "base", place / "layer", privileged=privileged)
    assert sorted(os.listdir(place / "copy/d")) == ["above", "below"]
    assert os.getxattr(place / "copy/d", forged) == b"y", "it is kept: it is the agent's own"


def test_what_is_no_file_is_never_opened(place):
    """Opening a pipe waits for its writer, for ever."""
    (place / "layer").mkdir()
    os.mkfifo(place / "layer/pipe")
    copy(place / "copy", place / "layer")
    assert stat.S_ISFIFO((place / "copy/pipe").lstat().st_mode)
    assert digest(place / "copy") == digest(place / "layer")
    assert diff(place / "layer") == {}


@settings(max_examples=60)
@given(runs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9000), st.booleans()), max_size=6))
def test_zeros_and_holes_have_the_same_digest(runs):
    """A file is its size and bytes, however they lie on the disk; and another file has another digest."""
    content = bytearray()
    dense, sparse = os.memfd_create("dense"), os.memfd_create("sparse")
    for block, length, zeros in runs:
        data = bytes(length) if zeros else bytes([1 + block]) * length
        if zeros:
            content += data
        else:
            os.pwrite(sparse, data, len(content))
            content += data
    os.pwrite(dense, content, 0)
    os.ftruncate(sparse, len(content))
    assert content_digest(dense) == content_digest(sparse)
    if content:
        os.pwrite(dense, bytes([content[0] ^ 1]), 0)
        assert content_digest(dense) != content_digest(sparse)
    os.ftruncate(sparse, len(content) + 1)
    assert content_digest(dense) != content_digest(sparse)
    os.close(dense)
    os.close(sparse)
