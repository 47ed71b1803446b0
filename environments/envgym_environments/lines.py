"""Files of which each line is a value, read with the place of what is wrong in them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

__all__ = ["read_lines"]

T = TypeVar("T")


def read_lines(path: str | Path, read: Callable[[str], T], *, what: str) -> list[T]:
    """What `read` makes of each line that is not empty.

    what: what a line should be, for the error. Raises ValueError with file, line and reason where `read` raises, or
    for what is no text in UTF-8; OSError without the file.
    """
    found = []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(read(line))
        except ValidationError as error:
            first = error.errors()[0]
            said = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
            raise ValueError(f"{path}, line {number}: no {what}: {said}") from error
        except (ValueError, KeyError, TypeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, line {number}: no {what}: {said}") from error
    return found
