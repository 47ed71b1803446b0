"""The gate reads heads, and says where a server or a client makes no sense: refused, never a crash."""

import asyncio
import socket
from contextlib import asynccontextmanager

import h11
import pytest
from envgym_sandboxes.browser.gate import Gate
from envgym_sandboxes.browser.heads import answer_of, onward, request_of
from hypothesis import example, given
from hypothesis import strategies as st

from envgym.page import Folder, Tcp

GOOD = b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"
ODD = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [b"GET", b" ", b"http://a.test/", b"HTTP/1.1", b"200", b"OK", b"\r\n", b"\n", b"\0", b"Content-Length",
         b":", b"7", b"-1", b"1_0", b"Transfer-Encoding", b"chunked", b"CONNECT", b"a.test:80", b"http://[",
         b"//", b"%zz"]
    ),
)  # fmt: skip
HEADS = st.lists(ODD, max_size=14).map(b"".join).map(lambda some: some.replace(b"\r\n\r\n", b"") + b"\r\n\r\n")


def read_by_another(role, head, method=b"GET"):
    """What h11 understands of a head: the first event, with the names and values of its fields."""
    connection = h11.Connection(role)
    if role is h11.CLIENT:
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "a.test")]))
        connection.send(h11.EndOfMessage())
    connection.receive_data(head)
    return connection.next_event()


@given(HEADS)
@example(b"GET http://a.test/ HTTP/1.1\r\nX: a\nHost: b.test\r\n\r\n")
@example(b"POST http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n")
def test_a_request_is_understood_as_others_do_or_refused(head):
    try:
        request = request_of(head)
        written, length = onward(request, "/path")
    except ValueError:
        return
    assert written.count(b"\r\n\r\n") == 1
    assert not {b"\n", b"\r", b"\0"} & {one for line in written[:-4].split(b"\r\n") for one in (line[:0], *line)}
    if any(name == b"host" for name, _ in request.fields):
        event = read_by_another(h11.SERVER, written)
        assert (event.method.decode(), event.target) == (request.method, b"/path")
        assert dict(event.headers).get(b"content-length", b"0") == str(length).encode().zfill(1) or length == 0


@given(HEADS, st.sampled_from(["GET", "HEAD"]))
@example(b"\r\n\r\n", "GET")
@example(b"HTTP/1.1\r\n\r\n", "GET")
@example(b"HTTP/1.1 101 Now\r\n\r\n", "GET")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "GET")
def test_an_answer_is_understood_or_refused_and_never_a_crash(head, method):
    try:
        answer = answer_of(head, method)
    except ValueError:
        return
    event = read_by_another(h11.CLIENT, answer.head, method.encode())
    assert event.status_code == answer.status
    assert dict(event.headers)[b"connection"] == b"close"
    assert answer.length is None or answer.length >= 0


@asynccontextmanager
async def gated(sites):
    """A gate, and a way to say something to it and to read all that comes back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        gate = Gate(listener, sites)

        async def said(data):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(data)
            writer.write_eof()
            try:
                async with asyncio.timeout(20):
                    return await reader.read()
            finally:
                writer.close()

        yield gate, said
        await gate.close()


@given(st.lists(ODD, max_size=14).map(b"".join))
def test_whatever_is_said_to_a_gate_the_next_one_is_served(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()

    async def work():
        failed = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with gated({"http://a.test": Folder(str(folder))}) as (_, said):
            told = await said(data + b"\r\n\r\n")
            assert told == b"" or told.startswith(b"HTTP/1.1 ")
            assert (await said(GOOD)).startswith(b"HTTP/1.1 404 ")
        assert failed == []

    asyncio.run(work())


LIES = [
    b"", b"\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n",
    b"SSH-2.0-x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", b"HTTP/1.1 200 OK\r\nno field\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 Now\r\n\r\n", b"HTTP/1.1 100 Wait\r\n\r\n" * 30, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
]  # fmt: skip


def test_a_server_that_lies_is_refused_with_502_and_one_that_does_not_is_passed_on():
    async def work():
        failed, answers = [], [*LIES, b"HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nyes"]
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[told])
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with gated({"http://a.test": Tcp("127.0.0.1", port)}) as (_, said):
                for told in range(len(LIES)):
                    heard = await said(GOOD)
                    assert heard.startswith(b"HTTP/1.1 502 "), (answers[told][:60], heard[:60])
                    assert b"no response that can be understood" in heard
                told = len(LIES)
                assert await said(GOOD) == (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nye")
        assert failed == []

    asyncio.run(work())


@pytest.mark.parametrize(
    "head",
    [b"nonsense", b"GET / / HTTP/1.1", b"GET http://a.test/ HTTP/1.1\r\n: x",
     b"GET http://a.test/ HTTP/1.1\r\nX: \0",
     b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * 70_000],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_told_so(tmp_path, head):
    async def work():
        async with gated({"http://a.test": Folder(str(tmp_path))}) as (gate, said):
            assert (await said(head + b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
            assert gate.refused == []

    asyncio.run(work())
