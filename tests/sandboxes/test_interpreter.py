"""The interpreter in real sandboxes: the contract, and what ours promises beyond it."""

import asyncio
import base64
import json
import subprocess
import sys
import zlib

import pytest
from envgym_sandboxes import interpreter_server
from envgym_sandboxes.interpreter import open_interpreter
from envgym_sandboxes.pool import PoolBackend

import envgym
from envgym import registry
from envgym.errors import EnvironmentFailure, SandboxDied, SnapshotGone
from envgym.task import World
from envgym.testing.check_interpreter import check_interpreter

pytestmark = pytest.mark.timeout(120)

PNG = b"\x89PNG\r\n\x1a\n"


async def contract(backend, world):
    async with backend, await backend.create(world) as sandbox:
        bound = world.resources.output_bytes
        ran = await check_interpreter(lambda: open_interpreter(sandbox), output_bytes=bound)
        assert {"cells", "deaths", "forks", "files", "closing"} <= set(ran)
        assert (await sandbox.exec("ls -A ~/.interpreters")).stdout == b"", "a closed family leaves nothing"


@pytest.mark.slow
def test_it_keeps_the_contract_in_the_namespace_backend(make, run, world):
    run(contract(make(), world))


@pytest.mark.slow
def test_it_keeps_the_contract_in_the_local_backend(make_local, run, world):
    run(contract(make_local(), world))


@pytest.mark.slow
def test_it_keeps_the_contract_in_the_landlock_backend(make_landlock, run, world):
    run(contract(make_landlock(), world))


@pytest.mark.slow
def test_it_keeps_the_contract_in_a_pool(make, run, world):
    run(contract(PoolBackend(make), world))


@pytest.fixture
def inside(make, run, world):
    """Run a test with a sandbox and an interpreter in it."""

    def call(test, **options):
        async def main():
            async with (
                make() as backend,
                await backend.create(world) as sandbox,
                await open_interpreter(sandbox, **options) as one,
            ):
                await test(one, sandbox)

        run(main())

    return call


async def value(one, code):
    result = await one.run(code)
    assert result.ok, result
    return result.value


