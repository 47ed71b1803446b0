"""Text and combinations as strokes of keys; characters that the keyboard lacks get a key of their own."""

import itertools
from collections.abc import Callable, Iterator

from envgym_sandboxes.desktop.inside.x11 import XDisplay

__all__ = ["Keyboard", "NoKey"]

_NAMES = {
    "ctrl": "Control_L", "control": "Control_L", "alt": "Alt_L", "shift": "Shift_L", "super": "Super_L",
    "meta": "Super_L", "win": "Super_L", "cmd": "Super_L", "enter": "Return", "return": "Return", "esc": "Escape",
    "escape": "Escape", "tab": "Tab", "space": "space", "backspace": "BackSpace", "delete": "Delete",
    "del": "Delete",
    "insert": "Insert", "home": "Home", "end": "End", "pageup": "Page_Up", "pgup": "Page_Up",
    "pagedown": "Page_Down", "pgdn": "Page_Down", "up": "Up", "down": "Down", "left": "Left", "right": "Right",
    "plus": "plus", "minus": "minus", "menu": "Menu",
}  # fmt: skip
_NAMES |= {f"f{number}": f"F{number}" for number in range(1, 13)}
_CHARACTERS = {"\n": 0xFF0D, "\r": 0xFF0D, "\t": 0xFF09, "\b": 0xFF08, "\x1b": 0xFF1B}
_UNICODE = 0x01000000


class NoKey(Exception):
    """There is no such key."""


class Keyboard:
    """settled: called where programs must have heard of a new key before it is pressed."""

    def __init__(self, display: XDisplay, settled: Callable[[], object]) -> None:
        self._display, self._settled = display, settled
        free = display.free_codes()[:16]
        self._free: Iterator[int] = itertools.cycle(free)
        self._room = len(free)
        self._own: dict[int, int] = {}  # keysym -> key

    def forget(self) -> None:
        """The keys give what they gave at first."""
        self._own = {}

    def type(self, text: str) -> None:
        """Type a text. Raises NoKey for what no keyboard has."""
        for character in text:
            code, shifted = self._key(_keysym(character))
            with self._display.held([self._display.shift] if shifted else []):
                self._stroke(code)
        self._display.sync()

    def press(self, keys: list[str]) -> None:
        """Press keys together. Raises NoKey, and has then pressed nothing."""
        codes: list[int] = []
        for name in keys:
            sym = self._named(name)
            code, shifted = self._key(sym)
            codes += [self._display.shift, code] if shifted and self._display.shift not in codes else [code]
        with self._display.held(codes):
            pass
        self._display.sync()

    def _stroke(self, code: int) -> None:
        self._display.key(code, True)
        self._display.key(code, False)

    def _named(self, name: str) -> int:
        if len(name) == 1:
            return _keysym(name)
        for known in (_NAMES.get(name.lower()), name, name.capitalize()):
            if known and (sym := self._display.keysym(known)):
                return sym
        raise NoKey(f"there is no key {name!r}; keys are named as ctrl, Return, Tab, F5, Page_Down, a")

    def _key(self, sym: int) -> tuple[int, bool]:
        if sym in self._own:
            return self._own[sym], False
        found = self._display.code_of(sym)
        if found is not None:
            return found
        if not self._room:
            raise NoKey("the keyboard has no room for another character")
        code = next(self._free)
        self._own = {known: key for known, key in self._own.items() if key != code} | {sym: code}
        self._settled()  # what was typed with this key before must have been read
        self._display.bind(code, sym)
        self._settled()
        return code, False


def _keysym(character: str) -> int:
    number = ord(character)
    if character in _CHARACTERS:
        return _CHARACTERS[character]
    if number < 0x20 or 0x7F <= number < 0xA0 or 0xD800 <= number < 0xE000:
        raise NoKey(f"no key gives the character {character!r}")
    return number if number < 0x100 else _UNICODE + number
