"""The X display through its own C libraries: pointer and keys by XTest, pixels, windows.

Xlib comes with every X server, so nothing needs to be installed where this runs.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_long, c_uint, c_ulong, c_void_p
from typing import Any

from envgym_sandboxes.desktop.inside.frames import Frames, XGone

__all__ = ["XDisplay"]

_ANY_TYPE = 0
_SHIFT = 0xFFE1
_CORE_KEYBOARD, _ALL_MODIFIERS = 0x100, 0xFF


class _Attributes(ctypes.Structure):
    """XWindowAttributes; only its first fields and `map_state` are looked at."""

    _fields_ = (
        ("x", c_int), ("y", c_int), ("width", c_int), ("height", c_int), ("border_width", c_int), ("depth", c_int),
        ("visual", c_void_p), ("root", c_ulong), ("class_", c_int), ("bit_gravity", c_int), ("win_gravity", c_int),
        ("backing_store", c_int), ("planes", c_ulong), ("pixel", c_ulong), ("save_under", c_int),
        ("colormap", c_ulong), ("installed", c_int), ("map_state", c_int), ("rest", c_long * 8),
    )  # fmt: skip


_HANDLER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)


class XDisplay:
    """One connection. Raises XGone when there is none."""

    def __init__(self, name: str) -> None:
        self._x = x = ctypes.CDLL("libX11.so.6")
        self._test = ctypes.CDLL("libXtst.so.6")
        for function in ("XOpenDisplay", "XListProperties", "XGetKeyboardMapping"):
            getattr(x, function).restype = c_void_p
        for function in ("XDefaultRootWindow", "XInternAtom", "XKeycodeToKeysym", "XStringToKeysym"):
            getattr(x, function).restype = c_ulong
        x.XkbKeycodeToKeysym.restype = c_ulong
        x.XKeysymToKeycode.restype = ctypes.c_ubyte
        # a window that goes away between two requests is no reason to die
        self._ignore = _HANDLER(lambda _display, _event: 0)
        x.XSetErrorHandler(self._ignore)
        display = x.XOpenDisplay(name.encode())
        if not display:
            raise XGone(f"no connection to display {name}")
        self._display = c_void_p(display)
        self.root = int(x.XDefaultRootWindow(self._display))
        attributes = self._attributes(self.root)
        self.size = (attributes.width, attributes.height)
        self.frames = Frames(x, self._display, self.root, self.size)
        self._first: tuple[set[int], tuple[int, ...]] = (set(), ())

    def sync(self) -> None:
        """Wait until the server has done all that was asked."""
        self._x.XSync(self._display, 0)

    # -- pointer and keys -------------------------------------------------------------------------------------

    def move(self, x: int, y: int) -> None:
        """Put the pointer on a pixel."""
        self._test.XTestFakeMotionEvent(self._display, -1, c_int(x), c_int(y), c_ulong(0))

    def button(self, number: int, down: bool) -> None:
        """Press or release a button of the pointer."""
        self._test.XTestFakeButtonEvent(self._display, c_uint(number), c_int(down), c_ulong(0))

    def key(self, code: int, down: bool) -> None:
        """Press or release a key."""
        self._test.XTestFakeKeyEvent(self._display, c_uint(code), c_int(down), c_ulong(0))

    def keysym(self, name: str) -> int:
        """The number of a key's name; 0 for none."""
        return int(self._x.XStringToKeysym(name.encode("utf-8", "replace")))

    def code_of(self, sym: int) -> tuple[int, bool] | None:
        """Which key gives a keysym, and whether with shift; None where none does."""
        code = int(self._x.XKeysymToKeycode(self._display, c_ulong(sym)))
        for level in (0, 1):
            if code and int(self._x.XkbKeycodeToKeysym(self._display, c_uint(code), 0, level)) == sym:
                return code, bool(level)
        return None

    def free_codes(self) -> list[int]:
        """Keys that give nothing yet."""
        least, count = self._key_range()
        return [
            code
            for code in range(least + count - 1, least, -1)
            if not any(self._x.XkbKeycodeToKeysym(self._display, c_uint(code), 0, level) for level in range(4))
        ]

    def bind(self, code: int, sym: int) -> None:
        """Let a key give a keysym."""
        syms = (c_ulong * 2)(sym, sym)
        self._x.XChangeKeyboardMapping(self._display, c_int(code), c_int(2), syms, c_int(1))
        self.sync()

    def keep(self) -> None:
        """What the server holds now is what `restore` leaves: properties of the root window, and what keys give."""
        self._first = self._notes(), self._keys()

    def restore(self) -> None:
        """Take away what programs have left in the server: notes on the root window, locks, other keys."""
        notes, keys = self._first
        for note in self._notes() - notes:
            self._x.XDeleteProperty(self._display, c_ulong(self.root), c_ulong(note))
        self._x.XkbLockModifiers(self._display, c_uint(_CORE_KEYBOARD), c_uint(_ALL_MODIFIERS), c_uint(0))
        if self._keys() != keys:
            least, count = self._key_range()
            syms = (c_ulong * len(keys))(*keys)
            width = c_int(len(keys) // count)
            self._x.XChangeKeyboardMapping(self._display, c_int(least), width, syms, c_int(count))
        self.sync()

    def _notes(self) -> set[int]:
        """The names of the root window's properties."""
        count = c_int()
        found = c_void_p(self._x.XListProperties(self._display, c_ulong(self.root), byref(count)))
        if not found.value:
            return set()
        try:
            return set(ctypes.cast(found, POINTER(c_ulong))[: count.value])
        finally:
            self._x.XFree(found)

    def _key_range(self) -> tuple[int, int]:
        """The first key, and how many there are."""
        least, most = c_int(), c_int()
        self._x.XDisplayKeycodes(self._display, byref(least), byref(most))
        return least.value, most.value - least.value + 1

    def _keys(self) -> tuple[int, ...]:
        """What every key gives, as the server has it."""
        least, count = self._key_range()
        width = c_int()
        found = c_void_p(self._x.XGetKeyboardMapping(self._display, c_uint(least), c_int(count), byref(width)))
        try:
            return tuple(ctypes.cast(found, POINTER(c_ulong))[: count * width.value])
        finally:
            self._x.XFree(found)

    @contextmanager
    def held(self, codes: list[int]) -> Iterator[None]:
        """Keys pressed in order, released in the opposite one."""
        for code in codes:
            self.key(code, True)
        try:
            yield
        finally:
            for code in reversed(codes):
                self.key(code, False)

    @property
    def shift(self) -> int:
        """The shift key's code."""
        return int(self._x.XKeysymToKeycode(self._display, c_ulong(_SHIFT)))

    # -- windows ----------------------------------------------------------------------------------------------

    def windows(self) -> list[int]:
        """The programs' windows as the window manager knows them, from the bottom up."""
        return [one for one in self._longs("_NET_CLIENT_LIST_STACKING") if self._attributes(one).map_state == 2]

    def supports(self) -> bool:
        """Whether a window manager is there."""
        return bool(self._longs("_NET_SUPPORTING_WM_CHECK"))

    def active(self) -> int:
        """The window that has the keyboard; 0 for none."""
        return next(iter(self._longs("_NET_ACTIVE_WINDOW")), 0)

    def title(self, window: int) -> str:
        """What a window is called."""
        for name in ("_NET_WM_NAME", "WM_NAME"):
            found = self._property(window, name, lambda data, count: ctypes.string_at(data, count))
            if found:
                return bytes(found).decode("utf-8", "replace")
        return ""

    def box(self, window: int) -> tuple[int, int, int, int]:
        """Where a window's content is."""
        attributes = self._attributes(window)
        x, y, child = c_int(), c_int(), c_ulong()
        self._x.XTranslateCoordinates(
            self._display, c_ulong(window), c_ulong(self.root), 0, 0, byref(x), byref(y), byref(child)
        )
        return x.value, y.value, attributes.width, attributes.height

    def _attributes(self, window: int) -> _Attributes:
        found = _Attributes()
        self._x.XGetWindowAttributes(self._display, c_ulong(window), byref(found))
        return found

    def _longs(self, name: str) -> list[int]:
        found = self._property(
            self.root, name, lambda data, count: list(ctypes.cast(data, POINTER(c_ulong))[:count])
        )
        return found or []

    def _property(self, window: int, name: str, read: Callable[[c_void_p, int], Any]) -> Any:
        atom = c_ulong(self._x.XInternAtom(self._display, c_char_p(name.encode()), 0))
        kind, form, count, rest, data = c_ulong(), c_int(), c_ulong(), c_ulong(), c_void_p()
        failed = self._x.XGetWindowProperty(
            self._display, c_ulong(window), atom, c_long(0), c_long(4096), c_int(0), c_ulong(_ANY_TYPE),
            byref(kind), byref(form), byref(count), byref(rest), byref(data),
        )  # fmt: skip
        if failed or not data.value:
            return None
        try:
            return read(data, count.value) if form.value else None
        finally:
            self._x.XFree(data)
