"""Rules about where a world may connect to: what `World.egress` says, as text and as values.

Pure: it parses and matches names, addresses and ports. Resolving a name, and judging what it resolves to, is the
matter of whoever connects.
"""

import ipaddress
import re
from dataclasses import dataclass

__all__ = ["EgressRecord", "EgressRule", "Place", "parse_place"]

DEFAULT_PORTS = (80, 443)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST = 253
_HINT = 'write "name", "name:port", "*.suffix", "192.0.2.1:port" or "[2001:db8::1]:port"'


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """One decision about a connection that a sandbox wanted.

    number: 1, 2, ... in the order of decisions of one sandbox; the oldest are forgotten when there are many.
    at: seconds since the epoch. method: of the request, "CONNECT" for a tunnel. host: as asked for, "" where the
    request could not be understood. allowed, reason: the decision, and the rule or the fault it rests on.
    address: the one connected to. sent_bytes, received_bytes: what the sandbox sent and got, so far.
    failure: why what was allowed did not work out, or ended early.
    """

    number: int
    at: float
    method: str
    host: str
    port: int
    allowed: bool
    reason: str
    address: str | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a connection goes: a name in lower case or an address as Python writes it, and a port."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """Whether the host is an address."""
        return _address(self.host) is not None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One rule. host: a name, an address, or "*." and a suffix, which stands for every name below it."""

    host: str
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "EgressRule":
        """A rule as written in `World.egress`; without a port it is about 80 and 443. Raises ValueError."""
        wild = text.startswith("*.")
        host, port = _split(text[2:] if wild else text)
        if wild and _address(host) is not None:
            raise ValueError(f"{text!r}: an address has no suffix; {_HINT}")
        return cls("*." + host if wild else host, DEFAULT_PORTS if port is None else (port,))

    def allows(self, place: Place) -> bool:
        """Whether a place is one of these."""
        if place.port not in self.ports:
            return False
        if self.host.startswith("*."):
            return not place.is_address and place.host.endswith(self.host[1:])
        return place.host == self.host

    def __str__(self) -> str:
        ports = "" if self.ports == DEFAULT_PORTS else f":{self.ports[0]}"
        return (f"[{self.host}]" if ":" in self.host and ports else self.host) + ports


def parse_place(text: str, port: int | None = None) -> Place:
    """The authority of a URL, such as "pypi.org:443". port: where none is written. Raises ValueError.

    Nothing else may be in it: no user, no percent sign, no number that only some programs take for an address.
    """
    host, written = _split(text)
    if written is None and port is None:
        raise ValueError(f"{text[:80]!r} has no port")
    return Place(host, written if written is not None else port or 0)


def _split(text: str) -> tuple[str, int | None]:
    host, bracket, rest = text.partition("]") if text.startswith("[") else ("", "", "")
    if bracket:
        address = _address(host[1:])
        if address is None or ":" not in host:
            raise ValueError(f"{text[:80]!r}: in brackets stands an IPv6 address; {_HINT}")
        return address, _port(text, rest[1:] if rest.startswith(":") else None if not rest else "")
    address = _address(text)
    if address is not None:
        return address, None
    host, colon, digits = text.partition(":")
    return _host(text, host), _port(text, digits if colon else None)


def _host(text: str, host: str) -> str:
    address = _address(host)
    if address is not None:
        return address
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:80]!r}: {host[:80]!r} is neither a name nor an address; {_HINT}")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{text[:80]!r}: {host[:80]!r} is a number that only some take for an address; {_HINT}")
    return name


def _port(text: str, digits: str | None) -> int | None:
    if digits is None:
        return None
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 5 or not 1 <= int(digits) <= 65535:
        raise ValueError(f"{text[:80]!r}: {digits[:20]!r} is no port; {_HINT}")
    return int(digits)


def _address(text: str) -> str | None:
    """An address in its one spelling; IPv4 inside IPv6 is IPv4. None for what is no address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return None
        return str(found.ipv4_mapped or found)
    return str(found)
