"""What cannot be done from inside a sandbox without namespaces, as this very user."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from envgym_sandboxes import landlock
from envgym_sandboxes.landlock_backend import LandlockBackend

pytestmark = [pytest.mark.timeout(60)]

if not landlock.abi():
    pytest.skip(landlock.absence(), allow_module_level=True)

ATTEMPTS = """
import ctypes, errno, json, os, resource, signal, socket, sys, time
given = json.loads(sys.argv[1])
host, victim = given["host"], given["victim"]
libc = ctypes.CDLL(None, use_errno=True)
told = {}
def attempt(name, call):
    try:
        result = call()
        told[name] = "done"
    except OSError as error:
        told[name] = errno.errorcode[error.errno]
def c(function, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)
"""
TELL = "\nprint(json.dumps(told))"
PROCESSES = (
    ATTEMPTS
    + """
for name in ("environ", "mem", "maps", "cmdline", "status", "stat"):
    attempt(name, lambda: open(f"/proc/{host}/{name}", "rb").read(1))
for name in ("fd", "task", "ns"):
    attempt(name, lambda: os.listdir(f"/proc/{host}/{name}"))
for name in ("root", "cwd", "exe", "fd/0"):
    attempt(name, lambda: os.readlink(f"/proc/{host}/{name}"))
attempt("list", lambda: os.listdir("/proc"))
attempt("adjust", lambda: open(f"/proc/{host}/oom_score_adj", "w").write("1000"))
attempt("signal", lambda: os.kill(host, 0))
attempt("signal all", lambda: os.kill(-1, signal.SIGURG))
attempt("signal group", lambda: os.killpg(given["group"], 0))
attempt("signal init", lambda: os.kill(os.getppid(), 9))
for tid in range(os.getppid(), os.getppid() + 4):
    try:
        libc.syscall(234, os.getppid(), tid, 9)
        libc.syscall(200, tid, 9) if tid != os.getpid() else None
        os.kill(tid, 9) if tid != os.getpid() else None
    except OSError:
        pass
attempt("queue", lambda: c("sigqueue", host, 0, None))
attempt("pidfd", lambda: os.pidfd_open(host))
attempt("limits", lambda: resource.prlimit(host, resource.RLIMIT_CPU, (1, 1)))
attempt("affinity", lambda: os.sched_setaffinity(host, {0}))
attempt("policy", lambda: os.sched_setscheduler(host, os.SCHED_IDLE, os.sched_param(0)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, host, 19))
attempt("priority of all", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
attempt("trace", lambda: c("ptrace", 16, host, None, None))
attempt("init's memory", lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1))
"""
    + TELL
)
OWN = (
    ATTEMPTS
    + """
pid = os.fork()
if pid == 0:
    signal.pause()
