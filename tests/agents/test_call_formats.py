"""Every call format reads what it writes, says what is wrong with anything else, and never raises."""

import json

import pytest
from envgym_agents.call_formats import FENCED, FORMATS, HERMES, REACT, XML, call_format, read_as
from envgym_agents.chat import tools_message
from hypothesis import given
from hypothesis import strategies as st

from envgym import ToolCall, tool_spec


def put(path: str, text: str, times: int = 1, tags: list[str] | None = None) -> None:
    """Write a text."""


def look(place: str) -> None:
    """Look at a place."""


TOOLS = (tool_spec(put), tool_spec(look))
TEXT = st.text(alphabet="ab \"'\\{}é:\n1", max_size=12).filter(lambda text: text == text.strip("\n"))
CALLS = st.builds(
    lambda path, text, times: ToolCall(name="put", arguments={"path": path, "text": text, "times": times}),
    TEXT, TEXT, st.integers(-9, 9),
)  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@given(calls=st.lists(CALLS, min_size=1, max_size=3), thought=st.sampled_from(["", "I must write it down."]))
def test_a_format_reads_what_it_writes(form, calls, thought):
    calls = calls[:1] if form is REACT else calls
    action = read_as(form, form.write(calls, thought), TOOLS)
    assert action.error is None
    assert [(call.name, call.arguments) for call in action.calls] == [(c.name, c.arguments) for c in calls]
    assert len({call.id for call in action.calls}) == len(calls)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@given(st.text() | st.sampled_from(["<tool_call>", "<function=", "```tool\n", "Action: put\nAction Input: {"]))
def test_nothing_a_model_says_raises(form, text):
    for said in (text, form.example + text, text + form.example):
        action = read_as(form, said, TOOLS)
        assert action.text == said
        assert action.error is None or not action.calls


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (HERMES, '<tool_call>{"name": "put"}</tool_call>', "put lacks its argument(s) path, text"),
        (HERMES, "<tool_call>{bad</tool_call>", "not a tool call"),
        (XML, "<tool_call><function=putt></function></tool_call>", "unknown tool 'putt'"),
        (XML, "<tool_call>{}</tool_call>", "without <function=NAME>"),
        (XML, "<function=put><parameter=path>a</parameter><parameter=text>b</parameter>"
              "<parameter=times>many</parameter></function>", "times='many' is not a valid integer"),
        (XML, "<function=look><parameter=place>/a</parameter><parameter= place >/b</parameter></function>",
              "look got its argument place twice; give each once"),
        (FENCED, "```tool\n{bad\n```", "no JSON"),
        (FENCED, "```tool\nimport os\n```", "calls alone"),
        (FENCED, "```tool_code\nlook(place=os.getcwd())\n```", "must be literal values"),
        (FENCED, "```tool_code\nlook('/tmp', 'extra')\n```", "got 2 arguments without names; it takes 1 (place)"),
        (FENCED, "```tool_code\nlook('/a', place='/b')\n```", "look got its argument place twice"),
        (FENCED, "```tool_code\nlook(place='/a', place='/b')\n```", "look got its argument place twice"),
        (FENCED, "```tool_code\nlook(**{'place': '/a'})\n```", "must be written out, without **"),
        (FENCED, "```tool_code\nlok('/a', '/b')\n```", "unknown tool 'lok'"),
        (FENCED, "```json\n[1]\n```", "not a tool call"),
        (REACT, "Action Input: {}", "without an Action"),
        (REACT, "Action: put\nAction Input: hello", "no JSON object"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_the_way_to_do_it(form, text, said):
    error = read_as(form, text, TOOLS).error
    assert error is not None
    assert said in error.message
    assert error.message.endswith(form.example)


def test_arguments_without_names_are_not_lost_where_no_tools_are_known():
    text = "```tool_code\nlook('/tmp')\n```"
    assert "look got 1 arguments without names" in read_as(FENCED, text, ()).error.message
    (call,) = read_as(FENCED, "```tool_code\nlook(place='/tmp')\n```", ()).calls
    assert call.arguments == {"place": "/tmp"}


def test_what_models_really_write_is_understood():
    spoken = (
        "I look.\n<tool_call>\n<function=look>\n<parameter=place>\n/tmp\n</parameter>\n</function>\n</tool_call>"
    )
    listed = '```json\n[{"name": "look", "arguments": {"place": "/tmp"}}]\n```'
    bare = "Thought: hm\nAction: look\nAction Input: /tmp\nObservation: I imagine this\nAction: put"
    cut = "<function=look><parameter=place>/tmp"
    for form, text in (
        (XML, spoken), (XML, cut), (FENCED, listed), (FENCED, "```tool_code\nlook('/tmp')\n```"), (REACT, bare),
        (FENCED, "```python\nlook(place='/tmp')\n```"),
    ):  # fmt: skip
        (call,) = read_as(form, text, TOOLS).calls
        assert (call.name, call.arguments) == ("look", {"place": "/tmp"}), text
    tags = (
        '<function=put><parameter=path>1</parameter><parameter=text>2</parameter><parameter=tags>["a"]</parameter>'
    )
    (call,) = read_as(XML, tags, TOOLS).calls
    assert call.arguments == {"path": "1", "text": "2", "tags": ["a"]}, "text stays text, a list is one"


def test_plain_text_is_no_call_and_no_mistake():
    for form in FORMATS.values():
        for text in ("The answer is 4.", "Thought: I know.\nFinal Answer: 4", "```python\nx = 1\n```"):
            action = read_as(form, text, TOOLS)
            assert (action.calls, action.error) == ((), None), (form.name, text)


def test_tools_are_shown_with_the_way_to_call_them():
    for form in FORMATS.values():
        shown = str(form.system(TOOLS).content)
        assert json.loads(shown.splitlines()[1])["name"] == "put"
        assert form.example.splitlines()[0] in shown
    assert tools_message(TOOLS) == HERMES.system(TOOLS)
    with pytest.raises(ValueError, match="call_format is 'xlm'; did you mean 'xml'"):
        call_format("xlm")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@pytest.mark.parametrize(
    "filler", [" ", "\n", "`", "Action:", "\nAction Input:", "<function=", "\n ```", "```tool "]
)
def test_a_long_answer_is_read_in_linear_time(form, filler):
    long = filler * (200_000 // len(filler))
    for text in (f"Action: look{long}y", f"Action: look\nAction Input: {long}y", f"```tool\n{long}y", long):
        assert read_as(form, text, TOOLS).text == text


def test_blanks_around_an_action_are_no_part_of_its_name():
    assert read_as(REACT, 'Action: \t look \t \nAction Input: {"place": "a"}', TOOLS).calls[0].name == "look"
