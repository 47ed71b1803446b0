"""Unbroken repositories as tasks: what self-play breaks. Nothing about bugs is known here.

A repository needs a source tree whose tests run, no issue and no history: a package of the recipe, or any tree of
`local`. Its tests are run once as the factory runs them; those that do not pass every time are deselected.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from envgym.errors import EnvgymError
from envgym.registry import EnvSpec
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.describe import package_metadata
from envgym_environments.code_repair.self_play.env import SelfPlay
from envgym_environments.code_repair.sources import Package, cache_root, layout_of, source_tree
from envgym_environments.code_repair.taskset import load_tasks

__all__ = ["SPEC", "default_repositories", "repository_task", "repository_tasks", "self_play_tasks"]


def default_repositories(cache: Path | None = None) -> Path:
    """Where repositories lie unless another file is named."""
    return (cache or cache_root()) / "repositories.jsonl"


def repository_task(baseline: Baseline, tree: Path) -> Task:
    """The task of an unbroken package."""
    package = baseline.package
    return Task(
        id=f"self-play/{package.slug}",
        prompt=f"The unbroken repository of {package.name} {package.version}.",
        world=package_world(tree),
        split=package.split,
        metadata={
            **package_metadata(package, tree, baseline.layout),
            "passing": list(baseline.tests),
            "tests": len(baseline.tests),
            "suite_s": round(baseline.suite_s, 3),
        },
    )


async def repository_tasks(
    packages: Sequence[Package],
    backend: SandboxBackend,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[list[Task], dict[str, str]]:
    """The tasks of these packages, and why some gave none. `progress` gets a line for each."""
    tasks, failed = list[Task](), dict[str, str]()
    for package in packages:
        try:
            tree = await asyncio.to_thread(source_tree, package, cache=cache)
            async with await backend.create(package_world(tree)) as base:
                baseline = await measure(base, package, layout_of(package, tree))
        except (ValueError, EnvgymError) as error:
            failed[package.slug] = f"{type(error).__name__}: {error}"
            progress(f"{package.slug}: {failed[package.slug]}")
            continue
        tasks.append(repository_task(baseline, tree))
        progress(f"{package.slug}: {len(baseline.tests)} tests")
    return tasks, failed


def self_play_tasks(path: str | Path | None = None, *, split: str | None = None) -> TaskSet:
    """The repositories of a file that `envgym tasks repositories` wrote (default: the one in the cache)."""
    tasks = load_tasks(default_repositories() if path is None else Path(path))
    return tasks if split is None else tasks.split(split)


SPEC = EnvSpec(
    name="self-play",
    tasks=self_play_tasks,
    make=SelfPlay,
    description="Break a real repository so that others, who repair it, sometimes succeed; two roles, SSR.",
    sandbox=True,
)
