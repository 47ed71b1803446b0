"""States: forks, snapshots, and what they say of background processes."""

from envgym.errors import SnapshotGone
from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import Check, Refused, raises

__all__ = ["CHECKS"]


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
        await raises(SnapshotGone, backend.restore(snapshot), "restoring what was released")
        await raises(SnapshotGone, backend.release(snapshot), "releasing once too often")
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


_MAKE = r"""
mkdir -p kept/dir; cd kept
printf content > plain; chmod 640 plain; touch -d @1000000000.123456789 plain
ln -s ../given.txt link; ln plain other; mkfifo pipe; chmod 600 pipe
chmod 1777 dir; touch -d @1100000000 dir
printf x | dd of=sparse bs=1 seek=8000000 2>/dev/null
rm ../given.txt
cd dir
"""
_LOOK = r"""
cd ../../kept
for name in plain link other pipe dir sparse; do stat -c '%n %f %s %y %N' "$name"; done
[ plain -ef other ] && echo linked; [ -e ../given.txt ] || echo gone; cat plain other
[ "$(stat -c %b sparse)" -lt 1000 ] && echo sparse
cd dir
"""


async def _held(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        shell = "shopt -s nullglob; alias hi='echo hi'; f() { echo \"f $v\"; }; v='a b'; list=(1 2); set -u"
        assert (await sandbox.exec(f"{shell}\n{_MAKE}")).ok
        before = await sandbox.exec(_LOOK)
        assert before.stdout.count(b"\n") >= 9, f"the files are as they were made: {before}"
        snapshot = await sandbox.snapshot()
        await sandbox.exec("cd ../..; rm -rf kept; echo back > given.txt")
        async with await backend.restore(snapshot) as again:
            after = await again.exec(_LOOK)
            assert after.stdout == before.stdout, (
                f"a snapshot holds modes, times, holes, links of both kinds, pipes and deletions: {before} {after}"
            )
            result = await again.exec('hi; f; echo "${list[1]}"; basename "$PWD"; echo *.none; set +u')
            assert result.stdout == b"hi\nf a b\n2\ndir\n\n", f"and the shell's state: {result}"
        await backend.release(snapshot)


_SET = "import os; os.setxattr('marked', 'user.mark', b'kept'); os.setxattr('.', 'user.mark', b'also')"
_GET = "import os; print(os.getxattr('marked', 'user.mark'), os.getxattr('.', 'user.mark'), len(os.listxattr('.')))"


async def _attributes(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        await sandbox.write("marked", b"")
        plain = await sandbox.digest()
        if not (await sandbox.exec(["python3", "-c", _SET])).ok:
            raise Refused("no python3 inside, or files there have no extended attributes")
        assert await sandbox.digest() != plain, "other attributes, other digest"
        snapshot = await sandbox.snapshot()
        async with await backend.restore(snapshot) as again:
            result = await again.exec(["python3", "-c", _GET])
            assert result.stdout == b"b'kept' b'also' 1\n", f"a snapshot holds extended attributes: {result}"
        await backend.release(snapshot)


async def _since(backend: SandboxBackend, world: World) -> None:
    path = world.workdir.rstrip("/")
    async with await backend.create(world) as sandbox:
        await sandbox.exec("mkdir d; echo 1 > d/same; echo 1 > d/changed; echo 1 > d/gone; echo 1 > early")
        first = await sandbox.snapshot()
        assert await sandbox.diff(first) == {}, "nothing differs from a snapshot that was just taken"
        await sandbox.exec("echo 2 > d/changed; rm d/gone; ln -s same d/link; chmod 700 early; echo 1 > d/same")
        wanted = {f"{path}/d/changed": b"2\n", f"{path}/d/gone": None, f"{path}/d/link": b"same"}
        wanted[f"{path}/early"] = b"1\n"
        assert await sandbox.diff(first) == wanted, (
            "what differs is what is other, new or gone, not what was written"
        )
        second = await sandbox.snapshot()
        await sandbox.exec(
            "rm d/link; rm early; echo 1 > early; chmod 644 early; echo 1 > d/changed; echo 1 > d/gone"
        )
        assert await sandbox.diff(first) == {}, "a state that was come back to does not differ"
        found = await sandbox.diff(second)
        wanted = {f"{path}/d/changed": b"1\n", f"{path}/d/gone": b"1\n", f"{path}/d/link": None}
        assert found == wanted | {f"{path}/early": b"1\n"}, f"each snapshot can be compared with: {found}"
        async with await backend.create(world) as other:
            found = await other.diff(first)
            assert found.get(f"{path}/early", b"") is None, (
                f"a sandbox that never was there can be compared: {found}"
            )
        strange = world.model_copy(update={"env": world.env | {"OTHER": "1"}})
        async with await backend.create(strange) as other:
            await raises(ValueError, other.diff(first), "a diff since a snapshot of another world")
        foreign = first.model_copy(update={"backend": "elsewhere"})
        await raises(ValueError, sandbox.diff(foreign), "a diff since a snapshot of another backend")
        await backend.release(first)
        await backend.release(second)
        await raises(SnapshotGone, sandbox.diff(first), "a diff since a snapshot that was released")


CHECKS: tuple[Check, ...] = (
    _forks,
    _snapshots,
    _background,
    _held,
    _attributes,
    _since,
)
