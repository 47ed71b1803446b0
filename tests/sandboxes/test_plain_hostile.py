"""The browser without scripts against bad addresses of a model and pages that misbehave: data, and bounded."""

import asyncio
import gzip
import time

import pytest
from envgym_sandboxes.plain_browser import PlainBrowser

from envgym.errors import EnvironmentFailure
from envgym.page import Outcome, PageLimits, PageSpec, UnixSocket, Wanted
from envgym.page_actions import Click, Fill, Goto, Target

ORIGIN = "http://shop.test"
START = b"""<title>Start</title><a href="http://[">Bad</a><a href="/loop">Loop</a>
<form action="/sent"><input name="a" aria-label="A"><button>Get</button></form>
<form action="/sent" method="post"><input name="b" aria-label="B"><button>Post</button></form>
<form action="/sent" method="post" enctype="multipart/form-data"><input name="c" aria-label="C">
<button>Parts</button></form><form action="http://["><button>Astray</button></form>"""


def page_of(body: bytes, *more: bytes) -> bytes:
    lines = (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), b"Connection: close", *more)
    return b"\r\n".join([*lines, b"", body])


SAID = {
    "/": page_of(START, b"Content-Type: text/html"),
    "/loop": b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "/astray": b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "/large": page_of(b"<p>" + b"x" * 3_000_000, b"Content-Type: text/html"),
    "/bomb": page_of(gzip.compress(b" " * 30_000_000), b"Content-Type: text/html", b"Content-Encoding: gzip"),
    "/deep": page_of(b"<div>" * 3_000 + b"x", b"Content-Type: text/html"),
    "/deeper": page_of(b"<b>" * 300_000 + b"x", b"Content-Type: text/html"),
    "/many": page_of(b"<a>" + b"<hr>" * 400_000, b"Content-Type: text/html"),
    "/fields": page_of(
        b"<form action=/sent>"
        + b"".join(b"<input type=radio required name=n id=i%d>" % at for at in range(20_000))
        + b"<button>Go</button>"
    ),
    "/names": page_of(b"<td aria-labelledby=x>" * 400 + b"<b>" * 100 + b"word " * 300_000),
    "/codec": page_of(b"<h1>said</h1>", b"Content-Type: text/html; charset=hex"),
    "/cookie": page_of(b"<h1>said</h1>", b"Content-Type: text/html", b"Set-Cookie: a=\xc3\xa9"),
    "/garbage": b"\x00\x01\x02" * 50,
    "/nothing": b"HTTP/1.1 302 Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere",
}


async def answer(reader, writer):
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        if path == "/drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n")
            while True:
                writer.write(b"x" * 1_000)
                await writer.drain()
                await asyncio.sleep(0.2)
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if "content-length" in line), 0)
        sent = (await reader.readexactly(length)).decode()
        writer.write(SAID.get(path) or page_of(f"<p>{path} {sent}</p>".encode()))
        await writer.drain()
    except OSError:
        pass  # it was hung up on, as is wanted
    finally:
        writer.close()


def attacked(tmp_path, *actions, start="/", limits=PageLimits()):  # noqa: B008  # frozen
    """What came of each action, and the page at the end."""

    async def play():
        server = await asyncio.start_unix_server(answer, str(tmp_path / "s"))
        async with server, PlainBrowser() as browser:
            sites = {ORIGIN: UnixSocket(str(tmp_path / "s"))}
            page = await browser.page(PageSpec(sites, start=ORIGIN + start, limits=limits))
            done = [await page.act(action) for action in actions]
            await page.digest()
            return done, await page.view(Wanted(text=True, focused=True))

    return asyncio.run(play())


def named(name):
    return Target(name=name)


@pytest.mark.parametrize(
    "action",
    [
        Goto("http://["),
        Goto("http://shop.test/\x01"),
        Goto(f"{ORIGIN}/{'x' * 70_000}"),
        Goto(f"{ORIGIN}/\ud800"),
        Goto("http://shop.test:port/"),
        Goto("http://\u2488.test/"),
        Goto(""),
        Click(named("Bad")),
        Click(named("Astray")),
        Goto(f"{ORIGIN}/astray"),
    ],
)
def test_an_address_that_is_none_is_data_and_the_page_stays(tmp_path, action):
    (acted, after), view = attacked(tmp_path, action, Fill(named("A"), "1"))
    assert acted.outcome in (Outcome.INVALID, Outcome.REFUSED), acted
    assert acted.message
    assert len(acted.message) < 400
    assert after.outcome is Outcome.DONE
    assert view.title == "Start"


