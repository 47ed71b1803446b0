"""An MCP server over standard input and output that misbehaves in the way its tools' names say."""

import json
import os
import subprocess
import sys
import time

OPEN = {"type": "object", "properties": {}}
TOOLS = [
    {
        "name": "add",
        "description": "Add.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
    {"name": "count", "description": "How often it was called in this life.", "inputSchema": OPEN},
    *(
        {"name": name, "description": name, "inputSchema": OPEN}
        for name in (
            "hang",
            "hang_alone",
            "long_line",
            "many_lines",
            "die",
            "kill",
            "refuse",
            "garbage",
            "no_result",
            "leave_child",
        )
    ),
    {
        "name": "bad_output",
        "description": "Lies.",
        "inputSchema": OPEN,
        "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    {
        "name": "bad_schema",
        "description": "Lies.",
        "inputSchema": {"type": "object", "properties": {"x": {"type": "banana"}}},
    },
    {
        "name": "far_reference",
        "description": "Lies.",
        "inputSchema": {"type": "object", "properties": {"x": {"$ref": "http://192.0.2.1/schema.json"}}},
    },
    {
        "name": "deep",
        "description": "Lies.",
        "inputSchema": {"type": "object", "properties": {"x": {"items": None}}},
    },
    {"name": "add", "description": "A second of this name.", "inputSchema": OPEN},
]
deep = TOOLS[-2]["inputSchema"]["properties"]["x"]
for _ in range(40):
    deep["items"] = {"type": "array"}
    deep = deep["items"]
called = 0


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def call(name, arguments):
    global called
    called += 1
    if name == "add":
        return text(str(arguments["a"] + arguments["b"]))
    if name == "count":
        return text(str(called))
    if name == "hang":
        while True:
            time.sleep(60)
    if name == "long_line":
        while True:
            sys.stdout.write("x" * 65536)
    if name == "many_lines":
        while True:
            send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/message",
                    "params": {"level": "info", "data": "x" * 5000},
                }
            )
    if name == "die":
        sys.stderr.write("my last words\n")
        sys.stderr.flush()
        os._exit(3)
    if name == "kill":
        os.kill(os.getpid(), 9)
    if name == "refuse":
        return text("not today") | {"isError": True}
    if name == "garbage":
        sys.stdout.write("Traceback: not JSON\n{\n[]\n")
        return text("after the garbage")
    if name == "no_result":
        return {"content": "no list"}
    if name == "bad_output":
        return text("n is seven") | {"structuredContent": {"n": "seven"}}
    if name == "leave_child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return text(f"{os.getpid()} {child.pid}")
    return text("called with " + json.dumps(arguments))


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        if "mute" in sys.argv:
            continue
        send(
            answer
            | {
                "result": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "lines", "version": "1"},
                }
            }
        )
    elif method == "tools/list":
        send(answer | {"result": {"tools": TOOLS, "nextCursor": "again"}})
    elif method == "ping":
        send(answer | {"result": {}})
    elif method == "tools/call" and params["name"] == "hang_alone":
        continue
    elif method == "tools/call":
        send(answer | {"result": call(params["name"], params.get("arguments") or {})})
    else:
        send(answer | {"error": {"code": -32601, "message": "no such method"}})
