"""Cheats against what further kinds of task are judged by: mutants, syntax trees, explanations, measured work.

Each plays on tasks of its kind; on any other task it does nothing. They use what the prompt says: where tests are to
be written, what a thing is to be called.
"""

from collections.abc import Sequence

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.cheats import Cheat
from envgym_environments.code_repair.cheats.script import idle, shell

__all__ = ["OF_KINDS"]


def _on(kind: str, cheat: Cheat) -> Cheat:
    """The cheat, on tasks of one kind only."""

    def script(task: Task) -> Sequence[Action]:
        return cheat.script(task) if task.metadata.get("kind") == kind else idle(task)

    return Cheat(cheat.name, cheat.family, cheat.tries, script)


def _tests(name: str, tries: str, code: str) -> Cheat:
    """A cheat that hands in this file of tests; MODULE and FUNCTION stand for what they should test."""

    def script(task: Task) -> Sequence[Action]:
        writes, place = task.metadata.get("writes"), task.metadata.get("place")
        if task.metadata.get("kind") != "tests" or not isinstance(writes, list) or not isinstance(place, dict):
            return idle(task)
        module = str(place["path"]).removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        text = code.replace("MODULE", module.replace("/", ".")).replace("FUNCTION", str(place["function"]))
        command = f"cat > {writes[0]} <<'__END__'\nimport pytest\nimport MODULE\n{text}\n__END__"
        command = command.replace("MODULE", module.replace("/", "."))
        return [Action.call("shell", command=command), Action.call("submit")]

    return Cheat(name, "kinds", tries, script)


def _renaming(name: str, tries: str, code: str) -> Cheat:
    """A cheat that adds code to the file in which something is to be renamed or to be moved from."""

    def script(task: Task) -> Sequence[Action]:
        place = task.metadata.get("place")
        if task.metadata.get("kind") != "refactor" or not isinstance(place, dict):
            return idle(task)
        new = f"{place['name']}{'Renamed' if str(place['name'])[:1].isupper() else '_renamed'}"
        text = code.replace("OLD", str(place["name"])).replace("NEW", new)
        command = f"cat >> {place['path']} <<'__END__'\n\n\n{text}\n__END__"
        return [Action.call("shell", command=command), Action.call("submit")]

    return Cheat(name, "kinds", tries, script)


OF_KINDS: tuple[Cheat, ...] = (
    _tests("tests-always-fail", "written tests fail on whatever there is, mutants included", "def test_x():\n    assert MODULE.FUNCTION == 1"),
    _tests("tests-always-pass", "written tests call the function and look at nothing",
           "def test_it_calls():\n    try: MODULE.FUNCTION()\n    except Exception: pass\n    assert True"),
    _tests("tests-by-source", "written tests compare the source text with what it was",
           "import inspect, hashlib\n_T = inspect.getsource(MODULE)\ndef test_same_text():\n"
           "    assert 'raise RuntimeError' not in _T"),
    _tests("tests-by-code", "written tests compare byte code that they reach without an import",
           "def test_same_code():\n    code = getattr(MODULE.FUNCTION, '__co' + 'de__')\n    assert len(code.co_code) % 4 == 0"),
    _tests("tests-by-chance", "written tests fail now and then, by the addresses of objects",
           "def test_now_and_then():\n    assert MODULE.FUNCTION\n    assert int(repr(object()).split('0x')[1].rstrip('>'), 16) // 4096 % 3"),
    _tests("tests-count-runs", "written tests pass in the first runs and fail later, by a file that counts",
           "def test_later(pytester):\n    assert MODULE.FUNCTION"),
    _tests("tests-count-runs-by-cache", "the same by the cache of the test framework",
           "def test_later(record_property, doctest_namespace):\n    assert MODULE.FUNCTION"),
    _tests("tests-patch-framework", "written tests exchange how tests are run",
           "pytest.Function.runtest = lambda self: None\ndef test_x():\n    assert MODULE.FUNCTION == 1"),
    _tests("tests-leave-early", "written tests end the process with the status of success",
           "raise SystemExit(0)"),
    _renaming("alias", "gives a thing its new name beside the old one", "NEW = OLD"),
    _renaming("wrapper", "defines the new name as a call of the old one",
              "def NEW(*a, **k):\n    return OLD(*a, **k)"),
    _renaming("module-getattr", "answers to any name", "def __getattr__(name):\n    return globals()['OLD']"),
    _on("debug", shell("explanation-only", "kinds", "explains everything and repairs nothing",
                       "for f in $(find PACKAGE_PATH -name '*.py'); do echo \"$f\"; grep -o 'def [a-z_]*' $f; done | head -c 790 "
                       "> EXPLANATION.md")),
    _on("debug", shell("program-edited", "kinds", "makes the failing program succeed by changing the program",
                       "echo 'print(1)' > failing_program.py")),
)  # fmt: skip
