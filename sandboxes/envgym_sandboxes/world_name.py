"""A short name for a world, made once for each: worlds may hold megabytes of files, and every fork asks for one."""

import hashlib
import weakref

from envgym.task import World

__all__ = ["world_name"]

_NAMES: dict[int, tuple["weakref.ref[World]", str]] = {}


def world_name(world: World) -> str:
    """A digest of all that the world says: equal worlds have equal names. Remembered while the object lives."""
    known = _NAMES.get(id(world))
    if known is not None and known[0]() is world:
        return known[1]
    name = hashlib.sha256(world.model_dump_json().encode("utf-8", "surrogatepass")).hexdigest()
    key = id(world)
    _NAMES[key] = (weakref.ref(world, lambda gone: _forget(key, gone)), name)
    return name


def _forget(key: int, gone: "weakref.ref[World]") -> None:
    if (known := _NAMES.get(key)) is not None and known[0] is gone:
        del _NAMES[key]
