"""What is done to layers from outside any sandbox: fill, copy, merge, compare. Each runs in a fork of the zygote.

A layer is a directory in overlay's own format: a character device 0/0 says "deleted", an opaque attribute on a
directory says "nothing below shows through". Paths are relative to the state directory unless they begin with /.
The functions here follow no symlink and start no program.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["run"]

Answer = tuple[Any, bytes]
_CHUNK = 1 << 20


def run(job: str, arguments: dict[str, Any]) -> Answer:
    """Run one job by name; its JSON result and its bytes."""
    return _JOBS[job](**arguments)


def _attribute(privileged: bool) -> str:
    return "trusted.overlay.opaque" if privileged else "user.overlay.opaque"


def _is_opaque(path: str) -> bool:
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def fill(layer: str, steps: list[dict[str, Any]], uid: int, gid: int) -> Answer:
    """Build a layer from steps: {do: directory, file, link or tree, path, mode, own, ...}; "/" is its top."""
    for step in steps:
        path = layer + step["path"].rstrip("/")
        owner = (uid, gid) if step.get("own", True) else None
        parent = step["path"] if step["do"] in ("directory", "tree") else os.path.dirname(step["path"])
        _make_directories(layer, parent, owner)
        if step["do"] == "link":
            os.symlink(step["target"], path)
            continue
        if step["do"] == "tree":
            _copy_tree(step["source"], path, owner, step.get("public", False), frozenset(step.get("skip", ())))
            continue
        if step["do"] == "file":
            if os.path.lexists(path):
                os.unlink(path)
            with open(path, "wb") as file:
                file.write(step["content"].encode("utf-8", "surrogateescape"))
            if owner:
                os.chown(path, *owner)
        os.chmod(path, step.get("mode", 0o755))
    return None, b""


def _make_directories(layer: str, path: str, owner: tuple[int, int] | None) -> None:
    at = layer
    for name in path.split("/"):
        at = f"{at}/{name}" if name else at
        if not os.path.isdir(at) or os.path.islink(at):
            os.mkdir(at, 0o755)
            if owner:
                os.chown(at, *owner)


def _copy_tree(
    source: str, target: str, owner: tuple[int, int] | None, public: bool, skip: frozenset[str] = frozenset()
) -> None:
    """Copy a directory's content, times and links included; special files are left out.

    Public: only what everybody may read. The order of the two calls at the end matters: a chown may clear modes.
    """
    for entry in os.scandir(source):
        to = f"{target}/{entry.name}"
        info = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(info.st_mode) & 0o777
        if entry.name in skip or (public and not entry.is_symlink() and not mode & 0o004):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), to)
        elif entry.is_dir(follow_symlinks=False):
            if not os.path.isdir(to):
                os.mkdir(to)
            _copy_tree(entry.path, to, owner, public)
        elif entry.is_file(follow_symlinks=False):
            shutil.copyfile(entry.path, to)
        else:
            continue
        if owner:
            os.chown(to, *owner, follow_symlinks=False)
        if not entry.is_symlink():
            os.chmod(to, mode)
            os.utime(to, ns=(info.st_atime_ns, info.st_mtime_ns))


def copy(sources: list[str], target: str, privileged: bool) -> Answer:
    """Copy layers, lowest first, into an empty one: what stacking them would show."""
    for source in sources:
        _merge(source, target, privileged)
    return None, b""


def _merge(source: str, target: str, privileged: bool) -> None:
    for entry in os.scandir(source):
        to = f"{target}/{entry.name}"
        info = entry.stat(follow_symlinks=False)
        is_dir = stat.S_ISDIR(info.st_mode)
        had = os.path.lexists(to)
        merged = had and is_dir and stat.S_ISDIR(os.lstat(to).st_mode) and not _is_opaque(entry.path)
        hides = had and _hides(to)
        if had and not merged:
            _remove(to)
        if is_dir:
            if not merged:
                os.mkdir(to)
            _merge(entry.path, to, privileged)
            # Whatever was hidden from the layers below must stay hidden.
            if _is_opaque(entry.path) or (hides and not merged):
                os.setxattr(to, _attribute(privileged), b"y")
        elif stat.S_ISREG(info.st_mode):
            shutil.copyfile(entry.path, to)
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(entry.path), to)
        elif _is_whiteout(info):
            os.mknod(to, stat.S_IFCHR, 0)
        elif stat.S_ISFIFO(info.st_mode):
            os.mkfifo(to)
        else:
            continue
        _copy_metadata(to, info)


def _hides(path: str) -> bool:
    info = os.lstat(path)
    return not stat.S_ISDIR(info.st_mode) or _is_opaque(path)


def _copy_metadata(path: str, info: os.stat_result) -> None:
    os.chown(path, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode) and not _is_whiteout(info):
        os.chmod(path, stat.S_IMODE(info.st_mode))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


# -- what changed ------------------------------------------------------------------------------------------------


def _lookup(lowers: list[str], path: str) -> str | None:
    """Where a path of stacked layers (topmost first) really is, or None."""
    for lower in lowers:
        at, hidden = lower.rstrip("/"), False
        parts = path.strip("/").split("/")
        for index, name in enumerate(parts):
            at = f"{at}/{name}"
            try:
                info = os.lstat(at)
            except OSError:
                break
            if _is_whiteout(info):
                return None
            if index == len(parts) - 1:
                return at
            if not stat.S_ISDIR(info.st_mode):
                return None
            hidden = hidden or _is_opaque(at)
        if hidden:
            return None
    return None


def _listing(lowers: list[str], path: str) -> set[str]:
    """Names in a directory of stacked layers, topmost first."""
    names: dict[str, bool] = {}
    for lower in lowers:
        at = _lookup([lower], path)
        if at is None or not stat.S_ISDIR(os.lstat(at).st_mode):
            continue
        for entry in os.scandir(at):
            names.setdefault(entry.name, not _is_whiteout(entry.stat(follow_symlinks=False)))
        if _is_opaque(at):
            break
    return {name for name, there in names.items() if there and _lookup(lowers, f"{path}/{name}")}


def _below(lowers: list[str], path: str) -> Iterator[str]:
    found = _lookup(lowers, path)
    if found is None:
        return
    yield path
    if stat.S_ISDIR(os.lstat(found).st_mode):
        for name in _listing(lowers, path):
            yield from _below(lowers, f"{path}/{name}")


def _changes(chain: list[str], lowers: list[str]) -> dict[str, str | None]:
    """Every path written or deleted in `chain` (lowest first) over `lowers`: where it is, or None."""
    changed: dict[str, str | None] = {}
    below = list(lowers)
    for layer in chain:
        _scan(layer, "", below, changed)
        below.insert(0, layer)
    return {path: at for path, at in changed.items() if at is not None or _lookup(lowers, path) is not None}


def _scan(layer: str, path: str, below: list[str], changed: dict[str, str | None]) -> None:
    for entry in sorted(os.scandir(layer + path), key=lambda item: item.name):
        here = f"{path}/{entry.name}"
        info = entry.stat(follow_symlinks=False)
        is_dir = stat.S_ISDIR(info.st_mode)
        if not is_dir or _is_opaque(entry.path):
            for gone in list(_below(below, here)):
                changed[gone] = None
        if _is_whiteout(info):
            changed[here] = None
            continue
        changed[here] = entry.path
        if is_dir:
            _scan(layer, here, below, changed)


def _differences(base: str, top: str, prefix: str) -> dict[str, str | None]:
    """The same of two whole directories: what is new, other or gone in `top`."""
    ours, theirs = dict(_walk(top, "")), dict(_walk(base, ""))
    changed: dict[str, str | None] = {prefix + path: None for path in theirs.keys() - ours.keys()}
    for path, at in ours.items():
        if path not in theirs or _fingerprint(theirs[path]) != _fingerprint(at):
            changed[prefix + path] = at
    return changed


def _walk(top: str, path: str) -> Iterator[tuple[str, str]]:
    for entry in os.scandir(top + path):
        here = f"{path}/{entry.name}"
        yield here, entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(top, here)


def _changed(stack: dict[str, Any]) -> dict[str, str | None]:
    return _differences(**stack) if "base" in stack else _changes(**stack)


def digest(**stack: Any) -> Answer:
    """A digest of paths, kinds, modes and contents of everything changed, deletions included."""
    total = hashlib.sha256()
    for path, at in sorted(_changed(stack).items()):
        line = "-" if at is None else _fingerprint(at)
        total.update(f"{path}\0{line}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest(), b""


def _fingerprint(path: str) -> str:
    info = os.lstat(path)
    kind, content = stat.S_IFMT(info.st_mode), ""
    if stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(info.st_mode):
        content = os.readlink(path)
    return f"{kind:o} {stat.S_IMODE(info.st_mode):o} {content}"


def diff(**stack: Any) -> Answer:
    """Changed files: [path, size] each, -1 for deleted, with their contents; a symlink's is its target."""
    index: list[tuple[str, int]] = []
    contents: list[bytes] = []
    for path, at in sorted(_changed(stack).items()):
        if at is None:
            index.append((path, -1))
            continue
        info = os.lstat(at)
        if stat.S_ISREG(info.st_mode):
            with open(at, "rb") as file:
                contents.append(file.read())
        elif stat.S_ISLNK(info.st_mode):
            contents.append(os.fsencode(os.readlink(at)))
        else:
            continue
        index.append((path, len(contents[-1])))
    return index, b"".join(contents)


_JOBS: dict[str, Callable[..., Answer]] = {"fill": fill, "copy": copy, "digest": digest, "diff": diff}
