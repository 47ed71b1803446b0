"""Durable snapshots: they outlive the backend that took them, and travel in a file. A backend may refuse them."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envgym.errors import SnapshotGone, StoreCorrupt
from envgym.sandbox import SandboxBackend, SandboxSnapshot
from envgym.task import Tree, World
from envgym.testing.sandbox_checks.common import Refused, raises

__all__ = ["outlives"]


async def outlives(make: Callable[[], SandboxBackend], world: World) -> None:
    """What is kept by one backend is restored by the next one, and removed with its last reference."""
    with tempfile.TemporaryDirectory() as scratch:
        with _tree(scratch) as source:
            tree = Tree(source=source, target=f"{world.workdir}/tree")
            snapshot = await _taken(make, world.model_copy(update={"trees": (*world.trees, tree)}))
        await _restored(make, snapshot, Path(scratch, "exported"))  # the tree is gone by now


@contextmanager
def _tree(scratch: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=scratch) as source:
        Path(source, "planted").write_text("tree\n")
        yield source


async def _taken(make: Callable[[], SandboxBackend], world: World) -> SandboxSnapshot:
    """A durable snapshot of a backend that is closed by now. Raises Refused where there are none."""
    async with make() as backend, await backend.create(world) as sandbox:
        await sandbox.exec("echo kept > f; mkdir -p d; ln f d/g; rm given.txt; cd d; v=kept")
        try:
            snapshot = await sandbox.snapshot(durable=True)
        except ValueError as error:
            assert (await sandbox.exec("echo $v")).stdout == b"kept\n", "refusing changes nothing"
            assert await backend.snapshots() == [], "a backend without durable snapshots has none"
            raise Refused(str(error)) from error
        assert snapshot.durable, "a durable snapshot says so"
        assert snapshot.id in [one.id for one in await backend.snapshots()], "it is listed"
        await sandbox.exec("echo later > ../f")
        async with await backend.restore(snapshot) as again:
            assert await again.read("f") == b"kept\n", "it is restored by the backend that took it"
        await backend.retain(snapshot)
        await backend.release(snapshot)
        return snapshot


async def _restored(make: Callable[[], SandboxBackend], snapshot: SandboxSnapshot, file: Path) -> None:
    async with make() as backend:
        listed = [one for one in await backend.snapshots() if one.id == snapshot.id]
        assert listed == [snapshot], f"another backend lists it as it was: {listed}"
        await _look(backend, snapshot, "it is restored after the end of the backend that took it")
        await backend.export_snapshot(snapshot, str(file))
        await backend.release(snapshot)
        await raises(SnapshotGone, backend.restore(snapshot), "restoring a durable snapshot that was released")
        assert snapshot.id not in [one.id for one in await backend.snapshots()], "what was released is not listed"
    async with make() as backend:
        imported = await backend.import_snapshot(str(file))
        assert imported.durable, "an imported snapshot is durable"
        assert imported.digest == snapshot.digest, "and of the very state"
        await _look(backend, imported, "an imported snapshot is restored")
        await _refused(backend, file, imported)
        await backend.release(imported)


async def _look(backend: SandboxBackend, snapshot: SandboxSnapshot, what: str) -> None:
    async with await backend.restore(snapshot) as again:
        result = await again.exec(
            'cat ../f ../tree/planted; echo "$v"; [ ../f -ef g ] && [ ! -e ../given.txt ] && echo whole'
        )
        assert result.stdout == b"kept\ntree\nkept\nwhole\n", f"{what}: {result}"
        assert await again.digest() == snapshot.digest, f"{what}, with its digest"
        assert await again.diff(snapshot) == {}, f"{what}, without a difference"


async def _refused(backend: SandboxBackend, file: Path, imported: SandboxSnapshot) -> None:
    """A file that is not as it was written leaves nothing."""
    for damaged in _damaged(file):
        await raises(StoreCorrupt, backend.import_snapshot(str(damaged)), "importing a damaged file")
    await raises(FileNotFoundError, backend.import_snapshot(f"{file}.none"), "importing no file")
    alike = [one for one in await backend.snapshots() if one.digest == imported.digest]
    assert alike == [imported], f"what is refused leaves nothing: {alike}"


def _damaged(file: Path) -> Iterator[Path]:
    whole = file.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole + b"x", os.urandom(100), b""):
        file.write_bytes(content)
        yield file
