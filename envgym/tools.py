"""Tools as data and as calls: a typed function becomes a `ToolSpec`, and a model's text becomes a `ToolCall`.

Two notations are understood: JSON (``{"name": ..., "arguments": {...}}``) and the compact call string
``name arg1 arg2`` whose arguments are positional in the order of the spec's properties, split as a shell
would. The compact form is what very small models emit and what `Step.legal` lists.
"""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError, create_model

from envgym.messages import ParseError, ToolCall, ToolSpec

__all__ = ["arguments_model", "check_call", "compact", "parse_call", "read_json_call", "signature", "tool_spec"]


def tool_spec(function: Callable[..., Any], *, name: str | None = None) -> ToolSpec:
    """The spec of a typed function: its name, its docstring, and a JSON schema of its parameters.

    A docstring's section ``Args:`` becomes the descriptions of the parameters in the schema, and is left out of the
    tool's own. Raises TypeError when a parameter has no annotation, or is ``*args`` or ``**kwargs``. A first
    parameter named ``self`` is left out.
    """
    description, described = _docstring(inspect.getdoc(function) or "")
    schema = arguments_model(function).model_json_schema()
    for parameter, text in described.items():
        if isinstance(part := schema.get("properties", {}).get(parameter), dict):
            part.setdefault("description", text)
    schema.pop("additionalProperties", None)
    return ToolSpec(name=name or function.__name__, description=description, parameters=schema)


