"""A Ray cluster for one run: one that is there is joined, or one is started here, on the loopback, for the run.

What we start is ours: its processes are below a keeper, its folder is temporary, and who talks to it needs a token
that is made for this process. Ray's usage reports and its dashboard are off.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from envgym.errors import InfrastructureFailure
from envgym_agents.learn.cluster.head import ADDRESS
from envgym_agents.learn.cluster.keeper import ENDED, SAID
from envgym_agents.learn.cluster.placement import Node
from envgym_agents.learn.cluster.reach import reached
from envgym_agents.learn.config_cluster import Cluster

__all__ = ["connected", "here", "living", "ray_module"]

_LEAVE_S = 30.0


def ray_module() -> Any:
    """Ray. Raises ValueError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError("[cluster] needs Ray; pip install 'envgym[cluster]'") from error
    return ray


def here(config: Cluster) -> tuple[Node, ...]:
    """The one node of a cluster that would be started on this host."""
    gpus = 0
    if config.gpus or config.learner_gpus:
        import torch

        gpus = torch.cuda.device_count()
    cpus = float(config.host_cpus or os.cpu_count() or 1)
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (Node("", "this host", cpus, float(gpus), memory),)


def living(ray: Any) -> tuple[Node, ...]:
    """The nodes that live, with what nobody has taken of them."""
    from ray._private import state  # nothing public says it by node

    free: dict[str, dict[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    found = []
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] in free:
            left = free[node["NodeID"]]
            memory = int(left.get("memory", 0.0))
            address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            found.append(Node(node["NodeID"], address, left.get("CPU", 0.0), left.get("GPU", 0.0), memory))
    return tuple(sorted(found, key=lambda node: node.address))


@contextmanager
def connected(config: Cluster) -> Iterator[Any]:
    """Ray, connected as the driver of one job; what the job has placed ends with it.

    Raises InfrastructureFailure where no cluster answers.
    """
    ray = ray_module()
    if config.address:
        with _joined(ray, reached(config.address)):
            yield ray
        return
    with _on_the_loopback(), _started(config) as address, _joined(ray, address):
        yield ray


@contextmanager
def _on_the_loopback() -> Iterator[None]:
    """Ray's own switch for a host that is a cluster by itself; where Ray starts, it is an environment variable.

    Else a loopback address is taken for that of an interface, and all of Ray's servers listen on all of them.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _joined(ray: Any, address: str) -> Iterator[None]:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = " ".join(str(error).split())[:300]
        raise InfrastructureFailure(
            f"the Ray cluster at {address!r} could not be joined ({type(error).__name__}: {told}); look at its head"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@cache
def _token() -> str:
    """Of this process: Ray reads it once, so several clusters one after the other share it."""
    return secrets.token_hex(32)


@contextmanager
def _started(config: Cluster) -> Iterator[str]:
    """A cluster of this host alone; its address."""
    if "RAY_AUTH_MODE" not in os.environ:
        from ray import _raylet

        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=_token())
        _raylet.Config.initialize("")  # type: ignore[attr-defined]  # Ray has read its environment when it was imported
    # short: the paths of Ray's sockets are in it
    folder = Path(tempfile.mkdtemp(prefix="eg-ray-"))
    line, ours = os.pipe()
    keeper: subprocess.Popen[bytes] | None = None
    try:
        command = [sys.executable, "-m", "envgym_agents.learn.cluster.keeper", str(line), str(folder)]
        only_here = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        keeper = subprocess.Popen(
            [*command, *_head(config, folder)],
            pass_fds=[line],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **only_here},
            start_new_session=True,  # an interrupt is for who trains, who then ends it
        )
        os.close(line)
        line = -1
        yield _address(folder, config.start_s)
    finally:
        os.close(ours)
        if line >= 0:
            os.close(line)
        if keeper is None:
            folder.rmdir()
        else:
            try:
                keeper.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()


def _head(config: Cluster, folder: Path) -> list[str]:
    (node,) = here(config)
    numbers = (int(node.cpus), int(node.gpus), config.store_mib * 2**20)
    return [sys.executable, "-m", "envgym_agents.learn.cluster.head", str(folder), *map(str, numbers)]


def _address(folder: Path, start_s: float) -> str:
    """Where the cluster says that it is. Raises InfrastructureFailure when it does not, with what it said."""
    until, told, ended = time.monotonic() + start_s, folder / ADDRESS, folder / ENDED
    while time.monotonic() < until and not ended.exists():
        if told.exists():
            return told.read_text()
        time.sleep(0.05)
    how = "ended at once" if ended.exists() else f"was not there within cluster.start_s = {start_s:g} s"
    said = " ".join((folder / SAID).read_text(errors="replace").strip().splitlines()[-1:])
    raise InfrastructureFailure(f"Ray, started on this host, {how}; it said: {said!r}")
