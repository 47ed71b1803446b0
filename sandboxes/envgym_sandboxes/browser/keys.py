"""Keys as Chromium's input wants them: names and characters, with the codes that pages look at."""

from typing import Any

from envgym.page_keys import read_keys

__all__ = ["Event", "key_events", "typed_events"]

_NAMED = {
    "Enter": 13, "Tab": 9, "Escape": 27, "Backspace": 8, "Delete": 46, "Insert": 45, "Home": 36, "End": 35,
    "PageUp": 33, "PageDown": 34, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Space": 32,
    **{f"F{number}": 111 + number for number in range(1, 13)},
}  # fmt: skip
_HELD = {"Alt": (1, 18), "Control": (2, 17), "Meta": (4, 91), "Shift": (8, 16)}
_SHIFTED = dict(zip('!@#$%^&*()_+{}|:"<>?~', "1234567890-=[]\\;',./`", strict=True))
_CODES = {
    ";": 186,
    "=": 187,
    ",": 188,
    "-": 189,
    ".": 190,
    "/": 191,
    "`": 192,
    "[": 219,
    "\\": 220,
    "]": 221,
    "'": 222,
}

Event = tuple[str, dict[str, Any]]


def key_events(keys: str) -> list[Event] | None:
    """The events of a key with what is held, such as "Control+Shift+a"; None for what is no key."""
    held, name = read_keys(keys) or ((), "")
    if name not in _NAMED and len(name) != 1 and name not in _HELD:
        return None
    modifiers = sum(_HELD[one][0] for one in held)
    if name in _HELD:
        return [
            _event(kind, {"key": name, "windowsVirtualKeyCode": _HELD[name][1]}, 0)
            for kind in ("rawKeyDown", "keyUp")
        ]
    key = _key(name.upper() if "Shift" in held and len(name) == 1 else name)
    if modifiers & 7:  # Alt, Control, Meta: nothing is typed
        key.pop("text", None)
    events, sofar = [], 0
    for one in held:
        sofar |= _HELD[one][0]
        events.append(_event("rawKeyDown", {"key": one, "windowsVirtualKeyCode": _HELD[one][1]}, sofar))
    events.append(_event("keyDown" if "text" in key else "rawKeyDown", key, modifiers))
    events.append(_event("keyUp", {part: value for part, value in key.items() if part != "text"}, modifiers))
    for one in reversed(held):
        sofar &= ~_HELD[one][0]
        events.append(_event("keyUp", {"key": one, "windowsVirtualKeyCode": _HELD[one][1]}, sofar))
    return events


def typed_events(text: str) -> list[Event]:
    """The events of typing a text, key by key."""
    events: list[Event] = []
    for letter in text:
        name = {"\n": "Enter", "\t": "Tab"}.get(letter, letter)
        if name in _NAMED or (letter.isascii() and letter.isprintable()):
            key = _key(name)
            shift = 8 if letter.isupper() or letter in _SHIFTED else 0
            events.append(_event("keyDown" if "text" in key else "rawKeyDown", key, shift))
            events.append(_event("keyUp", {part: value for part, value in key.items() if part != "text"}, shift))
        else:
            events.append(("Input.insertText", {"text": letter}))
    return events


def _event(kind: str, key: dict[str, Any], modifiers: int) -> Event:
    return "Input.dispatchKeyEvent", {"type": kind, "modifiers": modifiers, **key}


def _key(name: str) -> dict[str, Any]:
    if name in _NAMED and name != "Space":
        key: dict[str, Any] = {"key": name, "code": name, "windowsVirtualKeyCode": _NAMED[name]}
        return key | ({"text": "\r"} if name == "Enter" else {})
    if name in ("Space", " "):
        return {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "}
    base = _SHIFTED.get(name, name)
    if base.isascii() and base.isalnum():
        code = f"Digit{base}" if base.isdigit() else f"Key{base.upper()}"
        return {"key": name, "code": code, "windowsVirtualKeyCode": ord(base.upper()), "text": name}
    return {"key": name, "windowsVirtualKeyCode": _CODES.get(base, 0), "text": name}
