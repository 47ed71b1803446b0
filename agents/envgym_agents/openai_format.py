"""Between the chat-completions JSON of OpenAI's API and our messages; values in, values out.

What a request asks for and this endpoint cannot honour is refused by name (`Refused`), never ignored.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from envgym.env import Step
from envgym.messages import Message, ToolCall, ToolSpec, text_of

__all__ = [
    "Refused", "checked_request", "message_from", "message_json", "step_json", "tool_json", "tools_from",
]  # fmt: skip

_KNOWN = frozenset(
    {
        "allowed_actions", "max_completion_tokens", "max_tokens", "messages", "metadata", "model", "n",
        "parallel_tool_calls", "seed", "store", "stream", "stream_options", "temperature", "tool_choice", "tools",
        "top_p", "user",
    }
)  # fmt: skip


class Refused(Exception):
    """A request that is answered with HTTP `status` and this message; the client's fault."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients expect it."""
        return {"error": {"message": str(self), "type": "invalid_request_error", "code": self.code, "param": None}}


def checked_request(body: Any) -> dict[str, Any]:
    """The request without its null fields. Raises Refused for what cannot be honoured."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Refused("a request is a JSON object with a non-empty list `messages`")
    request = {name: value for name, value in body.items() if value is not None}
    unknown = sorted(request.keys() - _KNOWN)
    if unknown:
        raise Refused(f"this endpoint cannot honour {', '.join(unknown)}; leave it out")
    if request.get("n", 1) != 1:
        raise Refused("this endpoint gives one choice per request: n must be 1")
    if request.get("tool_choice", "auto") != "auto":
        raise Refused('tool_choice can only be "auto"')
    return request


def message_from(raw: Any) -> Message:
    """One message of a request. Raises Refused."""
    try:
        role = {"developer": "system"}.get(raw["role"], raw["role"])
        content = raw.get("content") or ""
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                raise Refused("only text content is understood here")
            content = "".join(part["text"] for part in content)
        calls = tuple(_call_from(call) for call in raw.get("tool_calls") or ())
        return Message(role=role, content=content, tool_calls=calls, tool_call_id=raw.get("tool_call_id") or "")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(f"not a chat message: {type(error).__name__}: {error}") from error


def _call_from(raw: Mapping[str, Any]) -> ToolCall:
    function = raw["function"]
    arguments = function.get("arguments") or "{}"
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return ToolCall(name=function["name"], arguments=arguments, id=raw.get("id") or "")


def tools_from(raw: Sequence[Any]) -> tuple[ToolSpec, ...]:
    """The tools of a request. Raises Refused."""
    try:
        return tuple(
            ToolSpec(
                name=tool["function"]["name"],
                description=tool["function"].get("description") or "",
                parameters=tool["function"].get("parameters") or {"type": "object", "properties": {}},
            )
            for tool in raw
        )
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise Refused(f"not a list of function tools: {type(error).__name__}: {error}") from error


def tool_json(tool: ToolSpec) -> dict[str, Any]:
    """A tool as a request offers it."""
    return {"type": "function", "function": tool.model_dump()}


def message_json(message: Message) -> dict[str, Any]:
    """A message as requests and responses write it."""
    body: dict[str, Any] = {"role": message.role, "content": text_of(message) or None}
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    return body


def step_json(step: Step | None, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """What an agent program sees of a step; None is the end of the episode."""
    if step is None:
        return {"done": True, "messages": [], "reward": None, "legal": None, "tools": []}
    return {
        "done": step.stop is not None,
        "messages": [message_json(message) for message in step.observation],
        "reward": step.reward,
        "legal": None if step.legal is None else list(step.legal),
        "tools": [tool_json(tool) for tool in tools],
    }
