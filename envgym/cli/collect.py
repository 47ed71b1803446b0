"""Collects trajectories: any registered agent in any registered environment, written as they finish.

It plays and stores; it does not train, and success is whatever the environment's own steps say.
"""

import asyncio
import inspect
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from envgym.cli.options import key_values
from envgym.env import Env
from envgym.episode import Began, Episode
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.plain_text import visible
from envgym.policy import Agent
from envgym.registry import find, make, make_backend, spec, wrong_option
from envgym.rollout import Rollout
from envgym.sandbox import SandboxBackend
from envgym.store import StoreReader, StoreWriter, is_store
from envgym.task import Task, TaskSet

__all__ = ["Plan", "Tally", "check_store", "collect_command", "run_plan"]


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

    def check_options(self) -> None:
        """Raise ValueError for an option that environment, task set or agent does not have, or needs."""
        found = spec(self.env)
        environment = {**found.defaults, **self.env_options}
        environment.pop("isolate", None)  # which is `make`'s own
        for wrong in (
            wrong_option("--env-option", environment, found.make, given={"backend"}, skip=1),
            wrong_option("--task-option", self.task_options, found.tasks),
            wrong_option(
                "--agent-option", self.agent_options, find("agents", self.agent), given={"seed", "tools"}, skip=1
            ),
        ):
            if wrong is not None:
                raise ValueError(wrong)

    def _options(self) -> dict[str, Any]:
        given = {"env": self.env_options, "task": self.task_options, "agent": self.agent_options}
        return {f"{name} options": options for name, options in given.items() if options}

    def jobs(self, backend: SandboxBackend | None) -> Iterator[Job]:
        """One job per episode, made when it is drawn."""
        self.check_options()
        tasks, factory = self.tasks(), find("agents", self.agent)
        wants_tools = "tools" in inspect.signature(factory).parameters
        count = self.episodes if tasks.infinite else len(tasks)
        if not count:
            raise ValueError(f"environment {self.env!r} has no tasks; what are its --task-option values?")
        played = {"turns": self.limits.turns, **self._options()}
        provenance = (
            *(("envgym", version("envgym")), ("environment", self.env), ("agent", self.agent)),
            *((name, json.dumps(value, sort_keys=True)) for name, value in played.items()),
        )
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


def check_store(plan: Plan, out: Path) -> int:
    """How many episodes of a plan an earlier, interrupted call left in its store.

    Raises ValueError naming the first one that this plan would not play just so.
    """
    if not is_store(out):
        return 0
    with StoreReader(out) as reader:
        stored = [Began.of(episode) for episode in reader]
        stored += [found.began for found in reader.unfinished.values()]
    jobs, advice = {job.episode_id: job for job in plan.jobs(None)}, "go on with the command that began it"
    for began in stored:
        job = jobs.pop(began.id, None)
        if job is None:
            raise ValueError(
                f"--out {out} holds episode {began.id!r}, which is not of this plan; {advice}, or name another"
            )
        then = {**dict(began.provenance), "task": began.task_id, "seed": began.seed}
        now = {**dict(job.rollout.provenance), "task": job.task_id, "seed": job.seed}
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                raise ValueError(
                    f"--out {out} was begun otherwise: {name} was {then.get(name, 'not given')}, now it is "
                    f"{now.get(name, 'not given')}; {advice}, or name another store"
                )
    return len(reader)


async def run_plan(plan: Plan, memory: StoreWriter | None = None) -> AsyncIterator[Episode]:
    """Play a plan and yield its episodes as they finish; those that a store remembers are not played again."""
    async with AsyncExitStack() as stack:
        backend = None
        if spec(plan.env).sandbox:
            backend = await stack.enter_async_context(make_backend(plan.sandbox))
        playing = stream(plan.jobs(backend), concurrency=plan.concurrency, retries=plan.retries, memory=memory)
        async for episode in playing:
            if memory is not None and episode.id not in memory:  # its world failed, and that is how it ended
                memory.append(episode)
            yield episode


def collect_command(  # noqa: PLR0913  # one parameter per option
    env: Annotated[str, typer.Argument(help="A registered environment; see `envgym list`.")],
    agent: Annotated[str, typer.Option(help="A registered agent.")] = "random",
    episodes: Annotated[int, typer.Option("-n", "--episodes", min=1, help="How many episodes.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Store the episodes here; the same command goes on.")] = None,
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
    stored = 0 if out is None else check_store(plan, out)
    tally = Tally(plan)
    try:
        asyncio.run(_collect(plan, out, stored, tally))
    except KeyboardInterrupt as error:
        if out is None:
            error.add_note(
                f"{tally.done} of {episodes} episodes were played, none is kept (--out STORE keeps them)"
            )
        else:
            kept = len(StoreReader(out)) if is_store(out) else 0
            error.add_note(f"{kept} of {episodes} episodes were played, kept in {out}; the same command goes on")
        raise
    summary = tally.summary(out)
    if as_json:
        json.dump(summary, sys.stdout, indent=1)
        print()
    else:
        _show(summary)
    if summary["failed"] == summary["episodes"]:
        raise typer.Exit(1)


class Tally:
    """Counts of a plan's episodes. What differs in the ids of task and episode alone is one failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.started = plan, time.perf_counter()
        self.done = self.turns = self.tokens = 0
        self.rewards: list[float] = []
        self.stops: Counter[str] = Counter()
        self.failures: dict[tuple[str, ...], dict[str, Any]] = {}

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        self.done += 1
        self.turns += len(episode.turns)
        self.tokens += episode.sampled_tokens
        if episode.failure is None:
            self.stops[str(episode.stop)] += 1
            self.rewards += [] if episode.reward is None else [episode.reward]
            return
        failure, general = episode.failure, episode.failure.message
        for name in (episode.id, episode.task_id):
            general = general.replace(name, "")
        row = {"boundary": str(failure.boundary), "kind": failure.kind, "where": failure.where}
        first = {**row, "message": failure.message[:300], "count": 0}
        self.failures.setdefault((*row.values(), general), first)["count"] += 1

    def summary(self, out: Path | None) -> dict[str, Any]:
        """What a script is told."""
        failures = sorted(self.failures.values(), key=lambda row: -row["count"])
        return {
            "environment": self.plan.env,
            "agent": self.plan.agent,
            "episodes": self.done,
            "failed": sum(row["count"] for row in failures),
            "turns": self.turns,
            "sampled_tokens": self.tokens,
            "mean_reward": float(np.mean(self.rewards)) if self.rewards else None,
            "stops": dict(self.stops.most_common()),
            "failures": failures,
            "wall_s": time.perf_counter() - self.started,
            "out": None if out is None else str(out),
        }


async def _collect(plan: Plan, out: Path | None, stored: int, tally: Tally) -> None:
    from rich.console import Console  # only who plays pays for it

    from envgym.progress import Bar

    with ExitStack() as stack:
        writer = stack.enter_context(StoreWriter(out)) if out is not None else None
        bar = stack.enter_context(Bar(Console(stderr=True), "episodes", plan.episodes))
        if stored or (writer is not None and writer.unfinished):
            bar.say(f"{out} holds {stored} of {plan.episodes} episodes; the others are played")
        async for episode in run_plan(plan, writer):
            tally.add(episode)
            bar.update(tally.done)


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
        first = visible((row["message"].splitlines() or [""])[0])
        print(f"  {row['count']:6}  {row['boundary']}  {row['kind']}: {first}")
    if summary["out"]:
        print(f"written to {summary['out']}; look at them with: envgym show {shlex.quote(summary['out'])}")
