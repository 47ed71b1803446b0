"""Pairs of commits of a local git repository: each commit that touches code and tests, with its parent.

Trees are read out of the object store (see `git`): the repository, its work tree and its index stay as they are,
its settings are not read, and no tree holds version control. It runs no tests and asks no network.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envgym_environments.code_repair.mirrors.detect import detect
from envgym_environments.code_repair.mirrors.git import ask, write_tree
from envgym_environments.code_repair.mirrors.notes import commit_notes
from envgym_environments.code_repair.mirrors.releases import stated_licence
from envgym_environments.code_repair.mirrors.trees import Pair, is_test, layout_in
from envgym_environments.code_repair.patch import counts
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.sources import Package

__all__ = ["Repository", "commit_pairs", "notes_of", "parents_of"]

_DEFAULT_RANGE = "HEAD"


@dataclass(frozen=True, slots=True)
class Repository:
    """A local git repository and, where they are not to be detected, where code and tests lie in it.

    commits: a range as `git log` takes it. most: only the latest so many commits of it. deselect: as in `Package`.
    """

    path: Path
    name: str
    commits: str = _DEFAULT_RANGE
    most: int = 200
    package: str = ""
    source_root: str = ""
    tests: tuple[str, ...] = ()
    split: str = "train"

    def git(self, *arguments: str) -> str:
        """What git says, without settings of the repository. Raises ValueError when it refuses."""
        return ask(self.path, *arguments).decode("utf-8", "replace")

    def tree_of(self, commit: str, cache: Path) -> Path:
        """The files of a commit as a directory of the cache, as they are stored."""
        place = cache / "commits" / f"{self.name}-{commit}-stored"
        if place.is_dir():
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".checkout-") as temporary:
            top = Path(temporary) / "tree"
            top.mkdir()
            write_tree(self.path, commit, top)
            try:
                os.replace(top, place)
            except OSError:
                if not place.is_dir():  # another pair of the same commit was faster; its tree is the same
                    raise
        return place

    def layout_at(self, tree: Path, commit: str) -> Package:
        """Where things lie in one commit's tree. Raises ValueError when that cannot be told."""
        root, package, tests = self.source_root or ".", self.package, self.tests
        if not package or not tests:
            found = detect(tree, self.name, package)
            root, package = (root, package) if package else found[:2]
            tests = tests or found[2]
        return Package.model_validate(
            {
                "name": self.name,
                "version": commit[:12],
                "sha256": commit.ljust(64, "0")[:64],
                "package": package,
                "source_root": root,
                "tests": tests,
                "split": self.split,
            }
        )


def commit_pairs(repository: Repository, cache: Path) -> Iterator[tuple[str, Callable[[], Pair | str]]]:
    """Each commit of the range, latest first, with what makes its pair.

    A commit without exactly one parent, or that does not change both code and tests, gives the reason instead.
    Raises ValueError when there is no such repository or range.
    """
    for commit, parents in parents_of(repository):
        yield commit, partial(_pair, repository, commit, parents, cache)


def parents_of(repository: Repository) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each commit of the range, latest first, with its parents. Raises ValueError when there is no such range."""
    log = repository.git(
        "log",
        "--first-parent",
        f"--max-count={repository.most}",
        "--format=%H %P",
        "--end-of-options",
        repository.commits,
    )
    for line in log.splitlines():
        commit, *parents = line.split()
        yield commit, tuple(parents)


def notes_of(repository: Repository, commit: str) -> tuple[str, ...]:
    """What those who made a commit wrote of it, without who they are."""
    message, *people = repository.git("log", "-1", "--format=%B%x00%an%x00%cn%x00%ae%x00%ce", commit).split("\0")
    people += re.findall(r"^[\w-]+-by: *([^<\n]+)", message, re.MULTILINE)
    names = {part for person in people for part in (person.strip(), *person.split())}
    return commit_notes(message, {name for name in names if "@" in name or name[:1].isupper()})


def _pair(repository: Repository, commit: str, parents: tuple[str, ...], cache: Path) -> Pair | str:
    """The pair, or why there is none."""
    if len(parents) != 1:
        return "merge" if parents else "first_commit"
    (parent,) = parents
    changed = repository.git("diff-tree", "-r", "--name-only", "--no-renames", parent, commit).splitlines()
    if not any(name.endswith(".py") for name in changed):
        return "no_code"
    new = repository.tree_of(commit, cache)
    try:
        package = repository.layout_at(new, commit)
        layout = layout_in(package, new)
    except ValueError:
        return "other_layout"
    if not _touches_both(changed, layout):
        return "no_code_and_tests"
    old = repository.tree_of(parent, cache)
    return Pair(
        kind="commit",
        package=package,
        old=old,
        new=new,
        old_name=parent[:10],
        new_name=commit[:10],
        notes=notes_of(repository, commit),
        provenance={
            "old": {"commit": parent, "licence": stated_licence(old)},
            "new": {"commit": commit, "licence": stated_licence(new)},
        },
    )


def _touches_both(changed: list[str], layout: Layout) -> bool:
    tests = [name for name in changed if is_test(name, layout)]
    return bool(tests) and any(counts(name, layout) for name in changed if name not in tests)
