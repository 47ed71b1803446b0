"""Submissions as unified diffs: written from changed files, applied exactly, and sorted into what counts.

Only files of the package that are no tests and no test configuration count; everything else in a patch is named
and dropped. Nothing here runs anything.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from envgym_environments.code_repair.patch_text import header_name, quoted
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["FilePatch", "Malformed", "apply_patch", "counts", "ignored", "make_patch", "parse_patch", "sort_patch"]

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_IGNORED_PARTS = frozenset(
    {"__pycache__", ".git", ".hg", ".tox", ".nox", ".venv", ".hypothesis", ".pytest_cache", ".mypy_cache",
     ".ruff_cache", "node_modules", "build", "dist"}
)  # fmt: skip
_CONFIGURATION = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py",
     "sitecustomize.py", "usercustomize.py"}
)  # fmt: skip


class Malformed(ValueError):
    """A submission that is no unified diff of this task's files; the model's fault, so it is caught and scored."""


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The hunks of one file; `created` and `deleted` say that one side is no file."""

    path: str
    hunks: tuple[tuple[int, tuple[str, ...]], ...]
    created: bool = False
    deleted: bool = False


def ignored(path: str) -> bool:
    """Whether a path (relative to the tree) is never source: byte code, caches, version control."""
    parts = PurePosixPath(path).parts
    return path.endswith((".pyc", ".pyo")) or any(
        part in _IGNORED_PARTS or part.endswith(".egg-info") for part in parts
    )


def counts(path: str, layout: Layout | Suite) -> bool:
    """Whether a change of this path is part of a repair: package code, no tests, no test configuration."""
    place = PurePosixPath(path)
    if isinstance(layout, Suite):
        return not (place.is_absolute() or ".." in place.parts) and layout.repairs(str(place))
    if ignored(path) or place.is_absolute() or ".." in place.parts or place.name in _CONFIGURATION:
        return False
    if path in layout.tests or place.name.endswith(".pth"):
        return False
    if {"tests", "test"} & set(place.parts[:-1]) or re.match(r"test_.*\.py$|.*_test\.py$", place.name):
        return False
    package = PurePosixPath(layout.package)
    return place == package or package in place.parents


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line here, as in `patch`."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def make_patch(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> str:
    """A unified diff of files by path, in path order; None is "no such file". "" when nothing differs."""
    out: list[str] = []
    for path in sorted(after):
        old, new = before.get(path), after[path]
        if old == new:
            continue
        left = "/dev/null" if old is None else quoted(f"a/{path}")
        right = "/dev/null" if new is None else quoted(f"b/{path}")
        body = list(difflib.unified_diff(_lines(old or ""), _lines(new or ""), left, right))
        out += body or [f"--- {left}\n", f"+++ {right}\n"]
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in out)


def parse_patch(patch: str) -> tuple[FilePatch, ...]:
    """The files of a unified diff. Raises Malformed."""
    lines = patch.split("\n")
    found: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if not lines[at].startswith("--- "):
            at += 1
            continue
        if at + 1 >= len(lines) or not lines[at + 1].startswith("+++ "):
            raise Malformed(f"line {at + 1}: '---' without '+++'")
        old, new = _name(lines[at]), _name(lines[at + 1])
        hunks, at = _hunks(lines, at + 2)
        path = new if new is not None else old
        if path is None:
            raise Malformed(f"line {at}: both sides are /dev/null")
        found.append(FilePatch(path, hunks, created=old is None, deleted=new is None))
    if patch.strip() and not found:
        raise Malformed("no file header ('--- a/...' and '+++ b/...') in it")
    return tuple(found)


def _name(line: str) -> str | None:
    name = header_name(line[4:])
    if name == "/dev/null":
        return None
    return name[2:] if name[:2] in ("a/", "b/") else name


def _hunks(lines: list[str], at: int) -> tuple[tuple[tuple[int, tuple[str, ...]], ...], int]:
    """The hunks from line `at` on, each (first old line, body lines), and where they end."""
    hunks: list[tuple[int, tuple[str, ...]]] = []
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        old, new = int(head[2] or 1), int(head[4] or 1)
        first = int(head[1]) if old else int(head[1]) + 1
        at += 1
        body: list[str] = []
        while at < len(lines) and (old > 0 or new > 0 or lines[at] == _NO_NEWLINE):
            line = lines[at]
            if line == _NO_NEWLINE and body:
                body[-1] = body[-1].removesuffix("\n")
            else:
                old -= line[:1] in (" ", "-", "")
                new -= line[:1] in (" ", "+", "")
                body.append((line or " ") + "\n")
            at += 1
        if old or new or any(line[0] not in " +-" for line in body):
            raise Malformed(f"line {at}: a hunk's lines do not add up to its header")
        hunks.append((first, tuple(body)))
    return tuple(hunks), at


def apply_patch(patch: FilePatch, before: str | None) -> str | None:
    """The file after the patch (None: deleted). The context must match exactly. Raises Malformed."""
    if patch.created and before is not None:
        raise Malformed(f"{patch.path}: the patch creates it, but it exists")
    if before is None and not patch.created:
        raise Malformed(f"{patch.path}: no such file")
    text = _after(patch, _lines(before or ""))
    if patch.deleted:
        if text:
            raise Malformed(f"{patch.path}: the patch deletes it, but leaves {len(text)} characters")
        return None
    return text


def _after(patch: FilePatch, lines: list[str]) -> str:
    out: list[str] = []
    at = 0
    for first, body in patch.hunks:
        if first - 1 < at:
            raise Malformed(f"{patch.path}: hunk at line {first} overlaps the one before it")
        out += lines[at : first - 1]
        at = first - 1
        for line in body:
            if line[0] != "+":
                if at >= len(lines) or lines[at] != line[1:]:
                    raise Malformed(f"{patch.path}, line {at + 1}: the patch expects {line[1:]!r}")
                at += 1
            if line[0] != "-":
                out.append(line[1:])
    return "".join([*out, *lines[at:]])


def sort_patch(
    patch: str, layout: Layout | Suite, read: Callable[[str], str | None], *, writes: Collection[str] = ()
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """(files that count -> their new text, paths that were dropped). Raises Malformed.

    writes: files that count beside the package's code.
    """
    changed: dict[str, str | None] = {}
    dropped: list[str] = []
    for part in parse_patch(patch):
        if part.path not in writes and not counts(part.path, layout):
            dropped.append(part.path)
        else:
            before = changed[part.path] if part.path in changed else read(part.path)
            changed[part.path] = apply_patch(part, before)
    return changed, tuple(dropped)
