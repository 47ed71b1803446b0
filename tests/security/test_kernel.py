"""The kernel's own doors: what reads its memory, changes the machine, or is little tested."""

import platform

import pytest

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks call by x86_64's numbers"),
]

MACHINE = """
import struct
time = (ctypes.c_long * 2)(1, 0)
page = ctypes.create_string_buffer(4096)
attempts = {
    "syslog read": (103, 3, page, 4096), "syslog clear": (103, 5, 0, 0), "reboot": (169, 0xFEE1DEAD, 672274793, 0x89ABCDEF, 0),
    "kexec_load": (246, 0, 0, 0, 0), "kexec_file_load": (320, 0, 0, 0, b"", 0), "init_module": (175, page, 4096, b""),
    "finit_module": (313, 0, b"", 0), "delete_module": (176, b"loop", 0), "swapon": (167, b"/tmp/swap", 0), "swapoff": (168, b"/tmp/swap"),
    "settimeofday": (164, time, 0), "clock_settime": (227, 0, time), "clock_adjtime": (305, 0, struct.pack("I204x", 1)),
    "adjtimex": (159, struct.pack("I204x", 1)), "sethostname": (170, b"x", 1), "setdomainname": (171, b"x", 1), "acct": (163, b"/tmp/acct"),
    "quotactl": (179, 0x80000200, 0, 0, page), "iopl": (172, 3), "ioperm": (173, 0x70, 2, 1), "vhangup": (153,), "nfsservctl": (180, 0, 0, 0),
    "lookup_dcookie": (212, 0, page, 4096), "uselib": (134, b"/bin/sh"), "modify_ldt": (154, 1, page, 16), "mount": (165, b"x", b"/tmp", b"tmpfs", 0, 0),
    "umount2": (166, b"/", 2), "pivot_root": (155, b".", b"."), "sysfs_": (156, 0), "pciconfig_read": (198, 0),
}
for name, (number, *arguments) in attempts.items():
    tried(name, call, number, *arguments)
"""


def test_the_machine_cannot_be_changed(cell):
    said = cell.told(MACHINE)
    assert len(said) > 25
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


DOORS = """
import struct
page = ctypes.create_string_buffer(4096)
perf = struct.pack("IIQQQQQ72x", 1, 120, 0, 0, 0, 0, 0)
attempts = {
    "io_uring_setup": (425, 8, page), "io_uring_enter": (426, 0, 0, 0, 0, 0, 0), "io_uring_register": (427, 0, 0, 0, 0),
    "bpf map": (321, 0, struct.pack("IIII112x", 1, 4, 4, 1), 128), "bpf load": (321, 5, page, 120), "bpf list": (321, 11, page, 120),
    "perf self": (298, perf, 0, -1, -1, 0), "perf all": (298, perf, -1, 0, -1, 0), "perf init": (298, perf, 1, -1, -1, 0),
    "userfaultfd": (323, 1), "userfaultfd kernel": (323, 0),
    "keyctl session": (250, 0, -3, 1), "keyctl join": (250, 1, b"x"), "add_key": (248, b"user", b"%s" % sys.argv[1].encode(), b"data", 4, -4),
    "add_key big": (248, b"big_key", b"x", page, 4096, -3), "request_key": (249, b"user", b"x", 0, -4), "keyctl search": (250, 10, -4, b"user", b"x", 0),
    "fanotify": (300, 0, 0), "fanotify unprivileged": (300, 0x200, 0), "pidfd_getfd": (438, 0, 0, 0), "memfd in kernel": (447, 0x80000000),
    "kcmp": (312, 1, 1, 0, 0, 0), "ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, 1, page, 1, page, 1, 0),
    "seccomp listener": (317, 1, 8, struct.pack("HxxxxxxP", 1, ctypes.addressof(ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), 8)))),
    "landlock": (444, 0, 0, 1), "clone3": (435, struct.pack("11Q", 0x10000000, *[0] * 3, 17, *[0] * 6), 88), "unshare": (272, 0x10000000),
    "open_by_handle_at": (304, -100, page, 0), "mseal": (462, 1, 4096, 0), "map_shadow_stack": (453, 0, 0, 0), "lsm_set": (460, 100, page, 4096, 0),
    "statmount": (457, page, page, 4096, 0), "listmount": (458, page, page, 8, 0), "open_tree": (428, -100, b"/", 1), "fsopen": (430, b"tmpfs", 0),
    "removed or unknown": (600, 0), "far": (1 << 20, 0),
}
attempts.pop("landlock"), attempts.pop("mseal"), attempts.pop("memfd in kernel"), attempts.pop("seccomp listener")
for name, (number, *arguments) in attempts.items():
    tried(name, call, number, *arguments)
for device in ("fuse", "kvm", "vhost-vsock", "vhost-net", "net/tun", "userfaultfd", "hwrng", "dri/card0", "nvidia0", "snd/seq", "cuse", "ppp", "btrfs-control", "loop-control"):
    tried("/dev/" + device, os.open, "/dev/" + device, os.O_RDWR)
"""


def test_doors_of_the_kernel_are_shut(cell):
    said = cell.told(DOORS, cell.host.marker)
    assert len(said) > 35
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}
    with open("/proc/keys") as file:
        assert cell.host.marker not in file.read()


