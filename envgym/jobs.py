"""Episodes to be played, many at a time: first-ready, without barriers, each once however often a run is killed.

A `Job` says how an episode is made; `rollout` plays it. What happens can be recorded in a `Memory`, and what was
recorded by an earlier process is gone on with.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

from envgym.cast import Cast
from envgym.clean_up import close_all, end_all, release_all, snapshots_of
from envgym.deadlines import Waiting, begin
from envgym.env import THE_AGENT, Env, Snapshot, StopReason
from envgym.episode import Began, Episode, Unfinished
from envgym.errors import Boundary, EnvgymError, Failure, Overloaded, PoolFull, ReplayDiverged, boundary
from envgym.frozen import quick
from envgym.holding import let_go
from envgym.policy import Agent
from envgym.regain import regain
from envgym.rollout import Origin, Recorder, Rollout, play, took_s, unplayed
from envgym.stems import Branch
from envgym.window import Pass, Window

__all__ = ["Job", "Memory", "Stretch", "origin_of", "run_episode", "stream"]

T = TypeVar("T")

_LOG = logging.getLogger("envgym")

_MISTAKES = (TypeError, ValueError, LookupError, AttributeError, NameError, ImportError, NotImplementedError)
"""What a factory raises when the program is wrong: every episode would meet it again."""


_PUSHED_BACK = frozenset({Overloaded.__name__, PoolFull.__name__})
"""Kinds of failures that say that there was no room, and nothing of the episode."""


class Memory(Recorder, Protocol):
    """A recorder that knows what it was told, also by an earlier process; `StoreWriter` is one."""

    @property
    def unfinished(self) -> Mapping[str, Unfinished]:
        """Episodes that began and did not end."""
        ...

    def __contains__(self, episode: str) -> bool:
        """Whether an episode ended."""
        ...

    def __getitem__(self, episode: str) -> Episode:
        """One that did."""
        ...

    def append(self, episode: Episode) -> None:
        """An episode has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """A partial rollout: after every `tokens` tokens of its context an episode stands still and `goes_on` is asked.

    It is given the episode as far as it has come (stop TOKEN_LIMIT; see `envgym.buffer.Partial`), whose world and
    agent are alive. False ends it there.
    """

    tokens: int
    goes_on: Callable[[Episode], Awaitable[bool]]

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"Stretch.tokens is {self.tokens}; it must be at least 1")


@quick
@dataclass(frozen=True, slots=True)
class Job:
    """One episode to be played: how to make its environment and agents, and its seeds.

    The agent plays `actor`; where the world asks for others, they are forks of it (see `envgym.cast`), but for
    those that have an agent of their own in `others`: what those say is stored as words and never trains.

    All factories are called when the job starts, not before. What they raise is recorded on the episode (where:
    "make"), except what says that the program is wrong (TypeError, ValueError, LookupError, AttributeError,
    NameError, ImportError, NotImplementedError): that ends the run.

    branch: where a continuation begins, in the place of a reset: in a fork that was left there, or, made by the
    same factories as its parent, in a world that is brought there. An unfinished one begins again. then: the jobs
    that follow from the episode, which may be played as soon as it has ended.

    elsewhere: plays it, once, in another process, in the place of the factories. Its turns are recorded when it has
    ended, and what is recorded of an earlier beginning is not gone on with: it begins again.
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
    stretch: Stretch | None = None
    branch: Branch | None = None
    then: "Callable[[Episode], Sequence[Job]] | None" = None
    elsewhere: "Callable[[Job], Awaitable[Episode]] | None" = None
    others: Mapping[str, Callable[[Env], Agent]] = field(default_factory=dict)


async def run_episode(job: Job) -> Episode:
    """Make, play and close one episode; what it held is released whatever happens.

    A close that fails or hangs is a warning in the log "envgym" only: the episode stands.
    """
    return await _attempt(job, last=True)


async def _attempt(
    job: Job, *, last: bool, found: Unfinished | None = None, memory: Memory | None = None
) -> Episode:
    """One try of a job; the snapshots of a failed one that is not the last are released.

    found: what was recorded of it before. memory: is told at once when it ended well; only then is let go what it
    would have gone on from. Raises ReplayDiverged where it cannot go on from there.
    """
    if job.elsewhere is not None:
        episode = await job.elsewhere(job)
        if memory is not None and episode.failure is None:
            memory.append(episode)
        return episode
    limits, started = job.rollout.limits, perf_counter()
    origin, where = origin_of(job), "make" if job.branch is None else "fork"
    env: Env | None = None
    cast: Cast | None = None
    try:
        try:
            env, cast = await _made(job)
            if found is not None:
                where = "regain"
                step = await regain(env, cast, found, limits, start=job.start, record=job.rollout.record)
                origin = replace(origin, step=step)
        except EnvgymError as error:  # what was recorded before stays: it may go on another time
            if found is not None and isinstance(error, ReplayDiverged):
                raise
            known: dict[str, Any] = {}
            if found is not None:
                known = {"root": found.began.root, "turns": tuple(found.turns), "wall_s": took_s(found)}
            failure = Failure.of(error, where=where, turn=len(known.get("turns", ())))
            return replace(unplayed(job.task_id, origin, job.rollout, failure, started), **known)
        episode = await _played(job, env, cast, origin, found)
        if memory is not None and episode.failure is None:
            memory.append(episode)
            if job.rollout.durable:
                await let_go(env, episode.turns, limits)
        forgotten = job.rollout.record is None and not _pushed_back(episode)  # else it may begin at one of them
        if episode.failure is not None and not last and forgotten:
            await release_all(env, snapshots_of(episode.turns), limits)
        return episode
    finally:
        await close_all(env, () if cast is None else cast.everyone, limits.close_s)


def origin_of(job: Job) -> Origin:
    """Where its episode comes from: of a continuation its parent, and what the world had said there."""
    origin = Origin(job.episode_id, job.seed, start=job.start, group=job.group)
    return origin if job.branch is None else replace(origin, parent=job.branch.at, step=job.branch.step)


async def _made(job: Job) -> tuple[Env, Cast]:
    """The world and the actors of a job, a continuation's where it begins; both are closed where one fails."""
    limits, branch = job.rollout.limits, job.branch
    if branch is not None and (standing := await branch.stems.fork(branch.at, job.seed)) is not None:
        return standing
    try:
        env = begin(_as_coroutine(job.make_env()))
        if type(env) is Waiting:
            env = await env.within(limits.reset_s, "make", Boundary.INFRASTRUCTURE)
    except BaseException as error:
        _blame(Boundary.INFRASTRUCTURE, "environment", job, error)
        raise
    cast: Cast | None = None
    try:
        try:
            seed = job.seed if branch is None else branch.before.began.seed
            cast = Cast(job.actor, job.make_agent(env), seed=seed)
            for actor, make in job.others.items():
                cast.give(actor, make(env))
        except BaseException as error:
            _blame(Boundary.AGENT, "agent", job, error)
            raise
        if branch is not None:
            cast = await branch.regain(env, cast, seed=job.seed, limits=limits, start=job.start)
    except BaseException:
        await close_all(env, () if cast is None else cast.everyone, limits.close_s)
        raise
    return env, cast


