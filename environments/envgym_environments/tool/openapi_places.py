"""A service that is a program of its own, started in a sandbox and reached there by a port that is forwarded."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

from envgym.errors import EnvironmentFailure
from envgym.sandbox import Sandbox

__all__ = ["served_inside"]

_RETRY_S = 0.05
_TAIL = 500


@asynccontextmanager
async def served_inside(
    sandbox: Sandbox, command: Sequence[str], base_url: str, *, start_s: float = 30.0
) -> AsyncIterator[str]:
    """The address here of a program that serves at `base_url` in there, once it answers; it ends with the context.

    Raises EnvironmentFailure, with the end of what it said on its stderr, for one that ends before, or does not
    answer within `start_s`.
    """
    url = httpx.URL(base_url)
    process = await sandbox.start(list(command))
    try:
        async with sandbox.forward(url.port or 80) as (host, port):
            here = str(url.copy_with(host=host, port=port))
            await _listening(sandbox, process, here, start_s, " ".join(command))
            yield here
    finally:
        await sandbox.signal(process, signal.SIGKILL)


async def _listening(sandbox: Sandbox, process: str, url: str, start_s: float, name: str) -> None:
    """Until anything at all is answered."""
    said = b""
    try:
        async with asyncio.timeout(start_s) as timer, httpx.AsyncClient() as client:
            while True:
                try:
                    async with client.stream("GET", url):
                        return
                except httpx.HTTPError:  # nobody listens yet
                    status = await sandbox.poll(process, wait_s=_RETRY_S)
                said = (said + status.stderr)[-_TAIL:]
                if not status.running:
                    raise EnvironmentFailure(_told(f"the service {name!r} ended before it answered", said))
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        if not timer.expired():
            raise
        raise EnvironmentFailure(_told(f"the service {name!r} did not answer within {start_s:g} s", said)) from None


def _told(what: str, said: bytes) -> str:
    words = " ".join(said.decode("utf-8", "replace").split())
    return f"{what}; it said: {words}" if words else what
