"""Where an episode of self-play stands, and the task that the player whose turn it is works in. Runs nothing."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from envgym.task import Task
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.self_play.artifact import Artifact, bug_task, solver_task, specification
from envgym_environments.code_repair.self_play.history import reverts_in
from envgym_environments.code_repair.self_play.prompts import injector_prompt, solver_prompt
from envgym_environments.code_repair.state import FullState

__all__ = ["INJECTOR", "State", "solver", "stage"]

INJECTOR = "injector"


def solver(number: int) -> str:
    """The actor of an attempt, counted from 1."""
    return f"solver-{number}"


class State(BaseModel):
    """Where an episode is, apart from its sandbox.

    phase: what is played. strategy, revert: how the injector is asked to break the code, and the number of the
    commit that it may take back, -1 for none. acted: turns of the present player. failing: the tests that the bug
    fails. solved: of each attempt at it. second, second_failing: the bug that a failed repair left; again: whether
    that was repaired.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: Literal["inject", "solve", "second", "close"] = "inject"
    strategy: str = "direct"
    revert: int = -1
    acted: int = 0
    artifact: Artifact | None = None
    failing: tuple[str, ...] = ()
    solved: tuple[bool, ...] = ()
    second: Artifact | None = None
    second_failing: tuple[str, ...] = ()
    again: bool | None = None
    ended: bool = False
    kept: FullState = FullState()

    @property
    def actor(self) -> str:
        """Who acts next."""
        return INJECTOR if self.phase in ("inject", "close") else solver(len(self.solved) + 1)

    @property
    def bug(self) -> tuple[Artifact, tuple[str, ...]]:
        """The bug that is repaired now, and the tests that it fails. Raises ValueError where there is none."""
        if self.phase == "second" and self.second is not None:
            return self.second, self.second_failing
        if self.artifact is None:
            raise ValueError(f"in phase {self.phase!r} there is no bug yet")
        return self.artifact, self.failing


def stage(repository: Task, state: State, *, attempts: int) -> Task:
    """The task of the present player: the unbroken repository, or the bug under the weakened tests.

    Raises ValueError for a task that is none of `repositories`.
    """
    layout, name = Layout.of(repository), str(repository.metadata.get("package", repository.id))
    if state.phase == "inject":
        revert = reverts_in(repository)[state.revert] if state.revert >= 0 else None
        prompt = injector_prompt(name, layout.package, layout.tests, state.strategy, attempts, revert)
        return _unbroken(repository, layout).model_copy(update={"prompt": prompt})
    bug, _ = state.bug
    prompt = solver_prompt(name, layout.package, specification(repository, bug), bug.order)
    return solver_task(repository, bug, prompt)


def _unbroken(repository: Task, layout: Layout) -> Task:
    """The repository as the tools of code repair know it: a task whose tests are those that pass."""
    passing = repository.metadata.get("passing")
    names = tuple(map(str, passing)) if isinstance(passing, list) else ()
    nothing = Artifact(bug={}, weakened={}, test_files=layout.tests)
    task = bug_task(repository, nothing, failing=names)
    return task.model_copy(update={"id": repository.id, "world": repository.world})
