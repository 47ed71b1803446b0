"""Budgets: memory, processes, processor and time, what commands are told to have used, and what hosts are told.

Each attempt is bounded by itself, so that it does no harm where a backend lets it through.
"""

import asyncio
import re
import time
from contextlib import suppress

from envgym.sandbox import ExecResult, MeteredBackend, Sandbox, SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import SLACK_S, Check, Refused, bounded, not_kept

__all__ = ["CHECKS"]

_MIB = 1 << 20
_MEMORY = 96 * _MIB


def _hold(count: int, hold_s: float) -> str:
    """A shell command that holds so many bytes in one process, for so long; then it writes how many they were."""
    return f"{{ head -c {count} /dev/zero; sleep {hold_s}; }} | tail | wc -c"


async def _memory_bytes(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, memory_bytes=_MEMORY) as sandbox:
        result = await sandbox.exec(["sh", "-c", _hold(48 * _MIB, 0)])
        assert result.ok, f"what is within the bound can be used: {result}"
        assert int(result.stdout) == 48 * _MIB, f"all of it, in one process: {result}"
        share = 80 * _MIB  # twice that is more than a backend may need for itself beside the bound
        held = 2
        for hold_s in (0.3, 3.0):  # some look a few times a second, and a busy machine is late
            if held == 2:
                both = f"{_hold(share, hold_s)} & {_hold(share, hold_s)} & wait"
                result = await sandbox.exec(["sh", "-c", both])
                held = result.stdout.split().count(b"%d" % share)
        if held == 2:
            raise not_kept(backend, "memory_bytes", "two processes of 80 MiB are more than 96 MiB together")
        assert (await sandbox.exec("true")).ok, "want of memory ends processes, not the sandbox"


async def _out_of_memory(backend: SandboxBackend, world: World) -> None:
    program = f"head -c {160 * _MIB} /dev/zero | tail > /dev/null; exit $?"
    async with await bounded(backend, world, memory_bytes=64 * _MIB) as sandbox:
        for command in (["sh", "-c", program], f"({program})"):
            await sandbox.exec("kept=1")
            result = await sandbox.exec(command)
            if not result.out_of_memory and result.exit_code not in (-9, 137):
                raise Refused(f"no process is killed for memory, so that none is told to be: {result}")
            assert not result.ok, f"a process that wants more memory than there is does not get it: {result}"
            if not result.out_of_memory:
                said = f"a command in which the kernel killed for memory is told so: {result}"
                raise not_kept(backend, "out_of_memory", said)
            assert not result.timed_out, f"want of memory is not want of time: {result}"
            result = await sandbox.exec('echo "$kept"')
            after = (result.stdout, result.out_of_memory)
            assert after == (b"1\n", False), f"the sandbox and its shell go on, and it is said once: {result}"


_FORK = """
trap 'kill $all' EXIT
i=0; while [ $i -lt 200 ]; do sleep 97 & all="$all $!"; i=$((i+1)); echo $i; done
"""


async def _pids(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, pids=64) as sandbox:
        # Some shells end when they cannot fork; others try again for seconds, hence the deadline.
        result = await sandbox.exec(["sh", "-c", _FORK], timeout_s=2.0)
        made = int((result.stdout.split() or [b"0"])[-1])
        if made == 200:
            raise not_kept(backend, "pids", "200 processes are more than 64")
        # A backend's own processes may count, so that it is fewer; never are there more than asked for.
        assert 32 <= made <= 64, f"up to 64 processes can be there at once, not {made}: {result}"
        end = asyncio.get_running_loop().time() + SLACK_S
        while True:  # they were killed, and count until the kernel is done with them
            result = await sandbox.exec(["sh", "-c", "sleep 0 & wait; echo on"])
            if result.ok or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.05)
        assert result.stdout == b"on\n", f"and when they have ended, others can be: {result}"


_SPIN = "while :; do :; done"


def _told(times: bytes) -> float:
    """Seconds of processor time of what the shell's `times` writes: the shell's own and its children's."""
    found = re.findall(rb"(\d+)m([\d.]+)s", times)
    assert len(found) == 4, f"`times` is a command of every shell: {times!r}"
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in found)


async def _cpus(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, cpus=0.25) as sandbox:
        # in sessions of their own: where the kernel shares by session, each has a share beside a busy machine's
        spin = f"setsid timeout 0.8 sh -c '{_SPIN}' &"
        result = await sandbox.exec(["sh", "-c", f"{spin * 4} wait; times"])
        used, may = _told(result.stdout), 0.25 * result.wall_s * 1.5 + 0.1
        if used > may:
            said = f"a quarter of a processor gives {0.25 * result.wall_s:.2f} s in {result.wall_s:.2f} s"
            raise not_kept(backend, "cpus", f"{said}; four busy programs together used {used:.2f} s")


