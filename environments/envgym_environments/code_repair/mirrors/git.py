"""Git, asked about a repository of strangers: its objects and names are read, its settings are not.

A repository can name programs that git then runs: filters, hooks, fsmonitor, drivers of diffs, helpers that fetch.
So git never sees the repository itself, but a folder made for one call, which borrows its objects and refs and has
settings of its own; those of the machine and of its user are left out too. Files are written from the objects as
they are stored, without git: attributes (ends of lines, filters, large files elsewhere) are not applied.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["ask", "drop_links_out", "git_folder", "plain_git", "write_tree"]

_SETTINGS = (
    "core.quotePath=false",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
)
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_TIMEOUT_S = 300
_BORROWED = ("objects", "refs", "packed-refs", "logs", "shallow", "reftable")
_FORMATS = ("objectFormat", "refStorage")
_LINK, _SUBMODULE = "120000", "160000"


def git_folder(path: Path) -> Path | None:
    """Where the repository of this folder keeps its objects and names; None where there is no repository.

    The folder may be a work tree, also a further one or a submodule's, or a bare repository.
    """
    inner = path / ".git"
    if inner.is_file():
        named = _line(inner)
        inner = path / named.removeprefix("gitdir:").strip() if named.startswith("gitdir:") else inner
    for folder in (inner, path):
        if (folder / "HEAD").is_file() and (_common(folder) / "objects").is_dir():
            return folder
    return None


def _common(folder: Path) -> Path:
    """What further work trees share."""
    shared = folder / "commondir"
    return folder / _line(shared) if shared.is_file() else folder


def _line(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(1 << 14).split(b"\n")[0]).strip()


def ask(path: Path, *arguments: str) -> bytes:
    """What git says of the repository at a path. Raises ValueError when it refuses, or there is none."""
    with _borrowed(path) as folder:
        return _run(folder, arguments, path)


def plain_git(place: Path, *arguments: str) -> None:
    """Let git work in a folder that is no repository, such as `apply`. Raises ValueError when it refuses."""
    _run(None, arguments, place)


def _run(folder: Path | None, arguments: tuple[str, ...], path: Path, given: bytes = b"") -> bytes:
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    command = ["git", "-C", str(folder or path), "--no-pager", *settings, *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    kept |= {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)} if folder is None else {"GIT_DIR": str(folder)}
    try:
        done = subprocess.run(command, input=given, capture_output=True, env=kept, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"git {arguments[0]} gave no answer within {_TIMEOUT_S} s in {path}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise ValueError(f"git {arguments[0]} failed in {path}: {said}")
    return done.stdout


@contextmanager
def _borrowed(path: Path) -> Iterator[Path]:
    """A bare repository for one call: the objects and names of the one at a path, and settings of our own."""
    found = git_folder(path)
    if found is None:
        raise ValueError(f"there is no git repository at {path}")
    found = found.resolve()
    with tempfile.TemporaryDirectory(prefix="envgym-git-") as place:
        folder, common = Path(place), _common(found).resolve()
        head = found / "HEAD"
        (folder / "HEAD").write_text((f"ref: {os.readlink(head)}" if head.is_symlink() else _line(head)) + "\n")
        for name in _BORROWED:
            if (common / name).exists():
                (folder / name).symlink_to(common / name)
        if not (folder / "refs").exists():
            (folder / "refs").mkdir()
        formats = "".join(f"\t{name} = {value}\n" for name, value in _formats(common / "config"))
        version = int(bool(formats))
        (folder / "config").write_text(
            f"[core]\n\tbare = true\n\trepositoryFormatVersion = {version}\n[extensions]\n{formats}"
        )
        yield folder


def _formats(config: Path) -> Iterator[tuple[str, str]]:
    """How objects and names are kept: all that is read of a repository's settings."""
    if not config.is_file():
        return
    with config.open("rb") as file:
        if not re.search(rb"(?i)objectformat|refstorage", file.read(1 << 20)):
            return
    for name in _FORMATS:
        try:
            value = _run(
                None, ("config", "--file", str(config), "--no-includes", f"extensions.{name}"), config.parent
            )
        except ValueError:  # it says nothing of this one
            continue
        if re.fullmatch(rb"[a-z0-9]+\n", value):
            yield name, value.decode().strip()


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    kind: str
    name: str
    path: PurePosixPath


