"""The pixels of a screen, through memory that the X server shares with us, or by its socket where it does not.

Two million bytes through a socket are copied four times; shared, the server writes them once.
"""

import ctypes
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_ulong, c_void_p

__all__ = ["Frames", "XGone"]

_Z_PIXMAP, _ALL_PLANES = 2, 0xFFFFFFFF
_PRIVATE, _REMOVE = 0, 0
_MODE = 0o600
_FAILED = c_void_p(-1).value


class XGone(Exception):
    """The X server does not answer any more."""


class _Image(ctypes.Structure):
    """XImage; its first fields."""

    _fields_ = (
        ("width", c_int), ("height", c_int), ("xoffset", c_int), ("format", c_int), ("data", c_void_p),
        ("byte_order", c_int), ("bitmap_unit", c_int), ("bitmap_bit_order", c_int), ("bitmap_pad", c_int),
        ("depth", c_int), ("bytes_per_line", c_int), ("bits_per_pixel", c_int),
    )  # fmt: skip


class _Segment(ctypes.Structure):
    """XShmSegmentInfo."""

    _fields_ = (("name", c_ulong), ("number", c_int), ("address", c_void_p), ("read_only", c_int))


class Frames:
    """x: Xlib; display: its connection; root: the window whose pixels are taken. size: width and height."""

    def __init__(self, x: ctypes.CDLL, display: c_void_p, root: int, size: tuple[int, int]) -> None:
        self._x, self._display, self._root, self._size = x, display, root, size
        x.XGetImage.restype = x.XDefaultVisual.restype = c_void_p
        x.XDestroyImage.argtypes = (c_void_p,)
        self._segment = _Segment()
        self._shared = self._share()

    def _share(self) -> c_void_p | None:
        """An image in memory that the server can write to; None where there can be none."""
        try:
            self._shm = shm = ctypes.CDLL("libXext.so.6")
        except OSError:
            return None
        shm.XShmCreateImage.restype = c_void_p
        libc = ctypes.CDLL(None)
        libc.shmat.restype = c_void_p
        if not shm.XShmQueryExtension(self._display):
            return None
        width, height = self._size
        segment = self._segment
        segment.number = libc.shmget(_PRIVATE, c_size_t(4 * width * height), _MODE)
        if segment.number < 0:
            return None
        segment.address = libc.shmat(segment.number, None, 0)
        attached = segment.address != _FAILED and shm.XShmAttach(self._display, byref(segment))
        self._x.XSync(self._display, 0)
        libc.shmctl(segment.number, _REMOVE, None)  # it lasts as long as who has it attached
        if not attached:
            return None
        visual = c_void_p(self._x.XDefaultVisual(self._display, c_int(0)))
        form = (c_uint(24), c_int(_Z_PIXMAP), c_void_p(segment.address), byref(segment))
        return c_void_p(shm.XShmCreateImage(self._display, visual, *form, c_uint(width), c_uint(height)))

    def take(self) -> bytes:
        """The whole screen, four bytes a pixel: blue, green, red, nothing. The pointer is not in it."""
        width, height = self._size
        if self._shared is not None:
            here = (c_ulong(self._root), self._shared, c_int(0), c_int(0), c_ulong(_ALL_PLANES))
            if self._shm.XShmGetImage(self._display, *here):
                return ctypes.string_at(self._segment.address, 4 * width * height)
            self._shared = None  # the server could not take hold of the memory
        whole = (c_int(0), c_int(0), c_uint(width), c_uint(height), c_ulong(_ALL_PLANES), c_int(_Z_PIXMAP))
        made = c_void_p(self._x.XGetImage(self._display, c_ulong(self._root), *whole))
        if not made:
            raise XGone("the screen gives no image")
        try:
            frame = ctypes.cast(made, POINTER(_Image)).contents
            return ctypes.string_at(frame.data, frame.bytes_per_line * height)
        finally:
            self._x.XDestroyImage(made)
