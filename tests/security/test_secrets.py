"""What others own: secrets of the owner, of other sandboxes, and of those that were here before."""

import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

FIND = """
import re
word = re.compile(rb"(?:other sandbox|file|key|credentials|owner environment|process|root's file)[a-z' /]*-[0-9a-f]{32}")
seen = 0
skipped = {f"/{name}" for name in "proc sys usr opt bin sbin lib lib32 lib64 libx32 nix mnt envgym".split()} | {sys.base_prefix, sys.prefix}
for top in ("/", "/proc/1/root", os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~")):
    for here, directories, files in os.walk(top):
        directories[:] = [name for name in directories if os.path.join(here, name) not in skipped]
        for name in files:
            path = os.path.join(here, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                    seen += 1
                    if word.search(open(path, "rb").read()):
                        print(f"found {path}: OK")
            except OSError:
                continue
for name in processes():
    for part in ("environ", "cmdline", "maps", "fd", "mountinfo", "comm", "cwd"):
        try:
            content = open(f"/proc/{name}/{part}", "rb").read()
        except OSError:
            continue
        if word.search(content):
            print(f"found {name} {part}: OK")
print("seen:", seen)
"""


def test_a_search_of_everything_finds_no_secret(cell):
    decoy = f"key in a home-{os.urandom(16).hex()}"
    prisoner = cell.create(files={"/work/deep/in/decoy": decoy})
    said = prisoner.told(FIND, timeout_s=30)
    assert int(said.pop("seen")) > 0
    found = {name.removeprefix("found ") for name, value in said.items() if value == "OK"}
    assert any(name.endswith("/deep/in/decoy") for name in found), "what can be read is found"
    assert not [name for name in found if not name.endswith("/deep/in/decoy")], found


LEAVE = """
import mmap, socket
secret = sys.argv[1]
for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/", os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), "/dev/mqueue"):
    tried(f"leave in {place}", lambda: open(f"{place}/left", "w").write(secret))
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def shared():
    libc.shmat.restype = ctypes.c_void_p
    ctypes.memmove(libc.shmat(checked(libc.shmget(4242, 4096, 0o1666)), None, 0), secret.encode(), len(secret))
def queue():
    checked(libc.msgsnd(checked(libc.msgget(4242, 0o1666)), b"\\1" + bytes(7) + secret.encode(), len(secret), 0))
def posix_queue():
    checked(libc.mq_send(checked(libc.mq_open(b"/left", 0o102, 0o666, None)), secret.encode(), len(secret), 0))
tried("shm", shared)
tried("msg", queue)
tried("sem", lambda: checked(libc.semget(4242, 1, 0o1666)))
tried("mq", posix_queue)
def abstract():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\\0left")
    sock.listen()
    if os.fork() == 0:
        os.setsid()
        for fd in range(3):
            os.close(fd)
        __import__("time").sleep(1000)
tried("abstract", abstract)
tried("umask", os.umask, 0)
tried("limit of the first process", lambda: __import__("resource").prlimit(1, 7, (64, 64)))
"""
LOOK = """
import socket
secret = sys.argv[1]
for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/", os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), "/dev/mqueue"):
    tried(f"{place}", os.stat, f"{place}/left")
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
tried("shm", lambda: checked(libc.shmget(4242, 0, 0)))
tried("msg", lambda: checked(libc.msgget(4242, 0)))
tried("sem", lambda: checked(libc.semget(4242, 0, 0)))
tried("mq", lambda: checked(libc.mq_open(b"/left", 0)))
tried("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0left"))
print("processes:", len([name for name in processes() if name not in ("1", str(os.getpid()))]))
"""


@pytest.mark.slow
def test_whoever_comes_after_finds_nothing_of_who_was_before(cell):
    """Warm places are used again: containers, interpreters, groups."""
    secret = cell.host.secret("sandbox before")
    for _ in range(4):
        with cell.create() as before:
            before.python(LEAVE, secret)
            before.run(
                f"token={secret}; export token; trap 'echo $token' EXIT; echo $token > ~/.bashrc; ulimit -n 100"
            )
            before.call("write", "secret", secret.encode())
        with cell.create() as after:
            said = after.told(LOOK, secret)
            assert int(said.pop("processes")) <= 1, said
            assert "OK" not in said.values(), said
            told = after.run("set; ls -la ~ . /tmp; ulimit -n; umask; cat ~/.bashrc secret 2>&1; jobs").stdout
            assert secret.encode() not in told
            assert b"\n100\n" not in told
    cell.owner.seen.clear()  # the first of each pair was told its own


