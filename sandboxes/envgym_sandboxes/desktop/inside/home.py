"""What lies in the home: a digest of every file, read anew at each look.

Files are not taken for unchanged by their times: a kernel's clock is coarser than a program is fast, and what is
written through a mapping of memory need not change them. Homes of tasks are small, so that a look costs less than
starting any program that would do the same.
"""

import hashlib
import os
from collections.abc import Iterator

__all__ = ["CLOSED", "digests"]

CLOSED = "closed"
"""In the place of a digest: what its owner may not read."""
_MOST = 1000
_PIECE = 1 << 20


def digests(home: str) -> dict[str, str]:
    """Name below the home -> the sha256 of its bytes; a directory that is closed ends in ``/``. Links are none.

    Beyond the first `_MOST` names, in their order, the rest is one entry, named "".
    """
    found = dict(sorted((path[len(home) + 1 :], digest) for path, digest in _below(home)))
    if len(found) <= _MOST:
        return found
    named = list(found.items())
    rest = hashlib.sha256(repr(named[_MOST:]).encode("utf-8", "surrogateescape")).hexdigest()
    return dict(named[:_MOST]) | {"": rest}


def _below(folder: str) -> Iterator[tuple[str, str]]:
    try:
        with os.scandir(folder) as there:
            entries = list(there)
    except FileNotFoundError:
        return  # it has just gone
    except OSError:
        entries = []
    if not os.access(folder, os.R_OK | os.X_OK):
        yield f"{folder}/", CLOSED
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, _digest(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            yield entry.path, CLOSED


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
