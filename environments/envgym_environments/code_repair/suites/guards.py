"""What a suite is guarded by when it is graded: canaries and twins that must fail, ends that must be reached.

The code under test shares its process with the tests and can write their results. So no pass is believed alone.
A *canary* is a test of a secret name in a random place of a test file that asserts what is false. An *end* makes a
test fail behind its last line with a word that did not exist before: who reports that has come there. A *twin* has
another literal, with which right code fails: values that are equal to everything do not.

Which edit makes which test fail is not guessed: it is seen on the unbroken project once (`measure`), and stored.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from envgym.sandbox import Shell
from envgym_environments.code_repair.suites.bodies import LEFT, RIGHT, Change
from envgym_environments.code_repair.suites.suite import matches

__all__ = ["Canary", "Edit", "Guards", "Insertion", "draw_canary", "edit_of", "edited", "lay", "place_of", "placed"]

_LETTERS = "abcdefghijkmnopqrstuvwxyz"


class Insertion(BaseModel):
    """Text that a canary puts into one file. In `path` and `text`, {name}, {word}, {a} and {b} stand for its own.

    path: a pattern of files, of which one is drawn. before: the regular expression of the places, of which one is
    drawn; "" makes a new file of this path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    before: str = ""
    text: str = Field(min_length=1)


class Edit(BaseModel):
    """One changed stretch of a test file, and the tests that were seen to fail by it. at: in characters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    at: int = Field(ge=0)
    old: str
    new: str
    tests: tuple[str, ...] = Field(min_length=1)


class Guards(BaseModel):
    """What guards the grades of one task.

    canaries: kinds of canary, each the insertions that make one. ends: of the tests that have to be repaired.
    twins: of these, and of some others of the project.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    canaries: tuple[tuple[Insertion, ...], ...] = ()
    ends: tuple[Edit, ...] = ()
    twins: tuple[Edit, ...] = ()

    def of(self, failing: Sequence[str], *, most: int = 40, others: int = 12) -> "Guards":
        """Those that a task with these failing tests needs: few, for they are stored with it."""
        wanted = set(failing)

        def mine(edits: Iterable[Edit]) -> list[Edit]:
            return [
                edit.model_copy(update={"tests": tuple(test for test in edit.tests if test in wanted)})
                for edit in edits
                if wanted & set(edit.tests)
            ]

        own = mine(self.twins)
        rest = [one for one in self.twins if not wanted & set(one.tests)][:others]
        beside = [one.model_copy(update={"tests": one.tests[:3]}) for one in rest]
        return Guards(canaries=self.canaries, ends=tuple(mine(self.ends)[:most]), twins=(*own[:most], *beside))


class Canary(BaseModel):
    """One that was laid: the name that its id holds, and the word that its failure says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    word: str


def word(rng: np.random.Generator) -> str:
    """Ten letters that did not exist before."""
    return "".join(_LETTERS[index] for index in rng.integers(len(_LETTERS), size=10))


def draw_canary(names: Sequence[str], rng: np.random.Generator) -> Canary:
    """A canary whose name looks like one of these tests' names."""
    model = str(names[int(rng.integers(len(names)))]) if names else "case"
    stem = re.sub(r"\W+", "_", model.rpartition("::")[2])[:30].strip("_") or "case"
    return Canary(name=f"{stem}_{word(rng)[:5]}", word=word(rng))


async def placed(shell: Shell, kinds: Sequence[Sequence[Insertion]]) -> list[tuple[Insertion, ...]]:
    """Each kind once for every file that it may be drawn for, so that all can be tried."""
    found: list[tuple[Insertion, ...]] = []
    for kind in kinds:
        if len(kind) != 1 or not kind[0].before:
            found.append(tuple(kind))
            continue
        for path in await _files(shell, kind[0].path):
            if re.search(kind[0].before, await _read(shell, path), re.MULTILINE):
                found.append((kind[0].model_copy(update={"path": path}),))
    return found


async def lay(shell: Shell, kind: Sequence[Insertion], canary: Canary, rng: np.random.Generator) -> None:
    """Write a canary into the tree. Raises ValueError where no file has a place for it."""
    a = int(rng.integers(2, 1000))
    values = {"name": canary.name, "word": canary.word, "a": str(a), "b": str(a + int(rng.integers(1, 1000)))}
    for one in kind:
        path, text = _filled(one.path, values), _filled(one.text, values)
        if not one.before:
            await shell.exec(["mkdir", "-p", "--", posixpath.dirname(path) or "."])
            await shell.write(path, text.encode())
            continue
        places = [
            (found, at.start()) for found in await _files(shell, path)
            for at in re.finditer(one.before, await _read(shell, found), re.MULTILINE)
        ]  # fmt: skip
        if not places:
            raise ValueError(f"no file {path!r} has a place {one.before!r} for a canary")
        chosen, at = places[int(rng.integers(len(places)))]
        before = await _read(shell, chosen)
        await shell.write(chosen, (before[:at] + text + before[at:]).encode("utf-8", "surrogateescape"))


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(name|word|a|b)\}", lambda found: values[found[1]], text)


async def _files(shell: Shell, pattern: str) -> list[str]:
    top = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0] or "."
    found = await shell.exec(["find", f"./{top}", "-type", "f"], output_bytes=8 << 20)
    lines = found.stdout.decode("utf-8", "surrogateescape").splitlines()
    return sorted(path for line in lines if matches(path := posixpath.normpath(line), pattern))


async def _read(shell: Shell, path: str) -> str:
    return (await shell.read(path)).decode("utf-8", "surrogateescape")


async def edited(shell: Shell, edits: Sequence[Edit], rng: np.random.Generator) -> dict[str, str]:
    """Write these edits, each with a word of its own in it: the word by the edit's path and place.

    Raises ValueError where a file is not what an edit was made for.
    """
    words: dict[str, str] = {}
    by_path: dict[str, list[Edit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    for path, of_path in by_path.items():
        text = await _read(shell, path)
        for edit in sorted(of_path, key=lambda one: -one.at):
            if text[edit.at : edit.at + len(edit.old)] != edit.old:
                raise ValueError(
                    f"{path} does not have {edit.old[:40]!r} at {edit.at}: it is not the tree of the task"
                )
            said = words[place_of(edit)] = word(rng)
            new = edit.new.replace(LEFT, said[:5]).replace(RIGHT, said[5:])
            text = text[: edit.at] + new + text[edit.at + len(edit.old) :]
        await shell.write(path, text.encode("utf-8", "surrogateescape"))
    return words


def place_of(edit: Edit) -> str:
    """What an edit is told by from others."""
    return f"{edit.path}@{edit.at}"


def edit_of(path: str, change: Change, tests: Sequence[str]) -> Edit:
    """A change of one file, with what fails by it."""
    return Edit(path=path, at=change.at, old=change.old, new=change.new, tests=tuple(tests))
