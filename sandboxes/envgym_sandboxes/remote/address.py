"""Where a server listens: "host:port", with an IPv6 host in brackets."""

import ipaddress
from dataclasses import dataclass
from typing import Self

__all__ = ["Address", "is_loopback"]


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name or number, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "127.0.0.1:8000", "host.name:8000" or "[::1]:8000". Raises ValueError, TypeError."""
        if not isinstance(text, str):
            raise TypeError(f"an address is {text!r}; it must be a str, HOST:PORT, such as '127.0.0.1:8000'")
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535 or (":" in host) != (host[0] == "["):
            raise ValueError(f"{text!r} is no address; give HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether nothing said to a host leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean anything
