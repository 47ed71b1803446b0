"""The loop that plays: one episode, a group, or a stream of them, first-ready and without barriers.

This is the only place that touches environment and agent, and the only one that turns the world's faults
into data (`Episode.failure`). A hung or slow world delays only itself. It does not grade, credit or learn.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from envgym.deadlines import Waiting, begin, deadline
from envgym.env import THE_AGENT, Env, Grade, Snapshot, Step, StopReason, answered
from envgym.episode import Episode, ForkPoint, Turn
from envgym.errors import Boundary, EnvgymError, Failure, boundary
from envgym.limits import Limits
from envgym.policy import Agent

__all__ = ["Job", "Origin", "Rollout", "branch", "play", "run_episode", "stream"]

T = TypeVar("T")

_LOG = logging.getLogger("envgym")

_told: WeakKeyDictionary[asyncio.AbstractEventLoop, set[str]] = WeakKeyDictionary()
"""What each event loop's run was already warned of: a close that fails mostly fails in every episode."""

_ACTING, _STEPPING = boundary(Boundary.AGENT, "act"), boundary(Boundary.ENVIRONMENT, "step")
"""Boundaries hold no state: every turn of every episode enters these two."""

_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, NameError, ImportError, NotImplementedError)
"""What a factory raises when the program is wrong: every episode would meet it again."""


@dataclass(slots=True)
class Rollout:
    """How episodes are played, apart from who plays what: limits, snapshots, where turns go as they happen.

    snapshot_every: keep a snapshot before every n-th turn (0: never). Who gets the turn, in its episode or by
        `on_turn`, releases it; what nobody gets (a turn that failed, a try that is played again) is released here.
    on_turn: called with (episode id, turn index, turn) as soon as a turn is complete (a write-ahead hook).
    """

    limits: Limits = field(default_factory=Limits)
    snapshot_every: int = 0
    on_turn: Callable[[str, int, Turn], None] | None = None
    provenance: tuple[tuple[str, str], ...] = ()


class _Play:
    """One episode in progress: what has happened so far, and in which call we are."""

    __slots__ = (
        "agents", "env", "episode_id", "rollout", "root", "started", "tokens", "turns", "unclaimed", "where",
    )  # fmt: skip

    def __init__(self, env: Env, agents: dict[str, Agent], rollout: Rollout, episode_id: str) -> None:
        self.env, self.agents, self.rollout, self.episode_id = env, agents, rollout, episode_id
        self.root = Step()
        self.turns: list[Turn] = []
        self.unclaimed: list[Snapshot] = []
        self.where = "reset"
        self.tokens = 0
        self.started = perf_counter()

    async def run(self, step: Step) -> StopReason:
        """Act and step until something stops the episode."""
        limits, turns = self.rollout.limits, self.turns
        every, on_turn = self.rollout.snapshot_every, self.rollout.on_turn
        while step.stop is None:
            if (stop := self._spent(limits)) is not None:
                return stop
            actor = step.next_actor
            snapshot = await self._snapshot() if every and len(turns) % every == 0 else None
            agent = self._agent(actor)
            # `deadline`, unrolled: two calls per turn, and what never waits must cost next to nothing
            self.where, asked = "act", perf_counter()
            with _ACTING:
                reply = begin(agent.act(step))
                if type(reply) is Waiting:
                    reply = await reply.within(limits.act_s, "act", Boundary.AGENT)
            self.where, said = "step", perf_counter()
            with _STEPPING:
                answer = begin(self.env.step(reply.action))
                if type(answer) is Waiting:
                    answer = await answer.within(limits.step_s, "step", Boundary.ENVIRONMENT)
                step = answered(answer)
            turn = Turn.of(actor, reply, step, snapshot, (said - asked, perf_counter() - said))
            turns.append(turn)
            self.unclaimed.clear()
            if limits.tokens is not None:
                self.tokens += len(turn.prompt_ids) + len(turn.sampled_ids)
            if on_turn is not None:
                on_turn(self.episode_id, len(turns) - 1, turn)
        return step.stop

    def _spent(self, limits: Limits) -> StopReason | None:
        """The bound that is reached, if one is."""
        if len(self.turns) >= limits.turns:
            return StopReason.TURN_LIMIT
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return StopReason.TOKEN_LIMIT
        if limits.episode_s is not None and perf_counter() - self.started >= limits.episode_s:
            return StopReason.TIME_LIMIT
        return None

    def _agent(self, actor: str) -> Agent:
        try:
            return self.agents[actor]
        except KeyError:
            raise ValueError(
                f"the environment asks for actor {actor!r}; agents given: {sorted(self.agents)}"
            ) from None

    async def _snapshot(self) -> Snapshot:
        self.where = "snapshot"
        with boundary(Boundary.ENVIRONMENT, "snapshot"):
            snapshot = await deadline(
                self.env.snapshot(), self.rollout.limits.step_s, "snapshot", Boundary.ENVIRONMENT
            )
        self.unclaimed.append(snapshot)
        return snapshot


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode begins: its id and seed, and for a fork its parent and the step it goes on from.

    `start` begins at a stored snapshot instead of a fresh reset; `step` says that the environment is already
    at that step (a live fork) and must not be reset. `group` is the episode's (see `Episode`).
    """

    episode_id: str
    seed: int
    parent: ForkPoint | None = None
    group: str = ""
    start: Snapshot | None = None
    step: Step | None = None


async def play(env: Env, agents: dict[str, Agent], *, origin: Origin, rollout: Rollout) -> Episode:
    """Play one episode with live parts and return it; never raises for the world's faults. Closes nothing."""
    state = _Play(env, agents, rollout, origin.episode_id)
    step, stop, failure = origin.step, None, None
    try:
        if step is None:
            with boundary(Boundary.ENVIRONMENT, "reset"):
                reset = env.reset(seed=origin.seed, start=origin.start)
                step = answered(await deadline(reset, rollout.limits.reset_s, "reset", Boundary.ENVIRONMENT))
        state.root = step
        stop = await state.run(step)
    except EnvgymError as error:
        failure = Failure.of(error, where=state.where, turn=len(state.turns))
    except BaseException:
        if rollout.on_turn is None:  # no episode comes of it, and nobody was told of its turns
            state.unclaimed += _snapshots(state.turns)
        raise
    finally:
        await _release(env, state.unclaimed, rollout.limits)
    turns = tuple(state.turns)
    return Episode(
        id=origin.episode_id,
        task_id=env.task.id,
        root=state.root,
        turns=turns,
        seed=origin.seed,
        stop=stop,
        failure=failure,
        parent=origin.parent,
        group=origin.group,
        grades=_own_grade(env, turns),
        provenance=rollout.provenance,
        wall_s=perf_counter() - state.started,
    )


