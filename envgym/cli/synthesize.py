"""Makes tasks for an environment that has none, and writes them; the environment ``synthesized`` plays them."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from envgym.cli.options import key_values
from envgym.env import Env
from envgym.registry import find, make, make_backend, spec
from envgym.synthesis import Curious, Explorer, GraphExplorer, ScreenGraph, Synthesis, Tried, synthesize
from envgym.synthesis.explore import AgentExplorer
from envgym.synthesis.graph import GraphReader

__all__ = ["synthesize_command"]


def synthesize_command(  # noqa: PLR0913  # one parameter per option
    env: Annotated[str, typer.Argument(help="A registered environment.")],
    out: Annotated[Path, typer.Option(help="Where the tasks go, one JSON object per line.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many tasks are wanted.")] = 20,
    trails: Annotated[int, typer.Option(min=1, help="Most explorations.")] = 50,
    turns: Annotated[int, typer.Option(min=1, help="Most actions of an exploration.")] = 8,
    task: Annotated[int, typer.Option(min=0, help="Which task's world is explored.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes all that is drawn.")] = 0,
    agent: Annotated[
        str | None, typer.Option(help="A registered agent explores; default: a curious script.")
    ] = None,
    explorer: Annotated[
        Literal["curious", "graph"],
        typer.Option(
            help="Does what it did least, or goes where a graph of screens promises most; an agent reads that."
        ),
    ] = "curious",
    memory: Annotated[
        Path | None, typer.Option(help="A file that remembers what was tried; made if missing.")
    ] = None,
    sandbox: Annotated[str, typer.Option(help="Where it acts, if it needs a sandbox.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    agent_option: Annotated[list[str] | None, typer.Option(help="name=value for the agent.")] = None,
) -> None:
    """Explore an environment and write tasks that were found, abstracted and proved by being played again."""
    found = spec(env)
    base = found.tasks(**key_values(task_option or (), "--task-option"))[task]
    making = partial(make, env, base, **key_values(env_option or (), "--env-option"))
    tried = Tried() if memory is None else Tried.read(memory)
    graph, options = (
        ScreenGraph() if explorer == "graph" else None,
        key_values(agent_option or (), "--agent-option"),
    )

    async def explored() -> Synthesis:
        async with AsyncExitStack() as open_:
            given = {"backend": await open_.enter_async_context(make_backend(sandbox))} if found.sandbox else {}
            ready = partial(making, **given)
            return await synthesize(
                env, base, ready, partial(_explorer, ready, agent, graph, options), count=count, trails=trails,
                turns=turns, seed=seed, tried=tried,
            )  # fmt: skip

    made = asyncio.run(explored())
    _write(made, out)
    if memory is not None:
        tried.write(memory)
    refused = ", ".join(f"{number} {why}" for why, number in sorted(made.refused.items())) or "none"
    print(f"{len(made.tasks)} tasks of {len(tried.schemas)} schemas in {out}; refused: {refused}")


def _explorer(
    making: Any, agent: str | None, graph: ScreenGraph | None, options: dict[str, Any], seed: int
) -> Explorer:
    walk = None if graph is None else GraphExplorer(graph, np.random.default_rng(seed))
    if agent is None:
        return walk or Curious(np.random.default_rng(seed))
    env: Env = making()
    explores = find("agents", agent)(env.task, seed=seed, tools=env.tools, **options)
    return AgentExplorer(explores) if walk is None else GraphReader(explores, walk)


def _write(made: Synthesis, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(task.model_dump_json() + "\n" for task in made.tasks))
