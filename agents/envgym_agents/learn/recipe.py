"""A recipe: training runs one after the other, each from the model that the one before it left.

It is a TOML file with a list of stages, each a name and what its configuration has beside the common one. A stage
has a run folder of its own, and what is found finished there is not done again: a recipe that was killed, in a
stage or between two, goes on with the same command and ``--resume``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from envgym.options import hint
from envgym_agents.learn.config import TrainConfig, load
from envgym_agents.learn.durable import write_json
from envgym_agents.learn.resolve import check_names
from envgym_agents.learn.run import train

__all__ = ["Stage", "follow_recipe", "recipe", "recipes"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One of a recipe's runs; its model folder is that of the stage before it, if there was one."""

    name: str
    config: TrainConfig


def recipes() -> dict[str, str]:
    """Name -> TOML text of the recipes that come along."""
    folder = files("envgym_agents.learn") / "recipes"
    return {Path(entry.name).stem: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".toml")}


def recipe(
    name: str, *, config: Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> list[Stage]:
    """The stages of a recipe, by its name or the path of a TOML file.

    In every stage: the file `config` stands over `base`, the stage's own values over it, and `overrides` over all.
    Raises ValueError for an unknown name, a file without stages, and a stage that is no configuration.
    """
    known = recipes()
    if name not in known and not Path(name).is_file():
        raise ValueError(f"--recipe {name!r} is not known and no file; {hint(name, sorted(known))}")
    try:
        values = tomllib.loads(known[name] if name in known else Path(name).read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {name!r} is not TOML: {error}") from error
    stages = values.get("stage")
    if not isinstance(stages, list) or not stages or set(values) != {"stage"}:
        raise ValueError(f"recipe {name!r} is a list of [[stage]] and nothing else; it has {sorted(values)}")
    found: list[Stage] = []
    for stage in stages:
        title = stage.pop("name", None)
        if not isinstance(title, str) or not title.isidentifier() or title in {one.name for one in found}:
            raise ValueError(
                f"recipe {name!r}: stage {len(found) + 1} needs a name of its own, one word: {title!r}"
            )
        try:
            found.append(Stage(title, load(config, overrides, base=base, over=stage)))
        except ValueError as error:
            raise ValueError(f"recipe {name!r}, stage {title!r}: {error}") from error
    return found


def follow_recipe(
    stages: Sequence[Stage], out: str | Path, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Run the stages in order, in folders of `out` that have their names; returns the reports by name.

    Raises ValueError when `out` holds something and `resume` is false, or nothing and it is true; and, before the
    first is begun, for a name in any of them that is not known.
    """
    out = Path(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; go on with what is there (--resume) or choose another folder")
    if resume and not out.exists():
        raise ValueError(f"{out} holds nothing to resume")
    for stage in stages:  # a wrong name of the last is not found out after the first has run for hours
        check_names(stage.config)
    reports: dict[str, Any] = {}
    before: Path | None = None
    for number, stage in enumerate(stages, 1):
        folder, config = out / f"{number}-{stage.name}", stage.config
        if before is not None:
            model = config.model.model_copy(update={"path": str(before / "trained")})
            config = config.model_copy(update={"model": model})
        if console is not None:
            console.rule(f"stage {number} of {len(stages)}: {stage.name}")
        begun = (folder / "config.json").exists()
        reports[stage.name] = train(config, folder, resume=begun, console=console)
        before = folder
    write_json(out / "recipe.json", reports)
    return reports
