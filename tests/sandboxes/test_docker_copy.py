"""Containers that are spoken to through their engine: where nobody may enter them, or the engine is elsewhere."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import docker
import pytest
from envgym_sandboxes.docker_engine import runtime
from envgym_sandboxes.docker_engine.agent import Cargo
from envgym_sandboxes.docker_engine.copying import DockerCopyBackend

from envgym.errors import EnvgymError, InfrastructureFailure, SandboxDied
from envgym.testing.check_sandbox import CHECKS, check_sandbox

pytestmark = [pytest.mark.timeout(120)]


@cache
def copying_fails() -> str:
    report = DockerCopyBackend().report()
    return "" if report.works else f"no docker-copy backend here: {report.missing}; fix: {report.fix}"


@pytest.fixture
def make_copying(state: Path, base_image, containers) -> Iterator[Callable[..., DockerCopyBackend]]:
    if copying_fails():
        pytest.skip(copying_fails())
    yield partial(DockerCopyBackend, root=state)
    assert containers(os.getpid()) == [], "no test leaves a container"
    assert [path for path in state.iterdir() if path.name != "durable"] == [], "nor a file"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_docker_copy_backend_keeps_the_contract(make_copying, boxed, traces):
    refused = {"inodes", "file_bytes", "io_bytes_s", "peak_bytes_of_a_string", "memory"}
    kept = check_sandbox(make_copying, world=boxed, must=set(CHECKS) - refused, traces=traces)
    asyncio.run(asyncio.wait_for(kept, 380))


@pytest.mark.slow
def test_set_up_commands_that_meet_the_end_of_the_backend_leave_no_container(make_copying, boxed, run):
    async def main():
        for lead_s in (0.1, 0.4, 0.8):
            backend = make_copying()
            await (await backend.create(boxed)).close()
            endless = boxed.model_copy(update={"setup": ("sleep 4245",)})
            making = asyncio.ensure_future(backend.create(endless))
            await asyncio.sleep(lead_s)
            await backend.close()  # which does not wait for the command: it would not be back before the test's end
            with pytest.raises(InfrastructureFailure, match="this docker-copy backend is closed"):
                await making

    run(main())


class Far:
    """An engine elsewhere: its socket behind a port of the loopback."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix("unix://")
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = self._server.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as engine:
            engine.connect(self._path)
            other = {near: engine, engine: near}
            reading = [near, engine]
            while reading:
                for one in select.select(reading, [], [])[0]:
                    with contextlib.suppress(OSError):
                        if data := one.recv(1 << 16):
                            other[one].sendall(data)
                            continue
                        other[one].shutdown(socket.SHUT_WR)
                    reading.remove(one)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.mark.slow
def test_an_engine_elsewhere_serves_too(make_copying, boxed, run):
    async def main():
        far = Far(DockerCopyBackend().address)
        async with make_copying(address=far.address) as backend, await backend.create(boxed) as sandbox:
            result = await sandbox.exec("id -u; pwd; cat given.txt; python3 -c 'import sys; print(sys.executable)'")
            assert result.stdout == b"1000\n/work\ngiven\n/usr/bin/python3\n", result
            await sandbox.exec("x=1; ln given.txt other; mkdir -p ~/.cache; echo y > /tmp/y; chmod 700 given.txt")
            async with await sandbox.fork() as fork:
                result = await fork.exec("echo $x; stat -c '%a %h' given.txt; cat /tmp/y; ls -d ~/.cache")
                assert result.stdout == b"1\n700 2\ny\n/home/agent/.cache\n", result
                await fork.exec("rm given.txt")
            assert await sandbox.read("given.txt") == b"given\n"
            report = await asyncio.to_thread(backend.report)
            assert report.works, report
        far.close()

    run(main())


@pytest.mark.slow
def test_the_agent_is_alone_with_its_streams(make_copying, boxed, run):
    look = "tr '\\0' ' ' < /proc/1/cmdline | cut -c1-20; kill -9 1; kill -15 1; ls -l /proc/1/fd"

    async def main():
        async with make_copying() as backend, await backend.create(boxed) as sandbox:
            result = await sandbox.exec(look)
            assert result.stdout.startswith(f"{runtime.INSIDE}/ld.so"[:20].encode())
            assert b"Permission denied" in result.stderr
            result = await sandbox.exec(["sh", "-c", "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status"])
            assert result.stdout.split()[1::2] == [b"0" * 16, b"1", b"2"]
            assert not (await sandbox.exec(["touch", "/usr/x"])).ok
            result = await sandbox.exec(["sh", "-c", "ls /proc/self/fd; cat"])
            assert result.stdout.split() == [b"0", b"1", b"2", b"3"], "no stream of the agent's is inherited"

    run(main())


