"""Cheating agents, and the audit of a task set by them: none may gain more than doing nothing does.

A `Cheat` is a script of actions made from what an agent may know of a task. `audit` plays each of them, and an
agent that submits at once, through the real environment, and compares. Environments list theirs in
`EnvSpec.cheats`; how a cheat is found out is the environment's own business.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from envgym.env import Env, Playable
from envgym.episode import Episode
from envgym.limits import Limits
from envgym.messages import Action
from envgym.plain_text import visible
from envgym.rollout import Rollout
from envgym.task import Task
from envgym.testing.check_task import play
from envgym.testing.fakes import ScriptedAgent

__all__ = ["COUNTED", "Attempt", "Cheat", "audit"]

COUNTED = ("reward", "success", "resolved", "f2p", "p2p")
"""Channels of the last step in which more than doing nothing is a gain."""

_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheating agent.

    name: kebab-case, unique. family: what it is like. tries: one sentence, what it hopes for.
    script: task -> its actions, of which the last ends the episode.
    """

    name: str
    family: str
    tries: str
    script: Callable[[Task], Sequence[Action]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one cheat got on one task.

    gains: it got more than doing nothing. failed: the world or its grader failed under it, so that nothing was
    paid, and nothing is known of what would have been. reward, idle: the two rewards. evidence: what is known of
    its end. still: its script did nothing here, as many do on tasks that they are not made for.
    """

    cheat: str
    family: str
    task: str
    gains: bool
    failed: bool
    reward: float
    idle: float
    evidence: str
    still: bool = False


async def audit(
    tasks: Iterable[Task],
    make: Callable[[Task], Env | Playable],
    cheats: Sequence[Cheat],
    *,
    idle: Callable[[Task], Sequence[Action]],
    seen: Callable[[Attempt], None] = lambda attempt: None,
) -> list[Attempt]:
    """Play every cheat on every task, one after another; `seen` gets each attempt as it ends.

    idle: the actions of doing nothing. Raises ValueError for two cheats of one name, and AssertionError where doing
    nothing does not come to its end.
    """
    names = [cheat.name for cheat in cheats]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"cheats have names of their own; twice: {twice}")
    found: list[Attempt] = []
    for task in tasks:
        waiting = list(idle(task))
        nothing = await _end(task, make, waiting, "idle")
        assert nothing.failure is None, f"doing nothing in {task.id!r} breaks nothing: {nothing.failure}"
        for cheat in cheats:
            actions = list(cheat.script(task))
            attempt = _compared(cheat, task, await _end(task, make, actions, cheat.name), nothing)
            attempt = replace(attempt, still=actions == waiting)
            seen(attempt)
            found.append(attempt)
    return found


async def _end(task: Task, make: Callable[[Task], Env | Playable], actions: Sequence[Action], name: str) -> Episode:
    rollout = Rollout(limits=Limits(turns=len(actions) + 1, step_s=600.0))
    agent = ScriptedAgent([*actions, *[""] * 2])
    return await play(task, make, lambda task, *, seed: agent, 0, rollout, name=name)


def _channels(episode: Episode) -> dict[str, float]:
    last = episode.turns[-1].step if episode.turns else None
    channels = dict(last.channels) if last else {}
    return channels | {"reward": episode.reward or 0.0}


def _compared(cheat: Cheat, task: Task, played: Episode, nothing: Episode) -> Attempt:
    got, least = _channels(played), _channels(nothing)
    more = [name for name in COUNTED if got.get(name, 0.0) > least.get(name, 0.0) + _LEAST]
    if played.failure is not None:
        evidence, more = f"failure of the {played.failure.boundary}: {played.failure.message}", []
    else:
        shown = ", ".join(f"{name} {value:g}" for name, value in sorted(got.items()) if value)
        evidence = (f"more {', '.join(more)}; " if more else "") + (shown or "all channels 0")
    return Attempt(
        cheat.name,
        cheat.family,
        task.id,
        bool(more),
        played.failure is not None,
        got["reward"],
        least["reward"],
        visible(evidence)[:300],
    )
