"""`LMAgent`: a conversation on one side, tokens on the other, one policy behind.

It owns the append-only context, asks the policy for the next message and reads it as an action. Two formats:
"compact", one action token chosen among the legal ones, and "text", free text up to the end of the turn, with tool
calls in it. It knows nothing of rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from envgym.env import THE_AGENT, Env, Step
from envgym.episode import Turn
from envgym.errors import ContextFull, Misconfigured
from envgym.limits import Sampling
from envgym.messages import Action, Message, ToolSpec
from envgym.policy import Completion, Policy, Prompt, Reply, Session
from envgym.task import Task
from envgym_agents.call_formats import HERMES, CallFormat, read_as
from envgym_agents.compaction import compacted, notes
from envgym_agents.conversation import image_parts
from envgym_agents.template import Added, Conversation, Template

__all__ = ["Format", "LMAgent", "LMAgents", "tools_message", "turn_seed"]

Format = Literal["compact", "text"]


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn's draw, in [0, 2**63): the first word of ``SeedSequence([seed, turn])``, halved."""
    return int(np.random.SeedSequence([seed, turn]).generate_state(1, np.uint64)[0] >> 1)


def tools_message(tools: Sequence[ToolSpec]) -> Message:
    """The system message that shows tools and the way to call them in the "text" format."""
    return HERMES.system(tools)


@dataclass(frozen=True, slots=True)
class LMAgents:
    """Makes one `LMAgent` per episode; satisfies `envgym.policy.AgentFactory`.

    format: "compact" needs a tokenizer with action tokens. sampling: `max_tokens`, `temperature` and `top_p` are
    used; stop ids, allowed ids and seeds are set per turn. tools: to check and name the arguments of calls;
    `for_env` takes the environment's own. calls: how calls are written in the "text" format. max_length: of the
    context, None for the policy's bound (4,096 where it names none).
    """

    policy: Policy
    template: Template
    format: Format = "compact"
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[ToolSpec, ...] = ()
    max_length: int | None = None
    name: str = THE_AGENT
    calls: CallFormat = HERMES

    def __post_init__(self) -> None:
        if self.format == "compact" and not self.template.actions:
            raise ValueError(
                'format "compact" needs a tokenizer with one token per action (train_tokenizer(actions=...)); this '
                'one has none: use format "text"'
            )
        least = self.answer_tokens + 64
        if self.context < least:
            raise ValueError(f"the context of {self.context} ids is too short for answers: it must be {least}")

    def __call__(self, task: Task, *, seed: int) -> "LMAgent":
        """An agent for `task` whose every draw comes from `seed`."""
        return LMAgent(self, seed=seed)

    def for_env(self, env: Env, *, seed: int) -> "LMAgent":
        """An agent that knows the tools of `env`."""
        return LMAgent(replace(self, tools=env.tools), seed=seed)

    @property
    def answer_tokens(self) -> int:
        """The most ids one answer takes."""
        return 1 if self.format == "compact" else self.sampling.max_tokens

    @property
    def context(self) -> int:
        """The most ids a context may hold, the answer included."""
        own = getattr(self.policy, "max_length", None)
        bounds = [bound for bound in (self.max_length, own) if bound is not None]
        return min(bounds, default=4096)


