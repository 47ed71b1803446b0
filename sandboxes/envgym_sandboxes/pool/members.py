"""The members of a pool, from what its user gives: names, instances, functions, or several of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from envgym.registry import check_backend, make_backend
from envgym.sandbox import SandboxBackend
from envgym_sandboxes.pool.bounds import PoolBounds
from envgym_sandboxes.pool.member import Member

__all__ = ["Inner", "members_of"]

Inner = str | SandboxBackend | Callable[[], SandboxBackend] | Mapping[str, Any]
"""A backend's name, one that is there, what makes one, or {"backend": name, option: value, ...}."""


def members_of(inner: Inner | list[Inner], options: Mapping[str, Any], bounds: PoolBounds) -> list[Member]:
    """A pool's members, with names of their own. Raises TypeError, ValueError."""
    given = list(inner) if isinstance(inner, list | tuple) else [inner]
    if not given:
        raise ValueError("a pool needs at least one backend")
    found = [_maker(one, options) for one in given]
    names = [name if len(found) == 1 else f"{name}-{number}" for number, (name, _m, _o) in enumerate(found, 1)]
    return [Member(name, make, owned, bounds) for name, (_name, make, owned) in zip(names, found, strict=True)]


def _check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what could not be made now instead of when it is needed."""
    if name != "auto":
        check_backend(name, options)


def _maker(inner: Inner, options: Mapping[str, Any]) -> tuple[str, Callable[[], SandboxBackend], bool]:
    """Its name, what makes it, and whether the pool closes it."""
    if isinstance(inner, str):
        _check(inner, options)
        return inner, partial(make_backend, inner, **options), True
    if isinstance(inner, Mapping):
        own = dict(inner)
        name = own.pop("backend", None)
        if not isinstance(name, str):
            raise TypeError(f'{inner!r} names no backend; give {{"backend": "remote", "address": ...}}')
        _check(name, dict(options) | own)
        return name, partial(make_backend, name, **(dict(options) | own)), True
    if options:
        raise ValueError("options are for backends that are given by name")
    if not isinstance(inner, type) and hasattr(inner, "create"):
        there: SandboxBackend = inner  # type: ignore[assignment]
        return there.name, lambda: there, False
    if not callable(inner):
        raise TypeError(f"{inner!r} is neither a backend, nor its name, nor what makes one")
    return str(getattr(inner, "name", "inner")), inner, True
