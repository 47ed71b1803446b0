"""Where the learner's episodes come from: tasks in a seeded order, played by name-made environments.

An `Arena` knows everything about playing except who plays. Episodes come back sorted by id, so nothing that
follows depends on which one happened to finish first.
"""

import inspect
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from envgym.env import Env
from envgym.episode import Episode, Group
from envgym.errors import InfrastructureFailure
from envgym.jobs import Job, Memory, stream
from envgym.limits import Limits
from envgym.others import Other, makers
from envgym.policy import Agent, AgentFactory
from envgym.registry import make
from envgym.rollout import Rollout
from envgym.sandbox import SandboxBackend
from envgym.task import Task
from envgym_agents.learn.config import TrainConfig

__all__ = ["Arena", "Scripted", "TaskOrder", "arena_of", "seed_of"]

_LOG = logging.getLogger("envgym")


def seed_of(*parts: int) -> int:
    """A seed in [0, 2**63) that is a function of the parts, whatever their order of use."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


@dataclass(slots=True)
class TaskOrder:
    """Endless sampling without replacement: pass after pass over the tasks, each in its own seeded order.

    `cursor` counts the draws; it is the whole state.
    """

    tasks: Sequence[Task]
    seed: int
    cursor: int = 0

    def __post_init__(self) -> None:
        if not len(self.tasks):
            raise ValueError("there are no tasks to draw from; check the split and the task options")

    def draw(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        drawn = [self.at(position) for position in range(self.cursor, self.cursor + count)]
        self.cursor += count
        return drawn

    def saw(self, groups: Sequence[Group]) -> dict[str, float]:
        """What came of the tasks changes nothing here."""
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing but the cursor."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """There is nothing to take up."""

    def at(self, position: int) -> Task:
        """The task of that draw, wherever the cursor is."""
        lap, index = divmod(position, len(self.tasks))
        order = np.random.default_rng([self.seed, 3, lap]).permutation(len(self.tasks))
        return self.tasks[int(order[index])]


@dataclass(frozen=True, slots=True)
class Scripted:
    """A registered agent as a factory; one that takes `tools` is given the environment's."""

    make: Callable[..., Agent]
    options: dict[str, Any]

    def __call__(self, task: Task, *, seed: int) -> Agent:
        """An agent for a task."""
        return self.make(task, seed=seed, **self.options)

    def for_env(self, env: Env, *, seed: int) -> Agent:
        """An agent for an environment's task."""
        wants = "tools" in inspect.signature(self.make).parameters
        return self.make(env.task, seed=seed, **({"tools": env.tools} if wants else {}), **self.options)


def _agent_for(make_agent: AgentFactory, env: Env, seed: int) -> Agent:
    """A factory that wants to know the environment's tools has `for_env`; any other gets the task."""
    for_env = getattr(make_agent, "for_env", None)
    agent: Agent = make_agent(env.task, seed=seed) if for_env is None else for_env(env, seed=seed)
    return agent


