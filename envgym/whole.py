"""Files and folders that appear under their name only when they are whole.

`new_target` never overwrites what is there already; where the writing is ended by SIGTERM, nothing is left, and
what a killed process left, the next one for the same name removes. `replaced` puts a small file in another's place.
"""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import BinaryIO

__all__ = ["new_target", "replaced"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def new_target(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """A place to write in; it becomes `target` at the end of the block, and vanishes when the block fails.

    Raises FileExistsError, with the name, when something is there already.
    """
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists already; remove it or choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    beginning = f".{target.name}.part-"
    for one in target.parent.iterdir():
        pid = one.name.removeprefix(beginning)
        if one.name.startswith(beginning) and pid.isdecimal() and not _is_anothers(int(pid)):
            _remove(one)
    part = target.with_name(f"{beginning}{os.getpid()}")
    try:
        with _ended_by_term():
            if folder:
                part.mkdir()
            yield part
            os.replace(part, target)
    except OSError as error:
        raise _renamed(error, part, target) from error
    finally:
        _remove(part)


def replaced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write(file)`` on a temporary file beside `path` and move it there once it is on disk.

    So kill -9 leaves the old file or the new one. Raises OSError as writing does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _renamed(error: OSError, part: Path, target: Path) -> OSError:
    """What an error says of the place that was written in, said of `target`; a full disk names no file at all."""
    inside = error.errno in _FULL if error.filename is None else Path(str(error.filename)).is_relative_to(part)
    return OSError(error.errno, os.strerror(error.errno), str(target)) if inside and error.errno else error


def _is_anothers(pid: int) -> bool:
    """Whether another process of this number is there, whose part is its own business."""
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """SIGTERM unwinds the block, as an interrupt does, where nobody else has said what it is to do."""
    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not ours:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
