"""How the tests of a tree are built, run and read, by commands: what a task of any language carries.

A `Layout` says the same of a Python package whose tests run in a warm interpreter; a `Suite` says it of everything
else, and is plain data, so that a task can be rebuilt, run and graded offline from what it carries. What a run did
comes back as the same `TestReport`.
"""

import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["LANGUAGES", "Language", "Suite", "matches"]

Language = Literal["python", "javascript", "typescript", "go", "rust", "java", "c", "c++"]
LANGUAGES: tuple[Language, ...] = ("python", "javascript", "typescript", "go", "rust", "java", "c", "c++")


_NEVER = frozenset({"node_modules", "bower_components", ".git", ".yarn", ".venv", ".tox", ".nox", "__pycache__"})
_MADE = frozenset({"dist"})
_CONFIGURES = re.compile(
    r".+\.(?:config|conf)\.[cm]?[jt]sx?"
    r"|\.(?:mocharc|babelrc|taprc|nycrc|c8rc|swcrc|avarc|eslintrc|pnp)(?:\..*)?"
    r"|(?:jest|vitest|karma|babel)\..+|(?:jest|vitest|mocha)[-_]?setup.*|setup-?(?:tests?|jest|vitest|mocha)\..+"
    r"|(?:gulpfile|gruntfile)\..+|.+\.pth",
    re.IGNORECASE,
)
_PYTHONS = frozenset({"conftest.py", "noxfile.py", "setup.py", "sitecustomize.py", "usercustomize.py"})
"""What runs tests, or says how they are run, by the names of folders and files."""

_QUOTED, _WILD = re.compile(r"\[[*?[]\]"), re.compile(r"[*?[]")


class Suite(BaseModel):
    """The tests of one tree. Every path is relative to the world's workdir, every command a line for `sh`.

    build: run in order once files have changed, before tests; the first that fails ends the run, and every selected
        test is then an "error" whose line says so.
    test: runs the tests. `{tests}` in it is replaced by what `select` makes of the selected tests, quoted; without
        it the whole suite runs whatever is selected, and what was not selected is left out of the report.
    select: how one test id is written on the command line, as a format string of `id`, `file` (the part before the
        first "::") and `name` (the part behind it): "{id}", "-run ^{name}$". Repeats are given once.
    joined: what stands between several ("|" for a regular expression); " " gives each as an argument of its own.
    reader: the name of what reads the results (`envgym_environments.code_repair.suites.READERS`).
    results: pattern of the files it reads; "" for what the test command writes to standard output and error.
        Files that match are removed before every run.
    source: patterns of the files that a repair may change; tests and what runs them never are (`repairs`).
    tests: patterns of the test files: a grader puts these back as they were.
    shuffle: variables by which the tests are run in another order, `{seed}` for which, and `{reverse}`, where the
        runner can do that, is "1" for the same order backwards and "" else; empty where there is no such thing.
        Those of go and pytest are known without.
    deselect: test ids that never count -> why.
    timeout_s: wall-clock seconds of one whole run, build included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    language: Language
    build: tuple[str, ...] = ()
    test: str = Field(min_length=1)
    select: str = "{id}"
    joined: str = " "
    reader: str = Field(min_length=1)
    results: str = ""
    source: tuple[str, ...] = Field(min_length=1)
    tests: tuple[str, ...] = ()
    shuffle: dict[str, str] = Field(default_factory=dict)
    deselect: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)

    def repairs(self, path: str) -> bool:
        """Whether a change of this path (relative to the workdir) is part of a repair: source, no test, no runner.

        The runner of the tests, other packages and configuration are no source unless named without a wildcard, as
        what a gold patch changes is, or unless everything is source ("**").
        """
        if not _any(path, self.source) or _any(path, self.tests):
            return False
        named = any(pattern == "**" or not _WILD.search(_QUOTED.sub("", pattern)) for pattern in self.source
                    if matches(path, pattern))  # fmt: skip
        return named or not self._runs_tests(PurePosixPath(path))

    def _runs_tests(self, path: PurePosixPath) -> bool:
        """Whether a path belongs to what runs the tests, or is what a build makes, not to what they test."""
        script = self.language in ("javascript", "typescript")
        if _NEVER & set(path.parts) or (script and _MADE & set(path.parts[:-1])):
            return True
        return _CONFIGURES.fullmatch(path.name) is not None or (self.language == "python" and path.name in _PYTHONS)

    def is_test(self, path: str) -> bool:
        """Whether this path is a test's."""
        return _any(path, self.tests)

    @model_validator(mode="after")
    def _paths_stay_inside(self) -> "Suite":
        for field in ("source", "tests"):
            for pattern in getattr(self, field):
                _check_inside(field, pattern)
        if self.results:
            _check_inside("results", self.results)
        try:
            self.select.format(id="a", file="b", name="c")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"select is {self.select!r}; it may name id, file and name in braces, nothing else ({error!r})"
            ) from error
        return self


def _check_inside(field: str, pattern: str) -> None:
    place = PurePosixPath(pattern)
    if not pattern or place.is_absolute() or ".." in place.parts:
        raise ValueError(f"{field} has {pattern!r}; a pattern is relative to the workdir and stays below it")


def _any(path: str, patterns: tuple[str, ...]) -> bool:
    return any(matches(path, pattern) for pattern in patterns)


def matches(path: str, pattern: str) -> bool:
    """Whether a path relative to the workdir matches a suite's pattern: "*" stays in a name, "**" crosses names."""
    return _regex(pattern).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    out, parts = "", pattern.removeprefix("./").split("/")
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            out += ".*" if last else "(?:[^/]+/)*"
        else:
            out += _GLOB.sub(_glob, part) + ("" if last else "/")
    return re.compile(out, re.DOTALL)


_GLOB = re.compile(r"\*+|\?|\[(!?)([^]]+)\]|[^*?[]+|\[")


def _glob(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if found[2]:
        inside = found[2].replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
        return f"[{'^/' if found[1] else ''}{inside}]"
    return re.escape(text)
