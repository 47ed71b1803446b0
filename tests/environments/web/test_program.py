"""Web applications that run as programs in sandboxes: somebody else's, and the project's own sites."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from envgym_environments.web.app import WebApp, by_task, web_environment, web_task
from envgym_environments.web.database import Database
from envgym_environments.web.play import WebPlay
from envgym_environments.web.program import Program
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.tasks import SANDBOXED, SPEC, expert, web_sites_tasks
from envgym_environments.web.tap import Tap

from envgym.env import Step, StopReason
from envgym.errors import EnvironmentFailure, ReplayDiverged, SnapshotGone
from envgym.messages import Action, ToolSpec
from envgym.registry import make, make_backend
from envgym.task import TaskSet, World
from envgym.testing import check_env, check_tasks

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]

NOTES = WebApp("notes", ("python3", "notes_app.py"), "notes.db", answer_s=3.0)
MADE = "import sqlite3; c = sqlite3.connect('notes.db'); c.execute('PRAGMA journal_mode = {}'); "
MADE += "c.execute('CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL)'); "
MADE += "c.execute('INSERT INTO note (text) VALUES (?)', ('milk',)); c.commit()"


def world(journal: str = "DELETE") -> World:
    source = (Path(__file__).parent / "notes_app.py").read_text()
    return World(files={"/work/notes_app.py": source}, setup=(f'python3 -c "{MADE.format(journal)}"',))


ADDED = ("INSERT INTO note (text) VALUES (?)", ("tea",))


def notes_tasks(journal: str = "DELETE") -> TaskSet:
    return TaskSet(
        [
            web_task("notes/add", "Add a note: tea", world(journal), changes=[ADDED]),
            web_task("notes/first", "What is the first note?", world(journal), answer="milk", split="heldout"),
        ]
    )


ENVIRONMENT = web_environment("notes", NOTES, notes_tasks)


@asynccontextmanager
async def playing(
    number: int = 0, *, app: WebApp = NOTES, journal: str = "DELETE", browser="plain", **options: Any
):
    """An environment of a task of notes, with its backend."""
    made = web_environment("notes", app, notes_tasks)
    async with make_backend("namespace") as backend:
        env = make(made, notes_tasks(journal)[number], backend=backend, browser=browser, **options)
        assert isinstance(env, WebPlay)
        try:
            yield env, backend
        finally:
            await env.close()


async def write(env: WebPlay, text: str, button: str = "Add") -> Step:
    """Fill in the form of a button, and send it."""
    nth = ["Add", "Add at once", "Dice"].index(button)
    page = (await env.step(Action.call("goto", url="http://notes.test/"))).text
    fields = [line for line in page.splitlines() if 'textbox "Text"' in line]
    await env.step(Action.call("fill", ref=fields[nth].partition("[")[2].partition("]")[0], text=text))
    return await env.step(Action.call("click_named", name=button, role="button"))


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_program_is_played_and_graded_by_its_rows(journal):
    async def run():
        async with playing(journal=journal) as (env, _):
            first = await env.reset(seed=0)
            assert "milk" in first.text
            shown = await write(env, "tea")
            assert "tea" in shown.text
            assert shown.state_key != first.state_key
            end = await env.step(Action.call("done"))
            assert (end.stop, end.reward) == (StopReason.GOAL, 1.0)
            again = await env.reset(seed=0)
            assert (again.text, again.state_key) == (first.text, first.state_key)
            idle = await env.step(Action.call("done"))
            assert (idle.reward, idle.channels["done"], idle.channels["harm"]) == (0.0, 0.0, 0.0)
            await env.reset(seed=0)
            await write(env, "coffee")
            await write(env, "tea")
            end = await env.step(Action.call("done"))
            assert (end.reward, end.channels["harm"]) == (0.0, 1.0)

    asyncio.run(run())


def test_an_answer_counts_where_one_is_asked_for():
    async def run():
        async with playing(1) as (env, _):
            for answer, reward in (("Milk", 1.0), ("tea", 0.0)):
                await env.reset(seed=0)
                end = await env.step(Action.call("answer_text", text=answer))
                assert (end.reward, end.channels["answered"]) == (reward, reward)

    asyncio.run(run())


def test_a_reset_leaves_the_very_files_that_the_first_one_had():
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            program = env.served
            assert isinstance(program, Program)
            database, digest = await program.sandbox.read("notes.db"), await program.sandbox.digest()
            await write(env, "tea")
            await program.sandbox.write("left", b"x")
            assert await program.sandbox.digest() != digest
            await env.reset(seed=0)
            assert await program.sandbox.read("notes.db") == database
            assert await program.sandbox.digest() == digest

    asyncio.run(run())


ACTIONS = (
    Action.call("goto", url="http://notes.test/"),
    Action.call("goto", url="http://notes.test/wrong"),
    Action.call("fill", ref="e2", text="tea"),
    Action.call("click_named", name="Add", role="button"),
    Action.call("click_named", name="Add at once", role="button"),
    Action.call("back"),
    Action.call("click", ref="e99"),
)


def some_action(step: Step, tools: Sequence[ToolSpec], rng: np.random.Generator) -> Action:
    return ACTIONS[int(rng.integers(len(ACTIONS)))]


@pytest.mark.slow
def test_somebodys_application_keeps_the_contract():
    async def run():
        async with make_backend("namespace") as backend:
            task = notes_tasks()[0]
            await check_env(
                lambda: make(ENVIRONMENT, task, backend=backend, browser="plain"),
                policy=some_action,
                turns=5,
                deadline_s=120,
            )

    asyncio.run(run())
    check_tasks(notes_tasks())


def test_a_fork_goes_on_from_a_page_that_cannot_be_loaded_again_and_neither_sees_the_other():
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            await write(env, "one", "Add at once")
            fork = await env.fork()
            try:
                one, other = await write(env, "two"), await write(fork, "two")
                assert (one.text, one.state_key) == (other.text, other.state_key)
                own = await write(fork, "three")
                assert "three" in own.text
                assert "three" not in (await env.step(Action.call("goto", url="http://notes.test/"))).text
            finally:
                await fork.close()

    asyncio.run(run())


def test_what_comes_out_otherwise_when_it_is_done_again_is_told():
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            await write(env, "x", "Dice")
            with pytest.raises(ReplayDiverged, match=r"the database of task 'notes/add' was restored as something"):
                await env.fork()
            await env.step(Action.call("goto", url="http://notes.test/"))
            fork = await env.fork()  # from that document on nothing is thrown again
            await fork.close()

    asyncio.run(run())


def test_snapshots_hold_what_they_need_and_let_go_of_it():
    async def run():
        async with playing() as (env, backend):
            await env.reset(seed=0)
            snapshot = await env.snapshot()
            for text in ("one", "two", "three"):
                await write(env, text)
            assert isinstance(env.served, Program)
            assert len(env.served._own) == 1
            assert "three" not in (await env.reset(seed=0, start=snapshot)).text
            assert "three" in (await write(env, "three")).text
            await env.release(snapshot)
            assert snapshot.sandbox is not None
            with pytest.raises(SnapshotGone):
                await backend.restore(snapshot.sandbox)
            (kept,) = env.served._own.values()
            await env.close()
            with pytest.raises(SnapshotGone):
                await backend.restore(kept)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("late", r"GET /late HTTP/1.1 was not answered within 3 s"),
        ("die", r"GET /die HTTP/1.1 was not answered: the connection ended"),
    ],
)
def test_an_application_that_hangs_or_dies_is_the_worlds_fault(path, says):
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            with pytest.raises(EnvironmentFailure, match=f"the web application 'notes' failed: .*{says}"):
                await env.step(Action.call("goto", url=f"http://notes.test/{path}"))
            assert "milk" in (await env.reset(seed=0)).text

    asyncio.run(run())


def test_an_error_that_the_application_answers_is_a_page():
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            assert "went wrong" in (await env.step(Action.call("goto", url="http://notes.test/wrong"))).text

    asyncio.run(run())


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (replace(NOTES, start=("python3", "notes_app.py", "no colours")), r"has ended with 1: no colours"),
        (replace(NOTES, start=("no-such-program",)), r"has ended with 127: .*no-such-program"),
        (replace(NOTES, start=("sleep", "60"), start_s=0.5), r"does not answer on port 8000 within 0.5 s"),
        (replace(NOTES, database="other.db"), r"the database 'other.db' of 'notes' .*cannot be read"),
    ],
)
def test_what_cannot_be_started_says_why(app, says):
    async def run():
        async with playing(app=app) as (env, _):
            with pytest.raises(EnvironmentFailure, match=says):
                await env.reset(seed=0)

    asyncio.run(run())


def test_wrong_applications_and_tasks_are_refused_at_once():
    for wrong, says in (
        ({"name": "No Name"}, "WebApp.name"),
        ({"start": "python3 app.py"}, "WebApp.start"),
        ({"start": ()}, "WebApp.start"),
        ({"database": ""}, "WebApp.database"),
        ({"port": 0}, "WebApp.port"),
        ({"answer_s": 0.0}, "WebApp.answer_s"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(NOTES, **wrong)
    with pytest.raises(ValueError, match="neither changes nor an answer"):
        web_task("idle", "Do nothing", world())
    wrong_sql = web_task("wrong", "?", world(), changes=[("INSERT INTO absent VALUES (1)", ())])
    empty = sqlite3.connect(":memory:")
    empty.execute("CREATE TABLE a (b)")
    database = Database(empty.serialize())
    with pytest.raises(ValueError, match=r"task 'wrong' cannot be made .* no such table: absent"):
        by_task(wrong_sql, database, "", None)
    database.close()
    idle = web_task("idle", "?", world(), changes=[("DELETE FROM a WHERE b = 7", ())])
    database = Database(empty.serialize())
    with pytest.raises(ValueError, match=r"task 'idle' change no row that counts"):
        by_task(idle, database, "", None)
    database.close()
    empty.close()
    with pytest.raises(ValueError, match=r"WebApp\.ignored is 'session'"):
        replace(NOTES, ignored="session")


@pytest.mark.slow
def test_programs_that_were_started_ahead_are_fresh_and_a_dead_one_is_not_taken():
    async def run():
        async with playing(ahead=1) as (env, backend):
            first = await env.reset(seed=0)
            assert isinstance(env.served, Program)
            sandboxes = [env.served.sandbox.id]
            (waiting,) = env.served._place.waiting
            await write(env, "tea")
            assert (await env.reset(seed=0)).text == first.text
            assert env.served.sandbox.id == (await waiting).sandbox.id != sandboxes[0]
            (waiting,) = env.served._place.waiting
            ready = await waiting
            await ready.sandbox.signal(ready.process, 9)
            assert (await env.reset(seed=0)).text == first.text
            assert env.served.sandbox.id != ready.sandbox.id
            other = make(ENVIRONMENT, notes_tasks()[0], backend=backend, browser="plain", ahead=1)
            (waiting,) = env.served._place.waiting
            await other.reset(seed=0)
            assert isinstance(other, WebPlay)
            assert isinstance(other.served, Program)
            assert other.served.sandbox.id == (await waiting).sandbox.id
            await other.close()

    asyncio.run(run())


async def listening(talk):
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_each_document_is_noted_on_a_connection_of_its_own_and_streams_hold_nobody():
    """What keeps its connection would have its second request pass unseen; a stream never ends."""

    async def talk(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"upgrade: websocket" in head:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            writer.write(await reader.readexactly(4))
        elif b"/events" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            await reader.read()
        else:
            assert b"connection: close" in head
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def run():
        noted = []

        async def note(path, cookies):
            noted.append((path, cookies))

        tap = Tap(note, 3600.0)
        path = await tap.open()
        server, port = await listening(talk)
        tap.target = "127.0.0.1", port
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as client:
            for number in range(3):
                headers = {"Accept": "text/html", "Cookie": f"a={number}"}
                answer = await client.get(f"http://a.test/{number}?q=1", headers=headers)
                assert answer.text == "ok"
            await client.get("http://a.test/data")  # no document
        assert noted == [(f"/{number}?q=1", f"a={number}") for number in range(3)]
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b"101" in await reader.readuntil(b"\r\n\r\n")
        await tap.quiet()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /events HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"data: 1")
        async with asyncio.timeout(60):
            await tap.quiet()
        writer.close()
        assert tap.crashed is None
        await tap.close()
        server.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", SITES)
def test_the_sites_are_played_alike_with_their_servers_in_sandboxes(site):
    """Each step of the expert, and of a fork in its middle, is the one that the site in this process gives."""

    async def run():
        async with make_backend("namespace") as backend:
            for kind in list(SITES[site].kinds)[:3]:
                task = web_sites_tasks(30, site=site, kind=kind)[0]
                envs = [make(SPEC, task, browser="plain"), make(SANDBOXED, task, backend=backend, browser="plain")]
                agent = expert(task)
                steps = [await env.reset(seed=0) for env in envs]
                turn = 0
                while steps[0].stop is None:
                    assert {one.text for one in steps} == {steps[0].text}
                    assert {one.state_key for one in steps} == {steps[0].state_key}
                    if turn == 2:
                        envs.append(await envs[1].fork())
                    action = (await agent.act(steps[0])).action
                    steps = [await env.step(action) for env in envs]
                    turn += 1
                assert [dict(one.channels) for one in steps] == [dict(steps[0].channels)] * len(steps)
                assert steps[0].reward == 1.0, (kind, steps[0].channels)
                for env in envs:
                    await env.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_site_in_a_sandbox_keeps_the_contract_in_chromium():
    async def run():
        async with make_backend("namespace") as backend:
            task = web_sites_tasks(30, site="shop", kind="buy")[0]
            await check_env(lambda: make(SANDBOXED, task, backend=backend), turns=4, deadline_s=120)

    asyncio.run(run())
