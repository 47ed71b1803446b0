"""A project on this machine, of any language, as one of a recipe: a folder, a git repository's HEAD, an archive.

Nothing is fetched. What lies there is packed into the cache as a registry's archive would be, and is told by its
hash from then on: tasks stand on that, whatever becomes of the folder.
"""

import gzip
import hashlib
import os
import tarfile
import tempfile
from pathlib import Path

from envgym_environments.code_repair.local import Source, copied
from envgym_environments.code_repair.suites.fetch import archive_place
from envgym_environments.code_repair.suites.projects import Project

__all__ = ["local_project"]


def local_project(project: Project, *, beside: Path, cache: Path) -> Project:
    """The project with the version and hash of what lies at its path, which is relative to the folder `beside`.

    Raises ValueError when there is nothing.
    """
    path = beside / Path(project.source).expanduser()
    if not path.exists():
        raise ValueError(f"project {project.name!r}: source is {project.source!r}, but there is no {path}")
    store = cache / "archives"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".pack-") as place:
        top, version = copied(Source(path, name=project.name), Path(place), cache)
        packed = Path(place) / "packed"
        _pack(top, packed)
        with packed.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found = project.model_copy(update={"version": project.version or version, "sha256": digest})
        os.replace(packed, archive_place(found, cache))
    return found


def _pack(top: Path, target: Path) -> None:
    """The same bytes for the same files: names in order, without times and owners."""
    with (
        target.open("wb") as out,
        gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as opened,
    ):
        for path in (top, *sorted(top.rglob("*"))):
            opened.add(path, f"tree/{path.relative_to(top).as_posix()}", recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
