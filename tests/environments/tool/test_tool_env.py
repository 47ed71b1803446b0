"""The environment ``tool``: every law over the office, and the same play over servers and services of others."""

import asyncio
import json
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from envgym_environments.tool.env import ToolPlay, answers
from envgym_environments.tool.office import office_task
from envgym_environments.tool.openapi import openapi_tools
from envgym_environments.tool.registered import make_tool_env

from envgym import Action, Message, Replaying, Step, Task, ToolCall, ToolSpec, make, tool
from envgym.registry import find, spec
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.toolbox import Toolbox, ToolFault

LINES = Path(__file__).parent / "servers" / "lines.py"


def test_the_office_keeps_every_law():
    check_tasks(spec("tool").tasks(), splits=("train", "heldout"))
    check_env_sync(lambda: make("tool", 1), uses_seed=True, turns=5)


def test_the_expert_has_all_and_doing_nothing_none():
    for things in (1, 4, 10):
        check_task_sync(spec("tool").tasks(10, things=things), make_tool_env, find("agents", "tool-expert"))


def play(env, *actions: Action) -> list[Step]:
    async def main() -> list[Step]:
        try:
            return [await env.reset(seed=0), *[await env.step(action) for action in actions]]
        finally:
            await env.close()

    return asyncio.run(main())


def test_compact_calls_parallel_calls_and_mistakes_are_answered():
    both = tuple(ToolCall(name="look", arguments={"drawer": name}, id=name) for name in ("left", "right"))
    steps = play(
        make("tool", 0),
        Action.say("look left"),
        Action(message=Message(role="assistant", tool_calls=both)),
        Action.call("look", drawer="top"),
        Action.say("look"),
        Action.say("I give up."),
    )
    assert steps[1].text == steps[2].text.split("\n")[0]
    assert [message.tool_call_id for message in steps[2].observation] == ["left", "right"]
    assert "look(drawer:" in steps[3].text
    assert steps[3].channels == {"tool_faults": 1.0}
    assert "look lacks its argument" in steps[4].text
    assert (steps[5].reward, steps[5].channels["state"]) == (0.0, 0.0)
    assert steps[1].cost["tool_calls"] == 1.0


def test_channels_are_what_the_task_knows_and_nothing_known_is_no_reward():
    class Adder:
        def tools(self):
            return (tool(self.add),)

        def add(self, a: int, b: int) -> int:
            """Add."""
            return a + b

        async def close(self) -> None:
            """It holds nothing."""

    def end(said: str, **metadata) -> Step:
        task = Task(id="sum", prompt="2 + 3", metadata=metadata)
        env = ToolPlay(task, lambda task, seed: Adder(), [tool(Adder().add).spec])
        return play(env, Action.call("add", a=2, b=3), Action.say(said))[-1]

    assert end("It is five").reward is None
    assert end("Thought: easy\nFinal Answer: 5", answer="5").reward == 1.0
    assert end("not 5", answer="5").reward == end("15", answer="5").reward == 0.0
    assert end("The 5 of it\nFinal Answer: six", answer="5").reward == 0.0
    calls = [{"name": "add", "arguments": {"a": 2, "b": 3}}]
    parts = {"tool_names": 1.0, "parameter_names": 1.0, "parameter_values": 1.0, "tool_correctness": 3.0}
    assert end("six", answer="5", calls=calls).channels == {"answer": 0.0, "calls": 1.0, "reward": 0.5} | parts
    calls[0]["arguments"]["b"] = 4
    half = end("five", calls=calls)
    assert (half.channels["parameter_values"], half.reward) == (0.5, half.channels["calls"])
    toolrl = {
        "right": {"kind": "world", "channel": "tool_correctness"},
        "format": {"kind": "format", "tags": ["a"]},
    }
    task = office_task(0).model_copy(update={"metadata": {**office_task(0).metadata, "calls": []}})
    paid = play(make("tool", task, rewards={"channels": toolrl}), Action.say("<a>Nothing.</a>"))[-1]
    assert paid.reward == 4.0, "ToolRL's most: format 1 and correctness 3"


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ("42", "42", True), ("42.", "42", True), ("**42**", "42", True), ("42.0", "42", True),
        ("1,420", "1420", True),
        ("Thought: so\nFinal Answer: 42", "42", True), ("rome", "Rome", True),
        ("  'New  York'! ", "new york", True),
        ("not 42", "42", False), ("1420", "42", False), ("42 or 43", "42", False), ("-42", "42", False),
        ("4,2", "42", False), ("Rome, not Oslo", "Oslo", False), ("", "42", False), ("42?", "42", False),
        ("12345678901234567890", "12345678901234567891", False), ("0.1", "0.10", True),
    ],
)  # fmt: skip
def test_an_answer_is_the_right_one_and_no_more(said, wanted, right):
    assert answers(said.rpartition("Final Answer:")[2], wanted) is right
    assert answers(wanted, wanted)


