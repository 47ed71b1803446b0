"""What the checks share: their type, what a backend may refuse, and how they say that something must raise."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World

__all__ = ["SLACK_S", "Check", "Refused", "bounded", "not_kept", "raises"]

SLACK_S = 5.0
"""How late a busy machine may be."""

Check = Callable[[SandboxBackend, World], Awaitable[None]]


class Refused(Exception):  # no error: the contract leaves it open, and the backend says so
    """What a check is about, the backend does not have, and says so; the text is why."""


async def raises(kind: type[BaseException], awaitable: Awaitable[object], what: str) -> None:
    """Raise AssertionError unless awaiting raises `kind`."""
    try:
        result = await awaitable
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must raise {kind.__name__}; it gave {result!r}")


async def bounded(backend: SandboxBackend, world: World, **bounds: Any) -> Sandbox:
    """A sandbox with these bounds. Raises Refused when the backend refuses them, which names one of them."""
    asked = world.model_copy(update={"resources": world.resources.model_copy(update=bounds)})
    try:
        return await backend.create(asked)
    except ValueError as error:
        refusal = str(error)
    assert any(name in refusal for name in bounds), f"a refusal names the bound that cannot be kept: {refusal}"
    raise Refused(refusal)


def not_kept(backend: SandboxBackend, bound: str, sentence: str) -> Exception:
    """What to raise for a bound that was taken and is not kept: Refused where the report names it as missing."""
    names = {bound, bound.removesuffix("_bytes")}
    for line in backend.report().missing:
        if names & set(re.findall(r"\w+", line.rpartition(":")[0])):
            return Refused(line)
    return AssertionError(f"{sentence} (and no line of BackendReport.missing begins with {bound!r})")
