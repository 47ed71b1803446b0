"""Processes: floods of them, those that will not end, those of others, and the sandbox's own first ones."""

import re
import time

import pytest

from envgym.errors import SandboxDied

pytestmark = pytest.mark.timeout(60)


@pytest.mark.slow
def test_a_fork_bomb_is_bounded_and_ends_with_its_command(cell):
    prisoner = cell.create()
    result = prisoner.run("f() { f | f & }; f; sleep 60", timeout_s=1.5)
    assert result.timed_out
    assert result.wall_s < 12
    assert prisoner.run("echo alive", timeout_s=10).stdout == b"alive\n"
    assert int(prisoner.run(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).stdout) < 12, "all of it is gone"


FORK_BOMB = """
import threading
def grow():
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            pass
grow()
"""


@pytest.mark.slow
def test_a_fork_bomb_of_sessions_ends_at_its_deadline_and_at_close(cell):
    prisoner = cell.create()
    assert prisoner.python(FORK_BOMB, timeout_s=1.0).timed_out
    assert prisoner.run("echo alive", timeout_s=10).stdout == b"alive\n"
    prisoner.begin("exec", ["python3", "-c", "import os\n" + FORK_BOMB], timeout_s=30)
    time.sleep(0.3)
    began = time.monotonic()
    prisoner.close()
    assert time.monotonic() - began < 15


THREADS = """
import threading
started = 0
try:
    for _ in range(5000):
        threading.Thread(target=__import__("time").sleep, args=(30,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print("started:", started, flush=True)
os._exit(0)
"""


def test_threads_count_as_processes(cell):
    prisoner = cell.create()
    assert int(prisoner.told(THREADS)["started"]) <= 64


ZOMBIES = """
count = 0
for _ in range(2000):
    try:
        if os.fork() == 0:
            os._exit(0)
        count += 1
    except OSError:
        break
print("zombies:", count)
"""
ORPHANS = "for i in $(seq 300); do (sleep 0.0$((i % 9)) & ) ; done; echo done"


@pytest.mark.slow
def test_zombies_and_orphans_are_collected(cell):
    prisoner = cell.create()
    assert int(prisoner.told(ZOMBIES)["zombies"]) <= 64
    assert prisoner.run(ORPHANS).ok
    for _ in range(50):
        left = prisoner.run(["sh", "-c", "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"]).stdout
        if left == b"0\n":
            break
    assert left == b"0\n"


DAEMON = """
import signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        libc.prctl(15, b"kthreadd) R 1 1", 0, 0, 0)
        for fd in range(3):
            os.close(fd)
        open("/tmp/daemon", "w").write(str(os.getpid()))
        while True:
            time.sleep(0.05)
            open("/tmp/beats", "a").write("x")
    os._exit(0)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_daemon_that_hides_ends_with_its_commands_deadline_or_its_sandbox(cell):
    prisoner = cell.create()
    assert prisoner.python(DAEMON, "60", timeout_s=1.0).timed_out
    said = prisoner.run(
        "kill -0 $(cat /tmp/daemon) || echo gone; cat /tmp/beats | wc -c; sleep 0.2; cat /tmp/beats | wc -c"
    )
    assert said.stdout.startswith(b"gone\n")
    assert len(set(said.stdout.split()[1:])) == 1, "it beats no more"
    assert prisoner.python(DAEMON, "0").ok, "one whose command ended by itself lives as long as its sandbox"
    prisoner.run("until [ -s /tmp/daemon ]; do sleep 0.01; done")


SIGNALS = """
import signal
own = {os.getpid(), os.getppid()}
for pid in sys.argv[1:] + ["-1", "0", "-1000000"]:
    for number in (0, signal.SIGSTOP, signal.SIGUSR1):
        if pid not in ("-1", "0"):
            tried(f"kill {pid} {number}", os.kill, int(pid), number)
    if int(pid) > 0:
        try:
            pidfd = os.pidfd_open(int(pid))
        except OSError:
            pass
        else:
            tried(f"kill by pidfd {pid}", signal.pidfd_send_signal, pidfd, signal.SIGUSR1)
            tried(f"take by pidfd {pid}", call, 438, pidfd, 0, 0)
            tried(f"enter by pidfd {pid}", call, 308, pidfd, 0)
        tried(f"tgkill {pid}", call, 234, int(pid), int(pid), signal.SIGUSR1)
        tried(f"tkill {pid}", call, 200, int(pid), signal.SIGUSR1)
        tried(f"priority {pid}", os.setpriority, os.PRIO_PROCESS, int(pid), 19)
        tried(f"scheduler {pid}", os.sched_setscheduler, int(pid), os.SCHED_IDLE, os.sched_param(0))
        tried(f"affinity {pid}", os.sched_setaffinity, int(pid), {0})
        tried(f"prlimit {pid}", lambda: __import__("resource").prlimit(int(pid), 7, (8, 8)))
