"""Pages that misbehave cost one typed outcome, reach nothing outside, and no other episode; one test each."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envgym.browsing import open_browser
from envgym.errors import EnvironmentFailure, SandboxDied
from envgym.page import Folder, Outcome, PageLimits, PageSpec, Tcp, Wanted
from envgym.page_actions import Click, Goto, NewTab, Press, Target, Wait

pytestmark = [pytest.mark.slow, pytest.mark.turns]

QUICK = PageLimits(act_s=6.0, settle_s=2.0)
"""For pages that do hang: what must not take long there is not waited for."""

SLOW = PageLimits(act_s=60.0, settle_s=30.0)
"""For many at once: that a machine is loaded is no fault of a page's."""

BUTTON = Click(Target(role="button", name=""))


def attack(play, script, *, outcomes, limits=QUICK, **more):
    """Click a button that runs a script; afterwards the episode goes on in its own page. Gives what came of it."""

    async def work(page):
        acted = await page.act(BUTTON)
        assert acted.outcome in outcomes, acted
        assert (await page.act(Goto("http://a.test/"))).outcome.ok
        assert [node.name for node in (await page.view()).tree if node.role == "button"] == ["go"]
        return acted

    return play(work, f'<button onclick="{script}">go</button>', limits=limits, **more)


def test_an_infinite_loop_is_a_hang(play):
    acted = attack(play, "for (;;) {}", outcomes={Outcome.HUNG})
    assert "no answer" in acted.message


def test_an_alert_storm_is_ended(play):
    acted = attack(play, "for (;;) alert('again')", outcomes={Outcome.HUNG})
    assert "dialogs without end" in acted.message
    assert 0 < len(acted.dialogs) <= 8


def test_dialogs_are_answered_and_told(play):
    acted = attack(play, "alert(1); confirm('sure?'); prompt('name', 'x')", outcomes={Outcome.DONE})
    assert [(one.kind, one.accepted) for one in acted.dialogs] == [
        ("alert", True),
        ("confirm", True),
        ("prompt", True),
    ]


def test_popups_are_bounded(play):
    async def work(page):
        acted = await page.act(BUTTON)
        assert acted.outcome in (Outcome.DONE, Outcome.BUSY)
        assert 1 < len((await page.view()).tabs) <= SLOW.tabs < acted.opened, "more than there may be were tried"
        assert (await page.act(Goto("http://a.test/"))).outcome.ok

    tries = "for (let n = 0; n < 40; n++) window.open('/b.html?' + n)"
    play(work, f'<button onclick="{tries}">go</button>', limits=SLOW, b="<p>B")


def test_a_page_of_a_hundred_megabytes_is_told_and_not_sent(play):
    async def work(page):
        await page.act(BUTTON)
        view = await page.view(Wanted(tree=True, dom=True, text=True))
        assert "too large" in view.error
        assert view.tree is None
        assert (await page.act(Goto("http://a.test/b.html"))).outcome.ok

    grow = "for (let n = 0; n < 100; n++) d.append('x'.repeat(1 << 20))"
    play(
        work,
        f'<button onclick="{grow}">go</button><div id=d hidden></div>',
        b="<p>B",
        limits=PageLimits(act_s=60.0, settle_s=20.0),
    )


def downloaded(play, content, limits):
    """What a page that offers itself as a file leaves: told with the click, or with what is done next."""
    save = "a = document.createElement('a'); a.download = '../../x.txt'; a.href = '/f.html'; a.click()"

    async def work(page):
        acted = await page.act(BUTTON)
        assert acted.outcome in {Outcome.DONE, Outcome.BUSY}, acted
        found = list(acted.downloads)
        for _ in range(100):
            if found:
                break
            found += (await page.act(Wait(0.1))).downloads
        assert (await page.act(Wait(0.1))).downloads == (), "each is told once"
        return found

    return play(work, f'<button onclick="{save}">go</button>', limits=limits, f=content)


def test_downloads_are_data_within_their_bound(play):
    (small,) = downloaded(play, "hello", PageLimits())
    assert small.content == b"hello"
    assert "/" not in small.name
    (large,) = downloaded(play, "x" * 100_000, PageLimits(download_bytes=1000))
    assert large.content is None


