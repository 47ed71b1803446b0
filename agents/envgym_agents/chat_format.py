"""Between our messages and what servers of OpenAI's chat completions insist on; values in, values out.

They insist that every call has an id and is answered, right after it, by a tool message of that id; environments
answer in whatever role they like.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec, text_of
from envgym.tools import check_call, read_json_call
from envgym_agents.openai_format import message_json

__all__ = ["read_answer", "request_messages"]


def request_messages(history: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation as a request writes it: no text is lost, and every call is answered once.

    What follows a call and is no tool message answers the calls that no tool message does. A tool message that
    answers no call is the user's.
    """
    written: list[dict[str, Any]] = []
    place = 0
    while place < len(history):
        message = history[place]
        place += 1
        if not message.tool_calls:
            role = "user" if message.role == "tool" else message.role
            written.append({"role": role, "content": text_of(message)})
            continue
        end = place
        while end < len(history) and history[end].role in ("tool", "user"):
            end += 1
        written += _exchange(message, history[place:end], len(written))
        place = end
    return [_sendable(body) for body in written]


def _sendable(value: Any) -> Any:
    """With replacement characters for lone surrogates, which no request can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {name: _sendable(inner) for name, inner in value.items()}
    return [_sendable(inner) for inner in value] if isinstance(value, list) else value


def _exchange(said: Message, answers: Sequence[Message], place: int) -> list[dict[str, Any]]:
    """A message with calls and what the world answered, in the order that is insisted on."""
    ids = [f"call_{place}_{index}" for index in range(len(said.tool_calls))]
    by_own_id = {call.id: made for call, made in zip(said.tool_calls, ids, strict=True) if call.id}
    texts: dict[str, str] = {}
    others: deque[Message] = deque()
    for answer in answers:
        made = by_own_id.get(answer.tool_call_id) if answer.role == "tool" else None
        if made is None or made in texts:
            others.append(answer)
        else:
            texts[made] = text_of(answer)
    for made in ids:
        if made not in texts:
            texts[made] = text_of(others.popleft()) if others else ""
    body = message_json(said)
    for call, made in zip(body["tool_calls"], ids, strict=True):
        call["id"] = made
    tool = [{"role": "tool", "tool_call_id": made, "content": texts[made]} for made in ids]
    return [body, *tool, *({"role": "user", "content": text_of(other)} for other in others)]


def read_answer(message: Any, tools: Sequence[ToolSpec]) -> Action:
    """The action that a server's assistant message is; a bad call is data (`Action.error`), kept as text.

    Raises ValueError for what is no assistant message: the server's fault, not the model's.
    """
    if not isinstance(message, dict):
        raise ValueError("an assistant message is an object")
    content, raw_calls = message.get("content"), message.get("tool_calls") or []
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str | None) or not isinstance(raw_calls, list):
        raise ValueError("an assistant message has a text `content` and a list `tool_calls`")
    text = content or str(message.get("refusal") or "")
    calls: list[ToolCall] = []
    for raw in raw_calls:
        call = _call(raw, tools)
        if isinstance(call, ParseError):
            said = "\n".join(filter(None, [text, *(json.dumps(one.get("function")) for one in raw_calls)]))
            return Action(message=Message(role="assistant", content=said), error=call)
        calls.append(call)
    return Action(message=Message(role="assistant", content=text, tool_calls=tuple(calls)))


def _call(raw: Any, tools: Sequence[ToolSpec]) -> ToolCall | ParseError:
    if not isinstance(raw, dict) or not isinstance(raw.get("function"), dict):
        raise ValueError("a tool call is an object with an object `function`")
    name, arguments = raw["function"].get("name"), raw["function"].get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str | dict | None):
        raise ValueError("a function has a text `name` and `arguments` that are text or an object")
    call = read_json_call(json.dumps({"name": name, "arguments": arguments or {}}))
    if isinstance(call, ParseError):
        return call
    call = call.model_copy(update={"id": str(raw.get("id") or "")})
    return check_call(call, tools) if tools else call