"""


def test_processes_of_the_host_cannot_be_signalled_or_set(cell):
    pids = [*cell.host.pids.values(), cell.owner.pid]
    said = cell.told(SIGNALS, *map(str, pids))
    assert set(said.values()) <= {"ESRCH", "EPERM", "ENOSYS"}, said


EVERYBODY = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    for pid in {1, os.getppid()}:
        tried(f"kill {pid} {number}", os.kill, pid, number)
print("lives: OK", flush=True)
if sys.argv[1] == "all":
    tried("all", os.kill, -1, signal.SIGKILL)
"""


def test_the_first_process_outlives_all_signals_from_inside(cell):
    prisoner = cell.create()
    assert prisoner.told(EVERYBODY, "one")["lives"] == "OK"
    prisoner.python(EVERYBODY, "all")
    assert prisoner.run("echo alive").stdout == b"alive\n"


PEEK = """
import struct
for pid in sys.argv[1:] + ["1"]:
    number = int(pid)
    buffer = ctypes.create_string_buffer(64)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
    remote = (ctypes.c_void_p * 2)(0x400000, 64)
    tried(f"attach {pid}", call, 101, 16, number, 0, 0)
    tried(f"seize {pid}", call, 101, 0x4206, number, 0, 0)
    tried(f"read {pid}", call, 310, number, vector, 1, remote, 1, 0)
    tried(f"write {pid}", call, 311, number, vector, 1, remote, 1, 0)
    tried(f"kcmp {pid}", call, 312, os.getpid(), number, 0, 0, 0)
    tried(f"madvise {pid}", call, 440, number, vector, 1, 4, 0)
    tried(f"move pages {pid}", call, 279, number, 0, 0, 0, 0, 0) if number != os.getpid() else None
    try:
        pidfd = os.pidfd_open(number)
    except OSError:
        continue
    for fd in range(12):
        tried(f"take descriptor {fd} of {pid}", call, 438, pidfd, fd, 0)
    tried(f"enter {pid}", call, 308, pidfd, 0)
    for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "pagemap", "io", "fd", "fdinfo", "cwd", "root", "exe",
                 "map_files", "ns/mnt", "smaps", "numa_maps", "personality", "wchan_", "clear_refs", "attr/current_"):
        path = f"/proc/{pid}/{name}"
        tried(f"{name} of {pid}", lambda: os.listdir(path) if name in ("fd", "fdinfo", "map_files") else os.readlink(path)
              if name in ("cwd", "root", "exe", "ns/mnt") else open(path, "rb").read(1))
tried("traceme", call, 101, 0, 0, 0, 0)
"""


def test_no_other_process_can_be_looked_into(cell):
    pids = [*cell.host.pids.values(), cell.owner.pid]
    said = cell.told(PEEK, *map(str, pids))
    said = {name: value for name, value in said.items() if not name.startswith("move pages")}
    assert "attach 1" in said
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


