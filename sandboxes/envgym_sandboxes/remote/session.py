"""What one client has on a server, and how its calls are carried out on the backend there.

A call's name is a method `do_...`. Only the contract is used of the backend. Everything a client made ends with its
session; files on their way are kept in a directory of the session's own and unpacked with the checks that `put` and
`get` make, since the other side is believed no path.
"""

import asyncio
import itertools
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from envgym.errors import InfrastructureFailure, SandboxDied
from envgym.sandbox import MeteredBackend, Sandbox, SandboxBackend
from envgym.task import World
from envgym_sandboxes import protocol
from envgym_sandboxes.host_memory import host_memory
from envgym_sandboxes.remote.link import Call
from envgym_sandboxes.remote.ports import Ports
from envgym_sandboxes.remote.results import diff_to_pieces, records_to_json, result_to_json
from envgym_sandboxes.remote.states import States
from envgym_sandboxes.remote.trees import Trees, remove_tree
from envgym_sandboxes.transfer import Arrival, Tally, pack

__all__ = ["Session"]

Answer = tuple[dict[str, Any], bytes]
T = TypeVar("T")
_ENDED = "this client's session has ended"
_LOG = logging.getLogger("envgym.sandboxes")


class Session:
    """One client's sandboxes, snapshots and trees. `answer` serves one call.

    scratch: a folder for trees on their way, in memory where that can be. folder: one on disk, for larger things.
    Both go with the session. most_sandboxes: that it may have at a time.
    """

    def __init__(
        self, backend: SandboxBackend, trees: Trees, scratch: Path, folder: Path, *, most_sandboxes: int
    ) -> None:
        self._backend, self._trees, self._scratch = backend, trees, scratch
        self._folders = (scratch, folder)
        self._most = most_sandboxes
        self._beginning = 0
        self._numbers = itertools.count(1)
        self._sandboxes: dict[str, Sandbox] = {}
        self._states = States(backend, self._sandbox, folder)
        self._pins: set[str] = set()
        self._ports = Ports()
        self.ended = False
        self._calls: dict[asyncio.Task[Any], asyncio.Future[None]] = {}  # and when each is carried out
        self._closing: asyncio.Task[None] | None = None

    async def answer(self, call: Call) -> Answer:
        """Carry out one call. Raises what the backend raises, and ValueError for a call that is none."""
        work = getattr(self, f"do_{call.op}", None) or getattr(self._states, f"do_{call.op}", None)
        if work is None:
            raise ValueError(f"the server knows no call {call.op!r}; is it older than the client?")
        if call.op == "end":
            return await self.do_end(call)
        if self.ended:
            raise InfrastructureFailure(_ENDED)
        task = asyncio.current_task()
        assert task is not None
        over = self._calls[task] = asyncio.get_running_loop().create_future()
        try:
            answer: Answer = await work(call)
            return answer
        finally:
            del self._calls[task]
            over.set_result(None)

    # -- sandboxes ---------------------------------------------------------------------------------------------

    async def do_create(self, call: Call) -> Answer:
        """A sandbox of a world, whose trees are named by the digests under which they were sent."""
        world = World.model_validate(json.loads(await call.collected(protocol.MAX_BODY)))
        return await self._keep(lambda: self._backend.create(self._trees.placed(world)))

    async def do_restore(self, call: Call) -> Answer:
        """A sandbox in a snapshot's state."""
        snapshot = await self._states.find(call)
        return await self._keep(lambda: self._backend.restore(snapshot))

    async def do_fork(self, call: Call) -> Answer:
        """A fork of a sandbox."""
        return await self._keep(self._sandbox(call).fork)

    async def _keep(self, make: Callable[[], Awaitable[Sandbox]]) -> Answer:
        if len(self._sandboxes) + self._beginning >= self._most:
            raise InfrastructureFailure(f"this client has {self._most} sandboxes on the server, which is the bound")
        self._beginning += 1
        try:
            sandbox = await make()
        finally:
            self._beginning -= 1
        self._sandboxes[sandbox.id] = sandbox
        if self.ended:  # it was too far to turn back
            await self._end(sandbox)
            raise InfrastructureFailure(_ENDED)
        return {"sandbox": sandbox.id}, json.dumps(self._trees.named(sandbox.world).model_dump()).encode()

    def _sandbox(self, call: Call) -> Sandbox:
        name = _argument(call, "sandbox", str)
        if name not in self._sandboxes:
            raise SandboxDied(f"sandbox {name} is not one of this client's, or is closed")
        return self._sandboxes[name]

    async def do_close(self, call: Call) -> Answer:
        """Close a sandbox."""
        sandbox = self._sandboxes.get(_argument(call, "sandbox", str))
        if sandbox is not None:
            await self._end(sandbox)
        return {}, b""

    async def _end(self, sandbox: Sandbox) -> None:
        """Close a sandbox; until that is done it is this client's."""
        await self._ports.close(sandbox.id)
        await sandbox.close()
        self._sandboxes.pop(sandbox.id, None)

    # -- commands ----------------------------------------------------------------------------------------------

    async def do_exec(self, call: Call) -> Answer:
        """A command; its input is stdin, its output standard output and then standard error."""
        options = _argument(call, "options", dict)
        command = call.arguments.get("command")
        if isinstance(command, list):
            command = [str(word) for word in command]
        elif not isinstance(command, str):
            raise ValueError("exec: the command is neither a text nor a list")
        sandbox = self._sandbox(call)
        result = await sandbox.exec(command, stdin=await call.collected(protocol.MAX_BODY), **options)
        return result_to_json(result), result.stdout + result.stderr

    async def do_start(self, call: Call) -> Answer:
        """A background process; its input is stdin."""
        argv, options = [str(word) for word in _argument(call, "argv", list)], _argument(call, "options", dict)
        sandbox = self._sandbox(call)
        return {"process": await sandbox.start(argv, stdin=await call.collected(protocol.MAX_BODY), **options)}, b""

    async def do_poll(self, call: Call) -> Answer:
        """What a background process does."""
        wait_s = _argument(call, "wait_s", (int, float))
        status = await self._sandbox(call).poll(_argument(call, "process", str), wait_s=wait_s)
        return result_to_json(status), status.stdout + status.stderr

    async def do_signal(self, call: Call) -> Answer:
        """A signal to a background process."""
        await self._sandbox(call).signal(_argument(call, "process", str), _argument(call, "number", int))
        return {}, b""

    # -- the network -------------------------------------------------------------------------------------------

    async def do_alive(self, call: Call) -> Answer:
        """Whether a sandbox runs."""
        async with self._sandbox(call).forward(1):
            return {}, b""

    async def do_egress_log(self, call: Call) -> Answer:
        """The decisions about a sandbox's connections."""
        return {}, records_to_json(await self._sandbox(call).egress_log())

    async def do_dial(self, call: Call) -> Answer:
        """A connection to a port inside; its bytes are the pieces of both directions."""
        await self._ports.carry(call, self._sandbox(call), _argument(call, "port", int))
        return {}, b""

    # -- files -------------------------------------------------------------------------------------------------

    async def do_read(self, call: Call) -> Answer:
        """A file's bytes."""
        return {}, await self._sandbox(call).read(_argument(call, "path", str))

    async def do_write(self, call: Call) -> Answer:
        """Write a file."""
        content = await call.collected(protocol.MAX_BODY)
        await self._sandbox(call).write(_argument(call, "path", str), content)
        return {}, b""

    async def do_put(self, call: Call) -> Answer:
        """A tree of the client, unpacked here first."""
        sandbox, target = self._sandbox(call), _argument(call, "target", str)
        async with self._staged() as staged:
            arrival = Arrival(str(staged), _tally(sandbox))
            async for head, body in call.pieces():
                await asyncio.to_thread(arrival.add, head, body)
            await sandbox.put(str(staged), target)
        return {}, b""

    async def do_get(self, call: Call) -> Answer:
        """A tree of the sandbox, sent piece by piece; of one that met a bound, what had come until then."""
        failed: OSError | None = None
        async with self._staged() as staged:
            sandbox = self._sandbox(call)
            try:
                await sandbox.get(_argument(call, "source", str), str(staged))
            except OSError as error:
                failed = error
            if os.path.lexists(staged):  # noqa: ASYNC240  # one call of the system
                await self._send(call, staged, _tally(sandbox))
        if failed is not None:
            raise failed
        return {}, b""

    @staticmethod
    async def _send(call: Call, staged: Path, tally: Tally) -> None:
        if stat.S_ISLNK(os.lstat(staged).st_mode):
            raise ValueError("get: the sandbox sent a link in the place of a tree")
        for piece, body in pack(str(staged), tally):
            await call.send(piece, body)

    @asynccontextmanager
    async def _staged(self) -> AsyncIterator[Path]:
        path = self._scratch / f"t{next(self._numbers)}"
        try:
            yield path
        finally:
            await asyncio.to_thread(remove_tree, path)

    async def do_tree(self, call: Call) -> Answer:
        """Ask for a tree by its digest, and use it if it is here."""
        digest = _argument(call, "digest", str)
        there = digest in self._trees
        if there and digest not in self._pins:
            self._trees.use(digest)
            self._pins.add(digest)
        return {"there": there}, b""

    async def do_send_tree(self, call: Call) -> Answer:
        """Take a tree that is not here."""
        digest = _argument(call, "digest", str)
        await self._trees.receive(digest, call.pieces())
        if digest in self._pins:
            self._trees.leave(digest)  # sent twice at once: one use is enough
        self._pins.add(digest)
        return {}, b""

    # -- states ------------------------------------------------------------------------------------------------

    async def do_digest(self, call: Call) -> Answer:
        """A sandbox's digest."""
        return {"digest": await self._sandbox(call).digest()}, b""

    async def do_diff(self, call: Call) -> Answer:
        """What differs in a sandbox from its world or a snapshot: an index, then the contents."""
        since = await self._states.find(call) if call.arguments.get("snapshot") is not None else None
        index, body = diff_to_pieces(await self._sandbox(call).diff(since))
        return {"index_bytes": len(index)}, index + body

    # -- the server --------------------------------------------------------------------------------------------

    async def do_report(self, _call: Call) -> Answer:
        """What the backend says of its host."""
        report = await asyncio.to_thread(self._backend.report)
        return {"report": report.model_dump()}, b""

    async def do_memory(self, call: Call) -> Answer:
        """What this host has, and what this client's sandboxes use of it as far as the backend can tell."""
        mine = [name for name in _argument(call, "sandboxes", list) if name in self._sandboxes]
        if isinstance(self._backend, MeteredBackend):
            use = await self._backend.memory(mine)
            return {"total": use.total, "available": use.available, "used": dict(use.used)}, b""
        total, available = host_memory()
        return {"total": total, "available": available, "used": {}}, b""

    async def do_end(self, _call: Call) -> Answer:
        """Close all that this client made; it says goodbye."""
        await self.close()
        return {}, b""

    async def do_keep(self, call: Call) -> Answer:
        """Close the sandboxes that a client that came back does not know: their names were lost on their way."""
        for name in set(self._sandboxes) - set(_argument(call, "sandboxes", list)):
            await self._end(self._sandboxes[name])
        return {}, b""

    async def close(self) -> None:
        """End everything that this client made; what is already gone is gone. It is done once, and to its end."""
        self.ended = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._end_all()  # so their calls fail as those of dead sandboxes do
        for task in self._calls:
            task.cancel()
        while self._calls:
            await asyncio.wait(self._calls.values())
        await self._end_all()  # what calls made that were too far to turn back
        await self._states.close()
        for digest in self._pins:
            self._trees.leave(digest)
        self._pins.clear()
        for folder in self._folders:
            await asyncio.to_thread(remove_tree, folder)

    async def _end_all(self) -> None:
        ends = map(self._end, list(self._sandboxes.values()))
        for failed in await asyncio.gather(*ends, return_exceptions=True):
            if failed is not None:
                _LOG.warning("a sandbox of a client that left could not be closed: %s", failed)


def _tally(sandbox: Sandbox) -> Tally:
    resources = sandbox.world.resources
    return Tally(resources.transfer_bytes, resources.inodes)


def _argument(call: Call, name: str, kind: type[T] | tuple[type[T], ...]) -> T:
    value = call.arguments.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{call.op}: {name} is {value!r}; it must be of {kind}")
    return value
