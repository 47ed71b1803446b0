"""What the checks share: their type, and how they say that something must raise."""

from collections.abc import Awaitable, Callable

from envgym.sandbox import SandboxBackend
from envgym.task import World

__all__ = ["SLACK_S", "Check", "raises"]

SLACK_S = 5.0
"""How late a busy machine may be."""

Check = Callable[[SandboxBackend, World], Awaitable[None]]


async def raises(kind: type[BaseException], awaitable: Awaitable[object], what: str) -> None:
    """Raise AssertionError unless awaiting raises `kind`."""
    try:
        result = await awaitable
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must raise {kind.__name__}; it gave {result!r}")
