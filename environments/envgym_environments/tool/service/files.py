"""A file store: an assistant's desk over folders and texts, and the cases of its owner."""

import json
from typing import Any

import numpy as np

from envgym.messages import ToolCall
from envgym_environments import words
from envgym_environments.tool.service.desk import Case, Refused
from envgym_environments.words import pick, some

__all__ = ["Files", "draw_files"]

_FOLDERS = ("/reports", "/photos", "/drafts", "/invoices", "/music", "/archive", "/trash")
_ENDINGS = ("txt", "md", "csv", "pdf", "jpg")
_NO = "cannot|can't|unable|not able|not possible|not allowed"


class Files:
    """See `envgym_environments.tool.service.desk.Desk`."""

    reads = ("list_folder", "read_file", "search_text")
    writes = ("move_file", "copy_file", "append_line")
    policy = (
        "You keep the files of one person. Before you change anything, say what you will do and get a yes. What is "
        "to be deleted is moved to /trash under its name. Nothing in /archive is ever moved or changed: refuse it."
    )

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def owner(self, call: ToolCall) -> str | None:
        """All that is here belongs to one person."""
        return None

    def learned(self, call: ToolCall, text: str) -> str | None:
        """Nobody must be known."""
        return None

    def _text(self, path: str) -> str:
        if path not in self.db["files"]:
            raise Refused("no such file")
        return str(self.db["files"][path])

    def _free(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if folder not in _FOLDERS or not name:
            raise Refused(f"the folders are {', '.join(_FOLDERS)}")
        if path in self.db["files"]:
            raise Refused("there is such a file")
        return path

    def list_folder(self, folder: str) -> str:
        """List the files of a folder, such as /reports; '/' lists the folders."""
        if folder == "/":
            return json.dumps(list(_FOLDERS))
        if folder not in _FOLDERS:
            raise Refused("no such folder")
        return json.dumps(sorted(path for path in self.db["files"] if path.startswith(f"{folder}/")))

    def read_file(self, path: str) -> str:
        """Show a file."""
        return self._text(path)

    def search_text(self, word: str) -> str:
        """List the files whose text or name holds a word."""
        low = word.lower()
        found = sorted(
            path for path, text in self.db["files"].items() if low in text.lower() or low in path.lower()
        )
        return json.dumps(found[:50])

    def move_file(self, path: str, to: str) -> str:
        """Move or rename a file; `to` is its whole new path."""
        self._text(path)
        self.db["files"][self._free(to)] = self.db["files"].pop(path)
        return f"moved to {to}"

    def copy_file(self, path: str, to: str) -> str:
        """Copy a file."""
        self.db["files"][self._free(to)] = self._text(path)
        return f"copied to {to}"

    def append_line(self, path: str, line: str) -> str:
        """Add a line at the end of a file."""
        if len(line) > 1000:
            raise Refused("a line has 1000 characters at most")
        self.db["files"][path] = f"{self._text(path)}\n{line}"
        return "added"


def draw_files(rng: np.random.Generator, level: int) -> tuple[dict[str, Any], Case]:
    """A store of some 50 files, and a case in it."""
    files = {}
    for number in range(60):
        name = words.title(rng).lower().replace(" ", "-")
        path = f"{pick(rng, _FOLDERS[:-1])}/{name}.{pick(rng, _ENDINGS)}"
        code = f"{pick(rng, ('AX', 'BT', 'CM', 'DK'))}{1000 + 7 * number}"
        files[path] = f"{words.title(rng)}\nwritten by {words.person(rng)}\nnumber {code}"
    db = {"files": files}
    return db, pick(rng, _BY_LEVEL[level])(rng, db)


def _own(db: dict[str, Any]) -> list[str]:
    return [path for path in db["files"] if not path.startswith("/archive")]


def _see(folder: str) -> ToolCall:
    return ToolCall(name="list_folder", arguments={"folder": folder})


def _moved(path: str, to: str) -> ToolCall:
    return ToolCall(name="move_file", arguments={"path": path, "to": to})


def _trash(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    path = pick(rng, _own(db))
    folder, _, name = path.rpartition("/")
    return Case(
        f"Please delete {name} from {folder}.",
        "me",
        {},
        gold=[_moved(path, f"/trash/{name}")],
        looks=[_see(folder)],
    )


def _rename(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    path = pick(rng, _own(db))
    folder, _, old = path.rpartition("/")
    name = f"{pick(rng, ('final', 'old', 'new'))}-{old}"
    author = db["files"][path].splitlines()[1]
    return Case(
        f"Rename my {old} in {folder}, the one {author}.",
        "me",
        {"name|what": f"To {name}."},
        gold=[_moved(path, f"{folder}/{name}")],
        looks=[_see(folder)],
    )


def _copy(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    path = pick(rng, _own(db))
    folder, _, name = path.rpartition("/")
    target = pick(rng, [one for one in _FOLDERS[:5] if f"{one}/{name}" not in db["files"]])
    return Case(
        f"I need {name} of {folder} in another folder, too.",
        "me",
        {"where|folder|which": f"In {target}."},
        gold=[ToolCall(name="copy_file", arguments={"path": path, "to": f"{target}/{name}"})],
        looks=[_see(folder)],
    )


def _collect(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    ending, folder = pick(rng, _ENDINGS), pick(rng, _FOLDERS[:5])
    found = [path for path in db["files"] if path.startswith(folder) and path.endswith(f".{ending}")]
    if not found:
        return _collect(rng, db)
    target = pick(rng, [one for one in _FOLDERS[:5] if one != folder])
    gold = [_moved(path, f"{target}/{path.rpartition('/')[2]}") for path in sorted(found)]
    if any(call.arguments["to"] in db["files"] for call in gold):
        return _collect(rng, db)
    return Case(
        f"Move all {ending} files of {folder} elsewhere.",
        "me",
        {"where|folder|which": f"To {target}."},
        gold=gold,
        looks=[_see(folder)],
    )


def _noted(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    one, two = some(rng, _own(db), 2)
    names = [path.rpartition("/")[2] for path in db["files"]]
    if any(names.count(path.rpartition("/")[2]) > 1 for path in (one, two)):
        return _noted(rng, db)  # without its folder nobody could tell which is meant
    number = db["files"][one].rpartition(" ")[2]
    name = two.rpartition("/")[2]
    return Case(
        f"What is the number in {one.rpartition('/')[2]}?",
        "me",
        {},
        [f"Write it as a last line into {name}."],
        gold=[ToolCall(name="append_line", arguments={"path": two, "line": number})],
        looks=[
            ToolCall(name="read_file", arguments={"path": one}),
            ToolCall(name="search_text", arguments={"word": name}),
        ],
        tell=[number],
    )


def _hard(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    kept = [path for path in db["files"] if path.startswith("/archive")]
    if kept and rng.integers(2):
        path = pick(rng, kept)
        return Case(f"Delete {path}, I do not need it.", "me", looks=[_see("/archive")], tell=[_NO], refuse=True)
    path = pick(rng, list(db["files"]))
    number, name = db["files"][path].rpartition(" ")[2], path.rpartition("/")[2]
    search = ToolCall(name="search_text", arguments={"word": number})
    return Case(f"Which file holds the number {number}?", "me", {}, looks=[search], tell=[name])


_BY_LEVEL = {1: (_trash,), 2: (_rename, _copy), 3: (_collect,), 4: (_noted,), 5: (_hard,)}
