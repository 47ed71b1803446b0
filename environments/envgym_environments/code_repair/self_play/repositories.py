"""Unbroken repositories as tasks: what self-play breaks. Nothing about bugs is known here.

A repository needs a source tree whose tests run, and no issue: a package of the recipe, or any tree of `local`. Of
a git repository the commits that can be taken back come with it. Its tests are run once as the factory runs them;
those that do not pass every time are deselected.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from envgym.errors import EnvgymError
from envgym.registry import EnvSpec
from envgym.sandbox import SandboxBackend
from envgym.task import Task, TaskSet
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.describe import package_metadata
from envgym_environments.code_repair.mirrors.commits import Repository
from envgym_environments.code_repair.self_play.env import SelfPlay
from envgym_environments.code_repair.self_play.history import Revert, reverts_of, told
from envgym_environments.code_repair.sources import Package, cache_root, layout_of, source_tree
from envgym_environments.code_repair.taskset import load_tasks

__all__ = ["SPEC", "default_repositories", "repository_task", "repository_tasks", "self_play_tasks"]


def default_repositories(cache: Path | None = None) -> Path:
    """Where repositories lie unless another file is named."""
    return (cache or cache_root()) / "repositories.jsonl"


def repository_task(baseline: Baseline, tree: Path, *, history: Sequence[Revert] = ()) -> Task:
    """The task of an unbroken package. history: what of its commits can be taken back."""
    package = baseline.package
    metadata: dict[str, JsonValue] = {
        **package_metadata(package, tree, baseline.layout),
        "passing": list(baseline.tests),
        "tests": len(baseline.tests),
        "suite_s": round(baseline.suite_s, 3),
    }
    if history:
        metadata["history"] = told(history)
    return Task(
        id=f"self-play/{package.slug}",
        prompt=f"The unbroken repository of {package.name} {package.version}.",
        world=package_world(tree),
        split=package.split,
        metadata=metadata,
    )


async def repository_tasks(
    packages: Sequence[Package],
    backend: SandboxBackend,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    histories: Mapping[str, Path] | None = None,
) -> tuple[list[Task], dict[str, str]]:
    """The tasks of these packages, and why some gave none. `progress` gets a line for each.

    histories: slug -> the git repository that a package's tree is the HEAD of.
    """
    tasks, failed = list[Task](), dict[str, str]()
    for package in packages:
        try:
            tree = await asyncio.to_thread(source_tree, package, cache=cache)
            layout = layout_of(package, tree)
            async with await backend.create(package_world(tree)) as base:
                baseline = await measure(base, package, layout)
            history: list[Revert] = []
            if (place := (histories or {}).get(package.slug)) is not None:
                repository = Repository(path=place, name=package.name)
                history = await asyncio.to_thread(reverts_of, repository, layout, cache or cache_root())
        except (ValueError, EnvgymError) as error:
            failed[package.slug] = f"{type(error).__name__}: {error}"
            progress(f"{package.slug}: {failed[package.slug]}")
            continue
        tasks.append(repository_task(baseline, tree, history=history))
        commits = f", {len(history)} commits can be taken back" * bool(history)
        progress(f"{package.slug}: {len(baseline.tests)} tests{commits}")
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
