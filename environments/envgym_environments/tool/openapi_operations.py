"""What the operations of an OpenAPI document ask for: their arguments, where those go, how a body is written.

An operation that could not be sent as it is described is none, and it is said why: so is each part of one that had
to be left out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envgym_environments.tool.foreign_schema import tool_name

__all__ = ["Body", "Operation", "read_operations"]

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
_STYLES = {"path": "simple", "header": "simple", "query": "form", "cookie": "form"}
_IGNORED = ("accept", "content-type", "authorization")
"""Headers whose parameters the specification says to ignore."""
_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


class _Unsendable(Exception):
    """Why an operation cannot be sent as it is described."""


@dataclass(frozen=True, slots=True)
class Body:
    """How an operation's body is made of arguments.

    media: its type. whole: the argument that is all of it, "" where arguments are its fields. files: which of a
    form's fields are files, whose content is what is said.
    """

    media: str
    whole: str = ""
    files: frozenset[str] = frozenset()

    @property
    def form(self) -> bool:
        """Whether it is fields, not JSON."""
        return self.media in (_FORM, _MULTIPART)

    @property
    def multipart(self) -> bool:
        """Whether each field is a part."""
        return self.media == _MULTIPART


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    parameters: the arguments' JSON schema. places: of each argument "path", "query", "header", "cookie" or "body".
    written: of each that is a parameter "exploded" (parts of lists and objects for themselves), "joined" (with
    commas) or "json". answers: the types of what is answered where all goes well, () where nothing says.
    """

    name: str
    told: str
    method: str
    path: str
    parameters: dict[str, Any]
    places: Mapping[str, str]
    written: Mapping[str, str]
    body: Body | None = None
    answers: tuple[str, ...] = ()


def read_operations(
    document: Mapping[str, Any], given: frozenset[str], *, one_server: bool = False
) -> tuple[list[Operation], list[str]]:
    """The operations of a document, and what of it cannot be used, in sentences.

    given: headers, in small letters, that whoever plays has set: what a service knows them by is no argument.
    one_server: all are sent to the same one; else those that name servers of their own are left out.
    """
    found: dict[str, Operation] = {}
    complaints: list[str] = []
    for path, method, raw in _operations(document, complaints):
        where = f"{method.upper()} {path}"
        try:
            if raw["servers"] and not one_server:
                raise _Unsendable("it has servers of its own; with a `base_url` all are sent to that one")
            one = _read(document, raw, (method, path), given, complaints)
        except _Unsendable as why:
            complaints.append(f"{where} is left out: {why}")
            continue
        if one.name in found:
            complaints.append(f"{where} is left out: the name {one.name!r} is used twice")
        found.setdefault(one.name, one)
    return list(found.values()), complaints


def _operations(document: Mapping[str, Any], complaints: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, part in document["paths"].items():
        if str(path).startswith("x-"):
            continue
        item = _resolved(document, part)
        if not item and part:
            where = f"its $ref {part['$ref']!r} leads nowhere" if isinstance(part, dict) else "it is no object"
            complaints.append(f"{path} is left out: {where}")
        elif item is not part:  # what stands beside the reference holds, too
            item = {**item, **{name: one for name, one in part.items() if name != "$ref"}}
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                parameters = [*(item.get("parameters") or []), *(operation.get("parameters") or [])]
                servers = operation.get("servers") or item.get("servers")
                yield path, method, {**operation, "parameters": parameters, "servers": servers}


def _read(
    document: Mapping[str, Any], raw: Mapping[str, Any], at: tuple[str, str], given: frozenset[str],
    complaints: list[str],
) -> Operation:  # fmt: skip
    method, path = at
    where = f"{method.upper()} {path}"
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, str] = {}
    written: dict[str, str] = {}
    for name, place, one in _parameters(document, raw["parameters"], given):
        needed = place == "path" or bool(one.get("required"))
        why = _why_not(name, place, one, places)
        if why and needed:
            raise _Unsendable(f"its {place} parameter {name!r} {why}")
        if why:
            complaints.append(f"{where}: its {place} parameter {name!r} is left out: it {why}")
            continue
        properties[name] = {**_schema(document, one), "description": one.get("description", "")}
        places[name], written[name] = place, _way(place, one)
        required += [name] if needed else []
    if unfilled := [name for name in re.findall(r"\{([^{}]*)\}", path) if places.get(name) != "path"]:
        raise _Unsendable(f"nothing fills {unfilled[0]!r} of its path")
    body, inside, needed_inside = _body(document, raw, where, places, complaints)
    properties |= inside
    places |= dict.fromkeys(inside, "body")
    parameters = _local(
        {"type": "object", "properties": properties, "required": list(dict.fromkeys(required + needed_inside))}
    )
    if definitions := _definitions(document, parameters):
        parameters["$defs"] = definitions
    name = tool_name(raw.get("operationId") or f"{method}{path}") or "operation"
    told = " ".join(filter(None, (raw.get("summary"), raw.get("description")))) or where
    return Operation(name, told, method, path, parameters, places, written, body, _answers(document, raw))


