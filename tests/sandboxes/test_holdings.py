"""What processes and files hold, against things of known size."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from envgym_sandboxes import holdings
from envgym_sandboxes.removal import remove_tree

pytestmark = [pytest.mark.timeout(60)]

MIB = 1 << 20


@contextlib.contextmanager
def holding(code):
    """A process that ran `code` and waits."""
    script = f"import mmap, os, sys\n{code}\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline()
        yield process.pid
        process.stdin.close()


def near(value, wanted):
    return wanted <= value <= wanted + 40 * MIB


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(b'1' * (100 << 20))",
        "fd = os.memfd_create('x'); os.write(fd, bytes(100 << 20))",
        "m = mmap.mmap(-1, 100 << 20); m.write(bytes(100 << 20))",
        "fd = os.memfd_create('x'); os.write(fd, bytes(100 << 20)); m = mmap.mmap(fd, 100 << 20); sum(m[::4096])",
    ],
)
def test_memory_is_counted_once_however_it_is_held(code):
    with holding(code) as pid:
        found = holdings.memory([pid], disk=0)
        assert near(found.total_bytes, 100 * MIB), found
        assert found.largest == pid


def test_what_a_fork_shares_counts_once_when_it_matters():
    fork = "if os.fork() == 0: os.close(w); os.read(r, 1); os._exit(0)"
    code = f"x = bytearray(b'1' * (100 << 20)); r, w = os.pipe()\n{fork}"
    with holding(code) as pid:
        both = {pid, *holdings.descendants(pid)}
        assert len(both) == 2
        assert near(sum(map(holdings.private_bytes, both)), 100 * MIB)


def test_deleted_files_that_are_open_count_as_disk(state):
    code = f"f = open('{state}/f', 'wb'); f.write(bytes(50 << 20)); f.flush(); os.unlink('{state}/f')"
    with holding(code) as pid:
        found = holdings.memory([pid], disk=os.stat(state).st_dev)
        assert near(found.deleted_bytes, 50 * MIB)
        assert near(found.total_bytes, 0)


def test_files_are_counted_by_what_they_allocate(state):
    (state / "d/e").mkdir(parents=True)
    (state / "d/e/full").write_bytes(bytes(3 * MIB))
    os.link(state / "d/e/full", state / "again")
    with open(state / "hole", "wb") as file:
        file.truncate(1 << 40)
    (state / "link").symlink_to("/etc")
    found = holdings.files(str(state))
    assert (found.inodes, found.complete) == (6, True)
    assert 3 * MIB <= found.disk_bytes < 3 * MIB + 65536


@pytest.mark.parametrize("mode", [0o300, 0o400, 0o000, 0o200])
def test_directories_that_hide_their_files_are_looked_into_and_left_as_they_were(state, mode):
    inner = state / "hidden/inner"
    inner.mkdir(parents=True)
    (inner / "f").write_bytes(bytes(MIB))
    inner.chmod(mode)
    (state / "hidden").chmod(mode)
    script = f"from envgym_sandboxes.holdings import files; print(files({str(state)!r}).disk_bytes)"
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    said = subprocess.run(
        [*drop, sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=20
    )
    assert (state / "hidden").stat().st_mode & 0o777 == mode
    (state / "hidden").chmod(0o700)
    assert inner.stat().st_mode & 0o777 == mode
    inner.chmod(0o700)
    assert int(said.stdout) >= MIB, said.stderr


def test_links_to_elsewhere_are_neither_followed_nor_changed(state, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o200)
    (state / "link").symlink_to(outside)
    holdings.files(str(state))
    assert outside.stat().st_mode & 0o777 == 0o200


@pytest.mark.parametrize("deep", [holdings.DEEPEST - 1, holdings.DEEPEST + 10])
def test_what_lies_very_deep_is_not_counted_and_said(state, deep):
    os.chdir(state)
    try:
        for _ in range(deep):
            os.mkdir("d")
            os.chdir("d")
        Path("f").write_bytes(bytes(MIB))
        found = holdings.files(str(state))
    finally:
        os.chdir("/")
        remove_tree(str(state / "d"))
    assert found.complete == (deep < holdings.DEEPEST)
    assert (found.disk_bytes >= MIB) == found.complete


def test_a_tree_that_never_stands_still_is_not_complete(state):
    """One that moves now and then is counted the next time."""
    (state / "a/b").mkdir(parents=True)
    (state / "c").mkdir()
    code = f"""
import os, sys
os.chdir({str(state)!r})
print(flush=True)
while True:
    os.rename("a/b", "c/b")
    os.rename("c/b", "a/b")
"""
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=-1) as mover:
        mover.stdout.readline()
        for _ in range(200):
            found = holdings.files(str(state))
            assert not found.complete or found.inodes in (2, 3, 4), found
        mover.kill()
    assert holdings.files(str(state)).complete
