"""Rollout workers and samplers on a Ray cluster, as a training run sees them: episodes go out, weights follow.

The driver keeps what must be known once: which episodes there are (its store), and whose turn it is. An episode
goes to the least busy worker and comes back whole; one that is lost with its worker, its sampler or their host goes
to another, and begins again. So each is counted once, however many hosts have tried it. Ray itself restarts and
retries nothing: that would be a second bookkeeping.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from envgym.episode import Episode
from envgym.errors import Failure, HostLost, InfrastructureFailure
from envgym.jobs import Job, origin_of
from envgym.policy import AgentFactory
from envgym.rollout import unplayed
from envgym.task import Task
from envgym_agents.chat import LMAgents
from envgym_agents.learn.adapters import adapted, merged_weights
from envgym_agents.learn.cluster.actors import Request, RolloutWorker, SamplerHost, Shipped, Speaking
from envgym_agents.learn.cluster.begun import Member, begun, ended, raised
from envgym_agents.learn.cluster.connect import living
from envgym_agents.learn.cluster.members import Members
from envgym_agents.learn.cluster.placement import SAMPLER, WORKER, Need, Placed, place
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.student import Student

__all__ = ["Places"]

_LOG = logging.getLogger("envgym")

_TRIES = 3
"""Hosts that an episode is given before it counts as failed: one that kills its workers must not kill them all."""

_ROOM_S, _PAUSE_S = 30.0, 0.5
"""How long what a lost actor had may take to be free again, and between two looks."""

_CLOSE_S = 20.0


@dataclass(slots=True)
class _Model:
    """What every actor has, or is given when it is begun: a model, and the weights of a version in Ray's store."""

    student: Student
    shipped: Any
    weights: Any = None
    version: int = 0