def _blame(party: Boundary, what: str, job: Job, error: BaseException) -> None:
    """Raise what making a part of a job raised as its party's fault; what says that the program is wrong passes."""
    faults = boundary(party, f"making the {what} of task {job.task_id!r}", passing=_MISTAKES)
    faults.__exit__(type(error), error, error.__traceback__)


async def _played(job: Job, env: Env, cast: Cast, origin: Origin, found: Unfinished | None) -> Episode:
    """Play to the end; of the forks that were left on the way those stay that will be continued."""
    playing = play if job.stretch is None else partial(_stretched, job.stretch)
    episode = await playing(env, cast, origin=origin, rollout=job.rollout, found=found)
    if job.rollout.stems is not None:
        await job.rollout.stems.end(episode)
    return episode


async def _stretched(
    stretch: Stretch, env: Env, cast: Cast, *, origin: Origin, rollout: Rollout, found: Unfinished | None
) -> Episode:
    """Play from stretch to stretch; the record is of one episode that was never cut."""
    limits = rollout.limits
    while True:
        most = stretch.tokens + (0 if found is None else _tokens(found))
        if limits.tokens is not None and limits.tokens <= most:
            return await play(env, cast, origin=origin, rollout=rollout, found=found)
        until = replace(rollout, limits=limits.model_copy(update={"tokens": most}))
        episode = await play(env, cast, origin=origin, rollout=until, found=found)
        if episode.stop is not StopReason.TOKEN_LIMIT or not await stretch.goes_on(episode):
            return episode
        began = Began(episode.id, episode.task_id, episode.root, episode.seed, group=origin.group)
        found, origin = Unfinished(began, list(episode.turns)), replace(origin, step=episode.turns[-1].step)


def _tokens(found: Unfinished) -> int:
    return sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in found.turns)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def stream(
    jobs: Iterable[Job], *, concurrency: int, retries: int = 0, memory: Memory | None = None,
    patience_s: float = 600.0,
) -> AsyncGenerator[Episode, None]:  # fmt: skip
    """Play jobs with at most `concurrency` at a time and yield episodes as they finish.

    memory: where all that happens is recorded, and what an earlier process recorded is found: an episode that has
    ended there is yielded as it is, one that is unfinished goes on where it stood (checked against the record;
    where the world or the agent does not repeat itself it begins again), so that each job is played once,
    whenever the process was killed. An episode whose world failed is left unfinished there, to be gone on with
    by a later call; who wants it as it is appends it. Raises ValueError when the memory holds another episode of
    a job's id.

    Jobs are drawn lazily; those that follow from an episode (`Job.then`) come before others. An episode whose world
    failed is tried again up to `retries` times in a new environment with the same seed: afresh, or with a memory
    from where it stood. The last try is yielded, failed or not.
    Where sandboxes or a policy's server push back (PoolFull, Overloaded), fewer are played at a time (see
    `envgym.window`) and the episode goes on later, or begins again where nothing remembers it; it fails when
    nothing else plays and nothing went well for `patience_s`. Leaving the iterator cancels what is still running
    and waits for its clean-up.
    """
    window = Window(concurrency)

    def again(episode: Episode, others: int) -> bool:
        kept = memory is not None or not snapshots_of(episode.turns)  # which would be lost with the try
        return kept and (others > 0 or window.refused_s < patience_s)

    one = partial(_run_with_retries, retries) if memory is None else partial(_remembered, retries, memory)
    playing = _Playing(jobs, window, one, again)
    try:
        while await playing.more():
            while (episode := playing.ended()) is not None:
                yield episode
    finally:
        await end_all(playing.tasks)  # several may have ended by the same mistake, and one of them is raised


