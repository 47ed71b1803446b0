"""What pytest collects is what the registry says: every attack in every backend, and weaknesses of these alone."""

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from attack_backends import BACKENDS, WEAKER, weakness
from attack_host import _ipc

pytestmark = pytest.mark.timeout(60)
FOUND_AT_LEAST = 60
NAMES = sorted((backend.name for backend in BACKENDS), key=len, reverse=True)


@cache
def attacks() -> dict[str, set[str]]:
    """Backend -> the attacks that are run in it, with their kinds: `attack` or `attack[kind]`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    plugins = ["-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", str(Path(__file__).parent)]
    # whoever's turn it is: all attacks are asked for, and failures here are nobody else's
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "ENVGYM_TURN": "all"}
    done = subprocess.run([*command, *plugins], capture_output=True, text=True, env=env, check=False, timeout=50)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for line in done.stdout.splitlines():
        test, _, parameters = line.partition("::")[2].removesuffix("]").partition("[")
        for name in NAMES:
            if parameters == name or parameters.startswith(f"{name}-"):
                kind = parameters.removeprefix(name).removeprefix("-")
                found[name].add(f"{test}[{kind}]" if kind else test)
                break
    return found


@pytest.mark.slow
def test_every_declared_weakness_names_an_attack_and_a_backend():
    assert len(set(NAMES)) == len(BACKENDS)
    for attack, backend in WEAKER:
        assert backend in NAMES
        assert attack in attacks()[backend], f"no attack on {backend} is called {attack}"
        assert WEAKER[attack, backend].reason


def test_a_weakness_is_found_by_the_name_that_pytest_gives_an_attack():
    backends = {backend.name: backend for backend in BACKENDS}
    for (attack, name), declared in WEAKER.items():
        test, _, kind = attack.removesuffix("]").partition("[")
        nodes = [f"{test}[{name}-{kind}]" if kind else f"{test}[{name}]"]
        assert [weakness(node, backends[name], frozenset()) for node in nodes] == [declared]
        grouped = weakness(nodes[0], backends[name], frozenset({"memory", "pids", "cpu"}))
        assert grouped == (None if declared.without else declared)
        assert weakness("test_of_none[x]", backends[name], frozenset()) is None


@pytest.mark.slow
def test_every_attack_is_run_in_every_backend_and_there_are_many():
    every = set.union(*attacks().values())
    for name, found in attacks().items():
        assert found == every, (name, sorted(every - found))
    tests = {attack.partition("[")[0] for attack in every}
    assert len(tests) >= FOUND_AT_LEAST, sorted(tests)


def test_memory_of_system_v_that_stays_is_a_change_of_the_host_and_that_of_a_desktops_programs_is_none():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    before = {*_ipc()}
    number = libc.shmget(0, 4096, 0o1600)
    assert number >= 0
    try:
        at = libc.shmat(number, None, 0)
        assert {*_ipc()} - before >= {f"shm 0 {number}"}, "it stays when nobody uses it any more"
    finally:
        libc.shmctl(number, 0, None)  # IPC_RMID: from now on it ends with its last user
    assert str(number) in [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    assert f"shm 0 {number}" not in _ipc()
    assert libc.shmdt(ctypes.c_void_p(at)) == 0
