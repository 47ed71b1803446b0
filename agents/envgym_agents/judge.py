"""Who is asked by the judges of `envgym.rewards`: a policy behind a template, or a server."""

from dataclasses import dataclass, field, replace

from envgym.errors import ContextFull
from envgym.limits import Sampling
from envgym.messages import Message
from envgym.policy import Policy, Prompt
from envgym_agents.chat_client import ChatClient
from envgym_agents.template import Template

__all__ = ["ChatAsker", "PolicyAsker"]


@dataclass(frozen=True, slots=True)
class PolicyAsker:
    """A policy answers; equal seeds give equal answers. context: the most ids of question and answer together."""

    policy: Policy
    template: Template
    sampling: Sampling = field(default_factory=Sampling)
    context: int = 4096

    async def ask(self, question: str, *, seed: int) -> str:
        """The answer. Raises ContextFull for a question that is too long."""
        conversation = self.template.open()
        room = self.context - self.sampling.max_tokens
        if conversation.offer((Message(role="user", content=question),), room) is None:
            raise ContextFull(f"the question does not fit into {room} ids; raise PolicyAsker.context, or cut it")
        session = self.policy.session()
        try:
            sampling = replace(self.sampling, stop_ids=self.template.stop_ids, allowed=None, seed=seed)
            completion = await self.policy.sample(Prompt(conversation.ids), sampling, session)
        finally:
            session.close()
        return conversation.said(completion.ids)


@dataclass(frozen=True, slots=True)
class ChatAsker:
    """A server answers (`envgym_agents.chat_client.shared`); it draws by itself, whatever the seed."""

    client: ChatClient

    async def ask(self, question: str, *, seed: int) -> str:
        """The answer. Raises what `ChatClient.ask` does."""
        action, _cost = await self.client.ask([{"role": "user", "content": question}])
        return action.text
