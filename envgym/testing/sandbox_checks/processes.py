"""Background processes: start, poll, signal, and what snapshots and deadlines do not do to them."""

import time
from dataclasses import replace

from envgym.sandbox import ProcessStatus, Sandbox, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check, raises

__all__ = ["CHECKS"]

_GONE = "for i in $(seq 200); do kill -0 $(cat inner) 2>/dev/null || exit 0; sleep 0.02; done; exit 1"
_MOMENTS = 4
_ECHO = ["sh", "-c", "echo began; while read -r line; do echo got $line; done; sleep 97"]


async def _ended(sandbox: Sandbox, process: str) -> tuple[ProcessStatus, bytes, bytes]:
    """The first status that says the end, with all bytes that were lost, and all that was written until then."""
    out, err, lost, deadline = b"", b"", (0, 0), time.monotonic() + 4 * SLACK_S
    while time.monotonic() < deadline:
        status = await sandbox.poll(process, wait_s=SLACK_S)
        out, err = out + status.stdout, err + status.stderr
        lost = lost[0] + status.lost_bytes[0], lost[1] + status.lost_bytes[1]
        if not status.running:
            return replace(status, lost_bytes=lost), out, err
    raise AssertionError(f"a process that ends is seen to end; {process} has written {out + err!r}")


async def _written(sandbox: Sandbox, process: str, wanted: bytes) -> None:
    """Wait until a process has written this, and nothing else."""
    out, deadline = b"", time.monotonic() + 4 * SLACK_S
    while out != wanted and time.monotonic() < deadline:
        out += (await sandbox.poll(process, wait_s=SLACK_S)).stdout
    assert out == wanted, f"what a background process writes is given once and whole: {out!r}, not {wanted!r}"


