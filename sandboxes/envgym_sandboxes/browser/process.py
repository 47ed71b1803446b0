"""One Chromium in namespaces of its own: no network but its loopback, no files but programs and fonts, one group.

Its end is that of its owner: the launcher inside ends when its control socket does, which the kernel closes with
the owner, and bubblewrap's process namespace takes everything along.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from envgym.backend_report import BackendReport
from envgym.errors import InfrastructureFailure, SandboxDied, SandboxUnavailable

__all__ = ["DOWNLOADS", "Process", "chromium_report", "start_chromium"]

DOWNLOADS = "/tmp/downloads"
"""Where Chromium keeps what it downloads: in memory, inside its namespaces."""

_LAUNCHER = Path(__file__).with_name("launcher.py")
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_FLAGS = """
--headless --remote-debugging-pipe --user-data-dir=/tmp/profile --lang=en-US --no-first-run
--no-default-browser-check
--disable-gpu --disable-quic --disable-background-networking --disable-component-update --disable-sync
--disable-default-apps --disable-extensions --disable-breakpad --disable-crash-reporter --disable-dev-shm-usage
--no-pings --mute-audio --hide-scrollbars --disable-smooth-scrolling --force-color-profile=srgb
--disable-background-timer-throttling --disable-backgrounding-occluded-windows --disable-renderer-backgrounding
--disable-hang-monitor --disable-ipc-flooding-protection --disable-popup-blocking --disable-prompt-on-repost
--disable-domain-reliability --disable-client-side-phishing-detection --disable-site-isolation-trials
--password-store=basic --use-mock-keychain --force-webrtc-ip-handling-policy=disable_non_proxied_udp
--disable-gpu-vsync --disable-frame-rate-limit
--blink-settings=middleClickPasteAllowed=false
--proxy-server=http://127.0.0.1:9 --proxy-bypass-list=<-loopback> about:blank
"""
"""Without a limit of frames the first frame after rest comes at once. What belongs to no context has a proxy that
is not there: nothing listens on port 9 of that loopback. A middle click would paste what any context has selected
last."""
_FEATURES = """
Translate MediaRouter HttpsUpgrades PaintHolding BackForwardCache AutofillServerCommunication
DeferRendererTasksAfterInput
"""
"""What it does without. The last puts off a page's timers until the frame after a click, and quiet with it."""


def _program(given: str) -> str | None:
    if given:
        return shutil.which(given)
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def chromium_report(program: str = "") -> BackendReport:
    """Whether Chromium can be started here, and what is missing."""
    missing, fix = [], []
    if _program(program) is None:
        missing.append(f"browser: no {program or 'chromium'} on PATH")
        fix.append("apt-get install --no-install-recommends chromium fonts-dejavu-core")
    if shutil.which("bwrap") is None:
        missing.append("walls: no bwrap on PATH")
        fix.append("apt-get install bubblewrap")
    isolates = (
        "network: none but each context's own proxy to its episode's sites",
        "files: programs, libraries and fonts of the host, read-only; its own in memory",
        "processes: a process namespace that ends with its owner",
    )
    return BackendReport(
        backend="chromium", works=not missing, isolates=isolates, missing=tuple(missing), fix=tuple(fix)
    )


@dataclass(slots=True, weakref_slot=True)
class Process:
    """A started Chromium. commands, answers: the descriptors of its debugging pipe."""

    pid: int
    commands: int
    answers: int
    control: socket.socket
    errors: BinaryIO
    _end: "weakref.finalize[[int, int, int, socket.socket, BinaryIO], Process] | None" = None
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> tuple[socket.socket, int]:
        """A socket that listens on the loopback that only Chromium sees, and its port there."""
        try:
            with self._asking:
                self.control.send(json.dumps({"do": "listen"}).encode())
                said, fds, _, _ = socket.recv_fds(self.control, 1 << 10, 1)
        except OSError as error:
            raise SandboxDied(f"the browser's launcher is gone: {error}") from error
        if not fds:
            raise SandboxDied("the browser's launcher is gone")
        made = socket.socket(fileno=fds[0])
        made.setblocking(False)
        return made, int(json.loads(said)["port"])

    def take(self, name: str, most: int) -> bytes | None:
        """A download's content, which is gone afterwards; None for what is larger than `most` bytes."""
        try:
            with self._asking:
                self.control.send(json.dumps({"do": "read", "path": f"{DOWNLOADS}/{name}", "most": most}).encode())
                size = int(json.loads(self.control.recv(1 << 10))["size"])
                found = bytearray()
                while len(found) < size:
                    found += self.control.recv(1 << 16)
        except (OSError, ValueError) as error:
            raise SandboxDied(f"the browser's launcher is gone: {error}") from error
        return None if size < 0 else bytes(found)

    def last_words(self) -> str:
        """What Chromium wrote on its standard error, the end of it."""
        if self.errors.closed:
            return ""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 2_400, max(0, size - 2_400)).decode(errors="replace")[-600:]

    def end(self) -> None:
        """End every process of it; idempotent."""
        if self._end is not None:
            self._end()


