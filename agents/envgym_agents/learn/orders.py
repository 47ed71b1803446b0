"""What the commands that need a model do once their options are read: follow, plan, train and evaluate.

Nothing here reads options; `envgym_agents.learn.cli` does, and imports this last, for torch comes with it.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from envgym_agents.learn.cluster.planned import placement_of
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.crew import crew_size, launched
from envgym_agents.learn.facts import facts_of
from envgym_agents.learn.folder import configuration_of
from envgym_agents.learn.plan import plan_of
from envgym_agents.learn.recipe import Stage, follow_recipe, recipe
from envgym_agents.learn.resolve import check_names, check_sources, check_student, located
from envgym_agents.learn.run import evaluate_folders, train
from envgym_agents.learn.worker import follow as follow_rank

__all__ = ["begun", "evaluate", "follow", "print_plan", "recipe", "train_here"]


def _told(report: Any) -> None:
    json.dump(report, sys.stdout, indent=1)
    print()


def begun(out: Path) -> TrainConfig | None:
    """What a run folder was begun with; None where there is none."""
    stored = out / "config.json"
    return configuration_of(stored) if stored.exists() else None


def follow(stages: Sequence[Stage], out: Path | None, *, resume: bool, console: Console | None, plan: bool) -> None:
    """The stages of a recipe: run, or only planned. Without a console the result is JSON."""
    if launched() is not None:
        raise ValueError(
            "a recipe's stages start their own processes (learner.processes): start it without torchrun"
        )
    if plan or out is None:
        for number, stage in enumerate(stages):
            print(f"stage {stage.name}" + (f": the model that {stages[number - 1].name} leaves" if number else ""))
            print_plan(stage.config, console is None, follows=number > 0)
        return
    reports = follow_recipe(stages, out, resume=resume, console=console)
    if console is None:
        _told(reports)


def print_plan(config: TrainConfig, as_json: bool, *, follows: bool = False) -> None:
    """The plan, and then, where something cannot fit, the refusal. Nothing is written.

    follows: a recipe's stage, which gets its model from the one before it.
    """
    config = located(config, weights=False)
    unsaid = check_names(config)
    if not follows:
        check_student(config, weights=False)
    check_sources(config, weights=False)
    placed, placing = placement_of(config) if config.cluster.used else ((), [])
    found = plan_of(config, facts_of(config), placed=placed)
    if as_json:
        _told({**asdict(found), "placed": [asdict(one) for one in placed], "unsaid": unsaid})
    else:
        print("\n".join([*found.lines(), *placing, *unsaid]))
    found.check()


def train_here(config: TrainConfig, out: Path, *, resume: bool, console: Console | None) -> None:
    """One run; as a rank of torchrun's but the first, what that one asks for. No console: the report is JSON."""
    if (started := launched()) is not None and started[0] > 0:
        crew_size(config.learner.processes)
        follow_rank(config.device, patience_s=config.learner.patience_s)
        return
    report = train(config, out, resume=resume, console=console)
    if console is None:
        _told(report)


def evaluate(
    config: TrainConfig,
    out: Path,
    *,
    models: Sequence[Path],
    agents: Sequence[str],
    resume: bool,
    console: Console | None,
) -> None:
    """Held-out tasks, played by models and agents. No console: the report is JSON."""
    report = asyncio.run(
        evaluate_folders(config, out, models=models, agents=agents, resume=resume, console=console)
    )
    if console is None:
        _told(report)
