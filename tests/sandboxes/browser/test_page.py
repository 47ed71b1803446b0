"""A page in Chromium: actions land, views show what was asked for, and every failure is typed."""

import asyncio
import io
import os

import pytest
from PIL import Image

from envgym.browsing import open_browser
from envgym.errors import EnvironmentFailure
from envgym.page import Folder, Outcome, PageLimits, PageSpec, Storage, Tcp, UnixSocket, Wanted
from envgym.page_actions import (
    Back,
    Click,
    CloseTab,
    Drag,
    Fill,
    Forward,
    Goto,
    Hover,
    NewTab,
    Press,
    Scroll,
    Select,
    SwitchTab,
    Target,
    TypeText,
    Upload,
    Wait,
)
from envgym.registry import make_backend
from envgym.task import World

LIMITS = PageLimits(act_s=60.0, settle_s=30.0)
"""So that a loaded machine is not taken for a page that hangs."""

FORM = """<title>Form</title><h1>Form</h1>
<label>Name <input id=name></label> <input type=password aria-label=Secret> <input type=date aria-label=Day>
<button id=send onclick="this.textContent='Sent ' + document.querySelector('#name').value">Send</button>
<select aria-label=Colour><option>red<option value=g>green</select>
<select aria-label=Many multiple><option>a<option>b<option>c</select>
<input type=file aria-label=File
 onchange="this.files[0].text().then(t => this.title = this.files[0].name + ':' + t)">
<p id=over onmouseenter="this.textContent='over'">under</p>
<div style="height:3000px"></div><button id=far>Far away</button>"""


COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))


def names(view):
    return [(node.role, node.name) for node in view.tree]


def test_actions_land_where_they_are_meant_to(play):
    async def work(page):
        assert (await page.act(Fill(Target(name="Name"), "Ada"))).outcome is Outcome.DONE
        await page.act(Press("End"))
        await page.act(TypeText(" L."))
        assert (await page.act(Click(Target(role="button", name="Send")))).outcome is Outcome.DONE
        assert ("button", "Sent Ada L.") in names(await page.view())
        assert (await page.act(Select(Target(name="Colour"), ("green",)))).outcome.ok
        assert (await page.act(Select(Target(name="Many"), ("a", "c")))).outcome.ok
        assert (await page.act(Fill(Target(name="Day"), "2026-11-24"))).outcome.ok
        assert (await page.act(Hover(Target(name="under")))).outcome.ok
        kept = []
        for content in (b"hello, you", b"hello"):
            assert (await page.act(Upload(Target(name="File"), {"a.txt": content}))).outcome.ok
            kept.append(await page.digest())
        assert kept[0] != kept[1], "a digest is also of the files that are chosen"
        shown = "[...document.querySelectorAll('option')].filter(o => o.selected).map(o => o.text).join()"
        assert await page.run(shown) == "green,a,c"
        assert await page.run("document.querySelector('[type=date]').value") == "2026-11-24"
        assert await page.run("document.querySelector('#over').textContent") == "over"
        assert await page.run("document.querySelector('[type=file]').title") == "a.txt:hello"
        assert (await page.act(Click(Target(name="Far away")))).outcome.ok, "it is scrolled to"
        assert await page.run("scrollY") > 1000
        await page.act(Scroll(dy=-5000))
        assert await page.run("scrollY") == 0
        await page.act(Fill(Target(name="Name"), ""))
        assert await page.run("document.querySelector('#name').value") == ""

    play(work, FORM)


def test_what_an_action_scrolls_has_scrolled_when_it_is_over(play):
    async def work(page):
        wrong = []
        for _ in range(12):
            for action, low in [
                (Scroll(dy=5000), True),
                (Scroll(dy=-5000), False),
                (Press("End"), True),
                (Press("Control+Home"), False),
            ]:
                await page.act(action)
                if (await page.run("scrollY") > 1000) is not low:
                    wrong.append(action)
        assert not wrong

    play(work, "<title>Long</title><p>top<div style='height:3000px'></div>")