@dataclass(frozen=True, slots=True)
class Arena:
    """How episodes are played: the environment's name and options, its sandbox backend, limits, concurrency.

    memory: where episodes are recorded as they happen, and found when a run is resumed; None: nowhere.
    retries: how often an episode whose world failed is played again afresh. max_failures: the share of episodes
    that may fail for good in one `play`; more is no accident of single worlds, and nothing can be learned from the
    rest. elsewhere: who plays in the place of this process; gives of a task and an agent's factory what a job of
    them is played by (`Job.elsewhere`). others: who plays other actors of the world, whoever acts.
    """

    env: str
    rollout: Rollout
    backend: SandboxBackend | None = None
    options: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 64
    retries: int = 1
    max_failures: float = 1.0
    memory: Memory | None = None
    elsewhere: Callable[[Task, AgentFactory], Callable[[Job], Awaitable[Episode]]] | None = None
    others: Mapping[str, Other] = field(default_factory=dict)

    def by(self, who: str, *, weights: str = "") -> "Arena":
        """The same arena for episodes that `who` plays, with weights of this digest: their provenance says so."""
        versions = [(name, version(name)) for name in ("envgym", "torch", "transformers")]
        told = (("weights", weights),) if weights else ()
        given = {actor: one.model_dump() for actor, one in self.others.items()}
        others = (("actors", json.dumps(given, sort_keys=True)),) if given else ()
        provenance = (*versions, ("environment", self.env), ("agent", who), *others, *told)
        return replace(self, rollout=replace(self.rollout, provenance=provenance))

    def noted(self, *lines: tuple[str, str]) -> "Arena":
        """The same arena for episodes whose provenance has these lines, too."""
        provenance = (*self.rollout.provenance, *lines)
        return replace(self, rollout=replace(self.rollout, provenance=provenance))

    def make(self, task: Task) -> Env:
        """A fresh environment of `task`; the caller closes it."""
        return make(self.env, task, backend=self.backend, **self.options)

    def job(self, task: Task, make_agent: AgentFactory, *, seed: int, episode_id: str, group: str = "") -> Job:
        """One episode of `task`; environment and agent draw from `seed` only."""

        async def make_env() -> Env:
            return self.make(task)

        return Job(
            make_env=make_env,
            make_agent=lambda env: _agent_for(make_agent, env, seed),
            task_id=task.id,
            seed=seed,
            episode_id=episode_id,
            rollout=self.rollout,
            group=group,
            elsewhere=None if self.elsewhere is None else self.elsewhere(task, make_agent),
            others=makers(self.others, seed=seed),
        )

    async def play(
        self, jobs: Iterable[Job], on_episode: Callable[[Episode], None] = lambda episode: None
    ) -> list[Episode]:
        """Play all jobs first-ready and return their episodes sorted by id.

        Raises InfrastructureFailure when more than the share `max_failures` of them failed.
        """
        episodes = []
        async for episode in stream(jobs, concurrency=self.concurrency, retries=self.retries, memory=self.memory):
            episodes.append(episode)
            on_episode(episode)
        failures = [episode.failure for episode in episodes if episode.failure is not None]
        if len(failures) > self.max_failures * len(episodes):
            kind, count = Counter((f.kind, f.where, f.message) for f in failures).most_common(1)[0]
            raise InfrastructureFailure(
                f"{len(failures)} of {len(episodes)} episodes failed, more than max_failures allows "
                f"({self.max_failures:g} of all); {count} of them in {kind[1]}: {kind[0]}: {kind[2]}"
            )
        acted = {turn.actor for episode in episodes for turn in episode.turns}
        for actor in sorted(self.others.keys() - acted) if acted else ():
            _LOG.warning("model.others.%s: none of %d episodes asked for that actor", actor, len(episodes))
        for episode in episodes:
            self.remember_failed(episode)  # few enough to count as how they ended
        return sorted(episodes, key=lambda episode: episode.id)

    def remember_failed(self, episode: Episode) -> None:
        """A failed episode counts as how it ended, also where an earlier process stored that already."""
        if self.memory is not None and episode.failure is not None and episode.id not in self.memory:
            self.memory.append(episode)

    async def attempts(
        self, tasks: Sequence[Task], make_agent: AgentFactory, *, seed: int, label: str, attempts: int = 1,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> list[Episode]:  # fmt: skip
        """Play every task `attempts` times; the same seed and attempt give the same episode seeds for any agent."""
        jobs = (
            self.job(
                task,
                make_agent,
                seed=seed_of(seed, index, attempt),
                episode_id=f"{label}-{index:05d}-{attempt}",
            )
            for index, task in enumerate(tasks)
            for attempt in range(attempts)
        )
        return await self.play(jobs, on_episode)


def arena_of(config: TrainConfig, backend: SandboxBackend | None) -> Arena:
    """Where a run of this configuration plays: without a memory, and here."""
    return Arena(
        env=config.env,
        rollout=Rollout(
            limits=Limits(turns=config.turns, step_s=config.step_s),
            snapshot_every=config.snapshot_every,
            durable=config.snapshot_every > 0,
        ),
        backend=backend,
        options=config.env_options,
        concurrency=config.concurrency,
        retries=config.reinforce.loop.retries,
        max_failures=config.max_failures,
        others=config.model.others,
    )
