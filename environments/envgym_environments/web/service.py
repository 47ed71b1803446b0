"""What serves an episode's web application: this process (`sites.episode`), or a program in a sandbox (`program`).

An environment (`play.WebPlay`) needs the same of both: an address for the browser, the state as it was made, the
document that was asked for last, the database as it is now, and the way back to where a document was asked for.
"""

from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from envgym.page import UnixSocket
from envgym.sandbox import SandboxSnapshot
from envgym_environments.web.cookies import Cookie
from envgym_environments.web.database import Database
from envgym_environments.web.door import Door

__all__ = ["ANSWER_S", "Anchor", "Kept", "Service"]

ANSWER_S = 8.0
"""Within which a request is answered, where nothing else is said: less than a page may take to load."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a document was made of. path: as it was asked for, with its query. sent: the request's Cookie field.

    cookies: records of all that the browser had then, which who plays it adds (`cookies_then`). state: the server
    as it was when the document was asked for, as JSON; sandbox: the same, where it is one's.
    """

    path: str
    sent: str = ""
    cookies: tuple[Cookie, ...] = ()
    state: JsonValue = None
    sandbox: SandboxSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A server's state for a snapshot, given back by `Service.release`.

    now: what it has come to since the anchor, as JSON. sandbox: what the caller has a reference of.
    """

    now: JsonValue
    sandbox: SandboxSnapshot | None = None


class Service(Protocol):
    """One application for one episode. name: of the site, whose host is NAME.test.

    asked: the document that was asked for last, None where none was since it was last set to None. door: who is
    answered at all. quiet: whether its pages send and keep nothing by themselves, so that none has to be taken away
    or emptied before a reset. What goes wrong with the application, late answers included, is an EnvironmentFailure
    of what is asked next.
    """

    name: str
    asked: Anchor | None
    door: Door
    quiet: bool

    @property
    def origin(self) -> str:
        """Where a browser finds it."""
        ...

    async def open(self) -> UnixSocket:
        """Where it listens; does nothing where it does already."""
        ...

    async def reset(self) -> None:
        """The state that it was made with, and nothing asked."""
        ...

    async def sound(self) -> None:
        """Wait until nothing is being answered. Raises EnvironmentFailure where the application failed."""
        ...

    async def digest(self) -> str:
        """A digest of all rows that count."""
        ...

    async def copied(self) -> Database:
        """The database as it is now, for who asked alone; it is closed by them."""
        ...

    async def hold(self, anchor: Anchor) -> None:
        """Of what was asked for up to now, only this one will be gone back to."""
        ...

    async def keep(self, anchor: Anchor) -> Kept:
        """What a snapshot needs to `put` the anchor and to `catch_up`."""
        ...

    async def put(self, anchor: Anchor) -> None:
        """The state that an anchor was taken in. Raises SnapshotGone."""
        ...

    async def catch_up(self, kept: Kept, task: str) -> None:
        """After all that came since the anchor was done again: the state of `kept`. Raises ReplayDiverged."""
        ...

    async def release(self, kept: Kept) -> None:
        """Give up what `keep` gave."""
        ...

    async def close(self) -> None:
        """End it. Idempotent."""
        ...