def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """The pydantic model of a typed function's parameters; what it does not name is refused. As `tool_spec`."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool {function.__name__}: {parameter} has no schema; name every parameter")
        if parameter.name not in hints:
            raise TypeError(f"tool {function.__name__}: parameter {parameter.name!r} has no type annotation")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)+)", re.MULTILINE)
_PARAMETER = re.compile(r"^(\s+)(\w+)(?:\s*\([^)]*\))?:[ \t]*(.*)$")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """A docstring without its section of parameters, and what that says of each."""
    section = _SECTION.search(text)
    if section is None:
        return text, {}
    described: dict[str, str] = {}
    depth, current = 0, ""
    for line in section[2].splitlines():
        found = _PARAMETER.match(line)
        if found is not None and (not depth or len(found[1]) <= depth):
            depth, current = len(found[1]), found[2]
            described[current] = found[3]
        elif current and line.strip():
            described[current] = f"{described[current]} {line.strip()}".strip()
    return (text[: section.start()] + text[section.end() :]).strip(), described


def _properties(spec: ToolSpec) -> dict[str, dict[str, JsonValue]]:
    found = spec.parameters.get("properties", {})
    return found if isinstance(found, dict) else {}  # type: ignore[return-value]


_PIECE = re.compile(
    r"""(?P<space>[ \t\r\n]+) | '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)"
      | \\(?P<escaped>.) | (?P<plain>[^ \t\r\n'"\\]+)""",
    re.DOTALL | re.VERBOSE,
)


def _words(text: str) -> list[str]:
    """What `shlex.split` gives, in linear time: that one needs minutes for a megabyte, and models write those."""
    words: list[str] = []
    word: list[str] | None = None
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise ValueError("No escaped character" if text[at] == "\\" else "No closing quotation")
        at = found.end()
        kind = found.lastgroup or ""
        if kind == "space":
            words += [] if word is None else ["".join(word)]
            word = None
        else:
            piece = re.sub(r'\\(["\\])', r"\1", found[kind]) if kind == "double" else found[kind]
            word = [] if word is None else word
            word.append(piece)
    return words if word is None else [*words, "".join(word)]


def read_json_call(text: str) -> ToolCall | ParseError:
    """The call that a JSON text is, not checked against any spec; whatever else it is comes back as a ParseError.

    Its arguments are an object, or a text that holds one, as chat APIs write them.
    """
    try:
        raw = json.loads(text)
        arguments = raw.get("arguments", {})
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return ToolCall(name=raw["name"], arguments=arguments)
    # ValueError: no JSON, no call, an integer of thousands of digits; RecursionError: nesting as deep
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return ParseError(message=f"not a tool call: {type(error).__name__}: {error}"[:500], text=text)


def parse_call(text: str, specs: Sequence[ToolSpec]) -> ToolCall | ParseError:
    """Read a call in either notation and check it against `specs`; a mistake comes back as a ParseError."""
    text = text.strip()
    if text.startswith("{"):
        call = read_json_call(text)
        return call if isinstance(call, ParseError) else check_call(call, specs)
    try:
        words = _words(text)
    except ValueError as error:
        return ParseError(message=f"not a tool call: {error}", text=text)
    if not words:
        return ParseError(message="empty action: expected a tool call", text=text)
    spec = next((spec for spec in specs if spec.name == words[0]), None)
    if spec is None:
        return check_call(ToolCall(name=words[0]), specs)
    names = list(_properties(spec))
    if len(words) - 1 > len(names):
        return ParseError(
            message=f"{spec.name} takes at most {len(names)} arguments, got {len(words) - 1}", text=text
        )
    arguments: dict[str, JsonValue] = dict(zip(names, words[1:], strict=False))
    return check_call(ToolCall(name=spec.name, arguments=arguments), specs)


_JSON_TYPES: dict[str, TypeAdapter[Any]] = {
    "integer": TypeAdapter(int),
    "number": TypeAdapter(float),
    "string": TypeAdapter(str),
    "boolean": TypeAdapter(bool),
    "array": TypeAdapter(list[Any]),
    "object": TypeAdapter(dict[str, Any]),
}


def check_call(call: ToolCall, specs: Sequence[ToolSpec]) -> ToolCall | ParseError:
    """The call with its arguments coerced to the spec's types, or the ParseError that says what is wrong.

    It is a copy: who writes into its arguments does not change the recorded action (a list in them is shared). Half
    a surrogate pair, which models do write in JSON, is no text that a database or a file could hold.
    """
    name = call.name
    for spec in specs:
        if spec.name == name:
            break
    else:
        known = ", ".join(spec.name for spec in specs)
        return ParseError(message=f"unknown tool {call.name[:80]!r}; the tools are: {known}", text=call.name)
    checked = _coerced(call, spec)
    if type(checked) is ParseError:
        return checked
    for name, value in call.arguments.items():
        plain = name.isascii() and (value.isascii() if type(value) is str else type(value) in _PLAIN)
        if not (plain or _is_text({name: value})):
            told = f"{repr(value)[:80]} is no Unicode text: it holds half a surrogate pair"
            return ParseError(message=f"{spec.name}: {name[:80]!r}={told}")
    return checked


def _coerced(call: ToolCall, spec: ToolSpec) -> ToolCall | ParseError:
    properties = _properties(spec)
    arguments: dict[str, JsonValue] = {}
    for name, value in call.arguments.items():
        if name not in properties and spec.parameters.get("additionalProperties") is True:
            arguments[name] = value
            continue
        if name not in properties:
            return ParseError(
                message=f"{spec.name} has no argument {name!r}; it takes: {', '.join(properties) or 'none'}"
            )
        kind = properties[name].get("type", "")
        if (type(value) is str and kind == "string") or (type(value) is int and kind == "integer"):
            # what most arguments are needs no validator
            arguments[name] = value
            continue
        adapter = _JSON_TYPES.get(str(kind))
        try:
            arguments[name] = value if adapter is None else adapter.validate_python(value)
        except ValidationError:
            return ParseError(
                message=f"{spec.name}: {name}={repr(value)[:80]} is not a valid {properties[name].get('type')}"
            )
    required = spec.parameters.get("required")
    if isinstance(required, list) and (missing := [name for name in required if name not in arguments]):
        return ParseError(message=f"{spec.name} lacks its argument(s) {', '.join(map(str, missing))}")
    return ToolCall.of_known({"name": call.name, "arguments": arguments, "id": call.id})


_PLAIN = frozenset({int, float, bool, type(None)})


def _is_text(value: JsonValue) -> bool:
    """Whether all texts in a value are Unicode's, keys too."""
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not one.isascii() and any(0xD800 <= ord(char) < 0xE000 for char in set(one)):
                return False
        elif isinstance(one, dict):
            waiting += (*one, *one.values())
        elif isinstance(one, list):
            waiting += one
    return True


def compact(call: ToolCall) -> str:
    """The compact call string of a call: name and argument values, quoted where a shell would need it."""
    return shlex.join([call.name, *(str(value) for value in call.arguments.values())])


def signature(spec: ToolSpec) -> str:
    """How a tool is called, in one line, to tell who called wrong: ``name(path: string, lines: integer = 3)``."""
    required = spec.parameters.get("required", [])
    parts = []
    for name, part in _properties(spec).items():
        kind = part.get("enum") or part.get("type") or "any"
        shown = " | ".join(map(json.dumps, kind)) if isinstance(kind, list) else str(kind)
        optional = not (isinstance(required, list) and name in required)
        parts.append(f"{name}: {shown}" + (f" = {json.dumps(part.get('default'))}" if optional else ""))
    return f"{spec.name}({', '.join(parts)})"
