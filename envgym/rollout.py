"""The loop that plays one episode, and its continuations from one of its states.

This is the only place that touches environment and agent, and the only one that turns the world's faults
into data (`Episode.failure`). It does not grade, credit or learn; `jobs` plays many at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from envgym.cast import Cast
from envgym.clean_up import close_both, end_all, release_all, snapshots_of
from envgym.deadlines import Waiting, begin, deadline
from envgym.env import Env, Grade, Snapshot, Step, StopReason, answered
from envgym.episode import SPENT, THOUGHT, Began, Episode, ForkPoint, Turn, Unfinished
from envgym.errors import Boundary, ContextFull, EnvgymError, Failure, Misconfigured, boundary
from envgym.frozen import quick
from envgym.holding import Holding
from envgym.limits import Limits
from envgym.messages import Action
from envgym.policy import Agent, Reply
from envgym.stems import Stems

__all__ = ["Origin", "Recorder", "Rollout", "branch", "play", "took_s", "unplayed"]

_ACTING = boundary(Boundary.AGENT, "act", passing=(Misconfigured,))
_STEPPING = boundary(Boundary.ENVIRONMENT, "step", passing=(Misconfigured,))
_RESETTING = boundary(Boundary.ENVIRONMENT, "reset", passing=(Misconfigured,))
"""Boundaries hold no state: every turn of every episode may leave by these."""

_UNANSWERED = Step()
_UNHEARD = Step(info={THOUGHT: True})
"""What follows a thought: nothing happened."""


class Recorder(Protocol):
    """Writes down what happens before anything else does. What it raises ends the run."""

    def begin(self, began: Began) -> None:
        """An episode begins. One that is unfinished begins again: what it had no longer counts."""
        ...

    def said(self, episode: str, index: int, turn: Turn) -> None:
        """The actor of the next turn has spoken, and the world takes time to answer.

        The turn's step is empty but for what the actor's answer cost.
        """
        ...

    def turn(self, episode: str, index: int, turn: Turn) -> None:
        """That turn is complete."""
        ...


@dataclass(slots=True)
class Rollout:
    """How episodes are played, apart from who plays what: limits, snapshots, where turns go as they happen.

    snapshot_every: keep a snapshot before every n-th turn (0: never). Who gets the turn, in its episode or by
        `record`, releases it; what nobody gets (a turn that failed, a try that is played again) is released here.
    durable: those snapshots are for going on after a kill, where the environment has such (see `envgym.holding`).
        All but the newest two are released as it plays, those by `stream` when the episode is stored, which then
        names snapshots that are gone. Needs `record`.
    record: is told of every episode's beginning and turns as they happen.
    stems: keeps forks of the world where continuations will begin; whoever plays gives it the actors as a `Cast`.
    """

    limits: Limits = field(default_factory=Limits)
    snapshot_every: int = 0
    durable: bool = False
    record: "Recorder | None" = None
    provenance: tuple[tuple[str, str], ...] = ()
    stems: Stems | None = None


class _Play:
    """One episode in progress: what has happened so far, and in which call we are."""

    __slots__ = (
        "agents", "counted", "env", "episode_id", "holding", "rollout", "root", "said", "seed", "started",
        "thoughts", "tokens", "turns", "unclaimed", "where",
    )  # fmt: skip

    def __init__(self, env: Env, agents: dict[str, Agent], rollout: Rollout, origin: "Origin") -> None:
        self.env, self.agents, self.rollout = env, agents, rollout
        self.episode_id, self.seed = origin.episode_id, origin.seed
        self.root = Step()
        self.turns: list[Turn] = []
        self.said: Turn | None = None
        self.unclaimed: list[Snapshot] = []
        self.holding: Holding | None = None
        self.where = "reset"
        self.tokens = self.counted = self.thoughts = 0
        self.started = perf_counter()

    def go_on(self, found: Unfinished) -> None:
        """It was begun before, and all that was recorded of it counts: turns, tokens, and the time they took."""
        self.root, self.turns, self.said = found.began.root, list(found.turns), found.said
        self.thoughts = sum(turn.thought for turn in self.turns)
        self.started -= took_s(found)

    async def run(self, step: Step) -> StopReason:
        """Act and step until something stops the episode.

        Every turn of every episode passes here: what most turns have no use for is asked for without a call, and
        `deadline` and `with` are unrolled, as what never waits and raises nothing must cost next to nothing.
        """
        if self.said is not None:  # what was said is always answered
            step = await self._again(self.said)
        limits, env, turns, agents = self.rollout.limits, self.env, self.turns, self.agents
        marks = self.rollout.snapshot_every or self.rollout.stems is not None
        most, bounded = limits.turns, limits.tokens is not None or limits.episode_s is not None
        told = marks or self.rollout.record is not None
        while step.stop is None:
            if (bounded or len(turns) - self.thoughts >= most) and (stop := self._spent(limits)) is not None:
                return stop
            actor = step.next_actor
            snapshot = await self._mark() if marks else None
            agent = agents.get(actor) or self._agent(actor)
            self.where, asked = "act", perf_counter()
            try:
                reply = begin(agent.act(step))
                if type(reply) is Waiting:
                    reply = await reply.within(limits.act_s, "act", Boundary.AGENT)
            except BaseException as error:
                _ACTING.__exit__(type(error), error, None)
                raise
            action, now = reply.action, perf_counter()
            act_s, asked = now - asked, now
            if reply.thoughts:
                self._think(actor, reply)
            self.where, said = "step", None
            try:
                answer = begin(env.step(action))
                if type(answer) is Waiting:
                    said = self._asked(actor, reply, snapshot, act_s)
                    answer = await answer.within(limits.step_s, "step", Boundary.ENVIRONMENT)
                step = answered(answer)
                step = _charged(step, reply.cost, action) if reply.cost or action.spent else step
            except BaseException as error:
                _STEPPING.__exit__(type(error), error, None)
                raise
            took_s = act_s, perf_counter() - asked
            turn = Turn.of(actor, reply, step, snapshot, took_s) if said is None else said.answered(step, took_s[1])
            turns.append(turn)
            if told:
                self._tell(turn)
        return step.stop

    async def _again(self, said: Turn) -> Step:
        """What the world answers to words that are recorded, and were not answered before."""
        self.said, self.where, asked = None, "step", perf_counter()
        with _STEPPING:
            answer = begin(self.env.step(said.action))
            if type(answer) is Waiting:
                answer = await answer.within(self.rollout.limits.step_s, "step", Boundary.ENVIRONMENT)
            step = _charged(answered(answer), said.step.cost, said.action)
        self.turns.append(turn := said.answered(step, perf_counter() - asked))
        self._tell(turn)
        return step

    def _asked(self, actor: str, reply: Reply, snapshot: Snapshot | None, act_s: float) -> Turn | None:
        """What a world that takes its time is asked is kept, where somebody keeps a record."""
        record = self.rollout.record
        if record is None:
            return None
        asking = _charged(_UNANSWERED, reply.cost, reply.action)
        return self._said(record, Turn.of(actor, reply, asking, snapshot, (act_s, 0.0)))

    def _tell(self, turn: Turn) -> None:
        """The last turn is complete: its snapshot is the turn's, and the record is told."""
        self.unclaimed.clear()
        if (record := self.rollout.record) is not None:
            record.turn(self.episode_id, len(self.turns) - 1, turn)

    def ended_by(self, error: EnvgymError) -> tuple[StopReason | None, Failure | None]:
        """A context that is full is a bound like others, where an actor says so."""
        if self.where == "act" and isinstance(error, ContextFull):
            return StopReason.CONTEXT_LIMIT, None
        return None, Failure.of(error, where=self.where, turn=len(self.turns))

    async def _mark(self) -> Snapshot | None:
        """Before a turn: leave a fork where continuations may begin; the snapshot, if one is due."""
        every, stems = self.rollout.snapshot_every, self.rollout.stems
        if stems is not None:
            self.where = "fork"
            if not isinstance(self.agents, Cast):
                raise ValueError("Rollout.stems forks everybody who acts: give the agents as a Cast")
            await stems.keep(self.episode_id, self.seed, self.turns, self.env, self.agents, self.rollout.limits)
        return await self._snapshot() if every and (len(self.turns) - self.thoughts) % every == 0 else None

    def _think(self, actor: str, reply: Reply) -> None:
        """What was sampled on the way to a reply has turns of its own, which no world answers."""
        for thought in reply.thoughts:
            turn = Turn.of(actor, thought, replace(_UNHEARD, cost=dict(thought.cost)))
            self.turns.append(turn)
            self.thoughts += 1
            if self.rollout.record is not None:
                self.rollout.record.turn(self.episode_id, len(self.turns) - 1, turn)

    def _said(self, record: Recorder, turn: Turn) -> Turn:
        """It is recorded that an actor has spoken."""
        record.said(self.episode_id, len(self.turns), turn)
        if self.holding is not None:
            self.holding.keep()
        return turn

    def _spent(self, limits: Limits) -> StopReason | None:
        """The bound that is reached, if one is."""
        if len(self.turns) - self.thoughts >= limits.turns:  # a world answers no thought
            return StopReason.TURN_LIMIT
        if limits.tokens is not None and self._tokens() >= limits.tokens:
            return StopReason.TOKEN_LIMIT
        if limits.episode_s is not None and perf_counter() - self.started >= limits.episode_s:
            return StopReason.TIME_LIMIT
        return None

    def _tokens(self) -> int:
        """How many all turns added."""
        for turn in self.turns[self.counted :]:
            self.tokens += len(turn.prompt_ids) + len(turn.sampled_ids)
        self.counted = len(self.turns)
        return self.tokens

    def _agent(self, actor: str) -> Agent:
        try:
            return self.agents[actor]
        except KeyError:
            raise ValueError(
                f"the environment asks for actor {actor!r}; agents given: {sorted(self.agents)}; name one for it "
                f"(`Job.others`, `envgym collect --actor {actor}=AGENT`, `model.others` of a training run)"
            ) from None

    async def _snapshot(self) -> Snapshot | None:
        self.where = "snapshot"
        if self.holding is not None:
            return await self.holding.take() if self.turns else None  # as it begins it can be had again
        with boundary(Boundary.ENVIRONMENT, "snapshot"):
            snapshot = await deadline(
                self.env.snapshot(), self.rollout.limits.step_s, "snapshot", Boundary.ENVIRONMENT
            )
        self.unclaimed.append(snapshot)
        return snapshot


