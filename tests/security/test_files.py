"""Ways out through the file system."""

import fcntl
import os
import subprocess

import pytest
from attack_cell import PRELUDE

pytestmark = pytest.mark.timeout(60)

SEARCH = """
paths = sys.argv[1:]
for pid in processes() + ["self", "thread-self"]:
    for way in ("root", "cwd", "task/%s/root" % pid, "task/%s/cwd" % pid, "map_files", "fd/0", "fd/3"):
        top = f"/proc/{pid}/{way}"
        for path in paths:
            for name in (top + path, top + "/.." * 9 + path, top + "/../../../../proc/1/root" + path):
                try:
                    print(open(name).read())
                    print("found: OK")
                except OSError:
                    pass
for path in paths:
    for name in (path, "/.." + path, "//" + path, "/proc/../.." + path, "/dev/fd/../../.." + path):
        try:
            print(open(name).read())
            print("found: OK")
        except OSError:
            pass
print("searched: OK")
"""


@pytest.mark.slow
def test_no_process_directory_and_no_path_leads_to_a_file_of_the_host(cell):
    said = cell.told(SEARCH, *map(str, cell.host.files), cell.host.addresses["pathname"])
    assert said == {"searched": "OK"}


CHROOT = """
here = os.path.abspath("given")
def out():
    os.mkdir("jail")
    top = os.open("/", os.O_RDONLY)
    os.chroot("jail")
    os.fchdir(top)
    for _ in range(50):
        os.chdir("..")
    os.chroot(".")
tried("chroot", out)
tried("chroot to the parent", os.chroot, "/..")
tried("pivot_root", call, 155, b".", b".")
tried("top", os.chdir, "/")
for _ in range(50):
    tried("up", os.chdir, "..")
tried("still in", os.stat, here)
"""


def test_chroot_is_no_way_out(cell):
    said = cell.told(CHROOT)
    assert said.pop("still in") == "OK"
    said.pop("up"), said.pop("top")  # of the sandbox's own root, where it has one
    assert "OK" not in said.values(), said


DEVICES = """
import stat
for name, kind, major, minor in (
    ("mem", stat.S_IFCHR, 1, 1), ("kmem", stat.S_IFCHR, 1, 2), ("port", stat.S_IFCHR, 1, 4), ("kmsg", stat.S_IFCHR, 1, 11),
    ("disk", stat.S_IFBLK, 8, 0), ("vda", stat.S_IFBLK, 254, 0), ("loop", stat.S_IFBLK, 7, 0), ("console", stat.S_IFCHR, 5, 1),
    ("fuse", stat.S_IFCHR, 10, 229), ("kvm", stat.S_IFCHR, 10, 232), ("tun", stat.S_IFCHR, 10, 200), ("loop-control", stat.S_IFCHR, 10, 237),
    ("whiteout", stat.S_IFCHR, 0, 0),
):
    for place in (os.getcwd(), tempfile.gettempdir(), "/dev/shm", "/dev"):
        tried(f"{name} in {place}", os.mknod, f"{place}/{name}", 0o666 | kind, os.makedev(major, minor))
for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "fuse", "kvm", "loop-control", "mapper/control", "uinput", "vhost-net", "net/tun"):
    tried(f"open {name}", os.open, f"/dev/{name}", os.O_RDONLY)
for name in ("null", "zero", "full", "urandom"):
    tried(f"remove {name}", os.unlink, f"/dev/{name}")
"""


def test_device_nodes_can_neither_be_made_nor_found(cell):
    said = cell.told(DEVICES)
    assert len(said) > 60
    assert "OK" not in said.values(), said


