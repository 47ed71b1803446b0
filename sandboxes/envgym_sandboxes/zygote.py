"""The process that owns a backend's mounts and forks its sandboxes: small, single-threaded, dies with its owner.

The first zygote enters one mount namespace (and, without root, a user namespace) in which every layer is a tmpfs
of its own: the host's mount table is never touched, and when the zygote ends the kernel removes all of it. Zygotes
for preloaded modules are forks of it. It trusts its owner, sees no byte that a sandbox wrote except through
`jobs`, which run in a forked child, and knows nothing of commands.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from envgym_sandboxes import capsule, enclosure, init, jobs, landlock, masks, protocol, root, syscalls
from envgym_sandboxes.layer_room import room_left
from envgym_sandboxes.moved_python import move_python
from envgym_sandboxes.removal import remove_tree
from envgym_sandboxes.seat import Seat
from envgym_sandboxes.tree import collect, kill_all, live_processes, strays

__all__ = ["main"]

_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SPARES, _MOST_SPARES = 4, 64  # a fork starts two: the child, and the parent above its frozen layer
_CALM_S = 30.0
_EMPTY = "empty"
_QUIET_MS = 2  # a start is over by then: what is prepared at once would take its processor


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
    os.mkdir(_EMPTY)


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that waits to become an init. seat: what it takes of a container's processes meanwhile."""

    pid: int
    sock: socket.socket
    seat: Seat | None = None


