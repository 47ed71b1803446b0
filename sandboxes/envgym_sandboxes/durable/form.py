"""A layer as a stream of bytes: what is in it, in order, compressed. This file knows the form, not where it goes.

One line says what it is; then come compressed frames (see `protocol`): an entry per name, a directory before what
is in it and names in order, the bytes of a file after its entry in pieces between which there is nothing but zeros,
and a last frame that says how many entries there were. Entries have a depth and a name, never a path, so there is
none that could lead anywhere. A reader believes nothing: what is not exactly of this form raises ValueError.
"""

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from envgym_sandboxes import protocol

__all__ = ["KINDS", "PIECE", "Entry", "Piece", "Writer", "header", "parse", "unzip"]

KINDS = ("directory", "file", "hard", "link", "fifo", "socket", "gone")
"""What there is: "hard" is one more name of a file that came before, "gone" a name that is deleted."""
PIECE = 1 << 20
"""The most bytes of a file in one frame."""
_MOST_HEAD = 1 << 18
_LONGEST_NAME, _LONGEST_LINK = 255, 4096
_MOST_ATTRIBUTES = 1 << 17
_LARGEST = (1 << 63) - 1


@dataclass(slots=True)
class Entry:
    """One name. depth: 1 for what is at the top; 0 for the top itself, whose name is "".

    mine: whether it belongs to the sandbox's user, and not to the host's root. time: of last change, nanoseconds.
    opaque: of a directory: it hides what is below it. size: of a file, bytes. many: a file that has more names.
    target: of a link; first: of a "hard" one, which of the files with many names it is one more name of, from 0.
    """

    depth: int
    name: str
    kind: str
    mode: int = 0
    time: int = 0
    mine: bool = True
    attributes: dict[str, bytes] = field(default_factory=dict)
    opaque: bool = False
    size: int = 0
    many: bool = False
    target: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the file whose entry came last, from `at` on."""

    at: int
    content: bytes


def header(kind: str) -> bytes:
    """The first line of what is stored: of a "layer", and of other kinds of things."""
    return f"envgym-{kind} 1\n".encode()


class Writer:
    """Turns entries and pieces into bytes, which it gives to `write`."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._zip = zlib.compressobj(1)
        self._count = 0
        write(header("layer"))

    def entry(self, entry: Entry) -> None:
        """One entry; directories come before what is in them."""
        head: dict[str, Any] = {"d": entry.depth, "n": entry.name, "k": entry.kind}
        if entry.kind not in ("hard", "gone"):
            head |= {"m": entry.mode, "t": entry.time, "o": entry.mine}
        if entry.attributes:
            head["x"] = {name: base64.b64encode(value).decode() for name, value in entry.attributes.items()}
        given = {"q": entry.opaque, "s": entry.size, "l": entry.many, "to": entry.target, "f": entry.first}
        kept = {"directory": ("q",), "file": ("s", "l"), "link": ("to",), "hard": ("f",)}.get(entry.kind, ())
        self._frame(head | {name: given[name] for name in kept})
        self._count += 1

    def piece(self, at: int, content: bytes) -> None:
        """Bytes of the file that came last; pieces come in order."""
        for start in range(0, len(content), PIECE):
            self._frame({"at": at + start}, content[start : start + PIECE])

    def end(self) -> None:
        """The last frame."""
        self._frame({"end": self._count})
        self._write(self._zip.flush())

    def _frame(self, head: dict[str, Any], body: bytes = b"") -> None:
        if data := self._zip.compress(protocol.encode(head, body)):
            self._write(data)


def unzip(chunks: Iterable[bytes], kind: str) -> Iterator[bytes]:
    """What follows the first line of a stored thing, a bounded piece at a time. Raises ValueError."""
    wanted, have = header(kind), b""
    unpack = zlib.decompressobj()
    for chunk in chunks:
        if wanted:
            have += chunk
            if len(have) < len(wanted):
                continue
            if not have.startswith(wanted):
                raise ValueError(f"it does not begin with {wanted!r}")
            chunk, wanted = have[len(wanted) :], b""
        while chunk:
            if unpack.eof:
                raise ValueError("there is something after its end")
            try:
                yield unpack.decompress(chunk, PIECE)
            except zlib.error as error:
                raise ValueError(f"it cannot be decompressed: {error}") from None
            chunk = unpack.unconsumed_tail or unpack.unused_data
    if not unpack.eof:
        raise ValueError("it is cut off")


