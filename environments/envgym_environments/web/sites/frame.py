"""What the applications share: a request with its database in, a page or a redirection out.

A `Site` is one application as data and functions: schema, generated content, views by address, templates, kinds of
tasks. Looking cannot change anything: a GET is answered with a database that can only be read. Every change is a
POST that ends with a redirection (303), so that each page that is shown can be loaded again; what it has to say
is said on the next page, through a cookie.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
from jinja2 import DictLoader, Environment, StrictUndefined
from werkzeug.exceptions import BadRequest, HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from envgym_environments.web.sites.look import LAYOUT, MACROS, WRONG
from envgym_environments.words import TODAY

if TYPE_CHECKING:
    from envgym_environments.web.sites.goals import Goal

__all__ = ["PER_PAGE", "Refused", "Site", "Visit", "euros"]

PER_PAGE = 20
"""Entries of a list on one page."""
_FLASH = "said"
_MOST_OF_A_FILE = 200_000
"""Bytes."""


class Refused(Exception):
    """What a visitor asked for cannot be done; the message is shown to them on the page that they came from."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: its database, its query and its form."""

    site: "Site"
    db: sqlite3.Connection
    request: Request

    def arg(self, name: str, default: str = "") -> str:
        """A value of the query, without space around it."""
        return self.request.args.get(name, default).strip()

    def number(self, name: str) -> int | None:
        """A whole number of the query; None where there is none that can be read."""
        text = self.arg(name)
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def field(self, name: str, *, most: int = 5_000) -> str:
        """A value of the form, with plain line ends. Raises Refused where it is missing, empty or too long."""
        text = self.optional(name)
        if not text:
            raise Refused(f"Please fill in: {name}.")
        if len(text) > most:
            raise Refused(f"{name} is too long.")
        return text

    def optional(self, name: str) -> str:
        """A value of the form; "" where there is none."""
        return self.request.form.get(name, "").replace("\r\n", "\n").replace("\0", "").strip()

    def choice(self, name: str, among: Iterable[str]) -> str:
        """A value of the form that must be one of those. Raises Refused."""
        if (text := self.field(name)) not in among:
            raise Refused(f"{name}: there is no {text[:60]!r}.")
        return text

    def amount(self, name: str, least: int, most: int) -> int:
        """A whole number of the form within bounds. Raises Refused."""
        text = self.field(name)
        if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
            raise Refused(f"{name} must be a number from {least} to {most}.")
        return int(text)

    def file(self, name: str) -> tuple[str, bytes] | None:
        """The file of a form: its name without folders, and its content; None where none was chosen.

        Raises Refused where it is larger than a visitor may send.
        """
        given = self.request.files.get(name)
        if given is None or not given.filename:
            return None
        called = given.filename.replace("\\", "/").rpartition("/")[2].replace("\0", "")[-120:]
        content = given.read(_MOST_OF_A_FILE + 1)
        if len(content) > _MOST_OF_A_FILE:
            raise Refused(f"{called} is larger than {_MOST_OF_A_FILE:,} bytes.")
        return called, content

    def one(self, sql: str, *given: Any) -> sqlite3.Row:
        """The one row of a query. Raises BadRequest, shown as a page, where there is none."""
        row: sqlite3.Row | None = self.db.execute(sql, given).fetchone()
        if row is None:
            raise BadRequest("There is no such thing here (any more).")
        return row

    def all(self, sql: str, *given: Any) -> list[sqlite3.Row]:
        """The rows of a query."""
        return self.db.execute(sql, given).fetchall()

    def value(self, sql: str, *given: Any) -> Any:
        """The first column of the one row of a query."""
        return self.one(sql, *given)[0]

    def change(self, sql: str, *given: Any) -> int:
        """Change something; the id of what was inserted."""
        return self.db.execute(sql, given).lastrowid or 0

    def paged(self, sql: str, *given: Any) -> dict[str, Any]:
        """One page of a query's rows, for the template's macro `pages`: rows, page, last, total."""
        total = int(self.value(f"SELECT COUNT(*) FROM ({sql})", *given))
        last = max(1, -(-total // PER_PAGE))
        page = min(max(self.number("page") or 1, 1), last)
        rows = self.all(f"{sql} LIMIT {PER_PAGE} OFFSET {PER_PAGE * (page - 1)}", *given)
        return {"rows": rows, "page": page, "last": last, "total": total}

    def show(self, template: str, /, *, title: str, **names: Any) -> Response:
        """A page."""
        said = unquote(self.request.cookies.get(_FLASH, ""))  # quoted: every browser keeps such a value as it is
        names |= {"site": self.site, "title": title, "said": said, "content": template}
        shown = self.site.environment.get_template("layout").render(names)
        return Response(shown, mimetype="text/html")

    def go(self, path: str, said: str = "") -> Response:
        """On to another page, which says something once."""
        response = Response(status=303, headers={"Location": path})
        if said:
            response.set_cookie(_FLASH, quote(said), path="/", httponly=True, samesite="Lax")
        return response


View = Callable[..., Response]


@dataclass(slots=True)
class Site:
    """An application.

    name: of its host, which is NAME.test. nav: what its header leads to, text -> path. me: the one who is signed in.
    fill: draws its content. kinds: name -> what draws a task of that kind of a filled database.
    """

    name: str
    title: str
    me: str
    schema: str
    nav: Mapping[str, str]
    templates: Mapping[str, str]
    search: str = ""
    fill: Callable[[sqlite3.Connection, np.random.Generator], None] = field(init=False)
    kinds: "dict[str, Callable[[sqlite3.Connection, np.random.Generator], Goal]]" = field(default_factory=dict)
    environment: Environment = field(init=False)
    _views: dict[str, View] = field(default_factory=dict)
    _map: Map = field(default_factory=Map)

    def __post_init__(self) -> None:
        self.environment = Environment(
            loader=DictLoader({"layout": LAYOUT, "macros": MACROS, "wrong": WRONG, **self.templates}),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.filters["euros"] = euros
        self.environment.globals |= vars(self.environment.get_template("macros").module) | {"today": TODAY}

    @property
    def origin(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.name}.test"

    def get(self, rule: str) -> Callable[[View], View]:
        """Answers looks at an address."""
        return self._route(rule, "GET")

    def post(self, rule: str) -> Callable[[View], View]:
        """Answers a form that was sent to an address."""
        return self._route(rule, "POST")

    def _route(self, rule: str, method: str) -> Callable[[View], View]:
        def keep(view: View) -> View:
            name = f"{method} {rule}"
            self._views[name] = view
            self._map.add(Rule(rule, endpoint=name, methods=[method]))
            return view

        return keep

    def kind(self, name: str) -> "Callable[[Callable[..., Goal]], Callable[..., Goal]]":
        """What draws tasks of a kind."""

        def keep(draw: "Callable[..., Goal]") -> "Callable[..., Goal]":
            self.kinds[name] = draw
            return draw

        return keep

    def respond(self, db: sqlite3.Connection, environ: dict[str, Any]) -> Response:
        """Answer one request (a WSGI environ) over a database. What a visitor does wrong is a page.

        Threads of several episodes may do so at once, each with a database of its own.
        """
        with Request(environ) as request:  # what was uploaded is let go of at its end
            request.max_content_length = request.max_form_memory_size = 1 << 20
            return self._answer(db, request)

    def _answer(self, db: sqlite3.Connection, request: Request) -> Response:
        visit = Visit(self, db, request)
        looks = request.method in ("GET", "HEAD")
        db.execute(f"PRAGMA query_only = {'ON' if looks else 'OFF'}")
        db.execute("BEGIN")
        try:
            endpoint, names = self._map.bind_to_environ(request.environ).match()
            response = self._views[endpoint](visit, **names)
            db.execute("COMMIT")
        except Refused as refused:
            db.execute("ROLLBACK")
            response = visit.go(_came_from(request), f"Sorry: {refused}")
        except HTTPException as error:
            db.execute("ROLLBACK")
            response = self._wrong(visit, error)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        if looks and request.cookies.get(_FLASH):
            response.delete_cookie(_FLASH, path="/")
        response.headers["Cache-Control"] = "no-store"
        return response

    def _wrong(self, visit: Visit, error: HTTPException) -> Response:
        if error.response is not None or (error.code or 500) < 400:
            return Response.force_type(
                error.get_response(visit.request.environ)
            )  # a redirection to a trailing slash
        response = visit.show("wrong", title=error.name, text=error.description or "")
        response.status_code = error.code or 500
        return response


def _came_from(request: Request) -> str:
    """The page that a form was on; only its path and query, so that nothing leads elsewhere."""
    _, _, rest = (request.referrer or "").partition("://")
    path = "/" + rest.partition("/")[2]
    return path if not path.startswith("//") else "/"


def euros(cents: int) -> str:
    """An amount of money as it is shown: 1234 is "12.34"."""
    return f"{cents // 100}.{cents % 100:02}"
