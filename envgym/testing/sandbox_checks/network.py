"""The network as far as a sandbox has any: ports forwarded from the host, and the way out that rules leave."""

import asyncio

from envgym.errors import SandboxDied
from envgym.sandbox import WARM_PYTHON, Sandbox, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check, Refused, raises

__all__ = ["CHECKS"]

_SERVER = """
import socket, sys, threading
def serve(connection):
    with connection:
        kind = connection.recv(1)
        if kind == b"e":  # echo until the end, then say so
            while data := connection.recv(1 << 16):
                connection.sendall(data)
            connection.sendall(b"!")
        elif kind == b"s":  # say something and end, though the other side has not
            connection.sendall(b"said")
try:
    listener = socket.create_server(("127.0.0.1", 0))
except OSError:
    sys.exit("no loopback")
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


async def _serve(sandbox: Sandbox) -> int:
    """Start the server inside; its port. Raises Refused where nothing can listen; then nothing is forwarded."""
    process = await sandbox.start([WARM_PYTHON, "-c", _SERVER])
    said = b""
    while not said.endswith(b"\n"):
        status = await sandbox.poll(process, wait_s=SLACK_S)
        if status.stderr == b"no loopback\n":
            await raises(ValueError, _enter(sandbox, 80), "forwarding where nothing can listen")
            raise Refused("nothing can listen inside, so that nothing is forwarded")
        assert status.running, f"a server inside goes on: {status}"
        said += status.stdout
    return int(said)


async def _enter(sandbox: Sandbox, port: int) -> None:
    async with sandbox.forward(port):
        pass


async def _talk(address: tuple[str, int], sent: bytes, *, end: bool = True) -> bytes:
    """Send, end, and read until the other side has ended too; b"" if the connection broke."""
    try:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(sent)
            if end:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), 4 * SLACK_S)
        finally:
            writer.close()
            await writer.wait_closed()
    except ConnectionError:
        return b""


async def _forwards(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        port = await _serve(sandbox)
        async with sandbox.forward(port) as address:
            assert address[0] == "127.0.0.1", f"a forward listens on the host's loopback only: {address}"
            large = bytes(range(256)) * 8192
            said = await _talk(address, b"e" + large)
            assert said == large + b"!", f"bytes arrive whole, and an end leaves the other way open: {len(said)}"
            assert await _talk(address, b"s", end=False) == b"said", "the inside may end first"
            talks = await asyncio.gather(*(_talk(address, b"e" + bytes([number]) * 9000) for number in range(8)))
            assert talks == [bytes([number]) * 9000 + b"!" for number in range(8)], "connections do not mix"
            assert (await sandbox.exec("echo beside")).stdout == b"beside\n", "commands run beside connections"
        await raises(OSError, asyncio.open_connection(*address), "connecting after the forward's end")
        async with sandbox.forward(1) as address:
            assert await asyncio.wait_for(_talk(address, b"e", end=False), SLACK_S) == b"", (
                "a connection that is refused inside is closed at once"
            )
        for wrong in (0, -1, 65536):
            try:
                sandbox.forward(wrong)
            except ValueError:
                continue
            raise AssertionError(f"port {wrong} must raise ValueError")


async def _forwards_and_states(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await _serve(sandbox)
    async with await backend.create(world) as sandbox:
        await sandbox.exec("echo one > f")
        before = await sandbox.digest()
        async with sandbox.forward(1) as address:
            await _talk(address, b"")
            snapshot = await sandbox.snapshot()
            assert not snapshot.partial, "a forward is no reason for partial"
            assert snapshot.digest == before, "nor is it part of the state"
            port = await _serve(sandbox)
            async with sandbox.forward(port) as second:
                reader, writer = await asyncio.open_connection(*second)
                writer.write(b"e1")
                assert await reader.readexactly(1) == b"1", "a forward works after a snapshot"
                beside = await sandbox.snapshot()
                assert beside.partial, "a live server is a reason for partial"
                writer.write(b"2")
                writer.write_eof()
                assert await reader.read() == b"2!", "a snapshot beside a live server leaves its connections alone"
                writer.close()
                await writer.wait_closed()
        await backend.release(snapshot)
        await backend.release(beside)


async def _forwards_end(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await _ended_forward(sandbox)


async def _ended_forward(sandbox: Sandbox) -> None:
    port = await _serve(sandbox)
    async with sandbox.forward(port) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"e1")
        assert await reader.readexactly(1) == b"1", "a connection is open"
        await sandbox.close()
        try:
            rest = await asyncio.wait_for(reader.read(), SLACK_S)
        except ConnectionError:
            rest = b""
        assert rest == b"", "connections end with their sandbox"
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        await raises(OSError, asyncio.open_connection(*address), "connecting after the sandbox's end")
    await raises(SandboxDied, sandbox.forward(80).__aenter__(), "a forward after the sandbox's end")


_FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
"""


async def _say_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    writer.close()
    await writer.wait_closed()


async def _egress(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as closed:
        assert await closed.egress_log() == (), "without rules there is nothing to decide"
    try:
        World(network=True, egress=("192.0.2.1",))
    except ValueError:
        pass
    else:
        raise AssertionError("rules and a network that is all open do not go together")
    async with await asyncio.start_server(_say_hello, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            sandbox = await backend.create(world.model_copy(update={"egress": (f"127.0.0.1:{port}",)}))
        except ValueError as error:
            raise Refused(str(error)) from error  # it keeps no rules, and says so
        async with sandbox:
            urls = (f"http://127.0.0.1:{port}/", "http://192.0.2.1/", f"http://localhost.example:{port}/")
            result = await sandbox.exec([WARM_PYTHON, "-c", _FETCH, *urls])
            lines = result.text.splitlines()
            assert lines[0] == "hello", f"what a rule names is reached: {result}"
            assert lines[1].startswith("403 "), f"what no rule names is refused: {result}"
            assert "192.0.2.1" in lines[1], f"and the reason can be read: {result}"
            assert lines[2].startswith("403 "), f"a name is not an address: {result}"
            for address in (f"127.0.0.1/{port}", "192.0.2.1/80"):
                result = await sandbox.exec(["bash", "-c", f"exec 9<>/dev/tcp/{address}"], timeout_s=5)
                assert not result.ok, f"there is no other way out: {address}"
            log = await sandbox.egress_log()
            assert [record.allowed for record in log] == [True, False, False], f"each decision is kept: {log}"
            assert log[0].received_bytes > 5, f"with what went through: {log}"


CHECKS: tuple[Check, ...] = (
    _egress,
    _forwards,
    _forwards_and_states,
    _forwards_end,
)
