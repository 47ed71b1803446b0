"""Whether a sandbox may connect somewhere, and to which address: rules of a world, judged on the host.

A name is resolved here, once, and the addresses that pass are the ones to connect to: no later answer of a name
server changes where a connection goes. Addresses that are not public (the host's own, its network's, a cloud's
metadata) pass only if a rule names the address itself. It connects to nothing.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from envgym.egress import EgressRule, Place

__all__ = ["Policy", "Resolve", "Verdict", "is_public", "resolve"]

Resolve = Callable[[str, int], Awaitable[list[str]]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_RESOLVERS = ThreadPoolExecutor(max_workers=32, thread_name_prefix="envgym-resolve")
_MOST_LOOKUPS = 4
"""Of one world at once, also those that nobody waits for any more."""
_MOST_ADDRESSES = 8
_MOST_LISTED = 20
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2002::/16")))
"""What Python calls global, and where only machines nearby answer: a cloud's services, protocols, relays."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision. addresses: where to connect, in turn. failure: why there is none though it is allowed."""

    allowed: bool
    reason: str
    addresses: tuple[str, ...] = ()
    failure: str = ""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, as this host resolves it. Raises OSError.

    In threads of its own: a slow name server holds up no other work of this process.
    """
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look_up)
    return list(dict.fromkeys(str(address[0]) for *_kind, address in found))


def is_public(text: str) -> bool:
    """Whether an address is one of the internet's, whatever it is wrapped in."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return all(_is_public(inner) for inner in _inner(address))


def _inner(address: _Address) -> tuple[_Address, ...]:
    """The addresses that packets to this one reach."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return (address.ipv4_mapped,)
        if address.teredo is not None:
            return (address, *address.teredo)
        if address in _NAT64:
            return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return (address,)


def _is_public(address: _Address) -> bool:
    local = isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address.scope_id is not None)
    special = address.is_multicast or address.is_reserved or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not local and not special


class Policy:
    """The rules of one world."""

    def __init__(self, rules: Sequence[str], *, resolve: Resolve = resolve) -> None:
        self._rules = [EgressRule.parse(rule) for rule in rules]
        self._resolve = resolve
        self._lookups = asyncio.Semaphore(_MOST_LOOKUPS)

    async def decide(self, place: Place, *, within_s: float) -> Verdict:
        """Judge one request. Names that take longer than `within_s` to resolve are a failure."""
        rule = next((rule for rule in self._rules if rule.allows(place)), None)
        if rule is None:
            more = ", ..." if len(self._rules) > _MOST_LISTED else ""
            listed = ", ".join(map(str, self._rules[:_MOST_LISTED])) + more
            return Verdict(False, f"no rule of this world allows {place}; it allows {listed}")
        if place.is_address:
            return Verdict(True, f"rule {rule}", (place.host,))
        looking = asyncio.ensure_future(self._looked_up(place))
        looking.add_done_callback(_heard)  # it may be that nobody waits for it any more
        try:
            async with asyncio.timeout(within_s):
                found = await asyncio.shield(looking)
        except (OSError, UnicodeError) as error:
            why = f"{place.host} does not resolve: {str(error) or type(error).__name__}"
            return Verdict(True, f"rule {rule}", failure=why)
        passed = tuple(address for address in found if self._may_reach(address, place.port))[:_MOST_ADDRESSES]
        if not passed:
            return Verdict(
                False,
                f"rule {rule} allows {place.host}, but it resolves to {', '.join(found[:3]) or 'nothing'}, "
                "which is not public: only a rule that names the address would allow that",
            )
        return Verdict(True, f"rule {rule}", passed)

    async def _looked_up(self, place: Place) -> list[str]:
        async with self._lookups:
            return await self._resolve(place.host, place.port)

    def _may_reach(self, address: str, port: int) -> bool:
        try:
            place = Place(str(ipaddress.ip_address(address)), port)
        except ValueError:
            return False
        return is_public(address) or any(rule.allows(place) for rule in self._rules)


def _heard(looking: "asyncio.Future[list[str]]") -> None:
    if not looking.cancelled():
        looking.exception()
