"""A real server in a process of its own, and clients of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from envgym_sandboxes.remote import RemoteBackend

SERVE = "from envgym_sandboxes.remote.cli import sandboxes_command; sandboxes_command()"


@dataclass(frozen=True, slots=True)
class Served:
    """A running server: its process, its address, and where its token is."""

    process: subprocess.Popen[str]
    address: str
    token_file: Path

    def client(self, **options: object) -> RemoteBackend:
        return RemoteBackend(self.address, token_file=self.token_file, **options)


def begin(token_file: Path, *options: str, prefix: tuple[str, ...] = ()) -> Served:
    """Start a server and wait for its address."""
    command = [*prefix, sys.executable, "-c", SERVE, "serve", "--token-file", str(token_file), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address, f"the server said no address; its status is {process.wait()}"
    return Served(process, address, token_file)


@contextmanager
def server_of(token_file: Path, *options: str, prefix: tuple[str, ...] = ()) -> Iterator[Served]:
    """A server that ends as `kill` ends it, and must leave nothing then."""
    served = begin(token_file, *options, prefix=prefix)
    try:
        yield served
    finally:
        served.process.send_signal(signal.SIGTERM)
        try:
            assert served.process.wait(20) in (0, -signal.SIGKILL)
        finally:
            served.process.kill()
            served.process.wait()
            served.process.stdout.close()


@pytest.fixture
def settle() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Wait until a state that the other end of a socket reaches is reached."""

    async def settled(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  # another process sets no event
                await asyncio.sleep(0.005)

    return settled


@pytest.fixture
def serve() -> Callable[..., AbstractContextManager[Served]]:
    return server_of


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers with options; whatever is left of them is killed."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(begin(tmp_path / "token", *options))
        return started[-1]

    yield start
    for served in started:
        served.process.kill()
        served.process.wait()
        served.process.stdout.close()


@pytest.fixture
def namespace(make: Callable[[], object], state: Path) -> tuple[str, ...]:
    """The options of a server of namespace sandboxes with a state directory of the test's own."""
    return ("--backend", "namespace", "--backend-option", f"root={state}")


@pytest.fixture
def served(namespace: tuple[str, ...], tmp_path: Path) -> Iterator[Served]:
    with server_of(tmp_path / "token", *namespace) as found:
        yield found
