"""Schemas that somebody else wrote: looked at before they are believed, and calls checked against them.

A foreign server may send a schema that is none, that points outside, that never ends or that takes a year to check.
What is wrong is said in words; the tool stays callable with any arguments, and the server is left to judge them.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jsonschema
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from envgym.messages import ToolSpec
from envgym.toolbox import bounded_text

__all__ = ["foreign_spec", "honest_schema", "promised_schema", "schema_errors", "tool_name"]

_MOST_BYTES, _MOST_DEPTH, _MOST_DESCRIPTION = 64 * 1024, 24, 4000
_MOST_AT_ONCE, _MOST_HOPS = 2000, 64
"""Schemas that one value is checked against, those that are referred to among them, and references in a row."""
_MOST_WORK, _ONE_CHECK = 1_000_000, 16
"""What checking one value may cost, in entries that are looked at; and what a keyword costs beside its entries."""
_SLOW = ("pattern", "patternProperties", "format")
"""Left out of checks: a regular expression can be written that takes for ever; the server checks them itself."""
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose schemas stand below names, which may be those of keywords."""
_LISTED, _SINGLE = ("allOf", "anyOf", "oneOf"), ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef")
_LOST = (Unresolvable, ValueError, TypeError, AttributeError)
"""What looking a reference up raises; the last two where it leads into a number, or into what is no schema."""
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


def promised_schema(raw: object) -> tuple[dict[str, Any] | None, str | None]:
    """The schema of a tool's result, None where there is none to check by; and what is wrong with it."""
    wrong = None if raw is None else _uncheckable(raw)
    return (raw if isinstance(raw, dict) and wrong is None else None), wrong


def _wrong(raw: object) -> str | None:
    """Why a schema is none of arguments."""
    if not isinstance(raw, dict):
        return _uncheckable(raw)
    properties, required = raw.get("properties", {}), raw.get("required", [])
    if raw.get("type", "object") != "object" or not isinstance(properties, dict):
        return "the schema does not describe an object"
    if not isinstance(required, list) or not {str(name) for name in required} <= set(properties):
        return "the schema requires what it does not describe"
    return _uncheckable(raw)


def _uncheckable(raw: object) -> str | None:
    if not isinstance(raw, dict):
        return f"the schema is {type(raw).__name__}, not an object"
    try:
        if (size := len(json.dumps(raw))) > _MOST_BYTES:
            return f"the schema has {size} bytes; at most {_MOST_BYTES} are read"
    except (TypeError, ValueError, RecursionError) as error:
        return f"the schema is no JSON: {error}"
    if _depth(raw) > _MOST_DEPTH:
        return f"the schema is nested deeper than {_MOST_DEPTH}"
    schema = _checkable(raw)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError, TypeError, re.error) as error:
        return f"the schema is none: {str(error).splitlines()[0][:200]}"
    if (lost := next(_nowhere(schema), None)) is not None:
        return f"the schema points to {lost[:80]!r}, where nothing is"
    return _endless(schema)


def _endless(schema: dict[str, Any]) -> str | None:
    """What is wrong with how often a schema refers to others for the same value: each may double what follows."""
    found: dict[int, tuple[float, float]] = {}
    resolver = _REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))

    def reached(node: Any) -> tuple[float, float]:
        """How many schemas a value is checked against here, and how far the last of them is."""
        if not isinstance(node, dict):
            return 1, 0
        if id(node) not in found:
            found[id(node)] = math.inf, math.inf  # until it is known: who meets it now is inside of it
            inner = [reached(one) for one in _at_once(node, resolver)]
            found[id(node)] = 1 + sum(count for count, _ in inner), 1 + max((far for _, far in inner), default=0)
        return found[id(node)]

    try:
        for node in _nodes(schema):
            count, far = reached(node)
            if math.inf in (count, far):
                return "the schema refers to itself without end"
            if count > _MOST_AT_ONCE or far > _MOST_HOPS:
                return (
                    f"the schema has {count:g} schemas for one value, {far:g} references deep; at most "
                    f"{_MOST_AT_ONCE} and {_MOST_HOPS} are followed"
                )
    except RecursionError:
        return f"the schema has more than {_MOST_HOPS} references in a row"
    return None