def test_it_is_found_by_name(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            async with await envgym.open_interpreter(sandbox, branches=3) as one:
                assert await value(one, "1 + 1") == "2"
            with pytest.raises(ValueError, match="unknown interpreter 'pithon'; did you mean 'python'"):
                await envgym.open_interpreter(sandbox, kind="pithon")
            with pytest.raises(ValueError, match="no such option; did you mean 'branches'"):
                await envgym.open_interpreter(sandbox, branchs=3)
            for options in ({"files": "none"}, {"branches": 0}, {"copy_bytes": -1}):
                with pytest.raises(ValueError, match="it must be"):
                    await open_interpreter(sandbox, **options)
            with pytest.raises(TypeError, match="preload is the string 'json'"):
                await open_interpreter(sandbox, preload="json")

    known = "python" in registry.names("interpreters")
    if not known:  # installed before there was one
        registry.register("interpreters", "python", open_interpreter)
    try:
        run(main())
    finally:
        if not known:
            registry.unregister("interpreters", "python")


@pytest.mark.slow
def test_figures_left_open_are_images_and_are_closed(inside):
    pytest.importorskip("matplotlib", reason="fix: pip install 'envgym[train]'")
    draw = "import matplotlib.pyplot as plt\nfor n in range(2):\n    plt.figure(); plt.plot([1, n])\nplt.show()\nn"

    async def test(one, _sandbox):
        result = await one.run(draw, timeout_s=50)
        assert (result.value, result.stderr) == ("1", ""), result
        assert len(result.images) == 2
        assert all(image.startswith(PNG) for image in result.images)
        assert (await one.run("plt.get_fignums()")).value == "[]"
        result = await one.run("plt.plot([1]); 1 / 0")
        assert (result.error.type, len(result.images)) == ("ZeroDivisionError", 1), (
            "those of a cell that fails, too"
        )
        result = await one.run("for n in range(20): plt.figure(figsize=(1, 1))\nplt.figure(figsize=(9e5, 9e5))")
        assert len(result.images) == 16
        assert any("left out" in note for note in result.notes), result.notes

    inside(test, preload=["matplotlib.pyplot"])


def test_preloaded_modules_are_shared_and_never_taken_from_the_workdir(make, run, world):
    async def main():
        world_with_trap = world.model_copy(update={"files": {"/work/colorsys.py": "import os; os._exit(1)"}})
        async with make() as backend, await backend.create(world_with_trap) as sandbox:
            async with await open_interpreter(sandbox, preload=["colorsys"]) as one:
                assert await value(
                    one, "import sys; 'colorsys' in sys.modules, 'work' in sys.modules['colorsys'].__file__"
                ) == ("(True, False)")
            with pytest.raises(EnvironmentFailure, match="No module named 'absent'"):
                await open_interpreter(sandbox, preload=["absent"])
            assert (await sandbox.exec("ls -A ~/.interpreters")).stdout == b""

    run(main())


def test_a_world_without_python_is_said_at_once(make, run, tmp_path):
    for name in ("bin", "work"):
        (tmp_path / name).mkdir(mode=0o755)
    tmp_path.chmod(0o755)

    async def main():
        async with make() as backend, await backend.create(World(image=str(tmp_path))) as sandbox:
            with pytest.raises(EnvironmentFailure, match=r"no Python interpreter.*No such file"):
                await open_interpreter(sandbox)

    run(main())


def test_a_seed_gives_the_same_draws_and_none_gives_others(inside):
    async def test(one, sandbox):
        async with await open_interpreter(sandbox, seed=7) as same, await open_interpreter(sandbox) as other:
            draws = [await value(each, "import random; random.random()") for each in (one, same, other)]
            assert draws[0] == draws[1] != draws[2]

    inside(test, seed=7)


def test_shared_files_are_the_workdirs_own(inside):
    async def test(one, sandbox):
        assert one.directory == "/work"
        async with await one.fork() as fork:
            assert fork.directory == "/work"
            await fork.run("open('new.txt', 'w').write('fork')")
            assert await value(one, "open('new.txt').read()") == "'fork'"
            assert await sandbox.read("new.txt") == b"fork"
        assert await sandbox.read("given.txt") == b"given\n", "closing a branch removes nothing of the workdir"

    inside(test, files="shared")


def test_own_files_are_read_and_written_by_the_host_in_the_branchs_directory(inside):
    async def test(one, sandbox):
        await one.run("open('made.txt', 'w').write('one')")
        assert await sandbox.read(f"{one.directory}/made.txt") == b"one"
        await sandbox.write(f"{one.directory}/sent.txt", b"host")
        assert await value(one, "open('sent.txt').read()") == "'host'"
        assert await value(one, "sorted(__import__('os').listdir())") == "['given.txt', 'made.txt', 'sent.txt']"
        assert (await sandbox.exec("ls")).stdout == b"given.txt\n", "the workdir is only copied"

    inside(test)


def test_links_modes_times_and_deep_trees_are_copied(inside):
    make_tree = """
import os
os.makedirs('a/b/c')
open('a/f', 'w').write('x'); os.chmod('a/f', 0o750); os.utime('a/f', (5, 6))
os.symlink('f', 'a/near'); os.symlink(os.path.abspath('a/f'), 'a/far'); os.symlink('/etc/hosts', 'a/out')
os.symlink('nowhere', 'a/broken'); os.mkfifo('a/pipe'); os.chdir('a/b')
"""
    look = """
s = os.stat('../f')
print(oct(s.st_mode), s.st_mtime, os.readlink('../near'), os.readlink('../out'), os.readlink('../broken'))
print(os.path.samefile('../far', '../f'), sorted(os.listdir('..')), os.path.relpath(os.getcwd(), home))
"""

    async def test(one, _sandbox):
        await one.run(make_tree)
        async with await one.fork() as fork:
            for branch in (one, fork):
                result = await branch.run(f"home = {branch.directory!r}\n{look}")
                assert result.stdout == (
                    "0o100750 6.0 f /etc/hosts nowhere\n"
                    "True ['b', 'broken', 'f', 'far', 'near', 'out', 'pipe'] a/b\n"
                ), result

    inside(test)


@pytest.mark.slow
def test_a_directory_that_is_too_large_is_not_copied_and_nothing_breaks(inside):
    async def test(one, _sandbox):
        await one.run("x = 1; open('big', 'wb').write(bytes(70_000))")
        with pytest.raises(envgym.InfrastructureFailure, match="more than 65536 bytes"):
            await one.fork()
        await one.run("import os; os.remove('big')")
        async with await one.fork() as fork:
            assert await value(fork, "x") == "1"
        await one.run("os.symlink('.', 'loop')\nfor n in range(10_001): open(f'f{n}', 'w').close()")
        with pytest.raises(envgym.InfrastructureFailure, match="10000 entries"):
            await one.fork()
        assert await value(one, "x") == "1"

    inside(test, copy_bytes=65536)


def test_branches_are_bounded(inside):
    async def test(one, _sandbox):
        forks = [await one.fork(), await one.fork()]
        kept = await one.snapshot()
        with pytest.raises(ValueError, match="4 branches and kept states; branches=4 allows no more"):
            await one.fork()
        with pytest.raises(ValueError, match="branches=4"):
            await one.restore(kept)
        await forks.pop().close()
        forks.append(await one.restore(kept))
        await one.release(kept)
        for fork in forks:
            await fork.close()

    inside(test, branches=4)


@pytest.mark.slow
def test_what_a_fork_cannot_have_is_named(inside):
    async def test(one, _sandbox):
        setup = {
            "thread waiter": (
                "import threading as th; e = th.Event(); t = th.Thread(target=e.wait, name='waiter'); t.start()"
            ),
            "child process": "import subprocess; p = subprocess.Popen(['sleep', '60'])",
            "open pipe": "import os; r, w = os.pipe()",
            "open socket": "import socket; s = socket.socket()",
            "shared memory": "import mmap; m = mmap.mmap(-1, 4096)",
            "deleted": "import tempfile; f = tempfile.TemporaryFile()",
        }
        undo = (
            "e.set(); t.join()",
            "p.kill(); p.wait()",
            "os.close(r); os.close(w)",
            "s.close()",
            "m.close()",
            "f.close()",
        )
        for (what, code), after in zip(setup.items(), undo, strict=True):
            result = await one.run(code)
            assert result.ok, result
            assert ("thread waiter" in "".join(result.notes)) == (what == "thread waiter"), result.notes
            async with await one.fork() as fork:
                assert len(fork.unforked) == 1, (what, fork.unforked)
                assert what in fork.unforked[0]
                if what == "open pipe":
                    assert await value(fork, "os.read(r, 1)") == "b''", "the other side is gone"
                    assert (await fork.run("os.write(w, b'x')")).error.type == "BrokenPipeError"
            kept = await one.snapshot()
            assert what in "".join(kept.unforked)
            await one.release(kept)
            assert (await one.run(after)).ok
        async with await one.fork() as fork:
            assert fork.unforked == ()

    inside(test)


def test_threads_and_children_go_on_between_cells(inside):
    async def test(one, _sandbox):
        await one.run(
            "import threading, time; n = 0\ndef count():\n    global n\n    while n < 50: n += 1; time.sleep(0.01)"
        )
        await one.run("t = threading.Thread(target=count); t.start()")
        await one.run(
            "import subprocess; p = subprocess.Popen(['sh', '-c', 'read x; exit 3'], stdin=subprocess.PIPE)"
        )
        assert await value(one, "p.communicate(b'x'); t.join(); p.returncode, n") == "(3, 50)"

    inside(test)


def test_a_process_that_ends_between_cells_is_replaced_and_it_is_said(inside):
    async def test(one, sandbox):
        await one.run("x = 1; import os, threading")
        pid = await value(one, "x = 2; threading.Timer(0.5, os._exit, [1]).start(); os.getpid()")
        await sandbox.exec(["bash", "-c", f"while kill -0 {pid} 2>/dev/null; do :; done"])
        result = await one.run("x")
        assert result.value == "2", f"it goes on with the state after the last cell: {result}"
        assert any("had ended since" in note for note in result.notes), result.notes
        assert (await one.run("x")).notes == ()

    inside(test)


@pytest.mark.slow
def test_cells_of_several_branches_run_at_once_and_those_of_one_in_turn(inside):
    async def test(one, _sandbox):
        await one.run(
            "import os, time\nos.mkdir('/tmp/met')\n"
            "def meet(number, of):\n    open(f'/tmp/met/{number}', 'w').close()\n"
            "    while len(os.listdir('/tmp/met')) < of: time.sleep(0.01)\n"
        )
        forks = [await one.fork() for _ in range(6)]
        met = await asyncio.gather(*(fork.run(f"meet({n}, 6)", timeout_s=60) for n, fork in enumerate(forks)))
        assert all(result.ok for result in met), f"in turn the first would wait for the last for ever: {met}"
        await asyncio.gather(*(one.run(f"seen = [*globals().get('seen', []), {n}]") for n in range(8)))
        assert await value(one, "sorted(seen)") == str([*range(8)])
        for fork in forks:
            await fork.close()

    inside(test)


def test_a_cell_that_nobody_waits_for_is_interrupted(inside):
    async def test(one, sandbox):
        endless = "x = 1\nimport time\nopen('/tmp/begun', 'w').close()\ntime.sleep(4245)\nx = 2"
        running = asyncio.ensure_future(one.run(endless, timeout_s=4000))
        waiting = asyncio.ensure_future(one.run("y = 1"))
        assert (await sandbox.exec("until [ -e /tmp/begun ]; do sleep 0.01; done", timeout_s=60)).ok
        running.cancel()
        waiting.cancel()
        assert await value(one, "x, 'y' in dir()") == "(1, False)", "which waits for the cell, did it go on"

    inside(test)


def test_a_snapshot_of_the_sandbox_goes_on_beside_it_and_is_partial(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            async with await open_interpreter(sandbox) as one:
                await one.run("x = 1; open('/work/here', 'w').close()")
                snapshot = await sandbox.snapshot()
                assert snapshot.partial
                assert await value(one, "x") == "1"
                async with await sandbox.fork() as fork:
                    assert (await fork.exec("ls")).stdout == b"given.txt\nhere\n"
                    async with await open_interpreter(fork) as other:
                        assert await value(other, "'x' in dir()") == "False", (
                            "the files are forked, not the variables"
                        )
                await backend.release(snapshot)
            async with await sandbox.fork() as fork:
                assert not (await fork.snapshot()).partial, "once it is closed nothing of it is left"

    run(main())


@pytest.mark.slow
def test_a_closed_interpreter_leaves_nothing_that_is_still_dying(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            for _ in range(5):
                async with await open_interpreter(sandbox) as one, await one.fork() as other:
                    for each in (one, other):
                        await each.run("x = bytearray(b'x') * (64 << 20)")  # takes the kernel a while to take back
                snapshot = await sandbox.snapshot()
                assert not snapshot.partial, (await sandbox.exec("cat /proc/[0-9]*/stat")).stdout.decode()
                await backend.release(snapshot)

    run(main())


def test_a_kept_state_belongs_to_its_family(inside):
    async def test(one, sandbox):
        async with await open_interpreter(sandbox) as other:
            kept = await one.snapshot()
            with pytest.raises(SnapshotGone, match="is not of this family"):
                await other.restore(kept)

    inside(test)


def test_with_the_sandbox_it_is_gone(make, run, world):
    async def main():
        async with make() as backend:
            sandbox = await backend.create(world)
            one = await open_interpreter(sandbox)
            await sandbox.close()
            with pytest.raises(SandboxDied):
                await one.run("1")
            await one.close()
            with pytest.raises(SandboxDied):
                await open_interpreter(sandbox)

    run(main())


@pytest.mark.slow
def test_a_cell_has_a_budget_of_processor_time_with_what_it_starts(make, run, world):
    bounded = world.model_copy(update={"resources": world.resources.model_copy(update={"command_cpu_s": 0.5})})
    burn = "while True: pass"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    parallel = f"p = [subprocess.Popen([sys.executable, '-c', {burn!r}]) for _ in '12']; p[0].wait()"

    async def main():
        async with (
            make() as backend,
            await backend.create(bounded) as sandbox,
            await open_interpreter(sandbox) as one,
        ):
            assert (await one.run("x = 1; import time; time.sleep(1)")).ok, "waiting costs nothing"
            for code in (burn, below, parallel):
                result = await one.run(code)
                assert (result.timed_out, result.out_of_cpu, result.state) == (True, True, "kept"), result
                assert result.error.type == "KeyboardInterrupt"
                assert result.cpu_s < 3, result
                assert "0.5 s of processor time" in "".join(result.notes)
                result = await one.run("x")
                assert (result.value, result.out_of_cpu, result.notes) == ("1", False, ()), result

    run(main())


def test_what_goes_inside_needs_nothing_but_the_standard_library():
    boot = interpreter_server.BOOT.replace("main(given)", "print(main.__module__)")
    asked = {"sources": interpreter_server._sources(), "main": "envgym_sandboxes.inside.main"}
    given = base64.b64encode(zlib.compress(json.dumps(asked).encode()))
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", boot]  # no site-packages: this package is not there
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    assert done.stdout == b"envgym_sandboxes.inside.main\n", done.stderr.decode()


@pytest.mark.slow
def test_a_digest_follows_content_order_shape_and_code(inside):
    changes = [
        "d = {'a': [1, (2.5, None)], 'b': {3}}",
        "d['b'].add(4)",
        "d['a'][1] = (2.5, 0)",
        "import array; m = array.array('i', range(1000))",
        "m[999] = 5",
        "m = array.array('l', m)",
        "m = memoryview(m)[::2]",
        "import numpy as np; p = np.zeros((2, 3), dtype='>f4'); q = np.zeros(2, dtype=[('a', 'i4'), ('b', 'f8')])",
        "p[1, 2] = 1",
        "q[1]['b'] = 1",
        "p = p.T",
        "class C:\n    k = 1\n    def f(self): return self.k\nc = C(); c.x = [c]",
        "c.y = 2",
        "C.f = lambda self: self.k + 1",
        "C.k = 2",
        "deep = []\nfor _ in range(1000): deep = [deep]",
        "wide = [*range(200_000)]",
        "e = ValueError('a')",
    ]

    async def test(one, _sandbox):
        seen = [await one.digest()]
        for code in changes:
            assert (await one.run(code)).ok, code
            digest = await one.digest()
            assert digest not in seen, f"it changes with {code!r}"
            assert await one.digest() == digest
            seen.append(digest)
        async with await one.fork() as fork:
            await fork.run("d['b'].remove(4); d['b'].add(4); x = 1; del x; _ = 5; _y = 6; import os as _os")
            assert await fork.digest() == seen[-1], "neither history nor private names count"

    inside(test)