MOUNTS = """
MS_BIND, MS_REMOUNT, MS_REC, MS_PRIVATE, MS_MOVE, MS_RDONLY = 4096, 32, 16384, 1 << 18, 8192, 1
def mount(source, target, kind, flags=0, data=None):
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data) < 0:
        raise OSError(ctypes.get_errno(), "mount")
def umount(target, flags=0):
    if libc.umount2(target, flags) < 0:
        raise OSError(ctypes.get_errno(), "umount")
os.mkdir("m")
there = os.path.abspath("m").encode()
for kind in (b"tmpfs", b"proc", b"sysfs", b"devtmpfs", b"cgroup", b"cgroup2", b"debugfs", b"tracefs", b"securityfs", b"overlay", b"mqueue", b"ramfs", b"ext4", b"fuse", b"binfmt_misc", b"devpts", b"bpf", b"configfs", b"hugetlbfs", b"9p", b"nfs"):
    tried("mount " + kind.decode(), mount, b"x", there, kind)
tried("mount disk", mount, b"/dev/vda", there, b"ext4")
tried("bind", mount, b"/", there, None, MS_BIND | MS_REC)
tried("bind proc", mount, b"/proc", there, None, MS_BIND)
tried("remount usr", mount, b"", b"/usr", None, MS_REMOUNT | MS_BIND)
tried("remount root", mount, b"", b"/", None, MS_REMOUNT)
tried("remount proc", mount, b"", b"/proc", None, MS_REMOUNT | MS_BIND)
tried("share", mount, b"", b"/", None, 1 << 20)
tried("move", mount, b"/usr", there, None, MS_MOVE)
for target in (b"/", b"/proc", b"/dev", b"/usr", b"/dev/null", b"/dev/pts"):
    tried("umount " + target.decode(), umount, target, 2)
tried("fsopen", call, 430, b"tmpfs", 0)
tried("open_tree", call, 428, -100, b"/", 1)
tried("open_tree copy", call, 428, -100, b"/", 0x80001 | 0x8000)
tried("open_tree_attr", call, 467, -100, b"/", 0x80001 | 0x8000, None, 0)
tried("move_mount", call, 429, -100, b"/usr", -100, there, 0)
tried("mount_setattr", call, 442, -100, b"/usr", 0x8000, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)
tried("fspick", call, 433, -100, b"/", 0)
"""


def test_nothing_can_be_mounted_unmounted_or_remounted(cell):
    said = cell.told(MOUNTS)
    assert "OK" not in said.values(), said


READ_ONLY = """
import mmap
files = [path for path in ("/usr/bin/env", "/bin/sh", "/etc/passwd", "/usr/bin/python3", sys.executable, os.__file__) if os.path.exists(path)]
for path in {os.path.realpath(path) for path in files}:
    tried(f"write {path}", lambda: open(path, "r+b"))
    tried(f"truncate {path}", os.truncate, path, 0)
    tried(f"chmod {path}", os.chmod, path, 0o777)
    tried(f"chown {path}", os.chown, path, os.getuid(), os.getgid())
    tried(f"utime {path}", os.utime, path, (0, 0))
    tried(f"xattr {path}", os.setxattr, path, "user.x", b"y")
    tried(f"rename {path}", os.rename, path, path + "x")
    tried(f"unlink {path}", os.unlink, path)
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        continue
    tried(f"chmod by descriptor {path}", os.fchmod, fd, 0o777)
    tried(f"reopen {path}", os.open, f"/proc/self/fd/{fd}", os.O_WRONLY)
    tried(f"map {path}", mmap.mmap, fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
for top in ("/usr", "/opt", "/bin", "/lib", os.path.dirname(os.__file__), "/dev", "/proc", "/sys"):
    tried(f"make in {top}", lambda: open(f"{top}/envgym-made", "w"))
    tried(f"mkdir in {top}", os.mkdir, f"{top}/envgym-made.d")
"""


def test_what_is_shown_of_the_host_cannot_be_written(cell):
    before = os.stat("/usr/bin/env")
    prisoner = cell.create()
    said = prisoner.told(READ_ONLY)
    shown = {name: value for name, value in said.items() if value == "OK"}
    assert all("/etc/passwd" in name or "/sys" in name for name in shown), shown  # a copy, the sandbox's own
    assert os.stat("/usr/bin/env") == before
    assert "envgym-made" not in os.listdir("/usr")


