"""Makes tasks for an environment that has none, and writes them; the environment ``synthesized`` plays them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from envgym.cli.asking import asked_agent
from envgym.cli.options import check_env_options, key_values, tasks_of
from envgym.env import Env
from envgym.options import wrong_option
from envgym.registry import find, make, make_backend, spec
from envgym.synthesis import (
    AgentAsker,
    Curious,
    Explorer,
    GraphExplorer,
    Rates,
    ScreenGraph,
    Synthesis,
    Told,
    Tried,
    describe,
    instruct,
    learned,
    rate,
    synthesize,
)
from envgym.synthesis.explore import AgentExplorer
from envgym.synthesis.graph import GraphReader
from envgym.synthesis.told import Rate, bare
from envgym.task import Task

__all__ = ["synthesize_command"]


_ForEnv = Annotated[list[str] | None, typer.Option(help="name=value for the environment.")]
_ForTasks = Annotated[list[str] | None, typer.Option(help="name=value for its task set.")]
_ForAgent = Annotated[list[str] | None, typer.Option(help="name=value for the agent.")]
_ForWords = Annotated[list[str] | None, typer.Option(help="name=value for who writes.")]
_ForRating = Annotated[list[str] | None, typer.Option(help="name=value for who rates.")]
_Words = Annotated[
    str | None, typer.Option(help="A registered agent writes prompts and instructions; default: a script.")
]
_Rating = Annotated[
    str | None,
    typer.Option(
        help="A registered agent, or `learned`, a reward model, rates trails; default: the share that mattered."
    ),
]
_Agent = Annotated[str | None, typer.Option(help="A registered agent explores; default: a curious script.")]
_Kind = Annotated[
    Literal["curious", "graph"],
    typer.Option(
        help="Does what it did least, or goes where a graph of screens promises most; an agent reads that."
    ),
]
_Memory = Annotated[Path | None, typer.Option(help="A file that remembers what was tried; made if missing.")]
_Steps = Annotated[Path | None, typer.Option(help="Where tasks of single steps go, each with an instruction.")]
_Least = Annotated[float, typer.Option(min=0.0, max=1.0, help="A trail that is rated below it makes no task.")]


def synthesize_command(  # noqa: PLR0913  # one parameter per option
    env: Annotated[str, typer.Argument(help="A registered environment.")],
    out: Annotated[Path, typer.Option(help="Where the tasks go, one JSON object per line.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many tasks are wanted.")] = 20,
    trails: Annotated[int, typer.Option(min=1, help="Most explorations.")] = 50,
    turns: Annotated[int, typer.Option(min=1, help="Most actions of an exploration.")] = 8,
    task: Annotated[int, typer.Option(min=0, help="Which task's world is explored.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Fixes all that is drawn.")] = 0,
    agent: _Agent = None,
    explorer: _Kind = "curious",
    memory: _Memory = None,
    words: _Words = None,
    rating: _Rating = None,
    least: _Least = 0.0,
    steps: _Steps = None,
    sandbox: Annotated[str, typer.Option(help="Where it acts, if it needs a sandbox.")] = "auto",
    env_option: _ForEnv = None,
    task_option: _ForTasks = None,
    agent_option: _ForAgent = None,
    words_option: _ForWords = None,
    rating_option: _ForRating = None,
) -> None:
    """Explore an environment and write tasks that were found, abstracted and proved by being played again."""
    found = spec(env)
    base = tasks_of(env, key_values(task_option or (), "--task-option"))[task]
    options = key_values(env_option or (), "--env-option")
    check_env_options(env, options)
    making = partial(make, env, base, **options)
    tried = Tried() if memory is None else Tried.read(memory)
    writes = _asker(words, key_values(words_option or (), "--words-option"), "--words")
    rates = _rating(rating, key_values(rating_option or (), "--rating-option"))
    told = _told(writes, rates, least, single=steps is not None)
    who = _Explorers(agent, key_values(agent_option or (), "--agent-option"), graph=explorer == "graph")

    async def explored() -> Synthesis:
        async with AsyncExitStack() as open_:
            given = {"backend": await open_.enter_async_context(make_backend(sandbox))} if found.sandbox else {}
            ready = partial(making, **given)
            # tells agents what can be called there; it is never played
            told_of: Env = ready()
            open_.push_async_callback(told_of.close)
            return await synthesize(
                env, base, ready, partial(who.explorer, told_of), count=count, trails=trails, turns=turns,
                seed=seed, tried=tried, told=told,
            )  # fmt: skip

    made = asyncio.run(explored())
    _write(made.tasks, out)
    if steps is not None:
        _write(made.steps, steps)
    if memory is not None:
        tried.write(memory)
    refused = ", ".join(f"{number} {why}" for why, number in sorted(made.refused.items())) or "none"
    single = "" if steps is None else f", {len(made.steps)} of single steps in {steps}"
    print(f"{len(made.tasks)} tasks of {len(tried.schemas)} schemas in {out}{single}; refused: {refused}")


class _Explorers:
    """Makes who explores: for each trail one, which is closed after it; a graph is that of all."""

    def __init__(self, agent: str | None, options: dict[str, Any], *, graph: bool) -> None:
        self._make: Callable[..., Any] | None = None if agent is None else find("agents", agent)
        self._options, self._graph = options, ScreenGraph() if graph else None

    def explorer(self, env: Env, seed: int) -> Explorer:
        """For one trail in worlds such as `env`."""
        walk = None if self._graph is None else GraphExplorer(self._graph, np.random.default_rng(seed))
        if self._make is None:
            return walk or Curious(np.random.default_rng(seed))
        explores = self._make(env.task, seed=seed, tools=env.tools, **self._options)
        return AgentExplorer(explores) if walk is None else GraphReader(explores, walk)


def _told(writes: AgentAsker | None, rates: Rate | None, least: float, *, single: bool) -> Told:
    """Who says what; scripts where nobody is asked. single: whether single steps get instructions."""
    told = Told(least=least, steps=(instruct(writes) if writes else bare) if single else None)
    told = replace(told, words=describe(writes)) if writes else told
    return replace(told, rating=rates) if rates else told


def _rating(name: str | None, options: dict[str, Any]) -> Rate | None:
    """Who rates; None for a script. Raises ValueError for options of nobody, and what is no model that rates."""
    if name != "learned":
        asker = _asker(name, options, "--rating")
        return rate(asker) if asker else None
    if wrong := wrong_option("options of --rating learned", options, _opened, given=set()):
        raise ValueError(wrong)
    return learned(_opened(**options))


def _opened(*, path: str, model: str = "transformer", device: str = "cpu") -> Rates:
    """A reward model, as the channel `learned` of a plan opens it."""
    opened = find("reward_models", model)(path, device=device)
    if not callable(getattr(opened, "share", None)):
        raise ValueError(f"reward models of the kind {model!r} rate no trails: they have no `share`")
    rates: Rates = opened
    return rates


def _asker(name: str | None, options: dict[str, Any], option: str) -> AgentAsker | None:
    """Who is asked; None for a script. Raises ValueError for options of nobody."""
    if name is None:
        if options:
            raise ValueError(f"{option}-option is given and {option} is not: name the agent that it is for")
        return None
    return AgentAsker(asked_agent(name, options))


def _write(tasks: Sequence[Task], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(task.model_dump_json() + "\n" for task in tasks))
