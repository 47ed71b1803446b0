"""`check_sandbox`: the contract of sandbox backends, executable, for ours and for third parties' ones.

Each check is one paragraph of `envgym.sandbox`; a failed one raises AssertionError with the sentence that was
broken. It needs bash and coreutils inside, and uses nothing but the contract: no backend's internals.
"""

import asyncio
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from envgym.errors import EnvgymError, SandboxDied, SnapshotGone
from envgym.limits import Resources
from envgym.sandbox import WARM_PYTHON, Sandbox, SandboxBackend
from envgym.task import Tree, World

__all__ = ["check_sandbox"]

_RESOURCES = Resources(output_bytes=4096, command_s=20.0, pids=128)
_SLACK_S = 5.0

Check = Callable[[SandboxBackend, World], Awaitable[None]]


async def check_sandbox(make: Callable[[], SandboxBackend], *, world: World | None = None) -> list[str]:
    """Run every check against fresh backends; returns the names of those that ran.

    world: adds an image or environment that the backend needs; its workdir, files and setup are used as they are.
    Checks of isolation run when the backend's report claims network isolation. Raises AssertionError.
    """
    world = world or World(resources=_RESOURCES)
    world = world.model_copy(update={"files": world.files | {f"{world.workdir}/given.txt": "given\n"}})
    report = make().report()
    assert report.works, f"the backend must say that it works here before it is checked: {report}"
    checks = [*_CHECKS, *(_ISOLATION if any("network" in line for line in report.isolates) else ())]
    async with make() as backend:
        for check in checks:
            await check(backend, world)
    await _closed_backend(make(), world)
    return [check.__name__.strip("_") for check in checks] + ["closed_backend"]


# -- commands ----------------------------------------------------------------------------------------------------


