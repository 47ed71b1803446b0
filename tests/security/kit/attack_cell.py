"""Attacks as tests write them: a sandbox of a backend that lives in another process, and programs to run in it."""

import contextlib
import itertools
import os
import pickle
import struct
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import envgym_sandboxes
from attack_host import Host, Watch, processes_with
from envgym_sandboxes.removal import remove_tree

import envgym
from envgym.errors import EnvgymError, SandboxDied
from envgym.limits import Resources
from envgym.sandbox import ExecResult
from envgym.task import World

__all__ = ["PRELUDE", "Cell", "OwnerProcess", "Prisoner"]

_HEAD = struct.Struct("!I")
_PATIENCE_S = 40.0
RESOURCES = Resources(output_bytes=1 << 16, command_s=15.0, pids=64, memory_bytes=256 << 20, disk_bytes=64 << 20)
ENGINE_GROUPS = ("cpu", "memory", "pids")
PRELUDE = '''
import ctypes, errno, os, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    """A system call by number. Raises OSError."""
    words = [one if isinstance(one, (bytes, ctypes.Array, ctypes.Structure)) or one is None else ctypes.c_long(one)
             for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def processes():
    """The numbers of those that can be seen, as text."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return [str(number) for number in (1, os.getpid(), os.getppid())]
def tried(name, attempt, *arguments):
    """Say what came of it."""
    try:
        value = attempt(*arguments)
    except OSError as error:
        print(f"{name}: {errno.errorcode.get(error.errno, error.errno)}", flush=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__}", flush=True)
    else:
        print(f"{name}: OK", flush=True)
        return value
'''


