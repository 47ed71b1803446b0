"""The browser without scripts: trees, forms, what it cannot do, and where it may not go."""

import asyncio

import pytest
from envgym_sandboxes.plain_browser import PlainBrowser

from envgym.errors import EnvironmentFailure
from envgym.page import Outcome, PageSpec, Storage, Tcp, UnixSocket, Wanted
from envgym.page_actions import Back, Click, Drag, Fill, Forward, Goto, Press, Select, Target, TypeText
from envgym.page_text import tree_text

ORIGIN = "http://form.test"
FORM = b"""<title>Form</title><h1>A form</h1><script>document.title = "no"</script><p hidden>not seen</p>
<form action="/sent"><label>Name <input name="name" value="Ada"></label><input type="hidden" name="token" value="t">
<label>Size <select name="size"><option value="s">small</option><option selected>large</option></select></label>
<label><input type="checkbox" name="box" value="one"> Box</label><textarea name="text" aria-label="Text"></textarea>
<label><input type="radio" name="way" value="a" checked> A</label>
<label><input type="radio" name="way" value="b"> B</label>
<button name="do" value="it">Send</button><button name="do" value="other">Other</button></form>
<a href="/away">Away</a><a href="http://outside.test/">Outside</a>"""


async def answer(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split(" ")[1]
    if path == "/away":
        said = b"HTTP/1.1 302 Found\r\nLocation: http://outside.test/\r\nConnection: close\r\n"
        said += b"Content-Length: 0\r\n\r\n"
    else:
        cookie = next((line for line in head.split("\r\n") if line.lower().startswith("cookie:")), "no cookie")
        body = FORM if path == "/" else f"<p>{path}</p><p>{cookie}</p>".replace("&", "&amp;").encode()
        said = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: seen=yes\r\nConnection: close\r\n"
        said += f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    writer.write(said)
    await writer.drain()
    writer.close()


def played(tmp_path, *actions, storage=None):
    """What came of each action, and the page at the end."""

    async def play():
        server = await asyncio.start_unix_server(answer, str(tmp_path / "s"))
        async with server, PlainBrowser() as browser:
            sites = {ORIGIN: UnixSocket(str(tmp_path / "s"))}
            page = await browser.page(PageSpec(sites, start=f"{ORIGIN}/", storage=storage))
            done = [await page.act(action) for action in actions]
            return done, await page.view(Wanted(text=True)), await page.storage()

    return asyncio.run(play())


def named(name, role=""):
    return Target(name=name, role=role)


def test_a_tree_has_roles_names_and_values_and_nothing_hidden(tmp_path):
    _, view, _ = played(tmp_path)
    text = tree_text(view.tree)
    for line in ('heading "A form"', 'textbox "Name" = "Ada"', 'combobox "Size" = "large"', 'checkbox "Box"',
                 'radio "A" (checked)', 'button "Send"', 'link "Away"', 'textbox "Text"'):  # fmt: skip
        assert f"] {line}\n" in text + "\n"
    assert "not seen" not in text
    assert view.title == "Form"


def test_a_form_sends_what_is_in_it_and_the_button_that_was_pressed(tmp_path):
    _, view, _ = played(
        tmp_path, Fill(named("Name"), "Bo & Co"), Select(named("Size"), ("small",)),
        Click(named("Box", "checkbox")), Fill(named("Text"), "two\nlines"),
        Click(named("B", "radio")), Click(named("Send")),
    )  # fmt: skip
    assert "/sent?name=Bo+%26+Co&token=t&size=s&box=one&text=two%0Alines&way=b&do=it" in view.text


def test_enter_sends_the_form_and_typing_goes_on_where_the_focus_is(tmp_path):
    _, view, _ = played(tmp_path, Click(named("Name")), TypeText(" Lovelace"), Press("Enter"))
    assert "name=Ada+Lovelace&token=t&size=large&text=&way=a" in view.text
    assert "do=" not in view.text


def test_history_goes_both_ways(tmp_path):
    done, view, _ = played(tmp_path, Back(), Goto(f"{ORIGIN}/two"), Back(), Forward())
    assert [one.outcome for one in done] == [Outcome.INVALID, Outcome.DONE, Outcome.DONE, Outcome.DONE]
    assert view.url == f"{ORIGIN}/two"


@pytest.mark.parametrize(
    "action",
    [Goto("http://outside.test/"), Goto("file:///etc/passwd"), Click(named("Outside")), Click(named("Away"))],
)
def test_nothing_outside_its_sites_is_reached_also_not_by_redirection(tmp_path, action):
    (acted,), view, _ = played(tmp_path, action)
    assert acted.outcome is Outcome.REFUSED
    assert view.title == "Form"


def test_what_cannot_be_is_data(tmp_path):
    done, _, _ = played(
        tmp_path, Click(named("Nothing")), Click(Target(ref="e999")), Click(Target(x=1, y=1)),
        Select(named("Size"), ("huge",)), Fill(named("Box", "checkbox"), "x"), Drag(named("Away"), named("Box")),
    )  # fmt: skip
    assert [one.outcome for one in done] == [Outcome.NO_ELEMENT] * 2 + [Outcome.INVALID] * 4


def test_cookies_are_kept_and_can_be_given(tmp_path):
    _, view, kept = played(tmp_path, Goto(f"{ORIGIN}/two"))
    assert "seen=yes" in view.text
    assert {cookie["name"] for cookie in kept.cookies} == {"seen"}
    given = Storage(({"name": "mine", "value": "1", "domain": "form.test", "path": "/"},))
    _, view, _ = played(tmp_path, Goto(f"{ORIGIN}/two"), storage=given)
    assert "mine=1" in view.text


def test_what_it_has_not_is_refused_at_once():
    async def ask(spec, wanted):
        async with PlainBrowser() as browser:
            await (await browser.page(spec)).view(wanted)

    with pytest.raises(EnvironmentFailure, match="draws nothing"):
        asyncio.run(ask(PageSpec({}), Wanted(screenshot=True)))
    with pytest.raises(ValueError, match="takes a UnixSocket"):
        asyncio.run(ask(PageSpec({ORIGIN: Tcp("127.0.0.1", 1)}), Wanted()))
