"""Backends whose sandboxes are copies of directories: everything that is the sandbox's own is part of its state."""

import pytest

pytestmark = [pytest.mark.timeout(60)]


def test_home_and_tmp_are_part_of_the_state_under_their_own_names(make_local, run, world):
    async def main():
        given = world.model_copy(update={"files": world.files | {"/home/agent/.rc": "rc\n", "/tmp/t": "t\n"}})
        async with make_local() as backend, await backend.create(given) as sandbox:
            result = await sandbox.exec(
                'cat ~/.rc "$TMPDIR/t"; echo one > ~/one; echo two > $TMPDIR/two; echo ~ $TMPDIR'
            )
            assert result.stdout == b"rc\nt\n/home/agent /tmp\n"
            assert await sandbox.read("/home/agent/one") == b"one\n"
            await sandbox.write("/tmp/three", b"3")
            assert await sandbox.diff() == {"/home/agent/one": b"one\n", "/tmp/two": b"two\n", "/tmp/three": b"3"}
            async with await sandbox.fork() as fork:
                result = await fork.exec("cat ~/one $TMPDIR/two; rm ~/one")
                assert result.stdout == b"one\ntwo\n"
                assert await fork.digest() != await sandbox.digest()
            assert await sandbox.read("/home/agent/one") == b"one\n"
            with pytest.raises(PermissionError, match="outside /work, /home/agent, /tmp"):
                await sandbox.write("/etc/envgym-test", b"")

    run(main())
