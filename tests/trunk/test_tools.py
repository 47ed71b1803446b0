"""Reading what models write: the compact notation is the shell's, and no text takes long."""

import shlex
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envgym.messages import ParseError, ToolCall
from envgym.tools import compact, parse_call, tool_spec


def put(path: str, text: str) -> None:
    """Write a text."""


_SPECS = (tool_spec(put),)
_TRICKY = st.text(alphabet="ab 'x\"\\\n\t\r$é\x85\u2003", max_size=30)


@given(_TRICKY)
@example("put '' \"\"")
@example('put "a\\"b\\\\c\\d" x\\ y')
@example("put 'open")
@example("put \\")
def test_a_compact_call_is_split_as_a_shell_would(text: str) -> None:
    call = parse_call("put " + text, _SPECS)
    words: list[str] | None
    try:
        words = shlex.split(("put " + text).strip())[1:]
    except ValueError:
        words = None
    if words is None or len(words) != 2:
        assert isinstance(call, ParseError)
    else:
        assert isinstance(call, ToolCall)
        assert list(call.arguments.values()) == words


@given(st.text(), st.text())
def test_a_compact_call_reads_back_as_it_was(path: str, text: str) -> None:
    call = ToolCall(name="put", arguments={"path": path, "text": text})
    assert parse_call(compact(call), _SPECS) == call


@pytest.mark.parametrize("piece", ["x", "'", '"', "\\", "\\x", " x", "'a'", '"\\"'])
def test_a_megabyte_of_anything_is_read_quickly(piece: str) -> None:
    started = time.process_time()
    parse_call("put " + piece * (1_000_000 // len(piece)), _SPECS)
    assert time.process_time() - started < 5.0  # linear: tens of milliseconds; the quadratic way took minutes
