"""Unix sockets that one episode's browser alone is told of.

The name is abstract: the kernel forgets it with its socket, it is in no directory, and nothing of it is left, kill
-9 included. Other users are refused by their ids.
"""

import asyncio
import os
import secrets
import socket
import struct

__all__ = ["is_ours", "new_name"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `struct ucred` of unix(7)


def new_name() -> str:
    """The name of a socket that nobody can guess."""
    return f"\0envgym-site-{os.getpid()}-{secrets.token_hex(16)}"


def is_ours(writer: asyncio.StreamWriter) -> bool:
    """Whether who is at the other end is this process's user."""
    sock = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid) == os.getuid()