def test_a_first_wheel_has_scrolled_whatever_it_is_over_and_whatever_the_page_says_of_it(play):
    async def work(page):
        await page.act(Scroll(dy=400, target=Target(role="listbox")))
        assert await page.run("document.querySelector('select').scrollTop") > 0
        for mine in ("elementFromPoint", "querySelector", "getAnimations"):
            await page.run(f"document.{mine} = () => {{ throw new Error('nowhere') }}, 0")
        assert (await page.act(Scroll(dy=5000))).outcome is Outcome.DONE
        assert await page.run("scrollY") > 1000

    options = "".join(f"<option>{number}" for number in range(99))
    play(work, f"<title>Long</title><select multiple>{options}</select><div style='height:3000px'></div>")


def test_what_a_drag_scrolls_by_itself_is_over_when_the_drag_is(play):
    """How far, the browser's frames say: mostly not at all, for the button is let go at once."""

    async def work(page):
        for _ in range(6):
            await page.run("(box.scrollTop = 0, getSelection().empty(), 0)")
            await page.act(Drag(Target(x=30, y=30), Target(x=30, y=390)))
            seen = await page.run("[box.scrollTop, String(getSelection()).length]")
            assert seen[1] > 20
            await page.act(Wait(0.1))
            assert await page.run("[box.scrollTop, String(getSelection()).length]") == seen

    lines = "".join(f"<p>line {number}</p>" for number in range(200))
    style = "body{margin:0}#box{height:320px;width:400px;overflow:scroll}"
    play(work, f"<style>{style}</style><div id=box>{lines}</div>")


def test_a_picture_is_of_what_is_in_sight_now_and_the_page_hears_nothing_of_it(play):
    async def work(page):
        seen = []
        for round in range(3):
            for down, colour in enumerate(COLOURS):
                await page.run(f"scrollTo(7 * {round}, 1000 * {down})")
                picture = (await page.view(Wanted(tree=False, screenshot=True))).screenshot
                image = Image.open(io.BytesIO(picture)).convert("RGB")
                seen.append(
                    (image.size, image.getpixel((0, 0)), image.getpixel((image.width - 1, image.height - 1)))
                )
                assert seen[-1][1:] == (colour, colour), (round, down)
        assert len({size for size, _, _ in seen}) == 1
        assert await page.run("[heard.join(), scrollX, scrollY].join()") == ",14,2000"

    bands = "".join(f"<div style='background:rgb{colour}'></div>" for colour in COLOURS)
    listens = "for (const one of [window, visualViewport]) one.addEventListener('resize', e => heard.push(e.type))"
    style = "body{margin:0} div{height:1000px;width:3000px}"
    play(work, f"<title>Bands</title><style>{style}</style>{bands}<script>heard = []; {listens}</script>")


def test_what_is_not_possible_is_said_and_costs_nothing(play):
    async def work(page):
        before = await page.digest()
        for action, outcome in [
            (Click(Target(ref="e999")), Outcome.NO_ELEMENT),
            (Click(Target(role="button", name="Nowhere")), Outcome.NO_ELEMENT),
            (Click(Target(x=5000, y=1)), Outcome.NOT_REACHABLE),
            (Click(Target(name="Covered")), Outcome.NOT_REACHABLE),
            (Fill(Target(name="Off"), "x"), Outcome.NOT_REACHABLE),
            (Select(Target(name="Colour"), ("blue",)), Outcome.NOT_REACHABLE),
            (Press("Hyper+q"), Outcome.INVALID),
            (Back(), Outcome.INVALID),
            (SwitchTab(3), Outcome.INVALID),
            (CloseTab(), Outcome.INVALID),
            (Goto("http://b.test/"), Outcome.REFUSED),
        ]:
            acted = await page.act(action)
            assert acted.outcome is outcome, (action, acted)
            assert acted.message
        assert await page.digest() == before

    play(
        work,
        "<button>Covered</button><div style='position:fixed;inset:0'></div><input aria-label=Off disabled>"
        "<select aria-label=Colour style='position:relative'><option>red</select>",
    )


def test_refs_stay_with_their_elements_and_gone_ones_are_said(play):
    async def work(page):
        first = {node.name: node.ref for node in (await page.view()).tree if node.role == "button"}
        await page.act(Click(Target(ref=first["Add"])))
        second = {node.name: node.ref for node in (await page.view()).tree if node.role == "button"}
        assert {name: second[name] for name in ("Add", "Drop")} == {name: first[name] for name in ("Add", "Drop")}
        await page.act(Click(Target(ref=first["Drop"])))
        assert (await page.act(Click(Target(ref=first["Add"])))).outcome is Outcome.NO_ELEMENT

    play(
        work,
        '<button onclick=\'this.before(Object.assign(document.createElement("button"), {textContent: "New"}))\'>'
        "Add</button><button onclick='this.previousSibling.remove()'>Drop</button>",
    )