NAMESPACES = """
flags = {"time": 0x80, "mount": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
         "pid": 0x20000000, "net": 0x40000000}
def child(flag):
    pid = call(56, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
for name, flag in flags.items():
    tried(f"unshare {name}", call, 272, flag)
    tried(f"unshare user and {name}", call, 272, flag | 0x10000000)
    if name != "time":
        tried(f"clone {name}", child, flag)
        tried(f"clone user and {name}", child, flag | 0x10000000)
    arguments = (ctypes.c_uint64 * 11)(flag, 0, 0, 0, 17)
    tried(f"clone3 {name}", call, 435, arguments, 88)
for name in ("mnt", "user", "net", "pid", "ipc", "uts", "cgroup", "time"):
    for pid in ("self", "1", str(os.getppid())):
        tried(f"setns {name} of {pid}", lambda: call(308, os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0))
"""


def test_no_namespace_can_be_made_or_entered(cell):
    said = cell.told(NAMESPACES)
    assert "OK" not in said.values(), said


LIMITS = """
import resource, subprocess
for name in ("NPROC", "NOFILE", "CORE", "MEMLOCK", "NICE", "RTPRIO", "SIGPENDING", "MSGQUEUE", "DATA", "FSIZE", "AS", "STACK", "CPU"):
    kind = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        tried(f"raise {name}", resource.setrlimit, kind, (hard + 1, hard + 1))
        tried(f"unlimit {name}", resource.setrlimit, kind, (resource.RLIM_INFINITY,) * 2)
    tried(f"of the first process: {name}", resource.prlimit, 1, kind, (1, 1))
tried("nice", os.setpriority, os.PRIO_PROCESS, 0, -20)
for name in ("FIFO", "RR"):
    tried(name, os.sched_setscheduler, 0, getattr(os, f"SCHED_{name}"), os.sched_param(1))
tried("real time io", call, 251, 1, 0, 1 << 13)
def lock():
    import mmap
    memory = mmap.mmap(-1, 1 << 20)
    if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))), ctypes.c_size_t(len(memory))) < 0:
        raise OSError(ctypes.get_errno(), "mlock")
tried("lock a mebibyte", lock)
print("lockable:", *resource.getrlimit(resource.RLIMIT_MEMLOCK))
tried("never killed for memory", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"))
print("core:", resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def test_limits_and_priorities_cannot_be_raised(cell):
    said = cell.told(LIMITS)
    assert int(said.pop("core")) <= 1
    assert all(0 <= int(most) <= 1 << 16 for most in said.pop("lockable").split()), "-1 would be no bound"
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


CRASH = "import os, resource; print(resource.getrlimit(resource.RLIMIT_CORE), flush=True); os.kill(os.getpid(), 11)"


def test_a_crash_starts_no_program_of_the_host(cell):
    """A pipe as core_pattern runs for any limit but 1, even for 0: as root, outside, on what the crashed one was."""
    prisoner = cell.create()
    result = prisoner.run(["python3", "-c", CRASH])
    assert result.exit_code == -11
    assert result.stdout == b"(1, 1)\n"


PRCTL = """
def prctl(option, value=0, other=0):
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(other), ctypes.c_ulong(0), ctypes.c_ulong(0)) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
tried("privileges again", prctl, 38, 0)
tried("no filter", prctl, 22, 0)
tried("securebits", prctl, 28, 0)
for capability in (0, 21, 37):
    tried(f"ambient {capability}", prctl, 47, 2, capability)
tried("io flusher", prctl, 57, 1)
print("filtered:", libc.prctl(21, 0, 0, 0, 0))
prctl(36, 1)
prctl(4, 0)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        __import__("time").sleep(100)
    os._exit(0)
"""


def test_prctl_undoes_nothing_and_hides_nothing(cell):
    with cell.create() as prisoner:
        said = prisoner.told(PRCTL)
        assert said.pop("filtered") == "2"
        assert "OK" not in said.values(), said
        assert prisoner.run("echo alive").ok


TERMINAL = """
import fcntl, termios
for name in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/ttyS0", "/dev/pts/0", "/dev/pts/1"):
    tried(f"open {name}", os.open, name, os.O_RDWR)
