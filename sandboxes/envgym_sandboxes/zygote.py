"""The process that owns a backend's mounts and forks its sandboxes: small, single-threaded, dies with its owner.

The first zygote enters one mount namespace (and, without root, a user namespace) in which every layer is a tmpfs
of its own: the host's mount table is never touched, and when the zygote ends the kernel removes all of it. Zygotes
for preloaded modules are forks of it. It trusts its owner, sees no byte that a sandbox wrote except through
`jobs`, which run in a forked child, and knows nothing of commands.
"""

import gc
import glob
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from envgym_sandboxes import init, jobs, protocol, root, syscalls
from envgym_sandboxes.command import kill_all, live_processes

__all__ = ["main"]

_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SPARES = 2  # a fork starts two: the child, and the parent above its frozen layer
_LEAST = 1 << 20  # a full sandbox can still be looked at


def _used(layer: str) -> int:
    info = os.statvfs(layer)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def _force(function: Callable[[str], object], path: str, _error: object) -> None:
    os.chmod(os.path.dirname(path), 0o700)
    if os.path.isdir(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path)
    else:
        function(path)


def _enter(settings: dict[str, Any]) -> None:
    """Take the privileges that everything below needs, and a private mount namespace."""
    flags = syscalls.CLONE_NEWNS
    uid, gid = os.getuid(), os.getgid()
    if not settings["privileged"]:
        flags |= syscalls.CLONE_NEWUSER
    syscalls.unshare(flags)
    if not settings["privileged"]:
        syscalls.write_id_maps(root.INSIDE_ID, uid, gid)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("envgym", settings["state"], "tmpfs", _TMPFS, "mode=0755")
    os.chdir(settings["state"])
    os.mkdir("root")
    os.mkdir("dev")
    syscalls.mount("envgym", "dev", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "mode=0755,size=64k")
    root.make_devices("dev")
    syscalls.mount("", "dev", "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY)


def _move_python(alias: str, top: str) -> None:
    """Show this interpreter's virtual environment at `alias`, read-only, and import from there from now on.

    `top` is an empty place in this mount namespace only. Scripts whose first line names the old place are copied.
    """
    old = sys.prefix
    syscalls.mount("envgym", top, "tmpfs", _TMPFS, "mode=0755")
    scripts = f"{top}/scripts"
    for path in (alias, scripts):
        os.mkdir(path)
    for entry in os.scandir(f"{old}/bin"):
        if entry.is_file(follow_symlinks=False) and entry.stat().st_size < _LEAST:
            with open(entry.path, "rb") as file:
                content = file.read()
            if content.startswith(b"#!" + old.encode()):
                with open(f"{scripts}/{entry.name}", "wb") as file:
                    file.write(content.replace(old.encode(), alias.encode(), 1))
                os.chmod(f"{scripts}/{entry.name}", 0o755)
    syscalls.bind(old, alias, read_only=True)
    with open(f"{top}/empty", "w"):
        pass
    for path in glob.glob(f"{alias}/lib/python*/site-packages/*envgym*.pth"):
        syscalls.bind(f"{top}/empty", path)  # programs inside must not begin by importing this project
    sys.path[:] = [alias + path[len(old) :] if path.startswith(old) else path for path in sys.path]
    sys.prefix = sys.exec_prefix = alias
    sys.executable = f"{alias}/bin/{os.path.basename(sys.executable)}"
    sys.path_importer_cache.clear()


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that waits to become an init."""

    pid: int
    sock: socket.socket


class Zygote:
    """Serves one owner's requests until the owner ends."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], owner: int) -> None:
        self.control = control
        self.settings = settings
        self.owner = owner
        self.children: dict[int, str] = {}
        self.spares: list[Spare] = []
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def say(self, head: protocol.Head) -> None:
        """Send one packet to the owner."""
        self.control.send(protocol.encode(head))

    def serve(self) -> None:
        """Answer until end of file on the control socket or the owner's end."""
        signal.set_wakeup_fd(self.wake_w)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        for fd in (self.control.fileno(), self.owner, self.wake_r):
            poller.register(fd, select.POLLIN)
        while True:
            wanting = self.settings["confined"] and len(self.spares) < _SPARES
            ready = {fd for fd, _event in poller.poll(0 if wanting else None)}
            if not ready:  # nothing to do: the time to prepare
                self.spares.append(self.make_spare(network=False))
                continue
            if self.wake_r in ready:
                os.read(self.wake_r, 4096)
                self.reap()
            if self.owner in ready:
                return
            if self.control.fileno() in ready:
                try:
                    head, _body, fds = protocol.receive(self.control)
                except (EOFError, ConnectionError):
                    return
                self.answer(head, fds)

    def reap(self) -> None:
        """Collect ended children; tell the owner of ended sandboxes. All their processes are gone by then."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.spares = [spare for spare in self.spares if spare.pid != pid]
            name = self.children.pop(pid, None)
            if name is not None:
                self.say({"event": "exit", "sandbox": name, "status": os.waitstatus_to_exitcode(status)})

    def answer(self, head: protocol.Head, fds: list[int]) -> None:
        """Carry out one request; a failure is an answer too."""
        reply: protocol.Head = {"id": head["id"]}
        try:
            reply["result"] = getattr(self, "do_" + head["op"])(head, fds)
        except OSError as error:
            reply |= {"error": str(error), "errno": error.errno}
        finally:
            for fd in fds:
                os.close(fd)
        self.say(reply)

    def do_layer(self, head: protocol.Head, _fds: list[int]) -> None:
        """Make a writable layer of at most `size` bytes together with the layers it continues.

        It is a tmpfs of its own, which bounds it and makes its removal one call.
        """
        name = head["name"]
        os.mkdir(name)
        if self.settings["confined"]:
            used = sum(_used(layer) for layer in head["after"])
            size = max(_LEAST, head["size"] - used)
            syscalls.mount("envgym", name, "tmpfs", _TMPFS, f"mode=0755,size={size}")
        for part in ("u", "w", "f"):
            os.mkdir(f"{name}/{part}", 0o755)
            os.chown(f"{name}/{part}", self.settings["uid"], self.settings["gid"])

    def do_bind(self, head: protocol.Head, _fds: list[int]) -> None:
        """Prepare a directory of the host to be shown read-only."""
        os.mkdir(head["name"])
        syscalls.bind(head["path"], head["name"], read_only=True)

    def do_drop(self, head: protocol.Head, _fds: list[int]) -> None:
        """Remove layers."""
        for name in head["names"]:
            if self.settings["confined"]:
                syscalls.umount(name)
                os.rmdir(name)
            else:
                shutil.rmtree(name, onerror=_force)

    def do_zygote(self, head: protocol.Head, fds: list[int]) -> int:
        """Fork a zygote that imports modules once for all its sandboxes."""
        pid = os.fork()
        if pid:
            return pid
        self._leave(keep=set(fds))
        syscalls.die_with_parent()
        control = socket.socket(fileno=fds[0])
        child = Zygote(control, self.settings, self.owner)
        try:
            for module in head["preload"]:
                importlib.import_module(module)
            child.say({"id": 0, "result": sorted(sys.modules)})
        except Exception as error:
            child.say({"id": 0, "error": f"preload: {type(error).__name__}: {error}", "errno": 0})
            os._exit(1)
        _serve(child)

    def do_job(self, head: protocol.Head, fds: list[int]) -> None:
        """Run a function of `jobs` in a fork; its answer goes to the descriptor that came with the request."""
        if os.fork():
            return
        self._leave(keep=set(fds))
        syscalls.die_with_parent()
        _run_job(head, socket.socket(fileno=fds[0]))

    def do_start(self, head: protocol.Head, fds: list[int]) -> int:
        """Start the first process of a sandbox."""
        spec = head["spec"]
        if head["fresh"]:
            self.do_layer({"name": spec["upper"], "size": head["size"], "after": head["after"]}, [])
        if self.settings["confined"]:
            spare = self.spares.pop(0) if self.spares and not spec["network"] else self.make_spare(spec["network"])
            pid = spare.pid
            with spare.sock:
                socket.send_fds(spare.sock, [protocol.encode(spec)], fds[:1])
        else:
            pid = os.fork()
            if pid == 0:
                self._leave(keep=set(fds))
                _run_init(spec, fds[0], init.stay)
        self.children[pid] = head["sandbox"]
        return pid

    def make_spare(self, network: bool) -> "Spare":
        """A process in namespaces of its own that waits for its spec: most of a start's time, spent beforehand."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = syscalls.clone(root.EARLY_NAMESPACES | (0 if network else syscalls.CLONE_NEWNET))
        if pid == 0:
            _wait_for_spec(theirs, network)
        theirs.close()
        return Spare(pid, ours)

    def do_settle(self, head: protocol.Head, _fds: list[int]) -> None:
        """End a sandbox whose init promised to do nothing more, and make its upper directory a frozen one.

        Nothing of it runs any more once it is killed; that its mounts are gone takes milliseconds longer. So its
        files move to a directory that no overlay has as its upper: the kernel would warn of one that is.
        """
        self.do_kill(head, [])
        name = head["sandbox"]
        info = os.stat(f"{name}/u")
        for entry in os.listdir(f"{name}/u"):
            os.rename(f"{name}/u/{entry}", f"{name}/f/{entry}")
        os.chown(f"{name}/f", info.st_uid, info.st_gid)
        os.chmod(f"{name}/f", info.st_mode & 0o7777)

    def do_kill(self, head: protocol.Head, _fds: list[int]) -> bool:
        """End a sandbox. Safe against pid reuse: only this process can reap its children."""
        for pid, name in self.children.items():
            if name == head["sandbox"]:
                self.end(pid)
                return True
        return False

    def end(self, pid: int) -> None:
        """Kill an init and all below it. In a pid namespace the kernel does the latter."""
        if not self.settings["confined"]:
            kill_all(lambda: set(live_processes(pid)))
        os.kill(pid, signal.SIGKILL)

    def _leave(self, keep: set[int]) -> None:
        """In a fork: let go of what belongs to the parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(1, 2)
        syscalls.close_fds(keep | {0, 1, 2, self.owner})


def _run_job(head: protocol.Head, sock: socket.socket) -> NoReturn:
    try:
        result, body = jobs.run(head["job"], head["arguments"])
        sock.sendall(protocol.encode({"id": 0, "result": result}, body))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        sock.sendall(protocol.encode({"id": 0, "error": text, "errno": getattr(error, "errno", 0) or 5}))
    os._exit(0)


def _wait_for_spec(sock: socket.socket, network: bool) -> NoReturn:
    """A spare's whole life."""
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(1, 2)
        root.prepare({sock.fileno()}, network)
        spec, _body, fds = protocol.receive(sock)
        sock.close()
    except BaseException:
        os._exit(70)  # the owner sees its stream end
    _run_init(spec, fds[0], root.confine)


def _run_init(spec: dict[str, Any], fd: int, enter: Callable[[dict[str, Any]], None]) -> NoReturn:
    """An init's whole life; it never returns into the zygote's stack."""
    sock = socket.socket(fileno=fd)
    try:
        enter(spec)
        init.serve(sock, spec)
    except BaseException as error:
        try:
            sock.sendall(protocol.encode({"dead": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(70)
    os._exit(0)


def _serve(zygote: Zygote) -> NoReturn:
    gc.collect()
    gc.freeze()  # keeps collections in forks from copying the shared pages
    try:
        zygote.serve()
    finally:
        for pid in list(zygote.children):
            zygote.end(pid)
        if not zygote.settings["confined"]:
            kill_all(lambda: set(live_processes(os.getpid())))
        deadline = time.monotonic() + 5
        while zygote.children and time.monotonic() < deadline:
            pid, _status = os.waitpid(-1, 0)
            zygote.children.pop(pid, None)
        os._exit(0)


def main() -> None:
    """Entry point: a control socket at descriptor 0, settings as JSON in argv."""
    settings = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(0))
    os.set_inheritable(control.fileno(), False)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):  # errors go to the owner's log, but nothing of a fork does
        os.dup2(null, fd)
    os.setsid()
    owner = os.pidfd_open(settings["owner"])
    zygote = Zygote(control, settings, owner)
    try:
        if settings["confined"]:
            _enter(settings)
            if settings["alias"]:
                _move_python(settings["alias"], settings["alias_top"])
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # what an init leaves is ours to end
            os.chdir(settings["state"])
    except OSError as error:
        zygote.say({"id": 0, "error": str(error), "errno": error.errno})
        os._exit(1)
    zygote.say({"id": 0, "result": None})
    _serve(zygote)
