"""The operations of an OpenAPI document are tools: one per method and path, over one bounded HTTP client.

Understood are documents of version 3: parameters in path, query, header and cookie in their usual styles, and
bodies of JSON and forms. What cannot be sent is left out and named (`OpenApiTools.complaints`). What the service
does wrong is an observation: a status of 300 and more, a page where JSON was promised, an answer that is too long
or takes too long, a connection that fails.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import yaml
from pydantic import JsonValue

from envgym.arguments import checked_count, checked_seconds
from envgym.messages import ToolSpec
from envgym.toolbox import ToolFault, ToolResult
from envgym_environments.tool.foreign_schema import foreign_spec, schema_errors
from envgym_environments.tool.openapi_operations import Body, Operation, read_operations

__all__ = ["OpenApiTool", "OpenApiTools", "Service", "openapi_tools", "read_document"]


class Service:
    """The client that all tools of one document share.

    headers: sent with each call; an agent cannot change them. timeout_s: of one call; answer_bytes: of one answer.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 20.0,
        answer_bytes: int = 1 << 20,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {base_url!r}; it must begin with http:// or https://")
        self.base_url = base_url.rstrip("/")
        self.timeout_s = checked_seconds("timeout_s", timeout_s)
        self.answer_bytes = checked_count("answer_bytes", answer_bytes, least=1024)
        self.given = frozenset(name.casefold() for name in headers or {})
        plain = {"accept-encoding": "identity"}  # a bomb of zeros would be counted when it is unpacked
        self._client = httpx.AsyncClient(headers=plain | dict(headers or {}), timeout=timeout_s)

    async def send(self, request: Mapping[str, Any]) -> tuple[int, httpx.Headers, bytes | None]:
        """Status, headers and body; the body is None where it is too long. Raises httpx.HTTPError, TimeoutError."""
        async with asyncio.timeout(self.timeout_s), self._client.stream(**request) as response:
            body = b""
            async for chunk in response.aiter_bytes():  # httpx bounds each of these, and not all of them
                body += chunk
                if len(body) > self.answer_bytes:
                    return response.status_code, response.headers, None
            return response.status_code, response.headers, body

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._client.aclose()


@dataclass(frozen=True, slots=True)
class OpenApiTool:
    """One operation of a service."""

    spec: ToolSpec
    service: Service
    operation: Operation
    deadline_s: float | None = None
    serial: bool = False

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Check, send, and say what was answered."""
        name = self.spec.name
        if (wrong := schema_errors(self.spec.parameters, dict(arguments))) is not None:
            return ToolResult.failed(ToolFault.INVALID, f"{name}: {wrong}")
        try:
            status, headers, body = await self.service.send(
                _request(self.operation, arguments, self.service.base_url)
            )
        except (httpx.TimeoutException, TimeoutError):
            return ToolResult.failed(ToolFault.TIMEOUT, f"{name}: no answer within {self.service.timeout_s:g} s")
        except httpx.HTTPError as error:
            return ToolResult.failed(ToolFault.DIED, f"{name}: {type(error).__name__}: {error}")
        except (httpx.InvalidURL, ValueError) as error:
            return ToolResult.failed(ToolFault.INVALID, f"{name}: this cannot be sent: {str(error)[:300]}")
        if body is None:
            most = self.service.answer_bytes
            return ToolResult.failed(ToolFault.FLOODED, f"{name}: the answer has more than {most} bytes")
        text = body.decode("utf-8", "replace")
        if status >= 300:  # no redirect is followed: it would send what is said, and headers, somewhere else
            to = f" to {headers['location'][:500]}" if "location" in headers else ""
            return ToolResult.failed(ToolFault.REFUSED, f"{name}: HTTP {status}{to}: {text[:2000]}")
        return _answered(text, headers.get("content-type", "").casefold(), self.operation.answers)

    async def close(self) -> None:
        """Close the client that it shares with the document's other tools; idempotent."""
        await self.service.close()


def _request(operation: Operation, arguments: Mapping[str, JsonValue], base_url: str) -> dict[str, Any]:
    """What httpx sends. Raises ValueError for arguments that cannot be written, UnicodeErrors among them."""
    path, query, headers = operation.path, list[tuple[str, str]](), dict[str, str]()
    cookies: list[str] = []
    fields: dict[str, JsonValue] = {}
    for name, value in arguments.items():
        place, way = operation.places.get(name, "query"), operation.written.get(name, "exploded")
        if place == "path":
            path = path.replace(f"{{{name}}}", _step(name, way, value))
        elif place == "header":
            headers[name] = re.sub(r"[\r\n\0]", " ", _simple(way, value))
        elif place == "cookie":
            way = "joined" if isinstance(value, list) and way == "exploded" else way  # a cookie has one value
            cookies += (
                f"{at if at == name else _quoted(at)}={_quoted(text)}"
                for at, text in _pairs(operation, name, way, value)
            )
        elif place == "body":
            fields[name] = value
        else:
            query += _pairs(operation, name, way, value)
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    request = {"method": operation.method.upper(), "url": base_url + path, "params": query}
    body = {} if operation.body is None else _written(operation.body, fields, operation.method)
    return {**request, **body, "headers": {**headers, **body.get("headers", {})}}


