"""Worlds whose whole state is one directory: a root in miniature, private to a sandbox and copied for every other.

For backends that can mount nothing. The workdir, HOME and /tmp are directories below that root, under their own
names: `/work/a` of the world is `ROOT/work/a` of the host. Pure: it says where things are; `jobs` copies them.
"""

import os
from collections.abc import Mapping
from typing import Any

from envgym.task import World
from envgym_sandboxes import world as worlds
from envgym_sandboxes.engine import Frozen

__all__ = ["base_steps", "env", "refuse_unless_host", "shell", "tops"]

TMP = "/tmp"


def tops(world: World) -> tuple[str, ...]:
    """The directories of a world that are the sandbox's own."""
    return (world.workdir, worlds.HOME, TMP)


def refuse_unless_host(world: World, backend: str) -> None:
    """Raise ValueError for a world that needs more than copies of directories."""
    if world.image != "host":
        raise ValueError(f"World.image {world.image!r}: the {backend} backend runs on the host itself; use 'host'")
    if world.workdir == "/":
        raise ValueError(f"World.workdir is '/': the {backend} backend needs a directory that it can copy")


def base_steps(world: World, backend: str) -> list[dict[str, Any]]:
    """The root of a world before its setup. Raises ValueError for a path that is not the sandbox's own."""
    steps: list[dict[str, Any]] = [{"do": "directory", "path": top} for top in tops(world)]
    for tree in world.trees:
        _check(world, tree.target, "trees target", backend)
        steps.append({"do": "tree", "source": tree.source, "path": tree.target})
    for path, content in sorted(world.files.items()):
        _check(world, path, "files", backend)
        steps.append({"do": "file", "path": path, "content": content, "mode": 0o644})
    return steps


def _check(world: World, path: str, what: str, backend: str) -> None:
    if not any(f"{path}/".startswith(f"{top}/") for top in tops(world)):
        raise ValueError(
            f"World.{what}: {path!r} is outside {', '.join(tops(world))}; the {backend} backend must not write to "
            "the host: put it below one of them, or use the 'namespace' backend"
        )


def env(root: str) -> dict[str, str]:
    """Where programs find what is their own."""
    return {"HOME": root + worlds.HOME, "TMPDIR": root + TMP}


def shell(frozen: Frozen, layers: str, upper: str) -> Mapping[str, str] | None:
    """The shell state of a frozen state, the paths of the copy that it was written in become those of `upper`."""
    if frozen.shell is None:
        return None
    before, here = f"{os.path.join(layers, frozen.shell['layer'])}/", f"{layers}/{upper}/"
    return {name: text.replace(before, here) for name, text in frozen.shell.items()}