async def _command_s(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, command_s=0.5) as sandbox:
        for command in (["sleep", "97"], "sleep 97"):
            began, result = time.monotonic(), None
            with suppress(TimeoutError):
                result = await asyncio.wait_for(sandbox.exec(command), 0.5 + SLACK_S)
            took = time.monotonic() - began
            assert result is not None, f"a command without a deadline of its own ends at command_s, not at {took} s"
            assert result.timed_out, f"and is said to have met its deadline: {result}"
            assert took > 0.4, f"it has its time: {took} s"
        assert (await sandbox.exec(["sleep", "0.7"], timeout_s=30.0)).ok, "a call's own deadline may be later"


async def _command_cpu_s(backend: SandboxBackend, world: World) -> None:
    async with await bounded(backend, world, command_cpu_s=0.4) as sandbox:
        for command in (_SPIN, ["sh", "-c", f"setsid sh -c '{_SPIN}' & sleep 97"]):
            await sandbox.exec("kept=yes")
            result = await sandbox.exec(command)
            said = (result.timed_out, result.out_of_cpu, result.exit_code)
            assert said == (True, True, None), f"a command ends when its processor time is used up: {result}"
            result = await sandbox.exec('echo "$kept"')
            assert result.stdout == b"yes\n", f"the shell goes on from its last state: {result}"
        result = await sandbox.exec("sleep 0.6")
        assert result.ok, f"a command that waits uses none: {result}"


_COUNT = "i=0; while [ $i -lt {} ]; do i=$((i+1)); done; times"
_CLEARLY_S = 0.2  # of processor time: far more than what is told of a command that uses none


async def _cpu_s(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        steps = 100_000
        for argv in (True, False):
            while True:
                count = _COUNT.format(steps)
                result = await sandbox.exec(["sh", "-c", count] if argv else f"sh -c '{count}'")
                assert not result.out_of_cpu, f"without a budget nothing is used up: {result}"
                if result.cpu_s is None:
                    raise Refused("the backend does not tell the processor time of commands (ExecResult.cpu_s)")
                if _told(result.stdout) >= _CLEARLY_S:
                    break
                steps *= 4  # the machine is fast
            least = _told(result.stdout) - 0.05  # what the shell says has hundredths
            assert least <= result.cpu_s <= least + 1, f"processor time is what the command used: {result}"
        for command in (["sleep", "0.2"], "sleep 0.2"):
            result = await sandbox.exec(command)
            assert result.cpu_s is not None, f"if it is told of one command, it is of others: {result}"
            assert 0 <= result.cpu_s < 0.2, f"a command that waits uses none, nor what others did: {result}"


_LARGE = f"head -c {48 * _MIB} /dev/zero | tail > /dev/null"


def _large(result: ExecResult) -> None:
    assert result.peak_bytes is not None, f"if it is told of one command, it is of others: {result}"
    assert 48 * _MIB <= result.peak_bytes < 2 * 48 * _MIB, f"memory is what was held at most, in bytes: {result}"


async def _peak_bytes(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        if (result := await sandbox.exec(["true"])).peak_bytes is None:
            raise Refused("the backend does not tell the memory of argv commands (ExecResult.peak_bytes)")
        assert 0 < result.peak_bytes < 24 * _MIB, f"a small program is small: {result}"
        _large(await sandbox.exec(["sh", "-c", _LARGE]))


async def _peak_bytes_of_a_string(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        if (await sandbox.exec("true")).peak_bytes is None:
            raise Refused("the backend does not tell the memory of string commands (ExecResult.peak_bytes)")
        _large(await sandbox.exec(_LARGE))
        result = await sandbox.exec("true")
        assert result.peak_bytes is not None, f"if it is told of one command, it is of others: {result}"
        assert 0 < result.peak_bytes < 40 * _MIB, f"what an earlier command held is not this one's: {result}"


async def _memory(backend: SandboxBackend, world: World) -> None:
    if not isinstance(backend, MeteredBackend):
        raise Refused("the backend does not tell what its sandboxes use (MeteredBackend)")
    async with await backend.create(world) as sandbox:
        use = await backend.memory([sandbox.id, "no such sandbox"])
        assert 0 < use.available <= use.total, f"a host has memory, and not more to give than that: {use}"
        assert use.used.keys() <= {sandbox.id}, f"names that are not known are left out: {use}"
        if sandbox.id not in use.used:
            raise Refused(f"the backend does not tell what this sandbox uses: {use}")
        assert 0 < use.used[sandbox.id] < 48 * _MIB, f"a sandbox in which nothing runs uses little: {use}"
        await sandbox.start(["sh", "-c", _hold(48 * _MIB, 97)])
        await _uses(backend, sandbox, 48 * _MIB)


async def _uses(backend: MeteredBackend, sandbox: Sandbox, least: int) -> None:
    deadline, used = time.monotonic() + SLACK_S, 0
    while used < least and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        used = (await backend.memory([sandbox.id])).used[sandbox.id]
    assert used >= least, f"what a sandbox's processes hold is what it uses: {used} bytes, of {least}"


CHECKS: tuple[Check, ...] = (
    _memory_bytes,
    _out_of_memory,
    _pids,
    _cpus,
    _command_s,
    _command_cpu_s,
    _cpu_s,
    _peak_bytes,
    _peak_bytes_of_a_string,
    _memory,
)