def _written(body: Body, fields: Mapping[str, JsonValue], method: str) -> dict[str, Any]:
    """A body, as httpx takes it; of none of its arguments an empty one where the method has one."""
    if not fields and (body.whole or method not in ("post", "put", "patch")):
        return {}
    value = fields[body.whole] if body.whole else dict(fields)
    if not body.form:
        written = json.dumps(value, allow_nan=False).encode()
        return {"content": written, "headers": {"content-type": body.media}}
    if not isinstance(value, dict):
        raise ValueError("a form is an object, field -> value")
    texts = {name: _texts(part) for name, part in value.items()}
    if not body.multipart:
        return {"data": texts}
    return {
        "files": [
            (name, (name if name in body.files else None, text.encode()))
            for name, found in texts.items()
            for text in found
        ]
    }


def _pairs(operation: Operation, name: str, way: str, value: JsonValue) -> list[tuple[str, str]]:
    """A parameter of the style "form". Raises ValueError for an object's part that would be another parameter."""
    if way != "exploded" or not isinstance(value, list | dict):
        return [(name, _simple(way, value))]
    if isinstance(value, list):
        return [(name, _text(one)) for one in value]
    if taken := sorted(value.keys() & operation.places.keys() - {name}):
        raise ValueError(f"{name} has a part {taken[0]!r}, which is a parameter of its own")
    return [(part, _text(one)) for part, one in value.items()]


def _simple(way: str, value: JsonValue, write: Callable[[str], str] = str) -> str:
    """A parameter of the style "simple". write: what is done with each of its texts."""
    if way == "json":
        return write(json.dumps(value, allow_nan=False))
    if isinstance(value, dict):
        between = "=" if way == "exploded" else ","
        return ",".join(f"{write(name)}{between}{write(_text(one))}" for name, one in value.items())
    return ",".join(map(write, _texts(value)))


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _step(name: str, way: str, value: JsonValue) -> str:
    """A value as one step of a path. Raises ValueError for the two that lead to other paths."""
    step = _simple(way, value, _quoted)
    if step in (".", ".."):
        raise ValueError(f"{name} is {step!r}, which leads out of its path")
    return step


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _texts(value: JsonValue) -> list[str]:
    return [_text(one) for one in value] if isinstance(value, list) else [_text(value)]


def _answered(text: str, kind: str, promised: tuple[str, ...]) -> ToolResult:
    """What was answered. A page where the document promises JSON is a lie: of a proxy, of a login, of nobody's."""
    json_only = bool(promised) and all(re.fullmatch(r"\w+/(.+\+)?json", one) for one in promised)
    if "json" not in kind and not (json_only and "html" in kind):
        return ToolResult(text or "done")
    try:
        return ToolResult(text, json.loads(text))
    except (ValueError, RecursionError):
        said = "it says that this is JSON" if "json" in kind else f"its document promises JSON, and this is {kind}"
        return ToolResult.failed(ToolFault.LIED, f"{said}: {text[:500]}")


class _Json(yaml.SafeLoader):  # type: ignore[misc]  # of a library without types
    """YAML whose dates are texts, as JSON has none."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # of the class that it is of
        first: [(tag, shape) for tag, shape in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_document(source: str | Path) -> dict[str, Any]:
    """A document of a file, JSON or YAML. Raises ValueError for what cannot be read, or is no OpenAPI 3."""
    try:
        text = Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"openapi = {str(source)!r} cannot be read: {error}") from None
    try:
        found = yaml.load(text, _Json)  # JSON is YAML
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is neither JSON nor YAML: {str(error)[:300]}") from None
    return _checked(found, str(source))


def _checked(document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError(f"{where} is no OpenAPI document of version 3; its field `openapi` must say 3.x")
    if not isinstance(document.get("paths"), dict):
        raise ValueError(f"{where} has no `paths`")
    return document


@dataclass(frozen=True, slots=True)
class OpenApiTools:
    """The tools of a document. complaints: what of it is left out, and whose schema is none, in sentences."""

    tools: tuple[OpenApiTool, ...]
    complaints: tuple[str, ...] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any] | str | Path, *, base_url: str = "", **service: Any) -> "OpenApiTools":
        """Of a document, as data or as a file. base_url: instead of its first server. service: as `Service`.

        Raises ValueError for what is no OpenAPI 3, and where no address is known.
        """
        if isinstance(document, str | Path):
            found = read_document(document)
        else:
            found = _checked(dict(document), "the document")
        shared = Service(base_url or _first_server(found), **service)
        operations, complaints = read_operations(found, shared.given, one_server=bool(base_url))
        tools = []
        for one in operations:
            spec, wrong = foreign_spec(one.name, one.told, one.parameters)
            complaints += [] if wrong is None else [f"tool {one.name}: {wrong}"]
            tools.append(OpenApiTool(spec, shared, one, shared.timeout_s + 5.0))
        return cls(tuple(tools), tuple(complaints))


def _first_server(document: Mapping[str, Any]) -> str:
    """The address of a document's first server, its variables at their defaults; "" where it names none."""
    servers = document.get("servers")
    first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else {}
    variables = first.get("variables") or {}

    def default(match: re.Match[str]) -> str:
        named = variables.get(match[1]) if isinstance(variables, dict) else None
        if not isinstance(named, dict) or "default" not in named:
            raise ValueError(f"server {first['url']!r}: its variable {match[1]!r} has no default; give base_url")
        return str(named["default"])

    return re.sub(r"\{([^{}]+)\}", default, str(first.get("url", "")))


def openapi_tools(
    document: Mapping[str, Any] | str | Path, *, base_url: str = "", **service: Any
) -> tuple[OpenApiTool, ...]:
    """The tools of a document alone; see `OpenApiTools.of`, which also says what is left out."""
    return OpenApiTools.of(document, base_url=base_url, **service).tools
