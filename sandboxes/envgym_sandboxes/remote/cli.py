"""The console entry ``envgym sandboxes``: serve this host's sandboxes to clients that know a token."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from envgym.cli.options import key_values
from envgym.errors import SandboxUnavailable
from envgym.registry import make_backend
from envgym_sandboxes.remote.handshake import make_token_file, read_token_file
from envgym_sandboxes.remote.server import SandboxServer, ServerBounds
from envgym_sandboxes.remote.tls import server_tls

__all__ = ["sandboxes_command"]

sandboxes_command = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Serve this host's sandboxes to other hosts."
)


@sandboxes_command.callback()
def _group() -> None:
    """Serve this host's sandboxes to other hosts."""


@sandboxes_command.command()
def serve(  # noqa: PLR0913  # each is an option of the command line
    token_file: Annotated[Path, typer.Option(help="What clients must know; made, for you only, if not there.")],
    backend: Annotated[str, typer.Option(help="Whose sandboxes are served.")] = "auto",
    backend_option: Annotated[list[str] | None, typer.Option(help="name=value for it; repeatable.")] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes any free one.")] = "127.0.0.1:0",
    tls_cert: Annotated[Path | None, typer.Option(help="This server's certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    plain: Annotated[bool, typer.Option(help="Listen without TLS beyond this machine.")] = False,
    bound: Annotated[list[str] | None, typer.Option(help="name=value of ServerBounds; repeatable.")] = None,
) -> None:
    """Serve sandboxes until interrupted or terminated. The first line of output is the address."""
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("give both --tls-cert and --tls-key, or neither", param_hint="--tls-cert")
    if not token_file.exists():
        make_token_file(token_file)
        print(f"envgym: wrote a new token to {token_file}", file=sys.stderr)
    tls = server_tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    token = read_token_file(token_file)
    made = make_backend(backend, **key_values(backend_option or [], "--backend-option"))
    server = SandboxServer(made, token, listen=listen, tls=tls, plain=plain, bounds=_bounds(bound or []))
    if backend != "auto" and not (report := made.report()).works:  # "auto" has taken one that works
        raise SandboxUnavailable(
            f"{made.name} sandboxes cannot be served here: missing {'; '.join(report.missing)}; "
            f"fix: {'; '.join(report.fix) or 'none known'}"
        )
    asyncio.run(_until_told(server, f"{made.name} sandboxes, {'TLS' if tls else 'plain text'}"))


def _bounds(texts: list[str]) -> ServerBounds:
    """What clients may take. Raises ValueError."""
    given = key_values(texts, "--bound")
    names = [field.name for field in fields(ServerBounds)]
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"--bound {name}: there is no such bound; there are {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"--bound {name}={value}: it must be a number")
    return ServerBounds(**given)


async def _until_told(server: SandboxServer, what: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    async with server:
        print(server.address, flush=True)
        print(f"envgym: serving {what}, at {server.address}", file=sys.stderr, flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve()
