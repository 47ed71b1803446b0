"""Other users of the machine and the directory that owners believe: what they put there is not taken for ours."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from envgym_sandboxes import state

pytestmark = pytest.mark.timeout(30)


def planted(top: Path, victim: int) -> Path:
    """A record as an owner leaves it, that names a directory in which a 'group' names the victim."""
    name = f"999999-1-{os.stat('/proc/self/ns/pid').st_ino}-0"
    group = top / "groups" / f"envgym-{name}-1"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{victim}\n")
    root = top / "root"
    (root / name).mkdir(parents=True)
    (root / name / "owner.json").write_text(json.dumps({"cgroups": [str(top / "groups")]}))
    return root


def test_a_directory_that_others_can_write_is_neither_used_nor_reaped(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim:
        root = planted(tmp_path, victim.pid)
        root.chmod(0o777)
        with pytest.raises(PermissionError, match="written by others"):
            state.reap(root)
        with pytest.raises(PermissionError, match="written by others"):
            state.StateDirectory(root, [])
        assert victim.poll() is None, "nobody was killed for what anybody may have written"
        victim.kill()


def test_a_directory_or_a_link_of_another_user_is_not_used(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can make what belongs to another user")
    tmp_path.chmod(0o711)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    os.chown(theirs, 4242, 4242)
    ours.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(ours)
    os.chown(tmp_path / "link", 4242, 4242, follow_symlinks=False)
    for root in (theirs, tmp_path / "link"):
        with pytest.raises(PermissionError, match="another user"):
            state.StateDirectory(root, [])
        with pytest.raises(PermissionError, match="another user"):
            state.reap(root)
    assert list(ours.iterdir()) == []


@pytest.mark.slow
def test_what_dead_owners_of_this_user_left_is_still_removed(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim:
        root = planted(tmp_path, victim.pid)
        root.chmod(0o700)
        assert state.reap(root) == []  # the record is ours: what it names is believed
        assert victim.wait(25) == -9
    (record,) = root.iterdir()  # it stays as long as its group does, which here no kernel empties
    (group,) = (tmp_path / "groups").iterdir()
    (group / "cgroup.procs").unlink()
    assert state.reap(root) == [f"cgroup {group}", f"directory {record}"]
    assert list(root.iterdir()) == []
    assert not group.exists()
