"""Applications of others: databases of any kind, pages that load themselves, sandboxes that die while they wait."""

import asyncio
import gc
import sqlite3
import weakref
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from envgym_environments.web.app import WebApp, web_environment, web_task
from envgym_environments.web.database import Database
from envgym_environments.web.play import WebPlay
from envgym_environments.web.program import Program

from envgym.errors import EnvironmentFailure, Misconfigured, SandboxDied
from envgym.messages import Action
from envgym.registry import make, make_backend
from envgym.task import TaskSet, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]

NOTES = WebApp("notes", ("python3", "notes_app.py"), "notes.db", answer_s=3.0)
MADE = "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL); INSERT INTO note (text) VALUES ('milk');"


def notes_tasks(name: str = "one") -> TaskSet:
    files = {
        "/work/name": name,
        "/work/notes_app.py": (Path(__file__).parent / "notes_app.py").read_text(),
        "/work/made.sql": MADE,
    }
    made = "import sqlite3; sqlite3.connect('notes.db').executescript(open('made.sql').read())"
    world = World(files=files, setup=(f'python3 -c "{made}"',))
    wanted = [("INSERT INTO note (text) VALUES (?)", ("tea",))]
    others = {"idle": "DELETE FROM note WHERE id = 7", "wrong": "INSERT INTO absent VALUES (1)"}
    return TaskSet(
        [
            web_task("notes/add", "Add a note: tea", world, changes=wanted),
            web_task("notes/first", "What is the first note?", world, answer="milk"),
            *(web_task(f"notes/{name}", "?", world, changes=[(sql, ())]) for name, sql in others.items()),
        ]
    )


@asynccontextmanager
async def playing(*, app: WebApp = NOTES, ahead: int = 0, number: int = 0):
    """An environment of a task of notes, with its backend."""
    made = web_environment("notes", app, notes_tasks)
    async with make_backend("namespace") as backend:
        env = make(made, notes_tasks()[number], backend=backend, browser="plain", ahead=ahead)
        assert isinstance(env, WebPlay)
        try:
            yield env, backend
        finally:
            await env.close()


async def write(env: WebPlay, text: str) -> None:
    """Add a note."""
    page = (await env.step(Action.call("goto", url="http://notes.test/"))).text
    field = next(line for line in page.splitlines() if 'textbox "Text"' in line)
    await env.step(Action.call("fill", ref=field.partition("[")[2].partition("]")[0], text=text))
    await env.step(Action.call("click_named", name="Add", role="button"))


def test_databases_of_others_are_read_whatever_is_in_them():
    made = sqlite3.connect(":memory:")
    made.execute('CREATE TABLE "a""b" (c)')
    made.execute('INSERT INTO "a""b" VALUES (CAST(? AS TEXT))', (b"caf\xe9",))
    made.execute("CREATE TABLE session (token)")
    made.execute("INSERT INTO session VALUES ('x')")
    database = Database(made.serialize(), ignored=("session",))
    try:
        assert database.rows() == {'a"b': {("caf\udce9",): 1}}
        before = database.digest()
        database.connection.execute("DELETE FROM session")
        assert database.digest() == before
        database.connection.execute('DELETE FROM "a""b"')
        assert database.digest() != before
    finally:
        database.close()
        made.close()


