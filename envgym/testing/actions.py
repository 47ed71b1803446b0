"""Actions to drive an environment with: legal ones where it lists them, calls drawn from its schemas otherwise.

Everything is drawn from a numpy Generator that is passed in. It also holds the bad actions that every environment
must answer as data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from envgym.env import Step
from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.tools import parse_call

__all__ = ["action_of", "bad_actions", "sample_action", "sample_value"]

_TEXTS = ("", "a", "hello world", "0", "-1", "a b", "naïve 東京", "line\nline", "'\"", "*.py", "/", "x" * 40)


def action_of(text: str, tools: Sequence[ToolSpec]) -> Action:
    """The action that a compact or JSON call stands for. Raises ValueError when it is none of `tools`."""
    call = parse_call(text, tools)
    if isinstance(call, ParseError):
        raise ValueError(f"{text!r} is no call of these tools: {call.message}")
    return Action(message=Message(role="assistant", tool_calls=(call,)))


def sample_action(step: Step, tools: Sequence[ToolSpec], rng: np.random.Generator) -> Action:
    """An action for `step`: one of its legal ones, else a call of a random tool, else a random text."""
    if step.legal:
        chosen = step.legal[int(rng.integers(len(step.legal)))]
        return action_of(chosen, tools) if tools else Action.say(chosen)
    if not tools:
        return Action.say(_TEXTS[int(rng.integers(len(_TEXTS)))])
    spec = tools[int(rng.integers(len(tools)))]
    arguments = sample_value(spec.parameters, rng)
    assert isinstance(arguments, dict)
    return Action(message=Message(role="assistant", tool_calls=(ToolCall(name=spec.name, arguments=arguments),)))


def sample_value(
    schema: Mapping[str, Any], rng: np.random.Generator, defs: Mapping[str, Any] | None = None
) -> JsonValue:
    """A random value that a JSON schema admits: types, enum, const, bounds, anyOf, local references."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if "$ref" in schema:
        return sample_value(defs[schema["$ref"].rsplit("/", 1)[-1]], rng, defs)
    if "const" in schema:
        return schema["const"]  # type: ignore[no-any-return]
    choices = schema.get("enum") or schema.get("anyOf") or schema.get("oneOf")
    if choices:
        chosen = choices[int(rng.integers(len(choices)))]
        return chosen if "enum" in schema else sample_value(chosen, rng, defs)
    match schema.get("type", "string"):
        case "object":
            return _sample_object(schema, rng, defs)
        case "array":
            count = int(rng.integers(schema.get("minItems", 0), schema.get("maxItems", 3) + 1))
            return [sample_value(schema.get("items", {}), rng, defs) for _ in range(count)]
        case "integer":
            low, high = _bounds(schema)
            return int(rng.integers(int(low), int(high) + 1))
        case "number":
            return float(rng.uniform(*_bounds(schema)))
        case "boolean":
            return bool(rng.integers(2))
        case "null":
            return None
    text = _TEXTS[int(rng.integers(len(_TEXTS)))]
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]


def _sample_object(schema: Mapping[str, Any], rng: np.random.Generator, defs: Mapping[str, Any]) -> JsonValue:
    required = schema.get("required", [])
    return {
        name: sample_value(part, rng, defs)
        for name, part in schema.get("properties", {}).items()
        if name in required or rng.integers(2)
    }


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    span = 20.0  # where a schema leaves a side open
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = -10.0 if high is None else high - span
    high = low + span if high is None else high
    low, high = low + ("exclusiveMinimum" in schema), high - ("exclusiveMaximum" in schema)
    return float(low), float(max(low, high))


def bad_actions(tools: Sequence[ToolSpec]) -> dict[str, Action]:
    """What a model may say and no environment may break on, by name: unknown tools, wrong arguments, odd texts.

    A call whose arguments are all wrong is refused for the first of them. So each text of an otherwise valid call
    is cut in the middle of a character, too (half a surrogate pair, as models write in JSON).
    """
    huge = "x" * (1 << 20)
    odd = "\x00\ud800\uffff‮\U0010ffff"
    found = {
        "an empty text": Action.say(""),
        "a text instead of a call": Action.say("I think about it."),
        "a huge text": Action.say(huge),
        "a text with NUL and lone surrogates": Action.say(odd),
        "an unknown tool": Action.call("no_such_tool", x=1),
        "a parse error": Action(
            message=Message(role="assistant", content="{bad"), error=ParseError(message="not JSON", text="{bad")
        ),
    }
    for spec in tools:
        names = list(spec.parameters.get("properties", {}) or {})  # type: ignore[arg-type]
        found[f"{spec.name} without arguments"] = Action.call(spec.name)
        found[f"{spec.name} with an unknown argument"] = Action.call(spec.name, **{"no such argument": 1})
        for kind, value in (("null", None), ("list", [[]]), ("huge", huge), ("odd unicode", odd)):
            arguments: dict[str, JsonValue] = dict.fromkeys(names, value)  # type: ignore[arg-type]
            found[f"{spec.name} with {kind} arguments"] = Action.call(spec.name, **arguments)
        found |= _half_characters(spec)
    return found


def _half_characters(spec: ToolSpec) -> dict[str, Action]:
    """Of each argument that is a text a valid call but for the end of that text."""
    valid = sample_value(spec.parameters, np.random.default_rng(0))
    assert isinstance(valid, dict)
    parts: Any = spec.parameters.get("properties", {})
    return {
        f"{spec.name} with half a character in {name}": Action.call(spec.name, **(valid | {name: "Lunch \ud83d"}))
        for name, part in parts.items()
        if part.get("type") == "string"
    }
