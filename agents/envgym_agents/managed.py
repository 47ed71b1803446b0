"""`managed`: several experts propose, a manager chooses, turn by turn.

Any agents are experts. Each proposes in a fork of itself, so that what is not carried out leaves no trace in it;
the others then read what was said as the assistant's. Who spoke stands in the episode as a thought, and ids are
told in segments as those of several actors are (`envgym.cast`), so that every sampled token keeps its context.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from envgym.cast import Stage, Voice
from envgym.env import Step
from envgym.messages import Action, Message, ToolSpec
from envgym.options import wrong_option
from envgym.policy import Agent, Reply
from envgym.registry import find
from envgym.task import Task
from envgym_agents.chat import turn_seed
from envgym_agents.managers import Asked, LearnedValue, Manager, Vote

__all__ = ["Managed", "managed_agent"]

_MANAGER = "manager"


class Managed:
    """An agent of several; see `envgym.policy.Agent`. experts: by name, at least two."""

    name = "agent"

    def __init__(self, experts: Mapping[str, Agent], manager: Manager, *, seed: int) -> None:
        if len(experts) < 2:
            raise ValueError(f"experts are {list(experts)}; a manager needs at least 2 to choose among")
        self._experts, self._manager, self._seed = dict(experts), manager, seed
        self._missed: dict[str, tuple[Message, ...]] = dict.fromkeys(experts, ())
        self._stage = Stage()
        self._voices = {name: Voice(agent, name, self._stage) for name, agent in experts.items()}
        if isinstance(manager, Asked):
            self._voices[_MANAGER] = Voice(manager.agent, _MANAGER, self._stage)
        self._turn = 0

    async def act(self, step: Step) -> Reply:
        """The chosen expert's reply; who it is, and what the manager said for it, are thoughts before it."""
        forks: dict[str, Agent] = {}
        replies: dict[str, Reply] = {}
        try:
            for number, (name, expert) in enumerate(self._experts.items()):
                forks[name] = expert.fork(seed=turn_seed(self._seed, len(self._experts) * self._turn + number))
                told = replace(step, observation=(*self._missed[name], *step.observation))
                replies[name] = await forks[name].act(told)
            names = list(replies)
            seed = turn_seed(self._seed, self._turn)
            choice = await self._manager.choose(step, names, [replies[one].action for one in names], seed=seed)
            chosen = names[choice.index]
            await self._experts[chosen].close()
            self._experts[chosen] = forks.pop(chosen)
        finally:
            for fork in forks.values():
                await fork.close()
        self._turn += 1
        reply = replies[chosen]
        for name, missed in self._missed.items():
            told_all = (*missed, *step.observation, reply.action.message)
            self._missed[name] = () if name == chosen else told_all
        asked = () if choice.reply is None else (self._voices[_MANAGER].told(choice.reply),)
        note = Reply(Action.say(f"manager: {chosen}"))
        thoughts = tuple(self._voices[chosen].told(one) for one in reply.thoughts)
        return replace(self._voices[chosen].told(reply), thoughts=(*asked, note, *thoughts))

    def fork(self, *, seed: int) -> "Managed":
        """The same experts, manager and histories; further draws come from `seed`."""
        other = object.__new__(Managed)
        other._experts = {
            name: expert.fork(seed=turn_seed(seed, 0x46 + number))
            for number, (name, expert) in enumerate(self._experts.items())
        }
        other._manager, other._seed, other._turn = self._manager.fork(seed=seed), seed, self._turn
        other._missed, other._stage = dict(self._missed), Stage(self._stage.segments, self._stage.speaker)
        agents: dict[str, Agent] = dict(other._experts)
        if isinstance(other._manager, Asked):
            agents[_MANAGER] = other._manager.agent
        other._voices = {name: voice.copy(agents[name], other._stage) for name, voice in self._voices.items()}
        return other

    async def close(self) -> None:
        """Close all experts and the manager."""
        for expert in self._experts.values():
            await expert.close()
        await self._manager.close()


def managed_agent(  # one parameter per option
    task: Task, *, seed: int = 0, experts: Sequence[Mapping[str, Any] | str],
    manager: Mapping[str, Any] | str = "vote", manager_file: str = "", explore: float = 0.0,
    tools: tuple[ToolSpec, ...] = (),
) -> Managed:  # fmt: skip
    """Experts propose, a manager chooses.

    experts: names of registered agents, or ``{"agent": NAME, "as": ANOTHER NAME, **its options}``. manager: "vote"
    (equal proposals count together), "learned" (the values in `manager_file`, which `fit_manager` made, all zero
    without one; `explore` is the share of turns with any expert), or an agent like an expert, which is asked.
    Raises ValueError for fewer than two experts, an unknown agent, option or manager, or a file that is none.
    """
    if not 0.0 <= explore <= 1.0:
        raise ValueError(f"explore is {explore}; it must be from 0 to 1")
    for name, value in (("manager_file", manager_file), ("explore", explore)):
        if value and manager != "learned":
            raise ValueError(f"{name} {value!r} has no use where manager is {manager!r}")
    given = [experts] if isinstance(experts, str) else experts
    made: dict[str, Agent] = {}
    for number, one in enumerate(given):
        name, agent = _made(task, one, tools, seed=turn_seed(seed, 0x45 + number))
        if name in made or name == _MANAGER:
            raise ValueError(f'two experts are called {name!r}: give one another name, {{"agent": ..., "as": ...}}')
        made[name] = agent
    return Managed(made, _manager(task, manager, manager_file, explore, tuple(made), seed), seed=seed)


def _manager(
    task: Task, manager: Mapping[str, Any] | str, path: str, explore: float, names: tuple[str, ...], seed: int
) -> Manager:  # fmt: skip
    if manager == "vote":
        return Vote()
    if manager == "learned":
        return (
            LearnedValue.load(path, explore=explore)
            if path
            else LearnedValue(names, np.zeros((len(names), 1)), explore)
        )
    if isinstance(manager, str):
        raise ValueError(
            f'manager is {manager!r}; it must be "vote", "learned", or {{"agent": NAME}} with that agent\'s options'
        )
    return Asked(_made(task, manager, (), seed=turn_seed(seed, 0x44))[1])


def _made(task: Task, one: Mapping[str, Any] | str, tools: tuple[ToolSpec, ...], *, seed: int) -> tuple[str, Agent]:
    """An agent and its name among the experts."""
    options = {"agent": one} if isinstance(one, str) else dict(one) if isinstance(one, Mapping) else {}
    if not isinstance(agent := options.pop("agent", None), str):
        raise ValueError(f'{one!r} names no agent: it must be a name, or {{"agent": NAME, ...}}')
    name = str(options.pop("as", agent))
    factory = find("agents", agent)
    if wrong := wrong_option(f"expert {name!r}", options, factory, given={"seed", "tools"}, skip=1):
        raise ValueError(wrong)
    shown = {"tools": tools} if "tools" in inspect.signature(factory).parameters else {}
    return name, factory(task, seed=seed, **shown, **options)