async def _argv_commands(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        result = await sandbox.exec(["sh", "-c", "pwd; printf err >&2; exit 7"])
        assert result.exit_code == 7, f"the exit status is the process's: {result}"
        assert result.stdout.decode().strip() == world.workdir, f"an argv runs in the workdir: {result}"
        assert result.stderr == b"err", f"standard error is kept apart: {result}"
        assert not result.ok, "status 7 is not ok"
        result = await sandbox.exec(["sh", "-c", "kill -9 $$"])
        assert result.exit_code == -9, f"a signal is a negative status: {result}"
        assert not result.timed_out, "killing itself is not a time-out"
        result = await sandbox.exec(
            ["sh", "-c", "cat; printf '%s' \"$EXTRA\""], stdin=b"in\x00put", env={"EXTRA": "é"}
        )
        assert result.stdout == b"in\x00put\xc3\xa9", f"stdin is bytes, NUL included, and env is added: {result}"
        result = await sandbox.exec(["sh", "-c", 'printf %s "$EXTRA"'])
        assert result.stdout == b"", "the environment of one command is not the next one's"
        result = await sandbox.exec(["cat"])
        assert result.ok, f"no stdin given means an empty one, not a wait: {result}"
        result = await sandbox.exec(["no-such-program-anywhere"])
        assert result.exit_code == 127, f"a missing program is the model's fault, so it is data: {result}"
        await sandbox.exec(["mkdir", "-p", "below"])
        result = await sandbox.exec(["pwd"], cwd="below")
        assert result.stdout.decode().strip().endswith("/below"), f"cwd is relative to the workdir: {result}"
        result = await sandbox.exec([WARM_PYTHON, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "x"])
        assert (result.exit_code, result.stdout) == (3, b"['x']\n"), (
            f"a warm interpreter is an interpreter: {result}"
        )


async def _the_shell(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        result = await sandbox.exec("cat given.txt; false")
        assert (result.exit_code, result.stdout) == (1, b"given\n"), (
            f"a string runs in the workdir's shell: {result}"
        )
        await sandbox.exec("mkdir -p deep && cd deep; plain=1; export shared='two words'; list=(a 'b c')")
        await sandbox.exec("greet() { echo \"hello $1\"; }; alias ll='echo listed'; set -o noclobber; umask 027")
        result = await sandbox.exec('basename "$PWD"; echo "$plain:$shared:${list[1]}"; greet you; umask')
        assert result.stdout == b"deep\n1:two words:b c\nhello you\n0027\n", f"shell state survives: {result}"
        result = await sandbox.exec(["sh", "-c", 'basename "$PWD"; echo "$shared"'])
        assert b"deep" not in result.stdout, f"an argv is not run in the shell's directory: {result}"
        assert b"two words" not in result.stdout, f"an argv has the world's environment, not the shell's: {result}"
        result = await sandbox.exec("exit 5")
        assert result.exit_code == 5, f"leaving the shell is the command's status: {result}"
        result = await sandbox.exec('greet again; basename "$PWD"')
        assert result.stdout == b"hello again\ndeep\n", f"the next shell starts from the last state: {result}"
        result = await sandbox.exec('cat; echo "if" (')
        assert result.exit_code != 0, f"a syntax error is a status, not the shell's end: {result}"
        result = await sandbox.exec("cat", stdin=b"to the shell")
        assert result.stdout == b"to the shell", f"a shell command may have stdin: {result}"
        result = await sandbox.exec("printf 'héllo\\n'; printf '%s' '\\'")
        assert result.stdout == "héllo\n\\".encode(), f"commands are passed unchanged: {result}"


async def _output(backend: SandboxBackend, world: World) -> None:
    limit = world.resources.output_bytes
    async with await backend.create(world) as sandbox:
        count = limit * 50
        result = await sandbox.exec(["sh", "-c", f"printf first; head -c {count} /dev/zero; printf last"])
        assert len(result.stdout) == limit, f"{limit} bytes are kept, not {len(result.stdout)}"
        assert result.stdout.startswith(b"first"), "the head of a long output is kept"
        assert result.stdout.endswith(b"last"), "the tail of a long output is kept"
        assert result.lost_bytes[0] == count + 9 - limit, f"lost bytes are counted: {result.lost_bytes}"
        result = await sandbox.exec(["printf", "\\377\\000\\376"])
        assert result.stdout == b"\xff\x00\xfe", f"output is bytes as written: {result}"
        assert "\ufffd" in result.text, "invalid UTF-8 is replaced in text"


async def _deadlines(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        began = time.monotonic()
        tree = (
            "echo early; setsid sh -c 'echo $$ > one; sleep 97 & echo $! > two; wait' & echo $$ > three; sleep 97"
        )
        result = await sandbox.exec(["sh", "-c", tree], timeout_s=0.5)
        assert result.timed_out, f"a deadline is reported: {result}"
        assert result.exit_code is None, f"a command killed at its deadline has no status: {result}"
        assert result.stdout == b"early\n", f"what was written before the deadline is kept: {result}"
        for stuck in ("while :; do :; done", "sleep 97; echo no", "trap '' TERM INT; sleep 97 & wait"):
            await sandbox.exec("kept=yes")
            result = await sandbox.exec(f"lost=1; {stuck}", timeout_s=0.5)
            assert result.timed_out, f"a stuck shell meets its deadline: {stuck!r} {result}"
            result = await sandbox.exec('echo "$kept"')
            assert result.stdout == b"yes\n", f"the shell goes on from its last state after {stuck!r}: {result}"
        assert time.monotonic() - began < 4 * 0.5 + 2 * _SLACK_S, "a deadline ends a command when it says"
        result = await sandbox.exec(
            "for f in one two three; do kill -0 $(cat $f) 2>/dev/null && echo $f; done; true"
        )
        assert result.stdout == b"", f"the whole process tree is killed at a deadline, sessions included: {result}"


# -- files -------------------------------------------------------------------------------------------------------


async def _files(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        assert await sandbox.read("given.txt") == b"given\n", "the world's files are there"
        assert await sandbox.read(f"{world.workdir}/given.txt") == b"given\n", "an absolute path is the world's"
        await sandbox.write("new/deep/file", b"\x00\xff")
        assert await sandbox.read("new/deep/file") == b"\x00\xff", "a file is bytes; its parents are made"
        await sandbox.write("new/deep/file", b"")
        assert await sandbox.read("new/deep/file") == b"", "writing replaces the content"
        result = await sandbox.exec(["sh", "-c", "stat -c %a new/deep/file; chmod 755 new/deep/file"])
        assert result.stdout == b"644\n", f"a new file has mode 0644: {result}"
        await sandbox.write("new/deep/file", b"x")
        result = await sandbox.exec(["stat", "-c", "%a", "new/deep/file"])
        assert result.stdout == b"755\n", f"a file that exists keeps its mode: {result}"
        await _raises(FileNotFoundError, sandbox.read("absent"), "reading what is not there")
        await _raises(IsADirectoryError, sandbox.read("new"), "reading a directory")
        await _raises(IsADirectoryError, sandbox.write("new", b""), "writing onto a directory")


async def _transfers(backend: SandboxBackend, world: World) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, target = _tree_to_send(scratch), Path(scratch, "target")
        async with await backend.create(world) as sandbox:
            await sandbox.put(str(source), "arrived")
            result = await sandbox.exec(["./arrived/link"])
            assert result.stdout == b"ran\n", f"put keeps modes and symlinks: {result}"
            await sandbox.exec(["ln", "-s", "/etc", "arrived/outside"])
            await sandbox.get("arrived", str(target))
            _check_arrival(source, target)
            await sandbox.get("arrived/large", str(target / "single"))
            _check_content(target / "single", bytes(range(256)) * 10_000, "get copies a single file")
            await sandbox.put(str(source / "large"), "single")
            assert len(await sandbox.read("single")) == 2_560_000, "put copies a single file"
            await _raises(FileNotFoundError, sandbox.get("absent", str(target / "no")), "getting what is not there")
            await _raises(FileNotFoundError, sandbox.put(str(source / "absent"), "no"), "putting what is not there")


async def _transfers_at_once(backend: SandboxBackend, world: World) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        sources = [Path(scratch, name) for name in ("a", "b")]
        for source in sources:
            for number in range(8):
                (source / str(number)).mkdir(parents=True)
                (source / str(number) / "file").write_text(f"{source.name}{number}")
        async with await backend.create(world) as sandbox:
            await asyncio.gather(*(sandbox.put(str(source), f"to-{source.name}") for source in sources))
            for source in sources:
                result = await sandbox.exec(["sh", "-c", f"cat to-{source.name}/*/file"])
                wanted = "".join(f"{source.name}{number}" for number in range(8)).encode()
                assert result.stdout == wanted, f"transfers at the same time are each whole: {result}"
            await asyncio.gather(*(sandbox.get(f"to-{name}", f"{scratch}/back-{name}") for name in ("a", "b")))
        for source in sources:
            back = Path(scratch, f"back-{source.name}/7/file")
            _check_content(back, f"{source.name}7".encode(), "transfers at the same time are each whole")


def _tree_to_send(scratch: str) -> Path:
    source = Path(scratch, "source")
    (source / "inner").mkdir(parents=True)
    (source / "inner/program").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "inner/program").chmod(0o755)
    (source / "link").symlink_to("inner/program")
    (source / "large").write_bytes(bytes(range(256)) * 10_000)
    return source


def _check_arrival(source: Path, target: Path) -> None:
    _check_content(target / "large", (source / "large").read_bytes(), "get brings files back whole")
    assert (target / "link").is_symlink(), "get copies symlinks as symlinks"
    assert (target / "outside").is_symlink(), "a symlink out of the tree is copied, not followed"


def _check_content(path: Path, content: bytes, sentence: str) -> None:
    assert path.read_bytes() == content, sentence


def _plant(scratch: str) -> Path:
    path = Path(scratch, "package/module")
    path.parent.mkdir()
    path.write_text("original")
    return path


async def _trees(backend: SandboxBackend, world: World) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        planted_file = _plant(scratch)
        tree = Tree(source=scratch, target=f"{world.workdir}/tree")
        planted = world.model_copy(update={"trees": (tree,), "setup": (*world.setup, "echo made > by-setup")})
        async with await backend.create(planted) as sandbox:
            assert await sandbox.read("by-setup") == b"made\n", "set-up is part of the base state"
            result = await sandbox.exec("echo changed > tree/package/module && rm given.txt")
            assert result.ok, f"a tree can be changed inside: {result}"
            diff = {path.removeprefix(world.workdir): content for path, content in (await sandbox.diff()).items()}
            assert diff == {"/tree/package/module": b"changed\n", "/given.txt": None}, (
                f"a diff says what changed: {diff}"
            )
        _check_content(planted_file, b"original", "a tree's source is never written to")
        async with await backend.create(planted) as sandbox:
            assert await sandbox.read("tree/package/module") == b"original", "a new sandbox is in the base state"
            assert await sandbox.diff() == {}, "nothing was written since the world was made"


# -- states ------------------------------------------------------------------------------------------------------


async def _forks(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as parent:
        await parent.exec("mkdir d && cd d && echo one > f; v='a b'; g() { echo \"g $v\"; }; rm ../given.txt")
        async with await parent.fork() as child, await parent.fork() as sibling:
            for sandbox in (parent, child, sibling):
                result = await sandbox.exec('cat f; g; basename "$PWD"; ls ..')
                assert result.stdout == b"one\ng a b\nd\nd\n", f"a fork continues files and shell alike: {result}"
            await child.exec("echo child > f; v=child; touch new")
            await parent.exec("echo parent > f; v=parent")
            result = await sibling.exec("cat f; g; ls")
            assert result.stdout == b"one\ng a b\nf\n", f"nothing done in a fork is visible in a sibling: {result}"
            result = await parent.exec("cat f; g; ls")
            assert result.stdout == b"parent\ng parent\nf\n", (
                f"nothing done in a fork is visible in its parent: {result}"
            )
            async with await child.fork() as grandchild:
                result = await grandchild.exec("cat f; g; ls")
                assert result.stdout == b"child\ng child\nf\nnew\n", f"a fork of a fork continues it: {result}"
        result = await parent.exec("cat f")
        assert result.stdout == b"parent\n", f"a fork's end leaves its parent alone: {result}"


async def _snapshots(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.exec("echo one > f; v=1")
        before = await sandbox.digest()
        snapshot = await sandbox.snapshot()
        assert not snapshot.partial, "a snapshot without background processes is whole"
        assert snapshot.digest == before == await sandbox.digest(), "a snapshot does not change the state's digest"
        await sandbox.exec("echo two > f; v=2; rm given.txt")
        assert await sandbox.digest() != before, "other content, other digest"
        await backend.retain(snapshot)
        await backend.release(snapshot)
        for _ in range(2):
            async with await backend.restore(snapshot) as again:
                result = await again.exec('cat f given.txt; echo "$v"')
                assert result.stdout == b"one\ngiven\n1\n", f"a restored state is the very state: {result}"
                assert await again.digest() == before, "a restored state has the snapshot's digest"
        result = await sandbox.exec('cat f; echo "$v"')
        assert result.stdout == b"two\n2\n", f"restoring leaves the sandbox alone: {result}"
        await backend.release(snapshot)
        await _raises(SnapshotGone, backend.restore(snapshot), "restoring what was released")
        await _raises(SnapshotGone, backend.release(snapshot), "releasing once too often")
    async with await backend.create(world) as other:
        await other.exec("echo one > f")
        assert await other.digest() == before, "the same writes give the same digest"


async def _background(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.exec("sleep 97 & echo started > f; echo $! > pid")
        snapshot = await sandbox.snapshot()
        assert snapshot.partial, "a snapshot beside background processes is marked partial"
        result = await sandbox.exec("kill -0 $(cat pid)")
        assert result.ok, f"a snapshot does not end background processes: {result}"
        async with await backend.restore(snapshot) as again:
            assert await again.read("f") == b"started\n", "a partial snapshot has the files"
        await backend.release(snapshot)


# -- the end -----------------------------------------------------------------------------------------------------


async def _closing(backend: SandboxBackend, world: World) -> None:
    sandbox = await backend.create(world)
    running = asyncio.ensure_future(sandbox.exec(["sleep", "97"]))
    await sandbox.exec(["true"])
    await sandbox.close()
    await sandbox.close()
    await _raises(SandboxDied, running, "a command in a sandbox that was closed")
    await _raises(SandboxDied, sandbox.exec(["true"]), "a command after close")
    await _raises(SandboxDied, sandbox.read("given.txt"), "reading after close")
    await _raises(SandboxDied, sandbox.snapshot(), "a snapshot after close")


async def _wrong_use(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await _raises(ValueError, sandbox.exec([]), "an empty argv")
        await _raises(ValueError, sandbox.exec("echo \0"), "a NUL in a shell command")
        await _raises(ValueError, sandbox.exec(["true"], timeout_s=0), "a deadline of zero")
        assert (await sandbox.exec(["true"])).ok, "wrong use does not break a sandbox"


async def _no_network(backend: SandboxBackend, world: World) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        async with await backend.create(world) as sandbox:
            result = await sandbox.exec(["bash", "-c", f"exec 9<>/dev/tcp/127.0.0.1/{port}"], timeout_s=5)
            assert not result.ok, "the host's loopback cannot be reached"
            result = await sandbox.exec(["bash", "-c", "exec 9<>/dev/tcp/198.51.100.1/80"], timeout_s=5)
            assert not result.ok, "no address outside can be reached"
            assert not result.timed_out, "there is no route, so that nothing waits for one"


async def _no_privileges(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        result = await sandbox.exec(["sh", "-c", "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"])
        values = dict(line.split(":\t") for line in result.stdout.decode().splitlines())
        assert int(values["CapEff"], 16) == 0, f"there are no capabilities inside: {values}"
        assert values["NoNewPrivs"] == "1", f"no program gains privileges: {values}"
        result = await sandbox.exec(["cat", "/etc/shadow"])
        assert not result.ok, "the host's secrets are not there"


async def _closed_backend(backend: SandboxBackend, world: World) -> None:
    async with backend:
        sandbox: Sandbox = await backend.create(world)
        snapshot = await sandbox.snapshot()
    await _raises(SandboxDied, sandbox.exec(["true"]), "a command after the backend's end")
    await _raises(EnvgymError, backend.create(world), "creating after the backend's end")
    await _raises(EnvgymError, backend.restore(snapshot), "restoring after the backend's end")
    await backend.close()
    assert isinstance(backend.reap(), list), "reap says what it removed"


async def _raises(kind: type[BaseException], awaitable: Awaitable[object], what: str) -> None:
    try:
        result = await awaitable
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must raise {kind.__name__}; it gave {result!r}")


_CHECKS: tuple[Check, ...] = (
    *(_argv_commands, _the_shell, _output, _deadlines, _files, _transfers, _transfers_at_once),
    *(_trees, _forks, _snapshots, _background, _closing, _wrong_use),
)
_ISOLATION: tuple[Check, ...] = (_no_network, _no_privileges)
