"""How tool calls are written in text: one value per format, with what it tells a model, reads and writes.

What cannot be read is data: a `ParseError` that says what is wrong and shows how a call is written. Servers
that have calls of their own ("native") need none of these.
"""

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from envgym.messages import Action, Message, ParseError, ToolCall, ToolSpec
from envgym.options import hint
from envgym.tools import check_call, read_json_call
from envgym_agents.parse import read_calls

__all__ = ["FENCED", "FORMATS", "HERMES", "REACT", "XML", "CallFormat", "call_format", "read_as"]

Found = tuple[ToolCall, ...] | ParseError


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way to write calls.

    how: the sentence that tells a model, below the list of tools. read: the calls of a text, none for plain
    text, the first mistake instead. write: calls as text, after a thought where there is one.
    """

    name: str
    how: str
    example: str
    read: Callable[[str, Sequence[ToolSpec]], Found]
    write: Callable[[Sequence[ToolCall], str], str]

    def system(self, tools: Sequence[ToolSpec]) -> Message:
        """The system message that shows tools and the way to call them."""
        lines = "\n".join(tool.model_dump_json() for tool in tools)
        return Message(role="system", content=f"Tools, one JSON object per line:\n{lines}\n{self.how}")


def call_format(name: str) -> CallFormat:
    """The format of a name. Raises ValueError, with the nearest ones, for any other."""
    if name not in FORMATS:
        raise ValueError(f"call_format is {name!r}; {hint(str(name), list(FORMATS))}")
    return FORMATS[name]


def read_as(form: CallFormat, text: str, tools: Sequence[ToolSpec]) -> Action:
    """The action that a text is in a format; the message keeps the text as it was said."""
    found = form.read(text, tools)
    if isinstance(found, ParseError):
        told = f"{found.message}. A call is written so: {form.example}"
        error = found if found.message.endswith(form.example) else found.model_copy(update={"message": told})
        return Action(message=Message(role="assistant", content=text), error=error)
    if len(found) > 1:
        found = tuple(c if c.id else c.model_copy(update={"id": f"call-{at}"}) for at, c in enumerate(found))
    return Action(message=Message(role="assistant", content=text, tool_calls=found))


def _checked(calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> Found:
    found = []
    for call in calls:
        checked = check_call(call, tools) if tools else call
        if isinstance(checked, ParseError):
            return checked
        found.append(checked)
    return tuple(found)


def _json_of(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _joined(thought: str, blocks: Sequence[str]) -> str:
    return "\n".join([*([thought] if thought else []), *blocks])


# -- Hermes, Qwen ------------------------------------------------------------------------------------------------

HERMES = CallFormat(
    "hermes",
    'To use one, answer with <tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    '<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    read_calls,
    lambda calls, thought: _joined(thought, [f"<tool_call>{_json_of(call)}</tool_call>" for call in calls]),
)

# -- XML, as Qwen3-Coder writes it -------------------------------------------------------------------------------

_FUNCTION = re.compile(r"<function=([^>\n]{1,200})>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,200})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def _read_xml(text: str, tools: Sequence[ToolSpec]) -> Found:
    if "<function=" not in text:
        if "<tool_call>" in text:
            return ParseError(message="a <tool_call> without <function=NAME>", text=text)
        return ()
    calls = []
    for name, body in _FUNCTION.findall(text):
        spec = next((tool for tool in tools if tool.name == name.strip()), None)
        arguments: dict[str, JsonValue] = {}
        for key, value in _PARAMETER.findall(body):
            if (key := key.strip()) in arguments:
                told = f"{name.strip()[:80]} got its argument {key[:80]} twice; give each once"
                return ParseError(message=told, text=text)
            arguments[key] = _typed(spec, key, value)
        calls.append(ToolCall(name=name.strip(), arguments=arguments))
    return _checked(calls, tools) if calls else ParseError(message="a <function=...> that does not end", text=text)


def _typed(spec: ToolSpec | None, name: str, value: str) -> JsonValue:
    """A parameter's text: itself where the schema wants text, JSON where it wants anything else and it is some."""
    value = value.removeprefix("\n").removesuffix("\n")
    properties: Any = {} if spec is None else spec.parameters.get("properties", {})
    part = properties.get(name, {})
    if part.get("type") == "string" or (not part and spec is not None):
        return value
    try:
        found: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found


def _write_xml(calls: Sequence[ToolCall], thought: str) -> str:
    blocks = []
    for call in calls:
        given = [
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>"
            for name, value in call.arguments.items()
        ]
        inside = "\n".join([f"<function={call.name}>", *given, "</function>"])
        blocks.append(f"<tool_call>\n{inside}\n</tool_call>")
    return _joined(thought, blocks)


_XML_EXAMPLE = "<tool_call><function=NAME><parameter=ARGUMENT>value</parameter></function></tool_call>"
XML = CallFormat("xml", f"To use one, answer with {_XML_EXAMPLE}", _XML_EXAMPLE, _read_xml, _write_xml)

# -- fenced code -------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"```[ \t]*(tool_call|tool_code|tool|json|python)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def _read_fenced(text: str, tools: Sequence[ToolSpec]) -> Found:
    calls: list[ToolCall] = []
    for kind, body in _FENCE.findall(text):
        found = _fenced_json(body) if body.lstrip()[:1] in ("{", "[") else _fenced_python(body, kind, tools)
        if isinstance(found, ParseError):
            return found
        calls += found
    return _checked(calls, tools)