attempt("signal", lambda: os.kill(pid, 0))
attempt("pidfd", lambda: os.pidfd_open(pid))
attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
attempt("my priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, 5))
attempt("my limits", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
attempt("group", lambda: (os.setpgid(pid, pid), os.killpg(pid, 0)))
attempt("end", lambda: (os.kill(pid, 9), os.waitpid(pid, 0)))
attempt("raise", lambda: (signal.signal(signal.SIGURG, signal.SIG_IGN), signal.raise_signal(signal.SIGURG)))
"""
    + TELL
)
METADATA = (
    ATTEMPTS
    + """
os.symlink(victim, "link")
os.mkdir("own")
os.symlink(os.path.dirname(victim), "own/up")
name = os.path.basename(victim)
readable = given["readable"]
fd = os.open(readable, os.O_RDONLY)
here = os.open(os.path.dirname(victim), os.O_PATH)
attempt("chmod", lambda: os.chmod(victim, 0o777))
attempt("chmod through a link", lambda: os.chmod("link", 0o777))
attempt("chmod through a directory", lambda: os.chmod("own/up/" + name, 0o777))
attempt("chmod at a directory", lambda: os.chmod(name, 0o777, dir_fd=here))
attempt("chmod what is only read", lambda: os.fchmod(fd, 0o777))
attempt("chmod by a descriptor's name", lambda: os.chmod(f"/proc/self/fd/{fd}", 0o777))
attempt("chmod of the directory", lambda: os.chmod(os.path.dirname(victim), 0o777))
attempt("chown", lambda: os.chown(victim, os.getuid(), os.getgid()))
attempt("chown what is only read", lambda: os.fchown(fd, os.getuid(), os.getgid()))
attempt("times", lambda: os.utime(victim, (1, 1)))
attempt("times of what is only read", lambda: os.utime(fd, (1, 1)))
attempt("times at a directory", lambda: os.utime(name, (1, 1), dir_fd=here))
attempt("attribute", lambda: os.setxattr(victim, "user.x", b"x"))
attempt("attribute of what is only read", lambda: os.setxattr(fd, "user.x", b"x"))
attempt("no attribute", lambda: os.removexattr(victim, "user.kept"))
attempt("flags", lambda: __import__("fcntl").ioctl(fd, 0x40086602, b"\\x40\\0\\0\\0\\0\\0\\0\\0"))
attempt("truncate", lambda: os.truncate(victim, 0))
attempt("open and truncate", lambda: os.open(victim, os.O_RDONLY | os.O_TRUNC))
attempt("truncate what is only read", lambda: os.open(readable, os.O_RDONLY | os.O_TRUNC))
attempt("a bad address", lambda: c("chmod", ctypes.c_void_p(8), 0o777))
attempt("a long name", lambda: os.chmod("x" * 5000, 0o777))
"""
    + TELL
)
SOCKETS = (
    ATTEMPTS
    + """
for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"):
    for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"):
        attempt(f"{family} {kind}", lambda: socket.socket(getattr(socket, family), getattr(socket, kind)))
attempt("datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
a, b = socket.socketpair()
attempt("stream to a path", lambda: a.connect(given["path"]))
attempt("stream to a name", lambda: a.connect(chr(0) + given["abstract"]))
attempt("message to a path", lambda: a.sendto(b"x", given["path"]))
c2 = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0]
attempt("packet to a path", lambda: c2.sendto(b"x", given["path"]))
attempt("pair", lambda: (a.send(b"x"), b.recv(1)))
attempt("shared memory", lambda: c("shmget", 1, 4096, 0o1600))
attempt("semaphores", lambda: c("semget", 1, 1, 0o1600))
attempt("messages", lambda: c("msgget", 1, 0o1600))
attempt("queue", lambda: c("syscall", 240, b"q", os.O_CREAT | os.O_RDWR, 0o600, None))
attempt("watch", lambda: c("inotify_add_watch", libc.inotify_init(), b"/home", 0xfff))
"""
    + TELL
)


@pytest.fixture(params=[None, 5, 4, 2], ids=["this kernel", "ABI 5", "ABI 4", "ABI 2"])
def make_any(request, state):
    """Backends as on this kernel and as on older ones."""
    if request.param and request.param > landlock.abi():
        pytest.skip(f"ABI {landlock.abi()} is all that there is here")
    return lambda: LandlockBackend(root=state, abi=request.param)


@contextmanager
def bystander():
    """A process of this user that must not notice anything."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"], stdout=-1
    ) as it:
        it.stdout.readline()
        yield it
        assert it.poll() is None, "it lives"
        it.kill()


def traits(pid):
    """What another process of the same user could change."""
    texts = [Path(f"/proc/{pid}/{name}").read_text() for name in ("limits", "oom_score_adj")]
    return texts, os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)


async def told(sandbox, script, **given):
    result = await sandbox.exec(["python3", "-S", "-c", script, json.dumps(given)])
    assert result.ok, result.text
    return json.loads(result.stdout)


def test_other_processes_cannot_be_seen_signalled_or_changed(make_any, run, world):
    async def main():
        async with make_any() as backend, await backend.create(world) as sandbox:
            with bystander() as host:
                before = traits(host.pid)
                found = await told(sandbox, PROCESSES, host=host.pid, victim="", group=os.getpgid(host.pid))
                assert traits(host.pid) == before
            done = {name for name, result in found.items() if result == "done"}
            assert done <= {"signal all"}, found
            assert (await sandbox.exec("true")).ok, "init was not killed either"

    run(main())


def test_own_processes_can(make_any, run, world):
    async def main():
        async with make_any() as backend, await backend.create(world) as sandbox:
            found = await told(sandbox, OWN, host=0, victim="")
            assert set(found.values()) == {"done"}, found
            await sandbox.exec("sleep 97 & echo $! > pid")
            assert (await sandbox.exec(["sh", "-c", "kill $(cat pid)"])).ok, "also those of another command"

    run(main())


def test_no_ones_files_change_in_any_way_an_owner_could(make_any, run, world, state, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o640)
    readable = Path(sys.prefix, "envgym-test-readable")
    readable.write_text("kept")
    for path in (victim, readable):
        os.utime(path, (1000, 1000))

    def facts():
        return [
            (os.stat(p).st_mode, os.stat(p).st_mtime, os.stat(p).st_ctime, p.read_text())
            for p in (victim, readable)
        ]

    async def main():
        before = facts()
        async with make_any() as backend, await backend.create(world) as sandbox:
            given = {"host": 0, "victim": str(victim), "readable": str(readable)}
            found = await told(sandbox, METADATA, **given)
            assert "done" not in found.values(), found
            assert found["a bad address"] == "EFAULT"
            assert found["a long name"] == "ENAMETOOLONG"
        assert facts() == before

    try:
        run(main())
    finally:
        readable.unlink()


