"""Walls: what no sandbox that claims to isolate lets through."""

import socket

from envgym.sandbox import SandboxBackend
from envgym.task import World
from envgym.testing.sandbox_checks.common import Check

__all__ = ["CHECKS"]


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
        result = await sandbox.exec(["grep", "-E", "^(CapEff|NoNewPrivs)", "/proc/self/status"])
        if result.ok:
            values = dict(line.split(":\t") for line in result.stdout.decode().splitlines())
            capabilities, no_new = int(values["CapEff"], 16), values["NoNewPrivs"]
        else:  # a backend may show nothing of any process; util-linux has a program that asks the kernel
            result = await sandbox.exec(["setpriv", "--dump", "--dump"])
            assert result.ok, f"neither /proc/self/status nor setpriv tells a process's privileges: {result}"
            lines = dict(line.split(": ", 1) for line in result.stdout.decode().splitlines())
            capabilities = {"[none]": 0}.get(lines["Effective capabilities"], -1)
            no_new = lines["no_new_privs"]
        assert capabilities == 0, f"there are no capabilities inside: {result}"
        assert no_new == "1", f"no program gains privileges: {result}"
        result = await sandbox.exec(["cat", "/etc/shadow"])
        assert not result.ok, "the host's secrets are not there"


_CONTROLS = "/proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/sysrq-trigger /sys/kernel/uevent_helper"


async def _no_machine(backend: SandboxBackend, world: World) -> None:
    async with await backend.create(world) as sandbox:
        write = f"for f in {_CONTROLS}; do {{ echo 0 > $f; }} 2>/dev/null && echo $f; done; true"
        result = await sandbox.exec(["sh", "-c", write])
        assert result.stdout == b"", f"nothing of the machine is controlled from inside: {result}"
        read = (
            "for f in kcore kmsg keys timer_list; do head -c 64 /proc/$f 2>/dev/null | grep -q . && echo $f; done"
        )
        result = await sandbox.exec(["sh", "-c", f"{read}; true"])
        assert result.stdout == b"", f"memory, log, keys and timers of the machine are not to be read: {result}"
        for node in ("c 1 5", "c 1 1", "b 7 0"):
            result = await sandbox.exec(["sh", "-c", f"rm -f node; mknod node {node}"])
            assert not result.ok, f"no device is made, not even one that does no harm: {node} {result}"


CHECKS: tuple[Check, ...] = (
    _no_network,
    _no_privileges,
    _no_machine,
)