@quick
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


async def play(
    env: Env, agents: dict[str, Agent], *, origin: Origin, rollout: Rollout, found: Unfinished | None = None
) -> Episode:
    """Play one episode with live parts and return it; never raises for the world's faults. Closes nothing.

    An agent that raises ContextFull ends it with the stop CONTEXT_LIMIT. Raises Misconfigured where an agent
    or the environment does: every episode would meet the same.

    found: what was recorded of it before; environment and agents are where that ends, and `origin.step` is the last
    answer.
    """
    state = _Play(env, agents, rollout, origin)
    if rollout.durable:
        if rollout.record is None:
            raise ValueError(
                "Rollout.durable without Rollout.record: nobody would know of the snapshots after a kill"
            )
        state.holding = Holding(env, rollout.limits, found)
    step, stop, failure = origin.step, None, None
    try:
        if step is None:
            with _RESETTING:
                reset = env.reset(seed=origin.seed, start=origin.start)
                step = answered(await deadline(reset, rollout.limits.reset_s, "reset", Boundary.ENVIRONMENT))
        if found is not None:
            state.go_on(found)
        else:
            state.root = step
            if rollout.record is not None:
                rollout.record.begin(_began(origin, env.task.id, step, rollout))
        stop = await state.run(step)
    except EnvgymError as error:
        stop, failure = state.ended_by(error)
    except BaseException:
        if rollout.record is None:  # no episode comes of it, and nobody was told of its turns
            state.unclaimed += snapshots_of(state.turns)
        raise
    finally:
        await release_all(env, state.unclaimed, rollout.limits)
        if state.holding is not None:
            await state.holding.end(state.turns)
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


