"""Writes the skeleton of a new environment: a package of its own that passes the conformance kit as it stands."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from envgym.cli.skeleton import files_of
from envgym.registry import names

__all__ = ["new_command", "write_skeleton"]


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the environment, in kebab-case: my-game.")],
    into: Annotated[Path | None, typer.Option(help="Directory to write, default ./NAME.")] = None,
) -> None:
    """Write a new environment: a package with an entry point, under 60 lines of logic, and a 3-line test."""
    place = into if into is not None else Path(name)
    for path in write_skeleton(name, place):
        print(path)
    print(f"next: pip install -e {shlex.quote(str(place))} && envgym check {name} && envgym collect {name}")


def write_skeleton(name: str, place: Path) -> list[Path]:
    """Write the files of a new environment into `place`, which must not exist or be empty.

    Raises ValueError for a name that is not kebab-case or is taken, and for a directory that holds something.
    """
    files = files_of(name)
    if name in names("environments"):
        raise ValueError(f"environment {name!r} is registered already; choose another name")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"{place} exists and is not an empty directory; name another with --into")
    written = []
    for relative, text in files.items():
        path = place / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        written.append(path)
    return written
