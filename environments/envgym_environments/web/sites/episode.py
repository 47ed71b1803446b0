"""The server's side of one episode: a site, a database of its own, and what was asked of it last.

Each time a document is asked for, it keeps what that document was made of: the address, the cookies that were sent,
the database. From such an `Anchor` the same document can be loaded again, in another browser context. The application
answers in a thread of its own, one request after the other, each within a deadline.
"""

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any

from werkzeug.wrappers import Response

from envgym.errors import EnvironmentFailure
from envgym.page import UnixSocket
from envgym_environments.web.database import Database
from envgym_environments.web.door import Door, asks_document
from envgym_environments.web.service import ANSWER_S, Anchor, Kept
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.wire import Server
from envgym_environments.web.sites.worker import Worker

__all__ = ["Served"]


class Served:
    """Implements `web.service.Service` in this process. answer_s: within which a request is answered.

    quiet: see there; true of the six sites, whose scripts send nothing.
    between: held while a request is answered, and by who looks at the database, or changes it, in between.
    """

    def __init__(self, site: Site, pristine: bytes, *, answer_s: float = ANSWER_S, quiet: bool = False) -> None:
        self.site, self.database, self.name = site, Database(pristine), site.name
        self.server = Server(self.respond, f"{site.name}.test")
        self.asked: Anchor | None = None
        self.door, self.quiet = Door(), quiet
        self.between = asyncio.Lock()
        self._worker = Worker(answer_s)

    @property
    def origin(self) -> str:
        """Where a browser finds it."""
        return self.site.origin

    async def open(self) -> UnixSocket:
        """See `Service`."""
        await self.server.open()
        return UnixSocket(self.server.path)

    async def respond(self, environ: dict[str, Any]) -> Response:
        """Answer a request; notes what a document is made of. Raises TimeoutError where the application is late."""
        accept, dest = environ.get("HTTP_ACCEPT", ""), environ.get("HTTP_SEC_FETCH_DEST", "")
        document = asks_document(environ["REQUEST_METHOD"], accept, dest)
        async with self.between:
            if not self.door.admits(document):
                return Response(status=502)
            database = self.database
            if document:
                sent = environ.get("HTTP_COOKIE", "")
                self.asked = Anchor(environ["REQUEST_URI"], sent, state={**database.snapshot()})
            try:
                return await self._worker.do(
                    lambda: self.site.respond(database.connection, environ), stop=self._lose, left=database.close
                )
            except TimeoutError as error:
                asked = f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI'][:200]}"
                late = TimeoutError(f"{asked} was not answered within {self._worker.seconds:g} s")
                self.server.crashed = late  # while the lock is held: who gets it next must not take these rows
                raise late from error

    def _lose(self) -> None:
        """The database is in a thread that nobody waits for: what it does there ends, and a pristine one is here."""
        with suppress(sqlite3.ProgrammingError):  # it was over just now, and is closed
            self.database.connection.interrupt()
        self.database, self.asked = Database(self.database.pristine), None

    async def reset(self) -> None:
        """The pristine database, and nothing asked."""
        async with self.between:
            self.database.reset()
            self.asked = None

    async def sound(self) -> None:
        """Raise EnvironmentFailure where the application itself failed; what it still answers is waited for."""
        async with self.between:
            self._unbroken()

    def _unbroken(self) -> None:
        """As `sound`, for who holds the lock: of a request that was late, and none of the agent's, the rows are gone."""
        crashed, self.server.crashed = self.server.crashed, None
        if crashed is not None:
            told = f"the site {self.name!r} failed: {type(crashed).__name__}: {crashed}"
            raise EnvironmentFailure(told) from crashed

    async def digest(self) -> str:
        """See `Service`."""
        async with self.between:
            self._unbroken()
            return self.database.digest()

    async def copied(self) -> Database:
        """See `Service`."""
        async with self.between:
            self._unbroken()
            return Database(self.database.pristine, self.database.content())

    async def hold(self, anchor: Anchor) -> None:
        """An anchor is plain data and holds nothing."""

    async def keep(self, anchor: Anchor) -> Kept:
        """The database as it is now."""
        async with self.between:
            self._unbroken()
            return Kept({**self.database.snapshot()})

    async def put(self, anchor: Anchor) -> None:
        """See `Service`."""
        self.asked = None
        await self._put(anchor.state)

    async def catch_up(self, kept: Kept, task: str) -> None:
        """The very database, which is put there."""
        await self._put(kept.now)

    async def _put(self, state: Any) -> None:
        async with self.between:
            self.database.restore(state)

    async def release(self, kept: Kept) -> None:
        """What is kept owns nothing."""

    async def close(self) -> None:
        """End the server and let go of the database. Idempotent."""
        await self.server.close()
        self._worker.close()
        self.database.close()
