"""What forms of the browser without scripts send, and what they refuse, after the HTML standard."""

import asyncio

import pytest
from envgym_sandboxes.plain_browser import PlainBrowser

from envgym.page import Outcome, PageSpec, UnixSocket, Wanted
from envgym.page_actions import Back, Click, Fill, Goto, Press, Select, Target, Upload
from envgym.page_text import tree_text

ORIGIN = "http://form.test"


async def answer(reader, writer, page, asked):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path = head.split(" ")[:2]
    length = next((int(line[15:]) for line in head.lower().split("\r\n") if "content-length" in line), 0)
    said = f"{method} {path} {(await reader.readexactly(length)).decode()}".strip()
    asked.append(said)
    body = page.encode() if path == "/" and method == "GET" else f"<p>{said}</p>".replace("&", "&amp;").encode()
    line = "200 OK" if path[1:4] not in ("301", "303", "307", "308") else f"{path[1:4]} There\r\nLocation: /there"
    writer.write(f"HTTP/1.1 {line}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
    writer.close()


def played(tmp_path, page, *actions):
    """What came of each action, the page at the end, and what was asked of the server after the start."""
    asked = []

    async def play():
        path = str(tmp_path / "s")
        server = await asyncio.start_unix_server(lambda one, two: answer(one, two, page, asked), path)
        async with server, PlainBrowser() as browser:
            there = await browser.page(PageSpec({ORIGIN: UnixSocket(path)}, start=f"{ORIGIN}/"))
            done = [await there.act(action) for action in actions]
            return done, await there.view(Wanted(text=True)), asked[1:]

    return asyncio.run(play())


def click(name):
    return Click(Target(name=name))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(301, "GET /there"), (303, "GET /there"), (307, "POST /there a=1"), (308, "POST /there a=1")],
)
def test_a_redirection_keeps_method_and_content_where_it_says_so(tmp_path, code, wanted):
    page = f'<form method="POST" action="/{code}"><input name="a" value="1"><button>Go</button></form>'
    _, view, asked = played(tmp_path, page, click("Go"))
    assert asked == [f"POST /{code} a=1", wanted]
    assert view.text == wanted


@pytest.mark.parametrize(
    "page",
    [
        "<form><button disabled>Go</button></form>",
        '<form><input type="submit" value="Go" disabled></form>',
        "<form><fieldset disabled><legend>L</legend><button>Go</button></fieldset></form>",
    ],
)
def test_a_disabled_button_sends_nothing(tmp_path, page):
    (acted,), view, asked = played(tmp_path, page, click("Go"))
    assert (acted.outcome, asked) == (Outcome.INVALID, [])
    assert 'button "Go" (disabled)' in tree_text(view.tree)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ('<button formaction="/other">Go</button>', "GET /other?a=1"),
        ('<button formmethod="post" formaction="/other">Go</button>', "POST /other a=1"),
        ('<button type="image">Go</button>', "GET /to?a=1"),
        ('<input type="SUBMIT" value="Go" name="do">', "GET /to?a=1&do=Go"),
        ('<input type="image" alt="Go" name="at">', "GET /to?a=1&at.x=0&at.y=0"),
        ('<input type="reset" name="r" value="x"><button>Go</button>', "GET /to?a=1"),
        ('<fieldset disabled><input name="b" value="2"></fieldset><button>Go</button>', "GET /to?a=1"),
        ('</form><button form="f">Go</button><input form="f" name="b" value="2">', "GET /to?a=1&b=2"),
    ],
)
def test_a_button_says_where_and_what_is_sent(tmp_path, form, wanted):
    page = f'<form id="f" action="/to"><input name="a" value="1">{form}</form>'
    _, _, asked = played(tmp_path, page, click("Go"))
    assert asked == [wanted]


def test_reset_makes_a_form_what_it_was(tmp_path):
    page = """<form action="/to"><input name="a" value="1" aria-label="A">
    <textarea name="t" aria-label="T">x</textarea>
    <select name="s" aria-label="S"><option>p<option selected>q</select>
    <input type="checkbox" name="c" aria-label="C">
    <input type="file" name="f" aria-label="F"><input type="reset"><button>Go</button></form>
    <form action="/two"><input name="a" value="1" aria-label="Other"><button>Two</button></form>"""
    changed = (
        Fill(Target(name="A"), "2"), Fill(Target(name="T"), "y"), Select(Target(name="S", role="combobox"), ("p",)),
        Click(Target(name="C", role="checkbox")), Upload(Target(name="F"), {"f.txt": b""}),
        Fill(Target(name="Other"), "3"),
    )  # fmt: skip
    done, _, asked = played(tmp_path, page, *changed, click("Go"))
    assert {one.outcome for one in done} == {Outcome.DONE}
    assert asked == ["GET /to?a=2&t=y&s=p&c=on&f=f.txt"]
    assert played(tmp_path, page, *changed, click("Reset"), click("Go"))[2] == ["GET /to?a=1&t=x&s=q&f="]
    assert played(tmp_path, page, *changed, click("Reset"), click("Two"))[2] == ["GET /two?a=3"]


