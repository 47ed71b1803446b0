"""Heads of HTTP/1.1 as the gate reads them: strictly, for what could be read in two ways is refused.

Pure functions from bytes to values; every head that is odd is a ValueError that says what is. What goes on is
written anew from what was understood: what only some programs take for a line's end goes nowhere.
"""

import re
from dataclasses import dataclass

__all__ = ["MOST_HEAD", "Answer", "Request", "answer_of", "onward", "request_of"]

MOST_HEAD = 1 << 16
"""Bytes of the longest head."""

_REQUEST = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,60000}) HTTP/1\.[01]")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t ]*([\t -~\x80-\xff]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_OF_A_CONNECTION = frozenset(
    (b"proxy-connection", b"connection", b"keep-alive", b"proxy-authorization", b"upgrade")
)

Fields = tuple[tuple[bytes, bytes], ...]
"""Names in small letters, and values."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a browser asks a proxy for. target: as it was written."""

    method: str
    target: str
    fields: Fields

    @property
    def has_body(self) -> bool:
        """Whether anything says that a body follows."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.fields)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers. head: as it goes on. length: of the body in bytes; None: until the server's end."""

    status: int
    head: bytes
    length: int | None


def request_of(head: bytes) -> Request:
    """A request's head, with the empty line at its end. Raises ValueError."""
    line, fields = _parts(head)
    found = _REQUEST.fullmatch(line)
    if found is None:
        raise ValueError(f"the request begins with {line[:80]!r}")
    return Request(found[1].decode(), found[2].decode(), fields)


def onward(request: Request, path: str) -> tuple[bytes, int]:
    """A request's head as the site's server gets it, and its body's length. Raises ValueError."""
    if any(name == b"transfer-encoding" for name, _ in request.fields):
        raise ValueError("a request's body of unknown length")
    length = _length(request.fields)
    return _written(f"{request.method} {path} HTTP/1.1".encode("latin-1"), request.fields), length or 0


def answer_of(head: bytes, method: str) -> Answer:
    """A response's head, told to be the connection's last, whatever the server says of that. Raises ValueError."""
    line, fields = _parts(head)
    found = _STATUS.fullmatch(line)
    if found is None:
        raise ValueError(f"the response begins with {line[:80]!r}")
    status, length = int(found[1]), _length(fields)
    if status == 101:
        raise ValueError("the response changes to a protocol that nobody asked for")
    if method == "HEAD" or status < 200 or status in (204, 304):
        length = 0
    elif any(name == b"transfer-encoding" for name, _ in fields):
        length = None
    return Answer(status, _written(line, fields), length)


def _parts(head: bytes) -> tuple[bytes, Fields]:
    if not head.endswith(b"\r\n\r\n"):
        raise ValueError("a head without an end")
    line, *rest = head[:-4].split(b"\r\n")
    fields = []
    for one in rest:
        found = _FIELD.fullmatch(one)
        if found is None:
            raise ValueError(f"a header is {one[:80]!r}")
        fields.append((found[1].lower(), found[2].rstrip(b"\t ")))
    return line, tuple(fields)


def _length(fields: Fields) -> int | None:
    said = {value for name, value in fields if name == b"content-length"}
    if len(said) > 1 or not all(map(_LENGTH.fullmatch, said)):
        raise ValueError(f"a body's length is {sorted(said)[0][:40]!r}" + (" and another" if len(said) > 1 else ""))
    return int(said.pop()) if said else None


def _written(line: bytes, fields: Fields) -> bytes:
    kept = [name + b": " + value for name, value in fields if name not in _OF_A_CONNECTION]
    return b"\r\n".join((line, *kept, b"connection: close")) + b"\r\n\r\n"
