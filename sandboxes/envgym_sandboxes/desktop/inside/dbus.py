"""D-Bus by its wire protocol: many questions in one write, and answers read as they come.

The standard library alone. A binding to a C library makes an object of every value in an answer; a tree has
thousands, and that was most of what a look at it cost. Only what a display asks is here: little endian, no file
descriptors, no signals. See the D-Bus specification, "Message Protocol".
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["BusGone", "Call", "Connection"]

_CALL, _ANSWER, _ERROR = 1, 2, 3
_NO_ANSWER_WANTED, _NO_AUTO_START = 1, 2
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _SERIAL, _DESTINATION, _SENDER, _SIGNATURE = range(1, 9)
_HEAD = {b"l": struct.Struct("<cBBBIII"), b"B": struct.Struct(">cBBBIII")}
_HEAD_BYTES = 16
_INT = struct.Struct("<I")
_PIECE = 1 << 18
_NUMBERS = {"y": "<B", "n": "<h", "q": "<H", "i": "<i", "u": "<I", "x": "<q", "t": "<Q", "d": "<d"}
_ALIGNED = dict.fromkeys("({xtd", 8) | dict.fromkeys("nq", 2) | dict.fromkeys("ygv", 1)
"""Where types begin; all others at multiples of four."""
_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")

_Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes a message's body and where a value begins; gives the value and where it ends."""


class Call(NamedTuple):
    """A question to an object.

    gives: the type of the answer; "" is none, "vs" a variant that holds an "s". takes: the types of what is
    `given`, of "s", "u", "i", "as". starts: a service that does not run yet is started for it.
    """

    name: str
    path: str
    interface: str
    method: str
    gives: str = ""
    takes: tuple[str, ...] = ()
    given: tuple[Any, ...] = ()
    starts: bool = False


class BusGone(ConnectionError):
    """A connection that there was is no more: not the silence of a program, which is no answer."""


class Connection:
    """One connection to a bus. Raises OSError where there is none."""

    def __init__(self, address: str) -> None:
        self._serial = 0
        self._in = self._out = b""
        self._socket = _connected(address)
        try:
            self._begin()
        except BaseException:
            self._socket.close()
            raise

    def _begin(self) -> None:
        who = str(os.getuid()).encode().hex().encode()
        self._socket.settimeout(60.0)
        self._socket.sendall(b"\0AUTH EXTERNAL " + who + b"\r\n")
        said = self._socket.recv(_PIECE)
        if not said.startswith(b"OK "):
            raise ConnectionRefusedError(f"the bus does not know this user: {said!r}")
        self._socket.sendall(b"BEGIN\r\n")
        self._socket.setblocking(False)
        if self.ask([Call(*_BUS, "Hello", gives="s")], 60.0) == [None]:
            raise ConnectionRefusedError("the bus does not answer")

    def close(self) -> None:
        """The end. Idempotent."""
        self._socket.close()

    def ask(self, calls: Sequence[Call], within_s: float) -> list[Any]:
        """The single value that each answers, in their order; of none, True.

        None: no answer in time, an error, or one of other types. Raises BusGone, and from then on always.
        """
        first = self._serial + 1
        self._serial += len(calls)
        answers: list[Any] = [None] * len(calls)
        missing = set(range(len(calls)))
        self._out += b"".join(_called(call, first + at) for at, call in enumerate(calls))
        end = time.monotonic() + within_s
        try:
            while missing and (left := end - time.monotonic()) > 0:
                writing = [self._socket] if self._out else []
                readable, writable, _ = select.select([self._socket], writing, [], left)
                if writable:
                    self._out = self._out[self._socket.send(self._out) :]
                for kind, fields, body in self._messages() if readable else ():
                    at = fields.get(_SERIAL, 0) - first
                    if kind in (_ANSWER, _ERROR) and at in missing:
                        missing.discard(at)
                        if kind == _ANSWER:
                            answers[at] = _value(calls[at].gives, fields.get(_SIGNATURE, ""), body)
                    elif kind == _CALL:
                        self._out += self._refusal(fields)
        except OSError as error:
            raise BusGone(f"the bus is gone: {error}") from error
        return answers

    def _messages(self) -> list[tuple[int, dict[int, Any], bytes]]:
        """Kind, header and body of each whole message that has come."""
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return []
        if not piece:
            raise ConnectionResetError("it has closed the connection")
        data = self._in + piece
        found, at = [], 0
        while len(data) - at >= _HEAD_BYTES:
            order = data[at : at + 1]
            _, kind, flags, _version, size, serial, head = _HEAD[order].unpack_from(data, at)
            begin = at + _HEAD_BYTES + (head + 7 & ~7)
            if len(data) < begin + size:
                break
            if order == b"l":  # none of these programs speaks the other order
                fields = _fields(data, at + _HEAD_BYTES, at + _HEAD_BYTES + head)
                if kind != _CALL:
                    found.append((kind, fields, data[begin : begin + size]))
                elif not flags & _NO_ANSWER_WANTED:
                    found.append((kind, fields | {_SERIAL: serial}, b""))
            at = begin + size
        self._in = data[at:]
        return found

    def _refusal(self, fields: dict[int, Any]) -> bytes:
        """The answer to who asks something of us."""
        self._serial += 1
        error = {
            _ERROR_NAME: ("s", "org.freedesktop.DBus.Error.UnknownMethod"),
            _SERIAL: ("u", fields[_SERIAL]),
            _DESTINATION: ("s", fields.get(_SENDER, "")),
        }
        return _message(_ERROR, error, b"", self._serial)


