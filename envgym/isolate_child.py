"""The other side of `envgym.isolate`: serves one environment over a socket, one JSON frame per call.

It runs in a process group of its own beside a guardian, a forked process that does nothing but wait for the
owner's end and then end the group, whatever this code is stuck in.
"""

import asyncio
import contextlib
import inspect
import json
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

from envgym import errors
from envgym.env import Env, Step
from envgym.errors import Boundary, DeadlineExceeded, EnvgymError, EnvironmentFailure, SandboxDied
from envgym.replay import as_env
from envgym.wire import action_from_json, dumps, snapshot_from_json, snapshot_to_json, step_to_json

__all__ = ["FRAME", "MAX_FRAME_BYTES", "error_from_json", "error_to_json", "serve"]

FRAME = struct.Struct(">I")
"""A frame is its body's length in bytes, then the body."""

MAX_FRAME_BYTES = 64 << 20
"""Longest answer that is accepted from an environment."""

_GRACE_S = 3.0
_PLAIN: dict[str, type[Exception]] = {
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "Misconfigured": errors.Misconfigured,
}


def error_to_json(error: BaseException) -> dict[str, Any]:
    """An exception as data: its class name, its message, and what a deadline needs."""
    found: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, EnvgymError):
        found["boundary"] = error.boundary
    if isinstance(error, DeadlineExceeded):
        found |= {"what": error.what, "limit_s": error.limit_s}
    return found


def error_from_json(raw: Any) -> Exception:
    """The exception to raise here: the contract's own classes again, EnvironmentFailure for any other.

    MemoryError becomes SandboxDied: the process met its bound and its state is unknown.
    """
    kind, message = (
        (str(raw.get(key)) for key in ("kind", "message")) if isinstance(raw, dict) else ("?", repr(raw))
    )
    if kind in _PLAIN:
        return _PLAIN[kind](message)
    if kind == "MemoryError":
        return SandboxDied(f"the isolated environment ran out of memory: {message}")
    found = getattr(errors, kind, None)
    if found is DeadlineExceeded:
        try:
            return DeadlineExceeded(str(raw["what"]), float(raw["limit_s"]), Boundary(raw["boundary"]))
        except (KeyError, ValueError, TypeError):
            return EnvironmentFailure(message)
    if isinstance(found, type) and issubclass(found, EnvgymError):
        return found(message)
    return EnvironmentFailure(f"{kind}: {message}")


def serve(socket_fd: int, life_fd: int) -> None:
    """Run until the owner closes the socket; called in a fresh interpreter."""
    _start_guardian(life_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the owner's to handle
    with socket.socket(fileno=socket_fd) as channel:
        header = json.loads(_read_blocking(channel))
        sys.path[:] = header["path"]
        if header["memory_bytes"] is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (header["memory_bytes"], header["memory_bytes"]))
        pickled = _read_blocking(channel)  # from the owner, who is trusted; nothing pickled goes back
        asyncio.run(_serve(channel, pickled))


def _start_guardian(life_fd: int) -> None:
    """Fork the process that ends this group when the owner is gone."""
    alive_read, _alive_write = os.pipe()
    if os.fork():
        os.close(alive_read)  # the other end stays open until this process ends
        os.close(life_fd)
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        keep = sorted((life_fd, alive_read))
        os.closerange(3, keep[0])
        os.closerange(keep[0] + 1, keep[1])
        os.closerange(keep[1] + 1, os.sysconf("SC_OPEN_MAX"))
        select.select([life_fd], [], [])  # nothing is ever written: it becomes readable when the owner is gone
        select.select([alive_read], [], [], _GRACE_S)  # an idle environment closes by itself
    finally:
        os.killpg(0, signal.SIGKILL)


def _read_blocking(channel: socket.socket) -> bytes:
    size = FRAME.unpack(_exactly(channel, FRAME.size))[0]
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(1 << 20, size - len(parts)))
        if not part:
            raise SystemExit(0)  # the owner is gone
        parts += part
    return bytes(parts)


async def _serve(channel: socket.socket, pickled: bytes) -> None:
    channel.setblocking(True)
    async with contextlib.AsyncExitStack() as stack:
        try:
            env = await _make(pickled, stack)
            hello = {
                "task_id": env.task.id,
                "tools": [spec.model_dump() for spec in env.tools],
                "grader": _grader(env),
            }
        except Exception as error:  # whatever it is, it is told and ends the process
            _answer(channel, {"error": error_to_json(error)})
            return
        stack.push_async_callback(env.close)
        _answer(channel, {"value": hello})
        loop = asyncio.get_running_loop()
        while True:
            request = json.loads(await _request(loop, channel))
            try:
                reply = {"value": await _CALLS[request["call"]](env, request)}
            except Exception as error:  # told to the owner, who knows whose fault it is
                reply = {"error": error_to_json(error)}
            _answer(channel, reply)
            if request["call"] == "close":
                return


async def _request(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> bytes:
    """Wait for the next request without holding up what the environment does in the background."""
    ready = asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)
    return _read_blocking(channel)


def _answer(channel: socket.socket, reply: dict[str, Any]) -> None:
    try:
        body = dumps(reply)
    except (TypeError, ValueError, RecursionError) as error:
        body = dumps({"error": error_to_json(EnvironmentFailure(f"an answer JSON cannot hold: {error}"))})
    try:
        channel.sendall(FRAME.pack(len(body)) + body)
    except OSError:
        raise SystemExit(0) from None  # the owner is gone


async def _make(pickled: bytes, stack: contextlib.AsyncExitStack) -> Env:
    make = pickle.loads(pickled)
    try:
        takes_stack = "stack" in inspect.signature(make).parameters
    except ValueError:  # some builtins have no signature
        takes_stack = False

    def once() -> Any:
        return make(stack=stack) if takes_stack else make()

    made = once()
    return as_env(await made if inspect.isawaitable(made) else made, once)


def _grader(env: Env) -> dict[str, str] | None:
    grader = getattr(env, "grader", None)
    return None if grader is None else {"name": str(grader.name), "version": str(grader.version)}


async def _reset(env: Env, request: dict[str, Any]) -> Any:
    return _told(await env.reset(seed=request["seed"], start=snapshot_from_json(request["start"])))


async def _step(env: Env, request: dict[str, Any]) -> Any:
    return _told(await env.step(action_from_json(request["action"])))


def _told(step: Step) -> dict[str, Any]:
    """A step as it goes through the pipe, its images' bytes included."""
    told = step_to_json(step)
    if step.images:
        told["images"] = {name: b64encode(content).decode() for name, content in step.images.items()}
    return told


async def _snapshot(env: Env, request: dict[str, Any]) -> Any:
    return snapshot_to_json(await env.snapshot())


async def _release(env: Env, request: dict[str, Any]) -> Any:
    snapshot = snapshot_from_json(request["snapshot"])
    assert snapshot is not None
    await env.release(snapshot)


async def _close(env: Env, request: dict[str, Any]) -> Any:
    await env.close()


_CALLS: dict[str, Callable[[Env, dict[str, Any]], Awaitable[Any]]] = {
    "reset": _reset,
    "step": _step,
    "snapshot": _snapshot,
    "release": _release,
    "close": _close,
}
