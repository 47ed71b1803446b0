"""The process around an engine: one socket to whoever started it, and no other.

It ends with its owner: at the end of the socket it removes its folder and kills its whole process group, in the
middle of whatever is computed, so that an owner killed by SIGKILL leaves nothing behind.
"""

import os
import queue
import shutil
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from envgym_agents.policies.vllm.serving import Serving
from envgym_agents.policies.vllm.wire import (
    ALL,
    Asked,
    Engine,
    EngineSettings,
    Failed,
    Ready,
    Said,
    receive,
    send,
)

__all__ = ["serve"]


def serve(descriptor: int, settings: str, version: int, make: Callable[[EngineSettings], Engine]) -> None:
    """Make the engine and serve it over the socket `descriptor`. settings: an `EngineSettings` as JSON."""
    end = socket.socket(fileno=descriptor)
    wanted = msgspec.json.decode(settings, type=EngineSettings)
    inbox: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(end, inbox, Path(wanted.folder)), daemon=True).start()

    def say(message: Said) -> None:
        send(end, message)

    try:
        engine = make(wanted)
    except Exception as error:  # vLLM says in many ways that it cannot have a model
        traceback.print_exc()  # first, for whoever hears of it kills this process
        say(Failed(ALL, f"{type(error).__name__}: {error}"))
        raise
    say(Ready(engine.name, os.getpid()))
    Serving(engine, inbox, say, version=version).run()
    _end(Path(wanted.folder))


def _read(end: socket.socket, inbox: "queue.SimpleQueue[Asked | None]", folder: Path) -> None:
    try:
        while (message := receive(end)) is not None:
            inbox.put(message)  # type: ignore[arg-type]  # the owner says nothing else
    except (OSError, ValueError):
        pass  # a torn socket is an end too
    _end(folder)


def _end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
