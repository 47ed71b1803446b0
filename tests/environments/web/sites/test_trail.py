"""What each tab was at, and from which document on calls are played again."""

import pytest
from envgym_environments.web.service import Anchor
from envgym_environments.web.trail import Trail

from envgym.messages import ToolCall
from envgym.page import PageView, Tab

ORIGIN = "http://wiki.test"


def anchor(path):
    return Anchor(path, state={"size": "0"})


def view(*paths, active=0):
    tabs = tuple(Tab(ORIGIN + path, "", number == active) for number, path in enumerate(paths))
    return PageView(ORIGIN + paths[active], "", tabs=tabs)


def after(trail, name, seen, asked="", **given):
    return trail.after(ToolCall(name=name, arguments=given), seen, anchor(asked) if asked else None)


def test_a_new_document_is_an_anchor_with_its_place_in_it_and_what_asks_for_none_is_played_again():
    trail = Trail(ORIGIN, anchor("/"), ("/",))
    trail = after(trail, "goto", view("/a%23b?x=1#there"), "/a%23b?x=1")
    assert (trail.anchor.path, trail.before, trail.calls) == ("/a%23b?x=1#there", ("/", "/a%23b?x=1#there"), [])
    trail = after(trail, "scroll", view("/a%23b?x=1#there"))
    assert [call.name for call in trail.calls] == ["scroll"]
    assert trail.back == "/"
    trail = after(trail, "back", view("/"), "/")
    assert (trail.anchor.path, trail.back) == ("/", None)


def test_a_way_forward_is_what_was_gone_back_from_until_another_way_is_taken():
    trail = Trail(ORIGIN, anchor("/"), ("/",))
    for path in ("/a", "/b"):
        trail = after(trail, "goto", view(path), path)
    assert trail.forward is None
    trail = after(trail, "back", view("/a"), "/a")
    trail = after(trail, "back", view("/"), "/")
    assert (trail.forward, trail.later) == ("/a", ("/b", "/a"))
    trail = after(trail, "forward", view("/a"), "/a")
    assert (trail.back, trail.forward) == ("/", "/b")
    trail = after(trail, "new_tab", view("/a", "/c", active=1), "/c")
    assert trail.forward is None, "that of another tab"
    trail = after(trail, "close_tab", view("/a"))
    assert trail.forward == "/b"
    assert after(trail, "goto", view("/d"), "/d").forward is None


def test_each_tab_has_a_way_back_of_its_own_and_no_document_is_an_anchor_meanwhile():
    trail = first = after(Trail(ORIGIN, anchor("/"), ("/",)), "goto", view("/a"), "/a")
    trail = after(trail, "new_tab", view("/a", "/b", active=1), "/b")
    assert trail.back is None, "it began here"
    trail = after(trail, "goto", view("/a", "/c", active=1), "/c")
    assert trail.back == "/b"
    trail = after(trail, "switch_tab", view("/a", "/c"))
    assert trail.back == "/"
    trail = after(trail, "switch_tab", view("/a", "/c", active=1))
    trail = after(trail, "close_tab", view("/a"))
    assert (trail.tabs, trail.back) == ([["/", "/a"]], "/")
    assert trail is first, "all calls since the last anchor are played again"
    assert [call.name for call in trail.calls] == ["new_tab", "goto", "switch_tab", "switch_tab", "close_tab"]
    assert after(trail, "goto", view("/d"), "/d").anchor.path == "/d"


@pytest.mark.parametrize("keys", ["Control+c", "Control+C", "Ctrl+c", "Ctrl+Insert", "Control+x", "Shift+Del"])
def test_what_was_copied_is_on_no_page_so_the_copying_is_played_again(keys):
    trail = after(Trail(ORIGIN, anchor("/"), ("/",)), "press", view("/"), keys=keys)
    trail = after(trail, "goto", view("/a"), "/a")
    assert trail.anchor.path == "/"
    assert trail.back == "/"
    assert [call.name for call in trail.calls] == ["press", "goto"]


def test_a_way_back_has_an_end():
    trail = Trail(ORIGIN, anchor("/"), ("/",))
    for number in range(200):
        trail = after(trail, "goto", view(f"/{number}"), f"/{number}")
    assert trail.before[-1] == "/199"
    assert len(trail.before) == 50


def test_the_document_of_a_frame_is_no_anchor_and_no_way_back():
    trail = Trail(ORIGIN, anchor("/"), ("/",))
    trail = after(trail, "goto", view("/a"), "/frame")
    assert (trail.anchor.path, trail.back) == ("/", "/")
    assert [call.name for call in trail.calls] == ["goto"]
    trail = after(trail, "click", view("/a"), "/frame?next")
    assert (trail.anchor.path, trail.back, len(trail.calls)) == ("/", "/", 2)
    trail = after(trail, "goto", view("/b"), "/b")
    assert (trail.anchor.path, trail.before, trail.calls) == ("/b", ("/", "/a", "/b"), [])