def test_a_view_holds_what_was_wanted_and_nothing_else(play):
    async def work(page):
        bare = await page.view(Wanted(tree=False))
        assert (bare.tree, bare.dom, bare.text, bare.screenshot, bare.marks, bare.focused) == (None,) * 6
        await page.act(Click(Target(name="Name")))
        full = await page.view(Wanted(True, True, True, True, True, True))
        assert full.title == "Form"
        assert full.tabs[0].active
        assert full.screenshot.startswith(b"\x89PNG")
        assert "Form" in full.text
        assert "<script" not in full.dom
        assert "unseen" not in full.dom
        focused = next(node for node in full.tree if node.ref == full.focused)
        assert focused.role == "textbox"
        assert f'ref={focused.ref} id="name"' in full.dom
        boxes = {node.name: node.box for node in full.marks}
        assert boxes["Send"][2] > 10
        assert "Far away" not in boxes, "it is outside the window"
        assert await page.run("document.getElementById('__marks')") is None
        plain = await page.view(Wanted(tree=False, screenshot=True))
        assert plain.screenshot != full.screenshot, "marks are drawn"

    play(work, FORM + "<script>1</script><p hidden>unseen</p>")


def test_boxes_are_those_of_marks_and_are_not_drawn(play):
    async def work(page):
        plain, boxed, marked = [
            await page.view(Wanted(tree=False, screenshot=True, boxes=boxes, marks=marks))
            for boxes, marks in ((False, False), (True, False), (False, True))
        ]
        assert [node.name for node in boxed.marks] == ["there"]
        assert boxed.marks == marked.marks
        assert boxed.screenshot == plain.screenshot != marked.screenshot

    play(work, "<a href=/>there</a>")


def test_a_value_comes_with_the_view_and_one_that_throws_is_the_environments_fault(play):
    async def work(page):
        view = await page.view(Wanted(value="Promise.resolve({a: [document.title]})"))
        assert (view.value, view.title) == ({"a": ["Form"]}, "Form")
        assert (await page.view()).value is None
        with pytest.raises(EnvironmentFailure, match="JavaScript threw: ReferenceError"):
            await page.view(Wanted(value="nothing.there"))
        assert ("heading", "Form") in names(await page.view()), "the page is as it was"

    play(work, FORM)


def test_a_view_after_an_action_asks_for_nothing_twice(play):
    async def work(page):
        await page.act(Click(Target(name="Send")))
        before = page.wire.sent
        view = await page.view(Wanted(tree=True, value="1 + 1"))
        assert (view.title, view.value, page.wire.sent - before) == ("Form", 2, 2), "the tree and the value"
        await page.run("(document.title = 'Other', 0)")
        assert (await page.view()).title == "Other", "nor keeps it what was so before"

    play(work, FORM)


def test_a_move_of_the_mouse_is_told_alone_and_so_is_what_moves_under_it(play):
    async def work(page):
        await page.run("(heard.length = 0)")
        await page.act(Hover(Target(x=300, y=300)))
        heard = await page.run("[...new Set(heard)].filter((one) => !/(over|enter|rawupdate)$/.test(one))")
        assert sorted(heard) == ["mousemove", "pointermove"], "at once, and nothing else"
        await page.act(Press("Enter"))
        assert ("text", "over") in names(await page.view()), "what is under a mouse that rests"

    play(
        work,
        """<p id=p style="position:fixed;left:250px;top:-999px;width:99px;height:99px"
          onmouseenter="this.textContent = 'over'">below</p><script>heard = [];
        for (const name in window) if (name.startsWith('on')) {
          addEventListener(name.slice(2), (event) => heard.push(event.type), true);
        }
        addEventListener('keydown', () => { p.style.top = '250px'; });</script>""",
    )


