"""The console entry ``envgym snapshots``: list, export, import, release and collect durable snapshots.

It works on the store alone: no sandbox is started, and a snapshot of any backend can be handled.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from envgym.errors import SnapshotGone, StoreCorrupt
from envgym.task import World
from envgym_sandboxes.durable import archive
from envgym_sandboxes.durable.identity import check_identity, identity_of
from envgym_sandboxes.durable.records import Manifest
from envgym_sandboxes.durable.store import Store, default_place
from envgym_sandboxes.world import image_of

__all__ = ["snapshots_command"]

snapshots_command = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="List, export, import, release and collect durable snapshots."
)
_Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_Place = Annotated[
    Path | None,
    typer.Option("--store", help="Where they are kept (default: envgym/snapshots in the user's cache)."),
]
_Name = Annotated[str, typer.Argument(help="A snapshot's id, as `envgym snapshots list` shows it.")]


def _store(place: Path | None) -> Store:
    return Store(place if place is not None else default_place())


@snapshots_command.command("list")
def list_snapshots(store: _Place = None, as_json: _Json = False) -> None:
    """Every durable snapshot on this host: who can restore it, what it takes; damaged ones with what is wrong."""
    found = _store(store)
    rows = [row for name in found.names() if (row := _row(found, name)) is not None]
    total = sum(path.stat().st_size for path in found.objects.folder.glob("*"))
    if as_json:
        _say({"store": str(found.top), "bytes": total, "snapshots": rows}, as_json, "")
        return
    for row in rows:
        if "damaged" in row:
            print(f"{row['id']}  damaged: {row['damaged']}")
            continue
        taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"]))
        partial = "  partial" if row["partial"] else ""
        print(
            f"{row['id']}  {row['backend']:10} {taken}  {row['bytes'] / 2**20:9.1f} MiB  image {row['image']}, "
            f"{row['references']} held{partial}"
        )
    print(f"{len(rows)} in {found.top}, {total / 2**20:.1f} MiB together (what they share is there once)")


def _row(store: Store, name: str) -> dict[str, Any] | None:
    try:
        manifest = store.find(name)
        things = store.objects.reach(manifest.stored)
        size = sum(store.objects.place(digest).stat().st_size for digest in things)
    except SnapshotGone:  # released meanwhile
        return None
    except (StoreCorrupt, FileNotFoundError) as error:
        return {"id": name, "damaged": str(error)}
    told = manifest.model_dump(include={"backend", "created", "references", "partial", "digest"})
    return {"id": name, **told, "image": manifest.identity.get("image", ""), "bytes": size}


@snapshots_command.command("export")
def export_snapshot(
    name: _Name,
    path: Annotated[Path, typer.Argument(help="The file to write.")],
    store: _Place = None,
    as_json: _Json = False,
) -> None:
    """Write a snapshot to one file: everything but its image, which the other host must have."""
    found = _store(store)
    with found.sharing():
        archive.write(found.objects, found.find(name), path)
    size = path.stat().st_size
    _say({"id": name, "path": str(path), "bytes": size}, as_json, f"{path}: {size / 2**20:.1f} MiB")


@snapshots_command.command("import")
def import_snapshot(
    path: Annotated[Path, typer.Argument(help="A file that `envgym snapshots export` wrote.")],
    store: _Place = None,
    as_json: _Json = False,
) -> None:
    """Take in a snapshot from a file, which is believed nothing; prints its id here."""
    name, manifest = archive.take_in(_store(store), path, _check(str(path)))
    handle = manifest.handle(name)
    _say(handle.model_dump(), as_json, f"{name}  {manifest.backend}  digest {manifest.digest}")


def _check(what: str) -> Callable[[Manifest, World], None]:
    return lambda manifest, world: check_identity(manifest.identity, identity_of(image_of(world, {})), what)


@snapshots_command.command("release")
def release_snapshot(
    names: Annotated[list[str], typer.Argument(help="Ids, as `envgym snapshots list` shows them.")],
    all_references: Annotated[bool, typer.Option("--all", help="All references to it, not one.")] = False,
    store: _Place = None,
    as_json: _Json = False,
) -> None:
    """Give a reference of each back; with the last one a snapshot goes, and what no other one needs."""
    found = _store(store)
    left = {}
    for name in names:
        left[name] = found.count(name, -found.find(name).references if all_references else -1)
    _say(
        left,
        as_json,
        "\n".join(f"{name}: {count} held" if count else f"{name}: gone" for name, count in left.items()),
    )


@snapshots_command.command("gc")
def collect(store: _Place = None, as_json: _Json = False) -> None:
    """Remove what no snapshot needs and what killed processes left half written."""
    removed = _store(store).collect()
    _say(removed, as_json, "\n".join(removed) or "nothing to remove")


def _say(value: object, as_json: bool, text: str) -> None:
    if as_json:
        json.dump(value, sys.stdout, indent=1)
        print()
    else:
        print(text)
