"""What both ends of a stream keep count of: how much may be sent, how much may come, and which halves are over.

Streams share one connection of frames, so that neither end may make the other keep more than a window of what is
not yet delivered. The other side's frames are checked here: more than it was granted, a grant for what was never
sent, or data after the end raises `ProtocolError`. It moves no byte itself.
"""

from envgym_sandboxes.protocol import ProtocolError

__all__ = ["MOST_STREAMS", "PIECE", "WINDOW", "Flow", "size_of"]

WINDOW = 1 << 17
"""Bytes per direction of one stream that may be on their way: sent, and not yet granted again."""
PIECE = 1 << 15
"""The most data in one frame."""
MOST_STREAMS = 64
"""How many streams of one kind (opened by the host, opened by the inside) there may be at once."""


class Flow:
    """One stream, seen from one of its ends."""

    __slots__ = ("_delivered", "credit", "got_end", "room", "sent_end")

    def __init__(self) -> None:
        self.credit = WINDOW  # we may send
        self.room = WINDOW  # the other side may send
        self._delivered = 0  # of what came, and not yet granted again
        self.sent_end = False
        self.got_end = False

    @property
    def over(self) -> bool:
        """Whether neither side sends any more."""
        return self.sent_end and self.got_end

    def sent(self, size: int) -> None:
        """Count data that is sent; no more than `credit`."""
        assert 0 < size <= self.credit
        self.credit -= size

    def arrived(self, size: int) -> None:
        """Count data that came. Raises ProtocolError."""
        if self.got_end or not 0 < size <= self.room:
            state = "after the end" if self.got_end else f"where {self.room} may come"
            raise ProtocolError(f"a stream brings {size} bytes {state}")
        self.room -= size

    def granted(self, size: int) -> None:
        """Count a grant of the other side. Raises ProtocolError."""
        if size < 1 or self.credit + size > WINDOW:
            raise ProtocolError(f"a stream is granted {size} bytes on top of {self.credit}")
        self.credit += size

    def delivered(self, size: int) -> int:
        """Count data that went on to whom it was for; how much to grant the other side now."""
        self._delivered += size
        if self.got_end or self._delivered < WINDOW // 4:
            return 0
        grant, self._delivered = self._delivered, 0
        self.room += grant
        return grant

    def ended(self) -> None:
        """Count the other side's end. Raises ProtocolError."""
        if self.got_end:
            raise ProtocolError("a stream ends twice")
        self.got_end = True


def size_of(value: object) -> int:
    """A count in a frame. Raises ProtocolError."""
    if type(value) is not int:
        raise ProtocolError(f"a stream's frame has {value!r} where a number should be")
    return value
