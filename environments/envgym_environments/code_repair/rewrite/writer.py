"""Who writes: any registered agent, asked one question at a time.

The agent `chat` is any OpenAI-compatible endpoint, `lm` a local policy; a script is one too. It answers a message
and has no tools; nothing here knows what it is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from envgym.env import Step
from envgym.messages import Message
from envgym.options import wrong_option
from envgym.policy import AgentFactory
from envgym.registry import find
from envgym.task import Task

__all__ = ["Writer"]


@dataclass(frozen=True, slots=True)
class Writer:
    """A source of text. name, options: say who it is, in provenance and in the keys of stopped builds.

    make: ``make(task, *, seed, **options) -> Agent``, called for every question.
    """

    name: str
    make: AgentFactory = field(repr=False, compare=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def named(cls, name: str, options: Mapping[str, Any] | None = None) -> Self:
        """A registered agent. Raises ValueError for an unknown one, or for an option that it does not have."""
        made, given = find("agents", name), dict(options or {})
        if (
            wrong := wrong_option(f"agent {name!r}: option", given, made, given={"seed", "tools"}, skip=1)
        ) is not None:
            raise ValueError(wrong)
        return cls(name, made, given)

    @classmethod
    def endpoint(cls, base_url: str, model: str, *, key_env: str = "") -> Self:
        """An OpenAI-compatible server. key_env: the environment variable with its key, "" for one without."""
        return cls.named("chat", {"base_url": base_url, "model": model, "key_env": key_env})

    @property
    def told(self) -> str:
        """Who it is, for provenance; where a server is, is not part of it."""
        model = self.options.get("model")
        return f"{self.name} {model}" if model else self.name

    async def ask(self, question: str, *, about: Task, seed: int) -> str:
        """Its answer, "" where it said nothing that is text. Raises EnvgymError where it cannot be reached."""
        agent = self.make(about, seed=seed, **self.options)
        try:
            reply = await agent.act(Step(observation=(Message(role="user", content=question),)))
            return "" if reply.action.error is not None and not reply.action.text else reply.action.text
        finally:
            await agent.close()