def test_nothing_sleeps_what_a_page_still_has_to_do_is_waited_for(play):
    async def work(page):
        await page.act(Click(Target(role="button")))
        assert ("text", "third") in names(await page.view())
        await page.act(Click(Target(role="link")))
        assert ("text", "loaded") in names(await page.view())

    play(
        work,
        """<button onclick="setTimeout(() => { p.textContent = 'first'; setTimeout(() => fetch('/b.html')
          .then(r => r.text())
          .then(() => requestAnimationFrame(() => { p.textContent = 'third'; })), 200); }, 200)">
          Go</button><p id=p></p><a href=/b.html>next</a>""",
        b="<p id=p></p><script>setTimeout(() => { p.textContent = 'loaded'; }, 150)</script>",
    )


def test_tabs_history_and_popups(play):
    async def work(page):
        acted = await page.act(Click(Target(name="pop")))
        assert acted.opened == 1
        assert [tab.url for tab in (await page.view()).tabs] == ["http://a.test/", "http://a.test/b.html"]
        await page.act(SwitchTab(1))
        assert (await page.view()).url == "http://a.test/b.html"
        await page.act(CloseTab())
        await page.act(Click(Target(name="next")))
        await page.act(Back())
        assert (await page.view()).url == "http://a.test/"
        await page.act(Forward())
        assert (await page.view()).url == "http://a.test/b.html"
        await page.act(NewTab("http://a.test/"))
        assert [tab.active for tab in (await page.view()).tabs] == [False, True]
        assert (await page.act(Wait(0.05))).outcome.ok

    play(work, "<a href=/b.html target=_blank>pop</a> <a href=/b.html>next</a>", b="<p>B</p>")


def test_what_an_environments_expression_asked_for_is_waited_for_by_the_next_action(play, tmp_path):
    picture = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: image/svg+xml\r\nContent-Length: {len(picture)}\r\n\r\n"
        writer.write(head.encode() + picture)
        await writer.drain()
        writer.close()

    async def work(page):
        async with await asyncio.start_unix_server(answer, str(tmp_path / "s")):
            await page.run("(document.querySelector('img').src = 'http://slow.test/', 0)")
            await asyncio.sleep(0.1)  # the browser has told of it
            assert (await page.act(Wait())).outcome.ok
            assert await page.run("document.querySelector('img').naturalWidth") == 9

    play(work, "<img>", sites={"http://slow.test": UnixSocket(str(tmp_path / "s"))})


def test_a_chain_of_frames_that_are_late_is_waited_for_until_it_changes_nothing(play):
    async def work(page):
        for _ in range(2):
            assert (await page.act(Click(Target(name="go")))).outcome is Outcome.DONE
            assert await page.run("document.querySelector('p').textContent") == "40"
            await page.act(Click(Target(name="idle")))  # a chain without end that changes nothing

    play(
        work,
        """<button onclick="step(0)">go</button><button onclick="idle()">idle</button><p></p><script>
        const late = new MessageChannel(), p = document.querySelector('p');
        late.port1.onmessage = () => { for (const end = performance.now() + 40; performance.now() < end;); };
        const idle = () => requestAnimationFrame(idle);
        const step = (at) => { p.textContent = at; late.port2.postMessage('');
          if (at < 40) requestAnimationFrame(() => step(at + 1)); };</script>""",
    )


def test_dragging_with_the_mouse_and_with_data(play):
    async def work(page):
        await page.act(Drag(Target(name="piece"), Target(name="hole")))
        assert await page.run("log.join()") == "drop:piece"
        await page.act(Drag(Target(x=20, y=300), Target(x=200, y=300)))
        assert await page.run("moved") >= 2
        await page.run(
            "(log = [], document.querySelector('[draggable] + button').style.height = '3000px', scrollTo(0, 0), 0)"
        )
        await page.act(Drag(Target(name="piece"), Target(name="hole")))
        assert await page.run("log.join()") == "drop:piece", (
            "its middle is out of the window, and some of it is not"
        )
        await page.run(
            "(document.querySelector('[draggable] + button').style.cssText = 'position:absolute;top:4000px', 0)"
        )
        acted = await page.act(Drag(Target(name="piece"), Target(name="hole")))
        assert (acted.outcome, acted.message[:31]) == (Outcome.NOT_REACHABLE, "both ends are not in the window")

    play(
        work,
        """<button draggable=true ondragstart="event.dataTransfer.setData('text', this.textContent)">piece</button>
        <button ondragover="event.preventDefault()"
          ondrop="log.push('drop:' + event.dataTransfer.getData('text'))">hole</button>
        <script>log = []; moved = 0; onmousemove = (e) => { moved += e.buttons; }</script>""",
    )


