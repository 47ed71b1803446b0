"""The server of an episode: what hangs in it is said at its deadline, and holds nobody else."""

import asyncio
import threading
import time

import httpx
import pytest
from envgym_environments.web.sites.episode import Served
from envgym_environments.web.sites.frame import Site
from envgym_environments.web.sites.goals import Key, build

BEGUN = threading.Event()
SLOW = Site("slow", "Slow", "me", "CREATE TABLE number (n INTEGER);", {"Start": "/"}, {"page": "{{ text }}"})
SLOW.fill = lambda connection, _: None


@SLOW.get("/")
def start(visit):
    return visit.show("page", title="Start", text=f"{visit.value('SELECT COUNT(*) FROM number')} numbers")


@SLOW.post("/more")
def more(visit):
    visit.change("INSERT INTO number VALUES (1)")
    return visit.go("/")


@SLOW.get("/sql")
def in_sql(visit):
    BEGUN.set()
    endless = (
        "WITH RECURSIVE all_of(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM all_of) SELECT COUNT(*) FROM all_of"
    )
    return visit.show("page", title="SQL", text=visit.value(endless))


@SLOW.get("/loop")
def in_python(visit):
    while True:
        pass


@SLOW.get("/sleep")
def in_the_kernel(visit):
    time.sleep(1.0)
    return visit.show("page", title="Slept", text="")


def client(served):
    transport = httpx.AsyncHTTPTransport(uds=served.server.path, verify=False)
    return httpx.AsyncClient(transport=transport, base_url=SLOW.origin, timeout=60, verify=False, trust_env=False)


def threads():
    return sum(thread.name == "envgym-site" for thread in threading.enumerate())


@pytest.mark.parametrize("path", ["/sql", "/loop", "/sleep"])
def test_what_hangs_is_said_at_the_deadline_and_others_are_answered_meanwhile(path):
    async def work():
        pristine = build(Key(SLOW, 0))
        one, other = Served(SLOW, pristine, answer_s=0.4), Served(SLOW, pristine, answer_s=60.0)
        for served in (one, other):
            await served.server.open()
        async with client(one) as ask, client(other) as ask_other:
            assert (await ask.post("/more")).status_code == 303
            hangs = asyncio.create_task(ask.get(path, headers={"Accept": "text/html"}))
            after = asyncio.create_task(ask.get("/"))
            for _ in range(3):
                assert "0 numbers" in (await ask_other.get("/")).text
            assert not hangs.done()
            assert (await hangs).status_code == 500
            assert isinstance(one.server.crashed, TimeoutError)
            assert f"GET {path} was not answered within 0.4 s" in str(one.server.crashed)
            assert one.asked is None, "a document that never came can not be loaded again"
            assert "0 numbers" in (await after).text, "what waited is answered, of a database that nobody else has"
            await asyncio.gather(ask.post("/more"), *(ask.get("/") for _ in range(4)))
            assert one.database.rows()["number"].total() == 1
        for served in (one, other):
            await served.close()

    asyncio.run(work())
    for _ in range(500):
        if not threads():
            break
        time.sleep(0.02)
    assert not threads(), "none is left"


def test_an_episode_that_closes_waits_for_nothing_that_hangs():
    async def work():
        served = Served(SLOW, build(Key(SLOW, 0)), answer_s=600.0)
        await served.server.open()
        async with client(served) as ask:
            BEGUN.clear()
            hangs = asyncio.create_task(ask.get("/sql"))
            assert await asyncio.to_thread(BEGUN.wait, 60)
            await asyncio.wait_for(served.close(), 60)
            with pytest.raises(httpx.HTTPError):
                await hangs

    asyncio.run(work())


def test_requests_at_once_are_answered_one_after_the_other():
    async def work():
        served = Served(SLOW, build(Key(SLOW, 0)), answer_s=60.0)
        await served.server.open()
        async with client(served) as ask:
            await asyncio.gather(*(ask.post("/more") for _ in range(20)), *(ask.get("/") for _ in range(20)))
        async with served.between:
            assert served.database.rows()["number"].total() == 20
        await served.close()

    asyncio.run(work())