COPY_ON_WRITE = """
import mmap, threading
path = "/usr/bin/env"
before = open(path, "rb").read()
fd = os.open(path, os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_PRIVATE, fd, ctypes.c_long(0))
stop = False
def discard():
    while not stop:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(4096), 4)
racer = threading.Thread(target=discard)
racer.start()
try:
    memory = os.open("/proc/self/mem", os.O_RDWR)
    for _ in range(2000):
        os.pwrite(memory, b"X" * 16, start)
except OSError:
    pass
stop = True
racer.join()
# A page that a pipe shares with the file may not be written through the pipe either.
reading, writing = os.pipe()
os.splice(fd, writing, 1, offset_src=0)
os.write(writing, b"Y" * 64)
print("same:", open(path, "rb").read() == before)
"""


def test_a_private_page_of_a_shown_file_is_never_written_back(cell):
    with open("/usr/bin/env", "rb") as file:
        before = file.read()
    prisoner = cell.create()
    assert prisoner.python(COPY_ON_WRITE, timeout_s=20).stdout == b"same: True\n"
    with open("/usr/bin/env", "rb") as file:
        assert file.read() == before


HANDLES = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle, mount = Handle(bytes=128), (ctypes.c_int * 1)()
tried("name_to_handle_at", call, 303, -100, b"/", handle, mount, 0)
for inode in (2, 1, 128, 256):
    guess = Handle(bytes=8, type=1)
    guess.data[0:4] = inode.to_bytes(4, "little")
    for top in ("/", "/usr", "/proc", "/dev", "/work", "/tmp"):
        try:
            fd = os.open(top, os.O_RDONLY)
        except OSError:
            continue
        opened = tried(f"open_by_handle_at {top} {inode}", call, 304, fd, guess, os.O_RDONLY)
        if opened is not None:
            print(os.listdir(opened))
"""


def test_files_cannot_be_opened_by_guessed_handles(cell):
    assert "OK" not in cell.told(HANDLES).values()


HARD_LINKS = """
for source in sys.argv[1:] + ["/usr/bin/env", "/etc/hostname", "/proc/1/exe", "/proc/self/exe", "/proc/version", "/dev/null"]:
    for target in (os.path.abspath("hard"), tempfile.gettempdir() + "/hard", "/dev/shm/hard"):
        tried(f"link {source} {target}", os.link, source, target)
        try:
            os.unlink(target)
        except OSError:
            pass
fd = os.open("/usr/bin/env", os.O_RDONLY)
tried("linkat descriptor", call, 265, fd, b"", -100, b"hard", 0x1000)
tried("linkat followed", call, 265, -100, b"/proc/self/fd/%d" % fd, -100, b"hard", 0x400)
"""


def test_files_of_the_host_cannot_be_hard_linked(cell):
    links = os.stat("/usr/bin/env").st_nlink
    said = cell.told(HARD_LINKS, *map(str, cell.host.files))
    assert all("/etc/hostname" in name for name, value in said.items() if value == "OK"), said  # the sandbox's own
    assert os.stat("/usr/bin/env").st_nlink == links


FORGE = """
os.makedirs("tree/below")
open("tree/below/kept", "w").write("kept")
os.mkdir("given.d")
for kind in ("user.overlay.", "trusted.overlay.", "user.overlay.overlay.", "security."):
    for mark, value in (("opaque", b"y"), ("redirect", b"/etc"), ("metacopy", b""), ("origin", b"\\0" * 29), ("impure", b"y"),
                        ("nlink", b"U+9"), ("upper", b"x"), ("whiteout", b""), ("whiteouts", b"y"), ("capability", b"\\1\\0\\0\\2" + b"\\xff" * 16)):
        for path in ("tree", "tree/below", "tree/below/kept", "given", ".", "/", "/etc", "/etc/hosts"):
            tried(f"{kind}{mark} {path}", os.setxattr, path, kind + mark, value)
