"""What both loops of policy gradients are made of, and how far they are.

`reinforce` takes turns between playing and learning, `overlap` does both at once; who learns, who acts, where and
how is the same to them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from envgym.policy import AgentFactory
from envgym_agents.learn.collect import Collected
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.curriculum import EdgeOrder
from envgym_agents.learn.learns import Learns
from envgym_agents.learn.past import PastGroups
from envgym_agents.learn.play import Arena, TaskOrder

__all__ = ["OnStep", "Parts", "Progress", "Updated", "ended"]


class Updated(Protocol):
    """What a loop needs of a policy: to be told of new weights, and which version they are."""

    @property
    def version(self) -> int:
        """Of the weights that it samples from."""
        ...

    async def update(
        self, weights: Mapping[str, Tensor] | None = None, *, version: int | None = None,
        masks: Mapping[str, Tensor] | None = None,
    ) -> int:  # fmt: skip
        """Sample from these weights as soon as may be; without any, from the model as it is now.

        version: what they are called; None: one more than before. masks: those of the masking policy from then on;
        raises ValueError where it has none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a loop is: steps, tasks drawn, seconds, tokens sampled, and why it ended ("" while it runs).

    length: mean sampled tokens of an episode in the first step that taught, which later ones are compared with.
    running: the running mean that the scheme compares with, order: what the order of tasks goes by, returns: the
    mean and spread by which rewards are scaled, all as JSON; {} where there is none.
    """

    step: int = 0
    cursor: int = 0
    seconds: float = 0.0
    tokens: int = 0
    stop: str = ""
    length: float = 0.0
    running: dict[str, Any] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    returns: dict[str, Any] = field(default_factory=dict)


def ended(config: Reinforce, progress: Progress) -> str:
    """The bound of a configuration that a loop has reached, or why it was stopped; "" while it goes on."""
    if progress.stop:
        return progress.stop
    if progress.step >= config.steps:
        return "steps"
    if config.minutes is not None and progress.seconds >= config.minutes * 60:
        return "minutes"
    if config.tokens is not None and progress.tokens >= config.tokens:
        return "tokens"
    return ""


OnStep = Callable[[Progress, Collected, dict[str, float]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """Who learns (learner, policy), how it acts (make_agent), where (arena, order), how (config), from which seed.

    Checkpoints go to `folder`; `on_step` is awaited after every step with its episodes and metrics. past: what
    earlier runs played and this one learns from, too.
    """

    learner: Learns
    policy: Updated
    make_agent: AgentFactory
    arena: Arena
    order: TaskOrder | EdgeOrder
    config: Reinforce
    seed: int
    folder: Path
    on_step: OnStep
    past: PastGroups | None = None