def write_tree(path: Path, commit: str, top: Path) -> None:
    """Write the files of a commit of the repository at a path below the empty folder `top`.

    Links that leave the tree, or lead round, are left out; a submodule is an empty folder. Raises ValueError when
    an object is not there, or the tree is none that git would make.
    """
    with _borrowed(path) as folder:
        listed = _run(folder, ("ls-tree", "-r", "-z", "--full-tree", commit), path)
        entries = [_entry(line) for line in listed.split(b"\0") if line]
        _check(entries, path)
        kept = [one for one in entries if one.mode != _SUBMODULE]
        asked = "".join(f"{one.name}\n" for one in kept).encode()
        blobs = _Blobs(_run(folder, ("cat-file", "--batch"), path, asked), path)
    for one in entries:
        if one.mode == _SUBMODULE:
            top.joinpath(one.path).mkdir(parents=True)
    links: list[tuple[Path, bytes]] = []
    for one in kept:
        body, place = blobs.take(one.name), top / one.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if one.mode == _LINK:
            links.append((place, body))
            continue
        place.write_bytes(body)
        if one.mode == "100755":
            place.chmod(place.stat().st_mode | 0o111)
    for place, target in links:  # last, so that nothing is written through one
        if not target or b"\0" in target:
            raise ValueError(f"{path} has no tree to write: a link to {target!r}")
        os.symlink(target, os.fsencode(place))
    drop_links_out(top)


def _entry(line: bytes) -> _Entry:
    facts, _, path = line.partition(b"\t")
    mode, kind, name = facts.decode("ascii").split()
    text = os.fsdecode(path)
    if PurePosixPath(text).as_posix() != text:
        raise ValueError(f"it has no tree to write: a file is called {text!r}")
    return _Entry(mode, kind, name, PurePosixPath(text))


def _check(entries: list[_Entry], path: Path) -> None:
    """Raise ValueError where a name leads elsewhere, or one path is two things."""
    seen = {one.path for one in entries}
    if len(seen) != len(entries):
        raise ValueError(f"{path} has no tree to write: one name is two files")
    for one in entries:
        if one.path.is_absolute() or any(part == ".." or part.lower() == ".git" for part in one.path.parts):
            raise ValueError(f"{path} has no tree to write: a file is called {str(one.path)!r}")
        if one.kind not in ("blob", "commit") or not seen.isdisjoint(one.path.parents):
            raise ValueError(f"{path} has no tree to write: {str(one.path)!r} lies in what is no folder")


class _Blobs:
    """What `cat-file --batch` said, in the order in which it was asked."""

    def __init__(self, said: bytes, path: Path) -> None:
        self._said, self._at, self._path = said, 0, path

    def take(self, name: str) -> bytes:
        end = self._said.index(b"\n", self._at)
        head = self._said[self._at : end].decode("ascii", "replace").split()
        if len(head) != 3 or head[0] != name or head[1] != "blob":
            raise ValueError(f"the repository at {self._path} lacks {name}, and nothing is fetched")
        start, size = end + 1, int(head[2])
        self._at = start + size + 1
        return self._said[start : start + size]


def drop_links_out(top: Path) -> None:
    """Remove links that leave the tree, or lead round: what they name is no part of it, and may be private."""
    whole = top.resolve()
    for path in sorted(top.rglob("*")):
        if path.is_symlink() and not _stays(path, whole):
            path.unlink()


def _stays(link: Path, top: Path) -> bool:
    try:
        return link.resolve().is_relative_to(top)
    except (OSError, RuntimeError):  # it leads round, or its name is too long
        return False
