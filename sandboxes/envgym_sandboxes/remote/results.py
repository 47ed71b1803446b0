"""Results of the contract as JSON values and bytes, and back; what comes from the other side is checked."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from envgym.egress import EgressRecord
from envgym.errors import InfrastructureFailure
from envgym.sandbox import ExecResult, ProcessStatus

__all__ = [
    "diff_from_pieces",
    "diff_to_pieces",
    "records_from_json",
    "records_to_json",
    "result_from_json",
    "result_to_json",
]

T = TypeVar("T", ExecResult, ProcessStatus)
_OUTPUTS = ("stdout", "stderr")


def result_to_json(result: ExecResult | ProcessStatus) -> dict[str, Any]:
    """All of a result but its outputs, which are the body, and how long the first of them is."""
    said = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in _OUTPUTS}
    return said | {"out": len(result.stdout)}


def result_from_json(kind: type[T], raw: Mapping[str, Any], output: bytes) -> T:
    """What `result_to_json` made, without fields that this side does not know. Raises InfrastructureFailure."""
    try:
        known = {field.name: raw[field.name] for field in fields(kind) if field.name in raw}
        known["lost_bytes"] = (int(raw["lost_bytes"][0]), int(raw["lost_bytes"][1]))
        out = int(raw["out"])
        return kind(**known, stdout=output[:out], stderr=output[out:])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InfrastructureFailure(f"the server sent a result that is none: {error}") from error


def diff_to_pieces(found: Mapping[str, bytes | None]) -> tuple[bytes, bytes]:
    """A diff as an index (JSON) and its contents behind each other."""
    index = [[path, None if content is None else len(content)] for path, content in found.items()]
    return json.dumps(index).encode(), b"".join(content for content in found.values() if content is not None)


def diff_from_pieces(index: bytes, contents: bytes) -> dict[str, bytes | None]:
    """What `diff_to_pieces` made. Raises InfrastructureFailure."""
    found: dict[str, bytes | None] = {}
    at = 0
    try:
        for path, size in json.loads(index):
            found[str(path)] = None if size is None else contents[at : at + size]
            at += size or 0
    except (TypeError, ValueError, RecursionError) as error:
        raise InfrastructureFailure(f"the server sent a diff that is none: {error}") from error
    return found


def records_to_json(records: Iterable[EgressRecord]) -> bytes:
    """Decisions about connections."""
    return json.dumps([asdict(record) for record in records]).encode()


def records_from_json(text: bytes) -> tuple[EgressRecord, ...]:
    """What `records_to_json` made, without fields that this side does not know. Raises InfrastructureFailure."""
    known = {field.name for field in fields(EgressRecord)}
    try:
        raws = json.loads(text)
        return tuple(EgressRecord(**{name: raw[name] for name in known & set(raw)}) for raw in raws)
    except (TypeError, ValueError, RecursionError) as error:
        raise InfrastructureFailure(f"the server sent records that are none: {error}") from error
