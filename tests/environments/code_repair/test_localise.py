import math

import pytest
from envgym_environments.code_repair.localise import Suspect, localise, ochiai, rank, spectrum
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.runner import TestReport
from envgym_environments.code_repair.trials import Trials


def test_ochiai_by_hand() -> None:
    assert ochiai(2, 2, 0) == 1.0
    assert ochiai(1, 2, 1) == pytest.approx(1 / math.sqrt(2 * 2))
    assert ochiai(2, 2, 6) == 0.5
    assert ochiai(0, 3, 5) == 0.0


EVERY = {"a.py": {line: line for line in range(9)}}


def report(lines: dict[str, tuple[int, ...]], frames: dict[str, tuple[tuple[str, int], ...]]) -> TestReport:
    return TestReport(
        outcomes={name: "failed" if name.startswith("f") else "passed" for name in lines},
        lines={name: {"a.py": numbers} for name, numbers in lines.items()},
        frames=frames,
    )


def ranked(
    report: TestReport, failing: list[str], logical: dict[str, dict[int, int]], **many: int
) -> list[Suspect]:
    return rank(spectrum(report, failing, logical), lambda path, line: many.get(f"line_{line}", 0))


def test_lines_that_only_failing_tests_execute_come_first_and_unexecuted_ones_never() -> None:
    found = ranked(report({"f1": (1, 2, 3), "f2": (2, 3), "p1": (1, 3, 4)}, {}), ["f1", "f2"], EVERY)
    assert [one.line for one in found] == [2, 3, 1]
    assert [one.score for one in found] == [1.0, round(2 / math.sqrt(2 * 3), 6), 0.5]


def test_ties_go_to_the_traceback_then_to_lines_that_compute_then_to_line_order() -> None:
    raised = report({"f1": (1, 2, 3, 4, 5, 6)}, {"f1": (("a.py", 4), ("a.py", 2))})
    assert [one.line for one in ranked(raised, ["f1"], EVERY, line_5=2, line_2=1)] == [4, 2, 5, 1, 3, 6]


def test_lines_of_other_files_than_the_package_are_left_out() -> None:
    assert [one.line for one in ranked(report({"f1": (1, 2)}, {}), ["f1"], {"a.py": {2: 2}})] == [2]


@pytest.mark.namespaces
def test_the_broken_line_of_a_real_run_is_listed_and_the_second_time_nothing_runs(broken, in_backend) -> None:
    async def body(backend) -> None:
        memo = Memo()
        trials = Trials(broken, backend, memo)
        found = await localise(trials)
        source = await trials.source("small.py")
        assert source is not None
        rows = [source.split("\n")[one.line - 1].strip() for one in found]
        assert "result -= value" in rows[:4]
        assert all(one.path == "small.py" for one in found)
        assert await localise(trials) == found
        assert (memo.misses, memo.hits) == (1, 1)

    in_backend(body)
