"""Pages that misbehave cost one typed outcome, reach nothing outside, and no other episode; one test each.

Beside every test here another episode lives in the same browser, on a site of the same name: it has a secret, and
is as it was afterwards.
"""

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

pytestmark = [pytest.mark.slow, pytest.mark.turns(6)]

QUICK = PageLimits(act_s=6.0, settle_s=2.0)
"""For pages that do hang: what must not take long there is not waited for."""

SLOW = PageLimits(act_s=60.0, settle_s=30.0)
"""For many at once: that a machine is loaded is no fault of a page's."""

BUTTON = Click(Target(role="button", name=""))


SECRET = "secret-of-the-neighbour"
KEEP = f"(document.cookie = 'a={SECRET}', localStorage.a = sessionStorage.a = window.name = '{SECRET}')"
NEIGHBOUR = f"""<!doctype html><title>{SECRET}</title><h1>{SECRET}</h1><input aria-label=Word value={SECRET}>
<button onclick="channel.postMessage('{SECRET}'); this.textContent = ++clicked">0</button>
<script>clicked = 0; heard = []; channel = new BroadcastChannel('all');
channel.onmessage = onmessage = onstorage = (event) => heard.push(event.type)</script>"""


@pytest.fixture(scope="module")
def neighbour(loop, tmp_path_factory):
    """An episode that lives all the while."""
    folder = tmp_path_factory.mktemp("neighbour")
    (folder / "index.html").write_text(NEIGHBOUR)
    sites = {name: Folder(str(folder)) for name in ("http://a.test", "http://localhost", "http://neighbour.test")}
    browser = open_browser()
    page = loop.run(browser.page(PageSpec(sites, start="http://a.test/", limits=SLOW)))
    loop.run(page.run(KEEP))
    yield page
    loop.run(browser.close())


@pytest.fixture(autouse=True)
def beside(loop, neighbour):
    """The neighbour is asked before and after: nothing of it is changed, and it goes on."""

    async def told():
        assert neighbour.gate.refused == []
        assert await neighbour.run("heard") == []
        return await neighbour.digest(), await neighbour.storage(), await neighbour.run("clicked")

    before = loop.run(told())
    yield
    assert loop.run(told()) == before
    acted = loop.run(neighbour.act(Click(Target(role="button"))))
    assert (acted.outcome, acted.dialogs, acted.downloads, acted.opened) == (Outcome.DONE, (), (), 0)
    assert loop.run(neighbour.run("clicked")) == before[2] + 1


async def unseen(page):
    """Nothing of the neighbour is to be seen in a page, nor in what is kept for it."""
    view = await page.view(Wanted(tree=True, dom=True, text=True))
    kept = await page.run("[document.cookie, {...localStorage}, {...sessionStorage}, window.name]")
    assert SECRET not in f"{view}{kept}{await page.storage()}"


def attack(play, script, *, outcomes, limits=QUICK, **more):
    """Click a button that runs a script; afterwards the episode goes on in its own page. Gives what came of it."""

    async def work(page):
        acted = await page.act(BUTTON)
        assert acted.outcome in outcomes, acted
        assert SECRET not in str(acted)
        assert (await page.act(Goto("http://a.test/"))).outcome.ok
        assert [node.name for node in (await page.view()).tree if node.role == "button"] == ["go"]
        await unseen(page)
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
        assert (await page.act(BUTTON)).outcome in (Outcome.DONE, Outcome.BUSY)
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


@pytest.mark.parametrize(
    ("grow", "framed"),
    [
        ("d.setAttribute('aria-label', text)", False),
        ("d.setAttribute('aria-label', text)", True),
        ("document.querySelector('input').value = text", False),
        ("d.append(Object.assign(new Image(), {src: 'data:,' + text, alt: 'a'}))", False),
        ("d.attachShadow({mode: 'open'}).append(text)", False),
        ("d.attachShadow({mode: 'open'}).innerHTML = '<p title=' + text + '>'", False),
    ],
    ids=["attribute", "in-a-frame", "value", "address", "shadow-text", "shadow-attribute"],
)
def test_attributes_fields_and_shadow_roots_are_of_a_pages_size_too(play, grow, framed):
    body = "<input aria-label=Field value=small><div id=d role=button></div>"
    body += f"<script>const text = 'x'.repeat(6 << 20); {grow}</script>"

    async def work(page):
        view = await page.view(Wanted(tree=True, dom=True, text=True))
        assert "too large" in view.error, view.error
        assert view.tree is None
        assert (await page.act(Goto("http://a.test/c.html"))).outcome.ok
        view = await page.view(Wanted(tree=True, dom=True, text=True))
        assert view.error == ""

    small = f"<p title={'x' * 2_000_000}>C<input value={'x' * 2_000_000}>"
    play(work, "<iframe src=/b.html></iframe>" if framed else body, b=body, c=small)


