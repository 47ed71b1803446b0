"""The same contract as an ordinary user: in a process that gave root up, or, without root, in this one's suite."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import envgym_sandboxes
import pytest

import envgym

DROP = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
SCRIPT = """
import asyncio, os, sys
from envgym.limits import Resources
from envgym.task import World
from envgym.testing.check_sandbox import check_sandbox
from envgym_sandboxes.namespace import NamespaceBackend

assert os.getuid() == 4242 and NamespaceBackend(root=sys.argv[1]).report().works
ran = asyncio.run(check_sandbox(lambda: NamespaceBackend(root=sys.argv[1])))
print(len(ran), sorted(os.listdir(sys.argv[1])))
"""


@pytest.mark.timeout(90)
def test_namespaces_work_for_an_ordinary_user(state):
    if os.geteuid() != 0:
        pytest.skip("this suite itself runs as an ordinary user")
    python = next(
        iter(filter(None, map(_usable, (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3")))), None
    )
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("there is no interpreter of this version (or no setpriv) that an ordinary user may run")
    own = state / "own"
    own.mkdir()
    os.chown(own, 4242, 4242)
    roots = [sysconfig.get_path("purelib"), *(str(Path(m.__file__).parents[1]) for m in (envgym, envgym_sandboxes))]
    result = subprocess.run(
        [*DROP, python, "-P", "-c", SCRIPT, str(own)],
        env={"PYTHONPATH": ":".join(roots), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    if "user.max_user_namespaces" in result.stderr and "cannot run here" in result.stderr:
        pytest.skip(f"user namespaces are not for ordinary users here: {result.stderr[-300:]}")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[1] == "[]", f"something was left: {result.stdout}"


def _usable(python: str) -> str | None:
    """The interpreter, if an ordinary user can run it and it is of this version."""
    if not os.path.exists(python):
        return None
    code = "import sys; print(*sys.version_info[:2])"
    try:
        told = subprocess.run(
            [*DROP, "sh", "-c", f"exec {python} -I -c '{code}'"],  # setpriv itself still may run anything
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return None
    return python if told.stdout.split() == [str(part) for part in sys.version_info[:2]] else None
