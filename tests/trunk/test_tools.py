"""Reading what models write: the compact notation is the shell's, and no text takes long."""

import copy
import pickle
import shlex
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError

from envgym.messages import Message, ParseError, ToolCall, ToolSpec
from envgym.tools import check_call, compact, parse_call, read_json_call, tool_spec


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


def test_half_a_surrogate_pair_in_an_argument_is_a_parse_error_wherever_it_stands() -> None:
    def write(title: str, more: list[str], kept: dict[str, str]) -> None:
        """Write."""

    specs = (tool_spec(write),)
    right: dict[str, JsonValue] = {"title": "Lunch \U0001f354", "more": ["é"], "kept": {"ü": "東京"}}
    assert isinstance(check_call(ToolCall(name="write", arguments=right), specs), ToolCall)
    half: JsonValue = "Lunch \ud83d"
    for odd in ({"title": half}, {"more": ["a", half]}, {"kept": {"a": half}}, {"kept": {"\ud83d": "a"}}):
        found = check_call(ToolCall(name="write", arguments={**right, **odd}), specs)
        assert isinstance(found, ParseError), odd
        assert "half a surrogate pair" in found.message
        found.message.encode()  # what is shown is a text
    free = ToolSpec(name="any", description="", parameters={"additionalProperties": True})
    assert isinstance(check_call(ToolCall(name="any", arguments={"\ud83d": 1}), (free,)), ParseError)
    assert isinstance(check_call(ToolCall(name="any", arguments={"é": 1}), (free,)), ToolCall)
    read = parse_call('{"name": "put", "arguments": {"path": "a", "text": "Lunch \\ud83d"}}', _SPECS)
    assert isinstance(read, ParseError)


def test_a_message_that_a_world_says_is_the_one_that_validation_makes() -> None:
    for made, same in (
        (Message.told("hé", "3"), Message(role="tool", content="hé", tool_call_id="3")),
        (Message.told(""), Message(role="user")),
        (Message.told("x", ""), Message(role="tool", content="x")),
    ):
        assert made == same
        assert (repr(made), hash(made)) == (repr(same), hash(same))
        assert made.model_dump_json() == same.model_dump_json()
        assert made.model_fields_set == same.model_fields_set
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == same
        assert made.model_copy(update={"content": "y"}) == same.model_copy(update={"content": "y"})
        with pytest.raises(ValidationError, match="frozen"):
            made.content = "z"  # type: ignore[misc]


def test_a_checked_call_is_a_copy_so_that_a_world_cannot_rewrite_what_was_said() -> None:
    given = ToolCall(name="put", arguments={"path": "a", "text": "b"}, id="c1")
    checked = check_call(given, _SPECS)
    assert isinstance(checked, ToolCall)
    checked.arguments["path"] = "c"
    checked.arguments.pop("text")
    assert given.arguments == {"path": "a", "text": "b"}
    assert checked.model_dump_json() == '{"name":"put","arguments":{"path":"c"},"id":"c1"}'
    assert checked == ToolCall(name="put", arguments={"path": "c"}, id="c1")


def test_what_needs_no_coercion_is_an_equal_call_and_what_does_is_another() -> None:
    def look(word: str, count: int) -> None:
        """Look."""

    specs = (tool_spec(look),)
    plain = ToolCall(name="look", arguments={"word": "hé", "count": 3}, id="c1")
    assert check_call(plain, specs) == plain
    written = plain.model_copy(update={"arguments": {"word": "hé", "count": "3"}})
    checked = check_call(written, specs)
    assert (checked, written.arguments["count"]) == (plain, "3"), "what was given is left as it was"
    for wrong in ({"word": 3, "count": 3}, {"word": "a", "count": 3.5}, {"word": "a"}):
        assert isinstance(check_call(plain.model_copy(update={"arguments": wrong}), specs), ParseError), wrong
    one = check_call(plain.model_copy(update={"arguments": {"word": "a", "count": True}}), specs)
    assert isinstance(one, ToolCall)
    assert type(one.arguments["count"]) is int