async def _background_processes(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        first = await sandbox.start(
            ["sh", "-c", "pwd; cat; printf '%s' \"$E\" >&2; exit 7"], stdin=b"in\0", env={"E": "e"}
        )
        second = await sandbox.start(_ECHO, stdin=b"one\n")
        assert first != second, "processes have names of their own"
        assert (await sandbox.exec("echo beside")).stdout == b"beside\n", "commands run beside them"
        await _written(sandbox, second, b"began\ngot one\n")
        status, out, err = await _ended(sandbox, first)
        assert (status.exit_code, out, err) == (7, f"{world.workdir}\n".encode() + b"in\0", b"e"), (
            f"a background process is like an argv command: {status} {out!r} {err!r}"
        )
        again = await sandbox.poll(first)
        assert again == ProcessStatus(False, 7, b"", b""), f"an ended one can be looked at again: {again}"
        began = time.monotonic()
        quiet = await sandbox.poll(second, wait_s=0.2)
        assert quiet.running, f"a running process has not ended: {quiet}"
        assert (quiet.exit_code, quiet.stdout) == (None, b""), f"what was seen is not seen again: {quiet}"
        assert 0.15 < time.monotonic() - began < SLACK_S, "a look waits as long as it says"
        await sandbox.signal(second)
        status, _out, _err = await _ended(sandbox, second)
        assert status.exit_code == -15, f"a signal ends a process: {status}"
        await sandbox.signal(second)
        missing = await sandbox.start(["no-such-program-anywhere"])
        status, _out, err = await _ended(sandbox, missing)
        assert (status.exit_code, bool(err)) == (127, True), f"a missing program is data, with a sentence: {status}"
        await raises(ValueError, sandbox.poll("p99"), "looking at what was never started")
        await raises(ValueError, sandbox.signal("p99"), "signalling what was never started")
        await raises(ValueError, sandbox.signal(first, 0), "signal 0")
        await raises(ValueError, sandbox.start([]), "an empty argv")


async def _background_signals(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        group = await sandbox.start(["sh", "-c", "sleep 97 & echo $! > inner; echo up; wait"])
        await _written(sandbox, group, b"up\n")
        await sandbox.signal(group, 15)
        await _ended(sandbox, group)
        result = await sandbox.exec(["sh", "-c", _GONE])
        assert result.ok, f"a signal reaches the process group: {result}"
        tree = await sandbox.start(
            ["sh", "-c", "trap '' TERM; setsid sh -c 'echo $$ > inner; echo up; sleep 97' & wait"]
        )
        await _written(sandbox, tree, b"up\n")
        await sandbox.signal(tree, 15)
        assert (await sandbox.poll(tree)).running, "a program may ignore SIGTERM"
        await sandbox.signal(tree, 9)
        status, _out, _err = await _ended(sandbox, tree)
        assert status.exit_code == -9, f"no program ignores SIGKILL: {status}"
        result = await sandbox.exec(["sh", "-c", _GONE])
        assert result.ok, f"SIGKILL reaches the whole tree: {result}"


async def _background_output(backend: SandboxBackend, world: World) -> None:
    limit = world.resources.output_bytes
    async with await backend.create(world) as sandbox:
        count = limit * 50
        flood = await sandbox.start(
            ["sh", "-c", f"printf first; head -c {count} /dev/zero; printf last; exec >&-; touch done"]
        )
        result = await sandbox.exec("while ! [ -e done ]; do sleep 0.01; done")
        assert result.ok, f"output that nobody looks at blocks no program: {result}"
        status = await sandbox.poll(flood)
        out = status.stdout
        assert out.startswith(b"first"), "the head of what was written since the last look is kept"
        assert out.endswith(b"last"), "and its tail"
        assert len(out) == limit, f"{limit} bytes are kept, not {len(out)}"
        assert status.lost_bytes[0] == count + 9 - limit, f"lost bytes are counted: {status.lost_bytes}"


async def _background_deadlines(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        before = await sandbox.start(_ECHO)
        await _written(sandbox, before, b"began\n")
        for stuck in (["sleep", "97"], "sleep 97"):
            result = await sandbox.exec(stuck, timeout_s=0.3)
            assert result.timed_out, f"a deadline is a deadline: {result}"
            assert (await sandbox.poll(before)).running, "another command's deadline does not end a process"
        await sandbox.exec("echo kept > f")
        assert (await sandbox.poll(before)).running, "a process goes on from command to command"


async def _background_snapshots(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        done = await sandbox.start(["sh", "-c", "echo did; exit 3"])
        alive = await sandbox.start(_ECHO, stdin=b"")
        await _written(sandbox, alive, b"began\n")
        while (await sandbox.poll(done, wait_s=SLACK_S)).running:
            pass
        unread = await sandbox.start(["sh", "-c", "echo $$ > pid; echo unread; exit 4"])
        await sandbox.exec("while ! [ -s pid ] || kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done")
        snapshot = await sandbox.snapshot()
        assert snapshot.partial, "a snapshot beside a live background process is partial"
        assert (await sandbox.poll(alive)).running, "a snapshot does not end it"
        async with await backend.restore(snapshot) as again:
            await raises(ValueError, again.poll(alive), "looking at a process that a snapshot does not hold")
            own = await again.start(["true"])
            assert (await _ended(again, own))[0].exit_code == 0, "a restored sandbox starts its own"
        await backend.release(snapshot)
        await sandbox.signal(alive, 9)
        await _ended(sandbox, alive)
        for _ in range(2):
            snapshot = await sandbox.snapshot()
            assert not snapshot.partial, "processes that have ended are no reason for partial"
            await backend.release(snapshot)
            await sandbox.exec("echo more >> f")
        status, out, _err = await _ended(sandbox, unread)
        assert (status.exit_code, out) == (4, b"unread\n"), (
            f"what an ended process wrote survives snapshots: {status}"
        )
        assert (await sandbox.poll(done)).exit_code == 3, "an ended process can be looked at after snapshots"
        assert (await sandbox.poll(unread)).stdout == b"", "but what was seen is not seen again"
        await sandbox.signal(done)
        later = await sandbox.start(["true"])
        assert later not in (done, alive, unread), "no name is given twice"


_LOCKSTEP = "mkdir $0; cd $0; echo up; while :; do for f in 0 1 2 3 4 5 6 7; do printf x >> $f; done; done"
_SIZES = "for d in started left; do stat -c %s $d/0 $d/1 $d/2 $d/3 $d/4 $d/5 $d/6 $d/7; done"


async def _sizes(sandbox: Sandbox) -> list[list[int]]:
    """How long the files of each writer are, in the order in which it writes to them."""
    result = await sandbox.exec(["sh", "-c", _SIZES])
    found = [int(size) for size in result.stdout.split()]
    assert len(found) == 16, f"both writers have begun: {result}"
    return [found[:8], found[8:]]


async def _paused_for_snapshots(backend: SandboxBackend, world: World) -> None:
    """Programs that write to files in turn: at any one moment no two files of one differ by more than a byte."""
    async with await backend.create(world) as sandbox:
        started = await sandbox.start(["bash", "-c", _LOCKSTEP, "started"])
        await _written(sandbox, started, b"up\n")
        await sandbox.exec(f"setsid bash -c '{_LOCKSTEP}' left > said & until [ -s left/7 ]; do sleep 0.01; done")
        for _ in range(_MOMENTS):
            snapshot = await sandbox.snapshot()
            async with await backend.restore(snapshot) as again:
                for sizes in await _sizes(again):
                    assert sizes == sorted(sizes, reverse=True), f"a snapshot is of one moment: {sizes}"
                    assert sizes[0] - sizes[-1] <= 1, f"processes are paused while a snapshot is taken: {sizes}"
            await backend.release(snapshot)
        before, grown, deadline = await _sizes(sandbox), False, time.monotonic() + 4 * SLACK_S
        while not grown and time.monotonic() < deadline:
            pairs = zip(before, await _sizes(sandbox), strict=True)
            grown = all(now[0] > old[0] for old, now in pairs)
        assert grown, "and they go on when it is taken"


CHECKS: tuple[Check, ...] = (
    _background_processes,
    _background_signals,
    _background_output,
    _background_deadlines,
    _background_snapshots,
    _paused_for_snapshots,
)
