"""PNG of a screen's raw pixels, picture after picture, as fast as the standard library goes.

A picture is compressed in bands of rows, each by itself, so that bands in which nothing has changed since the
picture before are taken as they were. The bytes hang on the pixels alone. No filters, the lightest compression.
"""

import struct
import zlib
from itertools import cycle

__all__ = ["Png"]

_ROWS = 24
"""Of a band."""
_HEAD = b"\x78\x01"  # zlib's: deflate in 32 KiB, the fastest level
_LAST = b"\x03\x00"  # an empty last block
_ADLER = 65521
_NONE = (b"", 1, 0)


class Png:
    """Makes PNGs of a screen. size: its width and height."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._pixels = b""
        self._bands: list[tuple[bytes, int, int]] = []
        self._made = b""

    def of(self, pixels: bytes) -> bytes:
        """An RGB image of pixels that are blue, green, red, nothing. Raises ValueError when they are too few."""
        width, height = self._size
        if len(pixels) != 4 * width * height:
            raise ValueError(f"{len(pixels)} bytes of pixels for {width} x {height}")
        if pixels == self._pixels:
            return self._made
        size = 4 * width * _ROWS
        new, old = memoryview(pixels), memoryview(self._pixels)
        self._bands = [
            band if new[at : at + size] == old[at : at + size] else _band(pixels[at : at + size], width)
            for at, band in zip(range(0, len(pixels), size), self._bands or cycle((_NONE,)), strict=False)
        ]
        self._pixels = pixels
        check = 1
        for _data, adler, length in self._bands:
            check = _joined(check, adler, length)
        packed = (data for data, _adler, _length in self._bands)
        stream = b"".join((_HEAD, *packed, _LAST, struct.pack(">I", check)))
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", head), (b"IDAT", stream), (b"IEND", b""))
        self._made = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)
        return self._made


def _band(pixels: bytes, width: int) -> tuple[bytes, int, int]:
    """Some rows: compressed up to a whole byte, the checksum of what they were, and how much that was."""
    rgb = bytearray(len(pixels) // 4 * 3)
    rgb[0::3], rgb[1::3], rgb[2::3] = pixels[2::4], pixels[1::4], pixels[0::4]
    stride = 3 * width
    rows = b"\0" + b"\0".join(rgb[at : at + stride] for at in range(0, len(rgb), stride))
    packing = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packing.compress(rows) + packing.flush(zlib.Z_SYNC_FLUSH), zlib.adler32(rows), len(rows)


def _joined(one: int, other: int, length: int) -> int:
    """Adler's checksum of two parts that follow each other, by theirs (RFC 1950, 8.2); length: of the second."""
    low, high = one & 0xFFFF, one >> 16
    low_after = (low + (other & 0xFFFF) - 1) % _ADLER
    return (high + (other >> 16) + length * (low - 1)) % _ADLER << 16 | low_after


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
