"""The browser without scripts: trees, forms, what it cannot do, and where it may not go."""

import asyncio

import pytest
from envgym_sandboxes.plain_browser import PlainBrowser
from envgym_sandboxes.plain_forms import multipart

from envgym.errors import EnvironmentFailure
from envgym.page import Outcome, PageSpec, Storage, Tcp, UnixSocket, Wanted
from envgym.page_actions import Back, Click, Drag, Fill, Forward, Goto, Press, Select, Target, TypeText, Upload
from envgym.page_text import tree_text

ORIGIN = "http://form.test"
FORM = b"""<title>Form</title><h1>A form</h1><script>document.title = "no"</script><p hidden>not seen</p>
<form action="/sent"><label>Name <input name="name" value="Ada"></label><input type="hidden" name="token" value="t">
<label>Size <select name="size"><option value="s">small</option><option selected>large</option></select></label>
<label><input type="checkbox" name="box" value="one"> Box</label><textarea name="text" aria-label="Text"></textarea>
<label><input type="radio" name="way" value="a" checked> A</label>
<label><input type="radio" name="way" value="b"> B</label>
<button name="do" value="it">Send</button><button name="do" value="other">Other</button></form>
<form method="post" action="/given" enctype="multipart/form-data"><input name="note" aria-label="Note">
<label>File <input type="file" name="file"></label><button>Give</button></form>
<a href="/away">Away</a><a href="http://outside.test/">Outside</a>"""


