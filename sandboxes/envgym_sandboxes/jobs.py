"""What is done to layers from outside any sandbox: fill, merge, compare, pack. Each runs in a fork of the zygote.

This is the list of jobs by name, and how a layer is filled from steps. Layers were written by hostile programs, and
may still be while they are read: see `walk`. Paths are relative to the state directory unless they begin with /.
Nothing here follows a symlink or starts a program.
"""

import errno
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from envgym_sandboxes import protocol
from envgym_sandboxes.compare import diff, digest
from envgym_sandboxes.copying import copy_tree, merge
from envgym_sandboxes.durable.packing import pack, replace, unpack

__all__ = ["answer", "run"]

Answer = tuple[Any, bytes]


def answer(sock: socket.socket, fds: list[int]) -> None:
    """Run the jobs that a socket asks for, until its end. fds: descriptors for those that take any."""
    number, decoder = 0, protocol.Decoder()
    try:
        while data := sock.recv(1 << 20):
            for head, body in decoder.feed(data):
                number = head["id"]
                arguments = json.loads(body)
                result, body = run(head["job"], arguments | ({"fds": fds} if fds else {}))
                sock.sendall(protocol.encode({"id": number, "result": result}, body))
    except Exception as error:
        sock.sendall(protocol.encode({"id": number} | _told(error)))


def _told(error: Exception) -> dict[str, Any]:
    """An error as `Peer` makes an OSError of it: with its number and text, not with both of them in its text."""
    if not isinstance(error, OSError) or error.errno is None:
        return {"error": f"{type(error).__name__}: {error}", "errno": errno.EIO}
    of_what = f": {error.filename!r}" if error.filename is not None else ""
    return {"error": f"{error.strerror}{of_what}", "errno": error.errno or errno.EIO}


def run(job: str, arguments: dict[str, Any]) -> Answer:
    """Run one job by name; its JSON result and its bytes."""
    return _JOBS[job](**arguments)


def fill(layer: str, steps: list[dict[str, Any]], uid: int, gid: int) -> Answer:
    """Build a layer from steps: {do: directory, file, link or tree, path, mode, own, ...}; "/" is its top."""
    for step in steps:
        path = layer + step["path"].rstrip("/")
        owner = (uid, gid) if step.get("own", True) else None
        parent = step["path"] if step["do"] in ("directory", "tree") else os.path.dirname(step["path"])
        _make_directories(layer, parent, owner)
        if step["do"] == "link":
            os.symlink(step["target"], path)
            continue
        if step["do"] == "tree":
            skip = frozenset(step.get("skip", ()))
            copy_tree(step["source"], path, owner, f"{layer}.links", public=step.get("public", False), skip=skip)
            continue
        if step["do"] == "file":
            if os.path.lexists(path):
                os.unlink(path)
            with open(path, "wb") as file:
                file.write(step["content"].encode("utf-8", "surrogateescape"))
            if owner:
                os.chown(path, *owner)
        os.chmod(path, step.get("mode", 0o755))
    return None, b""


def _make_directories(layer: str, path: str, owner: tuple[int, int] | None) -> None:
    at = layer
    for name in path.split("/"):
        at = f"{at}/{name}" if name else at
        if not os.path.isdir(at) or os.path.islink(at):
            os.mkdir(at, 0o755)
            if owner:
                os.chown(at, *owner)


_JOBS: dict[str, Callable[..., Answer]] = {
    "fill": fill,
    "merge": merge,
    "digest": digest,
    "diff": diff,
    "pack": pack,
    "unpack": unpack,
    "replace": replace,
}
