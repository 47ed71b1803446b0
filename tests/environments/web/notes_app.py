"""A web application as somebody else would write it: the standard library's server over an SQLite file.

It is what the tests of `web_environment` play. Some of its pages misbehave: see `do_GET`.
"""

import html
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

DB = sqlite3.connect("notes.db", isolation_level=None)
FORM = '<form method="post" action="/{}"><label>Text <input name="text"></label><button>{}</button></form>'


class Notes(BaseHTTPRequestHandler):
    def page(self, body, status=200, **headers):
        sent = f"<!doctype html><title>Notes</title><h1>Notes</h1>{body}".encode()
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", "Content-Length": str(len(sent)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(sent)

    def do_GET(self):
        if self.path == "/late":
            time.sleep(3600)
        elif self.path == "/die":
            os._exit(3)
        elif self.path == "/wrong":
            self.page("<p>Something went wrong.</p>", 500)
        else:
            self.shown()

    def shown(self):
        rows = DB.execute("SELECT id, text FROM note ORDER BY id").fetchall()
        entries = "".join(f"<li>{html.escape(text)}</li>" for _, text in rows)
        buttons = FORM.format("add", "Add") + FORM.format("direct", "Add at once") + FORM.format("random", "Dice")
        self.page(f"<ul>{entries}</ul>{buttons}")

    def do_POST(self):
        text = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode(), True)["text"][0]
        if self.path == "/random":
            text = os.urandom(4).hex()
        DB.execute("INSERT INTO note (text) VALUES (?)", (text,))
        if self.path == "/direct":  # a page that cannot be loaded again
            self.shown()
        elif self.path == "/random":
            self.page("<p>Thrown.</p>" + FORM.format("random", "Dice"))
        else:
            self.page("", 303, Location="/")

    def log_message(self, *given):
        pass


if len(sys.argv) > 1:
    sys.exit(sys.argv[1])
HTTPServer(("127.0.0.1", 8000), Notes).serve_forever()
