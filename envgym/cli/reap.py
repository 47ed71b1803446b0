"""Removes what sandboxes of dead processes left behind; a living owner's sandboxes are never touched."""

import json
import sys
from typing import Annotated

import typer

from envgym.registry import find, names

__all__ = ["reap_command"]


def reap_command(
    backend: Annotated[str | None, typer.Option(help="Only this sandbox backend.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Remove what sandboxes of dead processes left: processes, mounts, cgroups, files."""
    chosen = [backend] if backend is not None else names("sandboxes")
    removed: dict[str, list[str]] = {}
    for name in chosen:
        try:
            removed[name] = find("sandboxes", name)().reap()
        except ImportError as error:
            print(f"envgym: {error}", file=sys.stderr)
    if as_json:
        json.dump(removed, sys.stdout, indent=1)
        print()
        return
    for name, lines in removed.items():
        print(f"{name}: {'nothing to remove' if not lines else ''}".rstrip())
        for line in lines:
            print(f"  {line}")