class _Playing:
    """The jobs of one `stream`: those that wait for room, and a task for each that is played."""

    __slots__ = ("_again", "_done", "_exhausted", "_later", "_one", "_running", "_some", "_source", "_window")

    def __init__(
        self, jobs: Iterable[Job], window: Window, one: Callable[[Job], Coroutine[None, None, Episode]],
        again: Callable[[Episode, int], bool],
    ) -> None:  # fmt: skip
        self._source, self._window, self._one, self._again = iter(jobs), window, one, again
        self._exhausted = False
        self._later: deque[Job] = deque()
        self._running: dict[asyncio.Task[Episode], tuple[Job, Pass]] = {}
        self._done: deque[asyncio.Task[Episode]] = deque()  # in the order in which they ended
        self._some = asyncio.Event()

    @property
    def tasks(self) -> set[asyncio.Task[Episode]]:
        """All that was started and not yielded."""
        return {*self._done, *self._running}

    async def more(self) -> bool:
        """Start what there is room for and wait until something ended, or may start; False when all is played."""
        while (self._later or not self._exhausted) and (passed := self._window.start()) is not None:
            job = self._later.popleft() if self._later else next(self._source, None)
            if job is None:
                self._window.end(passed)
                self._exhausted = True
                break
            task = asyncio.create_task(self._one(job))
            task.add_done_callback(self._over)  # `asyncio.wait` would ask each that still runs, every time
            self._running[task] = job, passed
        if self._running:
            until = (self._window.pause_s or None) if self._later or not self._exhausted else None
            with suppress(TimeoutError):
                async with asyncio.timeout(until):
                    await self._some.wait()
            return True
        if self._exhausted and not self._later:
            return False
        await asyncio.sleep(self._window.pause_s)
        return True

    def _over(self, task: "asyncio.Task[Episode]") -> None:
        self._done.append(task)
        self._some.set()

    def ended(self) -> Episode | None:
        """The next episode that ended; what was pushed back is played later instead."""
        while self._done:
            task = self._done.popleft()
            job, passed = self._running.pop(task)
            try:
                episode = task.result()
            except BaseException:
                self._window.end(passed)
                self._done.append(task)
                raise
            passed.refused = _pushed_back(episode) or (None if episode.failure is not None else False)
            self._window.end(passed)
            if passed.refused and self._again(episode, len(self._running)):
                self._later.append(job)
                continue
            if job.then is not None:  # before anything else: what stands ready for them costs memory
                self._later.extendleft(reversed(job.then(episode)))
            return episode
        self._some.clear()
        return None


def _pushed_back(episode: Episode) -> bool:
    """Whether it failed only because there was no room for it at that time."""
    return episode.failure is not None and episode.failure.kind in _PUSHED_BACK


async def _run_with_retries(retries: int, job: Job) -> Episode:
    episode = await _attempt(job, last=retries < 1)
    while episode.failure is not None and retries > 0 and not _pushed_back(episode):
        retries -= 1
        episode = await _attempt(job, last=retries < 1)
    return episode


async def _remembered(retries: int, memory: Memory, job: Job) -> Episode:
    """Play a job, or go on with it, or take it as it ended. A further try goes on where the last one stood."""
    if job.episode_id in memory:
        episode = memory[job.episode_id]
        _check_same(job, episode.task_id, episode.seed)
        return episode
    job = replace(job, rollout=replace(job.rollout, record=memory))
    for left in range(retries, -1, -1):
        if (found := memory.unfinished.get(job.episode_id)) is not None:
            _check_same(job, found.began.task_id, found.began.seed)
            found = found if job.branch is None else None
        try:
            played = await _attempt(job, last=left == 0, found=found, memory=memory)
        except ReplayDiverged as error:
            _LOG.warning("%s; it begins again", " ".join(str(error).split()))
            played = await _attempt(job, last=left == 0, memory=memory)
        if played.failure is None or _pushed_back(played):
            break
    return played


def _check_same(job: Job, task_id: str, seed: int) -> None:
    for name, now, then in (("task", job.task_id, task_id), ("seed", job.seed, seed)):
        if now != then:
            raise ValueError(
                f"episode {job.episode_id} is recorded with {name} {then!r}, and is now to be played with {now!r}; "
                "go on with what began it, or record elsewhere"
            )
