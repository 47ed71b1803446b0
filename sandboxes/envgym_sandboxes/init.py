"""The first process inside a sandbox: answers the host's requests and reaps what is orphaned.

One poll loop, no threads. As pid 1 it cannot be signalled from inside; everything it does to files it does as the
sandbox's own user, so a symlink leads nowhere that a command could not go. It decides nothing about isolation.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from envgym_sandboxes import protocol, syscalls
from envgym_sandboxes.command import Capture, Command, drain, kill_all, live_processes, signal_all
from envgym_sandboxes.files import Files
from envgym_sandboxes.shell import Running, Shell, ShellState, first_state

__all__ = ["serve", "stay"]


def stay(spec: dict[str, Any]) -> None:
    """What the local backend does instead of `root.confine`: rlimits, and adopt orphans."""
    syscalls.die_with_parent()
    os.setsid()
    os.umask(0o022)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    limits = spec["limits"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.get("data"):
        resource.setrlimit(resource.RLIMIT_DATA, (limits["data"],) * 2)
    if limits.get("file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file"],) * 2)


class Init:
    """The loop and its requests. A request's name is a method `do_...`."""

    def __init__(self, sock: socket.socket, spec: dict[str, Any]) -> None:
        self.me = os.getpid()
        self.sock = sock
        self.workdir: str = spec["workdir"]
        self.env: dict[str, str] = spec["env"]
        self.python: list[str] | None = spec["python"]
        self.shell = Shell(first_state(self.workdir, self.env), self.workdir)
        self.commands: dict[int, Command] = {}
        self.decoder = protocol.Decoder()
        self.poller = select.poll()
        self.watch: dict[int, Callable[[], None]] = {}
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.waiting: list[tuple[protocol.Head, bytes]] = []
        self.waiting_freeze: int | None = None
        self.files = Files(self.workdir, spec.get("alias"), self.say)

    # -- the loop ----------------------------------------------------------------------------------------------

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back when `fd` is readable."""
        self.watch[fd] = callback
        self.poller.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`."""
        if self.watch.pop(fd, None):
            self.poller.unregister(fd)

    def loop(self) -> None:
        """Serve until the host lets go of the socket."""
        signal.set_wakeup_fd(self.wake_w)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.add(self.sock.fileno(), self.on_request)
        self.add(self.wake_r, self.on_child)
        while True:
            for fd, _event in self.poller.poll(self.next_deadline()):
                callback = self.watch.get(fd)
                if callback:
                    callback()
            self.expire()

    def next_deadline(self) -> float | None:
        """Milliseconds until the first deadline."""
        deadlines = [command.deadline for command in self.commands.values() if not command.timed_out]
        if self.shell.running and not self.shell.running.timed_out:
            deadlines.append(self.shell.running.deadline)
        return max(0.0, (min(deadlines) - time.monotonic()) * 1000 + 1) if deadlines else None

    def say(self, head: protocol.Head, body: bytes = b"") -> None:
        """Answer the host."""
        self.sock.sendall(protocol.encode(head, body))

    def on_request(self) -> None:
        """Read and carry out requests. The host's end of file is this process's end."""
        data = self.sock.recv(1 << 20)
        if not data:
            if self.me != 1:  # in a pid namespace the kernel ends the others
                kill_all(lambda: set(live_processes(self.me)))
            os._exit(0)
        for head, body in self.decoder.feed(data):
            try:
                owner = self.files if hasattr(self.files, "do_" + head["op"]) else self
                getattr(owner, "do_" + head["op"])(head, body)
            except OSError as error:
                self.say({"id": head["id"], "errno": error.errno or 5, "error": error.strerror or str(error)})
            except (ValueError, TypeError) as error:
                self.say({"id": head["id"], "errno": 22, "error": str(error)})
            except MemoryError:  # where a limit of each process stands in for a group's
                self.say({"id": head["id"], "errno": 12, "error": "the sandbox has not enough memory for this"})

    def on_child(self) -> None:
        """Reap: a command, the shell, or an orphan."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_r, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            for command in list(self.commands.values()):
                if command.pid == pid:
                    self.finish_command(command, code, usage)
            if pid == self.shell.pid:
                self.finish_shell_process(code)

    # -- commands ----------------------------------------------------------------------------------------------

    def do_cancel(self, head: protocol.Head, _body: bytes) -> None:
        """The host no longer waits for a command: its deadline is now, before any other request is read."""
        command = self.commands.get(head["target"])
        if command:
            command.deadline = 0.0
        if self.shell.running and self.shell.running.number == head["target"]:
            self.shell.running.deadline = 0.0
        self.waiting = [(waiting, body) for waiting, body in self.waiting if waiting["id"] != head["target"]]
        self.expire()

    def present(self) -> frozenset[int]:
        """The processes there are before a command."""
        return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())

    def do_exec(self, head: protocol.Head, body: bytes) -> None:
        """Run an argv, or a module in this very interpreter."""
        command = Command(head["id"], head["limit"], time.monotonic() + head["timeout_s"])
        command.before = self.present()
        argv, warm = list(head["argv"]), False
        if head["warm"]:
            argv, warm = argv[1:], self.python is None
            argv = argv if self.python is None else [*self.python, *argv]
        cwd = self.files.path(head["cwd"] or "")
        try:
            if not os.path.isdir(cwd):
                raise NotADirectoryError(20, "Not a directory", cwd)
            command.start(argv, cwd, self.env | head["env"], body, warm=warm)
        except OSError as error:
            self.say_never_ran(command, error, argv)
            return
        self.commands[command.number] = command
        for fd, capture in zip(command.pipes, command.captures, strict=True):
            self.add(fd, lambda fd=fd, capture=capture: self.on_output(fd, capture))  # type: ignore[misc]

    def say_never_ran(self, command: Command, error: OSError, argv: list[str]) -> None:
        """What a shell says: 127 for no such program, 126 for one that cannot be run."""
        missing = isinstance(error, FileNotFoundError)
        command.captures[1].add(f"{argv[0]}: {error.strerror}: {error.filename}\n".encode())
        self.say_result(command, 127 if missing else 126, None)

    def on_output(self, fd: int, capture: Capture | None) -> None:
        """Take a command's output, or throw away what its background processes still write."""
        if not drain(fd, capture):
            self.remove(fd)
            os.close(fd)

    def finish_command(self, command: Command, code: int, usage: resource.struct_rusage) -> None:
        """Its first process has ended: that is its end. Background processes keep their pipes, unread."""
        for fd, capture in zip(command.pipes, command.captures, strict=True):
            if fd in self.watch:
                self.on_output(fd, capture)
            if fd in self.watch:
                self.add(fd, lambda fd=fd: self.on_output(fd, None))  # type: ignore[misc]
        del self.commands[command.number]
        if command.timed_out:
            self.kill_since(command.before)
        self.say_result(command, code, usage)
        self.go_on()

    def say_result(self, command: Command | Running, code: int, usage: resource.struct_rusage | None) -> None:
        """Answer with what a command did."""
        outputs = [capture.value() for capture in command.captures]
        outputs = [self.files.under_alias(output) for output in outputs]
        head: protocol.Head = {"id": command.number, "code": None if command.timed_out else code}
        head |= {"out": len(outputs[0]), "lost": [capture.lost for capture in command.captures]}
        head |= {"timed_out": command.timed_out, "wall_s": time.monotonic() - command.started}
        if usage is not None:
            head |= {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}
        self.say(head, b"".join(outputs))

    # -- the shell ---------------------------------------------------------------------------------------------

    def do_shell(self, head: protocol.Head, body: bytes) -> None:
        """Run a string in the persistent shell. The body is the command, then its input."""
        if self.shell.running:  # one that is being killed
            self.waiting.append((head, body))
            return
        captures = Capture(head["limit"]), Capture(head["limit"])
        running = Running(head["id"], time.monotonic() + head["timeout_s"], captures, frozenset())
        for _ in range(2):
            if not self.shell.pid:
                self.start_shell()
            running.before = self.present()
            try:
                self.shell.run(running, body[: head["size"]], body[head["size"] :])
            except BrokenPipeError:  # it was killed between commands
                self.shell.running = None
                self.forget_shell()
            else:
                return
        raise OSError(32, "bash ends as soon as it is started")

    def start_shell(self) -> None:
        """Start bash and watch its pipes."""
        try:
            self.shell.start()
        except FileNotFoundError:
            raise OSError(
                2, "there is no /bin/bash in this world: string commands need it, argv commands do not"
            ) from None
        self.add(self.shell.fds["status"], self.on_status)
        self.add(self.shell.fds["out"], lambda: self.on_shell_output("out", 0))
        self.add(self.shell.fds["err"], lambda: self.on_shell_output("err", 1))

    def forget_shell(self) -> None:
        """Let go of a bash that has ended or is about to."""
        for fd in self.shell.fds.values():
            self.remove(fd)
        self.shell.stop()

    def on_shell_output(self, name: str, index: int) -> None:
        """Output of the running command; between commands it is dropped."""
        running = self.shell.running
        if not drain(self.shell.fds[name], running.captures[index] if running else None):
            self.remove(self.shell.fds[name])

    def on_status(self) -> None:
        """The shell finished a command, or wrote down its state."""
        code = self.shell.read_status()
        if code is not None and self.shell.running and not self.shell.running.timed_out:
            self.shell.collect()
            running, self.shell.running = self.shell.running, None
            self.say_result(running, code, None)
        self.go_on()

    def finish_shell_process(self, code: int) -> None:
        """Bash itself ended (`exit`, `exec`, a signal): that is the command's end too."""
        if self.shell.fds["status"] in self.watch:
            self.on_status()
        running = self.shell.running
        if running:
            self.shell.collect()
            if running.timed_out:
                self.kill_since(running.before)
        self.shell.pid = 0
        self.forget_shell()
        if running:
            self.say_result(running, code, None)
        self.go_on()

    # -- deadlines ---------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Kill what outlived its deadline, with everything it started."""
        now = time.monotonic()
        for command in list(self.commands.values()):
            if now >= command.deadline and not command.timed_out:
                command.timed_out = True
                self.kill_since(command.before)
        running = self.shell.running
        if running and now >= running.deadline and not running.timed_out:
            running.timed_out = True
            signal_all([self.shell.pid], signal.SIGKILL)  # first: it would go on with the rest of the command
            self.kill_since(running.before)

    def kill_since(self, before: frozenset[int]) -> None:
        """Kill every process that began after `before` and belongs to no other command.

        Double forks and new sessions are no escape: all of a sandbox's processes are descendants of this one.
        """
        kill_all(lambda: self.belonging(live_processes(self.me), before))
        self.on_child()  # a zombie still answers `kill -0`

    def belonging(self, living: dict[int, int], before: frozenset[int]) -> set[int]:
        """Of the living: those not there before, and not below another running command or the shell."""
        expired = [self.shell.running] if self.shell.running else []
        keep = {command.pid for command in self.commands.values() if not command.timed_out}
        if not expired or not expired[0].timed_out:
            keep.add(self.shell.pid)
        found = set()
        for pid in living:
            chain, at = {pid}, pid
            while at in living and living[at] not in chain:
                at = living[at]
                chain.add(at)
            if pid not in before and not chain & keep:
                found.add(pid)
        return found

    # -- snapshots ---------------------------------------------------------------------------------------------

    def do_continue(self, head: protocol.Head, body: bytes) -> None:
        """The state that the shell, not yet started, goes on from. Not answered."""
        self.shell = Shell(ShellState(head["cwd"], body.decode("utf-8", "surrogateescape")), self.workdir)

    def do_freeze(self, head: protocol.Head, _body: bytes) -> None:
        """Say the shell's state and whether anything else is alive. Answered once the shell has written it."""
        self.waiting_freeze = head["id"]
        self.go_on()

    def go_on(self) -> None:
        """Do what waited for the end of a command."""
        if self.waiting and not self.shell.running:
            self.do_shell(*self.waiting.pop(0))
        if self.waiting_freeze is not None and self.shell.settled and not self.commands:
            self.say_frozen(self.waiting_freeze)

    def say_frozen(self, number: int) -> None:
        """Answer `freeze`."""
        self.waiting_freeze = None
        alive = set(live_processes(self.me)) - {self.shell.pid}
        state = self.shell.state
        head = {"id": number, "cwd": state.cwd, "background": len(alive)}
        self.say(head, state.script.encode("utf-8", "surrogateescape"))

    def do_pause(self, head: protocol.Head, _body: bytes) -> None:
        """Stop every other process, so that files stand still."""
        for _ in range(3):
            signal_all(live_processes(self.me), signal.SIGSTOP)
        self.say({"id": head["id"]})

    def do_resume(self, head: protocol.Head, _body: bytes) -> None:
        """Let them go on."""
        signal_all(live_processes(self.me), signal.SIGCONT)
        self.say({"id": head["id"]})


def serve(sock: socket.socket, spec: dict[str, Any]) -> None:
    """Run the loop for this sandbox."""
    init = Init(sock, spec)
    os.chdir("/")
    init.say({"ready": True})
    init.loop()
