"""Several actors in one episode (`Step.next_actor`): each an agent of its own, forked from one that has not acted.

A job makes one agent. Where the world asks for that one's actor first, nobody else plays. Where it asks for
another, every actor gets a fork of it with a seed of its own: the same weights, no shared history. An episode's
turns are one list, and a context is append-only within a segment, so whoever speaks again after somebody else opens
a new segment that holds all of his context: what was sampled stays sampled, and the others' words are in it only as
far as the world told them.

A job may name other agents for some actors (`Cast.give`). What those say is part of the world to the one that is
played and trained: their turns are stored as words, without tokens. What it took is the turn's cost, and the world
is told of it with the words (`Action.spent`).
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envgym.env import Step
from envgym.episode import Turn
from envgym.errors import ReplayDiverged
from envgym.policy import Agent, Reply, Roles

__all__ = ["Cast", "Stage", "Voice", "seed_of"]


class Cast(dict[str, Agent]):
    """The agents of one episode by actor, each made when it is first asked for.

    first: plays `actor` where the world asks for that one before any other; else it is only forked. seed: of the
    episode. A missing actor is a KeyError once `actor` plays, unless an agent was given for it.
    """

    def __init__(self, actor: str, first: Agent, *, seed: int) -> None:
        super().__init__()
        self._actor, self._first, self._seed = actor, first, seed
        self._stage = Stage()
        self._guests: dict[str, _Guest] = {}

    def give(self, actor: str, agent: Agent) -> None:
        """From now on `actor` is played by another agent; this closes it with everyone."""
        self._guests[actor] = (_RecallingGuest if hasattr(agent, "recall") else _Guest)(agent, actor)

    def __missing__(self, actor: str) -> Agent:
        if actor in self._guests:  # never among the others: whether those are several decides how they are told
            return self._guests[actor]
        if self._actor in self:
            raise KeyError(actor)
        if actor == self._actor and not self:
            self[actor] = self._first
            return self._first
        agent = self._first.fork(seed=seed_of(self._seed, actor))
        voice: Voice = (_Recalling if hasattr(agent, "recall") else Voice)(agent, actor, self._stage)
        self[actor] = voice
        return voice

    def fork(self, *, seed: int) -> "Cast":
        """Everybody as they are now, in a copy of the episode, with further draws from `seed`."""
        other = Cast(self._actor, self._first.fork(seed=seed), seed=seed)
        other._stage = Stage(self._stage.segments, self._stage.speaker)
        for actor, agent in self.items():
            if isinstance(agent, Voice) and agent is not self._first:
                other[actor] = agent.copy(agent.fork(seed=seed_of(seed, actor)), other._stage)
            else:
                other[actor] = other._first
        for actor, guest in self._guests.items():
            other.give(actor, guest.fork(seed=seed_of(seed, actor)))
        return other

    @property
    def everyone(self) -> tuple[Agent, ...]:
        """All that have to be closed: the first, who was forked from it, and who was given."""
        return (
            self._first, *(agent for agent in self.values() if agent is not self._first), *self._guests.values(),
        )  # fmt: skip


def seed_of(seed: int, actor: str) -> int:
    """Of one of several actors of an episode."""
    draws = np.random.SeedSequence([seed, zlib.crc32(actor.encode("utf-8", "surrogatepass"))])
    return int(draws.generate_state(1, np.uint64)[0] >> 1)


class Stage:
    """The segments of the episode: how many were opened, and who spoke last."""

    def __init__(self, segments: int = 0, speaker: str = "") -> None:
        self.segments = segments
        self.speaker = speaker


class Voice:
    """One actor: its agent's replies, told in the episode's segments."""

    def __init__(self, agent: Agent, actor: str, stage: Stage) -> None:
        self.name = actor
        self._agent, self._stage = agent, stage
        self._own = 0  # the agent's segment
        self._shown = 0  # the episode's, of the same context
        self._ids: list[int] = []
        self._roles: list[tuple[str, int]] = []

    async def act(self, step: Step) -> Reply:
        """See `Agent.act`."""
        reply = await self._agent.act(step)
        thoughts = tuple(self.told(thought) for thought in reply.thoughts)
        return replace(self.told(reply), thoughts=thoughts)

    def fork(self, *, seed: int) -> Agent:
        """Its agent's fork, for an episode of its own."""
        return self._agent.fork(seed=seed)

    def copy(self, agent: Agent, stage: Stage) -> "Voice":
        """What was told so far, for a fork of the agent on a copy of the stage."""
        other = type(self)(agent, self.name, stage)
        other._own, other._shown = self._own, self._shown
        other._ids, other._roles = list(self._ids), list(self._roles)
        return other

    async def close(self) -> None:
        """See `Agent.close`."""
        await self._agent.close()

    def told(self, reply: Reply) -> Reply:
        """The reply in the episode's segments; one without tokens is in none."""
        if reply.completion is None:
            return reply
        before = self._before(reply.segment)
        prompt, roles = [*before, *reply.prompt_ids], self._run_of(before, reply.prompt_ids, reply.roles)
        self._keep(reply.prompt_ids, reply.completion.ids, reply.roles)
        position = 0 if before else reply.position
        return replace(reply, prompt_ids=prompt, roles=roles, segment=self._shown, position=position)

    def _before(self, segment: int) -> Sequence[int]:
        """What of the agent's context a reply in its `segment` has to tell again; opens a segment where one begins.

        Afterwards `_ids` is the context that the reply adds to.
        """
        again: Sequence[int] = ()
        if segment != self._own:
            self._ids, self._roles = [], []
        if segment != self._own or self._stage.speaker != self.name:
            again = tuple(self._ids)
            self._shown = self._stage.segments
            self._stage.segments += 1
        self._own, self._stage.speaker = segment, self.name
        return again

    def _run_of(self, before: Sequence[int], added: Sequence[int], roles: Roles) -> Roles:
        if not before:
            return roles
        if not roles and added:
            return ()
        told = sum(length for _, length in self._roles)
        return (*self._roles, *roles) if told == len(before) else ()

    def _keep(self, prompt: Sequence[int], sampled: Sequence[int], roles: Roles) -> None:
        self._ids += [*prompt, *sampled]
        self._roles += [
            *(roles or ([("unknown", len(prompt))] if len(prompt) else [])),
            ("assistant", len(sampled)),
        ]


