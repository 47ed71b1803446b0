"""Errors as plain data and back: the type crosses by its name in a fixed list, and nothing is ever unpickled.

What is not in the list arrives as InfrastructureFailure with the type's name in its message.
"""

from typing import Any

from envgym import errors
from envgym.errors import Boundary, DeadlineExceeded, EnvgymError, InfrastructureFailure

__all__ = ["fault_from_json", "fault_to_json"]

_LONGEST = 64 << 10

_OURS: dict[str, type[EnvgymError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EnvgymError) and kind is not DeadlineExceeded
}
_PLAIN: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}


def fault_to_json(error: BaseException) -> dict[str, Any]:
    """An error as JSON values: its kind in the list, its message, and what its class needs to be made again."""
    said: dict[str, Any] = {"message": str(error)[:_LONGEST]}
    if isinstance(error, DeadlineExceeded):
        return said | {
            "kind": "DeadlineExceeded",
            "what": error.what,
            "limit_s": error.limit_s,
            "boundary": error.boundary.value,
        }
    if isinstance(error, OSError) and error.errno is not None:
        return said | {"kind": "OSError", "errno": error.errno, "message": str(error.strerror or error)[:_LONGEST]}
    for kind in type(error).__mro__:
        if kind.__name__ in _OURS or kind in _PLAIN.values():
            return said | {"kind": kind.__name__}
    return {"kind": "InfrastructureFailure", "message": f"{type(error).__name__}: {error}"[:_LONGEST]}


def fault_from_json(raw: object) -> Exception:
    """What `fault_to_json` made; InfrastructureFailure for anything else."""
    if not isinstance(raw, dict):
        return InfrastructureFailure("the server sent an error that is none")
    kind, message = raw.get("kind"), str(raw.get("message", ""))
    if kind == "OSError" and isinstance(raw.get("errno"), int):
        return OSError(raw["errno"], message)
    if kind == "DeadlineExceeded":
        try:
            return DeadlineExceeded(str(raw["what"]), float(raw["limit_s"]), Boundary(raw["boundary"]))
        except (KeyError, TypeError, ValueError):
            return InfrastructureFailure(message)
    if isinstance(kind, str) and kind in _OURS:
        return _OURS[kind](message)
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind](message)
    return InfrastructureFailure(f"{kind}: {message}")
