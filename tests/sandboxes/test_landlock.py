"""Landlock itself: what a restricted process can still do, on this kernel and as on older ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import envgym_sandboxes
import pytest
from envgym_sandboxes import landlock

pytestmark = [pytest.mark.timeout(60)]

if not landlock.abi():
    pytest.skip(landlock.absence(), allow_module_level=True)

PACKAGES = ":".join(str(Path(module.__file__).parents[1]) for module in (envgym_sandboxes,))
START = """
import ctypes, errno, json, os, signal, socket, sys
from envgym_sandboxes.landlock import *
given = json.loads(sys.argv[1])
top, version, host = given["top"], given["version"], given["host"]
told = {}
def attempt(name, call):
    try:
        call()
        told[name] = "done"
    except OSError as error:
        told[name] = errno.errorcode[error.errno]
rules = (("/usr", READ_EXECUTE), (top + "/own", ALL), ("/dev/null", READ | WRITE_FILE))
"""
END = "\nprint(json.dumps(told))"
FILES = (
    START
    + """
attempt("restrict", lambda: restrict(Ruleset(rules), version=version))
attempt("read what is named", lambda: open("/usr/bin/env", "rb").read(1))
attempt("write what is only read", lambda: open("/usr/bin/env", "ab"))
attempt("read another's", lambda: open(top + "/secret").read())
attempt("write another's", lambda: open(top + "/secret", "a"))
attempt("list another's", lambda: os.listdir(top))
attempt("make beside it", lambda: os.mkdir(top + "/new"))
attempt("remove another's", lambda: os.unlink(top + "/secret"))
attempt("link another's in", lambda: os.link(top + "/secret", top + "/own/stolen"))
attempt("write its own", lambda: open(top + "/own/a", "w").write("x"))
attempt("make its own", lambda: os.makedirs(top + "/own/d/e"))
attempt("move between its own", lambda: os.rename(top + "/own/a", top + "/own/d/a"))
attempt("cut another's", lambda: os.truncate(top + "/secret", 0))
attempt("through a link", lambda: (os.symlink(top + "/secret", top + "/own/s"), open(top + "/own/s").read()))
attempt("a device", lambda: open("/dev/null", "w").write("x"))
attempt("another device", lambda: open("/dev/zero").read(1))
"""
    + END
)
OUTWARDS = (
    START
    + """
attempt("restrict", lambda: restrict(Ruleset(rules, tcp=given["tcp"]), version=version))
sock = socket.socket()
attempt("connect", lambda: sock.connect(("127.0.0.1", given["port"])))
attempt("bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + given["abstract"]))
attempt("signal outside", lambda: os.kill(host, 0))
pid = os.fork()
if pid == 0:
    signal.pause()
attempt("signal inside", lambda: os.kill(pid, 9))
os.kill(pid, 0) if told["signal inside"] != "done" else os.waitpid(pid, 0)
attempt("environment of the host", lambda: open(f"/proc/{host}/environ", "rb").read())
"""
    + END
)


def run(script, **given):
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps({"host": os.getpid(), **given})],
        env={"PYTHONPATH": PACKAGES},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def top(state):
    (state / "own").mkdir()
    (state / "secret").write_text("secret")
    return state


@pytest.mark.parametrize("version", range(1, landlock.abi() + 1))
def test_only_what_is_named_can_be_used_under_every_abi(top, version):
    told = run(FILES, top=str(top), version=version)
    allowed = {
        *("restrict", "read what is named", "write its own", "make its own", "a device"),
        *(["move between its own"] if version >= 2 else []),
        *(["cut another's"] if version < 3 else []),
    }
    assert {name for name, result in told.items() if result == "done"} == allowed, told
    refused = {result for result in told.values() if result != "done"}
    assert refused <= {"EACCES", "EXDEV"}, told
    assert (top / "secret").exists()
    assert (top / "secret").read_text() == ("" if version < 3 else "secret"), "as the docstring says"


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("version", range(1, landlock.abi() + 1))
def test_ports_sockets_and_signals_end_at_the_domain_where_the_abi_knows_them(top, version, tcp):
    import socket

    name = f"envgym-test-{os.getpid()}"
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as abstract:
        server.bind(("127.0.0.1", 0))
        server.listen()
        abstract.bind("\0" + name)
        abstract.listen()
        told = run(OUTWARDS, top=str(top), version=version, port=server.getsockname()[1], abstract=name, tcp=tcp)
    network = "done" if tcp or version < 4 else "EACCES"
    scoped = "done" if version < 6 else "EPERM"
    assert told == {
        "restrict": "done",
        "connect": network,
        "bind": network,
        "abstract": scoped,
        "signal outside": scoped,
        "signal inside": "done",
        "environment of the host": "EACCES",
    }


def test_a_missing_path_and_an_unknown_abi_are_errors_and_restrict_nothing(top):
    script = (
        START
        + """
attempt("missing", lambda: restrict(Ruleset(((top + "/absent", READ),)), version=version))
attempt("too new", lambda: restrict(Ruleset(rules), version=version + 1))
attempt("still free", lambda: open(top + "/secret").read())
"""
        + END
    )
    told = run(script, top=str(top), version=landlock.abi())
    assert told == {"missing": "ENOENT", "too new": "ENOTSUP", "still free": "done"}


def test_a_second_restriction_only_narrows(top):
    script = (
        START
        + """
restrict(Ruleset(rules))
restrict(Ruleset((("/", ALL),)))
attempt("widened", lambda: open(top + "/secret").read())
attempt("kept", lambda: open(top + "/own/a", "w"))
restrict(Ruleset((("/usr", READ_EXECUTE), (top + "/own", READ | REMOVE))))
attempt("written", lambda: open(top + "/own/a", "w"))
attempt("removed", lambda: os.unlink(top + "/own/a"))
for number in range(16):
    attempt(f"deeper", lambda: restrict(Ruleset(rules)))
"""
        + END
    )
    told = run(script, top=str(top), version=landlock.abi())
    assert told == {
        "widened": "EACCES",
        "kept": "done",
        "written": "EACCES",
        "removed": "done",
        "deeper": "E2BIG",
    }
