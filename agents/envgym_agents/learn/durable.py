"""JSON that survives kill -9: written beside, made durable, then renamed into place.

No torch here: what only reads runs, such as ``envgym report``, imports this.
"""

import json
from pathlib import Path
from typing import Any

from envgym.whole import replaced

__all__ = ["write_json"]


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of one."""
    text = json.dumps(value, indent=1, sort_keys=True)
    replaced(Path(path), lambda file: file.write(text.encode()))