@dataclass(slots=True)
class Places:
    """An async context manager of all that plays and samples (`cluster.workers` of at least 1).

    placed: where each is to be. Raises HostLost where one does not begin there.
    """

    config: TrainConfig
    ray: Any
    placed: Sequence[Placed]
    workers: Members = field(init=False)
    samplers: Members = field(init=False)
    _model: _Model | None = field(init=False, default=None)
    _left: int = field(init=False)
    _order: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        most, cluster = self.config.concurrency, self.config.cluster
        self.workers = Members(WORKER, each=ceil(most / max(cluster.workers, 1)))
        self.samplers = Members(SAMPLER, each=most)
        self._left = cluster.restarts

    async def __aenter__(self) -> Self:
        for member in await asyncio.gather(*(self._begin(one) for one in self.placed)):
            self._of(member.placed.need).add(member)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = (self._answer(one.actor.close.remote(), _CLOSE_S) for one in (*self.workers, *self.samplers))
        for failed in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failed, Exception):
                _LOG.warning("a worker or sampler did not close: %s", " ".join(str(failed).split()))

    # -- episodes ----------------------------------------------------------------------------------------------

    def elsewhere(self, task: Task, make_agent: AgentFactory) -> Callable[[Job], Awaitable[Episode]]:
        """By what a job of this task and agent is played (`Job.elsewhere`)."""
        agent: Speaking | AgentFactory = make_agent
        if isinstance(make_agent, LMAgents):
            agent = Speaking(make_agent.format, make_agent.sampling)

        async def play(job: Job) -> Episode:
            return await self._play(task, agent, job)

        return play

    async def _play(self, task: Task, agent: Speaking | AgentFactory, job: Job) -> Episode:
        stretch = job.stretch.tokens if job.stretch is not None else 0
        rollout = replace(job.rollout, record=None)
        asked = Request(task, agent, job.seed, job.episode_id, job.group, rollout, stretch, job.branch)
        started, gone = perf_counter(), ""
        for _ in range(_TRIES):
            try:
                return await self._try(asked)
            except HostLost as error:
                gone = str(error)
                _LOG.warning("episode %s begins again: %s", asked.episode_id, gone)
        failure = Failure.of(HostLost(f"{_TRIES} hosts in a row were lost with it; {gone}"), where="play", turn=0)
        return unplayed(task.id, origin_of(job), rollout, failure, started)

    async def _try(self, asked: Request) -> Episode:
        """Played once, by whoever has room. Raises HostLost when its worker or its sampler is gone."""
        speaks = isinstance(asked.agent, Speaking) and self.config.cluster.samplers > 0
        sampler = await self.samplers.take() if speaks else None
        try:
            worker = await self.workers.take()
            try:
                episode = await self._asked(worker, asked, sampler)
            finally:
                self.workers.let_go(worker)
        finally:
            if sampler is not None:
                self.samplers.let_go(sampler)
        if sampler is not None and episode.failure is not None and episode.failure.kind == HostLost.__name__:
            try:
                await self._answer(sampler.actor.ready.remote(), _CLOSE_S)
            except HostLost as error:
                self._lose(sampler, str(error))
            raise HostLost(f"{sampler.placed.name} did not answer")
        return episode

    async def _asked(self, worker: Member, asked: Request, sampler: Member | None) -> Episode:
        answer = worker.actor.play.remote(asked, None if sampler is None else sampler.actor)
        try:
            episode: Episode = await self._answer(answer)
        except HostLost as error:
            self._lose(worker, str(error))
            raise HostLost(f"{worker.placed.name} is gone: {error}") from None
        except asyncio.CancelledError:
            self.ray.cancel(answer)
            raise
        return episode

    # -- weights -----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Of the weights that are sampled from."""
        return 0 if self._model is None else self._model.version

    async def begin(self, student: Student) -> None:
        """Every worker and sampler has this student's model; what the student trains reaches them by `update`."""
        shipped = Shipped.of(student.model, student.tokenizer, context=student.policy.max_length)
        self._model = _Model(student, self.ray.put(shipped))
        await self._tell("load")

    async def update(
        self, weights: Mapping[str, Tensor] | None = None, *, version: int | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> int:  # fmt: skip
        """The student's weights as they are now, everywhere, under one version more or that version; returns it.

        weights: of the same model, which is the learner's own here: nothing is copied from them.
        """
        if self._model is None:
            raise ValueError("no student has begun here: begin() comes before update()")
        if masks is not None:
            raise ValueError("samplers of a cluster have no masking policy, so there is none to be renewed")
        self._model.version = self._model.version + 1 if version is None else version
        await self._tell("update")
        return self._model.version

    async def _tell(self, what: str) -> None:
        """Send the present weights to everybody, and wait until they are sampled from. Who is gone is lost."""
        model = self._model
        assert model is not None
        async with self._order:
            own = model.student.model
            found = merged_weights(own) if adapted(own) else own.state_dict()
            on_host = {name: weight.detach().cpu() for name, weight in found.items()}
            model.weights = await asyncio.to_thread(self.ray.put, on_host)
            everybody = (*self.workers, *self.samplers)
            told = await asyncio.gather(*(self._give(one, what) for one in everybody), return_exceptions=True)
        for member, failed in zip(everybody, told, strict=True):
            if isinstance(failed, HostLost):
                self._lose(member, str(failed))
            elif failed is not None:
                raise failed

    async def _give(self, member: Member, what: str) -> None:
        model = self._model
        if model is None:
            return
        samples = member.placed.need.kind == SAMPLER or not self.config.cluster.samplers
        weights = model.weights if samples else None
        parts = (weights, model.version) if what == "update" else (model.shipped, weights, model.version)
        await self._answer(getattr(member.actor, what).remote(*parts), self.config.cluster.start_s)

    # -- who is there ------------------------------------------------------------------------------------------

    def _of(self, need: Need) -> Members:
        return self.workers if need.kind == WORKER else self.samplers

    async def _begin(self, placed: Placed) -> Member:
        """An actor on its node, ready. Raises HostLost when it is not within the time."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        made: type[Any] = RolloutWorker if placed.need.kind == WORKER else SamplerHost
        on = On(placed.node.id, soft=False)
        member = begun(self.ray, made, placed, self.config, at_once=10_000, where=on)
        try:
            await self._answer(member.actor.ready.remote(), self.config.cluster.start_s)
        except HostLost as error:
            ended(self.ray, member)
            raise HostLost(f"{placed.name} did not begin: {error}") from None
        return member

    def _lose(self, member: Member, why: str) -> None:
        """Take one out, once, and begin another in its place where that may be."""
        members = self._of(member.placed.need)
        if member not in members:
            return
        _LOG.warning("%s is lost: %s", member.placed.name, why)
        members.drop(member, why)
        ended(self.ray, member)
        if self._left:
            self._left -= 1
            members.awaited(+1)
            task = asyncio.create_task(self._replace(member.placed.need, members))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _replace(self, need: Need, members: Members) -> None:
        """Another actor in the place of a lost one, with the present weights, as soon as a node has room."""
        try:
            until = perf_counter() + _ROOM_S
            while True:
                try:
                    placed = self._room(need, members)
                    member = await self._begin(placed)
                    break
                except (ValueError, HostLost) as error:  # no room yet; or a node that was not yet known to be gone
                    if perf_counter() > until:
                        members.lost.append(f"nobody in the place of {need.name}: {error}")
                        _LOG.warning("nobody in the place of %s: %s", need.name, error)
                        return
                await asyncio.sleep(_PAUSE_S)
            async with self._order:  # between two versions
                await self._give(member, "load")
                members.add(member)
            _LOG.warning("%s is on %s now", need.name, placed.node.address)
        except InfrastructureFailure as error:
            members.lost.append(f"in the place of {need.name}: {error}")
            _LOG.warning("nobody in the place of %s: %s", need.name, error)
        finally:
            members.awaited(-1)

    def _room(self, need: Need, members: Members) -> Placed:
        taken: dict[str, int] = {}
        for member in members:
            taken[member.placed.node.id] = taken.get(member.placed.node.id, 0) + 1
        (placed,) = place([need], living(self.ray), self.config.cluster.spread, taken=taken)
        return placed

    async def _answer(self, reference: Any, within_s: float | None = None) -> Any:
        """What an actor returned. Raises what it raised; HostLost when it is gone or does not answer in time."""
        try:
            async with asyncio.timeout(within_s):
                return await reference
        except self.ray.exceptions.RayError as error:
            raise raised(self.ray, error) from error
        except TimeoutError as error:
            raise HostLost(f"no answer within {within_s:g} s") from error
