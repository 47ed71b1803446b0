"""A root file system as a directory that is filled from tar layers, and the digest of what it then holds.

Archives are believed nothing: every name is resolved by the kernel as if the directory were the root, so neither
"..", nor an absolute name, nor a symlink leads out of it. Devices are left out, set-user-id bits are dropped (no
sandbox honours them, and the host must not find them in a cache), extended attributes are not applied.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator

from envgym_sandboxes import syscalls

__all__ = ["MOST_BYTES", "Rootfs", "content_digest"]

MOST_BYTES = 64 << 30
"""The most that the files of one image may hold, so that a small archive cannot fill the disk."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_CHUNK = 1 << 20


class Rootfs:
    """Fills `top`, an empty directory, with the layers of an image, lowest first.

    Raises ValueError for an archive that is none, that names something outside, or that holds more than
    `MOST_BYTES`. Owners are kept where this process may set them.
    """

    def __init__(self, top: str) -> None:
        self.top = top
        self.size_bytes = 0
        self._root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owned = os.geteuid() == 0
        self._times: dict[str, int] = {}

    def __enter__(self) -> "Rootfs":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def add(self, layer: tarfile.TarFile) -> None:
        """Lay one archive over what is there."""
        made: set[str] = set()
        try:
            for member in layer:
                self._add(layer, member, made)
        except tarfile.TarError as error:
            raise ValueError(f"not a tar archive: {error}") from error

    def finish(self) -> None:
        """Give directories their times, which filling them has changed."""
        for name, time in self._times.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._parent(name) as (parent, last):
                if stat.S_ISDIR(os.lstat(last, dir_fd=parent).st_mode):
                    os.utime(last, (time, time), dir_fd=parent, follow_symlinks=False)

    def _add(self, layer: tarfile.TarFile, member: tarfile.TarInfo, made: set[str]) -> None:
        name = _checked(member.name)
        if not name:
            os.fchmod(self._root, 0o755)
            return
        with self._parent(name) as (parent, last):
            if last == _OPAQUE:
                self._clear(parent, name.rpartition("/")[0], made)
            elif last.startswith(_WHITEOUT):
                _remove(last[len(_WHITEOUT) :], parent)
            else:
                self._make(layer, member, parent, last)
                made.add(name)
                if member.isdir():
                    self._times[name] = int(member.mtime)

    def _clear(self, parent: int, folder: str, made: set[str]) -> None:
        """Remove what lower layers put into a folder; what this layer did stays."""
        prefix = f"{folder}/" if folder else ""
        ours = {name[len(prefix) :].partition("/")[0] for name in made if name.startswith(prefix)}
        for entry in os.listdir(parent):
            if entry not in ours:
                _remove(entry, parent)

    def _make(self, layer: tarfile.TarFile, member: tarfile.TarInfo, parent: int, last: str) -> None:
        if member.isdir():
            if not _is_directory(last, parent):
                _remove(last, parent)
                os.mkdir(last, 0o700, dir_fd=parent)
            self._own(member, parent, last)
            os.chmod(last, _mode(member), dir_fd=parent)
        elif member.issym():
            _remove(last, parent)
            os.symlink(member.linkname, last, dir_fd=parent)
            self._own(member, parent, last)
        elif member.islnk():
            self._link(member, parent, last)
        elif member.isreg():
            _remove(last, parent)
            self._write(layer, member, parent, last)

    def _link(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        try:
            with self._parent(_checked(member.linkname), make=False) as (source, name):
                if not stat.S_ISREG(os.lstat(name, dir_fd=source).st_mode):
                    raise ValueError(f"{member.name!r} is a hard link to {member.linkname!r}, which is no file")
                _remove(last, parent)
                os.link(name, last, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise ValueError(f"{member.name!r} is a hard link to {member.linkname!r}, which is not there") from None

    def _write(self, layer: tarfile.TarFile, member: tarfile.TarInfo, parent: int, last: str) -> None:
        self.size_bytes += member.size
        if self.size_bytes > MOST_BYTES:
            raise ValueError(f"the image holds more than {MOST_BYTES} bytes")
        source = layer.extractfile(member)
        assert source is not None
        fd = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
        with source, open(fd, "wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            if self._owned:
                os.fchown(fd, member.uid, member.gid)
            os.fchmod(fd, _mode(member))
            os.utime(fd, (int(member.mtime), int(member.mtime)))

    def _own(self, member: tarfile.TarInfo, parent: int, last: str) -> None:
        if self._owned:
            os.chown(last, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)

    @contextlib.contextmanager
    def _parent(self, name: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
        """The directory that `name` is in, resolved below the top, and the last part of `name`."""
        folder, _slash, last = name.rpartition("/")
        try:
            fd = syscalls.open_inside(self._root, folder or ".")
        except FileNotFoundError:
            if not make:
                raise
            with self._parent(folder) as (parent, below):
                try:
                    os.mkdir(below, 0o755, dir_fd=parent)
                except FileExistsError:
                    raise ValueError(
                        f"the archive names {name!r}, and {folder!r} is a link that leads nowhere"
                    ) from None
            fd = syscalls.open_inside(self._root, folder)
        try:
            yield fd, last
        finally:
            os.close(fd)


def _checked(name: str) -> str:
    """A member's name below the top, "" for the top itself. Raises ValueError for one that leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ValueError(f"the archive names {name!r}, which leads out of the image")
    return "/".join(parts)


def _mode(member: tarfile.TarInfo) -> int:
    """Permissions without the bits that give privileges; the owner can always read, so content can be checked."""
    return member.mode & 0o1777 | (0o700 if member.isdir() else 0o400)


def _is_directory(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
    except FileNotFoundError:
        return False


def _remove(name: str, parent: int) -> None:
    """Remove a name with all below it; symlinks are not followed. Nothing there is fine."""
    if name in ("", ".", ".."):
        raise ValueError(f"the archive deletes {name!r}, which is not a file name")
    if _is_directory(name, parent):
        shutil.rmtree(name, dir_fd=parent)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)


def content_digest(top: str) -> tuple[str, int]:
    """The digest of a root file system, ``sha256:`` and 64 digits, and the bytes its files hold.

    Of every path: kind, permissions, content or link target. Not of owners and times, which depend on who unpacked
    it and when. Raises OSError for what cannot be read.
    """
    total, size = hashlib.sha256(), 0
    for path in _walk(top, ""):
        info = os.lstat(top + path)
        content = ""
        if stat.S_ISREG(info.st_mode):
            size += info.st_size
            with open(top + path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif stat.S_ISLNK(info.st_mode):
            content = os.readlink(top + path)
        kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
        line = f"{path}\0{kind:o} {0 if stat.S_ISLNK(info.st_mode) else mode:o} {content}\n"
        total.update(line.encode("utf-8", "surrogateescape"))
    return f"sha256:{total.hexdigest()}", size


def _walk(top: str, path: str) -> Iterator[str]:
    for entry in sorted(os.scandir(top + path), key=lambda item: item.name):
        here = f"{path}/{entry.name}"
        yield here
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(top, here)