class Zygote:
    """Serves one owner's requests until the owner ends."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], owner: int, furnished: int) -> None:
        self.control = control
        self.settings = settings
        self.owner = owner
        self.furnished = furnished
        self.children: dict[int, str] = {}
        self.helpers: set[int] = set()
        self.spares: list[Spare] = []
        self.inside: dict[str, Spare] = {}
        self.wanted = _SPARES
        self.missed = 0.0
        self.poller = select.poll()
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def say(self, head: protocol.Head) -> None:
        """Send one packet to the owner."""
        self.control.send(protocol.encode(head))

    def serve(self) -> None:
        """Answer until end of file on the control socket or the owner's end."""
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)  # what an init leaves is ours to end
        signal.set_wakeup_fd(self.wake_w)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (self.control.fileno(), self.owner, self.wake_r):
            self.poller.register(fd, select.POLLIN)
        while True:
            wanting = self.settings.get("spares", self.settings["confined"]) and len(self.spares) < self.wanted
            ready = {fd for fd, _event in self.poller.poll(_QUIET_MS if wanting else None)}
            if not ready:  # nobody waits for anything: the time to prepare
                self.spares.append(self.make_spare(network=False))
                continue
            for seat in [one.seat for one in self.inside.values() if one.seat and one.seat.fileno() in ready]:
                self.poller.unregister(seat)
                seat.take()
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
        ended = collect()
        known = {*self.children, *self.helpers}
        if not self.settings["confined"] and any(status for pid, status in ended.items() if pid in known):
            # It was killed; what it left is now below this process. All the dead first: there may be many.
            kill_all(lambda: strays(os.getpid(), known - ended.keys()))
            ended |= collect()
        for pid, status in ended.items():
            self.helpers.discard(pid)
            if name := self.children.pop(pid, None):
                self.say({"event": "exit", "sandbox": name, "status": os.waitstatus_to_exitcode(status)})
        self.spares = [spare for spare in self.spares if spare.pid not in ended]
        for name in [name for name, spare in self.inside.items() if spare.pid in ended]:
            self.stand_up(self.inside.pop(name)).sock.close()

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
        """Make a writable layer of at most `size` bytes and `inodes`, together with the layers it continues.

        It is a tmpfs of its own, which bounds it and makes its removal one call.
        """
        name = head["name"]
        os.mkdir(name)
        if self.settings["confined"]:
            options = room_left(head["size"], head.get("inodes"), head["after"])
            syscalls.mount("envgym", name, "tmpfs", _TMPFS, options)
        for part in ("u", "w", "f"):
            os.mkdir(f"{name}/{part}", 0o755)
            os.chown(f"{name}/{part}", self.settings["uid"], self.settings["gid"])

    def do_drop(self, head: protocol.Head, _fds: list[int]) -> None:
        """Remove layers."""
        for name in head["names"]:
            if self.settings["confined"]:
                syscalls.umount(name)
                os.rmdir(name)
            else:
                remove_tree(name)

    def do_zygote(self, head: protocol.Head, fds: list[int]) -> int:
        """Fork a zygote that imports modules once for all its sandboxes."""
        if pid := os.fork():
            self.helpers.add(pid)
            return pid
        self._leave(keep=set(fds))
        syscalls.die_with_parent()
        control = socket.socket(fileno=fds[0])
        child = Zygote(control, self.settings, self.owner, self.furnished)
        module = ""
        try:
            for module in head["preload"]:
                importlib.import_module(module)
            child.say({"id": 0, "result": sorted(sys.modules)})
        except BaseException as error:  # a module may end its process
            wrong = f"{module!r} cannot be imported: {type(error).__name__}: {error}"
            child.say({"id": 0, "error": wrong, "errno": errno.ENOPKG})
            os._exit(1)
        _serve(child)

    def do_job(self, _head: protocol.Head, fds: list[int]) -> None:
        """Run a function of `jobs` in a fork: which, and its answer, go over the descriptor that came along."""
        if pid := os.fork():
            self.helpers.add(pid)
            return
        self._leave(keep=set(fds))
        syscalls.die_with_parent()
        try:
            jobs.answer(socket.socket(fileno=fds[0]), fds[1:])
        finally:
            os._exit(0)

    def do_start(self, head: protocol.Head, fds: list[int]) -> int:
        """Start the first process of a sandbox."""
        spec = head["spec"]
        if head["fresh"]:
            self.do_layer({"name": spec["upper"], **head["room"]}, [])
        if self.settings.get("containers"):
            pid = self.begin_inside(spec, fds)
        elif self.settings["confined"]:
            spare = self.make_spare(network=True) if spec["network"] else self.take_spare()
            pid = spare.pid
            with spare.sock:
                self.hand_over(spare, spec, fds[0])
        else:
            pid = os.fork()
            if pid == 0:
                self._leave(keep=set(fds))
                _run_init(spec, fds[0], enclosure.enclose if "domain" in spec else root.stay, spec)
        self.children[pid] = head["sandbox"]
        return pid

    def hand_over(self, spare: "Spare", spec: dict[str, Any], peer: int) -> None:
        """Give a spare what it needs to become an init: its spec, stream, root and groups."""
        given = [peer]
        try:
            given.append(root.overlay(spec, _EMPTY))
            given += root.group_files(spec["cgroups"])
            given += root.meter_files(spec["meters"])
            socket.send_fds(spare.sock, [protocol.encode(spec)], given)
        finally:
            for fd in given[1:]:
                os.close(fd)

    def take_spare(self) -> "Spare":
        """A spare; one that is made now costs its taker most of a start. Who wants many at once soon does again."""
        now = time.monotonic()
        if self.spares:
            if now > self.missed + _CALM_S:
                self.wanted, self.missed = max(_SPARES, self.wanted // 2), now
            return self.spares.pop(0)
        self.wanted, self.missed = min(_MOST_SPARES, self.wanted + 1), now
        return self.make_spare(network=False)

    def do_ready(self, head: protocol.Head, fds: list[int]) -> None:
        """Have an init wait in a container. fds: the container's pid, mount and network namespaces."""
        if head["container"] not in self.inside:
            seat = Seat(**head["seat"])
            try:
                self.inside[head["container"]] = self.make_spare_inside(fds, head["cgroups"], seat)
            except OSError:
                seat.leave()
                raise
            self.poller.register(seat, select.POLLIN)

    def stand_up(self, spare: "Spare") -> "Spare":
        """Who waited in a container does so no more. Raises OSError when its seat cannot be taken away."""
        if spare.seat:
            with contextlib.suppress(KeyError):  # it has been taken
                self.poller.unregister(spare.seat)
            spare.seat.leave()
        return spare

    def begin_inside(self, spec: dict[str, Any], fds: list[int]) -> int:
        """Start an init in a container. fds: its stream, then as of `do_ready`."""
        waiting = self.inside.pop(spec["container"], None)
        spare = self.stand_up(waiting) if waiting else self.make_spare_inside(fds[1:], spec["cgroups"])
        with spare.sock:
            self.hand_over(spare, spec | {"cgroups": []}, fds[0])  # which it joined when it was made
        return spare.pid

    def make_spare_inside(self, fds: list[int], groups: list[str], seat: Seat | None = None) -> "Spare":
        """A process in a container, with namespaces of its own there, that waits for its spec.

        seat: what it takes as long as nobody lives there by it; None when it is needed at once.
        """
        processes, *namespaces = fds
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        joins = root.group_files(groups)
        here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

        def run(error: OSError | None) -> NoReturn:
            self._leave(keep={theirs.fileno(), *namespaces, *joins, *([seat.fileno()] if seat else [])})
            join = seat.join if seat else _nothing
            prepare = partial(_fail, error) if error else partial(capsule.prepare, namespaces, joins, join)
            _wait_for_spec(theirs, prepare, capsule.confine)

        try:
            return Spare(capsule.begin(processes, here, run), ours, seat)
        finally:
            for fd in (here, *joins):
                os.close(fd)
            theirs.close()

    def make_spare(self, network: bool) -> "Spare":
        """A process in namespaces of its own that waits for its spec: most of a start's time, spent beforehand."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = syscalls.clone(root.EARLY_NAMESPACES)
        if pid == 0:
            kind = {"privileged": self.settings["privileged"], "network": network}
            prepare = partial(root.prepare, {theirs.fileno()}, self.furnished, **kind)
            _wait_for_spec(theirs, prepare, root.confine)
        theirs.close()
        return Spare(pid, ours)

    def do_settle(self, head: protocol.Head, _fds: list[int]) -> int:
        """Make the upper directory of a sandbox that stands still, and never goes on, a frozen one; its bytes.

        It is ended later, when nobody waits. Its files move to a directory that no overlay has as its upper: the
        kernel would warn of one that is.
        """
        name = head["sandbox"]
        info = os.stat(f"{name}/u")
        for entry in os.listdir(f"{name}/u"):
            os.rename(f"{name}/u/{entry}", f"{name}/f/{entry}")
        os.chown(f"{name}/f", info.st_uid, info.st_gid)
        os.chmod(f"{name}/f", info.st_mode & 0o7777)
        os.utime(f"{name}/f", ns=(info.st_atime_ns, info.st_mtime_ns))
        room = os.statvfs(name)
        return (room.f_blocks - room.f_bfree) * room.f_frsize if self.settings["confined"] else 0

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
        os.kill(pid, signal.SIGTERM if self.settings.get("containers") else signal.SIGKILL)

    def _leave(self, keep: set[int]) -> None:
        """In a fork: let go of what belongs to the parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(1, 2)
        syscalls.close_fds(keep | {0, 1, 2, self.owner, self.furnished})


def _wait_for_spec(sock: socket.socket, prepare: Callable[[], None], confine: Callable[..., None]) -> NoReturn:
    """A spare's whole life. What fails before there is anybody to tell is told then."""
    failure: OSError | None = None
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(1, 2)
        prepare()
        init.rehearse()
    except OSError as error:
        failure = error
    try:
        spec, _body, fds = protocol.receive(sock)
        sock.close()
    except BaseException:
        os._exit(70)
    if failure is not None:
        _run_init(spec, fds[0], _fail, failure)
    groups, counters = fds[2 : 2 + len(spec["cgroups"])], fds[2 + len(spec["cgroups"]) :]
    spec["meters"] = dict(zip(spec["meters"], counters, strict=True))
    _run_init(spec, fds[0], confine, spec, fds[1], groups)


def _fail(error: OSError) -> NoReturn:
    raise error


def _nothing() -> None:
    """Nobody is told."""


def _run_init(spec: dict[str, Any], fd: int, enter: Callable[..., None], *given: Any) -> NoReturn:
    """An init's whole life; it never returns into the zygote's stack."""
    sock = socket.socket(fileno=fd)
    try:
        enter(*given)
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


def _forget_ignored() -> None:
    """Signals that the owner ignores (`nohup` does so) are not ignored by all that runs inside."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # as Python itself begins
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main() -> None:
    """Entry point: a control socket at descriptor 0, settings as JSON in argv."""
    settings = json.loads(sys.argv[1])
    _forget_ignored()
    syscalls.hide_arguments("envgym")
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):  # errors go to the owner's log, but nothing of a fork does
        os.dup2(null, fd)
    os.setsid()
    owner = os.pidfd_open(settings["owner"])
    zygote = Zygote(control, settings, owner, owner)
    try:
        if settings["confined"]:
            _enter(settings)
            if settings["alias"]:
                move_python(settings["alias"], settings["alias_top"])
            zygote.furnished = root.furnished("furnished", settings["binds"], settings["privileged"])
            for ask in (landlock.abi, masks.there):  # once: the forks remember
                ask()
        else:
            os.chdir(settings["state"])
    except OSError as error:
        zygote.say({"id": 0, "error": str(error), "errno": error.errno})
        os._exit(1)
    zygote.say({"id": 0, "result": None})
    _serve(zygote)