try:
    main, sub = os.openpty()
except OSError:
    sub = 0
for name, request, argument in (("TIOCSTI", 0x5412, b"x"), ("TIOCLINUX", 0x541C, b"\\x02"), ("TIOCSTI high", 0x5412 | 1 << 32, b"x")):
    tried(name, lambda: call(16, sub, request, argument))
    tried(name + " on standard input", lambda: call(16, 0, request, argument))
"""


def test_no_terminal_of_the_host_is_there_and_none_can_be_typed_into(cell):
    said = cell.told(TERMINAL)
    assert "OK" not in said.values(), said


DESCRIPTORS = """
import stat
found = {}
for fd in range(4096):
    try:
        found[fd] = os.fstat(fd).st_mode
    except OSError:
        pass
print("open:", sorted(found))
print("sockets:", [fd for fd, mode in found.items() if stat.S_ISSOCK(mode)])
"""


@pytest.mark.parametrize("way", ["argv", "shell", "warm"])
def test_no_descriptor_is_inherited(cell, way):
    prisoner = cell.create()
    if way == "argv":
        result = prisoner.python(DESCRIPTORS)
    elif way == "warm":
        result = prisoner.run(["@python", "-c", "import os\n" + DESCRIPTORS])
    else:
        prisoner.call("write", "program", ("import os\n" + DESCRIPTORS).encode())
        result = prisoner.run("python3 program")
    assert result.stdout == b"open: [0, 1, 2]\nsockets: []\n", result.text


ENVIRONMENTS = "cat /proc/[0-9]*/environ /proc/self/environ /proc/[0-9]*/cmdline /proc/self/mountinfo 2>/dev/null | tr '\\0' '\\n'; env; set; export"


@pytest.mark.parametrize("way", ["argv", "shell", "warm"])
def test_no_environment_and_no_command_line_tells_of_the_host(cell, way):
    prisoner = cell.create()
    if way == "argv":
        told = prisoner.run(["bash", "-c", ENVIRONMENTS]).stdout
    elif way == "shell":
        told = prisoner.run(ENVIRONMENTS).stdout
    else:
        program = (
            f"import os, subprocess; print(dict(os.environ)); subprocess.run(['bash', '-c', {ENVIRONMENTS!r}])"
        )
        told = prisoner.run(["@python", "-c", program]).stdout
    assert b"ATTACK" in told
    for name in (b"OWNER_SECRET", b"AWS_SECRET", str(cell.owner.state).encode(), str(cell.host.top).encode()):
        assert name not in told, name
    assert not re.search(rb"SECRET=|TARGET_SECRET|SSH_|SUDO_", told)


MEMORY = """
import ctypes, gc, re
found, checked = set(), 0
def look(data):
    global checked
    checked += len(data)
    found.update(one.decode() for one in re.findall(rb"(?:other sandbox|owner environment)-[0-9a-f]{32}", data))
try:
    places = [line.split() for line in open("/proc/self/maps")]
    memory = os.open("/proc/self/mem", os.O_RDONLY)
except OSError:  # then by the addresses of what there is, through a pipe that says what is no memory
    libc, (reading, writing) = ctypes.CDLL(None, use_errno=True), os.pipe()
    libc.sbrk.restype = ctypes.c_void_p
    end = libc.sbrk(0)
    pages = {id(one) >> 20 for one in gc.get_objects()} | {(end >> 20) - back for back in range(64)}
    kept = b""
    for page in sorted({near for page in pages for near in (page - 1, page, page + 1)}):
        for at in range(page << 20, (page + 1) << 20, 4096):
            if libc.write(writing, ctypes.c_void_p(at), ctypes.c_size_t(4096)) == 4096:
                kept = kept[-64:] + os.read(reading, 4096)
                look(kept)
else:
    for place, rights, *rest in places:
        if "r" not in rights or rest[-1].startswith("[v"):
            continue
        start, end = (int(part, 16) for part in place.split("-"))
        for at in range(start, end, 1 << 20):
            try:
                look(os.pread(memory, min(1 << 20, end - at) + 64, at))
            except OSError:
                continue
