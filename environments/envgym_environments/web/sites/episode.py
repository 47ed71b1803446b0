"""The server's side of one episode: a site, a database of its own, and what was asked of it last.

Each time a document is asked for, it keeps what that document was made of: the address, the cookies that were sent,
the database. From such an `Anchor` the same document can be loaded again, in another browser context.
"""

from dataclasses import dataclass
from typing import Any

from werkzeug.http import parse_cookie
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.state import Database
from envgym_environments.web.sites.wire import Server

__all__ = ["Anchor", "Served"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a document was made of. path: with its query. database: as it was when it was asked for."""

    path: str
    cookies: dict[str, str]
    database: dict[str, str]


class Served:
    """A site that is served to one episode."""

    def __init__(self, site: Site, pristine: bytes) -> None:
        self.site, self.database = site, Database(pristine)
        self.server = Server(self.respond, f"{site.name}.test")
        self.asked: Anchor | None = None

    def respond(self, environ: dict[str, Any]) -> Response:
        """Answer a request; notes what a document is made of."""
        document = environ.get("HTTP_ACCEPT", "").startswith("text/html")  # what scripts fetch asks for */*
        if document and environ["REQUEST_METHOD"] == "GET":
            query = environ["QUERY_STRING"]
            self.asked = Anchor(
                f"{environ['PATH_INFO']}?{query}" if query else environ["PATH_INFO"],
                dict(parse_cookie(environ.get("HTTP_COOKIE", ""))),
                self.database.snapshot(),
            )
        return self.site.respond(self.database.connection, environ)

    def reset(self) -> None:
        """The pristine database, and nothing asked."""
        self.database.reset()
        self.asked = None

    async def close(self) -> None:
        """End the server and let go of the database. Idempotent."""
        await self.server.close()
        self.database.close()
