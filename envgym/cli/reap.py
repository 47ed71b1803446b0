"""Removes what sandboxes of dead processes left behind; a living owner's sandboxes are never touched."""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from envgym.registry import find, names

__all__ = ["reap_command"]


def reap_command(
    backend: Annotated[str | None, typer.Option(help="Only this sandbox backend.")] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Look here instead of in the default place: a directory given to backends as root=."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Remove what sandboxes of dead processes left: processes, mounts, cgroups, files."""
    if absent := [str(place) for place in root or () if not place.is_dir()]:
        raise ValueError(f"--root {absent[0]}: there is no such directory")
    chosen = [backend] if backend is not None else names("sandboxes")
    removed: dict[str, list[str]] = {}
    for name in chosen:
        try:
            kind = find("sandboxes", name)
        except ImportError as error:
            print(f"envgym: {error}", file=sys.stderr)
            continue
        if not root or _has_root(kind):
            removed[name] = _reaped(kind, root or ())
        elif backend is not None:
            raise ValueError(f"--root: backend {name!r} keeps nothing in a directory of one's choice")
    _show(removed, as_json=as_json)


def _has_root(kind: Callable[..., Any]) -> bool:
    return "root" in inspect.signature(kind).parameters


def _reaped(kind: Callable[..., Any], roots: Sequence[Path]) -> list[str]:
    backends = [kind(root=root) for root in roots] or [kind()]
    return [line for backend in backends for line in backend.reap()]


def _show(removed: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        json.dump(removed, sys.stdout, indent=1)
        print()
        return
    for name, lines in removed.items():
        print(f"{name}: {'nothing to remove' if not lines else ''}".rstrip())
        for line in lines:
            print(f"  {line}")
