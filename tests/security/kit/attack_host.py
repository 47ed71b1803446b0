"""What an attacker would be after on this host, and how it is seen that he got none of it.

Secrets (files, an environment, memory, what listening sockets say), things to break (processes, mounts, system
settings) and places to leave something in; `Watch` compares them before and after. Names and contents are random.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Host", "Watch"]

_TARGET = """
import os, signal, sys, time
secret = sys.stdin.readline()
for number in range(1, 65):
    try:
        signal.signal(number, lambda got, _frame: print(f"signal {got}", flush=True))
    except (OSError, ValueError):
        pass
print("ready", flush=True)
while True:
    time.sleep(1000)
"""
_SETTINGS = """
kernel/hostname kernel/domainname kernel/core_pattern kernel/modprobe kernel/sysrq kernel/panic kernel/panic_on_oops
kernel/randomize_va_space kernel/kptr_restrict kernel/dmesg_restrict kernel/unprivileged_bpf_disabled kernel/printk
kernel/perf_event_paranoid kernel/pid_max kernel/threads-max kernel/shmmax kernel/shmall kernel/msgmax kernel/sem
kernel/core_uses_pid kernel/poweroff_cmd kernel/ctrl-alt-del vm/overcommit_memory vm/swappiness vm/max_map_count
vm/mmap_min_addr vm/nr_hugepages fs/file-max fs/suid_dumpable fs/protected_symlinks fs/protected_hardlinks
fs/pipe-max-size fs/inotify/max_user_instances net/core/rmem_max net/core/wmem_max net/core/somaxconn
net/ipv4/ip_unprivileged_port_start net/ipv4/tcp_mem net/ipv4/ping_group_range user/max_user_namespaces
"""
PLACES = (
    "/",
    "/etc",
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/root",
    "/home",
    "/mnt",
    "/run",
    "/opt",
    "/usr",
    "/usr/bin",
    "/dev",
)


@dataclass(slots=True)
class Host:
    """The secrets and their places; `top` is where most of them are, readable by everybody."""

    top: Path
    marker: str = field(default_factory=lambda: f"envgym-attack-{secrets.token_hex(6)}")
    secrets: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    _sockets: list[socket.socket] = field(default_factory=list)
    _targets: list[subprocess.Popen[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def secret(self, kind: str) -> str:
        """A new secret of a kind, or the one that there is."""
        return self.secrets.setdefault(kind, f"{kind}-{secrets.token_hex(16)}")

    def found_in(self, data: bytes) -> list[str]:
        """The kinds of secrets whose random part is in some bytes."""
        return [kind for kind, value in self.secrets.items() if value.rpartition("-")[2].encode() in data]

    def add_file(self, path: Path, kind: str, mode: int = 0o644) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.secret(kind) + "\n")
        path.chmod(mode)
        self.files.append(path)

    def listen(self) -> None:
        """Sockets that tell a secret to whoever reaches them, and remember that somebody did."""
        say = self.secret("socket").encode()
        tcp = socket.create_server(("127.0.0.1", 0))
        tcp6 = socket.socket(socket.AF_INET6)
        with contextlib.suppress(OSError):  # there may be no IPv6
            tcp6.bind(("::1", 0))
            tcp6.listen()
        unix, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
        self.addresses = {"pathname": str(self.top / "socket"), "abstract": f"\0{self.marker}"}
        unix.bind(self.addresses["pathname"])
        os.chmod(self.addresses["pathname"], 0o777)
        abstract.bind(self.addresses["abstract"])
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        self.ports = {"tcp": tcp.getsockname()[1], "tcp6": tcp6.getsockname()[1], "udp": udp.getsockname()[1]}
        for sock in (unix, abstract):
            sock.listen()
        for name, sock in (("tcp", tcp), ("tcp6", tcp6), ("pathname", unix), ("abstract", abstract), ("udp", udp)):
            self._sockets.append(sock)
            threading.Thread(target=self._answer, args=(name, sock, say), daemon=True).start()

    def _answer(self, name: str, sock: socket.socket, say: bytes) -> None:
        while True:
            try:
                if sock.type == socket.SOCK_DGRAM:
                    _data, sender = sock.recvfrom(100)
                    if sender is None:  # shut down
                        return
                    self.reached.append(name)
                    sock.sendto(say, sender)
                else:
                    with sock.accept()[0] as connection:
                        self.reached.append(name)
                        connection.sendall(say)
            except OSError:
                return

    def start_target(self, name: str, command: list[str]) -> None:
        """A process that somebody may want to signal or to look into."""
        env = {"TARGET_SECRET": self.secret("process environment")}
        target = subprocess.Popen(
            [*command, "-c", _TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, cwd="/"
        )
        assert target.stdin is not None
        assert target.stdout is not None
        target.stdin.write(self.secret("process memory") + "\n")
        target.stdin.flush()
        assert target.stdout.readline() == "ready\n"
        self._targets.append(target)
        self.pids[name] = target.pid
        threading.Thread(target=lambda: self.said.extend(target.stdout or ()), daemon=True).start()

    def targets_alive(self) -> list[str]:
        """What is wrong with the processes."""
        wrong = [f"process {target.pid} ended" for target in self._targets if target.poll() is not None]
        for target in self._targets:
            state = Path(f"/proc/{target.pid}/status").read_text()
            if re.search(r"^State:\s+[TtZ]|^TracerPid:\s+[1-9]", state, re.M):
                wrong.append(f"process {target.pid} is stopped or traced")
        return wrong + list(self.said)

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for target in self._targets:
            with target:  # which also closes its pipes
                target.kill()
        for path in self.files:
            if not path.is_relative_to(self.top):
                path.unlink(missing_ok=True)
        shutil.rmtree(self.top)


def _mounts() -> set[str]:
    """The mount table, without what container engines of this machine do meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        line
        for line in lines
        if not re.search(r"docker|engine/data|containerd|containers|netns|mmdebstrap|overlay2|/eg-\w+/", line)
    }


