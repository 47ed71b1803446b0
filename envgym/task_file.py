"""The first line of a file of tasks: what it promises of the lines after it, written and checked.

A file of tasks holds one `Task` as JSON a line; its header is a JSON object with the fields "format", "count" and
"digest". What stands in the lines, and which formats are read, is the business of who writes the file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["check_promises", "header_of", "read_header"]


def header_of(name: str, body: bytes) -> dict[str, Any]:
    """The header of task lines in the format `name`: their number, and their BLAKE2b digest of 128 bits, in hex."""
    return {"format": name, "count": body.count(b"\n"), "digest": hashlib.blake2b(body, digest_size=16).hexdigest()}


def read_header(line: bytes) -> dict[str, Any] | None:
    """The header that a line is; None when it is something else, such as a task."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "format" in found else None


def check_promises(path: Path, header: Mapping[str, Any], body: bytes) -> tuple[list[str], list[str]]:
    """The promises that a header makes and keeps, and those that cannot be checked.

    A digest of another length is another function's. Raises ValueError for a promise that is broken.
    """
    true, kept, unreached = header_of("", body), [], []
    if "count" in header:
        if header["count"] != true["count"]:
            raise ValueError(
                f"{path}: {true['count']} task lines, but line 1 announces {header['count']!r}: it was cut, or "
                "changed by hand"
            )
        kept.append("the header's count")
    if "digest" in header:
        if len(str(header["digest"])) != len(true["digest"]):
            unreached.append("the header's digest (not BLAKE2b of 128 bits)")
        elif header["digest"] != true["digest"]:
            raise ValueError(
                f"{path}: content has digest {true['digest']}, but line 1 demands {header['digest']}: it was "
                "changed by hand"
            )
        else:
            kept.append("the header's digest")
    return kept, unreached
