"""Schemas that somebody else wrote: looked at before they are believed, and calls checked against them.

A foreign server may send a schema that is none, that points outside, that never ends or that takes a year to check.
What is wrong is said in words; the tool stays callable with any arguments, and the server is left to judge them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from envgym.messages import ToolSpec
from envgym.toolbox import bounded_text

__all__ = ["argument_errors", "foreign_spec", "honest_schema", "tool_name"]

_MOST_BYTES, _MOST_DEPTH, _MOST_DESCRIPTION = 64 * 1024, 24, 4000
_SLOW = ("pattern", "patternProperties", "format")
"""Left out of checks: a regular expression can be written that takes for ever; the server checks them itself."""
_OPEN: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
_REGISTRY: Registry[Any] = Registry()
"""Knows nothing and asks nobody: a reference that leads out of a schema is an error, never a request."""


def foreign_spec(name: str, description: object, raw: object) -> tuple[ToolSpec, str | None]:
    """The spec of a foreign tool, and what was wrong with its schema, if something was."""
    schema, wrong = honest_schema(raw)
    told = bounded_text(str(description or "").strip() or f"The tool {name}.", _MOST_DESCRIPTION)
    return ToolSpec(name=name, description=told, parameters=schema), wrong


def honest_schema(raw: object) -> tuple[dict[str, JsonValue], str | None]:
    """The schema as it is, or one that takes any object and the reason why."""
    wrong = _wrong(raw)
    if wrong is not None:
        return dict(_OPEN), wrong
    assert isinstance(raw, dict)
    return {**raw, "properties": raw.get("properties", {})}, None


def _wrong(raw: object) -> str | None:
    if not isinstance(raw, dict):
        return f"the schema is {type(raw).__name__}, not an object"
    try:
        if (size := len(json.dumps(raw))) > _MOST_BYTES:
            return f"the schema has {size} bytes; at most {_MOST_BYTES} are read"
    except (TypeError, ValueError, RecursionError) as error:
        return f"the schema is no JSON: {error}"
    if raw.get("type", "object") != "object" or not isinstance(raw.get("properties", {}), dict):
        return "the schema does not describe an object"
    if _depth(raw) > _MOST_DEPTH:
        return f"the schema is nested deeper than {_MOST_DEPTH}"
    properties, required = raw.get("properties", {}), raw.get("required", [])
    if not isinstance(required, list) or not {str(name) for name in required} <= set(properties):
        return "the schema requires what it does not describe"
    try:
        jsonschema.Draft202012Validator.check_schema(_checkable(raw))
    except (jsonschema.SchemaError, RecursionError, TypeError) as error:
        return f"the schema is none: {str(error).splitlines()[0][:200]}"
    return next((f"the schema points to {ref[:80]!r}, where nothing is" for ref in _nowhere(raw)), None)


def _nowhere(schema: dict[str, Any]) -> Iterator[str]:
    """The references of a schema that lead out of it, or to nothing in it."""
    resolver = _REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    level: list[Any] = [schema]
    while level:
        one = level.pop()
        level += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        ref = one.get("$ref") if isinstance(one, dict) else None
        if isinstance(ref, str):
            try:
                resolver.lookup(ref)
            except (Unresolvable, ValueError):
                yield ref


def _depth(value: object) -> int:
    """How deep a value is nested, counted level by level and no further than is asked."""
    level, depth = [value], 0
    while level and depth <= _MOST_DEPTH:
        level = [
            inner for one in level if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]  # fmt: skip
        depth += 1
    return depth


def _checkable(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _checkable(part) for name, part in schema.items() if name not in _SLOW}
    return [_checkable(part) for part in schema] if isinstance(schema, list) else schema


def argument_errors(schema: Mapping[str, Any], arguments: Mapping[str, JsonValue]) -> str | None:
    """What is wrong with arguments, in a sentence; None where nothing is."""
    validator = jsonschema.Draft202012Validator(_checkable(dict(schema)), registry=_REGISTRY)
    try:
        told = []
        for error in validator.iter_errors(dict(arguments)):
            where = ".".join(map(str, error.absolute_path)) or "arguments"
            told.append(f"{where}: {error.message[:200]}")
            if len(told) == 4:
                break
    except (Unresolvable, RecursionError, TypeError, ValueError, KeyError) as error:
        return f"the schema cannot be followed: {type(error).__name__}"
    return "; ".join(told) or None


def tool_name(raw: object) -> str | None:
    """A name that models can say: one word of up to 64 characters; None for what cannot be made one."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(raw)).strip("_")[:64]
    return name or None
