"""The console entry ``envgym images``: list, build, verify and import the images of worlds."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from envgym.errors import SandboxUnavailable
from envgym_sandboxes.images import archives
from envgym_sandboxes.images.build import build
from envgym_sandboxes.images.recipes import recipes
from envgym_sandboxes.images.store import Image, default_store

__all__ = ["images_command"]

images_command = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="List, build, verify and import images of worlds."
)
_Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@images_command.command("list")
def list_images(as_json: _Json = False) -> None:
    """Every recipe and every image on this machine."""
    store, known = default_store(), recipes()
    rows: list[dict[str, Any]] = []
    for name in sorted({*known, *store.names()}):
        try:
            image: Image | None = store.find(name)
        except SandboxUnavailable:
            image = None
        purpose = known[name].purpose if name in known else "imported"
        other = image is not None and name in known and image.digest != known[name].digest
        rows.append({"name": name, "purpose": purpose, "built": image and asdict(image), "other_digest": other})
    if as_json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return
    for row in rows:
        built = row["built"]
        said = f"{built['digest'][:19]}  {built['size_bytes'] >> 20:5} MiB" if built else "not built"
        note = "  (not the recipe's digest)" if row["other_digest"] else ""
        print(f"{row['name']:16} {said:34} {row['purpose']}{note}")


@images_command.command("build")
def build_images(
    names: Annotated[list[str] | None, typer.Argument(help="Of containers/images.toml (default: all).")] = None,
    accept: Annotated[bool, typer.Option(help="Take another digest than the recipe's.")] = False,
    again: Annotated[bool, typer.Option(help="Build even if it is there.")] = False,
) -> None:
    """Build images from their recipes (about a minute each; once)."""
    for name in names or list(recipes()):
        image = build(name, default_store(), accept=accept, again=again)
        if image.digest != (wanted := recipes()[name].digest):
            typer.echo(
                f"{name} is not what its recipe made ({wanted}): this mirror's packages are others", err=True
            )
        _tell(image)


@images_command.command("verify")
def verify_images(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names or digests (default: all that are here).")
    ] = None,
) -> None:
    """Read images whole and compare them with their digests; exit status 1 when one has changed."""
    for name in names or list(default_store().names()):
        _tell(default_store().verify(name))


@images_command.command("import")
def import_image(
    path: Annotated[
        Path, typer.Argument(help="An OCI layout, a `docker save` tar or a tar of a root file system.")
    ],
    name: Annotated[str, typer.Argument(help="What worlds call it.")],
) -> None:
    """Unpack an image from a file and give it a name."""
    if not path.exists() or not archives.is_image(path):
        raise typer.BadParameter(f"{path} is neither a file nor an OCI layout", param_hint="PATH")
    if name in recipes():
        raise typer.BadParameter(f"{name!r} is the name of a recipe", param_hint="NAME")
    _tell(default_store().add(archives.layers(path), source=str(path), name=name))


def _tell(image: Image) -> None:
    print(f"{image.name} {image.digest} {image.size_bytes} bytes at {image.root}")
