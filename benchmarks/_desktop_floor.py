"""What looking at a display costs without this project: GNOME's libatspi, Xlib and zlib, in one process beside it.

Runs inside a display's sandbox under any Python, by itself: ``python3 -c SOURCE PROGRAM REPEATS`` prints JSON. Its
look has the same content (the shown elements of the program with role, name, states, box and text, and a PNG of the
whole screen), and it clicks; it waits for nothing, so what it sees may be older than its click.
"""

import ctypes
import json
import os
import statistics
import struct
import sys
import time
import zlib
from ctypes import POINTER, c_char_p, c_int, c_uint, c_ulong, c_void_p

SHOWING = 25
ALL_PLANES, Z_PIXMAP = 0xFFFFFFFF, 2


class Rect(ctypes.Structure):
    """AtspiRect."""

    _fields_ = (("x", c_int), ("y", c_int), ("width", c_int), ("height", c_int))


class Image(ctypes.Structure):
    """XImage; its first fields."""

    _fields_ = (("width", c_int), ("height", c_int), ("xoffset", c_int), ("format", c_int), ("data", c_void_p))


class Plain:
    """One program on one display, by libraries alone."""

    def __init__(self, program):
        self.atspi, self.x, self.test = (
            ctypes.CDLL(f"lib{name}") for name in ("atspi.so.0", "X11.so.6", "Xtst.so.6")
        )
        for name in ("get_child_at_index", "get_state_set", "get_component_iface", "get_text_iface"):
            getattr(self.atspi, f"atspi_accessible_{name}").restype = c_void_p
        self.atspi.atspi_get_desktop.restype = c_void_p
        self.atspi.atspi_accessible_get_name.restype = self.atspi.atspi_text_get_text.restype = c_char_p
        self.atspi.atspi_component_get_extents.restype = POINTER(Rect)
        self.x.XOpenDisplay.restype = self.x.XGetImage.restype = c_void_p
        self.x.XDefaultRootWindow.restype = c_ulong
        self.atspi.atspi_init()
        self.display = c_void_p(self.x.XOpenDisplay(None))
        self.root = c_ulong(self.x.XDefaultRootWindow(self.display))
        self.size = [f(self.display, 0) for f in (self.x.XDisplayWidth, self.x.XDisplayHeight)]
        desktop = self.atspi.atspi_get_desktop(0)
        roots = [self.child(desktop, at) for at in range(self.count(desktop))]
        (self.program,) = [one for one in roots if self.name(one) == program]

    def child(self, one, at):
        return self.atspi.atspi_accessible_get_child_at_index(c_void_p(one), at, None)

    def count(self, one):
        return self.atspi.atspi_accessible_get_child_count(c_void_p(one), None)

    def name(self, one):
        return self.atspi.atspi_accessible_get_name(c_void_p(one), None).decode()

    def tree(self):
        """Role, name, states, box and text of each shown element."""
        self.atspi.atspi_accessible_clear_cache(c_void_p(self.program))
        found = []
        self._below(self.program, found)
        return found

    def _below(self, one, found):
        for at in range(self.count(one)):
            below = self.child(one, at)
            states = c_void_p(self.atspi.atspi_accessible_get_state_set(c_void_p(below)))
            if not self.atspi.atspi_state_set_contains(states, SHOWING):
                continue
            has = [state for state in range(45) if self.atspi.atspi_state_set_contains(states, state)]
            role = self.atspi.atspi_accessible_get_role(c_void_p(below), None)
            where = c_void_p(self.atspi.atspi_accessible_get_component_iface(c_void_p(below)))
            rect = self.atspi.atspi_component_get_extents(where, 0, None)[0]
            says = c_void_p(self.atspi.atspi_accessible_get_text_iface(c_void_p(below)))
            text = self.atspi.atspi_text_get_text(says, 0, -1, None) if says else None
            found.append((role, self.name(below), has, (rect.x, rect.y, rect.width, rect.height), text))
            self._below(below, found)

    def picture(self):
        """PNG of the whole screen."""
        width, height = self.size
        whole = (0, 0, c_uint(width), c_uint(height), c_ulong(ALL_PLANES), Z_PIXMAP)
        image = c_void_p(self.x.XGetImage(self.display, self.root, *whole))
        pixels = ctypes.string_at(ctypes.cast(image, POINTER(Image)).contents.data, 4 * width * height)
        self.x.XDestroyImage(image)
        rgb = bytearray(3 * width * height)
        rgb[0::3], rgb[1::3], rgb[2::3] = pixels[2::4], pixels[1::4], pixels[0::4]
        rows = b"".join(b"\0" + rgb[at : at + 3 * width] for at in range(0, len(rgb), 3 * width))
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )

    def click(self, box):
        """Press and release in the middle of a box."""
        self.test.XTestFakeMotionEvent(self.display, -1, box[0] + box[2] // 2, box[1] + box[3] // 2, c_ulong(0))
        for down in (1, 0):
            self.test.XTestFakeButtonEvent(self.display, 1, down, c_ulong(0))
        self.x.XSync(self.display, 0)


def environment_of(program):
    """Display and bus of a running program."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{pid}/comm") as comm:
            if comm.read().strip() != program:
                continue
        with open(f"/proc/{pid}/environ") as said:
            told = dict(line.partition("=")[::2] for line in said.read().split("\0"))
        return {name: told[name] for name in ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS")}
    raise LookupError(f"{program} does not run here")


def main():
    program, repeats = sys.argv[1], int(sys.argv[2])
    os.environ.update(environment_of(program))
    plain = Plain(program)
    digits = [box for _role, name, _states, box, _text in plain.tree() if name in set("123456789")]
    took = {"click": [], "tree": [], "picture": []}
    for at in range(repeats):
        for name, work in (
            ("click", lambda at=at: plain.click(digits[at % len(digits)])), ("tree", plain.tree),
            ("picture", plain.picture),
        ):  # fmt: skip
            began = time.perf_counter()
            work()
            took[name].append((time.perf_counter() - began) * 1e3)
    found = {name: statistics.median(times) for name, times in took.items()}
    print(json.dumps(found | {"elements": len(plain.tree())}))


if __name__ == "__main__":
    main()
