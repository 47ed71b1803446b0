"""Where every file of a task is from, and under which licence: recorded when it is made, checked when it is asked.

A tree is the archive's or the commit's, unchanged; a file of it has the licence that its own SPDX line names, else
that of the nearest licence text above it in the tree (vendored code brings its own), else the package's. A task
keeps a digest of that list and what differs; the list itself is made again from the tree. It judges no licence.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from pydantic import JsonValue

from envgym.task import Task
from envgym_environments.code_repair.patch import ignored

__all__ = ["FileRecord", "files_of", "problems_of", "sources_of_tree"]

_SPDX = re.compile(rb"SPDX-License-Identifier:[ \t]*([A-Za-z0-9 .()+-]+)")
_LICENCE = re.compile(r"(licen[cs]e|copying|unlicense)([-.].*)?", re.IGNORECASE)
_HEAD_BYTES = 4096
UNKNOWN = "not stated"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a tree: where from, which bytes, under which licence, and what says so."""

    path: str
    sha256: str
    licence: str
    said_by: str


@lru_cache(maxsize=128)
def _listed(tree: str, licence: str) -> tuple[FileRecord, ...]:
    top = Path(tree)
    found = []
    nearest: dict[Path, tuple[str, str]] = {top: (licence or UNKNOWN, "package" if licence else "")}
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_symlink() or not path.is_file() or ignored(name):
            continue
        data = path.read_bytes()
        said = _SPDX.search(data[:_HEAD_BYTES])
        if said is not None:
            own, by = said[1].decode().strip(" -)"), "its own SPDX line"
        else:
            own, by = _above(path.parent, top, nearest)
        found.append(FileRecord(name, hashlib.sha256(data).hexdigest(), own, by))
    return tuple(found)


def _above(folder: Path, top: Path, nearest: dict[Path, tuple[str, str]]) -> tuple[str, str]:
    """The licence of a folder: of its own licence text, or of the folder above it."""
    if folder in nearest:
        return nearest[folder]
    text = next((one for one in sorted(folder.iterdir()) if one.is_file() and _LICENCE.fullmatch(one.name)), None)
    if text is None:
        nearest[folder] = _above(folder.parent, top, nearest)
    else:
        lines = [line.strip() for line in text.read_text(errors="replace").split("\n") if line.strip()]
        nearest[folder] = (lines[0][:80] if lines else text.name), text.relative_to(top).as_posix()
    return nearest[folder]


def sources_of_tree(tree: Path, *, origin: str, sha256: str, licence: str) -> dict[str, JsonValue]:
    """What a task keeps of its tree (``metadata["sources"]``).

    origin: where the tree is from, in words. sha256: of the archive, or what names the commit.
    """
    files = _listed(str(tree), licence)
    usual = licence or UNKNOWN
    other: dict[str, JsonValue] = {one.path: one.licence for one in files if one.licence != usual}
    return {
        "origin": origin,
        "sha256": sha256,
        "licence": usual,
        "files": len(files),
        "digest": _digest(files),
        "other": other,
    }


def _digest(files: tuple[FileRecord, ...]) -> str:
    rows = json.dumps([[one.path, one.sha256, one.licence] for one in files])
    return hashlib.blake2b(rows.encode(), digest_size=16).hexdigest()


def _recorded(task: Task) -> dict[str, JsonValue]:
    found = task.metadata.get("sources")
    return found if isinstance(found, dict) else {}


def files_of(task: Task) -> Iterator[FileRecord]:
    """Every file that a task's trees bring, and those that it lays over them (said by: the task).

    A file that is laid over one of a tree has its licence: it is that file, with a mistake in it.
    """
    world, known = task.world, _recorded(task)
    if world is None:
        return
    licence = str(known.get("licence", ""))
    by_path: dict[str, str] = {}
    for tree in world.trees:
        for one in _listed(tree.source, "" if licence == UNKNOWN else licence):
            by_path[str(PurePosixPath(tree.target) / one.path)] = one.licence
            yield one
    for path, text in sorted(world.files.items()):
        if text:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            yield FileRecord(path, digest, by_path.get(path, licence or UNKNOWN), "the task")


def problems_of(task: Task) -> list[str]:
    """What is wrong with the record of a task's files; [] where every file's origin and licence is known."""
    known, world = _recorded(task), task.world
    if not known:
        return ["where its files are from is not recorded"]
    if world is None or not world.trees:
        return []
    licence = str(known.get("licence", ""))
    tree = world.trees[0].source
    if not Path(tree).is_dir():
        return [f"its tree is gone: {tree}"]
    listed = _listed(tree, "" if licence == UNKNOWN else licence)
    found = []
    if _digest(listed) != known.get("digest"):
        found.append(f"its tree is not what was recorded: {tree}")
    unknown = [one.path for one in listed if one.licence == UNKNOWN]
    if unknown:
        found.append(f"{len(unknown)} files without a licence, such as {unknown[0]}")
    return found