async def answer(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split(" ")[1]
    if path == "/away":
        said = b"HTTP/1.1 302 Found\r\nLocation: http://outside.test/\r\nConnection: close\r\n"
        said += b"Content-Length: 0\r\n\r\n"
    else:
        cookie = next((line for line in head.split("\r\n") if line.lower().startswith("cookie:")), "no cookie")
        length = next(
            (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0
        )
        given = (await reader.readexactly(length)).decode()
        body = {"/": FORM, "/forms": FORMS}.get(path) or f"<p>{path}</p><p>{cookie}</p>{given}".replace(
            "&", "&amp;"
        ).encode()
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
    assert "/sent?name=Bo+%26+Co&token=t&size=s&box=one&text=two%0D%0Alines&way=b&do=it" in view.text


def test_enter_sends_the_form_and_typing_goes_on_where_the_focus_is(tmp_path):
    _, view, _ = played(tmp_path, Click(named("Name")), TypeText(" Lovelace"), Press("Enter"))
    assert "name=Ada+Lovelace&token=t&size=large&text=&way=a&do=it Cookie" in view.text


def test_a_file_is_sent_with_the_form_that_it_was_given_to_and_with_no_other(tmp_path):
    give = Upload(named("File"), {"a.txt": b"hello"})
    _, chosen, _ = played(tmp_path, give)
    assert 'button "File" = "a.txt"' in tree_text(chosen.tree)
    _, view, _ = played(tmp_path, give, Fill(named("Note"), "for you"), Click(named("Give")))
    assert 'name="file"; filename="a.txt"' in view.text
    assert "hello" in view.text
    assert "for you" in view.text
    _, view, _ = played(tmp_path, give, Goto(f"{ORIGIN}/"), Click(named("Give")))
    assert "hello" not in view.text, "another document has a field of its own"
    _, view, _ = played(tmp_path, give, Click(named("Send")))
    assert "a.txt" not in view.text


FORMS = b"""<form method="post" action="/named"><label>One <input type="file" name="one"></label>
<input name="note" value="a b"><label>Two <input type="file" name="two"></label><button>Post</button></form>
<form action="/asked"><label>Three <input type="file" name="three"></label><button>Get</button></form>
<form method="post" action="/parts" enctype="multipart/form-data"><input name="a" value="1">
<textarea name="b">x\ny</textarea><button>Parts</button></form>
<form method="post" action="/none" enctype="multipart/form-data"><button>None</button></form>
<form method="post" action="/empty" enctype="multipart/form-data"><input type="file" name="f">
<button>Empty</button></form>"""


def test_a_form_for_no_files_sends_their_names_in_the_order_of_the_document(tmp_path):
    to = "/forms"
    _, view, _ = played(
        tmp_path, Goto(ORIGIN + to), Upload(named("One"), {"a & b.txt": b"content"}), Click(named("Post"))
    )
    assert view.text == "/named Cookie: seen=yes one=a+%26+b.txt&note=a+b&two="
    _, view, _ = played(tmp_path, Goto(ORIGIN + to), Upload(named("Three"), {"c.txt": b"x"}), Click(named("Get")))
    assert view.url == f"{ORIGIN}/asked?three=c.txt"


@pytest.mark.parametrize(
    ("button", "parts"),
    [
        ("Parts", ['name="a"\r\n\r\n1\r\n', 'name="b"\r\n\r\nx\r\ny\r\n']),
        ("None", []),
        ("Empty", ['name="f"; filename=""\r\nContent-Type: application/octet-stream\r\n\r\n\r\n']),
    ],
)
def test_a_form_in_parts_is_sent_in_parts_also_without_a_file(tmp_path, button, parts):
    _, view, _ = played(tmp_path, Goto(f"{ORIGIN}/forms"), Click(named(button)))
    boundary = view.text.rpartition("------envgym")[2].removesuffix("--")
    mark = f"------envgym{boundary}"
    wanted = "".join(f"{mark}\r\nContent-Disposition: form-data; {part}" for part in parts) + f"{mark}--\r\n"
    _, sent = multipart({"Parts": [("a", "1"), ("b", "x\ny")], "None": [], "Empty": [("f", ("", b""))]}[button])
    assert sent.decode() == wanted
    assert view.text.endswith(wanted.strip())


def test_history_goes_both_ways(tmp_path):
    done, view, _ = played(tmp_path, Back(), Goto(f"{ORIGIN}/two"), Back(), Forward())
    assert [one.outcome for one in done] == [Outcome.INVALID, Outcome.DONE, Outcome.DONE, Outcome.DONE]
    assert view.url == f"{ORIGIN}/two"


def test_an_address_is_shown_as_it_was_asked_for(tmp_path):
    _, view, _ = played(tmp_path, Goto(f"{ORIGIN}/Red Quay?a=b c#there"))
    assert view.url == f"{ORIGIN}/Red%20Quay?a=b%20c#there"
    assert "/Red%20Quay?a=b%20c" in view.text


def test_a_digest_tells_what_fields_hold_which_has_the_focus_and_cookies(tmp_path):
    async def play():
        async with await asyncio.start_unix_server(answer, str(tmp_path / "s")), PlainBrowser() as browser:
            sites, found = {ORIGIN: UnixSocket(str(tmp_path / "s"))}, []
            for kept in ("1", "1", "2"):
                given = Storage(({"name": "mine", "value": kept, "domain": "form.test", "path": "/"},))
                page = await browser.page(PageSpec(sites, start=f"{ORIGIN}/", storage=given))
                found.append([await page.digest()])
                for action in (Fill(named("Name"), "Bo"), Click(named("Text")), Click(named("Size")),
                               Upload(named("File"), {"a": b"1"}), Upload(named("File"), {"a": b"2"})):  # fmt: skip
                    await page.act(action)
                    found[-1].append(await page.digest())
            return found

    one, again, other = asyncio.run(play())
    assert one == again
    assert len({*one, *other}) == len(one) + len(other)


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
        Upload(named("Name"), {"a": b""}), Upload(named("File"), {"a": b"", "b": b""}), Fill(named("File"), "a"),
    )  # fmt: skip
    assert [one.outcome for one in done] == [Outcome.NO_ELEMENT] * 2 + [Outcome.INVALID] * 7


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
