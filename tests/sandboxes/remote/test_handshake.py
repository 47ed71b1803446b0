"""Who does not know the token gets nothing, on either side."""

import asyncio
import contextlib
import ssl
import subprocess

import pytest
from envgym_sandboxes import protocol
from envgym_sandboxes.remote import RemoteBackend, SandboxServer, ServerBounds
from envgym_sandboxes.remote.address import Address, is_loopback
from envgym_sandboxes.remote.handshake import make_token_file, read_token_file
from envgym_sandboxes.remote.tls import server_tls

from envgym.errors import EnvgymError, SandboxUnavailable
from envgym.task import World
from envgym.testing.fakes import FakeBackend

pytestmark = pytest.mark.timeout(30)
TOKEN, OTHER = "t" * 32, "u" * 32


async def frames(reader):
    """What a peer sends until it hangs up."""
    decoder, found = protocol.Decoder(), []
    while data := await reader.read(4096):
        found += [head for head, _body in decoder.feed(data)]
    return found


async def connected(address):
    where = Address.parse(address)
    return await asyncio.open_connection(where.host, where.port)


def test_both_sides_work_with_one_token_and_neither_with_two(run):
    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            async with (
                RemoteBackend(server.address, token=TOKEN) as client,
                await client.create(World()) as sandbox,
            ):
                await sandbox.write("/work/a", b"b")
                assert await sandbox.read("/work/a") == b"b"
            async with RemoteBackend(server.address, token=OTHER) as client:
                with pytest.raises(SandboxUnavailable, match="another token"):
                    await client.create(World())
            other = RemoteBackend(server.address, token=OTHER)
            assert not (await asyncio.to_thread(other.report)).works

    run(main())


def test_the_token_never_crosses_the_wire_and_a_proof_fits_one_connection(run):
    seen, proofs = bytearray(), []

    async def pass_on(server, reader, writer):
        far_reader, far_writer = await connected(server.address)

        async def pump(source, target):
            while data := await source.read(1 << 16):
                seen.extend(data)
                proofs.append(data)
                target.write(data)
            target.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            listener = await asyncio.start_server(lambda r, w: pass_on(server, r, w), "127.0.0.1", 0)
            port = listener.sockets[0].getsockname()[1]
            async with RemoteBackend(f"127.0.0.1:{port}", token=TOKEN) as client:
                await (await client.create(World())).close()
            listener.close()
            assert TOKEN.encode() not in seen
            reader, writer = await connected(server.address)
            writer.write(next(data for data in proofs if b'"proof"' in data and b'"wants"' in data))
            assert len(await frames(reader)) == 1, "a proof that was overheard proves nothing"
            writer.close()

    run(main())


def test_a_server_that_does_not_know_the_token_is_refused(run):
    async def impostor(reader, writer):
        writer.write(protocol.encode({"envgym-sandboxes": 1, "nonce": "00" * 32}))
        await reader.read(4096)
        writer.write(protocol.encode({"proof": "00" * 32, "session": "x", "backend": "namespace"}))
        await reader.read(4096)
        writer.close()

    async def main():
        listener = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with RemoteBackend(f"127.0.0.1:{port}", token=TOKEN) as client:
            with pytest.raises(SandboxUnavailable, match="does not know the token"):
                await client.create(World())
        listener.close()

    run(main())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        protocol.encode({"nonce": "00" * 32, "proof": "00" * 32, "wants": {}}),
        protocol.encode({"nonce": "é", "proof": 7}),
        protocol.encode({"id": 1, "op": "create", "with": {}, "end": True}, b"{}"),
        protocol.encode({"proof": "x" * 8000}),
        protocol.encode({}) + b"[" * 3000,
        b"\x00\x00\x08\x00\x00\x00\x00\x00" + b"[" * 2048,
    ],
)
def test_a_stranger_learns_one_nonce_and_is_hung_up_on(run, said):
    async def main():
        backend = FakeBackend()
        async with SandboxServer(backend, TOKEN) as server:
            reader, writer = await connected(server.address)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                got = await frames(reader)
                assert len(got) == 1
                assert set(got[0]) == {"envgym-sandboxes", "nonce"}
            writer.close()
            assert backend.started == 0
            async with RemoteBackend(server.address, token=TOKEN) as client:
                assert (await asyncio.to_thread(client.report)).works

    run(main())


