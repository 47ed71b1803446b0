"""Looking around without a task: who explores, and what an exploration leaves.

`Curious` needs no model: it does what it has done least where it is, and takes arguments from what it has seen. Any
agent can explore instead; it reads below each observation what was tried already.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from pydantic import JsonValue

from envgym.env import Env, Step
from envgym.messages import Action, Message, ToolCall, ToolSpec
from envgym.policy import Agent
from envgym.synthesis.memory import Tried
from envgym.testing.actions import sample_value
from envgym.tools import compact, parse_call

__all__ = ["AgentExplorer", "Curious", "Explorer", "Trail", "explore", "state_of"]


@dataclass(frozen=True, slots=True)
class Trail:
    """One exploration: its seed, the first step, then each action and the step that followed."""

    seed: int
    first: Step
    actions: tuple[Action, ...]
    steps: tuple[Step, ...]


class Explorer(Protocol):
    """Chooses what to do next; begun anew for each trail."""

    async def choose(self, step: Step, tools: Sequence[ToolSpec], tried: Tried) -> Action:
        """An action for a step."""
        ...

    def ended(self, step: Step) -> None:
        """The trail is over with this step."""
        ...

    async def close(self) -> None:
        """Let go of what it holds; idempotent."""
        ...


def state_of(step: Step) -> str:
    """What tells states apart: the environment's own key, else what is seen."""
    return step.state_key or step.text


def words_of(step: Step, known: Sequence[str] = ()) -> list[str]:
    """The last 200 different words that were seen, with those of a step."""
    found = re.findall(r"[\w./-]{2,40}", step.text)
    return list(dict.fromkeys((*known, *found)))[-200:]


def drawn_call(spec: ToolSpec, words: Sequence[str], rng: np.random.Generator) -> ToolCall:
    """A call of a tool whose texts are mostly words that were seen."""
    drawn: Any = sample_value(spec.parameters, rng)
    properties: Any = spec.parameters.get("properties", {})
    for name, part in properties.items():
        if words and part.get("type") == "string" and "enum" not in part and rng.random() < 0.8:
            drawn[name] = words[int(rng.integers(len(words)))]
    return ToolCall(name=spec.name, arguments=drawn)


@dataclass(slots=True)
class Curious:
    """Counts what it did: of some drawn calls it makes the one least tried here, then least tried at all.

    The bonus of a count n is ``1 / sqrt(n + 1)``, as of count-based exploration (Bellemare et al. 2016, arXiv
    1606.01868), first of the call in this state, then of the tool.
    """

    rng: np.random.Generator
    draws: int = 16
    _here: Counter[tuple[str, str]] = field(default_factory=Counter)
    _words: list[str] = field(default_factory=list)

    async def choose(self, step: Step, tools: Sequence[ToolSpec], tried: Tried) -> Action:
        """The call that promises most news."""
        self._words = words_of(step, self._words)
        state = state_of(step)
        calls = [self._drawn(step, tools) for _ in range(self.draws)]
        best = max(calls, key=lambda call: self._bonus(state, call, tried))
        self._here[(state, compact(best))] += 1
        return Action(message=Message(role="assistant", tool_calls=(best,)))

    def ended(self, step: Step) -> None:
        """What was done last is counted already."""

    async def close(self) -> None:
        """It holds nothing."""

    def _bonus(self, state: str, call: ToolCall, tried: Tried) -> float:
        here, ever = self._here[(state, compact(call))], tried.calls[call.name]
        return float((here + 1) ** -0.5 + 0.5 * (ever + 1) ** -0.5)

    def _drawn(self, step: Step, tools: Sequence[ToolSpec]) -> ToolCall:
        if step.legal:
            found = parse_call(step.legal[int(self.rng.integers(len(step.legal)))], tools)
            if isinstance(found, ToolCall):
                return found
        return drawn_call(tools[int(self.rng.integers(len(tools)))], self._words, self.rng)


@dataclass(frozen=True, slots=True)
class AgentExplorer:
    """Any agent, curious by what it reads."""

    agent: Agent

    async def choose(self, step: Step, tools: Sequence[ToolSpec], tried: Tried) -> Action:
        """What the agent does after it has read what was tried."""
        note = Message(role="user", content=f"There is no task: find out what can be done here. {tried.told()}")
        reply = await self.agent.act(replace(step, observation=(*step.observation, note)))
        return reply.action

    def ended(self, step: Step) -> None:
        """Agents learn nothing of it."""

    async def close(self) -> None:
        """Close the agent, which is this explorer's alone."""
        await self.agent.close()


async def explore(env: Env, explorer: Explorer, tried: Tried, *, seed: int, turns: int) -> Trail:
    """One trail of up to `turns` actions; the calls are remembered."""
    first = step = await env.reset(seed=seed)
    actions: list[Action] = []
    steps: list[Step] = []
    while step.stop is None and len(actions) < turns:
        action = await explorer.choose(step, env.tools, tried)
        tried.calls.update(call.name for call in action.calls)
        step = await env.step(action)
        actions.append(action)
        steps.append(step)
    explorer.ended(step)
    return Trail(seed, first, tuple(actions), tuple(steps))


def seen_before(value: JsonValue, texts: Sequence[str]) -> bool:
    """Whether a value stood in what was seen: then a schema has a slot there, not a constant."""
    return isinstance(value, str) and bool(value) and any(value in text for text in texts)