def test_storage_is_read_and_given_to_another_episode(play):
    async def keep(page):
        await page.run("(document.cookie = 'user=ada; path=/', localStorage.setItem('cart', '[1]'), 0)")
        return await page.storage()

    kept = play(keep, "<p>shop</p>")
    assert kept.local == {"http://a.test": {"cart": "[1]"}}

    async def see(page):
        return await page.run("document.cookie + localStorage.getItem('cart')"), await page.act(Back())

    found, back = play(see, "<p>shop</p>", storage=Storage(kept.cookies, kept.local))
    assert found == "user=ada[1]"
    assert back.outcome is Outcome.INVALID, "what it was set on is no part of the history"
    assert play(see, "<p>shop</p>")[0] == "null"


def test_a_restart_leaves_nothing_of_before(play):
    async def work(page):
        first = await page.digest()
        await page.run(
            "(document.cookie = 'a=1', localStorage.x = sessionStorage.x = window.name = '1', "
            "document.body.append('x'), addEventListener('pagehide', () => { document.cookie = 'late=1'; "
            "localStorage.late = sessionStorage.late = window.name = 'late'; }))"
        )
        await page.act(NewTab("http://a.test/b.html"))
        await page.restart()
        left = "[document.cookie, {...localStorage}, {...sessionStorage}, window.name]"
        assert await page.run(left) == ["", {}, {}, ""], "also of what the page wrote as it went"
        assert await page.digest() == first
        assert len((await page.view()).tabs) == 1
        assert (await page.act(Back())).outcome is Outcome.INVALID

    play(work, "<p>shop</p>", b="<p>B</p>")


def test_a_restart_that_no_script_keeps_anything_from_is_that_of_a_new_page(play):
    async def work(page):
        first = await page.digest()
        await page.run("(document.cookie = 'a=1', document.body.append('x'), 0)")
        await page.act(NewTab("http://a.test/b.html"))
        before = page.wire.sent
        await page.restart(keeps=False)
        assert page.wire.sent - before <= 6, "cookies, cache, a tab that goes, the start, its quiet, the history"
        assert await page.digest() == first
        assert len((await page.view()).tabs) == 1
        assert (await page.act(Back())).outcome is Outcome.INVALID
        await page.run("(localStorage.x = 'kept', 0)")
        await page.restart()
        assert await page.run("({...localStorage})") == {}, "nor has it forgotten which sites there were"

    play(work, "<p>shop</p>", b="<p>B</p>")


@pytest.fixture
def told(loop):
    """``told(answers)``: the place of a server of fields and a body for each path, and what it was asked."""
    servers = []

    def begin(answers):
        asked = []

        async def answer(reader, writer):
            asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
            fields, body = answers.get(asked[-1], ("Content-Type: text/plain", "none"))
            head = f"HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            writer.close()

        servers.append(loop.run(asyncio.start_server(answer, "127.0.0.1", 0)))
        return Tcp(*servers[-1].sockets[0].getsockname()), asked

    yield begin
    for server in servers:
        server.close()


ICON = '<!doctype html><link rel=icon href="data:,">'


@pytest.mark.parametrize(("kept", "stored"), [("max-age=3600", True), ("No-Store", False)])
def test_a_restart_asks_anew_for_what_the_cache_has_and_empties_no_cache_that_has_nothing(loop, told, kept, stored):
    place, asked = told(
        {
            "/": (f"Content-Type: text/html\r\nCache-Control: {kept}", f"{ICON}<script src=a.js></script><p>A"),
            "/a.js": (f"Content-Type: text/javascript\r\nCache-Control: {kept}", "document.title = 'A'"),
        }
    )

    async def work():
        spec = PageSpec({"http://a.test": place}, start="http://a.test/", limits=LIMITS)
        async with open_browser() as browser, await browser.page(spec) as page:
            assert page.gate.stored is stored
            await page.restart()
            assert (await page.view()).title == "A"

    loop.run(work())
    assert asked == ["/", "/a.js"] * 2, "and no site is asked for the icon of an empty page that is not its own"


