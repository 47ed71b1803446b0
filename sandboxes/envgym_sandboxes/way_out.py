"""Where a sandbox's way out begins: the port inside, what programs there are told, and who serves it on the host.

The way out is the sandbox's own, over all of its inits; it exists only where the world has rules for it.
"""

from typing import TYPE_CHECKING

from envgym.egress import EgressRecord, EgressRule
from envgym.task import World

if TYPE_CHECKING:
    from envgym_sandboxes.proxy import Proxy
    from envgym_sandboxes.streams import Streams

__all__ = ["WayOut", "proxy_env", "way_out_port"]

_PORT = 3128
_LOCAL = ("localhost", "127.0.0.1", "::1")


def way_out_port(world: World) -> int | None:
    """The port of the sandbox's own loopback at which programs find the proxy."""
    return _PORT if world.egress else None


def proxy_env(world: World) -> dict[str, str]:
    """What tells programs of the proxy. They speak to the inside's loopback directly, unless a rule names it."""
    if not world.egress:
        return {}
    named = {EgressRule.parse(rule).host for rule in world.egress}
    direct = ",".join(host for host in _LOCAL if host not in named)
    url = f"http://127.0.0.1:{_PORT}"
    env = {f"{name}_PROXY": url for name in ("HTTP", "HTTPS", "ALL")} | {"NO_PROXY": direct}
    return env | {name.lower(): value for name, value in env.items()}


class WayOut:
    """Of one sandbox, named `sandbox`. Nothing where the world has no rules."""

    def __init__(self, world: World, sandbox: str) -> None:
        self._proxy: Proxy | None = None
        if world.egress:
            from envgym_sandboxes import policy, proxy  # h11 costs time that worlds without rules need not pay

            bounds = proxy.Bounds(bytes=world.resources.transfer_bytes)
            self._proxy = proxy.Proxy(policy.Policy(world.egress), sandbox, bounds)

    def serve(self, streams: "Streams") -> None:
        """Serve the streams that an init of the sandbox opens."""
        if self._proxy is not None:
            streams.on_open = self._proxy.take

    def records(self) -> tuple[EgressRecord, ...]:
        """The decisions so far."""
        return self._proxy.records() if self._proxy is not None else ()

    async def close(self) -> None:
        """End every connection."""
        if self._proxy is not None:
            await self._proxy.close()
