"""The agent ``chat``: any server that speaks OpenAI's chat completions acts, by name and options.

Its turns hold messages, costs and no token ids: they are stored and shown, and never train. `LMAgent`'s train. It
says nothing of which actions are legal (`Step.legal`), for which these requests have no word.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

from envgym.arguments import checked_between, checked_count
from envgym.env import THE_AGENT, Step
from envgym.episode import Turn
from envgym.messages import Message, ToolSpec
from envgym.policy import Reply
from envgym.provenance import UNKNOWN, telling
from envgym.task import Task
from envgym_agents.call_formats import CallFormat, read_as
from envgym_agents.call_formats import call_format as call_format_of
from envgym_agents.chat_client import ChatClient, Price, Server, shared
from envgym_agents.chat_format import request_messages

__all__ = ["ChatAgent", "chat_agent"]


class ChatAgent:
    """One actor in one episode: the conversation on one side, a server on the other.

    calls: how calls are written in the text; None for the server's own way. The server draws: equal seeds make
    no equal answers. What was said before a kill is recalled, not asked again.
    """

    def __init__(
        self,
        client: ChatClient,
        *,
        tools: tuple[ToolSpec, ...] = (),
        name: str = THE_AGENT,
        calls: CallFormat | None = None,
    ) -> None:
        self.name = name
        self._client, self._tools, self._calls = client, tools, calls
        self._history: list[Message] = []
        self._closed = False

    async def act(self, step: Step) -> Reply:
        """Answer a step. Raises Overloaded, AgentFailure, ContextFull, Misconfigured (see `ChatClient.ask`)."""
        shown: tuple[Message, ...] = ()
        if self._calls is not None and self._tools and not self._history:
            shown = (self._calls.system(self._tools),)
        self._history += (*shown, *step.observation)
        asked = request_messages(self._history)
        action, cost = await self._client.ask(asked, () if self._calls else self._tools)
        if self._calls is not None and not action.calls:
            action = read_as(self._calls, action.text, self._tools)
        self._history.append(self._kept(action.message))
        return Reply(action, cost=cost, shown=shown)

    def _kept(self, message: Message) -> Message:
        """What the server said, as it is shown to it again: calls that stand in its text are not told twice."""
        return message if self._calls is None else message.model_copy(update={"tool_calls": ()})

    def recall(self, step: Step, turn: Turn) -> None:
        """See `envgym.regain.Recalling`."""
        if self._calls is not None and self._tools and not self._history:
            self._history.append(self._calls.system(self._tools))
        self._history += (*step.observation, self._kept(turn.action.message))

    def fork(self, *, seed: int) -> "ChatAgent":
        """An agent with the same history; the server draws anew."""
        other = ChatAgent(self._client.again(seed=seed), tools=self._tools, name=self.name, calls=self._calls)
        other._history = list(self._history)
        return other

    async def close(self) -> None:
        """Give the connection back; idempotent."""
        if not self._closed:
            self._closed = True
            await self._client.close()


def _acting(*, model: str, **_options: object) -> dict[str, str]:
    """Who acts: what the server calls a model; which weights that is today, no client can know."""
    return {"model": str(model), "weights": UNKNOWN}


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of every request. Raises TypeError, ValueError for one that no server takes."""
    given = {name: value for name, value in options.items() if value is not None}
    if "max_tokens" in given:
        checked_count("max_tokens", given["max_tokens"], least=1)
    if "temperature" in given:
        checked_between("temperature", given["temperature"], 0, math.inf)
    if "top_p" in given and not checked_between("top_p", given["top_p"], 0, 1):
        raise ValueError("top_p is 0; it must be more than 0, and at most 1")
    return given


_FREE = ("base_url", "key_env", "price_in", "price_out", "most", "patience_s", "request_s")


@telling(_acting, free=_FREE)
def chat_agent(  # noqa: PLR0913  # one parameter per option
    task: Task, *, seed: int, model: str, base_url: str = "https://api.openai.com/v1",
    key_env: str = "OPENAI_API_KEY", tools: tuple[ToolSpec, ...] = (), temperature: float | None = None,
    top_p: float | None = None, max_tokens: int | None = None, price_in: float = 0.0, price_out: float = 0.0,
    most: int = 64, patience_s: float = 240.0, request_s: float = 120.0, call_format: str = "native",
) -> ChatAgent:  # fmt: skip
    """Any OpenAI-compatible server acts: `model` at `base_url`, with the key in the environment variable `key_env`.

    key_env: "" for a server without keys. temperature, top_p, max_tokens: the server's own where not given.
    price_in, price_out: US dollars per million tokens shown and sampled. most: requests at a time, fewer while the
    server answers 429 or 503. patience_s: for one answer, with all its retries; request_s: for one try.
    call_format: "native" for the server's own tool calls, or how they are written in its text: hermes, xml,
    fenced or react.
    """
    calls = None if call_format == "native" else call_format_of(call_format)
    options = _checked({"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens})
    key = os.environ.get(key_env, "") if key_env else "none"
    if not key:
        raise ValueError(
            f"--agent-option key_env={key_env}: there is no such environment variable; set it to the server's API "
            "key, or give key_env='\"\"' for a server without keys"
        )
    server = Server(base_url, key, most=most, patience_s=patience_s, request_s=request_s)
    client = shared(server, model, options, Price(price_in, price_out), seed=seed)
    return ChatAgent(client, tools=tools, calls=calls)
