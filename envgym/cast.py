"""Several actors in one episode (`Step.next_actor`): each an agent of its own, forked from one that has not acted.

A job makes one agent. Where the world asks for that one's actor first, nobody else plays. Where it asks for
another
another,
every actor gets a fork of it with a seed of its own: the same weights, no shared history. An episode's turns are
one
list, and a context is append-only within a segment, so whoever speaks again after somebody else opens a new segment
that holds all of his context: what was sampled stays sampled, and the others' words are in it only as far as the
world told them.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envgym.env import Step
from envgym.episode import Turn
from envgym.policy import Agent, Reply, Roles

__all__ = ["Cast", "Stage", "Voice"]


class Cast(dict[str, Agent]):
    """The agents of one episode by actor, each made when it is first asked for.

    first: plays `actor` where the world asks for that one before any other; else it is only forked. seed: of the
    episode. A missing actor is a KeyError once `actor` plays.
    """

    def __init__(self, actor: str, first: Agent, *, seed: int) -> None:
        super().__init__()
        self._actor, self._first, self._seed = actor, first, seed
        self._stage = Stage()

    def __missing__(self, actor: str) -> Agent:
        if self._actor in self:
            raise KeyError(actor)
        if actor == self._actor and not self:
            self[actor] = self._first
            return self._first
        draws = np.random.SeedSequence([self._seed, zlib.crc32(actor.encode("utf-8", "surrogatepass"))])
        agent = self._first.fork(seed=int(draws.generate_state(1, np.uint64)[0] >> 1))
        voice: Voice = (_Recalling if hasattr(agent, "recall") else Voice)(agent, actor, self._stage)
        self[actor] = voice
        return voice

    @property
    def everyone(self) -> tuple[Agent, ...]:
        """All that have to be closed: the first, and who was forked from it."""
        return (self._first, *(agent for agent in self.values() if agent is not self._first))


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
        other = Voice(agent, self.name, stage)
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


def _tail(roles: Roles, length: int) -> Roles:
    """The runs of the last `length` ids."""
    found: list[tuple[str, int]] = []
    for role, count in reversed(roles):
        if length <= 0:
            break
        found.append((role, min(count, length)))
        length -= count
    return tuple(reversed(found))
