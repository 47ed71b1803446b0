"""What there is, from environments to commands, and what stands in the way of each."""

import json
import sys
from importlib.metadata import entry_points
from typing import Annotated, Any, get_args

import typer

from envgym.cli.extras import lacking
from envgym.cli.group import source_of, summary
from envgym.credit import SchemeSpec
from envgym.registry import EnvSpec, Group, find, gymnasium_id, names

__all__ = ["list_command", "rows"]


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Environments, sandboxes, interpreters, agents, formats, credit schemes and commands that are installed."""
    found = rows()
    if as_json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return
    width = max((len(row["name"]) for row in found), default=0)
    for group in get_args(Group):
        members = [row for row in found if row["group"] == group]
        print(f"{group}:" if members else f"{group}: none")
        for row in members:
            print(f"  {row['name']:{width}}  {row['missing'] or row['description']}")


def rows() -> list[dict[str, Any]]:
    """One row per registered name: group, name, description, missing ("" when it can be used)."""
    return [_row(group, name) for group in get_args(Group) for name in names(group)]


def _row(group: Group, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group, "name": name, "description": summary(group, name), "missing": ""}
    entry = next(iter(entry_points(group=f"envgym.{group}", name=name)), None)
    if entry is not None and (lacks := lacking(entry)):
        return row | {"missing": f"missing: {lacks}"}
    if entry is not None and source_of(entry) is None:
        return row | {"missing": f"broken: there is no module {entry.module}"}
    if entry is not None and group in ("agents", "commands"):  # importing these may take seconds: they say it later
        return row
    try:
        thing = find(group, name)
    except ImportError as error:
        return row | {"missing": f"missing: {error}"}
    if group == "environments":
        if not isinstance(thing, EnvSpec):
            return row | {"missing": f"broken: its entry point names a {type(thing).__name__}, not an EnvSpec"}
        row["description"] = thing.description + (" Needs a sandbox." if thing.sandbox else "")
        row |= {"sandbox": thing.sandbox, "gymnasium_id": gymnasium_id(name)}
    elif group == "schemes":
        if not isinstance(thing, SchemeSpec):
            return row | {"missing": f"broken: its entry point names a {type(thing).__name__}, not a SchemeSpec"}
        needs = f" (needs {', '.join(thing.needs)})" if thing.needs else ""
        row |= {"description": thing.summary + needs, "source": thing.source, "claims": thing.claims}
    elif group == "wrappers" or not row["description"]:  # all are named in one module, whose summary is of them all
        row["description"] = (thing.__doc__ or "").partition("\n")[0]
    return row
