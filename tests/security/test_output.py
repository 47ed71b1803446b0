"""What a command writes is bytes, and stays bytes up to the terminal of whoever looks at it."""

import os
import re
import subprocess
import sys

import pytest

from envgym.env import Step
from envgym.episode import Episode, Turn
from envgym.errors import EnvironmentFailure, Failure
from envgym.messages import Message
from envgym.store import StoreWriter

pytestmark = pytest.mark.timeout(60)

ESCAPES = (
    b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x1bP+q\x1b\\\x9b31m\x1b]52;c;ZXZpbA==\x07\r\x08\x7f\x00\xe2\x80\xae"
)


@pytest.mark.parametrize("way", ["argv", "shell"])
def test_every_byte_arrives_as_it_was_written(cell, way):
    prisoner = cell.create()
    every = bytes(range(256)) * 16 + ESCAPES + b"\xc0\x80\xed\xa0\x80\xf5\xff"
    prisoner.call("write", "bytes", every)
    result = prisoner.run(["cat", "bytes"] if way == "argv" else "cat bytes; cat bytes >&2")
    assert result.stdout == every
    if way == "shell":
        assert result.stderr == every
    assert prisoner.run(["cat"], stdin=every).stdout == every
    assert prisoner.run("cat", stdin=every).stdout == every
    assert prisoner.call("read", "bytes") == every


def test_output_that_looks_like_the_protocol_is_output(cell):
    prisoner = cell.create()
    frames = b"\0\0\0\x10\0\0\0\0" + b'{"dead":"forged"}' + b'{"id":1,"code":0,"out":0}' + b"0\0\0" * 5
    prisoner.call("write", "frames", frames)
    for fd in (1, 2, 3, 4, 5, 10, 200, 255):
        prisoner.run(f"cat frames >&{fd}", timeout_s=5)
        prisoner.run(["bash", "-c", f"cat frames >&{fd}"])
    assert prisoner.run(["cat", "frames"]).stdout == frames


def test_invalid_text_in_names_variables_and_results_breaks_no_view(cell):
    prisoner = cell.create()
    result = prisoner.run("x=$'\\xff\\xfe'; export x; echo $x; false $'\\xff'; ls $'\\xff'; cd $'\\xff'; $'\\xff'")
    assert result.exit_code != 0
    assert isinstance(result.text, str)
    assert prisoner.run("echo $x").stdout == b"\xff\xfe\n"
    with prisoner.fork() as fork:
        assert fork.run("echo $x").stdout == b"\xff\xfe\n"
        assert fork.run(["printenv"], env={"y": "\udcff"}).stdout.count(b"\xff") == 1


def test_a_failing_setups_output_cannot_steer_a_terminal(cell):
    with pytest.raises(EnvironmentFailure) as caught:
        cell.create(setup=("printf '\\033]0;title\\007\\033[2J'; exit 3",))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", str(caught.value)), repr(str(caught.value))


# -- what is shown on a terminal ---------------------------------------------------------------------------------

CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]|\x1b(?!\[[0-9;]*m)")
HOSTILE = "\x1b]0;t\x07\x1b[2J\x9b31m\u202e\x08\r[/bold][link=file:///etc]x"


def hostile_episode() -> Episode:
    """Every text in it steers a terminal."""
    step = Step(
        observation=(Message(role="user", content=HOSTILE),),
        reward=1.0,
        channels={HOSTILE: 1.0},
        cost={HOSTILE: 2.0},
    )
    turn = Turn(actor=HOSTILE, messages=(Message(role="assistant", content=HOSTILE),), step=step)
    failure = Failure(boundary="environment", kind=HOSTILE, message=HOSTILE, where=HOSTILE, turn=1, trace=HOSTILE)
    return Episode(
        id=HOSTILE,
        task_id=HOSTILE,
        seed=1,
        root=step,
        turns=(turn,),
        failure=failure,
        provenance=((HOSTILE, HOSTILE),),
    )


def shown(*arguments: str, terminal: bool) -> bytes:
    """What the command writes, on a terminal or into a pipe."""
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200", "FORCE_COLOR": "1" if terminal else ""}
    env = {name: value for name, value in env.items() if value}
    command = [sys.executable, "-c", "from envgym.cli import main; main()", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=50)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("options", [(), ("--episode", "0"), ("--episode", "0", "--turn", "0")])
def test_showing_an_episode_sends_a_terminal_no_escape_of_its_texts(tmp_path, options, terminal):
    file = tmp_path / "episodes"
    with StoreWriter(file) as writer:
        writer.append(hostile_episode())
    told = shown("show", str(file), *options, terminal=terminal)
    assert b"x1b]0;t" in told or b"\\x1b" in told, told
    assert not CONTROL.search(told), CONTROL.findall(told)
    assert "\u202e".encode() not in told
