"""Cookies come back in a fork as the browser had them: hidden from scripts, of a path, quoted."""

import asyncio

import pytest
from envgym_environments.web.cookies import cookies_then
from envgym_environments.web.looks import Looks
from envgym_environments.web.play import Question, WebPlay
from envgym_environments.web.sites.episode import Served
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.goals import Key, build

from envgym.messages import Action
from envgym.registry import find
from envgym.task import Task

SITE = Site("signed", "Signed", "me", "CREATE TABLE number (n INTEGER);", {"Start": "/"}, {"page": "<p>{{ text }}"})
SITE.fill = lambda connection, _: None
SET = (
    "session=abc.def; HttpOnly; SameSite=Lax; Path=/",
    "part=1; Path=/p; HttpOnly",
    'said="two words"; Path=/; Max-Age=3600',
)


@SITE.get("/")
def start(visit):
    return visit.show("page", title="Start", text="Start")


@SITE.get("/in")
def sign_in(visit):
    answer = visit.go("/")
    for one in SET:
        answer.headers.add("Set-Cookie", one)
    return answer


@SITE.get("/count")
def count(visit):
    """Each answer sets a cookie by the one that was sent."""
    answer = visit.show("page", title="Count", text="Count")
    sent = visit.request.cookies.get("count", "0")
    answer.headers.add("Set-Cookie", f"count={int(sent) + 1}; HttpOnly")
    return answer


@pytest.mark.timeout(200)
@pytest.mark.parametrize("browser", ["chromium", "plain"])
@pytest.mark.parametrize("path", ["/in", "/count"])
def test_a_fork_has_the_browsers_cookies(browser, path):
    report = find("browsers", browser)().report()
    if not report.works:
        pytest.skip(f"no {browser}: {'; '.join(report.missing)}; fix: {'; '.join(report.fix)}")

    async def run():
        pristine = build(Key(SITE, 0))
        question = Question("Do nothing", lambda database, url, answer: {"reward": 0.0})
        env = WebPlay(Task(id="signed/1", prompt="?"), question, lambda: Served(SITE, pristine), Looks(browser))
        try:
            await env.reset(seed=0)
            await env.step(Action.call("goto", url=f"http://signed.test{path}"))
            step = await env.step(Action.call("goto", url=f"http://signed.test{path}"))
            fork = await env.fork()
            again = await fork.fork()  # what was restored is restored again
            for one in (fork, again):
                assert await one._page.digest() == await env._page.digest()
                kept = {(c["name"], c["value"]) for c in (await one._page.storage()).cookies}
                assert kept == {(c["name"], c["value"]) for c in (await env._page.storage()).cookies}
                await one.close()
            assert step.text
        finally:
            await env.close()

    asyncio.run(run())


def test_what_was_sent_has_its_value_and_what_the_browser_knows_of_it():
    def record(name, value, path="/", **more):
        return {"name": name, "value": value, "domain": "a.test", "path": path, **more}

    now = [
        record("s", "new", httpOnly=True),
        record("p", "1", "/p"),
        record("late", "x"),
        record("s", "deep", "/d"),
    ]
    found = cookies_then('s=old; quoted="a b"; gone=1', "/page?x=/p", now, "a.test")
    assert found == (
        record("p", "1", "/p"),
        record("s", "deep", "/d"),
        record("s", "old", httpOnly=True),
        record("quoted", '"a b"'),
        record("gone", "1"),
    )
    assert cookies_then("s=deep; s=new", "/d/e", now, "a.test") == (
        record("p", "1", "/p"),
        record("s", "deep", "/d"),
        record("s", "new", httpOnly=True),
    )
    assert cookies_then("", "/", [], "a.test") == ()
