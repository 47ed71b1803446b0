import pytest
from envgym_environments.code_repair import runner
from envgym_environments.code_repair.baseline import package_world
from envgym_environments.code_repair.referee import Referee
from envgym_environments.code_repair.runner import TestReport, Trace, run_tests
from envgym_environments.code_repair.sources import layout_of, source_tree

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(60)]
TEST = "tests/test_small.py::"


@pytest.fixture
def reports(small, cache, in_backend):
    """Run the tests of `small` with some files replaced, and give the report."""

    def run(files: dict[str, str] | None = None, **options: object) -> TestReport:
        tree = source_tree(small, cache=cache)
        given: list[TestReport] = []

        async def body(backend) -> None:
            overlay = {f"{runner.WORKDIR}/{name}": text for name, text in (files or {}).items()}
            async with await backend.create(package_world(tree, overlay)) as sandbox:
                given.append(await run_tests(sandbox, layout_of(small, tree), **options))

        in_backend(body)
        return given[0]

    return run


@pytest.fixture
def code(small, cache) -> str:
    return (source_tree(small, cache=cache) / "small.py").read_text()


def test_an_unbroken_suite_passes_and_is_confirmed(reports) -> None:
    report = reports()
    assert report.ok
    assert len(report.passing) == 8
    assert report.exit_code == 0
    assert not report.doubt


def test_a_selection_runs_only_its_tests_and_an_unknown_one_is_an_error(reports) -> None:
    report = reports(selection=[TEST + "test_last", TEST + "test_nothing"])
    assert report.outcomes == {TEST + "test_last": "passed", TEST + "test_nothing": "error"}
    assert not report.ok


@pytest.mark.slow
def test_an_empty_selection_is_refused(reports) -> None:
    with pytest.raises(ValueError, match="empty"):
        reports(selection=[])


def test_every_fixture_of_pytests_own_plugins_is_there_and_those_of_a_conftest_too(reports) -> None:
    """A session looks for the first ones in what was found once."""
    given = ("caplog", "capfd", "capsys", "doctest_namespace", "mine", "monkeypatch", "pytestconfig", "recwarn",
             "record_property", "record_testsuite_property", "subtests", "tmp_path", "tmpdir")  # fmt: skip
    texts = [f"def test_{name}({name}):\n    assert {name} is not None\n" for name in given]
    report = reports(
        {
            "tests/test_small.py": "\n".join(texts),
            "tests/conftest.py": "import pytest\n\n@pytest.fixture\ndef mine():\n    return 3\n",
        }
    )
    assert report.outcomes == {f"{TEST}test_{name}": "passed" for name in given}


def test_a_warm_interpreter_has_what_suites_import_of_the_standard_library(reports) -> None:
    seen = "import sys\nSEEN = set(sys.modules)\n"
    text = """
import sys
from small import SEEN

def test_common():
    assert {"asyncio", "unittest.mock", "statistics", "uuid", "zipfile"} <= SEEN

def test_nothing_else():
    assert not {"numpy", "pydantic"} & SEEN
"""
    report = reports({"small.py": seen, "tests/test_small.py": text})
    assert report.outcomes == {TEST + "test_common": "passed", TEST + "test_nothing_else": "passed"}, report.errors


def test_a_file_that_is_named_like_a_module_of_the_standard_library_is_what_its_name_means(reports) -> None:
    """As where nothing was imported early: beside the package, and beside the tests."""
    text = """
import fractions
import statistics

def test_package():
    assert statistics.mean == "mine"

def test_beside():
    assert fractions.Fraction == "mine"
"""
    files = {"statistics.py": "mean = 'mine'\n", "tests/fractions.py": "Fraction = 'mine'\n"}
    report = reports({**files, "small.py": "import statistics\n", "tests/test_small.py": text})
    assert report.outcomes == {TEST + "test_package": "passed", TEST + "test_beside": "passed"}, report.errors


def test_a_failure_has_its_error_line_and_the_packages_frames(reports, code) -> None:
    report = reports(
        {"small.py": code.replace("value, high), low", "x").replace("min(value, high)", "hex(value).bad")}
    )
    error = report.errors[TEST + "test_clamp[5-3]"]
    assert error == "AttributeError: 'str' object has no attribute 'bad'"
    line = next(i for i, text in enumerate(code.splitlines(), 1) if "min(value" in text)
    assert report.frames[TEST + "test_clamp[5-3]"] == (("small.py", line),)


def test_addresses_and_temporary_paths_are_left_out_of_error_lines(reports, code) -> None:
    broken = code.replace("return values[-count:]", "raise KeyError(f'{object()} in /tmp/x1/y after 1.25 s')")
    assert reports({"small.py": broken}).errors[TEST + "test_last"] == (
        "KeyError: '<object object at 0x...> in <tmp> after <time>'"
    )


def test_traced_lines_name_what_each_test_executed(reports, code) -> None:
    report = reports(trace=Trace())
    line = next(i for i, text in enumerate(code.splitlines(), 1) if "values[-count:]" in text)
    assert report.lines[TEST + "test_last"] == {"small.py": (line - 1, line)}
    assert report.lines[TEST + "test_unrelated"] == {}
    assert line - 1 in report.import_lines["small.py"]


def test_a_test_that_hangs_fails_by_its_deadline_and_the_others_still_run(reports, code) -> None:
    hangs = code.replace("return values[-count:]", "while True: pass")
    report = reports({"small.py": hangs}, test_timeout_s=0.3)
    assert report.failing == (TEST + "test_last",)
    assert "Deadline" in report.errors[TEST + "test_last"]
    assert not report.doubt