"""
SEEN = "find . | sort; cat given tree/below/kept; cat /etc/hosts; ls /; ls /etc | wc -l"


@pytest.mark.slow
def test_overlays_own_marks_cannot_be_forged(cell):
    """They would hide, redirect or replace what later forks and merged layers show."""
    with cell.create() as prisoner:
        said = prisoner.told(FORGE)
        assert not [
            name for name, value in said.items() if name.startswith(("trusted.", "security.")) and value == "OK"
        ]
        before = prisoner.run(SEEN)
        digest, diff = prisoner.call("digest"), prisoner.call("diff")
        assert diff["/work/tree/below/kept"] == b"kept"
        assert None not in diff.values(), "nothing was deleted"
        with prisoner.fork() as fork:
            assert fork.run(SEEN).stdout == before.stdout
            assert fork.call("digest") == digest
            for number in range(27):  # more layers than are stacked: they are merged
                fork.run(f"echo {number} > tree/below/n; rm -f tree/below/n")
                fork.owner.ask(0, "release", fork.call("snapshot"))
            assert fork.run(SEEN).stdout == before.stdout
            assert fork.call("diff") == diff


RENAMES = """
for name in ("a", "b", "d/below"):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(name)
for name, flags in (("whiteout", 4), ("exchange and whiteout", 6)):
    tried(name, call, 316, -100, b"a", -100, b"b", flags)
    tried(name + " of a directory", call, 316, -100, b"d", -100, b"e", flags)
    tried(name + " of what was given", call, 316, -100, b"given", -100, b"g", flags)
