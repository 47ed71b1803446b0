"""Tasks of a Spider or BIRD folder: its questions, its queries, its SQLite files, read where they lie.

Spider: ``dev.json``, ``train_spider.json`` ... beside ``database/ID/ID.sqlite``, ``test.json`` beside
``test_database``; BIRD: ``dev.json``, ``train.json`` or ``mini_dev_sqlite.json`` beside ``dev_databases`` or
``train_databases``. An answer is graded on the one database there is, so a constant that happens to be right
counts; generated tasks have a second database against that.
"""

import json
import re
from pathlib import Path
from typing import Any

from envgym.task import Task, TaskSet

__all__ = ["asks_for_order", "folder_tasks"]

_DATABASES = ("database", "test_database", "dev_databases", "train_databases", "test_databases", "databases")
_SKIPPED = ("tables.json", "_tied_append.json", "_mysql.json", "_postgresql.json")
"""How files end that hold no questions, those of another file once more (BIRD's second queries), or other SQL."""


def folder_tasks(path: Path) -> TaskSet:
    """The tasks of all question files below `path`, in the order of their names.

    Files whose name begins with "train" are of the split "train", all others of "heldout". Raises ValueError, with
    the file and the entry, for what is no such folder.
    """
    files = sorted(file for file in path.glob("*.json") if not file.name.endswith(_SKIPPED))
    homes = [path / name for name in _DATABASES if (path / name).is_dir()]
    if not files or not homes:
        raise ValueError(
            f"{path} is no Spider or BIRD folder: it needs a JSON file of questions and one of the folders "
            f"{', '.join(_DATABASES)}"
        )
    return TaskSet([task for file in files for task in _tasks(file, homes)])


_PIECES = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[()]|\border\s+by\b""", re.I | re.S
)


def asks_for_order(sql: str) -> bool:
    """Whether a query orders its own rows: an ORDER BY that stands in no parentheses, text, name or comment."""
    depth = 0
    for piece in _PIECES.findall(sql):
        depth += (piece == "(") - (piece == ")")
        if depth == 0 and piece[:1] in "oO":
            return True
    return False


def _tasks(file: Path, homes: list[Path]) -> list[Task]:
    raw = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(raw, list):
        return []  # such folders hold other files too
    split = "train" if file.name.startswith("train") else "heldout"
    kind = re.split(r"[_.]", file.name)[0]
    own_first = sorted(homes, key=lambda home: not home.name.startswith(kind))
    return [_task(file, number, entry, own_first, split) for number, entry in enumerate(raw)]


def _task(file: Path, number: int, entry: Any, homes: list[Path], split: str) -> Task:
    where = f"{file}, entry {number}"
    if not isinstance(entry, dict) or not {"db_id", "question"} <= entry.keys():
        raise ValueError(f"{where} has no db_id and question")
    sql = entry.get("query") or entry.get("SQL")
    if not sql:
        raise ValueError(f"{where} has neither query nor SQL")
    name = str(entry["db_id"])
    places = [home / name / f"{name}.sqlite" for home in homes]
    place = next((one for one in places if one.is_file()), None)
    if place is None:
        raise ValueError(f"{where}: there is no {name}/{name}.sqlite below {', '.join(map(str, homes))}")
    hint = f"\nHint: {entry['evidence']}" if entry.get("evidence") else ""
    return Task(
        id=f"{file.stem}/{number}",
        prompt=f"{entry['question']}{hint}\nAnswer it with one SQLite query over a database that you can look at.",
        split=split,
        seed=number,
        metadata={
            "file": str(place),
            "sql": str(sql).strip().rstrip(";"),
            "ordered": asks_for_order(str(sql)),
            "difficulty": str(entry.get("difficulty") or entry.get("hardness") or ""),
        },
    )