class LMAgent:
    """One actor in one episode.

    When a context would outgrow its bound it is compacted: a new segment begins with the first and the latest
    messages (see `envgym_agents.compaction`); nothing is raised and nothing sampled is lost from the record. One
    that shows images is not: ContextFull.
    In the "compact" format a step that lists no legal actions leaves every action token open. An environment
    that lists an action without a token is the programmer's fault: ValueError.
    """

    def __init__(self, maker: LMAgents, *, seed: int) -> None:
        self.name = maker.name
        self._maker, self._seed = maker, seed
        self._conversation: Conversation = maker.template.open()
        self._session: Session = maker.policy.session()
        self._history: list[Message] = []
        self._turn = 0

    async def act(self, step: Step) -> Reply:
        """Answer a step."""
        maker = self._maker
        sampling = self._sampling(step)
        observed = self._observed(step)
        added = self._show(observed)
        prompt = Prompt(self._conversation.ids, tuple(self._conversation.images))
        completion = await maker.policy.sample(prompt, sampling, self._session)
        action = self._read(completion)
        self._history.append(action.message)
        self._turn += 1
        shown = observed[: len(observed) - len(step.observation)]  # the tools: no world says them
        if added.segment and not added.position:
            shown += notes(self._history)
        return Reply(
            action, added.ids, completion, added.segment, added.position, sampling.allowed, roles=added.roles,
            shown=shown,
        )  # fmt: skip

    def recall(self, step: Step, turn: Turn) -> None:
        """See `envgym.regain.Recalling`: the ids that were sampled are taken as they are; nothing is sampled."""
        added = self._show(self._observed(step))
        place = (added.segment, added.position)
        if list(added.ids) != turn.prompt_ids.tolist() or place != (turn.segment, turn.position):
            raise ValueError(
                f"in turn {self._turn} the template adds {len(added.ids)} ids at {place}, and "
                f"{len(turn.prompt_ids)} were recorded at {(turn.segment, turn.position)}"
            )
        text = self._conversation.said(turn.sampled_ids.tolist())
        self._history.append(read_as(self._maker.calls, text, self._maker.tools).message)
        self._turn += 1

    def fork(self, *, seed: int) -> "LMAgent":
        """An agent with the same history and cache whose further draws come from `seed`."""
        other = LMAgent.__new__(LMAgent)
        other.name, other._maker, other._seed = self.name, self._maker, seed
        other._conversation, other._session = self._conversation.fork(), self._session.fork()
        other._history, other._turn = list(self._history), self._turn
        return other

    async def close(self) -> None:
        """Release the session; idempotent."""
        self._session.close()

    def _observed(self, step: Step) -> tuple[Message, ...]:
        maker = self._maker
        self._look(step)
        if self._turn == 0 and maker.format == "text" and maker.tools:
            return (maker.calls.system(maker.tools), *step.observation)
        return step.observation

    def _look(self, step: Step) -> None:
        """Take the pictures of a step. Raises Misconfigured where the model sees none, or they have no bytes."""
        names = [part.sha256 for message in step.observation for part in image_parts(message)]
        if names and self._maker.template.eyes is None:
            raise Misconfigured(
                "the environment shows images, and this model reads text only: choose what it shows (its option "
                "`see`, where it has one), or a folder with a vision-language model and its processor"
            )
        self._conversation.pictures |= step.images
        if lost := [name for name in names if name not in self._conversation.pictures]:
            raise Misconfigured(f"the environment shows image {lost[0]} without its bytes in Step.images")

    def _show(self, messages: tuple[Message, ...]) -> Added:
        conversation, room = self._conversation, self._maker.context - self._maker.answer_tokens
        history = [*self._history, *messages]
        added = conversation.offer(messages, room)
        if added is None and (conversation.images or any(map(_shows, messages))):
            raise ContextFull(f"a context of {room} ids holds no more, and images are not compacted")
        if added is None:
            history = compacted(history, room, self._maker.template.open().cost)
            added = conversation.restart(history)
        self._history = history
        return added

    def _sampling(self, step: Step) -> Sampling:
        maker = self._maker
        seed = turn_seed(self._seed, self._turn)
        if maker.format == "text":
            return replace(maker.sampling, stop_ids=maker.template.stop_ids, allowed=None, seed=seed)
        actions = maker.template.actions
        legal = actions if not step.legal else step.legal
        unknown = [action for action in legal if action not in actions]
        if unknown:
            raise ValueError(
                f"the environment allows {unknown[:5]} but the tokenizer has no token for "
                f"{'it' if len(unknown) == 1 else 'them'}; train it with these actions, or use format 'text'"
            )
        allowed = tuple(sorted(actions[action] for action in legal))
        return replace(maker.sampling, max_tokens=1, stop_ids=(), allowed=allowed, seed=seed)

    def _read(self, completion: Completion) -> Action:
        text = self._conversation.said(completion.ids)
        return read_as(self._maker.calls, text, self._maker.tools)


def _shows(message: Message) -> bool:
    return any(image_parts(message))