@pytest.mark.parametrize("where", ["http://a.test", "http://b.test"])
def test_a_huge_document_in_a_frame_is_too_large_as_well(play, tmp_path, where):
    """Also one that the document around it may not look into; its hundred texts are not alike, and not shown."""

    async def work(page):
        for wanted in (Wanted(), Wanted(tree=False, dom=True), Wanted(tree=False, text=True)):
            view = await page.view(wanted)
            assert "too large" in view.error
            assert (view.tree, view.dom, view.text) == (None, None, None)
        assert (await page.act(Goto("http://a.test/c.html"))).outcome.ok

    grow = "for (let n = 0; n < 100; n++) d.append(n + 'x'.repeat(1 << 17))"
    play(
        work,
        f"<p>outer<iframe src={where}/b.html></iframe>",
        b=f"<div id=d hidden></div><script>{grow}</script>",
        c="<p>C",
        limits=PageLimits(act_s=60.0, settle_s=20.0),
        sites={"http://b.test": Folder(str(tmp_path))},
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


def test_downloads_of_other_episodes_do_not_push_out_ones_own(play):
    """Two are under way and the first is over; then Chromium tells of more than a hundred of others'."""

    async def work(page):
        def tells(guid, state):
            page.downloads.progress({"guid": guid, "receivedBytes": 1, "state": state})

        for guid in ("first", "second"):
            page.downloads.began({"guid": guid, "suggestedFilename": guid, "url": "http://a.test/"})
        tells("first", "canceled")
        waiting = asyncio.create_task(page.act(Wait()))
        for number in range(150):
            tells(f"another-{number}", "completed")
        tells("second", "canceled")
        acted = await asyncio.wait_for(waiting, 30)
        assert [(file.name, file.content) for file in acted.downloads] == [("first", None), ("second", None)]

    play(work, "<p>x", limits=PageLimits(act_s=60.0, settle_s=600.0))


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


@pytest.fixture
def served(loop):
    """``served(answers)`` is the place of a server that answers a path with a status, fields and a body."""
    servers = []

    def begin(answers):
        async def answer(reader, writer):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            status, fields, body = answers.get(path, ("404 Not Found", "", ""))
            head = f"HTTP/1.1 {status}\r\n{fields}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            writer.close()

        servers.append(loop.run(asyncio.start_server(answer, "127.0.0.1", 0)))
        return Tcp(*servers[-1].sockets[0].getsockname())

    yield begin
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("way", "leaves"),
    [
        ("location = '/away'", True),
        ("this.parentNode.innerHTML += '<form method=post action=/away>'; document.forms[0].submit()", True),
        ("window.open('/away')", False),
        ("fetch('/away').catch(() => 0)", False),
        ("fetch('/away', {method: 'POST', body: 'x', mode: 'no-cors'}).catch(() => 0)", False),
        ("document.body.append(Object.assign(new Image(), {src: '/away'}))", False),
        ("document.body.append(Object.assign(document.createElement('iframe'), {src: '/away'}))", False),
        ("document.head.append(Object.assign(document.createElement('script'), {src: '/away'}))", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect"])
def test_a_server_that_redirects_outside_is_not_followed(play, served, way, leaves, status):
    """To a server of this host, which hears nothing, and to the neighbour's site."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        outside.settimeout(0.2)
        for away in (f"http://127.0.0.1:{outside.getsockname()[1]}/x", "http://neighbour.test/"):
            page = f'<!doctype html><button onclick="{way}">go</button>'
            answers = {"/": ("200 OK", "Content-Type: text/html\r\n", page)}
            answers["/away"] = (status, f"Location: {away}\r\n", "")
            outcomes = {Outcome.REFUSED} if leaves else {Outcome.DONE, Outcome.BUSY}
            acted = attack(play, way, outcomes=outcomes, sites={"http://a.test": served(answers)})
            assert acted.refused == (away,)
        with pytest.raises(TimeoutError):
            outside.accept()


SERVICE_WORKER = """
for (const place of ['%s', 'http://neighbour.test/']) fetch(place, {mode: 'no-cors'}).catch(() => 0);
onfetch = (event) => event.respondWith(new Response('<h1>taken</h1>', {headers: {'Content-Type': 'text/html'}}));
oninstall = () => skipWaiting(); onactivate = (event) => event.waitUntil(clients.claim());
"""
REGISTER = "register('/sw.js').then(() => told.push('registered'), (e) => told.push(String(e)))"
OF_FRAME = f"document.body.append(f); f.contentWindow.navigator.serviceWorker.{REGISTER}"
OF_NAVIGATOR = "Object.getOwnPropertyDescriptor(Navigator.prototype, 'serviceWorker').get.call(navigator)"
WAYS = {
    "itself": f"navigator.serviceWorker.{REGISTER}",
    "a prototype": f"{OF_NAVIGATOR}.{REGISTER}",
    "a frame": f"f = document.createElement('iframe'); {OF_FRAME}",
    "a page's frame": f"f = Object.assign(document.createElement('iframe'), {{src: '/b.html'}}); {OF_FRAME}",
    "a popup": f"window.open('/b.html').navigator.serviceWorker.{REGISTER}",
    "an empty popup": f"window.open().navigator.serviceWorker.{REGISTER}",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_service_worker_comes_to_nothing_where_there_could_be_one(loop, tmp_path, way):
    """On an origin that is secure, as this host's own name is: by ways on which no script of ours may be yet."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        outside.settimeout(0.2)
        (tmp_path / "sw.js").write_text(SERVICE_WORKER % f"http://127.0.0.1:{outside.getsockname()[1]}/")
        (tmp_path / "b.html").write_text("<!doctype html><p>B")
        tried = f"told = []; try {{ {WAYS[way]} }} catch (e) {{ told.push(String(e)) }}"
        (tmp_path / "index.html").write_text(f'<!doctype html><h1>Mine</h1><button onclick="{tried}">go</button>')
        spec = PageSpec({"http://localhost": Folder(str(tmp_path))}, start="http://localhost/", limits=SLOW)

        async def work():
            async with open_browser() as browser, await browser.page(spec) as page:
                assert await page.run("isSecureContext")
                assert (await page.act(BUTTON)).outcome.ok
                await page.act(Wait(0.5))
                told = await page.run("told")
                for again in (page.act(Goto("http://localhost/")), page.restart()):
                    await again
                    seen = [(node.role, node.name) for node in (await page.view()).tree]
                    assert ("heading", "Mine") in seen, "no worker answered"
                    await unseen(page)
                assert told, "it failed at once: one that only hangs is there"
                assert "registered" not in told
                assert page.gate.refused == []

        loop.run(work())
        with pytest.raises(TimeoutError):
            outside.accept()


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


def test_a_page_pastes_nothing_that_another_episodes_page_has_copied(loop, site):
    """Chromium has one clipboard, into which pages can copy; to get anything out needs a leave that none has."""
    body = """<input id=a value=secret><textarea id=b></textarea>
<button aria-label=Copy onclick="a.select(); done = document.execCommand('copy')">copy</button>
<button aria-label=Paste onclick="b.focus(); done = [document.execCommand('paste')];
read = navigator.clipboard?.readText() ?? Promise.reject('none');
read.then((text) => done.push(text), () => done.push('no'))">paste</button>
<script>b.onpaste = (event) => { stolen = event.clipboardData.getData('text') }; stolen = ''</script>"""
    spec = PageSpec({name: site(body) for name in ("http://a.test", "http://localhost")}, start="http://localhost/")

    async def work():
        async with open_browser() as browser:
            one, other = await browser.page(spec), await browser.page(spec)
            await one.act(Click(Target(name="Copy")))
            assert await one.run("done") is True
            for page in (other, one):
                await page.act(Click(Target(name="Paste")))
                await page.act(Press("Control+v"))
                assert await page.run("[...done, b.value, stolen]") == [False, "no", "", ""]

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