def test_a_place_in_the_document_is_not_loaded(tmp_path):
    page = '<a href="#x">Down</a><input aria-label="A">'
    fill = Fill(Target(name="A"), "kept")
    _, view, asked = played(tmp_path, page, fill, click("Down"), Goto(f"{ORIGIN}/#y"), Back())
    assert (asked, view.url) == ([], f"{ORIGIN}/#x")
    assert "kept" in tree_text(view.tree)
    assert played(tmp_path, page, click("Down"), Goto(f"{ORIGIN}/two"), Back())[2] == ["GET /two", "GET /"]


@pytest.mark.parametrize(
    "how",
    ["hidden", 'style="color: red; Display : none"', 'style="visibility:hidden"', 'style="display:none!important"'],
)
def test_what_is_hidden_is_neither_shown_nor_clicked(tmp_path, how):
    page = f'<title>Top</title><p {how}>Secret <a href="/a">Link</a></p><button>a <b {how}>Inner</b></button>'
    (acted,), view, asked = played(tmp_path, page, click("Link"))
    assert (acted.outcome, asked) == (Outcome.NO_ELEMENT, [])
    assert (view.text, view.title) == ("a", "Top")
    assert tree_text(view.tree).endswith('button "a"')
    shown = '<p style="display: block; background: url(display:none.png)">There</p>'
    assert played(tmp_path, shown)[1].text == "There"


def test_fields_that_are_only_read_are_not_filled(tmp_path):
    page = """<form><input name="a" readonly value="1" aria-label="A"><input name="b" disabled aria-label="B">
    <select name="s" aria-label="S" disabled><option>p</select><button>Go</button></form>"""
    done, _, asked = played(
        tmp_path, page, Fill(Target(name="A"), "2"), Fill(Target(name="B"), "2"),
        Select(Target(name="S", role="combobox"), ("p",)), click("Go"),
    )  # fmt: skip
    assert [one.outcome for one in done] == [Outcome.INVALID] * 3 + [Outcome.DONE]
    assert asked == ["GET /?a=1"]


@pytest.mark.parametrize(
    ("field", "give"),
    [
        ('<input name="n" required>', Fill(Target(role="textbox"), "x")),
        ('<textarea name="n" required></textarea>', Fill(Target(role="textbox"), "x")),
        ('<input type="checkbox" name="n" value="x" required>', Click(Target(role="checkbox"))),
        ('<input type="radio" name="n" value="x" required><input type="radio" name="n">',
         Click(Target(role="radio"))),
        ('<select name="n" required><option value="">none<option>x</select>',
         Select(Target(role="combobox"), ("x",))),
        ('<input type="file" name="n" required>', Upload(Target(role="button"), {"x": b""})),
    ],
)  # fmt: skip
def test_a_form_that_lacks_something_is_not_sent(tmp_path, field, give):
    page = f'<form action="/to">{field}<button>Go</button><button formnovalidate>Anyhow</button></form>'
    (acted,), _, asked = played(tmp_path, page, click("Go"))
    assert (acted.outcome, asked) == (Outcome.INVALID, [])
    assert "'n' must have something" in acted.message
    assert played(tmp_path, page, give, click("Go"))[2] == ["GET /to?n=x"]
    assert played(tmp_path, page, click("Anyhow"))[2] != []


def test_several_options_and_options_without_ends(tmp_path):
    page = """<form action="/to"><select multiple name="m" aria-label="M"><option>1<option value="b">2
    <option selected>3<option disabled>4</select><select name="s" aria-label="S"><option>5<option>6</select>
    <ul><li>one<li>two</ul><button>Go</button></form>"""
    many, one = Target(name="M", role="listbox"), Target(name="S", role="combobox")
    _, view, asked = played(tmp_path, page, Select(many, ("1", "2")), click("Go"))
    assert asked == ["GET /to?m=1&m=b&s=5"]
    assert played(tmp_path, page, Select(many, ()), Select(one, ("6",)), click("Go"))[2] == ["GET /to?s=6"]
    _, view, _ = played(tmp_path, page)
    assert 'listbox "M" = "3"' in tree_text(view.tree)
    assert 'combobox "S" = "5"' in tree_text(view.tree)
    done, _, _ = played(tmp_path, page, Select(many, ("4",)), Select(one, ("5", "6")), Select(one, ("7",)))
    assert [one.outcome for one in done] == [Outcome.INVALID] * 3


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ('<button name="do" value="1">Go</button><button name="do" value="2">Or</button>', ["GET /to?a=&do=1"]),
        ("<button disabled>Go</button><button>Or</button>", []),
        ("", ["GET /to?a="]),
        ('<input name="b">', []),
    ],
)
def test_enter_presses_the_first_button(tmp_path, rest, wanted):
    page = f'<form action="/to"><input name="a" aria-label="A">{rest}</form>'
    assert played(tmp_path, page, click("A"), Press("Enter"))[2] == wanted


def test_a_label_works_on_what_it_names_and_radios_belong_to_their_form(tmp_path):
    page = """<form action="/to"><label for="c">Box</label><input type="checkbox" id="c" name="c">
    <input type="radio" name="r" value="1" checked><button>Go</button></form>
    <form><input type="radio" name="r" value="2" aria-label="Two"></form>"""
    box, two = Click(Target(name="Box", role="checkbox")), Click(Target(name="Two", role="radio"))
    assert played(tmp_path, page, box, two, click("Go"))[2] == ["GET /to?c=on&r=1"]
