"""What the host can ask of an interpreter's branches, each request a coroutine over the server's loop.

A cell or a fork is answered as soon as its result is there; the copies that protect the branches from their next
cells are made after the answer, before anything else is done with them.
"""

import contextlib
import itertools
from collections.abc import Callable

from envgym_sandboxes import protocol
from envgym_sandboxes.inside.family import Failed, Member, Reply, moved
from envgym_sandboxes.inside.later import Later, start
from envgym_sandboxes.inside.server import Server

__all__ = ["Service"]


class Service:
    """The branches, and the kept states, which run nothing. A request's name is a method `do_...`."""

    def __init__(self, server: Server, say: Callable[[Reply], None]) -> None:
        self.server = server
        self.say = say
        self.settings = server.settings
        self.members: dict[int, Member] = {}
        self.states: dict[int, Member] = {}
        self.numbers = itertools.count(1)
        self.coming = 0

    def take(self, head: protocol.Head, body: bytes) -> None:
        """Carry out one request, and answer it."""
        start(self._carried_out(head, body))

    async def _carried_out(self, head: protocol.Head, body: bytes) -> None:
        try:
            reply = await getattr(self, "do_" + str(head["op"]))(head, body)
        except Failed as error:
            reply = {"failed": str(error), "kind": error.kind}
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            reply = {"failed": f"{type(error).__name__}: {error}", "kind": "failed"}
        if isinstance(head.get("id"), int):
            self.say({**reply, "id": head["id"]})

    def member(self, head: protocol.Head, name: str = "branch") -> Member:
        """The branch or kept state that a request names. Raises Failed."""
        found = (self.members if name == "branch" else self.states).get(head[name])
        if found is None or found.closed:
            raise Failed(f"this {name} is closed", "closed")
        return found

    def next_place(self) -> "tuple[int, str]":
        """A number, and the directory of that branch; all names are equally long, since programs see them.

        Raises Failed when there are as many branches and kept states as there may be.
        """
        have = len(self.members) + len(self.states) + self.coming
        if have >= self.settings.most:
            bound = f"branches={self.settings.most} allows no more"
            raise Failed(f"there are {have} branches and kept states; {bound}", "full")
        number = next(self.numbers)
        return number, f"{self.settings.top}/{number:04}" if self.settings.own else ""

    # -- branches ----------------------------------------------------------------------------------------------

    async def do_open(self, _head: protocol.Head, _body: bytes) -> Reply:
        """Begin the first branch: a new process, in a copy of the workdir."""
        number, directory = self.next_place()
        process = await self.server.root(self.settings.workdir)
        await moved(process, self.settings.workdir, directory, self.settings.copy_bytes)
        member = self.members[number] = Member(self.server, directory or self.settings.workdir, process)
        await member.protect()
        return {"branch": number, "directory": member.directory, "unforked": []}

    async def do_fork(self, head: protocol.Head, _body: bytes) -> Reply:
        """A new branch from a branch."""
        return await self._new_from(self.member(head), self.members)

    async def do_snapshot(self, head: protocol.Head, _body: bytes) -> Reply:
        """A kept state from a branch."""
        return await self._new_from(self.member(head), self.states)

    async def do_restore(self, head: protocol.Head, _body: bytes) -> Reply:
        """A new branch from a kept state."""
        return await self._new_from(self.member(head, "state"), self.members)

    async def _new_from(self, parent: Member, family: "dict[int, Member]") -> Reply:
        made: Later[Reply | Failed] = Later()
        start(self._make(parent, family, made))
        return _or_raise(await made)

    async def _make(self, parent: Member, family: "dict[int, Member]", made: "Later[Reply | Failed]") -> None:
        async with parent.turn:
            try:
                if parent in self.states.values() and parent.live.status is not None:
                    raise Failed("the process of this kept state has been ended", "closed")
                number, directory = self.next_place()
                self.coming += 1
                try:
                    process, unforked = await parent.offspring(directory)
                finally:
                    self.coming -= 1
            except (Failed, OSError) as error:
                made.set(_failed(error))
            else:
                child = family[number] = Member(self.server, directory or parent.directory, process)
                made.set({"branch": number, "directory": child.directory, "unforked": unforked})
                if family is self.members:
                    start(self._protect(child))
            if parent in self.members.values() and parent.kept is None:
                await self._kept(parent)

    async def _protect(self, member: Member) -> None:
        async with member.turn:
            await self._kept(member)

    @staticmethod
    async def _kept(member: Member) -> None:
        """Protect a branch. Where its process cannot even be begun again, the next request meets that."""
        with contextlib.suppress(Failed, OSError):
            await member.protect()

    # -- what is done with a branch ----------------------------------------------------------------------------

    async def do_run(self, head: protocol.Head, body: bytes) -> Reply:
        """Run a cell."""
        result: Later[Reply | Failed] = Later()
        start(self._run(self.member(head), head, body, result))
        return _or_raise(await result)

    async def _run(
        self, member: Member, head: protocol.Head, source: bytes, result: "Later[Reply | Failed]"
    ) -> None:
        async with member.turn:
            if member.closed or head["cell"] in member.unwanted:
                result.set(Failed("this branch is closed, or nobody waits for this cell", "closed"))
                return
            try:
                result.set(await member.run(source, float(head["timeout_s"]), head["cell"]))
            except (Failed, OSError) as error:
                result.set(_failed(error))
            else:
                await self._kept(member)

    async def do_look(self, head: protocol.Head, _body: bytes) -> Reply:
        """The variables: `what` is names or digest."""
        member = self.member(head)
        async with member.turn:
            return {"found": await self.member(head).look(str(head["what"]))}

    async def do_interrupt(self, head: protocol.Head, _body: bytes) -> Reply:
        """Nobody waits for a cell any more, which may be running or still to come."""
        member = self.member(head)
        member.unwanted = {head["cell"]}
        member.interrupt(head["cell"])
        return {}

    async def do_close(self, head: protocol.Head, _body: bytes) -> Reply:
        """End a branch, whatever it is doing; with the last one everything ends."""
        member = self.member(head)
        del self.members[head["branch"]]
        member.close()
        self.server.ending = not self.members
        return {"last": self.server.ending}

    async def do_release(self, head: protocol.Head, _body: bytes) -> Reply:
        """Let go of a kept state."""
        member = self.member(head, "state")
        del self.states[head["state"]]
        member.close()
        return {}

    def close(self) -> None:
        """End every branch."""
        for member in [*self.members.values(), *self.states.values()]:
            member.close()


def _or_raise(found: "Reply | Failed") -> Reply:
    if isinstance(found, Failed):
        raise found
    return found


def _failed(error: Exception) -> Failed:
    return error if isinstance(error, Failed) else Failed(f"{error}")
