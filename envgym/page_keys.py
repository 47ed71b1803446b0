"""Keys as they are spelled in a press: which key, what is held meanwhile, and what that means for a clipboard."""

from typing import Literal

__all__ = ["clipboard_use", "read_keys"]

_HELD = {"Ctrl": "Control", "Cmd": "Meta"} | {name: name for name in ("Alt", "Control", "Meta", "Shift")}
_ALIAS = {"Return": "Enter", "Esc": "Escape", "Del": "Delete", "Left": "ArrowLeft", "Right": "ArrowRight"}
_ALIAS |= {"Up": "ArrowUp", "Down": "ArrowDown", " ": "Space"} | _HELD
_USES: tuple[tuple[str, str, Literal["copy", "cut", "paste"]], ...] = (
    ("Control", "c", "copy"),
    ("Control", "Insert", "copy"),
    ("Control", "x", "cut"),
    ("Shift", "Delete", "cut"),
    ("Control", "v", "paste"),
    ("Control+Shift", "v", "paste"),
    ("Shift", "Insert", "paste"),
)
_CLIPBOARD = {(frozenset(held.split("+")), name): use for held, name, use in _USES}


def read_keys(keys: str) -> tuple[tuple[str, ...], str] | None:
    """What is held, each once in the order given, and the key: ("Control", "Shift"), "a" of "Ctrl+Shift+a".

    None where something is held that cannot be. The key's name is the usual one of those that have several.
    """
    *held, name = (
        [keys] if keys == "+" else keys.removesuffix("++").split("+") + (["+"] if keys.endswith("++") else [])
    )
    if any(one not in _HELD for one in held):
        return None
    return tuple(dict.fromkeys(_HELD[one] for one in held)), _ALIAS.get(name, name)


def clipboard_use(keys: str) -> Literal["copy", "cut", "paste"] | None:
    """What a press does with the clipboard, however it is spelled; None where it has nothing to do with it."""
    if (read := read_keys(keys)) is None:
        return None
    held, name = read
    return _CLIPBOARD.get((frozenset(held), name.lower() if len(name) == 1 else name))