def _connected(address: str) -> socket.socket:
    """The first of a bus's addresses that takes connections."""
    why: OSError = ConnectionRefusedError(f"no address of a unix socket in {address!r}")
    for one in address.split(";"):
        kind, _, options = one.partition(":")
        told = dict(option.partition("=")[::2] for option in options.split(","))
        if kind != "unix" or not ("path" in told or "abstract" in told):
            continue
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(unquote(told["path"]) if "path" in told else "\0" + unquote(told["abstract"]))
        except OSError as error:
            connected.close()
            why = error
            continue
        return connected
    raise why


# -- what is sent -----------------------------------------------------------------------------------------------


def _called(call: Call, serial: int) -> bytes:
    whole = _template(call)
    return whole[:8] + _INT.pack(serial) + whole[12:]


@lru_cache(maxsize=4096)
def _template(call: Call) -> bytes:
    """A call whose serial is put in later: a tree asks the same again and again."""
    fields = {
        _PATH: ("o", call.path),
        _INTERFACE: ("s", call.interface),
        _MEMBER: ("s", call.method),
        _DESTINATION: ("s", call.name),
    }
    body = bytearray()
    for kind, value in zip(call.takes, call.given, strict=True):
        _put(body, kind, value)
    if call.takes:
        fields[_SIGNATURE] = ("g", "".join(call.takes))
    return _message(_CALL, fields, bytes(body), 0, flags=0 if call.starts else _NO_AUTO_START)


def _message(kind: int, fields: dict[int, tuple[str, Any]], body: bytes, serial: int, *, flags: int = 0) -> bytes:
    told = bytearray()
    for code, (type_, value) in fields.items():
        told += bytes(-len(told) % 8) + bytes([code, 1]) + type_.encode() + b"\0"
        _put(told, type_, value)
    head = _HEAD[b"l"].pack(b"l", kind, flags, 1, len(body), serial, len(told))
    return head + bytes(told) + bytes(-len(told) % 8) + body


def _put(out: bytearray, kind: str, value: Any) -> None:
    """A value at the end of what is there; where that begins is a multiple of eight."""
    if kind == "g":
        out += bytes([len(value)]) + value.encode() + b"\0"
        return
    out += bytes(-len(out) % 4)
    if kind in "so":
        data = value.encode()
        out += _INT.pack(len(data)) + data + b"\0"
    elif kind == "as":
        inside = bytearray()
        for one in value:
            _put(inside, "s", one)
        out += _INT.pack(len(inside)) + inside
    else:
        out += struct.pack(_NUMBERS[kind], value)


# -- what is read -----------------------------------------------------------------------------------------------


def _fields(data: bytes, at: int, end: int) -> dict[int, Any]:
    """The fields of a header, by their codes; each begins at a multiple of eight from the message's beginning."""
    begin = at - _HEAD_BYTES
    fields = {}
    while at < end:
        code, size = data[at], data[at + 1]
        signature = data[at + 2 : at + 2 + size].decode()
        fields[code], at = _in_field(signature, data, at + 3 + size, begin)
        at += (begin - at) % 8
    return fields


def _in_field(signature: str, data: bytes, at: int, begin: int) -> tuple[Any, int]:
    if signature == "g":
        return data[at + 1 : at + 1 + data[at]].decode(), at + 2 + data[at]
    at += (begin - at) % 4
    (number,) = _INT.unpack_from(data, at)
    if signature == "u":
        return number, at + 4
    return data[at + 4 : at + 4 + number].decode(), at + 5 + number


def _value(wanted: str, signature: str, body: bytes) -> Any:
    """What an answer holds; None where that is of other types than the wanted ones."""
    if wanted[:1] == "v" == signature:
        signature, at = _signature(body, 0)
        return _reader(signature)[0](body, at)[0] if signature == wanted[1:] else None
    if signature != wanted:
        return None
    return _reader(signature)[0](body, 0)[0] if signature else True


@lru_cache(maxsize=1024)
def _reader(signature: str) -> tuple[_Reader, str]:
    """What reads the first value of a signature, and the types that follow it."""
    kind, rest = signature[0], signature[1:]
    if kind == "a":
        inside, after = _reader(rest)
        return _array(inside, _ALIGNED.get(rest[0], 4)), after
    if kind in "({":
        parts = []
        while rest[0] not in ")}":
            part, rest = _reader(rest)
            parts.append(part)
        return _structure(parts), rest[1:]
    simple: dict[str, _Reader] = {"s": _text, "o": _text, "g": _signature, "v": _variant, "b": _truth}
    return simple.get(kind) or _number(struct.Struct(_NUMBERS[kind])), rest


def _text(data: bytes, at: int) -> tuple[str, int]:
    at = at + 3 & ~3
    end = at + 4 + _INT.unpack_from(data, at)[0]
    return data[at + 4 : end].decode(), end + 1


def _signature(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end + 1


def _variant(data: bytes, at: int) -> tuple[Any, int]:
    signature, at = _signature(data, at)
    return _reader(signature)[0](data, at)


def _truth(data: bytes, at: int) -> tuple[bool, int]:
    at = at + 3 & ~3
    return bool(_INT.unpack_from(data, at)[0]), at + 4


def _number(form: struct.Struct) -> _Reader:
    size, unpack = form.size, form.unpack_from

    def read(data: bytes, at: int) -> tuple[Any, int]:
        at += -at % size
        return unpack(data, at)[0], at + size

    return read


def _structure(parts: list[_Reader]) -> _Reader:
    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        at = at + 7 & ~7
        values = []
        for part in parts:
            value, at = part(data, at)
            values.append(value)
        return tuple(values), at

    return read


def _array(inside: _Reader, alignment: int) -> _Reader:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        at = at + 3 & ~3
        size = _INT.unpack_from(data, at)[0]
        at += 4
        at += -at % alignment
        end, values = at + size, []
        while at < end:
            value, at = inside(data, at)
            values.append(value)
        return values, at

    return read