def test_what_one_fork_writes_its_siblings_never_see(cell):
    secret = cell.host.secret("sibling")
    with cell.create() as parent:
        parent.run("echo shared > shared; x=1")
        with parent.fork() as one, parent.fork() as two:
            one.run(
                f"echo {secret} > /tmp/own; echo {secret} >> shared; echo {secret} > ~/own; x={secret}; cp shared /dev/shm/own"
            )
            one.call("write", "own", secret.encode())
            cell.owner.seen.clear()
            for other in (two, parent):
                told = other.run(
                    "cat /tmp/own shared ~/own own /dev/shm/own $TMPDIR/own; echo $x; set; ls -A /tmp . ~"
                )
                assert secret.encode() not in told.stdout
                assert secret.encode() not in repr(other.call("diff")).encode()


def test_a_deleted_secret_is_in_no_later_layer_and_in_no_freed_room(cell):
    """Room that is given again is zeroed."""
    secret = cell.host.secret("deleted")
    with cell.create() as prisoner:
        prisoner.run(f"for i in $(seq 2000); do echo {secret}; done > big; cp big /tmp/big")
        prisoner.owner.ask(0, "release", prisoner.call("snapshot"))
        prisoner.run("rm big /tmp/big $TMPDIR/big; true")
        cell.owner.seen.clear()
        program = "fd = os.open('new', os.O_CREAT | os.O_RDWR)\nos.ftruncate(fd, 4 << 20)\nprint('zeros:', not os.pread(fd, 4 << 20, 0).strip(b'\\0'))\n"
        program += "for word in (0, 3):\n    try:\n        os.posix_fallocate(fd, 0, 8 << 20)\n    except OSError:\n        pass\nprint('zeros still:', not os.pread(fd, 8 << 20, 0).strip(b'\\0'))"
        assert set(prisoner.told(program).values()) == {"True"}
        assert secret.encode() not in repr(prisoner.call("diff")).encode()


def test_the_state_directory_is_the_owners_alone(cell):
    cell.create().run("true")
    for path in [*cell.owner.state.iterdir()]:
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_the_file_calls_of_the_host_read_no_more_than_a_command_may(cell):
    """They are answered by the sandbox's first process, which links can lead to its own files in /proc."""
    prisoner = cell.create()
    prisoner.run(
        "for n in environ maps mem auxv cmdline mountinfo fd/0 root/etc/shadow cwd; do ln -s /proc/1/$n one-${n//\\//-}; ln -s /proc/self/$n self-${n//\\//-}; done"
    )
    names = ("environ", "maps", "mem", "auxv", "mountinfo", "fd-0", "root-etc-shadow")
    for name in [f"{who}-{name}" for who in ("one", "self") for name in names] + [
        "/proc/1/environ",
        "/proc/self/environ",
    ]:
        try:
            content = prisoner.call("read", name)
        except OSError:
            continue
        assert not re.search(rb"PYTHON|SECRET|HOME=|[0-9a-f]{8,}-[0-9a-f]{8,} r", content), (name, content[:300])
        assert str(cell.host.top).encode() not in content, name


def test_the_file_calls_of_the_host_write_where_a_command_may_only(cell):
    prisoner = cell.create()
    prisoner.run(
        "for n in mem oom_score_adj comm uid_map clear_refs fd/1; do ln -s /proc/1/$n one-${n//\\//-}; ln -s /proc/self/$n self-${n//\\//-}; done"
    )
    prisoner.run(
        "ln -s /usr/bin/env usr; ln -s /etc/passwd etc; ln -s /dev/null null; mkfifo pipe; ln -s /proc/sys/kernel/hostname host; ln -s / root"
    )
    for name in ("mem", "oom_score_adj", "comm", "uid_map", "clear_refs", "fd-1"):
        for who in ("one", "self"):
            try:
                prisoner.call("write", f"{who}-{name}", b"-1000")
            except OSError:
                continue
            assert prisoner.run(["cat", "/proc/1/oom_score_adj"]).stdout.strip() not in (b"-1000",)
    for name in ("usr", "null", "pipe", "host", "root/usr/x", "root"):
        with pytest.raises(OSError, match=r"."):
            prisoner.call("write", name, b"x")
    (cell.scratch / "tree").mkdir()
    (cell.scratch / "tree/file").write_text("x")
    for name in ("root/usr", "usr", "null", "pipe"):
        with pytest.raises(OSError, match=r"."):
            prisoner.call("put", str(cell.scratch / "tree"), name)
    assert os.uname().nodename == Path("/proc/sys/kernel/hostname").read_text().strip()
