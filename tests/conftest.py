"""What holds for every test: core tests run first, and CI skips nothing that it installed."""

import os
from collections.abc import Iterator

import pytest

_SKIPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SKIPPED] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)  # stable: slow ones last


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    # A lent GPU is the one thing that CI does not have and does not install
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        item.config.stash[_SKIPPED].append(f"{item.nodeid}: {reason}")
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("ENVGYM_CI") and session.config.stash[_SKIPPED] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_SKIPPED]
    if os.environ.get("ENVGYM_CI") and skipped:
        terminalreporter.section("skipped in CI, which counts as failed", red=True)
        for line in skipped:
            terminalreporter.line(line)
