"""The commands ``envgym train`` and ``envgym eval``: a configuration in, a run folder and a table out.

Options only; what they do is in `envgym_agents.learn.orders`, which is imported when the options have been read:
torch and transformers take seconds, which nobody waits for who asks for help or has mistyped a setting.
"""

import json
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from envgym.options import hint
from envgym_agents.learn.config import TrainConfig, load
from envgym_agents.learn.settings import settings_text

__all__ = ["eval_command", "preset", "presets", "report_command", "train_command"]

_Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with a configuration.")]
_Preset = Annotated[
    str | None, typer.Option("--preset", help="A configuration that comes with envgym: demo, miniwob, record, sql.")
]
_Set = Annotated[list[str] | None, typer.Option("--set", help="section.field=value, over file and preset.")]
_Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Fixes everything that is drawn.")]


def _print_settings(wanted: bool) -> None:
    if wanted:
        print(settings_text())
        raise typer.Exit


_Settings = Annotated[
    bool,
    typer.Option(
        "--settings", callback=_print_settings, is_eager=True, help="Print every setting as TOML, and end."
    ),
]
_Plan = Annotated[
    bool, typer.Option("--plan", help="Print what would run, and the memory it needs; refuse what cannot fit.")
]
_Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe", help="Stages one after the other: a recipe of docs/training.md, such as zero-rl, or a file."
    ),
]
_Out = Annotated[Path, typer.Option("--out", help="The run folder; it must not exist, or be resumed.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out; alone: as it was begun.")]
_Json = Annotated[bool, typer.Option("--json", help="The report as JSON on standard output, and nothing else.")]


def presets() -> dict[str, str]:
    """Name -> TOML text of the configurations that come along."""
    folder = files("envgym_agents.learn") / "presets"
    return {Path(entry.name).stem: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".toml")}


def preset(name: str | None) -> dict[str, Any]:
    """The values of a preset, none for None. Raises ValueError for an unknown one."""
    if name is None:
        return {}
    known = presets()
    if name not in known:
        raise ValueError(f"--preset {name!r} is not known; {hint(name, sorted(known))}")
    return tomllib.loads(known[name])


_presets = preset  # where an option has its name


def _configuration(
    config: Path | None, name: str | None, overrides: list[str] | None, seed: int | None
) -> TrainConfig:
    return load(config, _texts(overrides, seed), base=preset(name))


def _texts(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or ()), *([] if seed is None else [f"seed={seed}"])]


def train_command(  # noqa: PLR0913  # one parameter per option
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder; new, or resumed. --plan needs none.")
    ] = None,
    config: _Config = None,
    preset: _Preset = None,
    overrides: _Set = None,
    seed: _Seed = None,
    resume: _Resume = False,
    as_json: _Json = False,
    settings: _Settings = False,
    plan: _Plan = False,
    recipe_name: _Recipe = None,
) -> None:
    """Train a language model by reinforcement learning: warm start, policy gradients, evaluation, report.

    A small transformer is made from scratch; --set model.path=FOLDER trains a Hugging Face model instead, also by
    its name on the hub (organisation/name, or organisation/name@revision).
    --settings prints every setting with its default and bound, as docs/settings.md does.
    """
    console = None if as_json else Console(stderr=True)
    if out is None and not plan:
        raise ValueError("--out is missing: name the folder of the run")
    texts, base = _texts(overrides, seed), _presets(preset)
    alone = config is None and preset is None and not texts
    chosen = None if recipe_name is not None or (resume and alone) else load(config, texts, base=base)
    from envgym_agents.learn import orders

    if recipe_name is not None:
        stages = orders.recipe(recipe_name, config=config, overrides=texts, base=base)
        orders.follow(stages, out, resume=resume, console=console, plan=plan)
        return
    if chosen is None:
        chosen = (orders.begun(out) if out is not None else None) or load(base=base)
    if out is None or plan:
        orders.print_plan(chosen, as_json)
    else:
        orders.train_here(chosen, out, resume=resume, console=console)


def eval_command(  # noqa: PLR0913  # one parameter per option
    out: _Out,
    model: Annotated[
        list[Path] | None, typer.Option("--model", help="A model, by folder or hub name; repeatable.")
    ] = None,
    agent: Annotated[list[str] | None, typer.Option("--agent", help="A registered agent; repeatable.")] = None,
    config: _Config = None,
    preset: _Preset = None,
    overrides: _Set = None,
    seed: _Seed = None,
    resume: _Resume = False,
    as_json: _Json = False,
) -> None:
    """Play held-out tasks with models and agents: success with 95 % intervals, each compared with the first.

    The environment, its options and the split are those of the configuration (evaluate.split, evaluate.tasks).
    """
    if not model and not agent:
        raise ValueError("nothing to evaluate: name a model folder (--model) or a registered agent (--agent)")
    console = None if as_json else Console(stderr=True)
    chosen = _configuration(config, preset, overrides, seed)
    from envgym_agents.learn import orders

    orders.evaluate(chosen, out, models=model or [], agents=agent or [], resume=resume, console=console)


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs: seeds of one experiment.")],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="A run of another experiment, one for each seed: how much better are these after RL?"),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Success before and after RL over several runs (seeds) of one experiment, with 95 % intervals over tasks."""
    from envgym_agents.learn.pool import report_runs  # with it comes what draws

    report = report_runs(runs, None if as_json else Console(stderr=True), against=against or ())
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        print()