def test_a_page_that_takes_the_empty_pages_address_has_no_last_word(loop, told):
    late = "addEventListener('pagehide', () => { localStorage.late = document.cookie = 'late=1'; });"
    place, _ = told(
        {
            "/": ("Content-Type: text/html", ICON),
            "/b": (
                "Content-Type: text/html",
                f"{ICON}<script>history.pushState(0, '', '/.envgym-blank'); {late}</script>",
            ),
        }
    )

    async def work():
        spec = PageSpec({"http://a.test": place}, start="http://a.test/", limits=LIMITS)
        async with open_browser() as browser, await browser.page(spec) as page:
            for _ in range(3):
                await page.act(Goto("http://a.test/b"))
                await page.restart()
                assert await page.run("[document.cookie, {...localStorage}]") == ["", {}]

    loop.run(work())


def test_a_graders_expression_that_throws_is_the_environments_fault(play):
    async def work(page):
        with pytest.raises(EnvironmentFailure, match="JavaScript threw: ReferenceError"):
            await page.run("nothing.there")
        assert await page.run("Promise.resolve({a: [1]})") == {"a": [1]}

    play(work, "<p>x</p>")


def test_frames_are_part_of_the_tree_and_can_be_acted_in(play):
    async def work(page):
        assert ("button", "Inner") in names(await page.view())
        await page.act(Click(Target(name="Inner")))
        assert ("button", "Pressed") in names(await page.view())

    play(
        work,
        "<p>outer</p><iframe src=/b.html></iframe>",
        b="<button onclick='this.textContent=\"Pressed\"'>Inner</button>",
    )


def test_the_html_of_frames_is_there_with_the_refs_that_the_tree_has(play):
    async def work(page):
        view = await page.view(Wanted(tree=True, dom=True))
        (ref,) = [node.ref for node in view.tree if node.name == "Inner"]
        frame, inner = view.dom.index("<iframe "), view.dom.index(f"<button ref={ref}>Inner</button>")
        assert view.dom.index("outer") < frame < inner < view.dom.index("</iframe>") < view.dom.index("after")
        assert 'value="tea"' in view.dom
        assert "unseen" not in view.dom
        assert view.dom.count("Inner") == 1, "a frame that is not shown is not told"
        await page.act(Click(Target(ref=ref)))
        assert ">Pressed</button>" in (await page.view(Wanted(tree=False, dom=True))).dom

    play(
        work,
        "<p>outer</p><iframe src=/b.html></iframe><p>after</p><iframe hidden src=/b.html></iframe>",
        b="<button onclick='this.textContent=\"Pressed\"'>Inner</button><input value=tea><p hidden>unseen</p>",
    )


FRAMES = """<body style="margin:0"><p style="margin:0;height:100px">outer</p>
<iframe style="border:5px solid;padding:7px;width:300px;height:150px" src=/b.html></iframe>
<iframe style="border:0;width:200px;height:100px;transform:scale(0.5)" src=http://b.test/c.html></iframe>
<iframe sandbox=allow-scripts style="width:200px;height:100px" src=/c.html></iframe>
<iframe style="visibility:hidden" src=/d.html></iframe><iframe hidden src=/d.html></iframe>
<p style="height:3000px">"""
INNER = {
    "b": "<body style='margin:0'><p style='height:50px;margin:0'>of b<p id=out></p>"
    "<button onclick='out.textContent=\"pressed\"'>in b</button>"
    "<iframe style='border:3px solid;width:100px;height:60px' src=/c.html></iframe>"
    "<p style='height:1000px'></p><button>far down</button>",
    "c": "<body style='margin:0'><p>of c<button style='position:absolute;left:50px;top:30px' "
    "onclick='this.textContent=\"done\"'>in c</button>",
    "d": "<p>unseen<button>unseen</button>",
}


