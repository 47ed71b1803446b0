"""Sandboxes of every node of a Ray cluster, in one pool: Ray places the servers, the remote seam drives them.

It needs Ray on all nodes (``pip install envgym[cluster]``) and a sandbox backend there (``envgym doctor``). Without
Ray it shows the same with two servers in this process. Run it: ``python examples/ray_sandboxes.py``

What is said between the nodes is plain text here: right on one machine or in a network that nobody else listens to.
Elsewhere give every server a certificate (``tls=``) and the clients its authority (``tls_ca=``).
"""

import asyncio
import importlib.util
import secrets
from functools import partial
from typing import Any

from envgym_sandboxes.pool import PoolBackend, PoolBounds
from envgym_sandboxes.remote import RemoteBackend, SandboxServer

from envgym import SandboxBackend, World, make_backend

SANDBOXES = 8


class Node:
    """One server of this node's sandboxes. It ends with its process, and its sandboxes with it."""

    def __init__(self, token: str, host: str) -> None:
        self._token, self._host = token, host
        self._server: SandboxServer | None = None

    async def start(self) -> str:
        """Serve, and say where."""
        self._server = SandboxServer(make_backend("auto"), self._token, listen=f"{self._host}:0", plain=True)
        await self._server.__aenter__()
        return self._server.address

    async def stop(self) -> None:
        """Close every sandbox and stop listening."""
        if self._server is not None:
            await self._server.__aexit__(None, None, None)


async def use(addresses: list[str], token: str) -> None:
    """One pool over all servers: a node that goes away does not stop the others; one that comes back is used."""
    hosts: list[Any] = [partial(RemoteBackend, address, token=token, plain=True) for address in addresses]
    async with PoolBackend(hosts, bounds=PoolBounds(starts=4)) as pool:
        await asyncio.gather(*(greet(pool, number) for number in range(SANDBOXES)))


async def greet(pool: SandboxBackend, number: int) -> None:
    async with await pool.create(World(env={"N": str(number)})) as sandbox:
        result = await sandbox.exec('echo "sandbox $N on $(uname -n)"')
        print(sandbox.id.partition("/")[0], result.text.strip())


async def on_ray(token: str) -> None:
    """A server on every node that lives; an actor needs no processor of its own, its sandboxes do the work."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    ray.init(ignore_reinit_error=True)
    actor = ray.remote(num_cpus=0)(Node)
    nodes = [
        actor.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(token, node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    addresses = await asyncio.gather(*(node.start.remote() for node in nodes))
    print(f"{len(addresses)} nodes serve sandboxes: {', '.join(addresses)}")
    try:
        await use(addresses, token)
    finally:
        await asyncio.gather(*(node.stop.remote() for node in nodes))
        ray.shutdown()


async def in_this_process(token: str) -> None:
    nodes = [Node(token, "127.0.0.1") for _ in range(2)]
    try:
        await use([await node.start() for node in nodes], token)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def main() -> None:
    token = secrets.token_hex(32)
    if importlib.util.find_spec("ray") is not None:
        await on_ray(token)
    else:
        print('Ray is not installed (pip install "envgym[cluster]"): the same with two servers in this process')
        await in_this_process(token)


if __name__ == "__main__":
    asyncio.run(main())
