"""The readers by name, as `Suite.reader` gives it. The runners that write JUnit XML share one."""

from dataclasses import replace

from envgym_environments.code_repair.suites.reader_foreign import FOREIGN
from envgym_environments.code_repair.suites.reader_json import GO_JSON, GTEST_JSON, JEST_JSON, MOCHA_JSON
from envgym_environments.code_repair.suites.reader_junit import JUNIT
from envgym_environments.code_repair.suites.reader_log import (
    CARGO,
    EXIT_CODE,
    NODE_SPEC,
    PYTEST_LOG,
    UNITTEST_LOG,
)
from envgym_environments.code_repair.suites.reader_node_log import NODE_LOGS
from envgym_environments.code_repair.suites.reader_tap import TAP, TAPE
from envgym_environments.code_repair.suites.results import Reader

__all__ = ["READERS", "reader"]

_JUNIT_WRITERS = ("surefire", "ctest", "gtest-xml", "node-junit", "pytest-junit")

READERS: dict[str, Reader] = {
    one.name: one
    for one in (
        JUNIT,
        *(replace(JUNIT, name=name) for name in _JUNIT_WRITERS),
        TAP,
        TAPE,
        JEST_JSON,
        MOCHA_JSON,
        GTEST_JSON,
        GO_JSON,
        CARGO,
        PYTEST_LOG,
        UNITTEST_LOG,
        NODE_SPEC,
        EXIT_CODE,
        *FOREIGN,
        *NODE_LOGS,
    )
}
"""Name -> reader."""


def reader(name: str) -> Reader:
    """The reader of a suite. Raises ValueError that lists the known ones."""
    if name not in READERS:
        raise ValueError(f"reader is {name!r}; it must be one of {', '.join(sorted(READERS))}")
    return READERS[name]