def _parameters(
    document: Mapping[str, Any], raw: list[Any], given: frozenset[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, place and all of each that is asked for, those of the path first; an operation's own replace shared."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for part in raw:
        one = _resolved(document, part)
        name, place = str(one.get("name", "")), str(one.get("in", ""))
        known = (
            name.casefold() in (*_IGNORED, *given) if place == "header" else place == "cookie" and place in given
        )
        if not known:
            found[name, place] = one
    for (name, place), one in sorted(found.items(), key=lambda pair: pair[0][1] != "path"):
        yield name, place, one


def _why_not(name: str, place: str, one: Mapping[str, Any], places: Mapping[str, str]) -> str:
    if not name or place not in _STYLES:
        return "is described nowhere"
    if one.get("style", _STYLES[place]) != _STYLES[place]:
        return f"is of the style {one['style']!r}"
    content = one.get("content") or {}
    if content and _media({kind: part for kind, part in content.items() if "json" in kind or "*" in kind}) is None:
        return f"is written as {' or '.join(content)}"
    return f"has the name of one in the {places[name]}" if name in places else ""


def _way(place: str, one: Mapping[str, Any]) -> str:
    """How a parameter's value is written."""
    if one.get("content"):
        return "json"
    return "exploded" if one.get("explode", _STYLES[place] == "form") else "joined"


def _schema(document: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's schema; where it has a content instead, that content's."""
    content: Any = next(iter((one.get("content") or {}).values()), {})
    found = one.get("schema") or content.get("schema") or {}
    return found if isinstance(found, dict) else {}


def _body(
    document: Mapping[str, Any], raw: Mapping[str, Any], where: str, places: Mapping[str, str],
    complaints: list[str],
) -> tuple[Body | None, dict[str, Any], list[str]]:  # fmt: skip
    """How a body is written, the arguments that make it, and which of them must be there."""
    asked = _resolved(document, raw.get("requestBody") or {})
    content = asked.get("content") or {}
    if not content:
        return None, {}, []
    chosen = _media(content)
    schema = _resolved(document, content[chosen[0]].get("schema") or {}) if chosen else {}
    inside = schema.get("properties") if schema.get("type", "object") == "object" else None
    if chosen is None or (chosen[1] in (_FORM, _MULTIPART) and not inside):
        told = " or ".join(content) + (" without fields" if chosen else "")
        if asked.get("required"):
            raise _Unsendable(f"its body is {told}")
        complaints.append(f"{where}: its body is left out: it is {told}")
        return None, {}, []
    whole = not inside or bool(set(inside) & set(places))
    name = next(name for name in ("body", "request_body", "whole_body") if name not in places) if whole else ""
    files = frozenset(one for one, part in (inside or {}).items() if _binary(_resolved(document, part)))
    body = Body(chosen[1], name, files)
    if whole:
        return body, {name: schema}, [name] if asked.get("required") else []
    return body, dict(inside or {}), list(schema.get("required", []))


def _answers(document: Mapping[str, Any], raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The types of answers of a status below 300; () where one of these is said to have none, or where none is."""
    responses = raw.get("responses")
    found: list[str] = []
    for status, part in responses.items() if isinstance(responses, dict) else ():
        if str(status).startswith("2"):
            content = _resolved(document, part).get("content")
            if not isinstance(content, dict) or not content:
                return ()
            found += (str(kind).partition(";")[0].strip().casefold() for kind in content)
    return tuple(dict.fromkeys(found))


def _media(content: Mapping[str, Any]) -> tuple[str, str] | None:
    """Of the types of a body the one that we can write best, as the document calls it and as we do."""
    kinds = {raw.partition(";")[0].strip().casefold(): raw for raw in content}
    for wanted in (r"application/json", r"application/.+\+json", r"(application|\*)/\*", _FORM, _MULTIPART):
        for kind, raw in kinds.items():
            if re.fullmatch(wanted, kind) and isinstance(content[raw], dict):
                return raw, "application/json" if "*" in kind else kind
    return None


def _binary(schema: Mapping[str, Any]) -> bool:
    """Whether a field of a form is a file, or are files."""
    part = schema.get("items") if schema.get("type") == "array" else schema
    return isinstance(part, dict) and (part.get("format") == "binary" or "contentMediaType" in part)


def _resolved(document: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """A part, a local reference followed; what leads nowhere, or in a circle, is empty."""
    for _ in range(16):
        if not isinstance(part, dict):
            return {}
        ref = part.get("$ref")
        if not isinstance(ref, str):
            return part
        part = document if ref.startswith("#/") else {}
        for step in ref.removeprefix("#/").split("/"):
            part = part.get(_plain(step)) if isinstance(part, dict) else None
    return {}


def _plain(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _local(value: Any) -> Any:
    """With references to the document's schemas as references to the schema's own definitions."""
    if isinstance(value, dict):
        return {
            name: part.replace("#/components/schemas/", "#/$defs/", 1)
            if name == "$ref" and isinstance(part, str) else _local(part)
            for name, part in value.items()
        }  # fmt: skip
    return [_local(part) for part in value] if isinstance(value, list) else value


def _definitions(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The document's schemas that arguments lead to: all of a large document's are too many for one tool."""
    known = (document.get("components") or {}).get("schemas") or {}
    found: dict[str, Any] = {}
    level: list[Any] = [parameters]
    while level:
        one = level.pop()
        level += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        ref = one.get("$ref") if isinstance(one, dict) else None
        if isinstance(ref, str) and ref.startswith("#/$defs/"):
            name = _plain(ref.split("/")[2])
            if name in known and name not in found:
                found[name] = _local(known[name])
                level.append(found[name])
    return found