def _bytes_in(value: object) -> Iterator[bytes]:
    """Every byte and text in what an owner answered."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode("utf-8", "surrogateescape")
    elif isinstance(value, BaseException):
        yield repr(value).encode("utf-8", "surrogateescape")
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _bytes_in(pair)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _bytes_in(one)
    elif isinstance(value, ExecResult):
        yield from (value.stdout, value.stderr)


class OwnerProcess:
    """A backend in a process of its own, with secrets in environment and memory, and a sandbox to be attacked.

    groups: what is bounded by control groups there, which the engine makes of containers.
    """

    def __init__(self, host: Host, python: list[str], made_by: str, state: Path, image: str) -> None:
        self.host = host
        self.state = state
        self.image = image
        self.sockets = not state.name.startswith("landlock")
        self._command = [*python, "-P", str(Path(__file__).with_name("attack_owner.py")), made_by, str(state)]
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Any]] = {}
        self.seen: list[bytes] = []
        self._errors = (host.top / f"{state.name}.log").open("w+b")

    def __enter__(self) -> Self:
        modules = (envgym, envgym_sandboxes)
        roots = [*(str(Path(m.__file__ or "").parents[1]) for m in modules), sysconfig.get_path("purelib")]
        env = {"PYTHONPATH": ":".join(roots), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        env |= {"HOME": str(self.host.top / "home"), "OWNER_SECRET": self.host.secret("owner environment")}
        env |= {name: value for name, value in os.environ.items() if name == "DOCKER_HOST"}
        env["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        env |= {"AWS_SECRET_ACCESS_KEY": self.host.secret("owner environment")}
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd="/"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.host.add_file(self.state / "canary", "file in the state directory")
        self.groups = frozenset(self.ask(-1, "groups") if self.image == "host" else ENGINE_GROUPS)
        self._plant_victim()
        return self

    def _plant_victim(self) -> None:
        """Another sandbox with secrets of its own in files, layers, environment, shell, memory, sockets."""
        secret = self.host.secret("other sandbox")
        world = World(
            image=self.image,
            files={"/work/secret": secret},
            env={"SECRET": secret},
            resources=RESOURCES,
            setup=("echo x > setup",),
        )
        victim = Prisoner(self, self.ask(0, "create", world))
        victim.run(f"token={secret}; echo $token > /tmp/secret; cp /tmp/secret /dev/shm/secret")
        victim.call("snapshot")
        listening = (
            f"import socket, time; secret = '{secret}'.encode(); a = socket.socket(socket.AF_UNIX); "
            f"a.bind('\\0victim'); a.listen(); t = socket.create_server(('127.0.0.1', 4242)); "
            "open('ready', 'w').close()\nwhile True: c, _ = t.accept(); c.sendall(secret); c.close()"
        )
        waiting = f"import time; secret = '{secret}'; open('ready', 'w').close(); time.sleep(10**6)"
        victim.run(f'nohup python3 -c "{listening if self.sockets else waiting}" {secret} >/dev/null 2>&1 &')
        assert victim.run("until [ -e ready ]; do sleep 0.02; done").ok, "the other sandbox's process lives"
        self.victim = victim
        self.seen.clear()

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        while len(head := out.read(_HEAD.size)) == _HEAD.size:
            number, ok, value = pickle.loads(out.read(_HEAD.unpack(head)[0]))
            self.seen.extend(_bytes_in(value))
            future = self._open.pop(number)
            if ok:
                future.set_result(value)
            else:
                future.set_exception(value)
        for future in [*self._open.values()]:
            future.set_exception(AssertionError(f"the owner ended: {self.log()}"))

    def log(self) -> str:
        """What the owner said on standard error."""
        self._errors.seek(0)
        return self._errors.read()[-3000:].decode(errors="replace")

    def begin(self, thing: int, method: str, *args: Any, **options: Any) -> "Future[Any]":
        """Ask without waiting."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._open[number] = future
        data = pickle.dumps((number, thing, method, args, options))
        assert self._process.stdin is not None
        self._process.stdin.write(_HEAD.pack(len(data)) + data)
        self._process.stdin.flush()
        return future

    def ask(self, thing: int, method: str, *args: Any, **options: Any) -> Any:
        """Ask and wait; what the owner met is raised. A silent owner is one that hangs."""
        return self.begin(thing, method, *args, **options).result(_PATIENCE_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory_bytes(self) -> int:
        """What the owner's process holds of memory now."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def __exit__(self, *_: object) -> None:
        canary = self.state / "canary"
        self.host.files.remove(canary)
        canary.unlink()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_S)
        self._reader.join()
        self._process.stdout.close()
        told = self.log()
        self._errors.close()
        assert self._process.returncode == 0, told
        assert not self.host.found_in(told.encode()), "the log holds a secret"


class Prisoner:
    """A sandbox of the owner's. Calls wait, except `begin`."""

    def __init__(self, owner: OwnerProcess, answer: tuple[str, int, str]) -> None:
        self.owner = owner
        _kind, self.number, self.id = answer
        self.closed = False

    def begin(self, method: str, *args: Any, **options: Any) -> "Future[Any]":
        return self.owner.begin(self.number, method, *args, **options)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        patience_s = _PATIENCE_S + options.get("timeout_s", 0)
        return self.begin(method, *args, **options).result(patience_s)

    def run(self, command: str | list[str], **options: Any) -> ExecResult:
        result: ExecResult = self.call("exec", command, **options)
        return result

    def python(self, program: str, *arguments: str, **options: Any) -> ExecResult:
        """Run a program of Python's, with `call` and `tried` defined."""
        return self.run(["python3", "-c", PRELUDE + program, *arguments], **options)

    def told(self, program: str, *arguments: str, **options: Any) -> dict[str, str]:
        """What a program said of each thing that it tried."""
        result = self.python(program, *arguments, **options)
        assert result.ok, result
        return dict(line.split(": ", 1) for line in result.stdout.decode().splitlines() if ": " in line)

    def fork(self) -> "Prisoner":
        return Prisoner(self.owner, self.call("fork"))

    def close(self) -> None:
        self.closed = True
        self.call("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


class Cell:
    """One attack: its sandboxes, the host as it was before, and what must hold after.

    scratch: a directory of the owner's, for what is copied to and from the host. stacks: whether layers are
    stacked, so that an overlay stands between an agent and what is kept. warm: whether there is a warm interpreter.
    sockets: whether programs can make any, in a network of their own.
    """

    def __init__(self, owner: OwnerProcess, host: Host) -> None:
        self.owner = owner
        self.host = host
        self.scratch = host.top / "scratch"
        self.world = World(
            image=owner.image,
            resources=RESOURCES,
            env={"ATTACK": host.marker},
            files={"/work/given": "given\n"},
        )
        self.stacks = not owner.state.name.startswith(("landlock", "docker-copy"))
        self.warm = owner.image == "host"
        self.sockets = owner.sockets
        self._made: list[Prisoner] = []
        self._ends = False

    def __enter__(self) -> Self:
        self.owner.seen.clear()
        self.scratch.mkdir()
        owner = Path(f"/proc/{self.owner.pid}").stat().st_uid
        os.chown(self.scratch, owner, owner)
        self._watch = Watch(self.host)
        return self

    def create(self, **update: Any) -> Prisoner:
        """A sandbox; `update` changes fields of its world."""
        prisoner = Prisoner(self.owner, self.owner.ask(0, "create", self.world.model_copy(update=update)))
        self._made.append(prisoner)
        return prisoner

    def bounded(self, **resources: Any) -> Prisoner:
        """A sandbox with other resources."""
        return self.create(resources=RESOURCES.model_copy(update=resources))

    def told(self, program: str, *arguments: str, **options: Any) -> dict[str, str]:
        """Run a program in a sandbox of its own, which must still answer afterwards; see `Prisoner.told`."""
        prisoner = self.create()
        said = prisoner.told(program, *arguments, **options)
        assert prisoner.run("echo alive").stdout == b"alive\n"
        return said

    def may_end(self) -> None:
        """The attack may end its own sandbox."""
        self._ends = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        try:
            for prisoner in [one for one in self._made if not one.closed]:
                if kind is None:
                    self._check_alive(prisoner)
                with contextlib.suppress(EnvgymError) if kind else contextlib.nullcontext():
                    prisoner.close()
            if kind is None:
                self._check()
        finally:
            remove_tree(self.scratch)

    def _check(self) -> None:
        """What must hold after an attack."""
        with self.create() as fresh:
            assert fresh.run(["echo", "fresh"]).stdout == b"fresh\n", "another sandbox can be made and works"
        assert self.owner.victim.run("test -n $token").ok, "other sandboxes live"
        left = self._left()
        assert not left, f"processes were left: {left}"
        seen = b"\n".join(self.owner.seen)
        assert not self.host.found_in(seen), f"the attack was told {self.host.found_in(seen)}"
        for path in self.scratch.rglob("*"):
            if not path.is_symlink() and path.is_file() and path.stat().st_blocks < 1 << 20:
                assert not self.host.found_in(path.read_bytes()), f"{path} holds a secret of the host"
        changes = self._watch.changes()
        assert not changes, f"the host changed: {changes}"

    def _check_alive(self, prisoner: Prisoner) -> None:
        try:
            assert prisoner.run(["echo", "alive"]).stdout == b"alive\n"
        except SandboxDied:
            assert self._ends, "the sandbox died of the attack"

    def _left(self) -> list[str]:
        """Processes of the attack that outlive its sandboxes, given a moment to end."""
        end = time.monotonic() + 3
        while (left := list(processes_with(self.host.marker))) and time.monotonic() < end:
            time.sleep(0.02)  # polling a state of the kernel, bounded
        return left
