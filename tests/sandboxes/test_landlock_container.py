"""Landlock sandboxes in an ordinary container: the engine's own filter, no capability, not root, read-only."""

import io
import os
import sys
import sysconfig
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import envgym_sandboxes
import pytest
from envgym_sandboxes import landlock

import envgym

pytestmark = [pytest.mark.timeout(180)]

docker = pytest.importorskip("docker", reason="the docker SDK is not installed; fix: pip install 'envgym[docker]'")
INSIDE = """
import asyncio, os
from envgym import registry
from envgym.testing.check_sandbox import CHECKS, check_sandbox
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.state import default_root

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert os.getuid() == 4242 and int(status["CapBnd"], 16) == 0 and status["Seccomp"].strip() == "2", status
assert not os.access("/dev/shm/x", os.F_OK) and str(default_root(executable=True)).startswith("/tmp/")
report = NamespaceBackend().report()
assert not report.works, report
if "landlock" not in registry.names("sandboxes"):
    registry.register("sandboxes", "landlock", LandlockBackend)
backend = registry.make_backend("auto")
assert backend.name == "landlock", backend
report = backend.report()
assert any("memory cgroup" in line for line in report.missing), report
refused = {"inodes", "egress", "forwards", "forwards_and_states", "forwards_end"}
without_groups = {"out_of_memory", "peak_bytes_of_a_string", "memory", "cpus", "io_bytes_s"}
ran = asyncio.run(check_sandbox(LandlockBackend, must=set(CHECKS) - refused - without_groups))
print("ran", len(ran), "left", os.listdir(default_root(executable=True)))
"""
SHOWN = ("/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/passwd")


@pytest.fixture
def engine() -> Iterator["docker.APIClient"]:
    if landlock.absence():
        pytest.skip(landlock.absence())
    if not os.environ.get("DOCKER_HOST"):
        pytest.skip("no engine: DOCKER_HOST is not set (scripts/dockerd.sh start prints it)")
    api = docker.APIClient(os.environ["DOCKER_HOST"], version="auto")
    yield api
    api.close()


def interpreter() -> str:
    """One of this version that can be shown inside with nothing but /usr."""
    name = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (os.path.realpath(sys.executable), name):
        if path.startswith("/usr/") and os.path.exists(path):
            return path
    pytest.skip(f"no {name}: the interpreter of this suite is in a place that is not shown to a container")


def bare() -> bytes:
    """An image that is nothing but places to mount at."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("code", "dev", "etc", "proc", "site", "sys", "tmp", "usr"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return file.getvalue()


@pytest.mark.slow
def test_an_unprivileged_container_is_a_place_for_landlock(engine, tmp_path):
    python = interpreter()
    roots = [str(Path(module.__file__).parents[1]) for module in (envgym, envgym_sandboxes)]
    shown = {root: f"/code/{number}" for number, root in enumerate(roots)}
    binds = [f"{path}:{path}:ro" for path in ("/usr", *SHOWN) if os.path.exists(path)]
    binds += [f"{sysconfig.get_path('purelib')}:/site:ro", *(f"{root}:{at}:ro" for root, at in shown.items())]
    name = f"envgym-test-{uuid.uuid4().hex[:12]}"
    engine.import_image_from_data(bare(), repository=name, tag="0")
    container = engine.create_container(
        f"{name}:0",
        [python, "-P", "-c", INSIDE],
        name=name,
        user="4242:4242",
        environment={
            "PYTHONPATH": ":".join([*shown.values(), "/site"]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",  # durable snapshots
        },
        host_config=engine.create_host_config(
            binds=binds,
            cap_drop=["ALL"],
            network_mode="none",
            read_only=True,
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": "exec,mode=1777"},
        ),
    )
    try:
        engine.start(container)
        status = engine.wait(container, timeout=150)["StatusCode"]
        said = engine.logs(container).decode()
    finally:
        engine.remove_container(container, force=True)
        engine.remove_image(f"{name}:0", force=True)
    assert status == 0, said[-3000:]
    assert said.split()[-2:] == ["left", "[]"], said
