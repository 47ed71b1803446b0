"""CI skips nothing that it installed, and plays in turns: what conftest.py makes of tests and modules."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

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


@pytest.fixture(scope="module")
def conftest():
    spec = importlib.util.spec_from_file_location("conftest_of_tests", Path(__file__).with_name("conftest.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(nodeid, **marks):
    return SimpleNamespace(
        nodeid=nodeid,
        get_closest_marker=lambda name: SimpleNamespace(args=marks[name]) if name in marks else None,
    )


def test_every_case_has_its_turn_and_turns_are_of_one_size_and_of_every_kind(conftest):
    """Six backends attacked in six ways each: a sixth has one case of each backend, and of each way."""
    attacks = [
        case(f"tests/security/test_a.py::test_a[{one}-{way}]", slow=()) for one in range(6) for way in range(6)
    ]
    thirds = [case(f"tests/test_b.py::test_b[{one}]", slow=(), turns=()) for one in range(7)]
    always = [case("tests/security/test_a.py::test_core"), case("tests/test_b.py::test_slow", slow=())]
    items = [*attacks, *thirds, *always]
    played = Counter()
    for turn in range(conftest.TURNS):
        later = {item.nodeid for item in conftest._of_other_turns(items, turn)}
        now = [item.nodeid for item in attacks if item.nodeid not in later]
        assert sorted(name[-4] for name in now) == sorted(name[-2] for name in now) == [*"012345"]
        assert 2 <= sum(item.nodeid not in later for item in thirds) <= 3
        played.update(item.nodeid for item in items if item.nodeid not in later)
    assert {played[item.nodeid] for item in attacks} == {1}
    assert {played[item.nodeid] for item in thirds} == {2}
    assert {played[item.nodeid] for item in always} == {conftest.TURNS}


def test_turns_that_no_commit_would_have_are_refused(conftest):
    for count in (0, 1, 4):
        with pytest.raises(pytest.UsageError, match=rf"test_b: turns\({count}\) does not divide 6"):
            list(conftest._of_other_turns([case("tests/test_b.py::test_b", slow=(), turns=(count,))], 0))
