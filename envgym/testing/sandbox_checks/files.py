"""Files and trees: reading, writing, transfers, and what a world brings along."""

import asyncio
import tempfile
from pathlib import Path

from envgym.sandbox import SandboxBackend
from envgym.task import Tree, World
from envgym.testing.sandbox_checks.common import Check, raises

__all__ = ["CHECKS"]


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
        await raises(FileNotFoundError, sandbox.read("absent"), "reading what is not there")
        await raises(IsADirectoryError, sandbox.read("new"), "reading a directory")
        await raises(IsADirectoryError, sandbox.write("new", b""), "writing onto a directory")


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
            await raises(FileNotFoundError, sandbox.get("absent", str(target / "no")), "getting what is not there")
            await raises(FileNotFoundError, sandbox.put(str(source / "absent"), "no"), "putting what is not there")


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
    (source / "large").chmod(0o444)  # of more than one piece, and not to be written to by whoever owns it
    return source


def _check_arrival(source: Path, target: Path) -> None:
    _check_content(target / "large", (source / "large").read_bytes(), "get brings files back whole")
    assert (target / "large").stat().st_mode & 0o777 == 0o444, "get keeps modes"
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


CHECKS: tuple[Check, ...] = (
    _files,
    _transfers,
    _transfers_at_once,
    _trees,
)