@pytest.mark.slow
def test_tables_that_are_ignored_are_not_graded_and_a_corrupt_file_is_the_worlds_fault():
    async def run():
        async with playing(number=1, app=replace(NOTES, ignored=("note",))) as (env, _):
            first = await env.reset(seed=0)
            await write(env, "tea")
            again = await env.step(Action.call("goto", url="http://notes.test/"))
            assert first.state_key.partition("/")[2] == again.state_key.partition("/")[2]
            assert (await env.step(Action.call("answer_text", text="milk"))).channels["state"] == 1.0
        async with playing() as (env, _):
            await env.reset(seed=0)
            assert isinstance(env.served, Program)
            whole = await env.served.sandbox.read("notes.db")
            await env.served.sandbox.write("notes.db", whole[:100] + b"\xff" * (len(whole) - 100))
            with pytest.raises(EnvironmentFailure, match=r"the database 'notes.db' of 'notes' .* cannot be read"):
                await env.step(Action.call("done"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("number", "app", "says"),
    [
        (2, NOTES, r"task 'notes/idle' change no row that counts"),
        (0, replace(NOTES, ignored=("note",)), r"task 'notes/add' change no row that counts"),
        (3, NOTES, r"task 'notes/wrong' cannot be made .* no such table: absent"),
    ],
)
def test_a_task_that_wants_nothing_or_what_cannot_be_is_refused_before_it_is_played(number, app, says):
    async def run():
        async with playing(number=number, app=app) as (env, _):
            for _again in range(2):
                with pytest.raises(Misconfigured, match=says):  # which ends a run
                    await env.reset(seed=0)
        async with playing() as (env, _):
            assert "Today" not in (await env.reset(seed=0)).text, "nobody knows whether the application says so"

    asyncio.run(run())


def test_a_closed_backend_is_held_by_no_program_that_waited():
    async def run():
        backend = make_backend("namespace")
        async with backend:
            env = make(web_environment("notes", NOTES, notes_tasks), notes_tasks()[0], backend=backend,
                       browser="plain", ahead=1)  # fmt: skip
            await env.reset(seed=0)
            assert isinstance(env, WebPlay)
            assert isinstance(env.served, Program)
            (begun,) = env.served._place.waiting
            running = await begun
            await env.close()
        with pytest.raises(SandboxDied):
            await running.lives()
        return weakref.ref(backend)

    backend = asyncio.run(run())
    gc.collect()
    assert backend() is None


def test_documents_that_nobody_goes_back_to_do_not_pile_up():
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            assert isinstance(env.served, Program)
            path = (await env.served.open()).path
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as client:
                for _ in range(4):
                    await client.get("http://notes.test/", headers={"Accept": "text/html"})
            assert len(env.served._own) == 2
            fork = await env.fork()  # the page that is shown is still there
            await fork.close()

    asyncio.run(run())


def test_a_waiting_program_whose_sandbox_died_is_not_taken():
    async def run():
        async with playing(ahead=1) as (env, _):
            first = await env.reset(seed=0)
            assert isinstance(env.served, Program)
            (waiting,) = env.served._place.waiting
            ready = await waiting
            await ready.sandbox.close()
            assert (await env.reset(seed=0)).text == first.text
            assert env.served.sandbox.id != ready.sandbox.id

    asyncio.run(run())


def test_programs_do_not_wait_for_ever_more_worlds(monkeypatch):
    monkeypatch.setattr("envgym_environments.web.program._MOST_WORLDS", 1)

    async def run():
        async with playing(ahead=1) as (env, backend):
            await env.reset(seed=0)
            assert isinstance(env.served, Program)
            (first,) = env.served._place.waiting
            ready = await first
            made = web_environment("notes", NOTES, notes_tasks)
            other = make(made, notes_tasks("two")[0], backend=backend, browser="plain", ahead=1)
            assert isinstance(other, WebPlay)
            try:
                await other.reset(seed=0)
                assert isinstance(other.served, Program)
                assert len(other.served._place.waiting) == 1
                assert not env.served._place.waiting
                with pytest.raises(SandboxDied):
                    await ready.sandbox.poll(ready.process)
            finally:
                await other.close()

    asyncio.run(run())


def test_a_page_that_cannot_be_closed_keeps_no_sandbox(monkeypatch):
    async def run():
        async with playing() as (env, _):
            await env.reset(seed=0)
            sandbox = env.served.sandbox

            async def fails():
                raise OSError("gone")

            monkeypatch.setattr(env._page, "close", fails)
            with pytest.raises(OSError, match="gone"):
                await env.close()
            with pytest.raises(SandboxDied):
                await sandbox.read("notes.db")

    asyncio.run(run())
