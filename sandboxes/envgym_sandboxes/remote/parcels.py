"""One file on its way over a link, piece by piece: it appears complete on the other side, or not at all."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from envgym_sandboxes.new_file import part_of
from envgym_sandboxes.remote.link import Call
from envgym_sandboxes.transfer import PIECE

__all__ = ["disk_root", "receive_file", "send_file"]


def disk_root() -> Path:
    """Where servers keep what may be too large for memory while it is on its way."""
    return Path(tempfile.gettempdir()) / f"envgym-{os.getuid()}"


async def send_file(call: Call, path: Path) -> None:
    """Send a file's bytes. Raises OSError."""
    file = await asyncio.to_thread(open, path, "rb")
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            if not await call.send(None, piece):
                return


async def receive_file(pieces: AsyncIterator[tuple[Any, bytes]], path: Path) -> None:
    """Write the bytes that come to a new file beside `path`, and give it that name at the end. Raises OSError."""
    with part_of(path) as part:
        file = await asyncio.to_thread(open, part, "xb")
        with file:
            async for _head, body in pieces:
                await asyncio.to_thread(file.write, body)
        await asyncio.to_thread(os.replace, part, path)
