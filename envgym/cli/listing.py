"""What there is, from environments to commands, and what stands in the way of each."""

import json
import sys
from importlib.metadata import EntryPoint
from typing import Annotated, Any, get_args

import typer

from envgym.cli.extras import lacking
from envgym.cli.unread import constants, source_of, summary
from envgym.credit import SchemeSpec
from envgym.registry import EnvSpec, Group, entry_point, find, gymnasium_id, names

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
    """One row per registered name: group, name, description, missing ("" when it can be used).

    Sources are read, and as little as possible is imported: environments only where their source does not say what
    they are, schemes and wrappers, which are the trunk's or small. What the others cannot import they say when
    they are used.
    """
    return [_row(group, name) for group in get_args(Group) for name in names(group)]


def _row(group: Group, name: str) -> dict[str, Any]:
    entry = entry_point(group, name)
    row: dict[str, Any] = {
        "group": group,
        "name": name,
        "description": "" if entry is None else summary(entry),
        "missing": "",
    }
    if entry is not None and (lacks := lacking(entry)):
        return row | {"missing": f"missing: {lacks}"}
    if entry is not None and source_of(entry) is None:
        return row | {"missing": f"broken: there is no module {entry.module}"}
    if entry is not None and group == "environments" and (said := _stated(entry)) is not None:
        return row | _of_environment(name, *said)
    if group not in ("environments", "schemes", "wrappers") and row["description"]:
        return row
    try:
        thing = find(group, name)
    except ImportError as error:
        return row | {"missing": f"missing: {error}"}
    if group == "environments":
        if not isinstance(thing, EnvSpec):
            return row | {"missing": f"broken: its entry point names a {type(thing).__name__}, not an EnvSpec"}
        return row | _of_environment(name, thing.description, thing.sandbox)
    if group == "schemes":
        if not isinstance(thing, SchemeSpec):
            return row | {"missing": f"broken: its entry point names a {type(thing).__name__}, not a SchemeSpec"}
        needs = f" (needs {', '.join(thing.needs)})" if thing.needs else ""
        return row | {"description": thing.summary + needs, "source": thing.source, "claims": thing.claims}
    # wrappers are all named in one module, whose summary is of them all
    return row | {"description": (thing.__doc__ or "").partition("\n")[0]}


def _stated(entry: EntryPoint) -> tuple[str, bool] | None:
    """Description, and whether it needs a sandbox, as the source of an environment says them in so many words."""
    said = constants(entry, "EnvSpec", ("description", "sandbox"))
    if said is None or not isinstance(said.get("description"), str):
        return None
    return said["description"], bool(said.get("sandbox", False))


def _of_environment(name: str, description: str, sandbox: bool) -> dict[str, Any]:
    told = description + (" Needs a sandbox." if sandbox else "")
    return {"description": told, "sandbox": sandbox, "gymnasium_id": gymnasium_id(name)}
