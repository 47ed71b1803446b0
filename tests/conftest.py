"""What holds for every test: core tests first, CI skips nothing that it installed, scripts can ask what failed."""

import gc
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine must not fail a property: pytest's own timeout bounds every test. CI draws the same for the same
# test, so that no commit is refused for what another one did; new draws are made elsewhere (`make laws`).
settings.register_profile("envgym", deadline=None)
settings.register_profile("envgym-ci", deadline=None, derandomize=True)
settings.load_profile("envgym-ci" if os.environ.get("ENVGYM_CI") else "envgym")

TURNS = 6  # `ENVGYM_TURN` is one of so many

_SKIPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)  # stable: slow ones last
    turn = os.environ.get("ENVGYM_TURN", "all")
    if turn != "all":
        later = set(_of_other_turns(items, int(turn)))
        config.hook.pytest_deselected(items=[*later])
        items[:] = [item for item in items if item not in later]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported and collected stays: nobody looks through it again for what could go."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _of_other_turns(items: list[pytest.Item], turn: int) -> Iterator[pytest.Item]:
    """One idea over many kinds of thing: of each such group all but a share; everything else is in every run.

    A share has one of each `turns` cases that follow each other, and not always the one at the same place of these:
    what two parameters make has neighbours that are alike, and so has what is as far apart as one of them is long.
    """
    places = Counter[str]()
    for item in items:
        if turns := _turns(item):
            group = item.nodeid.partition("[")[0]
            place = places[group]
            if (zlib.crc32(group.encode()) + place + place // turns) % turns != turn % turns:
                yield item
            places[group] += 1


def _turns(item: pytest.Item) -> int:
    """Over how many commits the cases of its group are spread; 0: it is played for each."""
    if item.get_closest_marker("slow") is None:
        return 0
    if marker := item.get_closest_marker("turns"):
        turns = int(marker.args[0]) if marker.args else 3
        if turns < 2 or TURNS % turns:
            raise pytest.UsageError(f"{item.nodeid}: turns({turns}) does not divide {TURNS}")
        return turns
    return TURNS if item.nodeid.startswith("tests/security/") else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    # A lent GPU is the one thing that CI does not have and does not install
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        _note(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield  # a module that skips itself has no tests that could be seen to be missing
    if report.skipped:
        _note(collector, report)
    return report


def _note(node: pytest.Item | pytest.Collector, report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    node.config.stash[_SKIPPED].append(f"{node.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("ENVGYM_CI") and session.config.stash[_SKIPPED] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A line for each test that failed, in the file that scripts/test.sh names: it runs these again, alone."""
    named = os.environ.get("ENVGYM_FAILED")
    if named and report.failed:
        with Path(named).open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_SKIPPED]
    if os.environ.get("ENVGYM_CI") and skipped:
        terminalreporter.section("skipped in CI, which counts as failed", red=True)
        for line in skipped:
            terminalreporter.line(line)