async def branch(
    env: Env, agent: Agent, *, at: Origin, seeds: Sequence[int], rollout: Rollout
) -> tuple[Episode, ...]:
    """Play one continuation per seed from the state `env` and `agent` are in now; both stay as they are.

    `at.step` is the step they are at and `at.parent` the fork point; the continuations' ids are
    ``<at.episode_id>/<n>``. Environment and agent are forked together, so the continuations share the whole
    history and differ only in what is drawn from their seeds. A fork that fails is an episode with that failure
    (where: "fork"); `Limits.reset_s` bounds it, as it bounds a start from a snapshot.
    """
    if at.step is None or at.parent is None:
        raise ValueError("branch needs at.step (where the environment is now) and at.parent (the fork point)")

    async def one(index: int, seed: int) -> Episode:
        origin, started = replace(at, episode_id=f"{at.episode_id}/{index}", seed=seed), perf_counter()
        forked_env: Env | None = None
        forked_agent: Agent | None = None
        try:
            try:
                with boundary(Boundary.ENVIRONMENT, "fork"):
                    fork = env.fork()
                    forked_env = await deadline(fork, rollout.limits.reset_s, "fork", Boundary.ENVIRONMENT)
                with boundary(Boundary.AGENT, "fork"):
                    forked_agent = agent.fork(seed=seed)
            except EnvgymError as error:
                return _unplayed(env.task.id, origin, rollout, Failure.of(error, where="fork", turn=0), started)
            return await play(forked_env, {forked_agent.name: forked_agent}, origin=origin, rollout=rollout)
        finally:
            await _close(forked_env, forked_agent, rollout.limits.close_s)

    playing = [asyncio.create_task(one(index, seed)) for index, seed in enumerate(seeds)]
    try:
        return tuple(await asyncio.gather(*playing))
    finally:
        await _end(playing)


def _unplayed(task_id: str, origin: Origin, rollout: Rollout, failure: Failure, started: float) -> Episode:
    """The episode of a world or an agent that could not be had."""
    return Episode(
        id=origin.episode_id,
        task_id=task_id,
        root=origin.step or Step(),
        turns=(),
        seed=origin.seed,
        failure=failure,
        parent=origin.parent,
        group=origin.group,
        provenance=rollout.provenance,
        wall_s=perf_counter() - started,
    )


