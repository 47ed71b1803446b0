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
from typing import Any, NoReturn

from envgym_sandboxes import init, jobs, protocol, root, syscalls
from envgym_sandboxes.command import kill_all, live_processes

__all__ = ["main"]

_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NODEV
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


class Zygote:
    """Serves one owner's requests until the owner ends."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], owner: int) -> None:
        self.control = control
        self.settings = settings
        self.owner = owner
        self.children: dict[int, str] = {}
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
            ready = {fd for fd, _event in poller.poll()}
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
        for part in ("u", "w"):
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
        """Fork the first process of a sandbox."""
        spec = head["spec"]
        if head["fresh"]:
            self.do_layer({"name": spec["upper"], "size": head["size"], "after": head["after"]}, [])
        flags = root.NAMESPACES | (0 if spec["network"] else syscalls.CLONE_NEWNET)
        pid = syscalls.clone(flags) if self.settings["confined"] else os.fork()
        if pid:
            self.children[pid] = head["sandbox"]
            return pid
        _run_init(spec, fds[0], self.settings["confined"])

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
        syscalls.close_fds(keep | {0, 1, 2, self.owner})


def _run_job(head: protocol.Head, sock: socket.socket) -> NoReturn:
    try:
        result, body = jobs.run(head["job"], head["arguments"])
        sock.sendall(protocol.encode({"id": 0, "result": result}, body))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        sock.sendall(protocol.encode({"id": 0, "error": text, "errno": getattr(error, "errno", 0) or 5}))
    os._exit(0)


def _run_init(spec: dict[str, Any], fd: int, confined: bool) -> NoReturn:
    """The child's whole life; it never returns into the zygote's stack."""
    sock = socket.socket(fileno=fd)
    try:
        signal.set_wakeup_fd(-1)
        if confined:
            root.join_cgroups(spec["cgroups"])
            root.confine(spec, {fd})
        else:
            init.stay(spec, {fd})
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
    for fd in (0, 1, 2):
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
