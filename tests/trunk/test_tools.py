"""Reading what models write: the compact notation is the shell's, and no text takes long."""

import shlex
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envgym.messages import ParseError, ToolCall
from envgym.tools import compact, parse_call, read_json_call, tool_spec


def put(path: str, text: str) -> None:
    """Write a text."""


_SPECS = (tool_spec(put),)
_TRICKY = st.text(alphabet="ab 'x\"\\\n\t\r$é\x85\u2003", max_size=30)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x", "'", '"', "\\", "\\x", " x", "'a'", '"\\"'])
def test_a_megabyte_of_anything_is_read_quickly(piece: str) -> None:
    started = time.process_time()
    parse_call("put " + piece * (1_000_000 // len(piece)), _SPECS)
    assert time.process_time() - started < 5.0  # linear: tens of milliseconds; the quadratic way took minutes


_ARGUMENTS = '{"name": "put", "arguments": {"path": "a", "text": %s}}'
_VALUE = st.text(max_size=20) | st.sampled_from(["1", "NaN", "1e999", '"\\ud800"', "9" * 4300, "-" + "9" * 5000])


@given(_VALUE, st.sampled_from(["[", '{"a":', "{"]), st.sampled_from([0, 1, 250, 300, 990, 30_000]))
@example("9" * 5000, "[", 0)
@example("", "[", 30_000)
def test_whatever_a_model_writes_is_a_call_or_a_parse_error(value: str, opened: str, depth: int) -> None:
    nested = opened * depth + value + ("]" if opened == "[" else "}") * depth
    for text in (nested, "{" + nested, _ARGUMENTS % nested):
        for found in (read_json_call(text), parse_call(text, _SPECS)):
            assert isinstance(found, ToolCall | ParseError)
            assert isinstance(found, ToolCall) or len(found.message) < 1000


@pytest.mark.slow
def test_arguments_may_be_a_text_that_holds_them() -> None:
    call = parse_call('{"name": "put", "arguments": "{\\"path\\": \\"a\\", \\"text\\": \\"b\\"}"}', _SPECS)
    assert call == parse_call("put a b", _SPECS)
