"""From sampled text to an `Action`; what cannot be read comes back as data, not as an exception."""

import re
from collections.abc import Sequence

from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.tools import parse_call, read_json_call

__all__ = ["read_action", "read_calls"]

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def read_action(text: str, tools: Sequence[ToolSpec] = ()) -> Action:
    """The action that a model's text is.

    Understood: ``<tool_call>{...}</tool_call>`` blocks, a bare JSON call, and a compact call whose first word is
    one of `tools`; anything else is plain text. Calls are checked against `tools` where there are any. The message
    keeps the text as it was said.
    """
    found = read_calls(text, tools)
    if isinstance(found, ParseError):
        return Action(message=Message(role="assistant", content=text), error=found)
    return Action(message=Message(role="assistant", content=text, tool_calls=found))


def read_calls(text: str, tools: Sequence[ToolSpec] = ()) -> tuple[ToolCall, ...] | ParseError:
    """The tool calls in a text, in order; none for plain text; the first mistake instead."""
    bare = text.strip()
    blocks = [block.strip() for block in _CALL.findall(text)]
    if not blocks and bare.startswith("{"):
        blocks = [bare]
    if not blocks:
        words = bare.split(maxsplit=1)
        if not words or all(words[0] != spec.name for spec in tools):
            return ()
        blocks = [bare]
    calls = []
    for index, block in enumerate(blocks):
        call = parse_call(block, tools) if tools else read_json_call(block)
        if isinstance(call, ParseError):
            return call
        calls.append(call if len(blocks) == 1 else call.model_copy(update={"id": call.id or f"call-{index}"}))
    return tuple(calls)
