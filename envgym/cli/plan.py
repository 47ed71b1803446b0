"""What a collection plays: the episodes of a plan, in order."""

import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from envgym.cli.options import check_env_options, tasks_of
from envgym.cli.spending import Meter
from envgym.env import Env
from envgym.episode import Episode
from envgym.jobs import Job, stream
from envgym.limits import Limits
from envgym.options import wrong_option
from envgym.others import Other, check_others, makers
from envgym.policy import Agent
from envgym.provenance import IMAGE_DIGEST, image_digest, told_by
from envgym.registry import find, make, package_of, spec
from envgym.rollout import Rollout
from envgym.run_backend import run_backend, swept
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet

__all__ = ["Plan", "run_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play: `episodes` over the tasks of `split` in turn, `group` of them on each task that is drawn.

    Episode i is of group g = i // `group`, on task g modulo their number; a group of one has no name. The same plan
    gives the same seeds and ids, whatever the concurrency. snapshot_every: see `Rollout`, whose durable ones they
    are; it changes nothing of what is played. others: who plays other actors of the world than the agent.
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
    snapshot_every: int = 0
    group: int = 1
    others: Mapping[str, Other] = field(default_factory=dict)

    def tasks(self) -> TaskSet:
        """The tasks of the split. Raises ValueError when there are none, or the set never ends."""
        tasks = tasks_of(self.env, self.task_options)
        if self.split is None:
            return tasks
        if tasks.infinite:
            raise ValueError(f"--split {self.split}: the tasks of {self.env!r} never end; they are played in order")
        chosen = tasks.split(self.split)
        if not len(chosen):
            known = ", ".join(tasks.splits()) or "none"
            raise ValueError(f"environment {self.env!r} has no tasks of split {self.split!r}; its splits: {known}")
        return chosen

    def check_options(self) -> None:
        """Raise ValueError for an option that environment, task set or agent does not have, or needs."""
        found = spec(self.env)
        check_env_options(self.env, self.env_options)
        for wrong in (
            wrong_option("--task-option", self.task_options, found.tasks),
            wrong_option(
                "--agent-option", self.agent_options, find("agents", self.agent), given={"seed", "tools"}, skip=1
            ),
        ):
            if wrong is not None:
                raise ValueError(wrong)
        check_others(self.others, "--actor")

    def _options(self) -> dict[str, Any]:
        given = {"env": self.env_options, "task": self.task_options, "agent": self.agent_options}
        return {f"{name} options": options for name, options in given.items() if options}

    async def images(self, backend: SandboxBackend | None) -> dict[str, str]:
        """The digest of every image that a task's world stands on, by its name."""
        if backend is None:
            return {}
        tasks = self.tasks()
        drawn = ceil(self.episodes / self.group)
        count = drawn if tasks.infinite else min(drawn, len(tasks))
        names = {image for index in range(count) if (image := _image(tasks[index])) is not None}
        return {name: await image_digest(backend, name) for name in sorted(names)}

    def _id(self, index: int) -> str:
        return f"{self.env}-s{self.seed}-{index:06d}"

    def number_of(self, episode: str) -> int | None:
        """Which episode of this plan, or of a longer one, has this id; None where it is of another."""
        number = episode.rpartition("-")[2]
        return int(number) if number.isdecimal() and self._id(int(number)) == episode else None

    def jobs(
        self, backend: SandboxBackend | None, images: Mapping[str, str] | None = None,
        id_of: Callable[[str], str] = str,
    ) -> Iterator[Job]:  # fmt: skip
        """One job per episode, made when it is drawn.

        images: as of `images`; without it, provenance has none. id_of: the id that an episode has instead.
        """
        self.check_options()
        tasks, factory = self.tasks(), find("agents", self.agent)
        wants_tools = "tools" in inspect.signature(factory).parameters
        count = self.episodes if tasks.infinite else len(tasks)
        if not count:
            raise ValueError(f"environment {self.env!r} has no tasks; what are its --task-option values?")
        played = {"turns": self.limits.turns, **self._options()}
        if self.group > 1:
            played["group"] = self.group
        if self.others:
            played["actors"] = {actor: one.model_dump() for actor, one in self.others.items()}
        provenance: tuple[tuple[str, str], ...] = (
            *(("envgym", version("envgym")), ("environment", self.env), ("agent", self.agent)),
            *((name, json.dumps(value, sort_keys=True)) for name, value in played.items()),
        )
        packages = {"environment": package_of("environments", self.env), "agent": package_of("agents", self.agent)}
        provenance += tuple((f"{of} package", package) for of, package in packages.items() if package is not None)
        provenance += told_by(factory, self.agent_options)
        for actor, one in self.others.items():
            told_of = told_by(find("agents", one.agent), one.options)
            provenance += tuple((f"{actor} {name}", value) for name, value in told_of)

        def job(index: int, task: Task) -> Job:
            seed = int(np.random.SeedSequence((self.seed, index)).generate_state(1, np.uint64)[0] >> 1)

            async def make_env() -> Env:
                return make(self.env, task, backend=backend, **self.env_options)

            def make_agent(env: Env) -> Agent:
                options = {"tools": env.tools, **self.agent_options} if wants_tools else self.agent_options
                made: Agent = factory(env.task, seed=seed, **options)
                return made

            image = _image(task)
            world = {} if image is None else {"image": image}
            if image is not None and images is not None and image in images:
                world[IMAGE_DIGEST] = images[image]
            told = (*provenance, *world.items())
            rollout = Rollout(self.limits, self.snapshot_every, self.snapshot_every > 0, None, told)
            group = f"{self.env}-s{self.seed}-g{index // self.group:06d}" if self.group > 1 else ""
            return Job(
                make_env, make_agent, task.id, seed, id_of(self._id(index)), rollout, group=group,
                others=makers(self.others, seed=seed),
            )  # fmt: skip

        return (job(index, tasks[index // self.group % count]) for index in range(self.episodes))


def _image(task: Task) -> str | None:
    """The image that a task's world stands on; None on the host."""
    return None if task.world is None or task.world.image == "host" else task.world.image


async def run_plan(
    plan: Plan, meter: Meter, out: Path | None = None, *,
    check_images: Callable[[Mapping[str, str]], None] | None = None, id_of: Callable[[str], str] = str,
) -> AsyncGenerator[Episode, None]:  # fmt: skip
    """Play a plan and yield its episodes as they finish; those that a store remembers are not played again.

    When a budget of the meter is spent, what plays is finished and nothing else begins. out: the store, which has
    the durable snapshots of what is unfinished beside it. check_images: is given the digests of the images before
    anything is played, and raises ValueError for one that may not be. id_of: see `Plan.jobs`. Raises Misconfigured
    where an agent does, and ValueError for options that cannot be.
    """
    async with AsyncExitStack() as stack:
        backend = None
        if spec(plan.env).sandbox:
            backend = await stack.enter_async_context(run_backend(plan.sandbox, out, plan.snapshot_every))
        await stack.enter_async_context(swept(backend, out, meter))
        images = await plan.images(backend)
        if check_images is not None:
            check_images(images)
        jobs = meter.within(plan.jobs(backend, images, id_of))
        playing = stream(jobs, concurrency=plan.concurrency, retries=plan.retries, memory=meter)
        async with aclosing(playing):
            async for episode in playing:
                if episode.id not in meter:  # its world failed, and that is how it ended
                    meter.append(episode)
                yield episode
