"""Whose program has the other end of a connection: other users of this host reach no sandbox through a forward."""

import asyncio
import os
import shutil
import socket
import subprocess

import pytest
from envgym_sandboxes import peer_user
from envgym_sandboxes.forward import Forward

pytestmark = pytest.mark.timeout(60)

PYTHON = shutil.which("python3", path="/usr/bin:/bin")
"""One that every user may start."""
ANOTHER = 54_321
STAYS = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
SAYS = f"{STAYS} s.sendall(b'hello'); s.settimeout(20); print(s.recv(10))"


def by(user, program, port):
    """A program of a user, which connects to a port."""
    return subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", program, str(port)], user=user, stdout=subprocess.PIPE, cwd="/"
    )


@pytest.fixture(params=["asked", "looked up"])
def way(request, monkeypatch):
    """Both ways to learn it."""
    if request.param == "looked up":

        def refused(*_):
            raise PermissionError("no such interface here")

        monkeypatch.setattr(peer_user, "_asked", refused)
    return request.param


def test_a_connection_of_this_user_is_ours_also_half_closed_and_one_that_is_gone_nobodys(way):
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with ours:
            assert peer_user.is_this_users(ours)
            other.shutdown(socket.SHUT_WR)
            assert peer_user.is_this_users(ours)
            other.close()
            assert not peer_user.is_this_users(ours)
        assert not peer_user.is_this_users(ours), "closed here, too"


def as_root():
    if os.getuid() != 0 or PYTHON is None:
        pytest.skip("only root can play another user, by a Python that every user may start: /usr/bin/python3")


def test_a_connection_of_another_user_is_not_ours_nor_one_that_it_has_left(way):
    as_root()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for program in (f"{STAYS} s.recv(1)", f"{STAYS} s.sendall(b'GET / HTTP/1.0')"):
            process = by(ANOTHER, program, server.getsockname()[1])
            ours, _ = server.accept()
            with ours:
                if "sendall" in program:
                    process.wait()
                assert not peer_user.is_this_users(ours)
            process.communicate()


def test_another_user_gets_nothing_through_a_forward_and_this_one_all():
    as_root()

    async def work():
        dialled = []

        class Echo:
            """A stream of the inside that says what it hears."""

            async def __aenter__(self):
                dialled.append(self)
                self.heard = asyncio.Queue()
                return self

            async def __aexit__(self, *_):
                return None

            async def receive(self):
                return await self.heard.get()

            async def send(self, data):
                await self.heard.put(data)

            def end(self):
                self.heard.put_nowait(b"")

        async def ready():
            return None

        async with Forward(80, ready=ready, dial=lambda port: Echo(), live=set()) as (_, port):
            said: list[bytes] = []
            for user in (ANOTHER, os.getuid()):
                process = by(user, SAYS, port)
                said.append((await asyncio.to_thread(process.communicate))[0])
            return said, len(dialled)

    said, dialled = asyncio.run(work())
    assert dialled == 1, "the other user's connection does not reach the sandbox at all"
    assert b"hello" not in said[0]
    assert b"hello" in said[1]
