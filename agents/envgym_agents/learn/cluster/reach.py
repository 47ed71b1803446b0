"""Whether a Ray cluster that this process can join is at an address, found out in bounded time and in one line.

Ray by itself waits four minutes for an address where nothing is, and prints what it thinks meanwhile. So first the
port is tried, then whether who listens there speaks as Ray's servers do (HTTP/2), and then a process that can be
ended joins the cluster, as this one will afterwards. Nothing stays connected.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from envgym.errors import InfrastructureFailure

__all__ = ["reached"]

_GREET_S = 5.0
"""To connect, and to be greeted."""

_JOIN_S, _TRIES = 90.0, 2
"""To join: Ray is imported for it, which a busy host may take long for. Ray's own tries by default are 20."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins: the preface and empty settings (RFC 9113, sections 3.4 and 6.5)."""

_HEADER, _SETTINGS = 9, 4
"""Bytes of a frame's header, and the kind of the frame that a server begins with; the kind is the fourth byte."""

_START = "start one (`ray start --head`), correct the address, or leave it out"


def reached(address: str) -> str:
    """The address, host:port, as Ray takes it, after a cluster there was joined. address: "auto" or host:port.

    Raises InfrastructureFailure, one line: what failed, where, how long was waited, what to do.
    """
    where = _meant(address)
    _greeted(address, where)
    _joined(address, where)
    return where


def _meant(address: str) -> str:
    """As Ray takes it: what "auto" is, and for a name of this host the address of its interface."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return str(canonicalize_bootstrap_address(address))
    except ConnectionError:
        raise InfrastructureFailure(
            f"cluster.address {address!r}: no Ray cluster runs on this host (looked for its processes, nothing was "
            f"waited for); {_START}"
        ) from None


def _greeted(address: str, where: str) -> None:
    host, _, port = where.rpartition(":")
    begun = time.monotonic()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _GREET_S) as line:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return  # who speaks there is found out by joining
            line.settimeout(_GREET_S)
            line.sendall(_PREFACE)
            said = _first(line)
    except OSError as error:
        raise InfrastructureFailure(
            f"cluster.address: nothing answers at {_named(address, where)} ({error.strerror or error}; waited "
            f"{time.monotonic() - begun:.1f} s, at most {_GREET_S:g}); {_START}"
        ) from None
    if len(said) < _HEADER or said[3] != _SETTINGS:
        raise InfrastructureFailure(
            f"cluster.address: what listens at {_named(address, where)} is no Ray cluster (it began with "
            f"{said!r}; waited {time.monotonic() - begun:.1f} s); the port is that of Ray's head, 6379 by default: "
            f"{_START}"
        )


def _first(line: socket.socket) -> bytes:
    """The first frame's header; less where the other side says no more, or nothing within the time."""
    said = b""
    try:
        while len(said) < _HEADER and (more := line.recv(_HEADER - len(said))):
            said += more
    except (TimeoutError, ConnectionResetError):
        pass  # it listens, and is no Ray: what it said so far is told
    return said


def _joined(address: str, where: str) -> None:
    """A process of its own joins, and leaves. Raises with what Ray said, or that it said nothing in time."""
    command = [sys.executable, "-m", "envgym_agents.learn.cluster.reach", where]
    env, begun = {**os.environ, "RAY_NUM_REDIS_GET_RETRIES": str(_TRIES)}, time.monotonic()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_JOIN_S, env=env
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureFailure(
            f"cluster.address: what listens at {_named(address, where)} did not let a driver join within "
            f"{_JOIN_S:g} s; the port is that of Ray's head, 6379 by default, and this host must be a node of the "
            f"cluster (`ray start --address={where}`)"
        ) from None
    if done.returncode:
        said = " ".join((done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]).split())[:400]
        todo = "this host must be a node of the cluster, with the same Ray and Python and its token"
        if "Version mismatch" in said:
            todo = "make both versions equal, or start a cluster of this one"
        raise InfrastructureFailure(
            f"cluster.address: the cluster at {_named(address, where)} let nobody join, after "
            f"{time.monotonic() - begun:.1f} s: {said!r}; {todo}"
        )


def _named(address: str, where: str) -> str:
    return repr(address) if address == where else f"{address!r} (for Ray {where})"


def main(arguments: Sequence[str]) -> int:
    """``reach ADDRESS``: join and leave; 1, and one line of what Ray said, where that cannot be."""
    import ray

    init: Any = ray.init  # its types know less than it takes
    try:
        init(address=arguments[0], log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # the boundary: whatever it is, who asked is told
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