def test_a_state_key_forgets_nothing_that_what_follows_depends_on():
    notes = [Action.call("note", text=f"{mark}{'x' * 199}") for mark in "ab"]
    long = [Action.call("note", text="y" * 200)] * 30

    def key(*actions: Action, **metadata) -> str:
        known = {**office_task(0).metadata, **metadata}
        return play(make("tool", office_task(0).model_copy(update={"metadata": known})), *actions)[-1].state_key

    assert key(*long, notes[0]) != key(*long, notes[1])
    look = Action.call("look", drawer="left")
    assert key() == key(look), "looking changes nothing"
    assert key(calls=[]) != key(look, calls=[]), "unless calls are what is graded"


def test_an_mcp_server_is_played_and_its_misbehaviour_ends_nothing():
    task = Task(id="mcp", prompt="add", metadata={"answer": "5"})
    env = make("tool", task, mcp=[sys.executable, str(LINES)], call_s=60)
    steps = play(
        env, Action.call("add", a=2, b=3), Action.call("die"), Action.call("add", a=2, b=3), Action.say("5")
    )
    assert [step.text[:5] for step in steps[1:4]] == ["5", "error", "5"]
    assert steps[4].reward == 1.0


def test_where_tools_come_from_is_checked():
    for options, said in (
        ({"mcp": "x", "openapi": "y"}, "mcp and openapi; name one"),
        ({"world": "json:nothing"}, "cannot be imported"),
        ({"world": "json"}, "module:name"),
    ):
        with pytest.raises(ValueError, match=said):
            make("tool", office_task(0), **options)
    named = make("tool", office_task(1), world="envgym_environments.tool.office:Office")
    assert not isinstance(named, Replaying), "a world with dump and load has exact snapshots"


# -- OpenAPI -----------------------------------------------------------------------------------------------------

DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "get": {
                "operationId": "getPet", "summary": "One pet.",
                "parameters": [{"name": "full", "in": "query", "schema": {"type": "boolean"}}],
            },
        },
        "/pets": {
            "post": {
                "operationId": "add pet",
                "requestBody": {"required": True, "content": {"application/json": {
                    "schema": {"$ref": "#/components/schemas/Pet"}}}},
            },
            "get": {"parameters": [{"$ref": "#/components/parameters/Mood"}]},
        },
    },
    "components": {
        "schemas": {
            "Pet": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "mood": {"$ref": "#/components/schemas/Mood"}}},
            "Mood": {"enum": ["good", "bad"]},
        },
        "parameters": {"Mood": {"name": "X-Mood", "in": "header", "schema": {"type": "string"}}},
    },
}  # fmt: skip


class Pets(BaseHTTPRequestHandler):
    """Answers with what it was asked, or misbehaves where the path says so."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        asked = {"path": self.path, "body": body, "mood": self.headers.get("X-Mood")}
        status = 404 if self.path.startswith("/pets/404") else 200
        content = b"x" * 100_000 if self.path.startswith("/pets/99") else json.dumps(asked).encode()
        content = b"{lie" if self.path.startswith("/pets/7") else content
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *_given: object) -> None:
        """Silent."""


@pytest.fixture
def service():
    with ThreadingHTTPServer(("127.0.0.1", 0), Pets) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_operations_of_a_service_are_tools(service):
    async def main() -> None:
        box = Toolbox(openapi_tools(DOCUMENT, base_url=service, answer_bytes=50_000, timeout_s=60))
        try:
            found = {spec.name: spec for spec in box.specs}
            assert set(found) == {"getPet", "add_pet", "get_pets"}
            assert isinstance(found["getPet"], ToolSpec)
            assert found["getPet"].parameters["required"] == ["id"]

            async def call(name: str, /, **arguments):
                return await box.call(ToolCall(name=name, arguments=arguments))

            assert (await call("getPet", id=3, full=True)).value["path"] == "/pets/3?full=true"
            added = await call("add_pet", name="Ada", mood="good")
            assert json.loads(added.value["body"]) == {"name": "Ada", "mood": "good"}
            assert (await box.call(ToolCall(name="get_pets", arguments={"X-Mood": "a\r\nb"}))).value[
                "mood"
            ] == "a  b"
            for name, given, fault in (
                ("getPet", {"id": "three"}, ToolFault.INVALID),
                ("add_pet", {"name": "Ada", "mood": "odd"}, ToolFault.INVALID),
                ("add_pet", {}, ToolFault.INVALID),
                ("getPet", {"id": 404}, ToolFault.REFUSED),
                ("getPet", {"id": 99}, ToolFault.FLOODED),
                ("getPet", {"id": 7}, ToolFault.LIED),
            ):
                assert (await call(name, **given)).fault is fault, (name, given)
        finally:
            await box.close()

    asyncio.run(main())


def test_a_service_that_is_not_there_is_an_observation(tmp_path):
    path = tmp_path / "pets.json"
    path.write_text(json.dumps(DOCUMENT))
    task = Task(id="pets", prompt="look")
    env = make("tool", task, openapi=str(path), base_url="http://127.0.0.1:9")
    steps = play(env, Action.call("getPet", id=3))
    assert steps[1].text.startswith("error (died)")
    for text, said in (("swagger: '2.0'", "no OpenAPI document of version 3"), ("{", "neither JSON nor YAML")):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            make("tool", task, openapi=str(path))
    with pytest.raises(ValueError, match="must begin with http"):
        openapi_tools(DOCUMENT)