@pytest.mark.parametrize("way", ["location = 'http://b.test/x'", "location = '/to.html'"])
def test_a_redirect_outside_is_refused(play, way):
    page = "<meta http-equiv=refresh content='0;url=http://b.test/x'>"
    acted = attack(play, way, outcomes={Outcome.REFUSED}, to=page)
    assert acted.refused == ("http://b.test/x",)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "view-source:http://a.test/", "chrome://version", "data:text/html,x"]
)
def test_other_schemes_are_closed_to_agents_and_pages(play, url):
    async def work(page):
        for action in (Goto(url), NewTab(url)):
            assert (await page.act(action)).outcome is Outcome.REFUSED
        await page.act(BUTTON)
        assert (await page.view()).url == "http://a.test/"
        assert "root:" not in ((await page.view(Wanted(text=True))).text or "")

    play(work, f"<button onclick=\"location = '{url}'\">go</button>")


def test_nothing_of_this_host_is_reached(play):
    """By fetch, image, web socket, beacon, WebRTC and worker: not by address, not by the loopback."""
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for one in (tcp, udp):
            one.bind(("127.0.0.1", 0))
            one.settimeout(0.2)
        tcp.listen()
        port, udp_port = tcp.getsockname()[1], udp.getsockname()[1]
        place = f"127.0.0.1:{port}"
        script = (
            f"fetch('http://{place}/').catch(() => 0); new Image().src = 'http://localhost:{port}/';"
            f"try {{ new WebSocket('ws://{place}/') }} catch (e) {{}}; navigator.sendBeacon('http://{place}/');"
            f"c = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{udp_port}'}}]}});"
            "c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o));"
            f"new Worker(URL.createObjectURL(new Blob(['fetch(`http://{place}/`)'])))"
        )
        acted = attack(play, script, outcomes={Outcome.DONE, Outcome.BUSY})
        assert f"http://{place}/" in acted.refused
        for one in (tcp, udp):
            with pytest.raises(TimeoutError):
                one.accept() if one is tcp else one.recv(10)


def test_service_workers_are_not_there(play):
    async def work(page):
        assert await page.run("typeof navigator.serviceWorker") == "undefined"

    play(work, "<p>x")


def test_a_crashed_renderer_is_its_own_episodes_alone(loop, site):
    spec = PageSpec({"http://a.test": site("<button>go</button>")}, start="http://a.test/")

    async def work():
        async with open_browser() as browser:
            one, other = await browser.page(spec), await browser.page(spec)
            one.tabs[0].kill()
            assert (await one.act(Wait(5.0))).outcome in (Outcome.CRASHED, Outcome.HUNG)
            assert (await other.act(BUTTON)).outcome is Outcome.DONE
            with pytest.raises(EnvironmentFailure):
                await one.run("nothing.there")
            assert (await one.act(Goto("http://a.test/"))).outcome is Outcome.DONE

    loop.run(work())


