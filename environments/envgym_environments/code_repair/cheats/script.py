"""What the scripts of cheats are made of: shell commands, and code that is added to the package under repair.

Where commands run a Python project's tests there is no package: the file that is repaired stands for it.
"""

import posixpath
import re
from collections.abc import Callable, Sequence

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.cheats import Cheat
from envgym_environments.code_repair.patch_text import patch_paths
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.symbols.index import SUFFIXES

__all__ = ["ON_IMPORT", "added", "filled", "first_test", "idle", "module", "repaired", "shell", "top"]

ON_IMPORT = "import sys, os, types, gc, functools"

Play = Callable[[Task], Sequence[Action]]


def idle(_task: Task) -> Sequence[Action]:
    """Submit at once."""
    return [Action.call("submit")]


def repaired(task: Task, suite: Suite) -> str | None:
    """The file that is repaired; of another tool's task, which does not say, the first code of its answer."""
    if isinstance(named := task.metadata.get("module"), str):
        return named
    gold = task.metadata.get("gold")
    patch = gold.get("patch") if isinstance(gold, dict) else None
    paths = [path for _, path in patch_paths(patch)] if isinstance(patch, str) else []
    return next((path for path in paths if path.endswith(SUFFIXES) and suite.repairs(path)), None)


def _of_suite(task: Task) -> str | None:
    """Of a suite the file that is repaired; None of a package."""
    found = task.metadata.get("suite")
    return None if found is None else repaired(task, Suite.model_validate(found)) or "setup.py"


def _package(task: Task) -> str:
    path = _of_suite(task)
    return Layout.of(task).package if path is None else posixpath.dirname(path) or path


def _test_file(task: Task) -> str:
    if _of_suite(task) is None:
        return Layout.of(task).tests[0]
    named = re.search(r"^- (\S+\.py)::", task.prompt, re.MULTILINE)
    return named[1] if named else "tests"


def module(task: Task) -> str:
    """The file that is run when the package is imported, or the one under repair."""
    path = _of_suite(task)
    if path is not None:
        return path
    package = Layout.of(task).package
    return package if package.endswith(".py") else f"{package}/__init__.py"


def top(task: Task) -> str:
    """The name by which tests import the package."""
    if _of_suite(task) is not None:
        return _package(task).removeprefix("src/").removeprefix("lib/").partition("/")[0].removesuffix(".py")
    layout = Layout.of(task)
    return layout.package.removeprefix(f"{layout.source_root}/").partition("/")[0].removesuffix(".py")


def first_test(task: Task) -> str:
    """The first test that the prompt names; the first test file where it names none."""
    named = re.search(r"^- (\S+::\S+)", task.prompt, re.MULTILINE)
    return named[1] if named else _test_file(task)


def filled(text: str, task: Task) -> str:
    """The words in capitals are put in: a script holds braces of its own."""
    words = {
        "PACKAGE_NAME": top(task),
        "PACKAGE_PATH": _package(task),
        "PACKAGE_MODULE": module(task),
        "FIRST_TEST": first_test(task),
        "TEST_FILE": _test_file(task),
    }
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def shell(name: str, family: str, tries: str, *commands: str) -> Cheat:
    """A cheat that runs commands and submits. PACKAGE_NAME and such stand for the task's own."""

    def script(task: Task) -> Sequence[Action]:
        calls = [Action.call("shell", command=filled(command, task)) for command in commands]
        return [*calls, Action.call("submit")]

    return Cheat(name, family, tries, script)


def added(name: str, family: str, tries: str, code: str) -> Cheat:
    """A cheat that adds code to the package, run at the end of its import, and submits."""
    return shell(name, family, tries, f"cat >> PACKAGE_MODULE <<'__END__'\n\n\n{ON_IMPORT}\n{code}\n__END__")
