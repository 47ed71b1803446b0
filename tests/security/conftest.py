"""Attacks: every one is run in every isolating backend, and the host is looked at before and after.

`kit/attack_backends.py` is the registry, and says what a backend declares not to protect. CONTRIBUTING: an attack is
a test with the fixture `cell`; what it finds is mended or declared.
"""

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("kit")))

from attack_backends import BACKENDS, Backend, weakness
from attack_cell import Cell, OwnerProcess
from attack_host import Host, usable_python

USER = 4242
DROP = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        first, *others = (pytest.param(one, id=one.name) for one in BACKENDS)  # the core suite attacks the first
        backends = [first, *(pytest.param(*one.values, id=one.id, marks=pytest.mark.slow) for one in others)]
        metafunc.parametrize("owner", backends, indirect=True, scope="session")


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """The host to attack: as root, with a process of the user whom the ordinary backends belong to."""
    top = Path(tempfile.mkdtemp(prefix="envgym-canary-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    top.chmod(0o755)
    host = Host(top)
    try:
        host.add_file(top / "readable", "file of the host")
        host.add_file(top / "home/.ssh/id_ed25519", "key in a home", 0o600)
        host.add_file(top / "home/.aws/credentials", "credentials in a home")
        host.add_file(Path(tempfile.gettempdir()) / f"envgym-canary-{os.getpid()}", "file in /tmp")
        if os.geteuid() == 0:
            host.add_file(Path(f"/etc/envgym-canary-{os.getpid()}"), "root's file in /etc", 0o600)
            os.chown(top / "home/.ssh/id_ed25519", USER, USER)
        host.listen()
        host.start_target("same user", [sys.executable])
        if os.geteuid() == 0 and (python := usable_python(DROP)):
            host.start_target("ordinary user", [*DROP, python])
        yield host
    finally:
        host.close()


@cache
def _python(ordinary: bool) -> str | None:
    if not ordinary or os.geteuid() != 0:
        return sys.executable
    return usable_python(DROP) if shutil.which("setpriv") else None


@cache
def _absent(made_by: str) -> str:
    module, _, name = made_by.partition(":")
    report = getattr(importlib.import_module(module), name)().report()
    return "" if report.works else f"no {report.backend} backend here: {report.missing}; fix: {report.fix}"


@pytest.fixture(scope="session")
def owner(host: Host, request: pytest.FixtureRequest) -> Iterator[OwnerProcess]:
    """The process that owns the backend; one for all attacks on it."""
    backend: Backend = request.param
    python = _python(backend.ordinary)
    if python is None:
        pytest.skip("there is no interpreter of this version (or no setpriv) that an ordinary user may run")
    if reason := _absent(backend.made_by):
        pytest.skip(reason)
    state = host.top / backend.name
    state.mkdir()
    drop = DROP if backend.ordinary and os.geteuid() == 0 else []
    if drop:
        os.chown(state, USER, USER)
    with OwnerProcess(host, [*drop, python], backend.made_by, state, backend.image) as owner:
        yield owner
    left = [str(path) for path in state.iterdir()]
    assert not left, f"left by a closed backend: {left}"
    state.rmdir()


@pytest.fixture
def cell(owner: OwnerProcess, host: Host, request: pytest.FixtureRequest) -> Iterator[Cell]:
    """One attack's sandboxes; at the end, that the host is as it was and nothing was told.

    What a backend declares not to protect is expected of the attack alone: what holds after it, holds there too.
    """
    declared = weakness(request.node.name, request.node.callspec.params["owner"], owner.groups)
    if declared:
        mark = pytest.mark.xfail(strict=declared.certain, raises=AssertionError, reason=declared.reason)
        request.applymarker(mark)
    try:
        with Cell(owner, host) as cell:
            yield cell
    except AssertionError as error:
        raise RuntimeError(f"after the attack: {error}") if declared else error from None