@pytest.mark.slow
def test_a_test_that_waits_for_ever_fails_by_its_deadline(reports, code) -> None:
    waits = code.replace("return values[-count:]", "import time; time.sleep(1000)")
    report = reports({"small.py": waits}, test_timeout_s=0.3)
    assert report.failing == (TEST + "test_last",)
    assert "Deadline" in report.errors[TEST + "test_last"]
    assert not report.repeats, "time on the wall is not"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_a_test_waits_for_a_processor_is_not_counted(reports, code) -> None:
    """Beside many others that compute, a fifth of a second takes some; so it does for a waited thread."""
    spin = "end = time.process_time() + 0.25\n        while time.process_time() < end: pass"
    text = f"""
import os, threading, time

def beside(body):
    others = []
    try:
        for _ in range(8 * os.cpu_count()):
            if not (pid := os.fork()):
                while True: pass
            others.append(pid)
        body()
    finally:
        for pid in others:
            os.kill(pid, 9)  # waiting for their end would be waiting indeed

def test_total():
    began = time.perf_counter()
    def body():
        {spin}
    beside(body)
    assert time.perf_counter() - began > 1.6, "else nothing was tried"

def test_threads():
    def body():
        {spin}
    thread = threading.Thread(target=body)
    beside(lambda: (thread.start(), thread.join()))

def test_waits():
    beside(lambda: time.sleep(1000))
"""
    report = reports({"tests/test_small.py": text}, test_timeout_s=0.4)
    assert report.outcomes[TEST + "test_total"] == "passed", report.errors
    assert report.outcomes[TEST + "test_threads"] == "passed", report.errors
    assert "Deadline" in report.errors[TEST + "test_waits"]


def test_a_deadline_of_processor_time_repeats(reports, code) -> None:
    spins = "import signal; signal.setitimer(signal.ITIMER_REAL, 0)  # the other deadline, of a busy machine\n"
    report = reports(
        {"small.py": code.replace("return values[-count:]", spins + "    while True: pass")},
        selection=[TEST + "test_last"],
        test_timeout_s=0.3,
    )
    assert "Deadline" in report.errors[TEST + "test_last"]
    assert report.repeats


@pytest.mark.slow
def test_the_tests_beside_some_are_a_part_of_all_and_hold_their_neighbours(reports) -> None:
    every = list(reports().outcomes)
    middle = every[4]
    around = list(reports(trace=Trace((middle,), 4)).outcomes)
    assert set(every[3:6]) <= set(around) <= set(every)
    assert len(around) == 5
    assert around == [name for name in every if name in around], "in running order"
    assert list(reports(trace=Trace((middle,), 99)).outcomes) == every


@pytest.mark.slow
def test_a_run_that_outlives_its_deadline_is_killed_and_never_a_pass(reports, code) -> None:
    hangs = code.replace("return values[-count:]", "while True: pass")
    report = reports({"small.py": hangs}, timeout_s=2.0)
    assert report.timed_out
    assert not report.repeats
    assert not report.ok
    assert report.outcomes.get(TEST + "test_unrelated") != "passed"


@pytest.mark.parametrize(
    ("fatal", "repeats"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),
        ("import os; os._exit(3)", True),
        ("raise MemoryError('the bound of the sandbox')", True),
    ],
)
def test_only_a_kill_from_outside_does_not_repeat(fatal, repeats, reports, code) -> None:
    report = reports({"small.py": code.replace("return values[-count:]", fatal)})
    assert report.failing == (TEST + "test_last",)
    assert report.repeats == repeats


def test_a_broken_import_is_a_collection_error(reports) -> None:
    report = reports({"small.py": "import nothing_here\n"}, selection=[TEST + "test_last"])
    assert report.collection_errors == {
        "tests/test_small.py": "ModuleNotFoundError: No module named 'nothing_here'"
    }
    assert report.outcomes == {TEST + "test_last": "error"}


@pytest.mark.parametrize(
    "cheat",
    [
        "import os; os._exit(0)",
        "import os, sys; sys.exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import pytest; pytest.exit('all good', returncode=0)",
    ],
)
def test_code_that_ends_the_process_early_never_passes(cheat, reports, code) -> None:
    report = reports({"small.py": code.replace("return values[-count:]", cheat)})
    assert not report.ok
    assert report.outcomes.get(TEST + "test_last") != "passed"


def test_printing_results_is_no_result(reports, code) -> None:
    forged = code.replace(
        "return values[-count:]",
        'import os; os.write(1, b\'["end", "passed", "", [], 0.0]\\n["done", 0, 8, 0]\\n\'); return None',
    )
    report = reports({"small.py": forged})
    assert report.failing == (TEST + "test_last",)


def test_results_that_contradict_the_exit_code_are_doubted() -> None:
    def broken(status: int, *lines: str) -> str:
        referee = Referee()
        for line in lines:
            referee.take(line.encode())
        referee.ended(status)
        return referee.broken

    passed = ('["items", ["t"]]', '["start", "t"]', '["end", "passed", "", [], 0.1]')
    assert not broken(0, *passed, '["done", 0, 1]')
    assert broken(1, *passed, '["done", 0, 1]')
    assert broken(1, *passed, '["done", 1, 1]')
    assert broken(0, *passed, '["done", 0, 2]')
    assert broken(0, *passed)
    failed = ('["items", ["t"]]', '["start", "t"]', '["end", "failed", "E", [], 0.1]')
    assert broken(0, *failed, '["done", 0, 1]')
