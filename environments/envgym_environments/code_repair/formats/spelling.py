"""What the formats share: languages by file names, what a repair may change, commands as one line of a suite."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import get_args

from envgym_environments.code_repair.patch_text import patch_paths, stays_inside
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.suites.suite import Language, Suite, matches

__all__ = [
    "CONDA", "END", "START", "as_language", "command", "language_of", "paths_of", "script_parts", "style_of",
    "suite_of",
]  # fmt: skip

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
"""What SWE-bench's scripts print before and behind the output of the tests."""

CONDA = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
"""How the images of SWE-bench and SWE-smith get at the interpreter of the tree in /testbed."""

_ENDINGS: dict[Language, tuple[str, ...]] = {
    "python": (".py", ".pyx", ".pyi"),
    "javascript": (".js", ".jsx", ".mjs", ".cjs"),
    "typescript": (".ts", ".tsx", ".mts", ".cts"),
    "go": (".go",),
    "rust": (".rs",),
    "java": (".java", ".kt", ".scala", ".groovy"),
    "c": (".c", ".h"),
    "c++": (".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx", ".h", ".c", ".ipp", ".inl"),
}
_NAMES: dict[str, Language] = {"py": "python", "js": "javascript", "ts": "typescript", "golang": "go", "rs": "rust",
                               "cpp": "c++", "cxx": "c++"}  # fmt: skip
_BESIDE: dict[Language, tuple[Language, ...]] = {
    "javascript": ("typescript",),
    "typescript": ("javascript",),
}
"""Languages that stand in the same trees: a repair may be in either."""

_TESTS = (
    "tests/**", "test/**", "**/tests/**", "**/test/**", "**/__tests__/**", "**/test_*.py", "**/*_test.py",
    "**/conftest.py", "**/*_test.go", "**/*.test.*", "**/*.spec.*", "src/test/**", "**/src/test/**",
)  # fmt: skip


def as_language(name: str) -> str:
    """A language's name as suites spell it, where they know it; else in small letters."""
    small = name.strip().lower()
    return _NAMES.get(small, small)


def language_of(*patches: str) -> str:
    """The language of most files that patches name; "" when none is known."""
    endings = Counter(PurePosixPath(path).suffix for patch in patches for path in paths_of(patch))
    found = Counter[str]()
    for ending, times in endings.items():
        known = next((language for language, own in _ENDINGS.items() if ending in own), None)
        if known is not None:
            found[known] += times
    return found.most_common(1)[0][0] if found else ""


def paths_of(patch: str) -> tuple[str, ...]:
    """The files that a patch names, each once."""
    return tuple(dict.fromkeys(path for _, path in patch_paths(patch)))


def command(lines: Sequence[str], *, tests: bool = False) -> str:
    """Lines of bash as one command for `sh`; its status is the last line's.

    tests: the selected tests are the script's arguments. What the lines themselves say of "{tests}" is theirs.
    """
    script = "\n".join(lines)
    quoted = shlex.quote(script).replace("{tests}", "{te''sts}")
    return f"bash -c {quoted} tests {{tests}}" if tests else f"bash -c {quoted}"


def suite_of(
    language: str, test: str, reader: str, *, patches: tuple[str, str], select: str = "{id}", results: str = ""
) -> Suite | None:
    """The suite of an imported task; None for a language that no suite can be of.

    patches: the gold one, whose files a repair may change whatever they are called, and that of the tests.
    """
    if language not in get_args(Language) or not reader or not test:
        return None
    # a path that leads out is the record's to refuse
    gold, changed = (tuple(filter(stays_inside, paths_of(patch))) for patch in patches)
    own: Language = language  # type: ignore[assignment]  # checked above
    hidden = [path for path in changed if path not in gold]
    general = [pattern for pattern in _TESTS if not any(matches(path, pattern) for path in gold)]
    source = [f"**/*{ending}" for one in (own, *_BESIDE.get(own, ())) for ending in _ENDINGS[one]]
    return Suite(
        language=own,
        test=test,
        select=select,
        reader=reader,
        results=results,
        source=tuple(dict.fromkeys([*source, *map(_literal, gold)])),
        tests=tuple(dict.fromkeys([*map(_literal, hidden), *general])),
        timeout_s=1800.0,
    )


def _literal(path: str) -> str:
    """A path as a pattern that matches itself only."""
    return re.sub(r"([*?[])", r"[\1]", path)


def script_parts(script: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an evaluation script does before its tests, and the tests' own lines; none of them without its marks.

    Patches and the resetting of files by git are left out: the grader does these itself.
    """
    lines = script.split("\n")
    at = [next((n for n, line in enumerate(lines) if mark in line), -1) for mark in (START, END)]
    if not 0 <= at[0] < at[1]:
        return (), ()
    return tuple(_without_git(lines[: at[0]])), tuple(line for line in lines[at[0] + 1 : at[1]] if line.strip())


def _without_git(lines: Iterable[str]) -> Iterable[str]:
    until, gits = "", False
    for line in lines:
        word = line.strip()
        if until:
            if not gits:
                yield line
            until = "" if word == until else until
            continue
        gits = word.startswith("git ")
        if heredoc := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", word):
            until = heredoc[1]
        if word and not gits and not word.startswith(("#", "set -")):
            yield line


def style_of(record: RepairRecord, name: str) -> tuple[str, ...]:
    """How a format spelled a record that came from it; nothing for one from elsewhere."""
    return record.origin.style if record.origin is not None and record.origin.format == name else ()
