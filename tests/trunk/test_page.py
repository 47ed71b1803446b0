"""The contract of pages: actions, views as text and differences, the tools that agents have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.browsing import open_browser
from envgym.messages import ParseError, ToolCall
from envgym.page import Acted, Dialog, Download, Node, Outcome, PageLimits, PageView, Tab, Wanted
from envgym.page_actions import Click, Select, Target, Upload
from envgym.page_text import acted_text, tree_diff, tree_text, view_diff, view_text
from envgym.page_tools import PAGE_TOOLS, page_tools, read_page_action

TREE = (
    Node("e1", "heading", "Shop", depth=0),
    Node("e2", "textbox", "Search", "tea", depth=1, states=("focused",)),
    *(Node(f"e{n}", "link", f"Item {n}", depth=1) for n in range(3, 30)),
)
VIEW = PageView("http://shop.test/", "Shop", (Tab("http://shop.test/", "Shop", True),), tree=TREE, focused="e2")


@pytest.mark.parametrize("wrong", [{}, {"ref": "e1", "name": "x"}, {"x": 1.0}, {"role": "button", "nth": -1}])
def test_a_target_is_exactly_one_place(wrong):
    with pytest.raises(ValueError, match="must be"):
        Target(**wrong)


def test_limits_are_positive():
    with pytest.raises(ValueError, match=r"PageLimits.settle_s is 0"):
        PageLimits(settle_s=0)


def test_a_tree_is_one_line_an_element():
    assert tree_text(TREE).split("\n")[:2] == ['[e1] heading "Shop"', '  [e2] textbox "Search" = "tea" (focused)']


def test_a_difference_names_what_changed_and_only_that():
    after = replace(VIEW, tree=(*TREE[:5], replace(TREE[5], name="Other"), *TREE[6:]))
    told = view_diff(VIEW, after)
    assert '- [e6] link "Item 6"' in told
    assert '+ [e6] link "Other"' in told
    assert "Item 7" not in told
    assert len(told) < len(view_text(after))
    assert "Nothing changed" in view_diff(VIEW, VIEW)


def test_another_page_is_told_whole():
    other = replace(VIEW, url="http://shop.test/cart")
    assert view_diff(VIEW, other) == view_text(other) == view_diff(None, other)


@given(st.lists(st.text(max_size=5), max_size=8), st.lists(st.text(max_size=5), max_size=8))
def test_a_difference_is_empty_for_equal_trees_alone(names, others):
    one, two = (tuple(Node("", "text", name) for name in some) for some in (names, others))
    assert (tree_diff(one, two) == "") == (tree_text(one) == tree_text(two))


def test_what_came_of_an_action_is_told_with_all_that_happened():
    assert acted_text(Acted()) == ""
    told = acted_text(
        Acted(
            Outcome.NO_ELEMENT,
            "there is no e9",
            dialogs=(Dialog("alert", "hello", True),),
            downloads=(Download("a.txt", "http://shop.test/a.txt", b"abc"),),
            refused=("http://evil.test/",),
            opened=1,
        )
    )
    for part in ("no such element", "no e9", "hello", "a.txt (3 bytes)", "http://evil.test/", "new tabs: 1"):
        assert part in told


def test_every_tool_reads_into_an_action():
    calls = {
        "click": {"ref": "e1"}, "click_named": {"name": "Send"}, "click_at": {"x": 1, "y": 2},
        "hover": {"ref": "e1"},
        "fill": {"ref": "e1", "text": "a"}, "type_text": {"text": "a"}, "press": {"keys": "Enter"},
        "scroll": {"dy": 100}, "select": {"ref": "e1", "options": ["a"]}, "drag": {"start": "e1", "end": "e2"},
        "drag_at": {"x": 1, "y": 2, "to_x": 3, "to_y": 4}, "upload": {"ref": "e1", "file": "a.txt"}, "back": {},
        "forward": {}, "goto": {"url": "http://shop.test/"}, "new_tab": {}, "switch_tab": {"tab": 0},
        "close_tab": {},
        "wait": {},
    }  # fmt: skip
    assert set(calls) == {spec.name for spec in PAGE_TOOLS}
    for name, arguments in calls.items():
        action = read_page_action(ToolCall(name=name, arguments=arguments), files={"a.txt": b"x"})
        assert not isinstance(action, ParseError), action
    assert read_page_action(ToolCall(name="select", arguments=calls["select"])) == Select(Target(ref="e1"), ("a",))


def test_wrong_calls_are_told_and_never_raise():
    for name, arguments in [
        ("click", {}),
        ("click", {"ref": ""}),
        ("click", {"ref": "e1", "count": 9}),
        ("eval", {}),
    ]:
        assert isinstance(read_page_action(ToolCall(name=name, arguments=arguments)), ParseError)
    for name, arguments in (("type_text", {"text": "x" * 1001}), ("fill", {"ref": "e1", "text": "x" * 100_001})):
        wrong = read_page_action(ToolCall(name=name, arguments=arguments))
        assert isinstance(wrong, ParseError)
        assert "characters; it may have" in wrong.message
    wrong = read_page_action(ToolCall(name="upload", arguments={"ref": "e1", "file": "/etc/passwd"}))
    assert isinstance(wrong, ParseError)
    assert "offered" in wrong.message


def test_an_upload_gives_what_the_environment_offers():
    call = ToolCall(name="upload", arguments={"ref": "e1", "file": "a.txt"})
    assert read_page_action(call, files={"a.txt": b"x"}) == Upload(Target(ref="e1"), {"a.txt": b"x"})


def test_an_environment_offers_some_of_the_tools():
    assert [spec.name for spec in page_tools("click", "press")] == ["click", "press"]
    call = ToolCall(name="goto", arguments={"url": "x"})
    assert isinstance(read_page_action(call, page_tools("click")), ParseError)
    with pytest.raises(ValueError, match="no page tools"):
        page_tools("exec")


def test_an_unknown_browser_or_option_is_named():
    with pytest.raises(ValueError, match="unknown browser 'netscape'"):
        open_browser("netscape")


def test_a_view_pays_for_the_tree_alone_unless_more_is_wanted():
    assert Wanted() == Wanted(tree=True, dom=False, text=False, screenshot=False, marks=False, focused=False)
    assert Click(Target(ref="e1")) == Click(Target(ref="e1"), "left", 1)
