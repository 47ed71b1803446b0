"""Earlier commits of a repository taken back, as patches of its present code: where an injector may begin (SSR).

A commit counts where its change of the package's code, turned round, still applies to the code as it is now, whole
and alone. Nothing is run; the repository is only read.
"""

import ast
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from envgym.task import Task
from envgym_environments.code_repair.mirrors.commits import Repository, notes_of, parents_of
from envgym_environments.code_repair.mirrors.git import plain_git
from envgym_environments.code_repair.patch import counts, make_patch
from envgym_environments.code_repair.quality import patch_lines
from envgym_environments.code_repair.runner import Layout

__all__ = ["Revert", "reverts_in", "reverts_of", "told"]

_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
"""Whatever a repository's own settings say of its changes: no program of theirs is run."""
_MOST = 40
_MOST_LINES = 120
_MOST_CHARACTERS = 8000


@dataclass(frozen=True, slots=True)
class Revert:
    """One commit taken back. notes: what its people wrote, without their names. patch: of the present code."""

    notes: tuple[str, ...]
    patch: str


def reverts_of(repository: Repository, layout: Layout, cache: Path) -> list[Revert]:
    """The latest commits that can be taken back, at most 40. Raises ValueError when git refuses."""
    head = repository.tree_of(repository.git("rev-parse", repository.commits).strip(), cache)
    found: list[Revert] = []
    for commit, parents in parents_of(repository):
        if len(parents) == 1 and (patch := _patch(repository, commit, parents[0], head, layout)):
            found.append(Revert(notes_of(repository, commit), patch))
        if len(found) == _MOST:
            break
    return found


def _patch(repository: Repository, commit: str, parent: str, head: Path, layout: Layout) -> str:
    """What takes a commit back, or "" where that does not fit any more, is long, or leaves what does not parse."""
    names = repository.git("diff-tree", "-r", "--name-only", "--no-renames", parent, commit).splitlines()
    code = [name for name in names if name.endswith(".py") and counts(name, layout)]
    before = {name: text for name in code if (text := _text(head / name)) is not None}
    if not code or len(before) != len(code):
        return ""
    change = repository.git("diff", *_PLAIN, commit, parent, "--", *code)
    with tempfile.TemporaryDirectory(prefix="envgym-revert-") as place:
        top, file = Path(place) / "tree", Path(place) / "change"
        for name, text in before.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text, newline="")
        file.write_text(change, newline="")
        try:
            plain_git(top, "apply", "--whitespace=nowarn", str(file))
        except ValueError:
            return ""
        after = {name: _text(top / name) for name in code}
    if patch_lines(before, after) > _MOST_LINES or not all(map(_parses, after.values())):
        return ""
    patch = make_patch(before, after)
    return patch if len(patch) <= _MOST_CHARACTERS else ""


def _text(path: Path) -> str | None:
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\r" in text else text


def _parses(text: str | None) -> bool:
    try:
        return text is not None and ast.parse(text) is not None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def told(reverts: Sequence[Revert]) -> list[JsonValue]:
    """As a repository's task keeps them."""
    return [{"notes": list(one.notes), "patch": one.patch} for one in reverts]


def reverts_in(repository: Task) -> tuple[Revert, ...]:
    """What a repository's task keeps of its history; nothing where it came without one."""
    return tuple(_kept(repository))


def _kept(repository: Task) -> Iterator[Revert]:
    rows = repository.metadata.get("history", [])
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not isinstance(notes := row.get("notes"), list):
            raise ValueError(f"task {repository.id!r}: an entry of its 'history' has no notes or patch: {row!r}")
        yield Revert(tuple(map(str, notes)), str(row["patch"]))
