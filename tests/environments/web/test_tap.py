"""The way to a program: who is let through, what is noted of a document, and whose failure is whose."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from envgym_environments.web.tap import Tap

DOCUMENT = b"GET /page HTTP/1.1\r\nAccept: text/html\r\n%s\r\n"


@asynccontextmanager
async def tapped(talk, note=None, answer_s=5.0):
    """A tap before a server whose connections are `talk(head, writer)`; and the documents that were noted."""
    noted = []

    async def noting(path, cookies):
        noted.append(path)

    serving = []

    async def serve(reader, writer):
        serving.append(asyncio.current_task())
        try:
            await talk(await reader.readuntil(b"\r\n\r\n"), writer)
        except asyncio.CancelledError:
            pass  # by the end below
        finally:
            writer.close()
            await writer.wait_closed()

    tap = Tap(note or noting, answer_s)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    tap.target = server.sockets[0].getsockname()
    await tap.open()
    try:
        yield tap, noted
    finally:
        await tap.close()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


async def ask(tap, head):
    """The status line of the answer."""
    reader, writer = await asyncio.open_unix_connection(await tap.open())
    writer.write(head)
    try:
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()


async def ok(head, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def unheard():
    """What the event loop was told of that nobody caught."""
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    return said


@pytest.mark.parametrize("head", [DOCUMENT % b"", b"POST /more HTTP/1.1\r\n\r\n"])
def test_without_a_program_the_answer_is_502_and_nobody_failed(head):
    async def run():
        said = unheard()
        async with tapped(ok) as (tap, noted):
            tap.target = None
            assert await ask(tap, head) == "HTTP/1.1 502 Bad Gateway"
            assert (noted, tap.crashed, said) == ([], None, [])

    asyncio.run(run())


def test_a_shut_door_lets_nobody_in_and_the_first_document_opens_one_that_is_ajar():
    async def run():
        async with tapped(ok) as (tap, noted):
            more = b"POST /more HTTP/1.1\r\n\r\n"
            tap.door.shut()
            assert "502" in await ask(tap, more)
            assert "502" in await ask(tap, DOCUMENT % b"")
            tap.door.ajar()
            assert "502" in await ask(tap, more)
            assert noted == []
            assert "200" in await ask(tap, DOCUMENT % b"")
            assert "200" in await ask(tap, more)
            assert (noted, tap.crashed) == (["/page"], None)

    asyncio.run(run())


def test_the_document_of_a_frame_is_none_that_is_noted():
    async def run():
        async with tapped(ok) as (tap, noted):
            await ask(tap, DOCUMENT % b"Sec-Fetch-Dest: iframe\r\n")
            assert noted == []
            await ask(tap, DOCUMENT % b"Sec-Fetch-Dest: document\r\n")
            assert noted == ["/page"]

    asyncio.run(run())


def test_what_is_noted_is_of_a_program_that_answers_nobody():
    async def run():
        under_way, seen = [], []

        async def talk(head, writer):
            under_way.append(head)
            await asyncio.sleep(0.2)
            under_way.remove(head)
            await ok(head, writer)

        async def note(path, cookies):
            seen.append(len(under_way))
            await asyncio.sleep(0.2)
            seen.append(len(under_way))

        async with tapped(talk, note) as (tap, _):
            first = asyncio.create_task(ask(tap, b"POST /more HTTP/1.1\r\n\r\n"))
            await asyncio.sleep(0.05)
            page = asyncio.create_task(ask(tap, DOCUMENT % b""))
            await asyncio.sleep(0.25)
            later = asyncio.create_task(ask(tap, b"POST /more HTTP/1.1\r\n\r\n"))
            assert ["200" in one for one in await asyncio.gather(first, page, later)] == [True] * 3
            assert seen == [0, 0]

    asyncio.run(run())


def test_one_late_answer_is_no_other_requests():
    async def run():
        async def talk(head, writer):
            await asyncio.sleep(60.0 if b"/late" in head else 0.0)
            await ok(head, writer)

        async with tapped(talk, answer_s=0.3) as (tap, _):
            assert "502" in await ask(tap, b"GET /late HTTP/1.1\r\n\r\n")
            assert "200" in await ask(tap, b"GET /healthy HTTP/1.1\r\n\r\n")
            assert "GET /late HTTP/1.1 was not answered within 0.3 s" in str(tap.crashed)

    asyncio.run(run())
