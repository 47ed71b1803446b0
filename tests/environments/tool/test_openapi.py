"""OpenAPI documents as they come: every body and parameter that can be sent arrives, what cannot is named."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from envgym_environments.tool.headers import filled_headers
from envgym_environments.tool.openapi import OpenApiTools

from envgym import Action, EnvironmentFailure, Task, ToolCall, World, make, make_backend
from envgym.testing import check_env
from envgym.toolbox import Toolbox, ToolFault, ToolResult


class Echo(BaseHTTPRequestHandler):
    """Answers with the request."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        content = json.dumps({"path": self.path, "body": body, "headers": headers}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = answer

    def log_message(self, *_given: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def document(**operations: dict[str, Any]) -> dict[str, Any]:
    """Of operations by their ids; `at` is the path and `by` the method."""
    paths: dict[str, dict[str, Any]] = {}
    for name, one in operations.items():
        own = {key: part for key, part in one.items() if key not in ("at", "by")}
        paths.setdefault(one.get("at", f"/{name}"), {})[one.get("by", "post")] = {"operationId": name, **own}
    return {"openapi": "3.1.0", "paths": paths}


def body(media: str, schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {media: {"schema": schema}}}}


def parameter(name: str, place: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": {"type": kind}, **more}


def called(found: OpenApiTools, *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        box = Toolbox(found.tools)
        try:
            return [await box.call(ToolCall(name=name, arguments=given)) for name, given in calls]
        finally:
            await box.close()

    return asyncio.run(main())


PET = {"type": "object", "required": ["name"], "properties": {
    "name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "age": {"type": "integer"},
}}  # fmt: skip
PHOTO = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "photo": {"type": "string", "format": "binary"}},
}


