"""Collects trajectories: any registered agent in any registered environment, written as they finish.

It plays and stores; it does not train, and success is whatever the environment's own steps say.
"""

import asyncio
import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from envgym.cli.options import key_values
from envgym.env import Env
from envgym.episode import Episode
from envgym.limits import Limits
from envgym.policy import Agent
from envgym.registry import find, make, make_backend, spec
from envgym.rollout import Job, Rollout, stream
from envgym.sandbox import SandboxBackend
from envgym.storage import EpisodeWriter
from envgym.task import Task, TaskSet

__all__ = ["Plan", "rollout_command", "run_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play: `episodes` over the tasks of `split` in turn, episode i on task i modulo their number.

    The same plan gives the same seeds and ids, whatever the concurrency.
    """

    env: str
    agent: str
    episodes: int
    limits: Limits
    split: str | None = None
    seed: int = 0
    concurrency: int = 16
    retries: int = 0
    sandbox: str = "auto"
    env_options: dict[str, Any] = field(default_factory=dict)
    task_options: dict[str, Any] = field(default_factory=dict)
    agent_options: dict[str, Any] = field(default_factory=dict)

    def tasks(self) -> TaskSet:
        """The tasks of the split. Raises ValueError when there are none, or the set never ends."""
        tasks = spec(self.env).tasks(**self.task_options)
        if self.split is None:
            return tasks
        if tasks.infinite:
            raise ValueError(f"--split {self.split}: the tasks of {self.env!r} never end; they are played in order")
        chosen = tasks.split(self.split)
        if not len(chosen):
            known = ", ".join(sorted({task.split for task in tasks})) or "none"
            raise ValueError(f"environment {self.env!r} has no tasks of split {self.split!r}; its splits: {known}")
        return chosen

    def jobs(self, backend: SandboxBackend | None) -> Iterator[Job]:
        """One job per episode, made when it is drawn."""
        tasks, factory = self.tasks(), find("agents", self.agent)
        wants_tools = "tools" in inspect.signature(factory).parameters
        count = self.episodes if tasks.infinite else len(tasks)
        if not count:
            raise ValueError(f"environment {self.env!r} has no tasks; what are its --task-option values?")
        provenance = (("envgym", version("envgym")), ("environment", self.env), ("agent", self.agent))
        rollout = Rollout(limits=self.limits, provenance=provenance)

        def job(index: int, task: Task) -> Job:
            seed = int(np.random.SeedSequence((self.seed, index)).generate_state(1, np.uint64)[0] >> 1)

            async def make_env() -> Env:
                return make(self.env, task, backend=backend, **self.env_options)

            def make_agent(env: Env) -> Agent:
                options = {"tools": env.tools, **self.agent_options} if wants_tools else self.agent_options
                made: Agent = factory(env.task, seed=seed, **options)
                return made

            return Job(make_env, make_agent, task.id, seed, f"{self.env}-s{self.seed}-{index:06d}", rollout)

        return (job(index, tasks[index % count]) for index in range(self.episodes))


async def run_plan(plan: Plan) -> AsyncIterator[Episode]:
    """Play a plan and yield its episodes as they finish."""
    async with AsyncExitStack() as stack:
        backend = None
        if spec(plan.env).sandbox:
            backend = await stack.enter_async_context(make_backend(plan.sandbox))
        async for episode in stream(plan.jobs(backend), concurrency=plan.concurrency, retries=plan.retries):
            yield episode


def rollout_command(  # noqa: PLR0913  # one parameter per option
    env: Annotated[str, typer.Argument(help="A registered environment; see `envgym list`.")],
    agent: Annotated[str, typer.Option(help="A registered agent.")] = "random",
    episodes: Annotated[int, typer.Option("-n", "--episodes", min=1, help="How many episodes.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Append the episodes to this file.")] = None,
    split: Annotated[str | None, typer.Option(help="Only tasks of this split.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes tasks' and agents' draws.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Bound on an episode's turns.")] = Limits().turns,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 16,
    retries: Annotated[int, typer.Option(min=0, help="Fresh tries of an episode whose world failed.")] = 0,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    agent_option: Annotated[list[str] | None, typer.Option(help="name=value for the agent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable summary.")] = False,
) -> None:
    """Collect trajectories with a registered agent: bounded concurrency, progress, a table of failures."""
    plan = Plan(
        env, agent, episodes, Limits(turns=turns), split, seed, concurrency, retries, sandbox,
        key_values(env_option or (), "--env-option"),
        key_values(task_option or (), "--task-option"),
        key_values(agent_option or (), "--agent-option"),
    )  # fmt: skip
    if out is not None and out.exists() and out.stat().st_size:
        raise ValueError(f"--out {out} exists already; episode ids would repeat: name a new file or remove it")
    summary = asyncio.run(_collect(plan, out))
    if as_json:
        json.dump(summary, sys.stdout, indent=1)
        print()
    else:
        _show(summary)
    if summary["failed"] == summary["episodes"]:
        raise typer.Exit(1)


async def _collect(plan: Plan, out: Path | None) -> dict[str, Any]:
    stops: Counter[str] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    rewards: list[float] = []
    turns = tokens = done = 0
    started = time.perf_counter()
    async with AsyncExitStack() as stack:
        writer = stack.enter_context(EpisodeWriter(out)) if out is not None else None
        tick = stack.enter_context(_progress(plan.episodes))
        async for episode in run_plan(plan):
            done += 1
            turns += len(episode.turns)
            tokens += episode.sampled_tokens
            if writer is not None:
                writer.append(episode)
            if episode.failure is not None:
                failures[episode.failure.boundary, episode.failure.kind, episode.failure.message[:300]] += 1
            else:
                stops[str(episode.stop)] += 1
                rewards += [] if episode.reward is None else [episode.reward]
            tick()
    return {
        "environment": plan.env,
        "agent": plan.agent,
        "episodes": done,
        "failed": sum(failures.values()),
        "turns": turns,
        "sampled_tokens": tokens,
        "mean_reward": float(np.mean(rewards)) if rewards else None,
        "stops": dict(stops.most_common()),
        "failures": [
            {"boundary": party, "kind": kind, "message": message, "count": count}
            for (party, kind, message), count in failures.most_common()
        ],
        "wall_s": time.perf_counter() - started,
        "out": None if out is None else str(out),
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar with an estimate on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console  # only a terminal pays for it
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("episodes", total=total)
        yield lambda: bar.advance(task)


def _show(summary: dict[str, Any]) -> None:
    mean = summary["mean_reward"]
    print(
        f"{summary['episodes']} episodes of {summary['environment']} by {summary['agent']} in "
        f"{summary['wall_s']:.1f} s: {summary['turns']} turns, mean reward "
        f"{'none' if mean is None else f'{mean:.3f}'}"
    )
    for stop, count in summary["stops"].items():
        print(f"  {count:6}  {stop}")
    if summary["failures"]:
        print(f"{summary['failed']} failed; they have no reward and are in no mean:")
    for row in summary["failures"]:
        print(f"  {row['count']:6}  {row['boundary']}  {row['kind']}: {row['message']}")
    if summary["out"]:
        print(f"written to {summary['out']}; look at them with: envgym show {summary['out']}")
