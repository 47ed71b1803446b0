"""A snapshot as an image of the engine, for whoever wants to run it, or to hand it on, without envgym.

It is the world's image with the sandbox's directories in the place of the image's. All of it is copied, so nothing
here is done unless it is asked for: snapshots and forks do without.
"""

import re
import tempfile
from collections.abc import Collection
from pathlib import Path

from envgym.sandbox import Sandbox
from envgym.task import World
from envgym_sandboxes.docker_engine.client import Client
from envgym_sandboxes.images.store import Image

__all__ = ["check_name", "commit"]

_NAME = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def check_name(name: str) -> str:
    """A name with its tag, ``latest`` if it has none. Raises ValueError."""
    full = name if ":" in name else f"{name}:latest"
    if not _NAME.fullmatch(full):
        raise ValueError(
            f"{name!r} cannot be an image's name; an engine takes NAME or NAME:TAG, in lower case, of letters and "
            "digits with single separators (. _ - /)"
        )
    return full


def _changes(world: World) -> list[str]:
    """The world's directory and variables as instructions. Raises ValueError for what they cannot say."""
    lines = [f"WORKDIR {_escaped(world.workdir)}"]
    for name, value in sorted(world.env.items()):
        if "\n" in value:
            raise ValueError(f"World.env: {name} has more than one line, which no variable of an image can have")
        lines.append(f'ENV {name}="{_escaped(value)}"')
    return lines


def _escaped(text: str) -> str:
    return re.sub(r'(["\\$])', r"\\\1", text)


async def commit(client: Client, sandbox: Sandbox, image: Image, tops: Collection[str], name: str) -> str:
    """The engine's id of an image `name` of a sandbox that stands still. tops: its directories."""
    full, changes = check_name(name), _changes(sandbox.world)
    with tempfile.TemporaryDirectory() as folder:
        trees = {top: Path(folder, str(number)) for number, top in enumerate(sorted(tops))}
        for top, path in trees.items():
            await sandbox.get(top, str(path))
        return await client.call(client.make_image, full, image, trees, changes)
