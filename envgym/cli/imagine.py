"""The command ``envgym imagine``: an agent imagines conversations of a goal, as a store to train on offline."""

import asyncio
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from envgym.cli.asking import asked_agent, who
from envgym.cli.options import key_values
from envgym.episode import Episode
from envgym.plain_text import visible
from envgym.store import StoreReader, StoreWriter, is_store
from envgym.synthesis.imagine import GOAL, IMAGINED, AgentAsker, Amounts, Goal, imagine

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
    make, imaginer = asked_agent(agent, options), who(agent, options)
    kept = _kept(out, wanted, imaginer, seed)
    amounts = Amounts(people, each, times, concurrency)
    reached = sum((one.reward or 0.0) >= 0.5 for one in kept)
    counts, refused, failures = Counter({"kept": len(kept), "reached": reached}), Counter[str](), list[str]()

    async def work() -> None:
        with StoreWriter(out) as store:
            async for one in imagine(wanted, AgentAsker(make), amounts, who=imaginer, seed=seed, kept=kept):
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
    before = f" ({len(kept)} of them before)" if kept else ""
    print(f"{counts['kept']} conversations{before} in {out}, {counts['reached']} reached the goal; refused: {told}")
    for line in failures[:10]:
        typer.echo(f"envgym: {visible(line)}", err=True)
    if failures or not counts["kept"]:
        raise typer.Exit(1)


def _kept(out: Path, goal: Goal, who: str, seed: int) -> list[Episode]:
    """What an earlier call, killed or not, left of these very conversations; ValueError where they are others'."""
    if not is_store(out):
        return []
    begun = f"{goal.name}-{seed}-"
    with StoreReader(out) as reader:
        kept = [reader[name] for name in reader.ids if re.fullmatch(re.escape(begun) + r"\d{5,}-\d+", name)]
    for one in kept:
        told = dict(one.provenance)
        if (told.get(GOAL), told.get(IMAGINED)) != (goal.digest, who):
            other = "goal" if told.get(GOAL) != goal.digest else f"imaginer ({told.get(IMAGINED)})"
            raise ValueError(
                f"--out {out} holds conversations named {begun}... of another {other}: take another --seed, name "
                "or store"
            )
    return kept


def _goal(path: Path) -> Goal:
    try:
        return Goal.model_validate(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no goal: {error}") from error
