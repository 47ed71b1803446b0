"""Two sides prove to each other that they know one token, which never crosses the wire.

The server sends a nonce, the client answers with its own and an HMAC-SHA256 of both, of its role and of the
certificate that it sees; only then does the server prove the same. So a client without the token learns nothing, a
server without it is refused, a proof fits one connection only, and over TLS nobody can stand in the middle. What is
said afterwards is protected by TLS or not at all.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgym_sandboxes import protocol

__all__ = [
    "VERSION", "Refused", "WrongToken", "as_client", "as_server", "check_token", "make_token_file",
    "read_token_file",
]  # fmt: skip

VERSION = 1
_NONCE = 32
_SHORTEST_TOKEN, _MOST_TOKEN = 32, 4096
_MAX_FRAME = 4096


class Refused(Exception):
    """The other side does not know the token, or does not speak this protocol. No user meets it as it is."""


class WrongToken(Refused):
    """The server knows another token."""


def check_token(token: str, what: str = "the token") -> str:
    """The token, if it cannot be guessed; what: its name in messages. Raises ValueError, TypeError."""
    if not isinstance(token, str):
        raise TypeError(f"{what} is of type {type(token).__name__}; it must be a str")
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(
            f"{what} has {len(token)} characters; it must have at least {_SHORTEST_TOKEN}: "
            "`envgym sandboxes serve --token-file FILE` makes one where FILE is not there"
        )
    return token


def read_token_file(path: str | os.PathLike[str]) -> str:
    """The token in a file that only its owner may read. Raises OSError, ValueError, both with the file's name."""
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ValueError(f"{path} has mode {mode:o}: others can read the token; fix: chmod 600 {path}")
        content = file.read(_MOST_TOKEN + 1)
    if len(content) > _MOST_TOKEN or not content.isascii():
        raise ValueError(
            f"{path} is no token file, which holds one line of ASCII: give the one that the server has, or let "
            "`envgym sandboxes serve --token-file FILE` make one where FILE is not there"
        )
    return check_token(content.decode("ascii").strip(), f"the token in {path}")


def make_token_file(path: str | os.PathLike[str]) -> None:
    """Write a new token where there is no file yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_NONCE) + "\n")
    Path(path).chmod(0o600)


def _proof(token: str, role: str, nonces: tuple[bytes, bytes], certificate: bytes) -> str:
    said = [
        b"envgym-sandboxes",
        str(VERSION).encode(),
        role.encode(),
        *nonces,
        hashlib.sha256(certificate).digest(),
    ]
    text = b"".join(len(part).to_bytes(4) + part for part in said)
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def _decoder() -> protocol.Decoder:
    return protocol.Decoder(most_head=_MAX_FRAME, most_body=lambda _head: 0)


async def _receive(reader: asyncio.StreamReader, decoder: protocol.Decoder) -> dict[str, Any]:
    """One small frame. Nothing may follow it: both sides wait for each other."""
    while True:
        data = await reader.read(_MAX_FRAME)
        if not data:
            raise Refused("the other side hung up during the handshake")
        for head, body in decoder.feed(data):
            if body or decoder.waiting:
                raise protocol.ProtocolError("more than a handshake frame")
            return head


def _nonce(head: dict[str, Any]) -> bytes:
    try:
        nonce = bytes.fromhex(head["nonce"])
    except (KeyError, TypeError, ValueError):
        raise Refused("the other side sent no nonce; is it an envgym server?") from None
    if len(nonce) != _NONCE:
        raise Refused(f"the other side sent a nonce of {len(nonce)} bytes, not {_NONCE}")
    return nonce


def _agrees(head: dict[str, Any], wanted: str) -> bool:
    return hmac.compare_digest(str(head.get("proof", "")).encode("utf-8", "replace"), wanted.encode())


async def as_server(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    certificate: bytes,
    welcome: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    """The server's side. `welcome` turns what the client wants into what it is told. Raises Refused, OSError.

    Why `welcome` refuses a client, which has proved itself by then, it is told.
    certificate: the server's own in DER, b"" without TLS.
    """
    ours = os.urandom(_NONCE)
    writer.write(protocol.encode({"envgym-sandboxes": VERSION, "nonce": ours.hex()}))
    await writer.drain()
    head = await _receive(reader, _decoder())
    nonces = (ours, _nonce(head))
    if not _agrees(head, _proof(token, "client", nonces, certificate)):
        raise Refused("a client does not know the token")
    proof = _proof(token, "server", nonces, certificate)
    wanted = head.get("wants")
    try:
        told = welcome(wanted if isinstance(wanted, dict) else {})
    except Refused as error:
        writer.write(protocol.encode({"proof": proof, "refused": str(error)}))
        await writer.drain()
        raise
    writer.write(protocol.encode({"proof": proof, **told}))
    await writer.drain()


async def as_client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    certificate: bytes,
    wants: dict[str, Any],
) -> dict[str, Any]:
    """The client's side; returns what the server tells. Raises Refused, OSError.

    certificate: what the server showed, in DER, b"" without TLS.
    """
    decoder = _decoder()
    head = await _receive(reader, decoder)
    if head.get("envgym-sandboxes") != VERSION:
        raise Refused(f"it speaks version {head.get('envgym-sandboxes')!r}, this client {VERSION}")
    nonces = (_nonce(head), os.urandom(_NONCE))
    proof = _proof(token, "client", nonces, certificate)
    writer.write(protocol.encode({"nonce": nonces[1].hex(), "proof": proof, "wants": wants}))
    await writer.drain()
    try:
        head = await _receive(reader, decoder)
    except Refused:
        raise WrongToken("it has another token, since it hung up after this side's proof") from None
    if not _agrees(head, _proof(token, "server", nonces, certificate)):
        raise Refused("it does not know the token: it is not the server that was meant")
    if "refused" in head:
        raise Refused(str(head["refused"]))
    return head
