"""Doubles of whole test classes and test programs that must fail, where results name these and not single tests.

Maven's log has one line for a class of Java, ctest's one for a program: what fails among their tests would make
them fail. So the class stands in the tree a second time under another name, with a test that fails; and CMake makes
the program a second time, with a `main` that runs the tests' own and then fails. Text in, text out: nothing is run.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from envgym.sandbox import Shell
from envgym_environments.code_repair.suites.bodies import Body, bodies
from envgym_environments.code_repair.suites.copies import copied, copy_of
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["Double", "class_doubles", "program_doubles"]

_MOST_FILES = 60
_FAILS = """

    {head}
    public void {name}() {{
        if ({a} != {b}) throw new AssertionError("{word}");
    }}
"""
_ENDS = re.compile(r"(?:TestCase|Tests?|IT)$")
_ADDED = re.compile(
    r"add_test\s*\(\s*(?:NAME\s+)?\"?([^\s\")]+)\"?\s+(?:COMMAND\s+)?\"?([^\s\")]+)\"?([^)]*)\)", re.IGNORECASE
)
"""A test as CMake's files add it: its name, its program, and what the program is given."""

_MAIN = """\
{linkage}int __real_main(int, char **, char **);
{linkage}int __wrap_main(int, char **, char **);
{linkage}int __wrap_main(int count, char **words, char **env) {{
  __real_main(count, words, env);
  return 1;
}}
"""
_CMAKE = """
get_property(_known DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
list(FIND _known {target} _at)
if(TARGET {target} AND NOT _at EQUAL -1)
  get_target_property(_value {target} SOURCES)
  add_executable({name} ${{_value}} {name}.{suffix})
  foreach(_property INCLUDE_DIRECTORIES COMPILE_DEFINITIONS COMPILE_OPTIONS COMPILE_FEATURES COMPILE_FLAGS
      LINK_LIBRARIES LINK_DIRECTORIES LINK_OPTIONS LINK_FLAGS C_STANDARD CXX_STANDARD CXX_EXTENSIONS)
    get_target_property(_value {target} ${{_property}})
    if(_value)
      set_property(TARGET {name} PROPERTY ${{_property}} "${{_value}}")
    endif()
  endforeach()
  set_property(TARGET {name} APPEND_STRING PROPERTY LINK_FLAGS " -Wl,--wrap=main")
  add_test(NAME {name} COMMAND {name}{words})
  foreach(_property WORKING_DIRECTORY ENVIRONMENT)
    get_property(_value TEST {listed} PROPERTY ${{_property}})
    if(_value)
      set_property(TEST {name} PROPERTY ${{_property}} "${{_value}}")
    endif()
  endforeach()
endif()
"""
"""What CMake has to say: `target` once more. What its directory does not make is none of its business."""


@dataclass(frozen=True)
class Double:
    """A listed class or program.

    name: its own, without package. path: of the class's file; of a program the name of what makes it.
    text: of the class. listed: as results name it. words: what the program is given. suffix: of its main file.
    lists: CMake's files that may make the program, each with its text. failing: whether it is to be repaired.
    """

    name: str
    path: str
    text: str = field(default="", repr=False)
    listed: str = ""
    words: str = ""
    suffix: str = ""
    lists: Mapping[str, str] = field(default_factory=dict, repr=False)
    failing: bool = False

    @property
    def twins(self) -> Sequence[Body]:
        """The tests of a class that can have a literal changed."""
        return [one for one in self._tests if copied(one, self.text, "java")]

    @property
    def _tests(self) -> Sequence[Body]:
        return [] if self.lists else [one for one in bodies(self.text, "java") if one.behind is not None]

    def called(self, word: str) -> str:
        """A name that runners find as they find the listed one."""
        if self.lists:
            return f"{self.name}_{word}"
        at = _ENDS.search(self.name)
        place = at.start() if at else len(self.name)
        return self.name[:place] + word.capitalize() + self.name[place:]

    def sown(self, name: str, word: str, rng: np.random.Generator, *, twin: bool = False) -> dict[str, str]:
        """The new files, whole, and of CMake's what is appended to them: path -> text.

        twin: with a literal changed, and a word that is said where that makes no difference.
        """
        if self.lists:
            values = {"target": self.path, "name": name, "suffix": self.suffix, "words": self.words,
                      "listed": self.listed}  # fmt: skip
            linkage = 'extern "C" ' if self.suffix == "cc" else ""
            made = {path: _CMAKE.format(**values) for path in self.lists}
            beside = {posixpath.join(posixpath.dirname(path), f"{name}.{self.suffix}") for path in self.lists}
            return made | dict.fromkeys(beside, _MAIN.format(linkage=linkage))
        tests, text = self.twins if twin else self._tests, self.text
        one = tests[int(rng.integers(len(tests)))]
        assert one.behind is not None
        if twin:
            added = copy_of(text, one, "java", f"is{word.capitalize()}", word, rng)
        else:
            a = int(rng.integers(2, 1000))
            head = "@Test" if re.search(r"@Test\b", text) else ""
            values = {"a": str(a), "b": str(a + int(rng.integers(1, 1000))), "word": word, "head": head}
            added = _FAILS.format(name=f"{one.name}{word.capitalize()}", **values)
        text = text[: one.behind] + added + text[one.behind :]
        place = posixpath.join(posixpath.dirname(self.path), f"{name}.java")
        return {place: re.sub(rf"\b{re.escape(self.name)}\b", name, text)}


def class_doubles(path: str, text: str, failing: Sequence[str], passing: Sequence[str]) -> list[Double]:
    """Of a file of Java, where its class is listed by its full name: the one class, with tests in it."""
    name = posixpath.basename(path).removesuffix(".java")
    package = re.search(r"^\s*package\s+([\w.]+)\s*;", text, re.MULTILINE)
    full = f"{package[1]}.{name}" if package else name
    if not path.endswith(".java") or full not in {*failing, *passing}:
        return []
    found = Double(name, path, text, full, failing=full in failing)
    return [found] if found._tests else []


async def program_doubles(
    shell: Shell, suite: Suite, failing: Sequence[str], passing: Sequence[str]
) -> list[Double]:
    """Of the listed programs of ctest: all of them, where CMake's files in the tree make tests."""
    if not suite.reader.startswith("ctest"):
        return []
    command = ["grep", "-rlE", r"add_test|add_executable", "--include=CMakeLists.txt", "."]
    listed = (await shell.exec(command, output_bytes=1 << 20)).stdout.decode("utf-8", "surrogateescape")
    paths = sorted(posixpath.normpath(line) for line in listed.splitlines())[:_MOST_FILES]
    lists = {path: (await shell.read(path)).decode("utf-8", "surrogateescape") for path in paths}
    told = {found[1]: (found[2], found[3]) for text in lists.values() for found in _ADDED.finditer(text)}
    doubles = []
    for test in (*failing, *passing) if lists else ():
        target, words = told.get(test, (test, ""))
        if not re.fullmatch(r"[\w.+-]+", target) or not re.fullmatch(r"[\w.+/-]+", test):
            continue
        words = "" if re.search(r"\b[A-Z_]{4,}\b", words) else " ".join(["", *words.split()])
        suffix = "c" if suite.language == "c" else "cc"
        name = re.sub(r"\W", "_", test)
        doubles.append(Double(name, target, "", test, words, suffix, lists, test in failing))
    return doubles