def test_bodies_of_json_by_any_name_and_of_forms_arrive(echo: str) -> None:
    given = {"name": "Ada & Bo", "tags": ["a", "b"], "age": 3}
    found = OpenApiTools.of(
        document(
            patch=body("application/merge-patch+json", PET) | {"by": "patch"},
            vendor=body("application/vnd.pets.v1+json; charset=utf-8", PET),
            any=body("*/*", {}),
            form=body("application/x-www-form-urlencoded", PET),
            parts=body("multipart/form-data", PHOTO),
            whole=body("application/x-www-form-urlencoded", PET)
            | {"at": "/whole/{name}", "parameters": [parameter("name", "path")]},
        ),
        base_url=echo,
    )
    assert found.complaints == ()
    patch, vendor, anything, form, parts, whole = (
        result.value
        for result in called(
            found, ("patch", given), ("vendor", given), ("any", {"body": [1]}), ("form", given),
            ("parts", {"name": "Ada", "photo": "pixels"}), ("whole", {"name": "x,/y", "body": given}),
        )
    )  # fmt: skip
    assert (json.loads(patch["body"]), patch["headers"]["content-type"]) == (given, "application/merge-patch+json")
    assert (json.loads(vendor["body"]), vendor["headers"]["content-type"]) == (
        given,
        "application/vnd.pets.v1+json",
    )
    assert (anything["body"], anything["headers"]["content-type"]) == ("[1]", "application/json")
    fields = "name=Ada+%26+Bo&tags=a&tags=b&age=3"
    assert (form["body"], form["headers"]["content-type"]) == (fields, "application/x-www-form-urlencoded")
    assert 'name="name"\r\n\r\nAda\r\n' in parts["body"]
    assert 'name="photo"; filename="photo"' in parts["body"]
    assert parts["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert (whole["path"], whole["body"]) == ("/whole/x%2C%2Fy", fields)


def test_cookies_and_lists_arrive_and_nothing_said_leaves_its_place(echo: str) -> None:
    found = OpenApiTools.of(
        document(
            find={
                "at": "/find/{ids}", "by": "get",
                "parameters": [
                    parameter("ids", "path", "array"), parameter("session", "cookie", required=True),
                    parameter("each", "query", "array"), parameter("joined", "query", "array", explode=False),
                ],
            }
        ),
        base_url=echo,
    )  # fmt: skip
    given = {"ids": ["a/b", 2], "session": "x; admin=1", "each": ["p", "q"], "joined": ["r", "s"]}
    answer, lacking, half, out = called(
        found, ("find", given), ("find", {"ids": [1]}), ("find", {"ids": ["\ud800"], "session": ""}),
        ("find", {"ids": [".."], "session": ""}),
    )  # fmt: skip
    assert answer.value["path"] == "/find/a%2Fb,2?each=p&each=q&joined=r%2Cs"
    assert answer.value["headers"]["cookie"] == "session=x%3B%20admin%3D1"
    assert lacking.fault is half.fault is out.fault is ToolFault.INVALID
    assert "leads out of its path" in out.text


def test_objects_and_json_in_parameters_are_written_as_the_document_says(echo: str) -> None:
    as_json = {"content": {"application/json": {"schema": {}}}}
    found = OpenApiTools.of(
        document(
            find={
                "at": "/find/{plain}/{each}/{json}", "by": "get",
                "parameters": [
                    parameter("plain", "path", "object"), parameter("each", "path", "object", explode=True),
                    {"name": "json", "in": "path", **as_json}, parameter("spread", "query", "object"),
                    parameter("flat", "query", "object", explode=False), {"name": "q", "in": "query", **as_json},
                    parameter("X-One", "header", "object"), {"name": "X-Two", "in": "header", **as_json},
                    parameter("jar", "cookie", "object"), parameter("tin", "cookie", "array"),
                    {"name": "kept", "in": "query", "content": {"text/csv": {}}},
                ],
            }
        ),
        base_url=echo,
    )  # fmt: skip
    assert found.complaints == ("GET /find/{plain}/{each}/{json}: its query parameter 'kept' is left out: "
                                "it is written as text/csv",)  # fmt: skip
    one = {"a": 1, "b": "x y"}
    given = {"plain": one, "each": one, "json": ["p", 1], "spread": one, "flat": one, "q": ["p", {"r": 2}],
             "X-One": one, "X-Two": ["p", 1], "jar": one, "tin": ["s", "t"]}  # fmt: skip
    clash = {**given, "spread": {"q": "mine"}}
    sent, wrong = called(found, ("find", given), ("find", clash))
    path, _, query = sent.value["path"].partition("?")
    assert path == "/find/a,1,b,x%20y/a=1,b=x%20y/%5B%22p%22%2C%201%5D"
    assert parse_qsl(query) == [("a", "1"), ("b", "x y"), ("flat", "a,1,b,x y"), ("q", '["p", {"r": 2}]')]
    assert (sent.value["headers"]["x-one"], sent.value["headers"]["x-two"]) == ("a,1,b,x y", '["p", 1]')
    assert sent.value["headers"]["cookie"] == "a=1; b=x%20y; tin=s%2Ct"
    assert wrong.fault is ToolFault.INVALID
    assert "spread has a part 'q', which is a parameter of its own" in wrong.text


def test_a_path_that_is_a_reference_is_followed_or_complained_of(echo: str) -> None:
    shared = {"get": {"operationId": "look"}, "parameters": [parameter("id", "path")]}
    paths = {
        "/a/{id}": {"$ref": "#/components/pathItems/Shared", "post": {"operationId": "put"}},
        "/b": {"$ref": "other.yaml#/b"}, "/c": ["get"], "/d": {}, "x-owner": "me",
    }  # fmt: skip
    whole = {"openapi": "3.1.0", "paths": paths, "components": {"pathItems": {"Shared": shared}}}
    found = OpenApiTools.of(whole, base_url=echo)
    assert {tool.spec.name for tool in found.tools} == {"put", "look"}
    assert found.complaints == (
        "/b is left out: its $ref 'other.yaml#/b' leads nowhere", "/c is left out: it is no object"
    )  # fmt: skip
    assert called(found, ("put", {"id": "1"}))[0].value["path"] == "/a/1"


def test_what_cannot_be_sent_is_left_out_and_named() -> None:
    shapes = {"Bad": {"type": "banana"}, **{f"Other{k}": PET for k in range(2000)}}
    whole = document(
        xml=body("application/xml", {"type": "object"}),
        maybe=body("text/csv", {"type": "string"}, required=False),
        fieldless=body("multipart/form-data", {"type": "object"}),
        deep={"parameters": [parameter("filter", "query", "object", style="deepObject")]},
        needs_deep={"parameters": [parameter("filter", "query", "object", style="deepObject", required=True)]},
        unfilled={"at": "/unfilled/{id}"},
        twice={"at": "/twice/{id}", "parameters": [parameter("id", "query"), parameter("id", "path")]},
        bad=body("application/json", {"type": "object", "properties": {"x": {"$ref": "#/components/schemas/Bad"}}}),
        good=body("application/json", {"$ref": "#/components/schemas/Other7"}),
    )
    whole["paths"]["/again"] = {"get": {"operationId": "good"}}
    found = OpenApiTools.of({**whole, "components": {"schemas": shapes}}, base_url="http://127.0.0.1:9")
    assert {tool.spec.name for tool in found.tools} == {"maybe", "deep", "twice", "bad", "good"}
    said = "\n".join(found.complaints)
    for sentence in (
        "POST /xml is left out: its body is application/xml",
        "POST /maybe: its body is left out: it is text/csv",
        "POST /fieldless is left out: its body is multipart/form-data without fields",
        "POST /deep: its query parameter 'filter' is left out: it is of the style 'deepObject'",
        "POST /needs_deep is left out: its query parameter 'filter' is of the style",
        "POST /unfilled/{id} is left out: nothing fills 'id' of its path",
        "POST /twice/{id}: its query parameter 'id' is left out: it has the name of one in the path",
        "tool bad: the schema is none",
        "GET /again is left out: the name 'good' is used twice",
    ):
        assert sentence in said
    assert len(found.complaints) == 9
    good = next(tool for tool in found.tools if tool.spec.name == "good")
    assert good.spec.parameters["required"] == ["name"], "a large document's tools keep their schemas"


def test_headers_say_who_plays_and_an_agent_cannot_say_otherwise(echo: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PETS_TOKEN", "open-sesame")
    parts = [parameter(name, "header") for name in ("X-Team", "X-Mood", "Authorization")]
    whole = document(look={"by": "get", "parameters": [*parts, parameter("login", "cookie")]})
    whole["paths"]["/xml"] = {"post": body("application/xml", {})}
    path = tmp_path / "pets.yaml"
    parts[1]["schema"]["example"] = "DAY"
    path.write_text(json.dumps(whole).replace('"DAY"', "2026-01-01"))  # a date of YAML, and JSON has none
    task = Task(id="pets", prompt="look")
    headers = {"Authorization": "Bearer ${PETS_TOKEN}", "X-Team": "blue", "Cookie": "login=${PETS_TOKEN}"}
    with pytest.warns(UserWarning, match="POST /xml is left out"):
        env = make("tool", task, openapi=str(path), base_url=echo, headers=headers)
    mood = {"type": "string", "example": "2026-01-01", "description": ""}
    assert env.tools[0].parameters["properties"] == {"X-Mood": mood}

    async def main() -> str:
        await env.reset(seed=0)
        step = await env.step(Action.call("look", **{"X-Mood": "good"}))
        await env.close()
        return step.text

    sent = json.loads(asyncio.run(main()))["headers"]
    assert sent["authorization"] == "Bearer open-sesame"
    assert (sent["x-team"], sent["x-mood"], sent["cookie"]) == ("blue", "good", "login=open-sesame")
    named = task.model_copy(update={"metadata": {"tools": {"openapi": str(path), "base_url": echo}}})
    with pytest.raises(ValueError, match="they belong to mcp or openapi, as options"):
        make("tool", named, headers=headers)
    own = task.model_copy(update={"metadata": {"tools": {"openapi": str(path), "headers": headers}}})
    with pytest.raises(ValueError, match=r"metadata\.tools has 'headers'"):
        make("tool", own)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Authorization": "Bearer abc"}, "put the secret into an environment variable"),
        ({"X-Api-Key": "abc"}, "options are stored with every episode"),
        ({"X-Team": "${NOT_THERE}"}, "no such environment variable"),
        ({"X-Team": "${LINES}"}, "printable ASCII in one line"),
        ({"X Team": "a"}, "no name of a header"),
        ("X-Team: a", "an object of texts"),
        ({"X-Team": 1}, "an object of texts"),
    ],
)
def test_headers_that_cannot_be_or_would_be_stored_are_refused(headers: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        filled_headers(headers, {"LINES": "a\nb"})


def test_variables_of_a_server_are_at_their_defaults_and_servers_of_an_operation_are_told(echo: str) -> None:
    host, _, port = echo.removeprefix("http://").partition(":")
    here = {"url": "http://{host}:{port}", "variables": {"host": {"default": host}, "port": {"default": port}}}
    elsewhere = {"operationId": "away", "servers": [{"url": "http://elsewhere.test"}]}
    paths = {"/pets": {"get": {"operationId": "pets"}, "post": elsewhere}}
    said = {"openapi": "3.1.0", "servers": [here], "paths": paths}
    found = OpenApiTools.of(said)
    assert [(tool.spec.name, tool.service.base_url.rstrip("/")) for tool in found.tools] == [
        ("pets", echo.rstrip("/"))
    ]
    assert "POST /pets is left out: it has servers of its own" in found.complaints[0]
    assert [tool.spec.name for tool in OpenApiTools.of(said, base_url=echo).tools] == ["pets", "away"]
    nameless = {**said, "servers": [{"url": "http://{where}/v1"}]}
    with pytest.raises(ValueError, match=r"its variable 'where' has no default; give base_url"):
        OpenApiTools.of(nameless)


def test_a_document_that_is_not_there_or_is_no_text_is_a_mistake_in_one_line(tmp_path):
    (tmp_path / "picture.json").write_bytes(b"\x89PNG\xff")
    for name in ("none.json", "picture.json"):
        with pytest.raises(ValueError, match=rf"openapi = '.*{name}' cannot be read: "):
            make("tool", Task(id="t", prompt="p", metadata={"answer": "x"}), openapi=str(tmp_path / name))


PAGE = b"<!doctype html><title>Sign in</title>"
ODD = {
    "page": (200, {"content-type": "text/html; charset=utf-8"}, PAGE),
    "any_page": (200, {"content-type": "text/html"}, PAGE),
    "unnamed": (200, {"content-type": "text/html"}, b'{"name": "Ada"}'),
    "broken": (500, {"content-type": "text/html"}, PAGE),
    "moved": (302, {"location": "https://elsewhere.example/login", "content-type": "text/html"}, b""),
    "cut": (200, {"content-length": "1000"}, b"half of it"),
    "bomb": (200, {"content-encoding": "gzip"}, gzip.compress(bytes(50 << 20))),
    "headers": (200, {f"x-{n}": "y" * 60_000 for n in range(20)}, b""),
}


class Odd(BaseHTTPRequestHandler):
    """Misbehaves in the way that the path says; /drip never ends, and is never quiet."""

    def do_GET(self) -> None:
        if self.path == "/drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not self.server.over.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"x")
            return
        if self.path == "/noise":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            return
        status, headers, content = ODD[self.path[1:]]
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_given: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        server.over = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


JSON_ONLY = {"responses": {"200": {"description": "a pet", "content": {"application/json": {}}}}}
ANYTHING = {"responses": {"200": {"description": "a pet", "content": {"application/json": {}, "text/html": {}}}}}


@pytest.mark.parametrize(
    ("name", "promised", "fault", "said"),
    [
        ("page", JSON_ONLY, ToolFault.LIED, "its document promises JSON, and this is text/html"),
        ("page", {}, None, "Sign in"),
        ("any_page", ANYTHING, None, "Sign in"),
        ("unnamed", JSON_ONLY, None, "Ada"),
        ("broken", JSON_ONLY, ToolFault.REFUSED, "HTTP 500: <!doctype html>"),
        ("moved", JSON_ONLY, ToolFault.REFUSED, "HTTP 302 to https://elsewhere.example/login"),
        ("cut", JSON_ONLY, ToolFault.DIED, "peer closed connection"),
        ("bomb", JSON_ONLY, ToolFault.FLOODED, "more than 50000 bytes"),
        ("headers", JSON_ONLY, ToolFault.DIED, "headers: RemoteProtocolError"),
        ("noise", JSON_ONLY, ToolFault.DIED, "noise: RemoteProtocolError"),
        ("drip", JSON_ONLY, ToolFault.TIMEOUT, "no answer within 0.5 s"),
    ],
)
def test_what_a_service_does_wrong_is_one_observation(odd: str, name, promised, fault, said) -> None:
    one = document(**{name: {"by": "get", **promised}})
    limit_s = 0.5 if name == "drip" else 60.0
    found = OpenApiTools.of(one, base_url=odd, answer_bytes=50_000, timeout_s=limit_s)
    (told,) = called(found, (name, {}))
    assert (told.fault, said in told.text) == (fault, True), told


SERVICE = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Sums(BaseHTTPRequestHandler):
    made = 0
    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Sums.made += 1
        content = json.dumps({"sum": given["a"] + given["b"], "made": Sums.made}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def log_message(self, *given):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Sums).serve_forever()
"""
NUMBERS = {"type": "object", "required": ["a", "b"], "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_service_is_started_in_a_sandbox_and_each_episode_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "sums.json"
    path.write_text(json.dumps(document(add=body("application/json", NUMBERS))))
    world = World(files={"/srv/sums.py": SERVICE})
    task = Task(id="sum", prompt="What is 2 + 3?", world=world, metadata={"answer": "5"})
    at = {"openapi": str(path), "base_url": "http://127.0.0.1:8765", "call_s": 60.0}

    def adds(_step: object, _tools: object, rng: np.random.Generator) -> Action:
        return Action.call("add", a=int(rng.integers(9)), b=1)

    async def main() -> None:
        async with make_backend("namespace") as backend:

            def again(serve: str = "python3 /srv/sums.py 8765") -> Any:
                return make("tool-sandboxed", task, backend=backend, serve=serve, **at)

            env = again()
            assert [spec.name for spec in env.tools] == ["add"]
            for _ in range(2):
                await env.reset(seed=0)
                assert (await env.step(Action.call("add", a=2, b=3))).text == '{"sum": 5, "made": 1}'
            assert (await env.step(Action.say("5"))).reward == 1.0
            await env.close()
            await check_env(again, turns=2, policy=adds)
            for command, said in (
                ("python3 /srv/nothing.py", r"ended before it answered; it said: .*No such file"),
                ("nothing-of-that-name", "ended before it answered"),
            ):
                broken = again(command)
                with pytest.raises(EnvironmentFailure, match=said):
                    await broken.reset(seed=0)
                await broken.close()

    asyncio.run(main())
