"""Walls: what no sandbox that claims to isolate lets through."""

import socket
import tempfile
from contextlib import suppress
from pathlib import Path

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


_SECRET = b"of the host"
_THERE = ("read", "dir/read", "up/read", "proc/read")
_LINKS = "ln -s $0/read read; ln -s $0 dir; ln -s ../../../../../../..$0 up; ln -s /proc/self/root$0 proc"


def _plant(host: Path, here: Path) -> dict[str, bytes]:
    """Files of the host that only walls keep from being read and written, and some to send."""
    (here / "tree").mkdir(parents=True)
    (here / "tree/new").write_bytes(b"put")
    host.parent.chmod(0o755)
    for directory in (host, host / "deep"):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)
    for name in ("read", "deep/read"):
        (host / name).write_bytes(_SECRET)
        (host / name).chmod(0o666)
    return _found(host)


def _found(host: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in host.rglob("*")}


async def _host_paths(backend: SandboxBackend, world: World) -> None:
    """What is named from inside, by whatever way, is never a file of the host."""
    with tempfile.TemporaryDirectory() as scratch:
        host, here = Path(scratch, "host"), Path(scratch, "here")
        before = _plant(host, here)
        ways = [str(host), "../" * 24 + str(host)[1:], f"/proc/1/root{host}", f"/proc/self/root{host}"]
        async with await backend.create(world) as sandbox:
            await sandbox.exec(["sh", "-c", _LINKS, str(host)])
            for path in (*_THERE, *(f"{way}/read" for way in ways)):
                with suppress(OSError):
                    content = await sandbox.read(path)
                    raise AssertionError(f"a file of the host is not read: {path!r} gave {content!r}")
                with suppress(OSError):
                    await sandbox.get(path, str(here / "got"))
                    assert (here / "got").is_symlink(), f"nor fetched, by {path!r}"
            for way in (*ways, "dir", "up", "proc"):
                for name in ("read", "new"):
                    with suppress(OSError):
                        await sandbox.write(f"{way}/{name}", b"written")
                    with suppress(OSError):
                        await sandbox.put(str(here / "tree/new"), f"{way}/{name}")
                with suppress(OSError):
                    await sandbox.put(str(here / "tree"), f"{way}/deep")
            assert _found(host) == before, f"no file of the host is made or changed: {_found(host)}"


async def _outside_the_target(backend: SandboxBackend, world: World) -> None:
    """What is fetched stays below the target, also when links of an earlier transfer lie there."""
    with tempfile.TemporaryDirectory() as scratch:
        host, target = Path(scratch, "host"), Path(scratch, "target")
        before = _plant(host, Path(scratch, "here"))
        async with await backend.create(world) as sandbox:
            await sandbox.exec(["sh", "-c", "mkdir t; ln -s $0 t/dir; ln -s $0/read t/read", str(host)])
            await sandbox.get("t", str(target))
            await sandbox.exec("rm t/*; mkdir t/dir; echo in > t/read; echo in > t/dir/read; echo in > t/dir/new")
            with suppress(OSError):
                await sandbox.get("t", str(target))
            assert _found(host) == before, f"get writes nothing outside its target: {_found(host)}"


CHECKS: tuple[Check, ...] = (
    _host_paths,
    _outside_the_target,
    _no_network,
    _no_privileges,
    _no_machine,
)