def test_strangers_who_say_nothing_hold_few_connections_for_a_short_time(run):
    async def main():
        bounds = ServerBounds(handshake_s=20, strangers=4)
        async with SandboxServer(FakeBackend(), TOKEN, bounds=bounds) as server:
            silent = [await connected(server.address) for _ in range(12)]
            for reader, _writer in silent[:8]:  # the oldest go for the newest
                with contextlib.suppress(ConnectionError):
                    await frames(reader)
            async with RemoteBackend(server.address, token=TOKEN) as client:
                await (await client.create(World())).close()
            for _reader, writer in silent:
                writer.close()
        async with SandboxServer(FakeBackend(), TOKEN, bounds=ServerBounds(handshake_s=0.2)) as server:
            reader, writer = await connected(server.address)
            assert len(await frames(reader)) == 1, "a handshake that takes too long is over"
            writer.close()

    run(main())


def test_a_wrong_token_is_said_with_its_file_and_what_to_do(run, tmp_path):
    path = tmp_path / "token"
    make_token_file(path)

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            for options, place in (({"token_file": path}, str(path)), ({"token": OTHER}, "token=")):
                async with RemoteBackend(server.address, **options) as client:
                    with pytest.raises(SandboxUnavailable, match="copy the file") as met:
                        await client.create(World())
                assert type(met.value) is SandboxUnavailable
                assert place in str(met.value)
                assert server.address in str(met.value)
                assert place in (await asyncio.to_thread(client.report)).missing[0]

    run(main())


def test_a_client_without_tls_is_told_that_its_server_may_have_it(run, tmp_path):
    async def main():
        tls, bounds = server_tls(*certificate(tmp_path, "ours")), ServerBounds(handshake_s=0.5)
        async with SandboxServer(FakeBackend(), TOKEN, tls=tls, bounds=bounds) as server:
            for patience_s, said in ((5, "hung up"), (0.2, "no answer within 0.2 s")):
                client = RemoteBackend(server.address, token=TOKEN, patience_s=patience_s)
                with pytest.raises(SandboxUnavailable, match=f"{said}.*give tls_ca="):
                    await client.create(World())
                await client.close()

    run(main())


def test_the_number_of_clients_is_bounded_and_a_place_is_free_again(run):
    async def main():
        bounds = ServerBounds(connections=1)
        async with SandboxServer(FakeBackend(), TOKEN, bounds=bounds) as server:
            async with RemoteBackend(server.address, token=TOKEN) as first:
                await first.create(World())
                async with RemoteBackend(server.address, token=TOKEN) as second:
                    with pytest.raises(SandboxUnavailable, match="1 clients are connected, which is its bound"):
                        await second.create(World())
            async with RemoteBackend(server.address, token=TOKEN) as third:
                await third.create(World())

    run(main())