print("enough:", checked > 2 << 20)
print("found:", sorted(found))
"""


def test_the_memory_of_a_warm_interpreter_holds_nothing_of_others(cell):
    """It is a fork of the process that starts every sandbox: what passed through that one would be in it."""
    prisoner = cell.create()
    result = prisoner.run(["@python", "-c", "import os, sys\n" + MEMORY], timeout_s=20)
    assert result.stdout == b"enough: True\nfound: []\n", result.text


def test_the_shells_own_descriptors_can_be_closed_read_and_written_without_harm(cell):
    prisoner = cell.create()
    forge = (
        "for fd in /proc/$$/fd/*; do printf '0\\0\\0' > $fd; printf 'garbage\\0x\\0\\0\\0\\0' >> $fd; "
        "timeout 0.01 head -c 10 < $fd; done 2>/dev/null; exit_with() { return 7; }; exit_with"
    )
    for attack in (
        forge,
        'for i in {3..255}; do eval "exec $i>&- $i<&-"; done; true',
        "exec 0<&- 1>&- 2>&-",
        forge,
    ):
        try:
            prisoner.run(attack, timeout_s=3)
            assert prisoner.run("printf alive", timeout_s=5).exit_code is not None
            result = prisoner.run(["echo", "argv"])
            assert result.stdout == b"argv\n", "a program of its own is out of the shell's reach"
        except SandboxDied:
            pytest.fail(f"the sandbox died of {attack!r}")


HOSTILE_SHELLS = {
    "functions named like builtins": "for f in builtin read printf eval exec cd declare shopt trap umask set kill; do "
    'eval "$f() { :; }"; done',
    "readonly variables": "readonly __envgym_c=x __envgym_s=0 __envgym_i=1 __envgym_f=2 PWD IFS",
    "a trap that never ends": "trap 'while :; do :; done' DEBUG",
    "a trap that ends at the state": "trap '[[ $BASH_COMMAND == *shopt* ]] && sleep 1000' DEBUG",
    "traps of all kinds": "trap 'echo trapped; false' DEBUG ERR RETURN EXIT; set -eEuT",
    "no execution": "set -n",
    "errors end it": "set -e; false",
    "its own end": "exit 3",
    "its own death": "kill -9 $$",
    "its own stop": "kill -STOP $$",
    "another program": "exec sleep 1000",
    "another program that ends": "exec true",
    "prompts and startup files": "export PROMPT_COMMAND='echo p' BASH_ENV=/work/given ENV=/work/given PS1='$(sleep 9)' PS4='$(sleep 9)'; set -x",
    "a closed directory": "mkdir gone; cd gone; rmdir ../gone",
    "another IFS and globbing": "IFS=0123456789; shopt -s failglob nullglob extdebug; set -f",
    "posix mode and no hashing": "set -o posix; set +h; hash -p /bin/false ls; alias echo=false; enable -n echo printf",
    "limits of its own": "ulimit -f 0; ulimit -n 10; ulimit -u 1",
    "a name with a newline": "declare -x $'a\\nb'=c 2>/dev/null; x=$'\\n\\0\\xff'; f() { echo \"$(cat)\"; }; declare -A m=([$'a\\n']=b)",
}


@pytest.mark.parametrize("attack", HOSTILE_SHELLS)
def test_a_hostile_shell_harms_only_itself(cell, attack):
    """Its commands may fail; the sandbox answers, snapshots and forks, and programs of their own run as before."""
    with cell.create() as prisoner:
        began = time.monotonic()
        prisoner.run(HOSTILE_SHELLS[attack], timeout_s=0.5)
        prisoner.run("echo one", timeout_s=0.5)
        assert prisoner.run(["echo", "argv"]).stdout == b"argv\n"
        with prisoner.fork() as fork:
            fork.run("echo two", timeout_s=0.5)
            assert fork.run(["echo", "argv"]).stdout == b"argv\n"
        prisoner.run("echo three", timeout_s=0.5)
        prisoner.owner.ask(0, "release", prisoner.call("snapshot"))
        assert prisoner.run(["cat", "given"]).stdout == b"given\n"
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_shell_state_of_a_hundred_megabytes_stays_in_its_sandbox(cell):
    cell.may_end()
    prisoner = cell.create()
    before = cell.owner.memory_bytes()
    prisoner.run("x=$(head -c 20000000 /dev/zero | tr '\\0' x); x=$x$x$x$x$x", timeout_s=20)
    try:
        for _ in range(3):
            prisoner.call("snapshot")
    except (SandboxDied, OSError):
        pass
    assert cell.owner.memory_bytes() - before < 150 << 20


POISON = """
import site, sysconfig
places = {"/work", "/tmp", os.path.expanduser("~"), site.getusersitepackages(), "/", "/dev/shm"}
for place in places:
    try:
        os.makedirs(place, exist_ok=True)
    except OSError:
        continue
    for name in ("sitecustomize", "usercustomize", "json", "hashlib", "shutil", "stat", "encodings", "envgym_sandboxes", "envgym",
                 "atexit", "runpy", "linecache", "traceback", "socket", "struct", "contents", "walk"):
        try:
            with open(f"{place}/{name}.py", "w") as file:
                file.write("open('/tmp/poisoned', 'a').write(__name__ + str(__import__('os').getpid()) + '\\\\n')\\n")
        except OSError:
            pass
    for name in (".bashrc", ".profile", ".bash_profile", ".pythonrc.py", "pyvenv.cfg", "x.pth"):
        try:
            open(f"{place}/{name}", "w").write("echo poisoned; touch /tmp/poisoned-shell\\n")
        except OSError:
            pass