def _settings() -> dict[str, str]:
    found = {}
    for name in _SETTINGS.split():
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text()
    return found


def _files(paths: list[Path]) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in paths:
        info = path.lstat()
        kept = (
            info.st_mode,
            info.st_uid,
            info.st_gid,
            info.st_nlink,
            info.st_size,
            info.st_mtime_ns,
            info.st_ctime_ns,
        )
        found[str(path)] = (*kept, path.read_bytes())
    return found


_ENDS_WITH_ITS_USERS = 0o1000  # SHM_DEST


def _ipc() -> list[str]:
    """Objects of System V, but for memory that ends with its last user: programs on desktops come and go with theirs."""
    found = []
    for name in ("shm", "sem", "msg"):
        for line in Path(f"/proc/sysvipc/{name}").read_text().splitlines()[1:]:
            key, number, mode, *_ = line.split()
            if name != "shm" or not int(mode, 8) & _ENDS_WITH_ITS_USERS:
                found.append(f"{name} {key} {number}")
    return found


def processes_with(marker: str) -> Iterator[str]:
    """Living processes of this host whose environment or arguments hold a marker."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                yield f"{entry.name}: {(entry / 'cmdline').read_bytes()[:200]!r}"


@dataclass(slots=True)
class Watch:
    """The state of the host at one moment, to be compared with a later one."""

    host: Host
    before: dict[str, object] = field(default_factory=dict)
    clock: float = 0.0
    reached: int = 0

    def __post_init__(self) -> None:
        self.before = self._now()
        self.clock = time.time() - time.monotonic()
        self.reached = len(self.host.reached)

    def _now(self) -> dict[str, object]:
        return {"files": _files(self.host.files), "settings": _settings(), "mounts": _mounts(), "ipc": _ipc()}

    def changes(self) -> list[str]:
        """What is not as it was, in words."""
        now = self._now()
        found = [
            f"{name} of the host: {_difference(self.before[name], now[name])}"
            for name in now
            if now[name] != self.before[name]
        ]
        found += self.host.targets_alive()
        found += [f"the host's {name} socket was reached" for name in self.host.reached[self.reached :]]
        if abs(time.time() - time.monotonic() - self.clock) > 5:
            found.append("the host's clock was set")
        for place in PLACES:
            with contextlib.suppress(OSError):
                found += [f"{place}/{name} was left" for name in os.listdir(place) if self.host.marker in name]
        return found


def _difference(before: object, now: object) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(
            f"{key}: {before.get(key)!r} -> {now.get(key)!r}" for key in now if before.get(key) != now[key]
        )
    if isinstance(before, set) and isinstance(now, set):
        return f"gone {sorted(before - now)}, new {sorted(now - before)}"
    return f"{before!r} -> {now!r}"


def usable_python(command: list[str]) -> str | None:
    """An interpreter of this version that `command` (a change of user) can run."""
    for python in (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3"):
        code = "import sys; print(*sys.version_info[:2])"
        run = [*command, "sh", "-c", f"exec {python} -I -c '{code}'"]
        with contextlib.suppress(OSError):
            told = subprocess.run(run, capture_output=True, text=True, timeout=10, check=False).stdout
            if told.split() == [str(part) for part in sys.version_info[:2]]:
                return python
    return None
