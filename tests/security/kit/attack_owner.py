"""The process that owns a backend under attack: it does what it is told over its standard streams.

A process of its own, so that it can be another user's, carry secrets in its environment and memory, and be seen to
survive. Run as `python attack_owner.py MODULE:CLASS STATE`; frames are pickles with their length. Trusted by the
tests and by nobody else.
"""

import asyncio
import importlib
import os
import pickle
import struct
import sys
from typing import Any

from envgym_sandboxes.cgroups import controllers

HEAD = struct.Struct("!I")


class Owner:
    def __init__(self, backend: Any, out: Any) -> None:
        self.backend = backend
        self.out = out
        self.secret = bytearray(os.environ.get("OWNER_SECRET", ""), "utf-8")  # in its memory, in plain text
        self.things: dict[int, Any] = {0: backend, -1: self}
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, number: int, ok: bool, value: object) -> None:
        try:
            data = pickle.dumps((number, ok, value))
        except Exception:
            data = pickle.dumps((number, ok, RuntimeError(repr(value))))
        self.out.write(HEAD.pack(len(data)) + data)
        self.out.flush()

    async def carry_out(self, number: int, thing: int, method: str, args: tuple, options: dict) -> None:
        try:
            value = getattr(self.things[thing], method)(*args, **options)
            if asyncio.iscoroutine(value):
                value = await value
        except BaseException as error:
            self.say(number, False, error)
            return
        if hasattr(value, "exec") and hasattr(value, "fork"):
            self.things[number] = value
            value = ("sandbox", number, value.id)
        self.say(number, True, value)

    def groups(self) -> list[str]:
        """What control groups that this user may make can bound."""
        return sorted(controllers())

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 30)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while True:
            try:
                (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                request = pickle.loads(await reader.readexactly(size))
            except asyncio.IncompleteReadError:
                return
            task = asyncio.create_task(self.carry_out(*request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)


async def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    async with getattr(importlib.import_module(module), name)(root=sys.argv[2]) as backend:
        await Owner(backend, out).serve()


if __name__ == "__main__":
    asyncio.run(main())