def test_boxes_and_marks_are_of_frames_too_where_they_are_in_the_window(play, tmp_path):
    """In a border and a padding, scrolled, within each other, scaled, of another origin, in a sandbox."""

    async def work(page):
        await page.run("(scrollTo(0, 40), frames[0].scrollTo(0, 15), 1)")
        plain = await page.view(Wanted(tree=False, screenshot=True))
        view = await page.view(Wanted(tree=True, screenshot=True, marks=True))
        assert [node.name for node in view.marks] == ["in b", "in c", "in c", "in c"], "in their order"
        assert view.screenshot != plain.screenshot
        wide, high = view.marks[1].box[2:]
        assert view.marks[2].box[2:] == pytest.approx((wide / 2, high / 2)), "as large as it is seen"
        picture = Image.open(io.BytesIO(view.screenshot)).convert("RGB")
        for node in reversed(view.marks):  # the first one moves what is below it
            left, top, w, h = node.box
            assert picture.getpixel((round(left + w), round(top + h / 2))) == (0xDD, 0, 0), "it is marked"
            await page.act(Click(Target(x=left + w / 2, y=top + h / 2)))
        pressed = [node.name for node in (await page.view()).tree if node.role in ("button", "text")]
        assert (pressed.count("done"), pressed.count("pressed"), "in c" in pressed) == (3, 1, False)

    play(work, FRAMES, **INNER, sites={"http://b.test": Folder(str(tmp_path))})


def test_the_text_of_frames_that_are_shown_is_below_the_documents_own(play, tmp_path):
    async def work(page):
        view = await page.view(Wanted(tree=False, text=True))
        said = [line for line in view.text.splitlines() if line.strip()]
        inner = ["of c", "in c"]
        assert said == ["outer", "of b", "in b", "far down", *inner * 3]

    play(work, FRAMES, **INNER, sites={"http://b.test": Folder(str(tmp_path))})


def test_variables_of_a_page_do_not_say_how_many_frames_it_has(play):
    async def work(page):
        assert (await page.act(Click(Target(name="go")))).outcome is Outcome.DONE
        assert "inside" in (await page.view(Wanted(tree=False, text=True))).text

    named = "<script>var frames = null, length = 'none'</script>"
    play(work, f"{named}<button>go</button><iframe src=/b.html></iframe>", b="inside")


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_server_in_a_sandbox_is_reached_by_its_own_page_and_stays_without_a_network(loop):
    there = "import socket; socket.create_connection(('127.0.0.1', 8000))"
    serve = (
        "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & for n in $(seq 300); do "
        f'python3 -c "{there}" 2>/dev/null && exit; done; exit 1'
    )

    async def work():
        world = World(files={"/work/index.html": b"<!doctype html><h1>Inside</h1>"})
        async with make_backend("namespace") as backend, await backend.create(world) as sandbox:
            assert (await sandbox.exec(["/bin/sh", "-c", serve], timeout_s=120)).exit_code == 0
            out = await sandbox.exec(
                ["/bin/sh", "-c", "ls /sys/class/net 2>/dev/null; cat /proc/net/route | wc -l"]
            )
            assert b"eth" not in out.stdout
            assert out.stdout.split()[-1] == b"1", "the table of routes has its heading alone"
            async with sandbox.forward(8000) as (host, port), open_browser() as browser:
                spec = PageSpec({"http://a.test": Tcp(host, port)}, start="http://a.test/", limits=LIMITS)
                async with await browser.page(spec) as page:
                    assert ("heading", "Inside") in names(await page.view())
                    assert (await page.act(Goto(f"http://{host}:{port}/"))).outcome is Outcome.REFUSED

    loop.run(work())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (PageSpec({"https://a.test": Folder("/x")}), "an origin is http"),
        (PageSpec({"http://a.test/": Folder("/x")}), "an origin is http"),
        (PageSpec({"http://a.test": Folder("/x")}, start="http://b.test/"), "PageSpec.start"),
        (PageSpec({}, size=(1, 1)), "PageSpec.size"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_at_once(loop, spec, why):
    async def work():
        async with open_browser() as browser:
            with pytest.raises(ValueError, match=why):
                await browser.page(spec)

    loop.run(work())


@pytest.mark.slow
def test_no_more_pages_open_at_once_than_there_are_cores(loop, site):
    spec = PageSpec({"http://a.test": site("<p>x")}, start="http://a.test/")
    most = max(2, len(os.sched_getaffinity(0)))

    async def work():
        async with open_browser() as browser:
            await browser.page(spec)
            engine = browser._held.engine
            before = len(engine._contexts)
            opening, seen = [asyncio.create_task(browser.page(spec)) for _ in range(most + 2)], set()
            while not all(one.done() for one in opening):
                seen.add(len(engine._contexts) - before - sum(one.done() for one in opening))
                await asyncio.sleep(0.005)
            pages = [await one for one in opening]
            assert all([await page.run("true") for page in pages])
            return seen

    assert max(loop.run(work())) in range(1, most + 1)