def _own_grade(env: Env, turns: tuple[Turn, ...]) -> tuple[Grade, ...]:
    """The verdict the environment itself gave with its terminal step, as a grade record."""
    grader = getattr(env, "grader", None)
    if grader is None or not turns or not turns[-1].step.terminated or not turns[-1].step.channels:
        return ()
    return (Grade(grader=grader.name, version=grader.version, channels=dict(turns[-1].step.channels)),)


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to be played: how to make its environment and agents, and its seeds.

    Both factories are called when the job starts, not before. What they raise is recorded on the episode (where:
    "make"), except what says that the program is wrong (TypeError, ValueError, LookupError, AttributeError,
    NameError, ImportError, NotImplementedError): that ends the run.
    """

    make_env: Callable[[], Awaitable[Env]]
    make_agent: Callable[[Env], Agent]
    task_id: str
    seed: int
    episode_id: str
    rollout: Rollout
    actor: str = THE_AGENT
    start: Snapshot | None = None
    group: str = ""


async def run_episode(job: Job) -> Episode:
    """Make, play and close one episode; what it held is released whatever happens.

    A close that fails or hangs is a warning in the log "envgym" only: the episode stands.
    """
    return await _attempt(job, last=True)


async def _attempt(job: Job, *, last: bool) -> Episode:
    """One try of a job; the snapshots of a failed one that is not the last are released."""
    limits, started = job.rollout.limits, perf_counter()
    origin = Origin(job.episode_id, job.seed, start=job.start, group=job.group)
    env: Env | None = None
    agent: Agent | None = None
    try:
        try:
            what = f"making the environment of task {job.task_id!r}"
            with boundary(Boundary.INFRASTRUCTURE, what, passing=_MISTAKES):
                made = _as_coroutine(job.make_env())
                env = await deadline(made, limits.reset_s, "make", Boundary.INFRASTRUCTURE)
            with boundary(Boundary.AGENT, f"making the agent of task {job.task_id!r}", passing=_MISTAKES):
                agent = job.make_agent(env)
        except EnvgymError as error:
            return _unplayed(job.task_id, origin, job.rollout, Failure.of(error, where="make", turn=0), started)
        episode = await play(env, {job.actor: agent}, origin=origin, rollout=job.rollout)
        if episode.failure is not None and not last:
            await _release(env, _snapshots(episode.turns), limits)
        return episode
    finally:
        await _close(env, agent, limits.close_s)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _close(env: Env | None, agent: Agent | None, limit_s: float) -> None:
    """Close both; one failing close does not skip the other."""
    for closing in (agent, env):
        if closing is not None:
            await _clean_up(closing.close, limit_s, "close", f"closing {type(closing).__name__}")


def _snapshots(turns: Iterable[Turn]) -> list[Snapshot]:
    return [turn.snapshot for turn in turns if turn.snapshot is not None]


async def _release(env: Env, snapshots: Iterable[Snapshot], limits: Limits) -> None:
    for one in snapshots:
        doing = f"releasing a snapshot of {type(env).__name__}"
        await _clean_up(partial(env.release, one), limits.close_s, "release", doing)


async def _clean_up(call: Callable[[], Coroutine[Any, Any, None]], limit_s: float, what: str, doing: str) -> None:
    """Call within a deadline, which bounds one that hangs.

    A failure is a warning in the log "envgym", one line and once per run however often it happens; each one and
    its traceback are there at level DEBUG.
    """
    try:
        with boundary(Boundary.INFRASTRUCTURE, what):
            await deadline(call(), limit_s, what, Boundary.INFRASTRUCTURE)
    except EnvgymError as error:
        message = " ".join(f"{doing} failed: {error}".split())
        told = _told.setdefault(asyncio.get_running_loop(), set())
        if message not in told:
            told.add(message)
            _LOG.warning("%s (the episode stands; said once per run)", message)
        _LOG.debug("%s", message, exc_info=error)


async def _end(tasks: Iterable[asyncio.Task[Episode]]) -> None:
    """Cancel what still runs and wait for its clean-up."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def stream(jobs: Iterable[Job], *, concurrency: int, retries: int = 0) -> AsyncIterator[Episode]:
    """Play jobs with at most `concurrency` at a time and yield episodes as they finish.

    Jobs are drawn lazily. An episode whose world failed is played again afresh up to `retries` times (a new
    environment, the same seed); the last try is yielded, failed or not. Leaving the iterator cancels what is
    still running and waits for its clean-up.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
    source = iter(jobs)
    running: set[asyncio.Task[Episode]] = set()
    done: set[asyncio.Task[Episode]] = set()
    try:
        exhausted = False
        while True:
            while not exhausted and len(running) < concurrency:
                job = next(source, None)
                if job is None:
                    exhausted = True
                else:
                    running.add(asyncio.create_task(_run_with_retries(job, retries)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        await _end(running | done)  # several may have ended by the same mistake, and one of them is raised


async def _run_with_retries(job: Job, retries: int) -> Episode:
    episode = await _attempt(job, last=retries < 1)
    while episode.failure is not None and retries > 0:
        retries -= 1
        episode = await _attempt(job, last=retries < 1)
    return episode
