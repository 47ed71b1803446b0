"""Other agents' notations: GUI-R1's answers and programs of pyautogui mean calls of the tools that there are."""

import pytest
from envgym_environments.gui.grounding.answers import ACTIONS, Answer, written
from envgym_environments.gui.unified import page_calls, screen_calls
from hypothesis import given
from hypothesis import strategies as st

from envgym.messages import ParseError, ToolCall
from envgym.page_tools import PAGE_TOOLS, read_page_action
from envgym.screen_tools import SCREEN_TOOLS, screen_action

SIZE = (800, 600)


def told(calls):
    return [(call.name, call.arguments) if isinstance(call, ToolCall) else call.message for call in calls]


@pytest.mark.parametrize(
    ("answer", "on_screen", "on_page"),
    [
        (Answer("click", (7, 9)), ("click", {"target": "7,9"}), ("click_at", {"x": 7.0, "y": 9.0})),
        (Answer("type", text="tea"), ("type_text", {"text": "tea"}), ("type_text", {"text": "tea"})),
        (
            Answer("scroll", text="up"),
            ("scroll", {"target": "400,300", "down": -5, "right": 0}),
            ("scroll", {"dy": -400.0, "dx": 0.0}),
        ),
        (Answer("enter"), ("press", {"keys": "Return"}), ("press", {"keys": "Enter"})),
        (Answer("press_back"), ("press", {"keys": "alt+Left"}), ("back", {})),
        (Answer("complete"), ("done", {}), ("done", {})),
        (Answer("complete", text="42"), ("done", {}), ("answer_text", {"text": "42"})),
    ],
)
def test_an_action_of_the_unified_space_is_a_call_of_either(answer, on_screen, on_page):
    said = written(answer, thought="so")
    assert told(screen_calls(said, SIZE)) == [on_screen]
    assert told(page_calls(said)) == [on_page]


def test_a_program_is_read_and_never_run():
    program = """I see it.
```python
import pyautogui, time
pyautogui.moveTo(10, 20)
pyautogui.dragTo(30, y=40, duration=0.5, button='left')
pyautogui.click()
pyautogui.click(x=1, y=2, clicks=2)
pyautogui.rightClick((5, 6))
pyautogui.write('a b', interval=0.1)
pyautogui.hotkey('ctrl', 's')
pyautogui.press(['tab', 'enter'], presses=2)
pyautogui.scroll(-3)
time.sleep(0.5)
```"""
    calls = screen_calls(program, SIZE)
    assert told(calls) == [
        ("move", {"target": "10,20"}),
        ("drag", {"start": "10,20", "end": "30,40"}),
        ("click", {"target": "30,40", "button": "left", "count": 1}),
        ("click", {"target": "1,2", "button": "left", "count": 2}),
        ("click", {"target": "5,6", "button": "right", "count": 1}),
        ("type_text", {"text": "a b"}),
        ("press", {"keys": "ctrl+s"}),
        *[("press", {"keys": key}) for key in ("tab", "enter") * 2],
        ("scroll", {"target": "5,6", "down": 3}),
        ("wait", {"seconds": 0.5}),
    ]
    assert not any(isinstance(screen_action(call), ParseError) for call in calls)


@pytest.mark.parametrize(("seconds", "waits"), [("0", []), ("0.0", []), ("30", [10.0]), ("1e999", [10.0])])
def test_a_sleep_that_no_wait_is_long_enough_for_is_the_longest_one_and_none_is_none(seconds, waits):
    calls = screen_calls(f"pyautogui.click(1, 2)\ntime.sleep({seconds})", SIZE)
    assert told(calls)[1:] == [("wait", {"seconds": one}) for one in waits]
    assert not any(isinstance(screen_action(call), ParseError) for call in calls)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pyautogui.click(__import__('os').getpid(), 1)", "malformed node"),
        ("import os\nos.system('x'); pyautogui.click()", "there is no os.system here"),
        ("pyautogui.screenshot()", "there is no pyautogui.screenshot here"),
        ("x = pyautogui.click()", "only calls of pyautogui"),
        (f"pyautogui.click{'.x' * 5000}()", "not a program of pyautogui"),
        ("pyautogui.press(['a'] * 9)", "malformed node"),
        ("pyautogui.press(['a', 'b'], presses=9)", "at most 16 keys"),
        ("import pyautogui.nothing", "the program does nothing"),
        ("pyautogui.click(1,", "not a program of pyautogui"),
        ("pyautogui.click(**{'x': 1})", "arguments are written out"),
        ("pyautogui.click(1, 2, 3, 4, 5, 6)", "takes from 1 to 6"),
        ("pyautogui.click(1e999, 2)", "infinity"),
        ("time.sleep(-1)  # pyautogui.", "no negative number"),
        ("<answer>[{'action': 'fly'}]</answer>", "there is no action 'fly' here"),
        ("<answer>[{'action': 'click', 'point': 'x'}]</answer>", "a click has a point"),
        ("<answer>[{'action': 'scroll', 'input_text': 'in'}]</answer>", "a scroll has a direction"),
    ],
)
def test_what_is_neither_is_a_mistake_that_is_told(text, said):
    (mistake,) = screen_calls(text, SIZE)
    assert isinstance(mistake, ParseError)
    assert said in mistake.message


def test_other_texts_are_left_to_the_tools_own_notation():
    assert screen_calls("click e7", SIZE) is None
    assert page_calls("click e7") is None


@given(st.sampled_from(ACTIONS), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), st.text(max_size=9))
def test_every_call_that_is_read_is_one_of_a_tool(action, point, text):
    said = written(Answer(action, point, text))
    for call in (*screen_calls(said, SIZE), *page_calls(said)):
        if isinstance(call, ToolCall) and call.name not in ("done", "back", "answer_text"):
            ours = call.name in {spec.name for spec in SCREEN_TOOLS} and "target" in call.arguments
            assert ours or call.name in {spec.name for spec in (*SCREEN_TOOLS, *PAGE_TOOLS)}
            if call.name == "click_at":
                assert not isinstance(read_page_action(call), ParseError)


@given(st.text(alphabet="pyautogi.clk()[]{}'\"\n0123456789,=* ", max_size=60))
def test_any_text_is_read_without_an_exception(text):
    for calls in (screen_calls(f"pyautogui.{text}", SIZE), screen_calls(f"<answer>{text}</answer>", SIZE)):
        assert calls is not None
        assert all(isinstance(call, ToolCall | ParseError) for call in calls)
