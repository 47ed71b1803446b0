"""What a request to the proxy asks for, and what of it goes on.

Strict where programs differ in how they read a request: whatever could mean two places, or end in two ways, is
refused. The request that goes on is written anew from what was understood, never copied. It opens nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import h11

from envgym.egress import Place, parse_place

__all__ = ["Refused", "Wanted", "clean_response", "understand"]

Headers = list[tuple[bytes, bytes]]
_URL = re.compile(rb"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"}
    | {b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info"}
)
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host"})


class Refused(Exception):
    """A request that is not carried out. status: of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as it was understood. target, headers: of the request that goes on; empty for a tunnel."""

    method: str
    place: Place
    target: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_tunnel(self) -> bool:
        """Whether bytes are to go both ways as they are."""
        return self.method == "CONNECT"


def understand(request: h11.Request) -> Wanted:
    """Raises Refused."""
    method = request.method.decode("ascii", "replace")
    if method == "CONNECT":
        place = _place(request.target, None)
        _check_host(request, place, 443)
        return Wanted(method, place)
    match = _URL.fullmatch(request.target)
    if match is None:
        scheme = request.target.partition(b":")[0].lower() if b"://" in request.target else b""
        raise Refused(400, _advice(scheme))
    place = _place(match[1], 80)
    _check_host(request, place, 80)
    rest = match[2]
    target = rest if rest.startswith(b"/") else b"/" + rest
    return Wanted(method, place, target, tuple(_onwards(request, place)))


def _advice(scheme: bytes) -> str:
    if scheme == b"https":
        return "https goes through CONNECT, not through a request for the whole URL"
    if scheme:
        return f"only http and CONNECT are carried, not {scheme[:20]!r}"
    return "this is a proxy: ask for http://host/path or CONNECT host:port"


def _place(authority: bytes, port: int | None) -> Place:
    try:
        return parse_place(authority.decode("ascii"), port)
    except ValueError as error:  # UnicodeDecodeError is one
        raise Refused(400, f"the place asked for is none: {error}") from None


def _check_host(request: h11.Request, place: Place, port: int) -> None:
    """The Host field, where there is one, says the same place as the target."""
    hosts = [value for name, value in request.headers if name == b"host"]
    if len(hosts) > 1:
        raise Refused(400, "there is more than one Host field")
    for host in hosts:
        said = _place(host, place.port if request.method == b"CONNECT" else port)
        if said != place:
            raise Refused(400, f"the target is {place}, the Host field says {said}")


def _onwards(request: h11.Request, place: Place) -> Headers:
    """The fields that go on, with one way only to say where the body ends."""
    lengths = [value for name, value in request.headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _value in request.headers)
    if chunked and (lengths or request.http_version < b"1.1"):
        raise Refused(400, "the request's length is said in two ways")
    kept = [(b"host", str(place).removesuffix(":80").encode())]
    kept += [item for item in _without_hops(request.headers) if item[0] not in _FRAMING | {b"expect"}]
    if chunked:
        kept.append((b"transfer-encoding", b"chunked"))
    elif lengths:
        kept.append((b"content-length", lengths[0]))
    return [*kept, (b"connection", b"close")]


def clean_response(response: h11.Response) -> Headers:
    """A response's fields without those that are about one connection; its length is kept, chunks are made anew."""
    chunked = any(name == b"transfer-encoding" for name, _value in response.headers)
    kept = _without_hops(response.headers)
    return [item for item in kept if item[0] != b"content-length"] if chunked else kept


def _without_hops(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    headers = list(headers)
    named = {
        option.strip().lower() for name, value in headers if name == b"connection" for option in value.split(b",")
    }
    dropped = _HOP | (named - _FRAMING)
    return [(name, value) for name, value in headers if name not in dropped]
