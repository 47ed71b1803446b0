"""The index of mirrors: what is needed to make the same tasks again, without a line of any package's code.

A row names both states with their hashes, the tests, and the pieces of the change by digest. The tasks of releases
are made again from it, byte by byte: the releases are fetched by hash, and nothing is run. Commits are in the
repository that they are of; their rows say what was found there.
"""

import json
import lzma
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from envgym.task import Task
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.mirrors.hunks import Hunk
from envgym_environments.code_repair.mirrors.issue import Asked, mirror_task, notes_for
from envgym_environments.code_repair.mirrors.releases import pair_of
from envgym_environments.code_repair.mirrors.stage import Stage, laid, plain
from envgym_environments.code_repair.mirrors.trees import Pair
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import Package, cache_root

__all__ = [
    "FORMAT",
    "are_mirrors",
    "index_row",
    "is_mirror_index",
    "read_mirror_index",
    "rebuild_mirrors",
    "write_mirror_index",
]

FORMAT: Final = "envgym code-repair mirrors 1"


def are_mirrors(tasks: Iterable[Task]) -> bool:
    """Whether all these tasks are mirrors, and there is one."""
    found = [str(task.metadata.get("operator")).endswith("-mirror") for task in tasks]
    return bool(found) and all(found)


def index_row(task: Task) -> dict[str, Any]:
    """What a task is made of: states with hashes, tests, and digests of the pieces of its repair. No code."""
    data: dict[str, Any] = dict(task.metadata)
    gold = data["gold"]
    paths = [place["path"] for place in gold["bugs"]] if "bugs" in gold else data["provenance"]["paths"]
    row = {
        "id": task.id,
        "split": task.split,
        "package": data["package"],
        **data["provenance"],
        "tests": data["fail_to_pass"],
        "kept": data["tests"] - len(data["fail_to_pass"]),
        "paths": list(dict.fromkeys(paths)),
        "hunks": gold["hunks"],
        "lines": gold["lines"],
    }
    if data["provenance"]["kind"] == "release":
        row |= {
            "layout": data["layout"],
            "passing": data["pass_to_pass"],
            "errors": [data["errors"][test] for test in data["fail_to_pass"]],
            "suite_s": data["suite_s"],
        }
        row |= {"certificate": data["certificate"]} if "certificate" in data else {}
    return row


def write_mirror_index(tasks: Iterable[Task], path: Path, recipes: Mapping[str, Package]) -> None:
    """Write the index of mirrors; a path that ends in ".xz" is compressed.

    recipes: sha256 of a later release -> how it is laid out and tested. Raises ValueError for a task of releases
    that are in none of them.
    """
    lines = []
    for task in tasks:
        row = index_row(task)
        if row["kind"] == "release":
            later = recipes.get(row["new"]["sha256"])
            if later is None:
                raise ValueError(
                    f"task {task.id!r} is of {row['package']} {row['new']['version']}, which the recipe does not "
                    "have; name the one that it was made by"
                )
            row["recipe"] = later.model_dump(mode="json")
        lines.append(row)
    texts = [json.dumps(line, ensure_ascii=False) for line in ({"format": FORMAT, "count": len(lines)}, *lines)]
    data = "".join(text + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode().split("\n")[:-1]


def is_mirror_index(path: Path) -> bool:
    """Whether a file says of itself that it is an index of mirrors."""
    try:
        first: Any = json.loads(_lines(path)[0])
    except (ValueError, IndexError, lzma.LZMAError, EOFError):
        return False
    return isinstance(first, dict) and first.get("format") == FORMAT


def read_mirror_index(path: Path) -> list[dict[str, Any]]:
    """The rows of an index of mirrors, without its header. Raises ValueError for one that is not whole."""
    first, *rows = [json.loads(line) for line in _lines(path)]
    if first["count"] != len(rows):
        raise ValueError(f"{path} has {len(rows)} tasks, but announces {first['count']}")
    return rows


def rebuild_mirrors(
    path: Path, *, cache: Path | None = None, progress: Callable[[str], None] = lambda line: None
) -> list[Task]:
    """The tasks of an index of mirrors of releases. progress: gets a line per pair.

    Raises ValueError when the index is damaged, a piece of a change is not found again, or a row is of a commit;
    InfrastructureFailure when a release cannot be had.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_mirror_index(path):
        if row["kind"] != "release":
            raise ValueError(
                f"{path}: {row['id']} is of a commit; it is made again by `envgym tasks mirror --git REPOSITORY`"
            )
        groups.setdefault(json.dumps([row["recipe"], row["old"], row["bridged"]]), []).append(row)
    tasks: dict[str, Task] = {}
    for rows in groups.values():
        pair, stage = _stage(rows[0], cache or cache_root())
        tasks |= {row["id"]: _task(pair, stage, row) for row in rows}
        progress(f"{pair.slug}: {len(rows)} tasks")
    return [tasks[row["id"]] for row in read_mirror_index(path)]


def _stage(row: Mapping[str, Any], cache: Path) -> tuple[Pair, Stage]:
    later = Package.model_validate(row["recipe"])
    earlier = later.model_copy(update={name: row["old"][name] for name in ("version", "sha256")})
    pair = pair_of(earlier, later, cache=cache)
    stage = plain(pair, cache)
    wanted = [name.rpartition(":")[2] for name in row["bridged"]]
    return pair, laid(pair, stage, _pieces(stage, wanted, row["id"]), cache)


def _pieces(stage: Stage, digests: Iterable[str], name: str) -> tuple[Hunk, ...]:
    known = {hunk.digest: hunk for hunk in stage.hunks}
    missing = [digest for digest in digests if digest not in known]
    if missing:
        raise ValueError(
            f"{name}: piece {missing[0]} is not among the {len(known)} of its two releases as this version splits "
            "them; rebuild with the version that wrote the index"
        )
    return tuple(known[digest] for digest in digests)


def _task(pair: Pair, stage: Stage, row: Mapping[str, Any]) -> Task:
    errors = dict(zip(row["tests"], row["errors"], strict=True))
    told = Asked(
        layout=Layout.model_validate(row["layout"]),
        failing=tuple(row["tests"]),
        passing=tuple(row["passing"]),
        errors=errors,
        count=row["kept"] + len(row["tests"]),
        suite_s=row["suite_s"],
    )
    notes = notes_for(pair, stage.tree, told.failing, list(errors.values()))
    task = mirror_task(pair, stage, _pieces(stage, row["hunks"], row["id"]), told, notes)
    if task.id != row["id"]:
        raise ValueError(f"{row['id']} comes out as {task.id}: the index was changed")
    if "certificate" in row:
        task = task.model_copy(update={"metadata": {**task.metadata, "certificate": row["certificate"]}})
        certificate_of(task)
    return task