tried("whiteout by hand", os.mknod, "w", 0o20000 | 0o644, 0)
"""
KINDS = "stat -c '%n %F %a %s' * | sort; cat b e/below d/below g given 2>/dev/null"


def test_whiteouts_that_an_agent_makes_change_no_later_state(cell):
    """Where no overlay refuses them, they must be what they are in every fork: a deletion is not one of them."""
    with cell.create() as prisoner:
        said = prisoner.told(RENAMES)
        if cell.stacks:
            assert "OK" not in said.values(), said
        before = prisoner.run(KINDS).stdout
        digest = prisoner.call("digest")
        with prisoner.fork() as fork:
            assert fork.run(KINDS).stdout == before
            assert fork.call("digest") == digest
            with fork.fork() as second:
                second.run("true > new")
                second.owner.ask(0, "release", second.call("snapshot"))
                assert second.run("rm new; " + KINDS).stdout == before


SPECIAL = """
import socket, stat
os.mkfifo("pipe")
tried("socket", lambda: socket.socket(socket.AF_UNIX).bind("socket"))
os.symlink("/proc/self/fd/0", "standard")
os.symlink("loop", "loop")
os.symlink("x" * 4000, "long")
os.mkdir("mode0"), open("mode0/file", "w").write("x"), os.chmod("mode0", 0)
open("odd", "w").write("x"), os.chmod("odd", 0o7777)
for name in (b"\\xff\\xfe", b"line\\nbreak", b"\\x1b[31m", b"-rf", b" ", b"$(touch x)", b"'\\"", b"n" * 255, "\\u202e".encode()):
    open(name, "w").write("x")
"""


def test_pipes_sockets_odd_names_and_modes_are_survived_by_everything_that_reads_layers(cell):
    with cell.create() as prisoner:
        assert prisoner.python(SPECIAL).ok
        digest, diff = prisoner.call("digest"), prisoner.call("diff")
        assert diff[os.fsdecode(b"/work/\xff\xfe")] == b"x"
        with prisoner.fork() as fork:
            assert fork.call("digest") == digest
            assert fork.call("diff") == diff
            with pytest.raises(PermissionError):
                prisoner.call("get", "/work", str(cell.scratch / "refused"))
            prisoner.run("chmod 755 mode0")
            prisoner.call("get", "/work", str(cell.scratch / "got"))
            assert not (cell.scratch / "got/pipe").exists()
            assert (cell.scratch / "got/long").is_symlink()
            fork.call("put", str(cell.scratch / "got"), "/work/again")
            assert fork.run(["ls", "-A", "again"]).ok
        # Something is running, so that the layer is copied while it is used.
        prisoner.run("sleep 60 & chmod 0 mode0")
        snapshot = prisoner.call("snapshot")
        assert snapshot.partial
        prisoner.owner.ask(0, "release", snapshot)


DEEP = """
depth = int(sys.argv[1])
for level in range(depth):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").write("deep")
"""


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(200)])])
def test_a_tree_of_thousands_of_levels_stops_nothing(cell, depth, request):
    if "docker-copy" in request.node.name:
        depth = min(depth, 4_000)  # it takes the square: 22 s for a look at 10,000, 43 for a fork's first
    with cell.create() as prisoner:
        assert prisoner.python(DEEP, str(depth), timeout_s=36 if depth < 4_000 else 100).ok
        digest = prisoner.call("digest")
        assert [len(path) for path in prisoner.call("diff")] == [len("/work") + 2 * depth + len("/file")]
        with prisoner.fork() as fork:
            assert fork.call("digest") == digest
            fork.run("sleep 60 &")
            prisoner.owner.ask(0, "release", fork.call("snapshot"))  # copied
            with pytest.raises(OSError, match=r"name|deep|long"):
                fork.call("get", "/work", str(cell.scratch / "got"))
            assert fork.run("echo alive").stdout == b"alive\n"


def test_a_hole_of_a_terabyte_costs_the_host_nothing(cell):
    before = cell.owner.memory_bytes()
    with cell.create() as prisoner:
        if not prisoner.run("truncate -s 1T hole && mkdir d && truncate -s 1T d/hole").ok:
            assert not cell.stacks, "files are bounded by their disk only"
            return
        digest = prisoner.call("digest")
        for method, arguments in (("diff", ()), ("read", ("hole",))):
            with pytest.raises(OSError, match=r"large|bound|more than|bytes"):
                prisoner.call(method, *arguments)
        with prisoner.fork() as fork:
            assert fork.call("digest") == digest
            assert fork.run(["stat", "-c", "%s", "hole"]).stdout == b"1099511627776\n"
            fork.run("sleep 60 &")
            prisoner.owner.ask(0, "release", fork.call("snapshot"))  # copied
            assert fork.run("echo alive").ok
    assert cell.owner.memory_bytes() - before < 64 << 20


@pytest.mark.slow
def test_a_thousand_names_of_one_file_are_copied_as_one(cell):
    links = "python3 -c \"import os; [os.link('big', f'd/{n}') for n in range(3000)]\""
    with cell.create() as prisoner:
        assert prisoner.run(f"head -c 1000000 /dev/urandom > big; mkdir d; {links}").ok
        digest = prisoner.call("digest")
        prisoner.run("sleep 60 &")
        prisoner.owner.ask(0, "release", prisoner.call("snapshot"))
        assert prisoner.call("digest") == digest


IDENTITY = """
own = os.getuid()
for other in {0, 1, 1000, 65534} - {own}:
    for name in ("setuid", "setgid", "seteuid", "setegid"):
        tried(f"{name} {other}", getattr(os, name), other)
    tried(f"setresuid {other}", os.setresuid, other, other, other)
    tried(f"setgroups {other}", os.setgroups, [other])
    tried(f"chown {other}", os.chown, "given", other, other)
open("own", "wb").write(open("/usr/bin/env", "rb").read())
os.chmod("own", 0o6755)
import subprocess
ran = subprocess.run(["./own", "id", "-u"], capture_output=True, text=True)
print("own setuid copy:", ran.returncode or ran.stdout.strip() == str(own))
print("no new privileges:", libc.prctl(39, 0, 0, 0, 0))
print("bounding:", sum(libc.prctl(23, capability, 0, 0, 0) == 1 for capability in range(41)))
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
call(125, header, data)
print("capabilities:", sum(data))
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
tried("capset", call, 126, header, data)
tried("ambient", lambda: libc.prctl(47, 2, 21, 0, 0) and (_ for _ in ()).throw(PermissionError(1, "")))
tried("file capability", os.setxattr, "own", "security.capability", b"\\x01\\x00\\x00\\x02" + b"\\xff" * 16)
"""
SETUID = "for f in $(find /usr/bin /usr/sbin /usr/lib /bin /sbin -maxdepth 2 -perm /6000 -type f 2>/dev/null | head -20); do echo $f; done"
AS_ROOT = "for f in su sudo mount newgrp chsh passwd pkexec; do command -v $f && echo | $f --help 2>&1 | head -3; done; echo; id -u"


@pytest.mark.slow
def test_no_program_gains_an_identity_or_a_capability(cell):
    prisoner = cell.create()
    own = prisoner.run(["id", "-u"]).stdout
    said = prisoner.told(IDENTITY)
    assert said.pop("own setuid copy") in ("True", "126")
    assert [said.pop(name) for name in ("capabilities", "bounding", "no new privileges")] == ["0", "0", "1"]
    assert "OK" not in said.values(), said
    assert prisoner.run(f"{SETUID}; {AS_ROOT}").stdout.split()[-1] == own.strip()
    assert prisoner.run("echo | su -c id nobody 2>&1").exit_code != 0


SYSTEM = """
def content(path):
    found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(4096)
    if not found:
        raise OSError(2, "empty")
for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
             "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/sysrq", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register",
             "/proc/sys/kernel/ns_last_pid", "/proc/sys/user/max_user_namespaces", "/proc/irq/0/smp_affinity", "/proc/mtrr",
             "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs", "/sys/class/net/lo/mtu", "/proc/self/uid_map",
             "/proc/self/gid_map", "/proc/self/setgroups", "/proc/1/oom_score_adj", "/proc/1/mem", "/proc/1/comm", "/proc/1/limits"):
    tried(f"write {path}", lambda: os.write(os.open(path, os.O_WRONLY), b"1"))
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/proc/kpageflags", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/slabinfo",
             "/proc/timer_list", "/proc/sched_debug", "/sys/kernel/debug", "/sys/kernel/security", "/sys/firmware/acpi/tables/DSDT"):
    tried(f"read {path}", content, path) if path != "/proc/kallsyms" else None
