"""Both ways to make an overlay that is mounted nowhere: that of kernels since 6.5, and that of older ones."""

import os
import signal
import traceback

import pytest
from envgym_sandboxes import root, syscalls


def in_a_namespace(act):
    """Run `act` in a child with a mount namespace of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            uid, gid = os.geteuid(), os.getegid()
            syscalls.unshare(syscalls.CLONE_NEWNS | (0 if uid == 0 else syscalls.CLONE_NEWUSER))
            if uid:
                syscalls.write_id_maps(0, uid, gid)
            syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "see the child's traceback"


@pytest.mark.parametrize("make", [syscalls.mount_overlay, syscalls.mount_overlay_whole])
def test_an_overlay_shows_the_topmost_file_and_writes_to_the_upper_layer(tmp_path, make):
    def act():
        syscalls.mount("envgym", str(tmp_path), "tmpfs")
        os.chdir(tmp_path)
        for name in ("top", "bottom", "upper", "work", "spare", "seen"):
            os.mkdir(name)
        for name in ("top", "bottom"):
            with open(f"{name}/f", "w") as file:
                file.write(name)
        options = ["index=off"] + (["userxattr"] if os.geteuid() else [])
        root = make(["top", "bottom"], "upper", "work", options, "spare")
        assert os.listdir("spare") == [], "nothing stays mounted on the way"
        syscalls.move_mount(root, "seen")
        with open("seen/f") as file:
            assert file.read() == "top"
        with open("seen/g", "w") as file:
            file.write("new")
        assert os.listdir("upper") == ["g"]
        flags = os.statvfs("seen").f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV

    in_a_namespace(act)


def test_the_maker_of_the_furnished_place_ends_with_a_killed_parent(tmp_path):
    (tmp_path / "top").mkdir()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # a parent that is killed while its child waits to be let go
        os.close(reading)
        root.furnish = lambda *_: os.kill(os.getppid(), signal.SIGKILL)  # the descriptor `writing` lives in both
        root.furnished(str(tmp_path / "top"), [], True)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb", closefd=True) as alive:
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        assert alive.read() == b"", "nobody holds the descriptor any more: the child has ended too"
