"""CI skips nothing that it installs: what conftest.py makes of skipped tests and modules."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PASSES = "def test_passes():\n    pass\n"
GPU = 'import pytest\n\n@pytest.mark.gpu\ndef test_gpu():\n    pytest.skip("no GPU")\n'
XFAIL = "import pytest\n\n@pytest.mark.xfail\ndef test_wrong():\n    assert False\n"
MODULE = 'import pytest\n\npytest.importorskip("no_such_module")\n\ndef test_one():\n    pass\n'
TEST = 'import pytest\n\ndef test_one():\n    pytest.skip("not here")\n'


def outcome(place: Path, ci: bool, **modules: str) -> tuple[int, str]:
    """Exit status and output of pytest on these modules, with our conftest.py beside them."""
    shutil.copy(Path(__file__).with_name("conftest.py"), place)
    place.joinpath("pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    for name, text in modules.items():
        place.joinpath(f"test_{name}.py").write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "ENVGYM_CI"}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | ({"ENVGYM_CI": "1"} if ci else {})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def test_skipped_tests_and_skipped_modules_fail_ci_and_nothing_else(tmp_path):
    code, output = outcome(tmp_path, True, passes=PASSES, test=TEST, module=MODULE)
    assert code == 1, output
    listed = output.partition("skipped in CI")[2]
    assert "test_test.py::test_one: " in listed
    assert "test_module.py: " in listed
    assert outcome(tmp_path, False)[0] == 0


def test_what_needs_a_lent_gpu_and_what_is_known_to_fail_may_be_missing_in_ci(tmp_path):
    code, output = outcome(tmp_path, True, passes=PASSES, gpu=GPU, xfail=XFAIL)
    assert code == 0, output


def test_a_script_is_told_which_tests_failed(tmp_path, monkeypatch):
    named = tmp_path / "failed.txt"
    monkeypatch.setenv("ENVGYM_FAILED", str(named))
    code, output = outcome(tmp_path, False, passes=PASSES, wrong="def test_wrong():\n    assert False\n")
    assert code == 1, output
    assert named.read_text().splitlines() == ["test_wrong.py::test_wrong"]