def test_what_an_owner_does_to_the_sandboxs_own_files_works(make_any, run, world):
    script = """
set -e
echo '#!/bin/sh' > program; echo 'echo ran' >> program
chmod 755 program; ./program
touch -d @1000 program; stat -c '%a %Y' program
mkdir -p d/e; chmod 700 d; (cd d && chmod 751 e && touch -d @2000 e); stat -c '%a %Y' d d/e
ln -s program link; touch -h -d @3000 link; stat -c %Y link program
chmod 600 link; stat -c %a program
chown -h $(id -u):$(id -g) link program
cp -a program copy; stat -c '%a %Y' copy
tar cf t.tar program d link; mkdir x; tar xpf t.tar -C x; stat -c '%a %Y' x/program x/d/e x/link
: > cut; truncate -s 5 cut; truncate -s 3 ./cut; stat -c %s cut
python3 -S -c "
import os
os.truncate('cut', 2); print(os.stat('cut').st_size)
os.setxattr('program', 'user.x', b'1'); print(os.getxattr('program', 'user.x')); os.removexattr('program', 'user.x')
fd = os.open('program', os.O_RDONLY); os.fchmod(fd, 0o640); os.utime(fd, (7, 8)); os.fchown(fd, -1, -1)
print(oct(os.fstat(fd).st_mode), os.fstat(fd).st_mtime)
os.utime('program', ns=(5, 1_500_000_000)); print(os.stat('program').st_mtime)
os.chmod('/dev/fd/%d' % fd, 0o600); print(oct(os.fstat(fd).st_mode))
"
"""

    async def main():
        async with make_any() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(script)
            assert result.ok, result.text
            lines = result.stdout.decode().split("\n")
            wanted = [
                "ran",
                "755 1000",
                "700 ",
                "751 2000",
                "3000",
                "1000",
                "600",
                "600 1000",
                "600 1000",
                "751 2000",
            ]
            assert [line for line, want in zip(lines, wanted, strict=False) if not line.startswith(want)] == []
            assert lines[-7:] == ["3", "2", "b'1'", "0o100640 8.0", "1.5", "0o100600", ""]

    run(main())


def test_nothing_outside_can_be_talked_to(make_any, run, world, tmp_path):
    async def main():
        path, name = str(tmp_path / "socket"), f"envgym-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
            by_path.bind(path)
            by_name.bind("\0" + name)
            by_path.listen()
            by_name.listen()
            async with make_any() as backend, await backend.create(world) as sandbox:
                found = await told(sandbox, SOCKETS, host=0, victim="", path=path, abstract=name)
                assert {name for name, result in found.items() if result == "done"} == {"pair"}, found

    run(main())


def test_files_of_the_host_and_of_other_sandboxes_do_not_open(make_any, run, world, state, tmp_path):
    (tmp_path / "secret").write_text("secret")

    async def main():
        async with make_any() as backend, await backend.create(world) as one, await backend.create(world) as two:
            await one.write("mine", b"secret")
            root = one._started.upper
            there = f"{backend._processes.state.mount}/{root}/u/work/mine"
            for path in (there, tmp_path / "secret", "/etc/shadow", "/etc/hostname", "/proc/1/cmdline", state):
                result = await two.exec(f"cat {path}; ls {path}; echo x >> {path}; rm {path}")
                assert result.stdout in (b"", f"{path}\n".encode()), result
                with pytest.raises(OSError):  # noqa: PT011  # a directory, a file, or nothing, to its own
                    await two.read(str(path))
            result = await two.exec(
                "ls /dev/shm /tmp /var /run /home /root /sys / /work 2>/dev/null; touch /dev/shm/x"
            )
            assert result.stdout == b"", result
            assert result.exit_code != 0
            assert await one.read("mine") == b"secret"

    run(main())


NOEXEC = """
import asyncio, os, sys
from envgym.errors import SandboxUnavailable
from envgym.task import World
from envgym_sandboxes import syscalls
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.state import default_root

uid, gid = os.getuid(), os.getgid()
syscalls.unshare(syscalls.CLONE_NEWNS | (0 if uid == 0 else syscalls.CLONE_NEWUSER))
if uid:
    syscalls.write_id_maps(0, uid, gid)
syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
syscalls.mount("x", sys.argv[1], "tmpfs", syscalls.MS_NOEXEC, "mode=0700")
report = LandlockBackend(root=sys.argv[1]).report()
assert not report.works and "noexec" in report.missing[0], report
async def main():
    async with LandlockBackend(root=sys.argv[1]) as backend:
        try:
            await backend.create(World())
        except SandboxUnavailable as error:
            print(error)
asyncio.run(main())
syscalls.mount("x", "/dev/shm", "tmpfs", syscalls.MS_NOEXEC)
assert str(default_root()).startswith("/dev/shm/"), default_root()
assert not str(default_root(executable=True)).startswith("/dev/shm/"), default_root(executable=True)
"""


def test_state_where_no_program_may_run_is_refused_and_not_the_default(state):
    done = subprocess.run(
        [sys.executable, "-c", NOEXEC, str(state)], capture_output=True, text=True, timeout=30, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip("no mount of this test's own can be made here: it needs root or user namespaces")
    assert done.returncode == 0, done.stderr
    assert "noexec" in done.stdout