def parse(chunks: Iterable[bytes]) -> Iterator[Entry | Piece]:
    """The entries and pieces of a layer. Raises ValueError at the first byte that is wrong."""
    decoder = protocol.Decoder(most_head=_MOST_HEAD, most_body=lambda head: PIECE if "at" in head else 0)
    order = _Order()
    ended = False
    try:
        for data in unzip(chunks, "layer"):
            for head, body in decoder.feed(data):
                if ended:
                    raise ValueError("there is an entry after the last one")
                if "end" in head:
                    ended = True
                    if head["end"] != order.count:
                        raise ValueError(f"{order.count} entries, of {head['end']!r} that it says it has")
                elif "at" in head:
                    yield order.piece(Piece(_number(head, "at", _LARGEST), body))
                else:
                    yield order.entry(_entry(head))
    except protocol.ProtocolError as error:
        raise ValueError(str(error)) from None
    if not ended or decoder.waiting:
        raise ValueError("it is cut off")


def _number(head: dict[str, Any], name: str, most: int, least: int = 0) -> int:
    value = head.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {str(value)[:80]}; it must be a number from {least} to {most}")
    return value


def _text(head: dict[str, Any], name: str, longest: int) -> str:
    value = head.get(name)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{name} is {str(value)[:80]!r}; it must be a text without NUL")
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {value[:80]!r}, which no file system could store") from None
    if size > longest:
        raise ValueError(f"{name} has {size} bytes; it may have {longest}")
    return value


def _entry(head: dict[str, Any]) -> Entry:
    kind = head.get("k")
    if kind not in KINDS:
        raise ValueError(f"{str(kind)[:80]!r} is not a kind of entry")
    entry = Entry(_number(head, "d", _LARGEST), _text(head, "n", _LONGEST_NAME), kind)
    known = {"d", "n", "k"}
    if kind not in ("hard", "gone"):
        entry.mode = _number(head, "m", 0o7777)
        entry.time = _number(head, "t", _LARGEST, -_LARGEST)
        entry.mine = bool(head.get("o"))
        known |= {"m", "t", "o"}
    if kind in ("directory", "file"):
        entry.attributes = _attributes(head.get("x", {}))
        entry.opaque, entry.many = bool(head.get("q")), bool(head.get("l"))
        entry.size = _number(head, "s", _LARGEST) if kind == "file" else 0
        known |= {"x", "q", "s", "l"}
    if kind == "link":
        entry.target = _text(head, "to", _LONGEST_LINK)
        known.add("to")
    if kind == "hard":
        entry.first = _number(head, "f", _LARGEST)
        known.add("f")
    if strange := set(head) - known:
        raise ValueError(f"an entry of kind {kind!r} has no {min(strange)[:80]!r}")
    return entry


def _attributes(given: Any) -> dict[str, bytes]:
    if not isinstance(given, dict):
        raise ValueError("attributes are not an object")
    found: dict[str, bytes] = {}
    for name in given:
        if not name.startswith("user.") or not _text({"attribute": name}, "attribute", _LONGEST_NAME):
            raise ValueError(f"{name[:80]!r} is not an attribute that a program in a sandbox can set")
        value = given[name]
        if not isinstance(value, str):
            raise ValueError(f"the attribute {name!r} is not a text")
        found[name] = base64.b64decode(value, validate=True)
    if sum(len(name) + len(value) for name, value in found.items()) > _MOST_ATTRIBUTES:
        raise ValueError("there are more attributes than a file can have")
    return found


class _Order:
    """What came before, as far as it decides what may come next."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[str] = []  # of the directories that are open, and the last name in the innermost one
        self._directory = False  # whether the last entry is one
        self._files = 0
        self._file: Entry | None = None
        self._at = 0

    def entry(self, entry: Entry) -> Entry:
        """Check an entry against those before it."""
        if self.count == 0 and (entry.depth, entry.name, entry.kind) != (0, "", "directory"):
            raise ValueError("the first entry is not the top")
        if self.count:
            self._check_name(entry)
        if entry.kind == "hard" and entry.first >= self._files:
            raise ValueError(f"{entry.name!r} is a name of a file that did not come before")
        self.count += 1
        self._files += entry.kind == "file" and entry.many
        self._directory = entry.kind == "directory"
        self._file, self._at = entry if entry.kind == "file" else None, 0
        return entry

    def _check_name(self, entry: Entry) -> None:
        name, deepest = entry.name, len(self._names) + self._directory
        if name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{name!r} is not a file name")
        if not 1 <= entry.depth <= deepest:
            raise ValueError(f"{name!r} is at depth {entry.depth}, and not in a directory that came before")
        if entry.depth <= len(self._names) and name <= self._names[entry.depth - 1]:
            raise ValueError(f"{name!r} is out of order, or there twice")
        self._names[entry.depth - 1 :] = [name]

    def piece(self, piece: Piece) -> Piece:
        """Check a piece against those before it."""
        if self._file is None:
            raise ValueError("there are bytes of no file")
        if piece.at < self._at or piece.at + len(piece.content) > self._file.size:
            raise ValueError(f"{self._file.name!r}: bytes at {piece.at} are not where any may be")
        self._at = piece.at + len(piece.content)
        return piece
