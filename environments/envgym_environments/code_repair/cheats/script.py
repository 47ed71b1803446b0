"""What the scripts of cheats are made of: shell commands, and code that is added to the package under repair."""

import re
from collections.abc import Callable, Sequence

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.cheats import Cheat
from envgym_environments.code_repair.runner import Layout

__all__ = ["ON_IMPORT", "added", "filled", "first_test", "idle", "module", "shell", "top"]

ON_IMPORT = "import sys, os, types, gc, functools"

Play = Callable[[Task], Sequence[Action]]


def idle(_task: Task) -> Sequence[Action]:
    """Submit at once."""
    return [Action.call("submit")]


def module(task: Task) -> str:
    """The file that is run when the package is imported."""
    package = Layout.of(task).package
    return package if package.endswith(".py") else f"{package}/__init__.py"


def top(task: Task) -> str:
    """The name by which tests import the package."""
    layout = Layout.of(task)
    return layout.package.removeprefix(f"{layout.source_root}/").partition("/")[0].removesuffix(".py")


def first_test(task: Task) -> str:
    """The first test that the prompt names; the first test file where it names none."""
    named = re.search(r"^- (\S+::\S+)", task.prompt, re.MULTILINE)
    return named[1] if named else Layout.of(task).tests[0]


def filled(text: str, task: Task) -> str:
    """The words in capitals are put in: a script holds braces of its own."""
    words = {
        "PACKAGE_NAME": top(task),
        "PACKAGE_PATH": Layout.of(task).package,
        "PACKAGE_MODULE": module(task),
        "FIRST_TEST": first_test(task),
        "TEST_FILE": Layout.of(task).tests[0],
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