def _fenced_json(body: str) -> Found:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        return ParseError(message=f"the fenced block is no JSON: {error}"[:500], text=body)
    found = []
    for one in raw if isinstance(raw, list) else [raw]:
        call = read_json_call(json.dumps(one))
        if isinstance(call, ParseError):
            return call
        found.append(call)
    return tuple(found)


def _fenced_python(body: str, kind: str, tools: Sequence[ToolSpec]) -> Found:
    """Calls written as Python's, with literal arguments; nothing is run. Other code in a python fence is text."""
    try:
        tree = ast.parse(body.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return () if kind == "python" else ParseError(message=f"the fenced block is no call: {error}", text=body)
    names: dict[str, list[str]] = {
        tool.name: list(tool.parameters.get("properties", {}) or {})  # type: ignore[arg-type]
        for tool in tools
    }
    found = []
    for statement in tree.body:
        node = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            if kind == "python":
                continue
            return ParseError(message="a fenced block holds calls alone, such as name(argument=1)", text=body)
        name = node.func.id
        unknown = bool(tools) and name not in names  # whoever calls it is told which tools there are
        call = check_call(ToolCall(name=name), tools) if unknown else _python_call(node, name, names.get(name, []))
        if isinstance(call, ParseError):
            return call.model_copy(update={"text": body})
        found.append(call)
    return tuple(found)


def _python_call(node: ast.Call, name: str, known: Sequence[str]) -> ToolCall | ParseError:
    """A call as Python writes it, of a tool whose arguments have these names, in this order."""
    shown = name[:80]
    try:
        placed = [ast.literal_eval(value) for value in node.args]
        if len(placed) > len(known):
            takes = f"{len(known)} ({', '.join(known)})" if known else "none"
            return ParseError(message=f"{shown} got {len(placed)} arguments without names; it takes {takes}")
        arguments: dict[str, Any] = dict(zip(known, placed, strict=False))
        for word in node.keywords:
            if word.arg is None:
                return ParseError(message=f"the arguments of {shown} must be written out, without **")
            if word.arg in arguments:
                return ParseError(message=f"{shown} got its argument {word.arg[:80]} twice; give each once")
            arguments[word.arg] = ast.literal_eval(word.value)
        return ToolCall(name=name, arguments=arguments)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ParseError(message=f"the arguments of {shown} must be literal values, without computations")


_FENCED_EXAMPLE = '```tool\n{"name": ..., "arguments": {...}}\n```'
FENCED = CallFormat(
    "fenced",
    f"To use one, answer with a fenced block:\n{_FENCED_EXAMPLE}",
    _FENCED_EXAMPLE,
    _read_fenced,
    lambda calls, thought: _joined(thought, [f"```tool\n{_json_of(call)}\n```" for call in calls]),
)

# -- ReAct -------------------------------------------------------------------------------------------------------

_ACTION = re.compile(r"^[ \t]*Action[ \t]*:(.*)", re.MULTILINE)
_INPUT = re.compile(r"^[ \t]*Action Input[ \t]*:[ \t]*(.*)\Z", re.MULTILINE | re.DOTALL)


def _read_react(text: str, tools: Sequence[ToolSpec]) -> Found:
    """The first action; what a model imagines of its observation and after is not heard."""
    heard = re.split(r"^[ \t]*Observation[ \t]*:", text, maxsplit=1, flags=re.MULTILINE)[0]
    action, given = _ACTION.search(heard), _INPUT.search(heard)
    if action is None:
        return () if given is None else ParseError(message="an Action Input without an Action", text=text)
    name = action[1].strip(" \t")
    spec = next((tool for tool in tools if tool.name == name), None)
    raw = (given[1] if given is not None else "").strip().removeprefix("```json").strip("`").strip()
    try:
        arguments: Any = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        arguments = raw
    if not isinstance(arguments, dict):  # a single argument may stand bare
        names: list[str] = list(spec.parameters.get("properties", {}) or {}) if spec is not None else []  # type: ignore[arg-type]
        if len(names) != 1:
            return ParseError(message=f"the Action Input of {name[:80]} is no JSON object", text=text)
        arguments = {names[0]: arguments if spec and _wants_json(spec, names[0]) else raw}
    return _checked((ToolCall(name=name, arguments=arguments),), tools)


def _wants_json(spec: ToolSpec, name: str) -> bool:
    properties: Any = spec.parameters.get("properties", {})
    return bool(properties[name].get("type") != "string")


def _write_react(calls: Sequence[ToolCall], thought: str) -> str:
    if len(calls) > 1:
        raise ValueError(f"{len(calls)} calls; the format react writes one at a time")
    blocks = [f"Action: {c.name}\nAction Input: {json.dumps(c.arguments, ensure_ascii=False)}" for c in calls]
    return _joined(f"Thought: {thought}" if thought else "", blocks)


_REACT_EXAMPLE = 'Thought: ...\nAction: NAME\nAction Input: {"argument": ...}'
REACT = CallFormat(
    "react",
    f"To use one, answer in these lines, and wait for its Observation:\n{_REACT_EXAMPLE}\n"
    "When you know the answer, write: Final Answer: ...",
    _REACT_EXAMPLE,
    _read_react,
    _write_react,
)

FORMATS = {form.name: form for form in (HERMES, XML, FENCED, REACT)}