def certificate(folder, name):
    """A certificate of its own for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.slow
def test_over_tls_the_server_is_known_by_its_certificate(run, tmp_path):
    ours, theirs = certificate(tmp_path, "ours"), certificate(tmp_path, "theirs")

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN, tls=server_tls(*ours)) as server:
            async with RemoteBackend(server.address, token=TOKEN, tls_ca=ours[0]) as client:
                async with await client.create(World()) as sandbox:
                    await sandbox.write("/work/a", b"x" * 3_000_000)
                    assert len(await sandbox.read("/work/a")) == 3_000_000
                report = await asyncio.to_thread(client.report)
                assert "over TLS" in report.isolates[0]
            for options in ({"tls_ca": theirs[0]}, {}):
                async with RemoteBackend(server.address, token=TOKEN, patience_s=3, **options) as client:
                    with pytest.raises(SandboxUnavailable):
                        await client.create(World())

    run(main())


def test_nobody_with_a_certificate_of_his_own_can_stand_in_the_middle(run, tmp_path):
    """Both certificates are good to this client; the proof is of the one that it sees."""
    ours, middle = certificate(tmp_path, "ours"), certificate(tmp_path, "middle")
    both = tmp_path / "both.pem"
    both.write_bytes(ours[0].read_bytes() + middle[0].read_bytes())

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN, tls=server_tls(*ours)) as server:

            async def pass_on(reader, writer):
                where, trust = Address.parse(server.address), ssl.create_default_context(cafile=both)
                far_reader, far_writer = await asyncio.open_connection(where.host, where.port, ssl=trust)

                async def pump(source, target):
                    with contextlib.suppress(OSError):
                        while data := await source.read(1 << 16):
                            target.write(data)
                    target.close()

                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

            listener = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=server_tls(*middle)[0])
            address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with RemoteBackend(address, token=TOKEN, tls_ca=both) as client:
                with pytest.raises(SandboxUnavailable):
                    await client.create(World())
            listener.close()

    run(main())


def test_plain_text_beyond_this_machine_must_be_asked_for():
    for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "some.host:0"):
        with pytest.raises(ValueError, match="no TLS"):
            SandboxServer(FakeBackend(), TOKEN, listen=listen)
        SandboxServer(FakeBackend(), TOKEN, listen=listen, plain=True)
        with pytest.raises(ValueError, match="no TLS"):
            RemoteBackend(listen, token=TOKEN)
        RemoteBackend(listen, token=TOKEN, plain=True)


def test_a_token_that_can_be_guessed_or_read_by_others_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 32"):
        SandboxServer(FakeBackend(), "secret")
    with pytest.raises(ValueError, match="at least 32"):
        RemoteBackend("127.0.0.1:1", token="secret")
    with pytest.raises(ValueError, match="and not both"):
        RemoteBackend("127.0.0.1:1")
    path = tmp_path / "token"
    make_token_file(path)
    assert len(read_token_file(path)) == 64
    with pytest.raises(FileExistsError):
        make_token_file(path)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        RemoteBackend("127.0.0.1:1", token_file=path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has 0 characters"),
        (b"short", "has 5 characters"),
        (b"\xff\xfe" * 40, "no token file"),
        (b"x" * 100_000, "no token file"),
    ],
    ids=["nothing", "short", "no text", "long"],
)
def test_a_file_that_holds_no_token_is_named(tmp_path, content, said):
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=said) as met:
        RemoteBackend("127.0.0.1:1", token_file=path)
    assert str(path) in str(met.value)


def test_a_file_that_holds_no_certificate_is_named(tmp_path):
    text, absent = tmp_path / "text.py", tmp_path / "absent.pem"
    text.write_text("import ssl\n")
    ours, theirs = certificate(tmp_path, "ours"), certificate(tmp_path, "theirs")
    with pytest.raises(ValueError, match="holds no certificate") as met:
        RemoteBackend("127.0.0.1:1", token=TOKEN, tls_ca=text)
    assert str(text) in str(met.value)
    with pytest.raises(FileNotFoundError) as met:
        RemoteBackend("127.0.0.1:1", token=TOKEN, tls_ca=absent)
    assert met.value.filename == str(absent)
    for pair in ((text, ours[1]), (ours[0], text), (ours[0], theirs[1])):
        with pytest.raises(ValueError, match="are not a certificate") as met:
            server_tls(*pair)
        assert all(repr(str(path)) in str(met.value) for path in pair)
    for pair in ((absent, ours[1]), (ours[0], absent)):
        with pytest.raises(FileNotFoundError) as met:
            server_tls(*pair)
        assert met.value.filename == str(absent)


def test_an_address_or_a_token_that_is_no_text_is_said_to_be_none():
    for wrong in (7000, None, b"127.0.0.1:1"):
        with pytest.raises(TypeError, match="HOST:PORT"):
            SandboxServer(FakeBackend(), TOKEN, listen=wrong)
    with pytest.raises(TypeError, match="7000"):
        RemoteBackend(7000, token=TOKEN)
    with pytest.raises(TypeError, match="token"):
        RemoteBackend("127.0.0.1:1", token=b"t" * 32)


def test_where_it_cannot_be_listened_is_said(run):
    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server:
            with pytest.raises(OSError, match="in use; listen on another port") as met:
                await SandboxServer(FakeBackend(), TOKEN, listen=server.address).__aenter__()
            assert met.value.filename == server.address
        with pytest.raises(OSError, match="cannot listen there") as met:
            await SandboxServer(FakeBackend(), TOKEN, listen="nowhere.invalid:1", plain=True).__aenter__()
        assert met.value.filename == "nowhere.invalid:1"

    run(main())


def test_without_an_address_it_says_what_is_missing(run):
    backend = RemoteBackend()
    report = backend.report()
    assert not report.works
    assert "address" in report.missing[0]
    assert "serve" in report.fix[0]
    assert backend.reap() == []
    with pytest.raises(ValueError, match="address"):
        run(backend.create(World()))


def test_an_absent_server_is_said_and_not_waited_for(run):
    async def main():
        async with RemoteBackend("127.0.0.1:1", token=TOKEN) as client:
            with pytest.raises(SandboxUnavailable, match="envgym sandboxes serve"):
                await client.create(World())
        assert not client.report().works
        with pytest.raises(EnvgymError, match="closed"):
            await client.create(World())

    run(main())


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:70000", "::1:80", "[::1]"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="no address"):
        Address.parse(text)


def test_addresses_are_read_and_written():
    for text in ("127.0.0.1:80", "[::1]:80", "host.name:80"):
        assert str(Address.parse(text)) == text
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "10.0.0.1", "localhost.evil", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