def took_s(found: Unfinished) -> float:
    """Seconds that its actors and its world took, as far as they were recorded; between them little passes."""
    answered = sum(turn.act_s + turn.step_s for turn in found.turns)
    return answered if found.said is None else answered + found.said.act_s


def _charged(step: Step, spent: Mapping[str, float], action: Action) -> Step:
    """A step with what its turn's actor spent added to its cost, and what the world was told of that."""
    if action.spent:
        step = replace(step, info={**step.info, SPENT: dict(action.spent)})
    if not spent:
        return step
    return replace(step, cost={**spent, **{name: cost + spent.get(name, 0.0) for name, cost in step.cost.items()}})


def _began(origin: Origin, task_id: str, root: Step, rollout: Rollout) -> Began:
    return Began(origin.episode_id, task_id, root, origin.seed, origin.parent, origin.group, rollout.provenance)


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
                return unplayed(env.task.id, origin, rollout, Failure.of(error, where="fork", turn=0), started)
            return await play(forked_env, {forked_agent.name: forked_agent}, origin=origin, rollout=rollout)
        finally:
            await close_both(forked_env, forked_agent, rollout.limits.close_s)

    playing = [asyncio.create_task(one(index, seed)) for index, seed in enumerate(seeds)]
    try:
        return tuple(await asyncio.gather(*playing))
    finally:
        await end_all(playing)


def unplayed(task_id: str, origin: Origin, rollout: Rollout, failure: Failure, started: float) -> Episode:
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
