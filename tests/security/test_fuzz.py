"""A hostile peer cannot crash, hang or confuse the host: random lies, and what was found with coverage's help.

`make fuzz` runs the same targets for longer, guided by coverage.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
FOUND = sorted((HERE / "fuzz/found").glob("*/*"))
"""Of what was believed once, the bytes that made it so; targets that never believed anything have none."""
LIES = settings(max_examples=300, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", TARGETS)
def test_no_lie_is_believed(target):
    @LIES
    @example(b"")
    @given(data=st.binary(max_size=300))
    def lies(data: bytes) -> None:
        TARGETS[target](data)

    lies()


def test_every_lie_that_was_found_is_one_of_a_target():
    assert len(FOUND) >= 3
    assert {path.parent.name for path in FOUND} <= set(TARGETS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", [pytest.param(path, id=f"{path.parent.name}-{path.name}") for path in FOUND])
def test_lies_that_were_once_believed_are_not_again(path):
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", TARGETS)
def test_lies_guided_by_coverage(target, tmp_path):
    runs = 3000 if target in ("decoder", "place", "proxied") else 600
    command = [
        sys.executable,
        str(HERE / "fuzz/guided.py"),
        target,
        str(tmp_path),
        f"-runs={runs}",
        "-max_len=300",
        "-seed=1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert f"Done {runs}" in done.stderr or "DONE" in done.stderr, done.stderr[-2000:]
