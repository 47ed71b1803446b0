"""The command ``envgym imagine``: an agent imagines conversations of a goal, as a store to train on offline."""

import asyncio
import inspect
import tomllib
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from envgym.cli.options import key_values
from envgym.options import wrong_option
from envgym.plain_text import visible
from envgym.policy import Agent
from envgym.provenance import told_by
from envgym.registry import find
from envgym.store import StoreReader, StoreWriter, is_store
from envgym.synthesis.imagine import AgentAsker, Amounts, Goal, imagine
from envgym.task import Task

__all__ = ["imagine_command"]


def imagine_command(  # noqa: PLR0913  # one parameter per option
    goal: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A TOML file: name, says, and more.")],
    out: Annotated[Path, typer.Option(help="The store that the conversations go to.")],
    agent: Annotated[
        str,
        typer.Option("--agent", "--policy", help="Who imagines: chat (a server), lm (a local model), any other."),
    ],
    people: Annotated[int, typer.Option("-n", "--people", min=1, help="How many persons are imagined.")] = 20,
    each: Annotated[int, typer.Option(min=1, help="Conversations with each; every second one is a poor one.")] = 2,
    times: Annotated[int, typer.Option(min=1, help="How often the judge is asked of each conversation.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Fixes what is drawn; another one imagines others.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 8,
    agent_option: Annotated[list[str] | None, typer.Option(help="name=value for the agent.")] = None,
) -> None:
    """Imagine conversations about a goal, judge them, and store what holds; `warm_start.store` trains on it."""
    wanted = _goal(goal)
    options = key_values(agent_option or (), "--agent-option")
    factory = find("agents", agent)
    if wrong := wrong_option(f"options of agent {agent!r}", options, factory, given={"seed", "tools"}, skip=1):
        raise ValueError(wrong)
    begun = f"{wanted.name}-{seed}-"
    with StoreReader(out) if is_store(out) else nullcontext() as reader:
        if reader is not None and any(one.startswith(begun) for one in reader.ids):
            raise ValueError(
                f"--out {out} holds conversations of {wanted.name!r} of seed {seed}: take another --seed"
            )

    def make(task: Task, *, seed: int) -> Agent:
        given = {"tools": ()} if "tools" in inspect.signature(factory).parameters else {}
        made: Agent = factory(task, seed=seed, **given, **options)
        return made

    who = ", ".join([agent, *(f"{name} {value}" for name, value in told_by(factory, options))])
    amounts = Amounts(people, each, times, concurrency)
    counts, refused, failures = Counter[str](), Counter[str](), list[str]()

    async def work() -> None:
        with StoreWriter(out) as store:
            async for one in imagine(wanted, AgentAsker(make), amounts, who=who, seed=seed):
                if one.episode is not None:
                    store.append(one.episode)
                    counts["kept"] += 1
                    counts["reached"] += (one.episode.reward or 0.0) >= 0.5
                elif one.failed:
                    failures.append(f"{one.name}: {one.failed}")
                else:
                    refused[one.refused] += 1

    asyncio.run(work())
    told = ", ".join(f"{number} {why}" for why, number in sorted(refused.items())) or "none"
    print(f"{counts['kept']} conversations in {out}, {counts['reached']} reached the goal; refused: {told}")
    for line in failures[:10]:
        typer.echo(f"envgym: {visible(line)}", err=True)
    if failures or not counts["kept"]:
        raise typer.Exit(1)


def _goal(path: Path) -> Goal:
    try:
        return Goal.model_validate(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no goal: {error}") from error
