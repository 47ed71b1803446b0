"""An unfinished episode brought back to where it stood: its world by snapshot or actions, its agent by recalling.

What the world answers on the way is checked against what was recorded (by digest), and its whole state where that
was known, so that an episode goes on in the state that it was in, or not at all. What a replayed world hides in
turns after the last snapshot is not seen.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from envgym.clean_up import release_all
from envgym.deadlines import deadline
from envgym.env import Env, Snapshot, Step, answered, observation_digest
from envgym.episode import Turn, Unfinished
from envgym.errors import Boundary, EnvgymError, Misconfigured, Overloaded, PoolFull, ReplayDiverged, boundary
from envgym.limits import Limits
from envgym.policy import Agent

__all__ = ["Recalling", "Recounting", "regain", "starts"]

_LOG = logging.getLogger("envgym")


@runtime_checkable
class Recalling(Protocol):
    """An agent that can be told what it said before, instead of saying it again."""

    def recall(self, step: Step, turn: Turn) -> None:
        """It answered `step` with `turn`. Raises ValueError where it could not have."""
        ...


@runtime_checkable
class Recounting(Protocol):
    """A recorder that counts what is spent, also on answers that are in no episode."""

    def acted_again(self, episode: str, turn: Turn) -> None:
        """An agent that could not recall was asked again, and this is what it said; its `step` holds the cost."""
        ...


async def regain(
    env: Env, agent: Agent | Mapping[str, Agent], found: Unfinished, limits: Limits, *, start: Snapshot | None =
    None, record: object = None,
) -> Step:  # fmt: skip
    """Bring both to the end of what was recorded; the step that the world last gave. start: where it began.

    agent: the one that acts, or each by its actor.

    Raises ReplayDiverged where the world or the agent did something else than was recorded, and whatever they
    raise.
    An agent that cannot recall acts again, which only says the same when all its draws come from its seed; record
    is told, if it is `Recounting`, of every such answer before anything else happens: it was paid for twice.
    """
    if found.said is None and found.turns and found.turns[-1].thought:
        raise ReplayDiverged(
            f"episode {found.began.id}: it was killed between what its agent thought and did; it cannot go on there"
        )
    answers = list(_answers(found))
    await _regain_agent(agent, answers, found, limits, record)
    begin, step = await _regain_world(env, answers, found, limits, start)
    known = _known(found, begin)
    for index in range(begin, len(found.turns)):
        if not found.turns[index].thought:
            with boundary(Boundary.ENVIRONMENT, "step"):
                stepping = env.step(found.turns[index].action)
                step = answered(await deadline(stepping, limits.step_s, "step", Boundary.ENVIRONMENT))
            _check(step, answers[index + 1], found, index + 1)
        if known is not None and index + 1 == known[0]:
            await _check_state(env, known[1], found, index + 1, limits)
    return step


def _answers(found: Unfinished) -> Iterator[Step]:
    """What the world had last said, before each turn and after the last; a thought changes nothing."""
    step = found.began.root
    yield step
    for turn in found.turns:
        step = step if turn.thought else turn.step
        yield step


def starts(found: Unfinished) -> Iterator[tuple[int, Snapshot]]:
    """Where an unfinished episode can begin again, the newest first: turns passed, and the snapshot taken there.

    What only its process could restore, or holds less than everything, is none.
    """
    for index, snapshot in _taken(found):
        if snapshot.sandbox is None or (snapshot.sandbox.durable and not snapshot.sandbox.partial):
            yield index, snapshot


def _taken(found: Unfinished) -> Iterator[tuple[int, Snapshot]]:
    """Every snapshot that was taken after a turn, the newest first."""
    turns = [*found.turns, *([] if found.said is None else [found.said])]
    for index in range(len(turns) - 1, 0, -1):
        if (snapshot := turns[index].snapshot) is not None:
            yield index, snapshot


def _known(found: Unfinished, begin: int) -> tuple[int, str] | None:
    """The last place behind `begin` where the whole state was known, and its digest."""
    for index, snapshot in _taken(found):
        if index > begin and (digest := _digest(snapshot)):
            return index, digest
    return None


def _digest(snapshot: Snapshot) -> str:
    """What tells a whole state from others, "" where nothing does.

    Beside a sandbox's it is not the environment's own, which may name what every process names otherwise.
    """
    if snapshot.restore == "replay":
        return " ".join(snapshot.digests)
    if snapshot.sandbox is None:
        return snapshot.state
    return "" if snapshot.sandbox.partial else snapshot.sandbox.digest


async def _check_state(env: Env, digest: str, found: Unfinished, index: int, limits: Limits) -> None:
    with boundary(Boundary.ENVIRONMENT, "snapshot"):
        now = await deadline(env.snapshot(), limits.step_s, "snapshot", Boundary.ENVIRONMENT)
    await release_all(env, [now], limits)
    if _digest(now) not in ("", digest):
        raise ReplayDiverged(
            f"episode {found.began.id}: after turn {index - 1} the world says what it had said, and its state "
            f"is another one ({_digest(now)[:80]!r}, and it was {digest[:80]!r}): the episode cannot go on in it"
        )


async def _regain_world(
    env: Env, answers: list[Step], found: Unfinished, limits: Limits, start: Snapshot | None
) -> tuple[int, Step]:
    """The world at the newest snapshot that can be restored, or as it began; how many turns lie behind it."""
    why: EnvgymError | None = None
    for begin, snapshot in starts(found):
        try:
            await _reset(env, found, limits, snapshot)
        except (PoolFull, Overloaded):  # there is no room for it at all
            raise
        except EnvgymError as error:
            why = why or error
        else:
            # the state is that one; what a reset says of a snapshot is the environment's affair
            return begin, answers[begin]
    if why is not None:
        said = " ".join(str(why).split())
        _LOG.warning("episode %s: no snapshot of it can be restored (%s); it is replayed", found.began.id, said)
    step = await _reset(env, found, limits, start)
    _check(step, answers[0], found, 0)
    return 0, step


async def _reset(env: Env, found: Unfinished, limits: Limits, start: Snapshot | None) -> Step:
    with boundary(Boundary.ENVIRONMENT, "reset", passing=(Misconfigured,)):
        reset = env.reset(seed=found.began.seed, start=start)
        return answered(await deadline(reset, limits.reset_s, "reset", Boundary.ENVIRONMENT))


def _check(step: Step, recorded: Step, found: Unfinished, index: int) -> None:
    if observation_digest(step) != observation_digest(recorded):
        what = f"turn {index - 1}" if index else "the reset"
        raise ReplayDiverged(
            f"episode {found.began.id}: after {what} the world says {step.text[:80]!r}, and it had said "
            f"{recorded.text[:80]!r}; it does not repeat itself, so the episode cannot go on"
        )


async def _regain_agent(
    agents: Agent | Mapping[str, Agent], answers: list[Step], found: Unfinished, limits: Limits, record: object
) -> None:
    turns = [*found.turns, *([found.said] if found.said is not None else [])]
    for index, (step, turn) in enumerate(zip(answers, turns, strict=False)):
        if turn.thought:  # who acts again thinks again
            continue
        agent = agents[turn.actor] if isinstance(agents, Mapping) else agents
        with boundary(Boundary.AGENT, "recall", passing=(Misconfigured,)):
            if isinstance(agent, Recalling):
                agent.recall(step, turn)
                continue
            reply = await deadline(agent.act(step), limits.act_s, "act", Boundary.AGENT)
        if isinstance(record, Recounting):
            record.acted_again(found.began.id, Turn.of(turn.actor, reply, Step(cost=dict(reply.cost))))
        if reply.action != turn.action:
            raise ReplayDiverged(
                f"episode {found.began.id}: in turn {index} the agent says {reply.action.text[:80]!r}, and it had "
                f"said {turn.action.text[:80]!r}; its draws do not come from its seed alone"
            )
