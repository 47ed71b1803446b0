"""A file that appears under its name complete or not at all; what goes wrong with it is said of that name."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = ["check_new_file", "part_of"]


def check_new_file(path: Path) -> None:
    """Raise OSError, with the name, where no file can be: in a directory's place, or in one that is not there."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory; name a file in it", str(path))
    if not path.parent.is_dir():
        code = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(
            code, f"{os.strerror(code)}: a file is written to a directory that is there", str(path.parent)
        )


@contextlib.contextmanager
def part_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write under and then to rename from; it is gone afterwards. Raises OSError.

    An error of the block that names the part names `path`.
    """
    check_new_file(path)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
    except OSError as error:
        if error.errno is None or error.filename not in (part, str(part)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        part.unlink(missing_ok=True)