@pytest.mark.parametrize(("field", "button"), [("A", "Get"), ("B", "Post"), ("C", "Parts")])
def test_half_a_character_is_sent_as_the_sign_for_one_that_cannot_be(tmp_path, field, button):
    done, view = attacked(tmp_path, Fill(named(field), "x\ud800y\ud83d\ude00"), Click(named(button)))
    assert [one.outcome for one in done] == [Outcome.DONE, Outcome.DONE]
    wanted = "x\ufffdy\U0001f600" if button == "Parts" else "x%EF%BF%BDy%F0%9F%98%80"
    assert wanted in view.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/drip", "2 s"),
        ("/large", "2,000,000 bytes"),
        ("/bomb", "2,000,000 bytes"),
        ("/deep", "nested deeper than 512"),
        ("/deeper", "nested deeper than 512"),
        ("/many", "more than 50,000 elements"),
        ("/loop", "redirected more than 20 times"),
        ("/garbage", "RemoteProtocolError"),
    ],
)
def test_a_page_that_misbehaves_is_not_loaded_and_the_page_before_stays(tmp_path, path, says):
    began = time.monotonic()
    (acted, after), view = attacked(
        tmp_path, Goto(ORIGIN + path), Fill(named("A"), "1"), limits=PageLimits(act_s=2)
    )
    assert acted.outcome is Outcome.NOT_LOADED
    assert says in acted.message
    assert after.outcome is Outcome.DONE
    assert view.title == "Start"
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_large_document_is_read_while_others_go_on(tmp_path):
    """The longest time in which nobody else of the event loop had a turn, beside the whole."""

    async def play():
        longest, last, over = 0.0, time.monotonic(), False

        async def others():
            nonlocal longest, last
            while not over:
                await asyncio.sleep(0)
                now = time.monotonic()
                longest, last = max(longest, now - last), now

        server = await asyncio.start_unix_server(answer, str(tmp_path / "s"))
        async with server, PlainBrowser() as browser:
            spec = PageSpec({ORIGIN: UnixSocket(str(tmp_path / "s"))}, start=f"{ORIGIN}/")
            page = await browser.page(spec)
            beside = asyncio.create_task(others())
            began = time.monotonic()
            assert (await page.act(Goto(f"{ORIGIN}/fields"))).outcome is Outcome.DONE
            assert len((await page.view()).tree) > 1_000
            whole, over = time.monotonic() - began, True
            await beside
            return longest, whole

    longest, whole = asyncio.run(play())
    assert longest < whole / 3, (longest, whole)


@pytest.mark.slow
def test_what_takes_too_long_to_be_read_is_not_loaded_and_the_page_before_stays(tmp_path):
    (acted, after), view = attacked(
        tmp_path, Goto(f"{ORIGIN}/fields"), Fill(named("A"), "1"), limits=PageLimits(act_s=0.2)
    )
    assert (acted.outcome, after.outcome, view.title) == (Outcome.NOT_LOADED, Outcome.DONE, "Start")
    assert "0.2 s" in acted.message


def test_a_start_that_misbehaves_is_the_worlds_failure(tmp_path):
    with pytest.raises(EnvironmentFailure, match="nested deeper than 512"):
        attacked(tmp_path, start="/deep")


@pytest.mark.parametrize("path", ["/codec", "/cookie"])
def test_an_odd_head_does_not_hide_a_page(tmp_path, path):
    done, view = attacked(tmp_path, Goto(ORIGIN + path), Goto(f"{ORIGIN}/next"))
    assert [one.outcome for one in done] == [Outcome.DONE, Outcome.DONE]
    assert "/next" in view.text


def test_a_redirection_to_nowhere_is_a_page(tmp_path):
    (acted,), view = attacked(tmp_path, Goto(f"{ORIGIN}/nothing"))
    assert acted.outcome is Outcome.DONE
    assert view.text == "here"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/fields", "/names"])
def test_a_page_that_is_costly_to_name_is_named_in_time(tmp_path, path):
    began = time.process_time()
    done, view = attacked(tmp_path, Goto(ORIGIN + path), Click(named("Go")))
    assert done[0].outcome is Outcome.DONE
    assert done[1].outcome is (Outcome.INVALID if path == "/fields" else Outcome.NO_ELEMENT)
    assert all(len(node.name) <= 2_000 for node in view.tree if node.role != "text")
    assert time.process_time() - began < 20
