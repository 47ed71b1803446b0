"""The console entry ``envgym sites``: the six sites as web applications that run by themselves.

They are servers for one visitor: for a look in any browser, and as what runs in the sandbox of
`web-sites-sandboxed`.
"""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from werkzeug.serving import make_server

from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.goals import Key, build

__all__ = ["sites_command"]

sites_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="The small web applications of `web-sites`, run by themselves.",
)
_Name = Annotated[str, typer.Argument(help=f"{', '.join(SITES)}.")]


@sites_command.command("build")
def build_command(
    name: _Name,
    out: Annotated[Path, typer.Option(help="A new SQLite file.")],
    content: Annotated[int, typer.Option(min=0, help="Fixes all that is drawn.")] = 0,
) -> None:
    """Write the database of a site, as an episode finds it."""
    site = _site(name)
    made = build(Key(site, content))
    try:
        with out.open("xb") as file:
            file.write(made)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be written: {error}") from error


@sites_command.command("serve")
def serve_command(
    name: _Name,
    database: Annotated[Path, typer.Option(help="What `envgym sites build` wrote; it is changed.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the loopback; 0: a free one.")] = 8000,
) -> None:
    """Serve a site over its database to one visitor, until it is interrupted."""
    site = _site(name)
    if not database.is_file():
        raise typer.BadParameter(f"{database} is no file: write one with `envgym sites build {name} --out FILE`")
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        missing = _tables(build(Key(site, 0))) - {row[0] for row in connection.execute(_TABLES)}
    except sqlite3.DatabaseError as error:
        connection.close()
        raise typer.BadParameter(f"{database} is no SQLite database: {error}") from error
    if missing:
        connection.close()
        raise typer.BadParameter(
            f"{database} is no database of {name!r}: it has no table {min(missing)!r}; "
            f"write one with `envgym sites build {name} --out FILE`"
        )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    server = make_server("127.0.0.1", port, application(site, connection))
    print(f"{site.title}: http://127.0.0.1:{server.port}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        connection.close()


_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"


def _tables(content: bytes) -> set[str]:
    """The names of the tables of a database's bytes."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        return {row[0] for row in connection.execute(_TABLES)}
    finally:
        connection.close()


def _site(name: str) -> Site:
    if name not in SITES:
        raise typer.BadParameter(f"site is {name!r}; it must be one of {', '.join(SITES)}")
    return SITES[name]


def application(
    site: Site, connection: sqlite3.Connection
) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """A site over a database as a WSGI application (PEP 3333); one request after the other."""
    return lambda environ, begin: site.respond(connection, environ)(environ, begin)


if __name__ == "__main__":
    sites_command()