class _Recalling(Voice):
    """An actor whose agent can be told what it said before (`envgym.regain.Recalling`)."""

    def recall(self, step: Step, turn: Turn) -> None:
        """Its own turn, as the agent said it."""
        self._agent.recall(step, self._own_turn(turn) if len(turn.sampled_ids) else turn)  # type: ignore[attr-defined]

    def _own_turn(self, turn: Turn) -> Turn:
        """A turn in the agent's segments: what was told again is taken off."""
        held = len(self._ids)
        if self._stage.speaker == self.name:
            same = turn.segment == self._shown
        else:
            same = turn.prompt_ids[:held].tolist() == self._ids
        before = self._before(self._own if same else self._own + 1)
        position, prompt = len(self._ids), turn.prompt_ids[len(before) :]
        roles = _tail(turn.roles, len(prompt))
        self._keep(prompt.tolist(), turn.sampled_ids.tolist(), roles)
        return replace(turn, prompt_ids=prompt, segment=self._own, position=position, roles=roles)


class _Guest:
    """An agent that was given for an actor: its replies without their tokens, which are nobody's to train."""

    def __init__(self, agent: Agent, actor: str) -> None:
        self.name = actor
        self._agent = agent

    async def act(self, step: Step) -> Reply:
        """See `Agent.act`."""
        return _in_words(await self._agent.act(step))

    def fork(self, *, seed: int) -> Agent:
        """Its agent's fork."""
        return self._agent.fork(seed=seed)

    async def close(self) -> None:
        """See `Agent.close`."""
        await self._agent.close()


class _RecallingGuest(_Guest):
    """One whose agent can be told what it said before (`envgym.regain.Recalling`)."""

    def recall(self, step: Step, turn: Turn) -> None:
        """Raises ReplayDiverged for an agent that needs the ids of what it said: they were not kept."""
        try:
            self._agent.recall(step, turn)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ReplayDiverged(
                f"actor {self.name!r} cannot be told by its words what it said ({error}): the episode begins again"
            ) from error


def _in_words(reply: Reply) -> Reply:
    """A reply, and what was thought before it, as if nobody had sampled tokens; how many there were is its cost."""
    thoughts = tuple(map(_in_words, reply.thoughts))
    cost = dict(reply.cost)
    if reply.completion is not None:
        counted = {
            "prompt_tokens": float(reply.position + len(reply.prompt_ids)),
            "completion_tokens": float(len(reply.completion.ids)),
        }
        cost = counted | cost
    spent = dict(cost)
    for name, amount in ((name, amount) for thought in thoughts for name, amount in thought.cost.items()):
        spent[name] = spent.get(name, 0.0) + amount
    action = reply.action.model_copy(update={"spent": tuple(spent.items())}) if spent else reply.action
    return Reply(action, cost=cost, shown=reply.shown, thoughts=thoughts)


def _tail(roles: Roles, length: int) -> Roles:
    """The runs of the last `length` ids."""
    found: list[tuple[str, int]] = []
    for role, count in reversed(roles):
        if length <= 0:
            break
        found.append((role, min(count, length)))
        length -= count
    return tuple(reversed(found))
