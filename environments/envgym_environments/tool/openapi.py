"""The operations of an OpenAPI document are tools: one per method and path, over one bounded HTTP client.

Understood are documents of version 3: parameters in path, query and header, and JSON bodies. What the service does
wrong is an observation: a status of 400 and more, an answer that is too long, a connection that fails.
"""

import json
import re
from collections.abc import Iterator, Mapping
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
from envgym_environments.tool.foreign_schema import argument_errors, foreign_spec, tool_name

__all__ = ["OpenApiTool", "Service", "openapi_tools", "read_document"]

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
_BODY = "body"


class Service:
    """The client that all tools of one document share. timeout_s: of one call; answer_bytes: of one answer."""

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
        self._client = httpx.AsyncClient(headers=dict(headers or {}), timeout=timeout_s)

    async def send(self, request: Mapping[str, Any]) -> tuple[int, str, bytes | None]:
        """Status, content type and body; the body is None where it is too long. Raises httpx.HTTPError."""
        async with self._client.stream(**request) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self.answer_bytes:
                    return response.status_code, "", None
            return response.status_code, response.headers.get("content-type", ""), body

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._client.aclose()


@dataclass(frozen=True, slots=True)
class OpenApiTool:
    """One operation. places: where each argument goes: "path", "query", "header", "body"; whole: it is the body."""

    spec: ToolSpec
    service: Service
    method: str
    path: str
    places: Mapping[str, str]
    whole: bool = False
    deadline_s: float | None = None
    serial: bool = False

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Check, send, and say what was answered."""
        name = self.spec.name
        if (wrong := argument_errors(self.spec.parameters, arguments)) is not None:
            return ToolResult.failed(ToolFault.INVALID, f"{name}: {wrong}")
        try:
            status, kind, body = await self.service.send(self._request(arguments))
        except httpx.TimeoutException:
            return ToolResult.failed(ToolFault.TIMEOUT, f"{name}: no answer within {self.service.timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            return ToolResult.failed(ToolFault.DIED, f"{name}: {type(error).__name__}: {error}")
        if body is None:
            most = self.service.answer_bytes
            return ToolResult.failed(ToolFault.FLOODED, f"{name}: the answer has more than {most} bytes")
        text = body.decode("utf-8", "replace")
        if status >= 400:
            return ToolResult.failed(ToolFault.REFUSED, f"{name}: HTTP {status}: {text[:2000]}")
        return _answered(text, kind)

    def _request(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        path, query, headers, body = self.path, {}, {}, {}
        for name, value in arguments.items():
            place = self.places.get(name, "query")
            text = value if isinstance(value, str) else json.dumps(value)
            if place == "path":
                path = path.replace(f"{{{name}}}", quote(text, safe=""))
            elif place == "header":
                headers[name] = re.sub(r"[\r\n\0]", " ", text)
            elif place == _BODY:
                body[name] = value
            else:
                query[name] = (
                    [v if isinstance(v, str) else json.dumps(v) for v in value] if isinstance(value, list) else text
                )
        request: dict[str, Any] = {
            "method": self.method.upper(), "url": self.service.base_url + path, "params": query, "headers": headers,
        }  # fmt: skip
        if _BODY in self.places.values() and (body or self.method in ("post", "put", "patch")):
            request["json"] = body.get(_BODY) if self.whole else body
        return request

    async def close(self) -> None:
        """Close the client that it shares with the document's other tools; idempotent."""
        await self.service.close()


def _answered(text: str, kind: str) -> ToolResult:
    if "json" not in kind:
        return ToolResult(text or "done")
    try:
        return ToolResult(text, json.loads(text))
    except (ValueError, RecursionError):
        return ToolResult.failed(ToolFault.LIED, f"it says that this is JSON: {text[:500]}")


def read_document(source: str | Path) -> dict[str, Any]:
    """A document of a file, JSON or YAML. Raises OSError, and ValueError for what is no OpenAPI 3."""
    text = Path(source).read_text()
    try:
        found = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is neither JSON nor YAML: {str(error)[:300]}") from None
    return _checked(found, str(source))


def _checked(document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError(f"{where} is no OpenAPI document of version 3; its field `openapi` must say 3.x")
    if not isinstance(document.get("paths"), dict):
        raise ValueError(f"{where} has no `paths`")
    return document


def openapi_tools(
    document: Mapping[str, Any] | str | Path, *, base_url: str = "", **service: Any
) -> tuple[OpenApiTool, ...]:
    """The tools of a document, as data or as a file. base_url: instead of its first server. service: as `Service`.

    Raises ValueError for what is no OpenAPI 3, and where no address is known.
    """
    if isinstance(document, str | Path):
        found = read_document(document)
    else:
        found = _checked(dict(document), "the document")
    servers = found.get("servers") or [{}]
    address = base_url or str(servers[0].get("url", ""))
    shared = Service(address, **service)
    tools: dict[str, OpenApiTool] = {}
    for path, method, operation in _operations(found):
        tool = _tool(found, path, method, operation, shared)
        if tool.spec.name not in tools:
            tools[tool.spec.name] = tool
    return tuple(tools.values())


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                shared = item.get("parameters") or []
                yield path, method, {**operation, "parameters": [*shared, *(operation.get("parameters") or [])]}


def _tool(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any], service: Service
) -> OpenApiTool:
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, str] = {}
    for raw in operation["parameters"]:
        one = _resolved(document, raw)
        name, place = str(one.get("name", "")), str(one.get("in", ""))
        if not name or place not in ("path", "query", "header"):
            continue
        properties[name] = {**one.get("schema", {}), "description": one.get("description", "")}
        places[name] = place
        required += [name] if place == "path" or one.get("required") else []
    body = _resolved(document, operation.get("requestBody") or {})
    schema = _resolved(document, ((body.get("content") or {}).get("application/json") or {}).get("schema") or {})
    inside = schema.get("properties") if schema.get("type") == "object" else None
    whole = bool(schema) and (not inside or bool(set(inside) & set(places)))
    if schema:
        inner = {_BODY: schema} if whole else schema["properties"]
        properties |= inner
        places |= dict.fromkeys(inner, _BODY)
        needed = [_BODY] if whole else list(schema.get("required", []))
        required += needed if body.get("required") or not whole else []
    parameters = _local({"type": "object", "properties": properties, "required": list(dict.fromkeys(required))})
    if definitions := (document.get("components") or {}).get("schemas"):
        parameters["$defs"] = _local(definitions)
    name = tool_name(operation.get("operationId") or f"{method}{path}") or "operation"
    told = " ".join(filter(None, (operation.get("summary"), operation.get("description"))))
    spec, wrong = foreign_spec(name, told or f"{method.upper()} {path}", parameters)
    return OpenApiTool(spec, service, method, path, places, whole and wrong is None, service.timeout_s + 5.0)


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
            part = part.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
    return {}


def _local(value: Any) -> Any:
    """With references to the document's schemas as references to the schema's own definitions."""
    if isinstance(value, dict):
        return {
            name: part.replace("#/components/schemas/", "#/$defs/", 1)
            if name == "$ref" and isinstance(part, str) else _local(part)
            for name, part in value.items()
        }  # fmt: skip
    return [_local(part) for part in value] if isinstance(value, list) else value
