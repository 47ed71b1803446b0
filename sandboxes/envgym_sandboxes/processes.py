"""The zygotes of one backend, seen from their owner: started when first needed, one per set of preloaded modules.

It owns the state directory and the first zygote's process, and knows how both end. What is asked of a zygote is the
backend's matter.
"""

import asyncio
import errno
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from envgym.errors import InfrastructureFailure, SandboxUnavailable
from envgym_sandboxes.cgroups import controllers
from envgym_sandboxes.channel import ZygoteClient
from envgym_sandboxes.state import StateDirectory, reap

__all__ = ["Processes"]

_LOG = logging.getLogger("envgym.sandboxes")
_START_S = 60.0
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from envgym_sandboxes.zygote import main; "
    "sys.path.pop(0); main()"
)
_PACKAGES = str(Path(__file__).resolve().parents[1])

Described = tuple[str, dict[str, Any], Callable[[], str]]


class Processes:
    """Zygotes by what they have imported. `describe` gives the backend's name, settings, and who gives advice."""

    def __init__(self, root: Path, describe: Callable[[], Described], *, confined: bool, grouped: bool) -> None:
        self._root = root
        self._confined = confined
        self._grouped = grouped
        self._describe = describe
        self._zygotes: dict[tuple[str, ...], asyncio.Task[ZygoteClient]] = {}
        self._state: StateDirectory | None = None
        self.first: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> StateDirectory:
        """The state directory; there is one as soon as there is a zygote."""
        assert self._state is not None
        return self._state

    async def zygote(self, preload: tuple[str, ...]) -> ZygoteClient:
        """The zygote that has imported `preload`. Raises SandboxUnavailable; ValueError when one cannot be."""
        preload = tuple(sorted(set(preload)))
        task = self._zygotes.get(preload)
        if task is None:
            task = asyncio.create_task(self._preloaded(preload) if preload else self._start())
            self._zygotes[preload] = task
        try:
            return await asyncio.shield(task)
        except Exception:
            self._zygotes.pop(preload, None)
            raise

    async def _start(self) -> ZygoteClient:
        if self.first is None:
            reap(self._root)
            parents = sorted(set(controllers().values())) if self._grouped else []
            self._state = StateDirectory(self._root, parents)
        else:
            raise InfrastructureFailure("the first zygote is gone, and with it all layers; make a new backend")
        settings = self._describe()[1] | {"owner": os.getpid(), "confined": self._confined}
        ours, theirs = _packet_pair()
        with theirs:
            self.first = _spawn(settings | {"state": str(self._state.mount)}, theirs, self._state.log)
        return await self._answered(ZygoteClient(ours))

    async def _preloaded(self, preload: tuple[str, ...]) -> ZygoteClient:
        first = await self.zygote(())
        ours, theirs = _packet_pair()
        zygote = ZygoteClient(ours)
        with theirs:
            await first.ask("zygote", [theirs.fileno()], preload=list(preload))
        return await self._answered(zygote)

    async def _answered(self, zygote: ZygoteClient) -> ZygoteClient:
        try:
            async with asyncio.timeout(_START_S):
                await zygote.ready
        except (OSError, InfrastructureFailure, TimeoutError) as error:
            zygote.close()
            if isinstance(error, OSError) and error.errno == errno.ENOPKG:
                raise ValueError(
                    f"World.preload: {error.strerror}. It is imported by {sys.executable}, not in the world: "
                    "install it there, or leave it out, since only the first import's time is saved"
                ) from None
            name, _settings, advice = self._describe()
            told = self.state.log.read_text(errors="replace")[-1000:]
            raise SandboxUnavailable(f"the {name} backend cannot run here: {error}. {advice()} {told}") from error
        return zygote

    async def close(self, cleared: Callable[[], Awaitable[bool]]) -> None:
        """End all zygotes, and with them all sandboxes and layers; then, if all is cleared, the record of them."""
        for preload in sorted(self._zygotes, key=len, reverse=True):
            try:
                (await self._zygotes[preload]).close()
            except Exception as error:
                _LOG.warning("a zygote was not closed: %s: %s", type(error).__name__, error)
        if self.first is not None:
            await _ended(self.first)
        if await cleared() and self._state is not None:
            self._state.remove()


def _packet_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in pair:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # a request is one packet
    return pair


def _spawn(settings: dict[str, Any], control: socket.socket, log: Path) -> subprocess.Popen[bytes]:
    """Start the first zygote with a clean environment: the warm interpreter's hash seed is 0 and its clock UTC."""
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "TZ": "UTC"}
    env |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}  # a fork keeps one thread only
    if path := os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] = path
    with log.open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-c", _BOOT, json.dumps(settings), _PACKAGES],
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env=env,
        )


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process without blocking the loop and without polling."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        process.wait()
        return

    def over() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(fd, over)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    process.wait()