OWNER_PROGRAM = """
import asyncio, sys
from envgym.task import World
from envgym_sandboxes.docker_engine.copying import DockerCopyBackend

async def main():
    backend = DockerCopyBackend(root=sys.argv[1])
    sandbox = await backend.create(World(image="base"))
    await sandbox.exec("setsid sleep 4242 &")
    print("ready", flush=True)
    await sandbox.exec(["sleep", "4242"])

asyncio.run(main())
"""


@pytest.mark.slow
def test_m_kill_9_of_the_owner_ends_its_containers(make_copying, state, containers):
    command = [sys.executable, "-c", OWNER_PROGRAM, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        made = containers(owner.pid)
        owner.send_signal(signal.SIGKILL)
    assert len(made) == 1
    api = docker.APIClient(DockerCopyBackend().address, version="auto")
    deadline = time.monotonic() + 20
    while (running := api.inspect_container(made[0])["State"]["Running"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    api.close()
    assert not running, "its input has ended, and so it does, before anybody reaps it"
    assert f"container {made[0].lstrip('/')}" in make_copying().reap()
    assert containers(owner.pid) == []


@pytest.mark.slow
def test_a_killed_container_is_a_dead_sandbox(make_copying, boxed, run, containers):
    async def main():
        async with make_copying() as backend, await backend.create(boxed) as sandbox:
            running = asyncio.ensure_future(sandbox.exec(["sleep", "4242"]))
            await sandbox.exec(["true"])
            (name,) = containers(os.getpid())
            await backend._client.call(backend._client.remove, name)
            with pytest.raises(SandboxDied):
                await running
            for call in (sandbox.snapshot(), sandbox.digest(), sandbox.fork()):
                with pytest.raises(EnvgymError):
                    await call

    run(main())


@pytest.mark.slow
def test_a_sandbox_whose_output_nobody_takes_is_closed_at_once(make_copying, boxed, run, tmp_path, containers):
    """An engine waits with a removal until all that a container wrote has been taken, by those who are attached."""

    async def main():
        async with make_copying() as backend, await backend.create(boxed) as sandbox:
            await sandbox.exec("head -c 30000000 /dev/zero > big")
            fetching = [asyncio.ensure_future(sandbox.get("big", str(tmp_path / f"{n}"))) for n in range(4)]
            await asyncio.sleep(0.05)
            time.sleep(0.5)  # noqa: ASYNC251  # this loop reads nothing, until all buffers on the way are full
            async with asyncio.timeout(15):
                await sandbox.close()
            for ended in await asyncio.gather(*fetching, return_exceptions=True):
                assert isinstance(ended, SandboxDied), ended
            assert containers(os.getpid()) == []

    run(main())


class Life:
    """What an agent's cargo needs of its init."""

    def __init__(self) -> None:
        self.said: list[dict[str, object]] = []

    def say(self, head: dict[str, object], _body: bytes = b"") -> None:
        self.said.append(head)

    def leave(self) -> None:
        raise SystemExit


def test_an_agent_does_not_live_in_a_part_of_a_state(tmp_path):
    life = Life()
    with pytest.raises(SystemExit):
        Cargo(life).do_load({"top": str(tmp_path), "last": True}, b"no state")
    assert "could not be brought" in str(life.said[0]["dead"])


@pytest.mark.slow
def test_a_state_is_copied_with_what_its_owner_kept_himself_out_of(make_copying, boxed, run):
    """The agent has no rights above those of the files' owner, whom a closed directory lets neither in nor out."""
    odd = "mkdir -p shut/below; echo kept > shut/file; echo > last; chmod 6755 last; mkfifo pipe; "
    odd += "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; chmod 0 shut/file shut"
    look = "stat -c '%n %F %a' *; chmod 700 shut; stat -c '%n %F %a' shut/*; chmod 600 shut/file; cat shut/file"

    async def main():
        async with make_copying() as backend, await backend.create(boxed) as sandbox:
            assert (await sandbox.exec(odd)).ok
            digest = await sandbox.digest()
            async with await sandbox.fork() as fork:
                assert await fork.digest() == digest
                seen = (await fork.exec(look)).stdout
            assert seen == (await sandbox.exec(look)).stdout
            assert b"shut directory 0\n" in seen, seen
            assert b"last regular file 6755\n" in seen, seen
            assert seen.endswith(b"shut/below directory 755\nshut/file regular file 0\nkept\n"), seen

    run(main())


@pytest.mark.slow
def test_worlds_that_cannot_be_copied_are_refused(make_copying, boxed, run):
    bounds = {"file_bytes": 1 << 20, "inodes": 1000, "io_bytes_s": 1 << 20}
    wrong = [({"image": "host"}, "image"), ({"workdir": "/"}, "workdir"), ({"files": {"/etc/x": ""}}, "outside")]
    wrong += [
        ({"resources": boxed.resources.model_copy(update={name: value})}, name) for name, value in bounds.items()
    ]

    async def main():
        async with make_copying() as backend:
            for update, says in wrong:
                with pytest.raises(ValueError, match=says):
                    await backend.create(boxed.model_copy(update=update))

    run(main())