def _end(pid: int, commands: int, answers: int, control: socket.socket, errors: BinaryIO) -> None:
    control.close()
    for fd in (commands, answers):
        os.close(fd)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # bwrap outside; what is inside dies with it
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    errors.close()


def _walls(bwrap: str, program: str) -> list[str]:
    """Bubblewrap's part of the command. program: the real path of Chromium, whose folder is seen with it."""
    argv = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--uid", "1000", "--gid", "1000", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    argv += ["--dir", DOWNLOADS, "--dir", "/tmp/home", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in ("/etc/fonts", "/etc/ssl", "/etc/alternatives", "/etc/chromium.d", "/etc/chromium", "/opt/google"):
        argv += ["--ro-bind-try", path, path]
    base = os.path.realpath(sys.base_prefix)
    if not base.startswith("/usr/") and base != "/usr":
        argv += ["--ro-bind", base, base]
    folder = os.path.dirname(program)
    if not folder.startswith(("/usr/", "/opt/google/")):
        argv += ["--ro-bind", folder, folder]
    argv += ["--ro-bind", str(_LAUNCHER), "/tmp/launcher.py"]
    for name, value in {"HOME": "/tmp/home", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}.items():
        argv += ["--setenv", name, value]
    return argv


def _moves(control: int, commands: int, answers: int, errors: int) -> list[Any]:
    """Where a child finds its descriptors: 10 to 12, by way of places above them all: none is overwritten."""
    top = max(control, commands, answers, errors, 12) + 1
    pairs = [(control, top, 10), (commands, top + 1, 11), (answers, top + 2, 12)]
    return [
        (os.POSIX_SPAWN_DUP2, errors, 2),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        *((os.POSIX_SPAWN_DUP2, here, above) for here, above, _ in pairs),
        *((os.POSIX_SPAWN_DUP2, above, there) for _, above, there in pairs),
        *((os.POSIX_SPAWN_CLOSE, above) for _, above, _ in pairs),
    ]


def start_chromium(program: str = "", flags: Sequence[str] = ()) -> Process:
    """Start it. Raises SandboxUnavailable with what is missing, InfrastructureFailure where it does not start."""
    report = chromium_report(program)
    bwrap, chromium = shutil.which("bwrap"), _program(program)
    if not report.works or bwrap is None or chromium is None:
        raise SandboxUnavailable(f"no browser here: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")
    python, chromium = os.path.realpath(sys.executable), os.path.realpath(chromium)
    without = f"--disable-features={','.join(_FEATURES.split())}"
    launched = [python, "-I", "-S", "/tmp/launcher.py", chromium, without, *flags, *_FLAGS.split()]
    argv = [*_walls(bwrap, chromium), "--", *launched]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs_read, ours_write = os.pipe()
    ours_read, theirs_write = os.pipe()
    errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # nameless: whatever ends us, it is gone too
    try:
        moves = _moves(theirs.fileno(), theirs_read, theirs_write, errors.fileno())
        pid = os.posix_spawn(bwrap, argv, {}, file_actions=moves)
    except OSError as error:
        for fd in (ours_write, ours_read):
            os.close(fd)
        ours.close()
        errors.close()
        raise InfrastructureFailure(f"bwrap cannot be started: {error}") from error
    finally:
        theirs.close()
        for fd in (theirs_read, theirs_write):
            os.close(fd)
    ours.settimeout(20.0)
    os.set_blocking(ours_write, False)
    os.set_blocking(ours_read, False)
    process = Process(pid, ours_write, ours_read, ours, errors)
    process._end = weakref.finalize(process, _end, pid, ours_write, ours_read, ours, errors)
    return process
