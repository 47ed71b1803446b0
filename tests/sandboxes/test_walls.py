"""What cannot be done from inside."""

import os
import re
import shutil
import socket
import subprocess

import pytest

from envgym.task import Tree, World

pytestmark = [pytest.mark.timeout(60)]


def test_host_files_outside_of_programs_do_not_exist(make, run, world, state):
    secret = state / "secret.txt"
    secret.write_text("secret")

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["sh", "-c", f"cat {secret}; cat /etc/shadow; ls -A /home /run /root /sys"])
            assert b"secret" not in result.stdout
            result = await sandbox.exec("ls -A /dev/shm /tmp /var/tmp")
            assert result.stdout.replace(b"\n", b"") == b"/dev/shm:/tmp:/var/tmp:"
            result = await sandbox.exec(
                "echo x > /usr/x; echo x > /etc/passwd; mkdir /opt/x; mount -t tmpfs x /mnt"
            )
            assert result.exit_code != 0
            assert await sandbox.diff() == {}
            result = await sandbox.exec(
                "id -u; id -un; hostname; ps 2>/dev/null | wc -l; ls /proc | grep -c '^[0-9]'"
            )
            assert result.stdout.split()[:3] == [b"1000", b"agent", b"envgym"]

    run(main())


CALLS = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.unshare(0x10000000); print("unshare", errno.errorcode[ctypes.get_errno()])
libc.ptrace(16, 1, 0, 0); print("ptrace", errno.errorcode[ctypes.get_errno()])
libc.syscall(425, 8, 0); print("io_uring", errno.errorcode[ctypes.get_errno()])
libc.syscall(435, 0, 0); print("clone3", errno.errorcode[ctypes.get_errno()])
libc.mount(b"x", b"/mnt", b"tmpfs", 0, 0); print("mount", errno.errorcode[ctypes.get_errno()])
libc.socket(40, 1, 0); print("vsock", errno.errorcode[ctypes.get_errno()])
for name in ("mem", "environ", "maps", "fd"):
    try:
        os.listdir("/proc/1/fd") if name == "fd" else open(f"/proc/1/{name}").read(1)
        print(name, "readable")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
for number in (9, 15, 19):
    os.kill(1, number)
print("init lives")
"""


def test_calls_that_lead_out_are_refused(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(["python3", "-c", CALLS])
            told = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines())
            expected = dict.fromkeys(("unshare", "ptrace", "io_uring", "mount"), "EPERM")
            expected |= {"clone3": "ENOSYS", "vsock": "EAFNOSUPPORT", "init": "lives"}
            expected |= dict.fromkeys(("mem", "environ", "maps", "fd"), "EACCES")
            assert told == expected, result.text
            assert (await sandbox.exec("true")).ok

    run(main())


def test_sandboxes_do_not_see_each_other(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as one, await backend.create(world) as two:
            await one.exec("nohup sleep 4242 >/dev/null 2>&1 & echo here > /tmp/x; echo here > /dev/shm/y")
            result = await two.exec("cat /tmp/x /dev/shm/y; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert b"here" not in result.stdout
            assert b"sleep 4242" not in result.stdout

    run(main())


def test_reads_and_copies_follow_no_link_out(make, run, world, tmp_path):
    (tmp_path / "mine").write_text("mine")

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            await sandbox.exec(
                f"ln -s /etc/shadow s; ln -s {tmp_path}/mine m; mkfifo pipe; mkdir t; ln -s / t/root"
            )
            for name in ("s", "m"):
                with pytest.raises(FileNotFoundError):
                    await sandbox.read(name)
            with pytest.raises(OSError, match="regular"):
                await sandbox.read("pipe")
            await sandbox.get("t", str(tmp_path / "got"))
            assert os.readlink(tmp_path / "got/root") == "/"

    run(main())


def test_a_tree_is_the_agents_to_change_whoever_owned_it(make, run, world, tmp_path):
    (tmp_path / "deep").mkdir(mode=0o700)
    (tmp_path / "deep/file").write_text("old")
    (tmp_path / "deep/file").chmod(0o600)
    planted = World(trees=(Tree(source=str(tmp_path), target="/work/tree"),), resources=world.resources)

    async def main():
        async with make() as backend, await backend.create(planted) as sandbox:
            assert (await sandbox.exec("cat tree/deep/file && echo new > tree/deep/file && rm -r tree/deep")).ok
        assert (tmp_path / "deep/file").read_text() == "old"

    run(main())


def test_wrong_worlds_are_refused_at_once(make, make_local, run, world):
    wrong = [
        {"workdir": "relative"},
        {"files": {"/work/../etc/x": ""}},
        {"trees": (Tree(source="/no/such/place", target="/work"),)},
        {"image": "unknown-name"},
        {"image": "/no/such/rootfs"},
        {"env": {"A=B": "c"}},
    ]

    async def main():
        async with make() as backend:
            for update in wrong:
                with pytest.raises(ValueError, match="World"):
                    await backend.create(world.model_copy(update=update))
        async with make_local() as backend:
            for update in ({"files": {"/etc/x": ""}}, {"image": "/"}):
                with pytest.raises(ValueError, match="World"):
                    await backend.create(world.model_copy(update=update))

    run(main())


def copy_program(rootfs, program):
    """A program of the host with the libraries that it needs."""
    path = shutil.which(program)
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    for file in {path, *re.findall(r"/\S+", told)}:
        target = rootfs / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def test_a_root_file_system_can_be_the_image(make, run, world, tmp_path):
    tmp_path.chmod(0o755)
    for program in ("cat", "ls", "sh"):
        copy_program(tmp_path, program)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/made-by").write_text("test")

    async def main():
        async with (
            make() as backend,
            await backend.create(world.model_copy(update={"image": str(tmp_path)})) as sandbox,
        ):
            result = await sandbox.exec(["cat", "/etc/made-by", "given.txt"])
            assert result.stdout == b"testgiven\n"
            with pytest.raises(FileNotFoundError, match="no /bin/bash"):
                await sandbox.exec("true")
            result = await sandbox.exec(["sh", "-c", "echo x > /made; ls /"])
            assert b"made" in result.stdout
        assert not (tmp_path / "made").exists()

    run(main())


def test_network_is_the_worlds_to_ask_for(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world.model_copy(update={"network": True})) as sandbox:
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                server.listen()
                port = server.getsockname()[1]
                result = await sandbox.exec(["bash", "-c", f"exec 9<>/dev/tcp/127.0.0.1/{port}"])
                assert result.ok, f"with a network the host's is shared: {result}"

    run(main())
