"""The three solvable worlds of `envgym.oracle`, registered like any other environment."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from envgym.oracle import Solvable, SolvableEnv, corridor, desk, vault, world_tasks
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet

__all__ = ["CORRIDOR", "DESK", "VAULT"]


def _spec(make: Callable[..., Solvable], description: str) -> EnvSpec:
    @lru_cache(maxsize=8)
    def world(options: tuple[tuple[str, Any], ...]) -> Solvable:
        return make(**dict(options))

    def tasks(count: int = 100, **options: Any) -> TaskSet:
        return world_tasks(world(_plain(options)), count, **options)

    def env(task: Task) -> SolvableEnv:
        return SolvableEnv(task, world(_plain(task.metadata)))

    return EnvSpec(name=make.__name__, tasks=tasks, make=env, description=description, in_process=True, seeded=True)


def _plain(options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options that can be a key; a list, as JSON has them, stands for a tuple."""
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items())


CORRIDOR = _spec(corridor, "Twenty-four rooms, traps and one reward at the end; its true values are known.")
VAULT = _spec(vault, "A key, a door and mistakes that can be mended; its true values are known.")
DESK = _spec(desk, "Four decisions among many turns that decide nothing; its true values are known.")
