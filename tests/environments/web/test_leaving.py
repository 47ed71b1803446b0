"""The page of the episode before reaches nobody once the next one begins."""

import asyncio
import gc
import re
import socket
import warnings
from pathlib import Path

import pytest
from envgym_environments.web import sites
from envgym_environments.web.looks import Looks
from envgym_environments.web.play import Question, WebPlay
from envgym_environments.web.sites.episode import Served
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.goals import Key, build
from envgym_environments.web.sites.wire import Server
from envgym_environments.web.tap import Tap

from envgym.messages import Action
from envgym.registry import find
from envgym.task import Task

RESTLESS = """<h1>{{ text }}</h1><p id="p">quiet</p><script>
const write = () => fetch('/more', {method: 'POST', keepalive: true});
if (location.pathname === '/restless') {
  setInterval(write, 1);
  addEventListener('pagehide', () => navigator.sendBeacon('/more'));
  addEventListener('unload', () => navigator.sendBeacon('/more'));
}
if (location.pathname === '/tabs') { open('/restless'); }
if (location.pathname === '/away') { setInterval(() => { write(); location.href = '/away?' + Math.random(); }, 5); }
</script>"""
SITE = Site("leaving", "Leaving", "me", "CREATE TABLE number (n INTEGER);", {"Start": "/"}, {"page": RESTLESS})
SITE.fill = lambda connection, _: None


@SITE.get("/")
def start(visit):
    return visit.show("page", title="Start", text="Start")


for _path in ("/restless", "/tabs", "/away"):
    SITE.get(_path)(start)


@SITE.post("/more")
def more(visit):
    visit.change("INSERT INTO number VALUES (1)")
    return visit.go("/")


def graded(database, url, answer):
    return {"reward": 0.0, "rows": float(database.rows()["number"].total())}


def playing():
    report = find("browsers", "chromium")().report()
    if not report.works:
        pytest.skip(f"no chromium: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")
    task = Task(id="leaving/1", prompt="Do nothing")
    pristine = build(Key(SITE, 0))
    return WebPlay(task, Question("Do nothing", graded), lambda: Served(SITE, pristine), Looks())


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", ["/restless", "/tabs", "/away"])
def test_a_page_that_writes_does_not_write_into_the_next_episode(path):
    async def run():
        env = playing()
        try:
            first = await env.reset(seed=0)
            snapshot = await env.snapshot()
            written = 0.0
            for turn in range(2):
                await env.reset(seed=0)
                await env.step(Action.call("goto", url=f"http://leaving.test{path}"))
                written += (await env.step(Action.call("done"))).channels["rows"]
                again = await env.reset(seed=0, start=snapshot if turn % 2 else None)
                assert (again.text, again.state_key) == (first.text, first.state_key)
                await env.step(Action.call("wait", seconds=0.3))  # what comes late comes now
                assert (await env.step(Action.call("done"))).channels["rows"] == 0.0
            assert written > 0, "the page does write"
        finally:
            await env.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["server", "tap"])
@pytest.mark.parametrize("said", [b"", b"GET / HT"])
def test_a_connection_that_comes_as_its_server_closes_leaves_no_socket_open(kind, said):
    """Whichever turn of the event loop it comes in: what was lost so was told in the middle of another test."""

    async def closed_after(turns):
        async def nobody(*_):
            raise AssertionError("nothing was asked")

        server = Server(nobody, "a.test") if kind == "server" else Tap(nobody, 5.0)
        path = await server.open() or server.path
        with socket.socket(socket.AF_UNIX) as browser:
            browser.connect(path)
            browser.sendall(said)
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for turns in range(8):
            asyncio.run(closed_after(turns))
        gc.collect()  # what any of them lost
    assert [str(one.message) for one in told if issubclass(one.category, ResourceWarning)] == []


def test_the_six_sites_send_and_keep_nothing_by_themselves():
    """What `quiet` says of them: their pages are not taken away before a reset, and not emptied."""
    folder = Path(sites.__file__).parent
    sources = [path.read_text() for path in folder.rglob("*") if path.suffix in (".py", ".js", ".html")]
    assert len(sources) > 10
    sends = re.compile(
        r"sendBeacon|XMLHttpRequest|WebSocket|EventSource|\bfetch\(|setInterval|setTimeout|keepalive"
        r'|localStorage|sessionStorage|indexedDB|\bcaches\b|window\.name|document\.cookie|target="'
    )
    assert [found[0] for text in sources if (found := sends.search(text))] == []
