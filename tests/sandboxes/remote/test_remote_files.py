"""What travels: directories of worlds, files, results and errors; and what a lying peer can do with them."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.remote import RemoteBackend, SandboxServer, ServerBounds
from envgym_sandboxes.remote.connection import Connection
from envgym_sandboxes.remote.faults import fault_from_json, fault_to_json
from envgym_sandboxes.remote.results import diff_from_pieces, diff_to_pieces, result_from_json, result_to_json
from envgym_sandboxes.remote.trees import digest_tree, tree_pieces
from envgym_sandboxes.state import default_root
from hypothesis import given
from hypothesis import strategies as st

from envgym import errors
from envgym.errors import Boundary, DeadlineExceeded, EnvgymError, InfrastructureFailure
from envgym.sandbox import ExecResult
from envgym.task import Tree, World
from envgym.testing.fakes import FakeBackend

pytestmark = pytest.mark.timeout(60)
TOKEN = "t" * 32


def plant(top):
    (top / "package/deep").mkdir(parents=True)
    (top / "package/module.py").write_text("x = 1\n")
    (top / "package/run").write_text("#!/bin/sh\necho ran\n")
    (top / "package/run").chmod(0o755)
    (top / "package/large").write_bytes(os.urandom(3 << 20))
    (top / "link").symlink_to("package/run")
    (top / "away").symlink_to("/etc/passwd")
    os.utime(top / "package/module.py", (1_000_000_000, 1_000_000_000))
    (top / "package/deep").chmod(0o555)
    os.utime(top / "package/deep", (1_100_000_000, 1_100_000_000))
    return top


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_worlds_directories_travel_whole_and_once(served, run, tmp_path):
    source = plant(tmp_path / "source")
    world = World(trees=(Tree(source=str(source), target="/work/tree"),))
    show = (
        "stat -c '%n %a %F %s' tree tree/* tree/package/*; stat -c %Y tree/package/module.py tree/package/deep; "
        "readlink tree/away; ./tree/link; md5sum < tree/package/large"
    )

    async def main(make):
        async with served.client() as client:
            sent = []
            for _ in range(2):
                async with await client.create(world) as sandbox:
                    sent.append((await sandbox.exec(show)).text)
            snapshot = await sandbox_of(client, world)
            async with await client.restore(snapshot) as again:
                assert again.world == world
        async with served.client() as client, await client.create(world) as sandbox:
            sent.append((await sandbox.exec(show)).text)
        async with make() as here, await here.create(world) as sandbox:
            assert {*sent, (await sandbox.exec(show)).text} == {sent[0]}
        assert "1000000000" in sent[0]
        assert "ran" in sent[0]

    async def sandbox_of(client, world):
        async with await client.create(world) as sandbox:
            return await sandbox.snapshot()

    run(main(lambda: NamespaceBackend(root=tmp_path / "here")))


def server_and_client(backend, **bounds):
    server = SandboxServer(backend, TOKEN, bounds=ServerBounds(**bounds))

    class Both:
        async def __aenter__(self):
            await server.__aenter__()
            self.client = RemoteBackend(server.address, token=TOKEN)
            return server, self.client

        async def __aexit__(self, *_):
            await self.client.close()
            await server.__aexit__(None, None, None)

    return Both()


def test_a_tree_is_kept_while_a_session_uses_it_and_goes_when_there_is_no_room(run, tmp_path):
    async def main():
        async with server_and_client(FakeBackend(), tree_bytes=0) as (server, first):
            kept = lambda: sorted(path.name for path in server._trees._folder.iterdir())  # noqa: E731
            for name in ("a", "b"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "file").write_text(name)
            worlds = [World(trees=(Tree(source=str(tmp_path / name), target="/work"),)) for name in ("a", "b")]
            digests = [digest_tree(str(tmp_path / name)) for name in ("a", "b")]
            await first.create(worlds[0])
            async with RemoteBackend(server.address, token=TOKEN) as second:
                await second.create(worlds[0])
                await second.create(worlds[1])
                assert kept() == sorted(digests), "both are in use"
            async with RemoteBackend(server.address, token=TOKEN) as third:
                (tmp_path / "c").mkdir()
                await third.create(World(trees=(Tree(source=str(tmp_path / "c"), target="/work"),)))
            assert digests[0] in kept(), "the first client still uses it"
            assert digests[1] not in kept(), "nobody does"

    run(main())


@contextlib.asynccontextmanager
async def link_of(server):
    connection = Connection(server.address, TOKEN, None, 5)
    try:
        yield await connection.link()
    finally:
        await connection.close()


async def sent(link, op, arguments, pieces):
    async with link.call(op, arguments) as call:
        for head, body in pieces:
            await call.send(head, body)
        await call.end_input()
        await call.result


def test_a_client_cannot_name_a_directory_of_the_server(run):
    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server, link_of(server) as link:
            for source in ("/etc", "..", "", "0" * 64, "../../etc"):
                text = World(trees=(Tree(source=source, target="/work"),)).model_dump_json().encode()
                with pytest.raises(ValueError, match="no tree"):
                    await link.ask("create", {}, text)

    run(main())


ROOT = {"path": [], "kind": "directory", "mode": 0o755, "mtime": 0}
FILE = {"kind": "file", "mode": 0o644, "first": True, "last": True, "mtime": 0}
ESCAPES = [
    [(ROOT, b""), (FILE | {"path": ["..", "escaped"]}, b"x")],
    [(ROOT, b""), (FILE | {"path": ["/tmp/escaped"]}, b"x")],
    [(ROOT, b""), ({"path": ["l"], "kind": "link", "target": "/tmp", "mode": 0o777, "mtime": 0}, b""),
     (FILE | {"path": ["l", "escaped"]}, b"x")],
    [({"path": [], "kind": "link", "target": "/etc/passwd", "mode": 0o777, "mtime": 0}, b"")],
    [(ROOT, b""), ({"path": ["d"], "kind": "device", "mode": 0o777, "mtime": 0}, b"")],
    [("not a piece", b"")],
    [({}, b"")],
]  # fmt: skip


@pytest.mark.parametrize("pieces", ESCAPES)
@pytest.mark.parametrize("op", ["put", "send_tree"])
def test_no_name_that_is_sent_leads_out_of_its_directory(run, op, pieces):
    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server, link_of(server) as link:
            made, _ = await link.ask("create", {}, World().model_dump_json().encode())
            arguments = {"sandbox": made["sandbox"], "target": "/work/x", "digest": "0" * 64}
            with pytest.raises((ValueError, OSError, EnvgymError)):
                await sent(link, op, arguments, pieces)
            found = [str(path) for path in server._state.path.rglob("*")]
            assert not [path for path in found if "escaped" in path or "arriving" in path], found
            assert not list(server._state.path.glob("files-*/*"))

    run(main())
    assert not Path("/tmp/escaped").exists()


def test_a_tree_that_is_not_what_its_name_says_is_not_kept(run, tmp_path):
    (tmp_path / "file").write_text("true")
    digest = digest_tree(str(tmp_path))

    async def main():
        async with SandboxServer(FakeBackend(), TOKEN) as server, link_of(server) as link:
            pieces = [(head, body.replace(b"true", b"lies")) for head, body in tree_pieces(str(tmp_path))]
            with pytest.raises(ValueError, match="other content"):
                await sent(link, "send_tree", {"digest": digest}, pieces)
            assert not (await link.ask("tree", {"digest": digest}))[0]["there"]

    run(main())


def test_a_trees_digest_is_of_all_that_travels(tmp_path):
    top = plant(tmp_path / "a")
    before = digest_tree(str(top))
    assert digest_tree(str(top)) == before
    changes = [
        lambda: (top / "package/module.py").write_text("x = 2\n"),
        lambda: os.utime(top / "package/module.py", (5, 5)),
        lambda: (top / "package/run").chmod(0o644),
        lambda: (top / "package/run").rename(top / "package/walk"),
        lambda: (top / "link").unlink(),
    ]
    seen = {before}
    for change in changes:
        change()
        seen.add(digest_tree(str(top)))
    assert len(seen) == len(changes) + 1


@pytest.mark.slow
@pytest.mark.namespaces
def test_large_files_travel_and_nobody_waits_for_them(served, run, tmp_path):
    large = os.urandom(24 << 20)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/large").write_bytes(large)

    async def main():
        async with served.client() as client, await client.create(World()) as sandbox:

            async def transfers():
                await sandbox.write("/work/w", large)
                assert await sandbox.read("/work/w") == large
                await sandbox.put(str(tmp_path / "source"), "/work/p")
                await sandbox.get("/work/p", str(tmp_path / "target"))
                assert (tmp_path / "target/large").read_bytes() == large
                result = await sandbox.exec(["md5sum"], stdin=large)
                assert result.stdout.split()[0] == (await sandbox.exec("md5sum < w")).stdout.split()[0]

            async with await client.create(World()) as other:
                moving, commands = asyncio.ensure_future(transfers()), 0
                while not moving.done():
                    assert (await other.exec(["true"])).ok
                    commands += 1
                await moving
                assert commands > 12, "behind six transfers there would be six"

    run(main())
    assert not list(default_root().glob(f"{served.process.pid}-*/files-*/*"))


def test_errors_cross_with_their_type():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EnvgymError)]
    for kind in kinds:
        if kind is not DeadlineExceeded:
            back = fault_from_json(fault_to_json(kind("why")))
            assert (type(back), str(back)) == (kind, "why")
    back = fault_from_json(fault_to_json(DeadlineExceeded("reset", 3.5, Boundary.AGENT)))
    assert isinstance(back, DeadlineExceeded)
    assert (back.what, back.limit_s, back.boundary) == ("reset", 3.5, Boundary.AGENT)
    back = fault_from_json(fault_to_json(FileNotFoundError(2, "No such file", "x")))
    assert isinstance(back, FileNotFoundError)
    assert back.errno == 2
    for kind in (ValueError, TypeError):
        assert type(fault_from_json(fault_to_json(kind("why")))) is kind
    assert isinstance(fault_from_json(fault_to_json(UnicodeDecodeError("utf-8", b"x", 0, 1, "why"))), ValueError)
    back = fault_from_json(fault_to_json(ZeroDivisionError("why")))
    assert type(back) is InfrastructureFailure
    assert "ZeroDivisionError: why" in str(back)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KINDS = st.sampled_from(["OSError", "DeadlineExceeded", "SandboxDied", "SystemExit", "os.system", "exec"])


@given(
    raw=JSON | st.fixed_dictionaries({"kind": KINDS}, optional={"errno": JSON, "message": JSON, "limit_s": JSON})
)
def test_whatever_is_said_of_an_error_it_is_an_ordinary_one(raw):
    error = fault_from_json(raw)
    assert isinstance(error, EnvgymError | OSError | ValueError | TypeError)


@given(
    code=st.none() | st.integers(-64, 255), out=st.binary(max_size=50), err=st.binary(max_size=50),
    lost=st.tuples(st.integers(0), st.integers(0)), timed_out=st.booleans(), cpu=st.none() | st.floats(0, 1e6),
)  # fmt: skip
def test_results_cross_unchanged(code, out, err, lost, timed_out, cpu):
    result = ExecResult(code, out, err, 0.5, timed_out=timed_out, lost_bytes=lost, cpu_s=cpu, peak_bytes=7)
    assert result_from_json(ExecResult, result_to_json(result), out + err) == result


@given(raw=st.dictionaries(st.sampled_from(["out", "lost_bytes", "exit_code", "wall_s"]), JSON), body=st.binary())
def test_a_result_that_is_none_is_said_to_be(raw, body):
    with contextlib.suppress(InfrastructureFailure):
        assert isinstance(result_from_json(ExecResult, raw, body), ExecResult)


NAMES = st.text(st.characters(codec=None), max_size=6)


@given(found=st.dictionaries(NAMES, st.none() | st.binary(max_size=20), max_size=6))
def test_diffs_cross_unchanged(found):
    assert diff_from_pieces(*diff_to_pieces(found)) == found


@pytest.mark.parametrize("index", [b"", b"[1]", b"{}x", b'[["a", "b"]]', b"[" * 100_000, b"\xff"])
def test_a_diff_that_is_none_is_said_to_be(index):
    with pytest.raises(InfrastructureFailure):
        diff_from_pieces(index, b"x")
