"""Limits of what is written and carried: each bound holds, or the world that asks for it is refused by name."""

import errno
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from envgym.sandbox import Sandbox, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import Check, bounded, not_kept, raises

__all__ = ["CHECKS"]


async def _output_of_one_call(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        for command in ("printf 0123456789; printf abc >&2", ["sh", "-c", "printf 0123456789; printf abc >&2"]):
            result = await sandbox.exec(command, output_bytes=4)
            assert (result.stdout, result.stderr) == (b"0189", b"abc"), f"a call's own bound of output: {result}"
            assert result.truncated == (True, False), f"each output says whether it is whole: {result}"
            result = await sandbox.exec(command, output_bytes=10)
            assert result.truncated == (False, False), f"what fits is whole: {result}"
        for wrong in (0, -1):
            await raises(ValueError, sandbox.exec(["true"], output_bytes=wrong), f"output_bytes={wrong}")


async def _too_large(asking: Awaitable[object], what: str) -> None:
    met: OSError | None = None
    try:
        await asking
    except OSError as error:
        met = error
    assert met is not None, f"{what} beyond transfer_bytes must raise OSError"
    assert met.errno == errno.EFBIG, f"{what} beyond transfer_bytes is EFBIG: {met!r}"
    assert "transfer_bytes" in str(met), f"{what}: the error names the bound: {met}"


def _plant(tree: Path) -> None:
    tree.mkdir()
    for name in ("a", "b"):
        (tree / name).write_bytes(bytes(60_000))


def _size(tree: Path) -> int:
    return sum(path.stat().st_size for path in tree.iterdir())


async def _transfer_bytes(backend: SandboxBackend, world: World) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _plant(Path(scratch, "tree"))
        async with await bounded(backend, world, transfer_bytes=100_000) as sandbox:
            await sandbox.write("just", bytes(100_000))
            assert len(await sandbox.read("just")) == 100_000, "the bound itself is allowed"
            await _too_large(sandbox.write("more", bytes(100_001)), "write")
            await _too_large(sandbox.put(scratch, "tree"), "put")
            await sandbox.exec(["sh", "-c", "mkdir t; head -c 60000 /dev/zero > t/a; cp t/a t/b; cat t/* > big"])
            await _too_large(sandbox.read("big"), "read")
            await _too_large(sandbox.get("big", f"{scratch}/big"), "get")
            await _too_large(sandbox.get("t", f"{scratch}/t"), "get of a tree")
            arrived = _size(Path(scratch, "t"))
            assert arrived <= 100_000, f"no more than the bound arrives on the host, not {arrived} bytes"
            await sandbox.exec(["sh", "-c", "head -c 50000 /dev/zero > small"])
            assert len(await sandbox.read("small")) == 50_000, "a refused transfer breaks nothing"


async def _file_bytes(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, file_bytes=100_000) as sandbox:
        for command in ("head -c 200000 /dev/zero > big", ["sh", "-c", "head -c 200000 /dev/zero > big"]):
            result = await sandbox.exec(command)
            assert not result.ok, f"no file grows beyond file_bytes: {result}"
            assert len(await sandbox.read("big")) <= 100_000, "what was written stays within file_bytes"
        result = await sandbox.exec("head -c 90000 /dev/zero > one && cp one two && echo whole")
        assert result.stdout == b"whole\n", f"the bound is each file's own: {result}"
        await raises(OSError, sandbox.write("large", bytes(100_001)), "writing more than file_bytes")
        await raises(ValueError, sandbox.exec(["cat"], stdin=bytes(100_001)), "an input longer than file_bytes")


async def _inodes(backend: SandboxBackend, world: World) -> None:
    many = "i=0; while [ $i -lt 400 ]; do true > $0/f$i || break; i=$((i+1)); done; echo $i"
    async with await bounded(backend, world, inodes=200) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"mkdir d; {many}", "d"])
        made = int(result.stdout.split()[-1])
        assert 150 <= made <= 200, f"about 200 files can be made, not {made}: {result}"
        await sandbox.exec("cd d && rm f[5-9]*")
        async with await sandbox.fork() as fork:
            result = await fork.exec(["sh", "-c", f"mkdir e; {many}", "e"])
            made = int(result.stdout.split()[-1])
            assert made < 190, f"the files below a fork count, so that {made} more are too many: {result}"


_FILL = "i=0; while [ $i -lt $1 ]; do head -c 1048576 /dev/urandom > $0$i || exit 1; i=$((i+1)); done; echo all"


async def _filled(sandbox: Sandbox, name: str, megabytes: int) -> bool:
    """Whether so many files of 1 MiB each could be written."""
    result = await sandbox.exec(["sh", "-c", _FILL, name, str(megabytes)])
    return result.ok and result.stdout == b"all\n"


async def _disk_bytes(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, disk_bytes=8 << 20) as sandbox:
        if await _filled(sandbox, "a", 16):
            raise not_kept(backend, "disk_bytes", "16 files of 1 MiB are more than 8 MiB of disk")
        await sandbox.exec(["sh", "-c", "rm -f a*"])
        assert await _filled(sandbox, "b", 3), "what is within the bound can be written, once there is room again"
        async with await sandbox.fork() as fork:
            assert not await _filled(fork, "c", 7), "what lies below a fork counts"


async def _io_bytes_s(backend: SandboxBackend, world: World) -> None:
    """Only that it is taken: what a sandbox writes may lie in memory, and nothing inside tells."""
    async with await bounded(backend, world, io_bytes_s=64 << 20) as sandbox:
        assert (await sandbox.exec("true")).ok, "a sandbox with bounded devices works"


CHECKS: tuple[Check, ...] = (
    _output_of_one_call,
    _transfer_bytes,
    _file_bytes,
    _inodes,
    _disk_bytes,
    _io_bytes_s,
)
