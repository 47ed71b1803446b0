import math

import pytest
from envgym_environments.code_repair.localise import localise, ochiai, rank
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


def test_lines_that_only_failing_tests_execute_come_first_and_unexecuted_ones_never() -> None:
    found = rank(report({"f1": (1, 2, 3), "f2": (2, 3), "p1": (1, 3, 4)}, {}), ["f1", "f2"], EVERY)
    assert [one.line for one in found] == [2, 3, 1]
    assert [one.score for one in found] == [1.0, round(2 / math.sqrt(2 * 3), 6), 0.5]


def test_ties_go_to_the_traceback_innermost_first_then_to_line_order() -> None:
    lines = {"f1": (1, 2, 3, 4)}
    found = rank(report(lines, {"f1": (("a.py", 4), ("a.py", 2))}), ["f1"], EVERY)
    assert [one.line for one in found] == [4, 2, 1, 3]


def test_lines_of_other_files_than_the_package_are_left_out() -> None:
    found = rank(report({"f1": (1, 2)}, {}), ["f1"], {"a.py": {2: 2}})
    assert [one.line for one in found] == [2]


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