def _at_once(node: dict[str, Any], resolver: Any) -> Iterator[Any]:
    """The schemas that a value must be checked against beside this one."""
    for name in _LISTED:
        yield from part if isinstance(part := node.get(name), list) else ()
    yield from (node[name] for name in _SINGLE if name in node)
    yield from part.values() if isinstance(part := node.get("dependentSchemas"), dict) else ()
    for name in _REFERENCES:
        if isinstance(ref := node.get(name), str):
            try:
                yield resolver.lookup(ref).contents
            except _LOST:  # of `$dynamicRef`; `_nowhere` names the others
                continue


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All objects of a schema."""
    level: list[Any] = [schema]
    while level:
        one = level.pop()
        level += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if isinstance(one, dict):
            yield one


def _nowhere(schema: dict[str, Any]) -> Iterator[str]:
    """The references of a schema that lead out of it, or to nothing in it."""
    resolver = _REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
    for one in _nodes(schema):
        ref = one.get("$ref")
        if isinstance(ref, str):
            try:
                resolver.lookup(ref)
            except _LOST:
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
    """A schema without what is not checked here; names of properties stay, whatever they are."""
    if isinstance(schema, list):
        return [_checkable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    left_out: tuple[str, ...] = (*_SLOW, "$schema")  # another draft's checks are not bounded
    if "patternProperties" in schema:  # what they would have named is not known
        left_out += ("additionalProperties", "unevaluatedProperties")
    kept: dict[str, Any] = {}
    for name, part in schema.items():
        if name in _NAMED and isinstance(part, dict):
            kept[name] = {key: _checkable(one) for key, one in part.items()}
        elif name not in left_out:
            kept[name] = _checkable(part)
    return kept


class _TooMuch(Exception):  # no fault of the value
    """Checking takes more than it may."""


_WORK: ContextVar[list[int]] = ContextVar("work")
"""What is left of `_MOST_WORK` while one value is checked."""


def _counted(check: Callable[..., Any]) -> Callable[..., Any]:
    """A keyword's check that first takes from what is left."""

    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        left = _WORK.get()
        sizes = [len(one) if isinstance(one, dict | list) else 0 for one in (value, instance)]
        left[0] -= _ONE_CHECK + sum(sizes)
        if (
            check is _UNIQUE
            and isinstance(instance, list)
            and any(isinstance(one, dict | list) for one in instance)
        ):
            left[0] -= sizes[1] ** 2  # each is compared with each
        if left[0] < 0:
            raise _TooMuch
        return check(validator, value, instance, schema)

    return counting


_UNIQUE = jsonschema.Draft202012Validator.VALIDATORS["uniqueItems"]
_Bounded: Any = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {name: _counted(check) for name, check in jsonschema.Draft202012Validator.VALIDATORS.items()},
)


def schema_errors(schema: dict[str, Any], value: JsonValue, *, what: str = "arguments") -> str | None:
    """What is wrong with a value, in a sentence; None where nothing is, or where to find it takes too long."""
    validator = _Bounded(_checkable(schema), registry=_REGISTRY)
    before = _WORK.set([_MOST_WORK])
    try:
        told = []
        for error in validator.iter_errors(value):
            where = ".".join(map(str, error.absolute_path)) or what
            told.append(f"{where}: {error.message[:200]}")
            if len(told) == 4:
                break
    except _TooMuch:
        return None
    except (*_LOST, RecursionError, KeyError, re.error) as error:
        return f"the schema cannot be followed: {type(error).__name__}"
    finally:
        _WORK.reset(before)
    return "; ".join(told) or None


def tool_name(raw: object) -> str | None:
    """A name that models can say: one word of up to 64 characters; None for what cannot be made one."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(raw)).strip("_")[:64]
    return name or None