def test_episodes_see_nothing_of_each_other(loop, site):
    spec = PageSpec({"http://a.test": site("<input aria-label=Word value=secret>")}, start="http://a.test/")

    async def work():
        async with open_browser() as browser:
            one, other = await browser.page(spec), await browser.page(spec)
            await one.run(
                "(document.cookie = 'a=1', localStorage.a = '1', new BroadcastChannel('c').postMessage('x'))"
            )
            await one.act(Click(Target(name="Word")))
            for keys in ("Control+a", "Control+c"):
                await one.act(Press(keys))
            assert await other.run("document.cookie + (localStorage.a || '')") == ""
            await other.act(Click(Target(name="Word")))
            for keys in ("Control+a", "Control+v"):
                await other.act(Press(keys))
            assert await other.run("document.querySelector('input').value") == "secret", "nothing was pasted"
            await one.act(Press("End"))
            await one.act(Press("Control+v"))
            assert await one.run("document.querySelector('input').value") == "secretsecret"

    loop.run(work())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_episodes_at_once_each_see_their_own_secret_alone(loop, tmp_path):
    pages = 8 if os.environ.get("ENVGYM_CI") else 32
    secrets = [f"secret-{number:02d}-{number * 7919 % 10007}" for number in range(pages)]
    seen = re.compile(r"secret-\d+-\d+")
    keep = (
        "(() => { const mine = document.title, had = [document.cookie, localStorage.all || '', "
        "window.heard || '']; document.cookie = 'a=' + mine; localStorage.all = (localStorage.all || '') + mine; "
        "const all = new BroadcastChannel('all'); all.onmessage = (e) => { window.heard = e.data; }; "
        "all.postMessage(mine); return had.join(); })()"
    )

    async def episode(browser, secret):
        folder = tmp_path / secret
        folder.mkdir()
        told = f"<title>{secret}</title><button onclick=\"this.textContent='{secret}'\">go</button><input>"
        (folder / "index.html").write_text(f"<!doctype html>{told}")
        spec = PageSpec({"http://a.test": Folder(str(folder))}, start="http://a.test/", limits=SLOW)
        found = set()
        async with await browser.page(spec) as page:
            for _ in range(3):
                assert (await page.act(Click(Target(role="button")))).outcome is Outcome.DONE
                view = await page.view(Wanted(tree=True, dom=True, text=True, focused=True))
                kept = [await page.run(keep), (await page.storage()).cookies, (await page.storage()).local]
                found |= set(seen.findall(f"{view}{kept}"))
                await page.restart()
                assert await page.run("document.cookie + (localStorage.all || '')") == ""
        return found

    async def work():
        async with open_browser() as browser:
            return await asyncio.gather(*(episode(browser, secret) for secret in secrets))

    assert loop.run(work()) == [{secret} for secret in secrets]


def test_a_site_whose_server_is_gone_is_not_an_exception(play):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def work(page):
            await page.act(Goto("http://b.test/"))
            assert "does not answer" in ((await page.view(Wanted(text=True))).text or "")

        play(work, "<p>x", sites={"http://b.test": Tcp("127.0.0.1", port)})


def test_files_outside_a_folder_are_not_served(play, tmp_path):
    (tmp_path.parent / "outside.txt").write_text("secret")

    async def work(page):
        (tmp_path / "link.html").symlink_to(tmp_path.parent / "outside.txt")
        for path in ("../outside.txt", "%2e%2e/outside.txt", "link.html", "..%2foutside.txt"):
            await page.act(Goto(f"http://a.test/{path}"))
            assert "secret" not in ((await page.view(Wanted(text=True))).text or "")

    play(work, "<p>x")


def _group(pid):
    """Every process below one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_group(child)]
    return found


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _all_end(pids):
    end = time.monotonic() + 30
    while any(map(_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(_alive, pids))


async def used_until_it_fails(page):
    for _ in range(100):
        await page.act(Wait(0.1))


def test_a_browser_that_dies_is_the_worlds_fault_and_the_next_page_has_a_new_one(site):
    spec = PageSpec({"http://a.test": site("<button>go</button>")}, start="http://a.test/")

    async def work():
        async with open_browser() as browser:
            page = await browser.page(spec)
            first = browser._held.engine.process.pid
            group = [first, *_group(first)]
            assert len(group) > 3
            os.kill(first, signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await used_until_it_fails(page)
            assert (await (await browser.page(spec)).act(BUTTON)).outcome is Outcome.DONE
        assert await asyncio.to_thread(_all_end, group)

    asyncio.run(work())


OWNER = """
import asyncio, sys
from envgym.browsing import open_browser
from envgym.page import Folder, PageSpec
async def main():
    async with open_browser() as browser:
        await browser.page(PageSpec({"http://a.test": Folder(sys.argv[1])}, start="http://a.test/"))
        print("there", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(site, tmp_path):
    folder, place = site("<p>x"), tmp_path / "temporary"
    place.mkdir()
    env = os.environ | {"TMPDIR": str(place)}
    with subprocess.Popen([sys.executable, "-c", OWNER, folder.path], stdout=subprocess.PIPE, env=env) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"there\n"
        group = _group(owner.pid)
        assert len(group) > 3
        owner.kill()
        owner.wait()
    assert _all_end(group)
    assert list(place.iterdir()) == []
