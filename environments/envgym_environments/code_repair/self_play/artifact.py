"""A bug as self-play's injector leaves it: broken code, weakened tests, and the test files that specify it.

SSR's artifact has five files: a test script, the list of test files, a parser of results, the bug and the
weakening
weakening.
Script and parser are this project's own runner here: a program that a player writes never decides about rewards.
Bug and weakening are read from the sandbox, so that they always apply. A file that was deleted counts as emptied.
"""

from collections.abc import Callable, Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

from envgym.task import Task, World, evenly
from envgym_environments.code_repair.describe import overlay
from envgym_environments.code_repair.memo import digest_of
from envgym_environments.code_repair.mirrors.trees import is_test
from envgym_environments.code_repair.patch import counts, make_patch
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.trials import world_text

__all__ = ["Artifact", "Unreadable", "bug_task", "solver_task", "specification"]

_MOST_GUARDS = 300


class Unreadable(ValueError):
    """A change that no artifact can hold, such as a file that is no text; the player's fault, so it is scored."""


class Artifact(BaseModel):
    """Texts by path, relative to the workdir. order: 1 for an injected bug, 2 for a failed repair of one.

    bug: files of the package. weakened: test files. test_files: those whose tests specify the bug.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bug: dict[str, str]
    weakened: dict[str, str]
    test_files: tuple[str, ...]
    order: int = 1

    @classmethod
    def of(cls, changed: Mapping[str, bytes | None], layout: Layout, test_files: tuple[str, ...]) -> Self:
        """The artifact of what was changed in a sandbox. Raises Unreadable.

        test_files: as named by the injector; () for those that it changed. Files that are neither code of the
        package nor tests are no part of it.
        """
        bug, weakened = dict[str, str](), dict[str, str]()
        for path, content in sorted(changed.items()):
            test = path in layout.tests or is_test(path, layout)
            if not test and not counts(path, layout):
                continue
            try:
                text = (content or b"").decode()
            except UnicodeDecodeError as error:
                raise Unreadable(f"{path} is no text") from error
            (weakened if test else bug)[path] = text
        named = test_files or tuple(path for path in layout.tests if path in weakened)
        return cls(bug=bug, weakened=weakened, test_files=tuple(dict.fromkeys(named)))

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that name it."""
        return digest_of("artifact", self.model_dump_json())[:10]

    def with_repair(self, repair: Mapping[str, str | None]) -> "Artifact":
        """The bug that a failed repair leaves: the code as that made it, under the same weakened tests.

        A higher-order bug, as SSR makes of failed attempts.
        """
        bug = {**self.bug, **{path: text or "" for path, text in repair.items()}}
        return self.model_copy(update={"bug": bug, "order": self.order + 1})


def _laid(world: World, texts: Mapping[str, str]) -> World:
    """The world with these files laid over it."""
    files = dict(world.files)
    for path, text in texts.items():
        files |= overlay(path, text) if path.endswith(".py") else {f"{world.workdir}/{path}": text}
    return world.model_copy(update={"files": files})


def _base(repository: Task) -> Callable[[str], str | None]:
    world = repository.world
    assert world is not None
    return lambda path: world_text(world, path)


def specification(repository: Task, artifact: Artifact) -> str:
    """What the solver is given in the place of an issue: the weakening turned round, as a patch."""
    before = dict(artifact.weakened)
    return make_patch(before, {path: _base(repository)(path) for path in before})


def solver_task(repository: Task, artifact: Artifact, prompt: str) -> Task:
    """The task as the solver plays it: broken code, weakened tests. Nothing in its world is the answer."""
    graded = bug_task(repository, artifact, failing=_passing(repository))
    assert repository.world is not None
    world = _laid(repository.world, {**artifact.bug, **artifact.weakened})
    return graded.model_copy(update={"id": repository.id, "world": world, "prompt": prompt})


def bug_task(
    repository: Task, artifact: Artifact, *, failing: tuple[str, ...], prompt: str = "", answer: bool = False
) -> Task:
    """The task as it is graded, and kept in a set of code-repair tasks: broken code under the original tests.

    failing: the tests that the bug fails. answer: also put the repair into its metadata.
    """
    layout = Layout.of(repository)
    files = tuple(path for path in layout.tests if path in set(artifact.test_files))
    layout = layout.model_copy(update={"tests": files})
    others = [name for name in _passing(repository) if _file(name) in files and name not in set(failing)]
    read = _base(repository)
    data: dict[str, JsonValue] = dict(repository.metadata)
    del data["passing"]
    data.pop("history", None)  # what an injector begins with is often the answer
    data |= {
        "layout": layout.model_dump(mode="json"),
        "operator": f"self-play-{artifact.order}",
        "fail_to_pass": [name for name in failing if _file(name) in files],
        "pass_to_pass": list(evenly(others, _MOST_GUARDS)),
        "tests": len(others) + len(failing),
        "errors": {},
        "bugs": len(artifact.bug),
    }
    if answer:
        places: list[JsonValue] = [
            {"path": path, "line": 1, "column": 0, "wrong": text, "right": read(path) or ""}
            for path, text in sorted(artifact.bug.items())
        ]
        whole = make_patch(artifact.bug, {path: read(path) for path in artifact.bug})
        first = places[0] if places and isinstance(places[0], dict) else {}
        data["gold"] = {**first, "patch": whole, "bugs": places}
    assert repository.world is not None
    return Task(
        id=f"{repository.id}/{artifact.digest}",
        prompt=prompt,
        world=_laid(repository.world, artifact.bug),
        split=repository.split,
        metadata=data,
    )


def _file(test: str) -> str:
    return test.partition("::")[0]


def _passing(repository: Task) -> tuple[str, ...]:
    found = repository.metadata.get("passing")
    if not isinstance(found, list) or not found:
        raise ValueError(
            f"task {repository.id!r} has no 'passing' tests in its metadata; self-play plays the unbroken "
            "repositories that `envgym tasks repositories` writes"
        )
    return tuple(map(str, found))
