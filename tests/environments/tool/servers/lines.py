"""An MCP server that misbehaves in the way its tools' names say: over standard input and output, or HTTP at a port.

A word after the port must be in each request, as its Authorization.
"""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OPEN = {"type": "object", "properties": {}}
TWICE = [[{"$ref": f"#/$defs/d{n + 1}"}] * 2 for n in range(40)]
DOUBLING = {f"d{n}": {"allOf": twice} for n, twice in enumerate(TWICE)} | {"d40": {"type": "string"}}
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
            "unread",
            "garbage",
            "babble",
            "other_id",
            "shut",
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
    {
        "name": "doubling",
        "description": "Lies: a value is checked 2**40 times.",
        "inputSchema": {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": DOUBLING},
    },
    {
        "name": "doubling_output",
        "description": "Lies.",
        "inputSchema": OPEN,
        "outputSchema": {"type": "object", "properties": {"n": {"$ref": "#/$defs/d0"}}, "$defs": DOUBLING},
    },
    {
        "name": "in_itself",
        "description": "Lies.",
        "inputSchema": {"type": "object", "properties": {}, "anyOf": [{"$ref": "#"}]},
    },
    {
        "name": "into_a_number",
        "description": "Lies.",
        "inputSchema": {
            "type": "object",
            "properties": {"x": {"$ref": "#/properties/y/minimum/z"}, "y": {"minimum": 5}},
        },
    },
    {
        "name": "doubling_tree",
        "description": "What is nested n deep is checked 2**n times.",
        "inputSchema": {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/d"}},
            "$defs": {"d": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}]}}}},
        },
    },
    {
        "name": "slow_pattern",
        "description": "Its expression takes years.",
        "inputSchema": OPEN,
        "outputSchema": {"type": "object", "properties": {"n": {"type": "string", "pattern": "^(a+)+$"}}},
    },
    {
        "name": "no_pattern",
        "description": "Its expression is none.",
        "inputSchema": OPEN,
        "outputSchema": {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "object",
            "patternProperties": {"(": {}},
        },
    },
    {
        "name": "find",
        "description": "An honest one, whose arguments are named like keywords.",
        "inputSchema": {
            "type": "object",
            "properties": {"pattern": {"type": "string"}, "format": {"type": "string"}},
            "required": ["pattern"],
            "additionalProperties": False,
        },
    },
]
deep = next(tool for tool in TOOLS if tool["name"] == "deep")["inputSchema"]["properties"]["x"]
for _ in range(40):
    deep["items"] = {"type": "array"}
    deep = deep["items"]
PAGE = b"<!doctype html><title>Bad gateway</title>"
PAGES = {
    "page": (200, {"content-type": "text/html"}),
    "page_500": (500, {"content-type": "text/html"}),
    "page_502_json": (502, {"content-type": "application/json"}),
    "no_kind": (200, {}),
    "moved": (302, {"content-type": "text/html", "location": "/elsewhere"}),
    "gone": (404, {"content-type": "text/html"}),
    "cut_off": (200, {"content-type": "application/json", "content-length": "1000"}),
}
"""What a proxy before the server answers in its place, over HTTP, to a call of that name."""
TOOLS += [{"name": name, "description": name, "inputSchema": OPEN} for name in PAGES]
called = 0


class Lines:
    """Messages as lines of standard output."""

    @staticmethod
    def raw(words):
        sys.stdout.write(words)

    def send(self, message):
        self.raw(json.dumps(message) + "\n")
        sys.stdout.flush()

    @staticmethod
    def shut():
        """Closes the output; the program lives."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Events:
    """Messages as server-sent events, the body of one answer."""

    def __init__(self, file):
        self.file = file

    def raw(self, words):
        self.file.write("".join(f"data: {line}\n\n" for line in words.splitlines()).encode())

    def send(self, message):
        if not self.file.closed:
            self.raw(json.dumps(message))

    def shut(self):
        """Ends this answer, which has no result; the server lives."""
        self.file.close()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def call(name, arguments, out):
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
        if isinstance(out, Events):
            out.file.write(b"data: ")
        while True:
            (out.file.write(b"x" * 65536) if isinstance(out, Events) else out.raw("x" * 65536))
    if name == "many_lines":
        while True:
            out.send(
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
        out.raw("Traceback: not JSON\n{\n[]\n")
        return text("after the garbage")
    if name == "babble":
        while True:
            out.raw("no JSON, and no end of it\n")
    if name == "shut":
        out.shut()
    if name == "no_result":
        return {"content": "no list"}
    if name == "bad_output":
        return text("n is seven") | {"structuredContent": {"n": "seven"}}
    if name in ("slow_pattern", "no_pattern", "doubling_output"):
        return text("told") | {"structuredContent": {"n": "a" * 40 + "!"}}
    if name == "leave_child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return text(f"{os.getpid()} {child.pid}")
    return text("called with " + json.dumps(arguments))


def answer(message, out):
    said = {"jsonrpc": "2.0", "id": message["id"]}
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        if "mute" in sys.argv:
            return
        information = {"name": "lines", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": information}
        out.send(said | {"result": result})
    elif method == "tools/list":
        out.send(said | {"result": {"tools": TOOLS, "nextCursor": "again"}})
    elif method == "tools/call" and params["name"] == "unread":
        out.send(said | {"error": {"code": -32700, "message": "Parse error: your date is none"}})
    elif method == "ping":
        out.send(said | {"result": {}})
    elif method == "tools/call" and params["name"] == "hang_alone":
        return
    elif method == "tools/call" and params["name"] == "other_id":
        out.send(said | {"id": message["id"] + 1000, "result": text("to whom it may concern")})
    elif method == "tools/call":
        out.send(said | {"result": call(params["name"], params.get("arguments") or {}, out)})
    else:
        out.send(said | {"error": {"code": -32601, "message": "no such method"}})


class Web(BaseHTTPRequestHandler):
    """One message a request; a call that hangs holds up all others, one that hangs alone only itself."""

    busy = threading.Lock()

    def do_POST(self):
        if sys.argv[2:] and self.headers["authorization"] not in sys.argv[2:]:
            self.send_error(401)
            return
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asks = "id" in message and "method" in message
        if (name := message.get("params", {}).get("name")) in PAGES:
            status, headers = PAGES[name]
            self.send_response(status)
            for header, value in headers.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(PAGE)
            return
        self.send_response(200 if asks else 202)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if asks and message.get("params", {}).get("name") == "hang_alone":
            time.sleep(600)
        if asks:
            with self.busy:
                answer(message, Events(self.wfile))

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *given):
        """Silent."""


if len(sys.argv) > 1 and sys.argv[1].isdecimal():
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Web).serve_forever()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answer(asked, Lines())