"""
LIBRARY = (
    "for v in LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT; do export $v=/work/evil.so; done; export PYTHONPATH=/work:/tmp PYTHONHOME=/work "
    "PYTHONSTARTUP=/work/json.py PYTHONINSPECT=1 BASH_ENV=/work/.bashrc PATH=/work:$PATH; printf '#!/bin/sh\\ntouch /tmp/poisoned-path\\n' > bash; "
    "cp bash python3; cp bash sh; chmod +x bash python3 sh"
)


def test_what_an_agent_leaves_where_programs_are_looked_for_is_imported_by_nobody_else(cell):
    """Neither by the warm interpreter, nor by the sandbox's first process, nor by what reads its layers."""
    with cell.create() as prisoner:
        assert prisoner.python(POISON).ok
        prisoner.run(LIBRARY)
        assert prisoner.run(["@python", "-c", "print(1)"], cwd="/dev").stdout == b"1\n"
        if not cell.warm:  # then it is a program like any other, and imports what its user wants
            assert prisoner.run(["rm", "-f", "/tmp/poisoned"]).ok
        prisoner.call("digest")
        prisoner.call("diff")
        with prisoner.fork() as fork:
            assert fork.run(["true"]).ok
            fork.call("get", "/work/given", str(cell.scratch / "given"))
            assert fork.run(["no such program"]).exit_code == 127
            with pytest.raises(FileNotFoundError):
                fork.call("read", "nothing")
            assert (
                fork.run(["/bin/cat", "/tmp/poisoned", "/tmp/poisoned-shell", "/tmp/poisoned-path"]).stdout == b""
            )


STOPPED = """
import signal
for pid in {*map(int, processes()), os.getppid()} - {1, os.getpid()}:
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError:
        pass
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.slow
def test_stopped_processes_are_ended_by_deadlines_and_by_close(cell):
    with cell.create() as prisoner:
        prisoner.run("sleep 100 & echo started")
        assert prisoner.python(STOPPED, timeout_s=1).timed_out
        assert prisoner.run("echo alive", timeout_s=3).exit_code in (0, None)
        assert prisoner.run("echo alive", timeout_s=3).stdout == b"alive\n"