OTHER_NUMBERS = """
import mmap, signal
def ends(name, attempt):
    pid = os.fork()  # a process of its own, since a filter may kill
    if pid == 0:
        libc.prctl(4, 1, 0, 0, 0)
        os._exit(0 if attempt() >= 0 else 1)
    _, status = os.waitpid(pid, 0)
    print(f"{name}: {'OK' if status == 0 else status}")
for number in (101, 165, 272, 321, 425, 250, 39):
    for more in (0, 512):
        ends(f"x32 {number + more}", lambda: libc.syscall(ctypes.c_long(0x40000000 | more | number), 0, 0, 0, 0))
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
for number, name in ((26, "ptrace"), (21, "mount"), (310, "unshare"), (20, "getpid"), (120, "clone")):
    code[:12] = b"\\x53\\xb8" + number.to_bytes(4, "little") + b"\\xcd\\x80\\x5b\\xc3" + b"\\x90" * 2
    ends(f"int 0x80 {name}", run)
"""


def test_other_ways_to_number_system_calls_are_no_way_around_the_filter(cell):
    """The x32 numbers, and the 32-bit gate, where 26 is ptrace and 120 clone."""
    said = cell.told(OTHER_NUMBERS)
    assert len(said) > 15
    assert "OK" not in said.values(), said


GROUPS = """
import glob
paths = glob.glob("/sys/fs/cgroup/**", recursive=True)[:400] + glob.glob("/proc/*/cgroup")[:20] + ["/proc/cgroups"]
for path in paths:
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT):
        try:
            fd = os.open(path, flags)
        except OSError:
            continue
        print(f"{path}: OK")
os.makedirs("group", exist_ok=True)
for kind in (b"cgroup", b"cgroup2"):
    tried(f"mount {kind}", lambda: libc.mount(b"x", b"group", kind, 0, b"memory") and (_ for _ in ()).throw(OSError(1, "")))
for name in ("release_agent", "notify_on_release", "cgroup.procs", "tasks", "devices.allow", "memory.max", "memory.limit_in_bytes", "pids.max"):
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/proc/1/root/sys/fs/cgroup", "/tmp"):
        tried(f"{top}/{name}", os.open, f"{top}/{name}", os.O_WRONLY)
tried("new group", os.mkdir, "/sys/fs/cgroup/escape")
try:
    print("seen:", open("/proc/self/cgroup").read().count("envgym"))
except OSError:
    print("seen: 0")
"""


def test_control_groups_are_out_of_reach(cell):
    said = cell.told(GROUPS)
    assert said.pop("seen") == "0", "not even one's own name"
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


FILTERS = """
import struct
def install(action):
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, action), 8)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))
    return call(317, 1, 0, program)
tried("filter that allows all", install, 0x7FFF0000)
tried("then unshare", call, 272, 0x10000000)
tried("then ptrace", call, 101, 16, 1, 0, 0)
tried("strict off", call, 317, 0, 0, 0)
"""


def test_a_filter_of_its_own_lifts_no_other(cell):
    prisoner = cell.create()
    result = prisoner.python(FILTERS)
    assert b"then unshare: OK" not in result.stdout
    assert b"then ptrace: OK" not in result.stdout
    assert b"then ptrace" in result.stdout
    assert prisoner.run("echo alive").stdout == b"alive\n"


CLOCKS = """
import time
before = time.time()
tried("set", time.clock_settime, time.CLOCK_REALTIME, 0)
tried("time namespace", lambda: os.write(os.open("/proc/self/timens_offsets", os.O_WRONLY), b"monotonic 1 0"))
tried("alarm", call, 225, 9)
for clock in range(0, 12):
    try:
        time.clock_settime(clock, 1)
    except OSError:
        continue
    print(f"clock {clock}: OK")
print("same:", abs(time.time() - before) < 5)
"""


def test_no_clock_can_be_set(cell):
    said = cell.told(CLOCKS)
    assert said.pop("same") == "True"
    said.pop("alarm")
    assert "OK" not in said.values(), said


ODD = """
import mmap, random, signal
random.seed(7)
skip = {60, 231, 62, 200, 234, 34, 35, 61, 15, 24, 219, 230, 7, 23, 270, 271, 281, 441, 232, 0, 45, 47, 299, 88, 201, 128, 129, 297, 424, 449, 202, 130, 56, 57, 58, 435, 109, 112, 33, 292, 3, 436, 37, 38, 222, 226, 283, 286}
page = ctypes.create_string_buffer(8192)
done = 0
pid = os.fork()
if pid == 0:
    signal.alarm(4)
    os.chdir(tempfile.gettempdir())
    for _ in range(4000):
        number = random.randrange(0, 470)
        if number not in skip:
            words = [random.choice([0, 1, -1, 2, 4096, 1 << 31, 1 << 63, ctypes.addressof(page), random.getrandbits(64)]) for _ in range(6)]
            libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(word % (1 << 64)) for word in words])
    os._exit(0)
os.waitpid(pid, 0)
print("done: OK")
"""


@pytest.mark.slow
def test_thousands_of_random_system_calls_change_nothing_outside(cell):
    prisoner = cell.create()
    result = prisoner.python(ODD, timeout_s=10)
    assert result.exit_code is not None or result.timed_out
    assert prisoner.run("echo alive").stdout == b"alive\n"