try:
    addresses = {line.split()[0] for line in open("/proc/kallsyms").readlines()[:100]}
except OSError:
    pass
else:
    print("kernel addresses:", sorted(addresses - {"0" * 16}))
"""


def test_the_kernels_settings_and_memory_are_out_of_reach(cell):
    said = cell.told(SYSTEM)
    assert said.pop("kernel addresses", "[]") == "[]"
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


WATCH = """
import select
fd = call(294, 0o4000)
tried("watch", call, 254, fd, b"/usr/bin/env", 0xFFF)  # which nobody inside uses meanwhile
open("ready", "w").close()
os.set_blocking(fd, False)
ready = select.select([fd], [], [], 2.0)[0]
print("seen:", len(os.read(fd, 65536)) if ready else 0)
"""


def test_what_the_host_does_with_its_programs_is_not_seen(cell):
    """A shown directory is the host's own: who watches it learns what others open."""
    prisoner = cell.create()
    watching = prisoner.begin("exec", ["python3", "-c", PRELUDE + WATCH])
    prisoner.run("for i in $(seq 100); do [ -e ready ] && break; sleep 0.02; done; rm -f ready")
    subprocess.run(["/usr/bin/env", "true"], check=True)
    result = watching.result(20)
    assert result.exit_code != 0 or b"seen: 0\n" in result.stdout, result.stdout


LOCK = """
import fcntl
fd = os.open("/usr/bin/env", os.O_RDONLY)
tried("lease", fcntl.fcntl, fd, 1024, fcntl.F_RDLCK)
tried("lock", fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
open("ready", "w").close()
__import__("time").sleep(30)
"""


def test_programs_of_the_host_cannot_be_locked(cell):
    """A lock needs no right to write: whoever of the host locks the same file would wait."""
    prisoner = cell.create()
    prisoner.begin("exec", ["python3", "-c", PRELUDE + LOCK], timeout_s=8)
    assert prisoner.run("for i in $(seq 100); do [ -e ready ] && break; sleep 0.02; done; ls ready").ok
    assert not held("/usr/bin/env")


def held(path: str) -> bool:
    """Whether somebody else has a lock on a file."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
