"""Displays that wait for the next environment of the same backend, so that it need not open its own.

Opt-in: one that waits holds its place and its memory on the backend until the backend is closed. It is cleared
before it waits and when it is taken, as between the episodes of one environment. One that ends while it waits, by
itself or with its backend, waits no more: a closed backend is held by nobody.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

from envgym.errors import EnvgymError
from envgym.sandbox import Sandbox, SandboxBackend
from envgym.screen import Screen
from envgym.screening import open_screen
from envgym.task import World

__all__ = ["Display", "give_back", "take"]

_Key = tuple[str, tuple[int, int]]
_Waiting = dict["Display", "asyncio.Task[None]"]
"""Those that wait, the first one first, each with what lets go of it when it has ended."""
_waiting: "WeakKeyDictionary[SandboxBackend, dict[_Key, _Waiting]]" = WeakKeyDictionary()


class Display(NamedTuple):
    """A display and the sandbox that is its alone."""

    sandbox: Sandbox
    screen: Screen


async def take(backend: SandboxBackend, world: World, size: tuple[int, int]) -> Display:
    """A display with nothing on it: one that waits, else a new one. Raises as `open_screen` does."""
    waiting = _waiting.get(backend, {}).get(_key(world, size), {})
    while waiting:
        display, ending = waiting.popitem()
        ending.cancel()
        await asyncio.wait((ending,))
        try:
            await display.screen.clear()
            return display
        except EnvgymError:  # it has ended while it waited
            await display.sandbox.close()
    sandbox = await backend.create(world)
    try:
        screen = await open_screen(sandbox, width=size[0], height=size[1], alone=True)
        await screen.clear()
    except BaseException:
        await sandbox.close()
        raise
    return Display(sandbox, screen)


async def give_back(backend: SandboxBackend, size: tuple[int, int], display: Display, *, most: int) -> None:
    """Let a display wait, if fewer than `most` of its kind do and it can be cleared of everything; else end it."""
    waiting = _waiting.setdefault(backend, {}).setdefault(_key(display.sandbox.world, size), {})
    if len(waiting) < most and display.screen.thorough:
        try:
            await display.screen.clear()
        except EnvgymError:
            pass
        else:
            if len(waiting) < most:  # others may have come meanwhile
                waiting[display] = asyncio.create_task(_until_it_ends(waiting, display))
                return
    await display.sandbox.close()


async def _until_it_ends(waiting: _Waiting, display: Display) -> None:
    with suppress(EnvgymError):
        await display.screen.ended()
    waiting.pop(display, None)
    with suppress(EnvgymError):  # of a sandbox that is gone nothing is left to be closed
        await display.sandbox.close()


def _key(world: World, size: tuple[int, int]) -> _Key:
    return world.model_dump_json(), size
