"""Small files that survive kill -9: written beside, made durable, then renamed into place.

No torch here: what only reads runs, such as ``envgym report``, imports this.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["replaced", "write_json"]


def replaced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write(file)`` on a temporary file beside `path` and move it there once it is on disk."""
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


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one."""
    text = json.dumps(value, indent=1, sort_keys=True)
    replaced(Path(path), lambda file: file.write(text.encode()))
