"""Tasks of code repair from episodes of self-play: each consistent bug once, with its measured solve rate."""

import json
from collections import Counter
from collections.abc import Iterable

from pydantic import ValidationError

from envgym.episode import Episode
from envgym.task import Task, TaskSet
from envgym_environments.code_repair.self_play.artifact import Artifact, bug_task

__all__ = ["harvest"]


def harvest(episodes: Iterable[Episode], repositories: TaskSet) -> tuple[list[Task], Counter[str]]:
    """The tasks, and how many episodes gave none, by reason.

    The prompt names the failing tests. Nothing is run: `certified_again` does that.
    """
    known = {task.id: task for task in repositories}
    tasks: dict[str, Task] = {}
    left: Counter[str] = Counter()
    for episode in episodes:
        said = episode.turns[-1].step.submission if episode.turns else None
        if episode.failure is not None or said is None:
            left["not consistent, or not finished"] += 1
            continue
        repository = known.get(episode.task_id)
        if repository is None:
            left["of another repository"] += 1
            continue
        try:
            kept = json.loads(said)
            artifact, failing = Artifact.model_validate(kept["artifact"]), tuple(map(str, kept["failing"]))
            solved = [bool(one) for one in kept["solved"]]
        except (ValidationError, ValueError, KeyError, TypeError):
            left["not of self-play"] += 1
            continue
        lines = [f"{len(failing)} tests of {repository.metadata.get('package')} fail:", ""]
        lines += [f"- {name}" for name in failing[:5]]
        lines += ["", "The tests are right. Repair the package's code, so that they pass and no other test breaks."]
        task = bug_task(repository, artifact, failing=failing, prompt="\n".join(lines), answer=True)
        if task.id in tasks:
            left["the same bug again"] += 1
            continue
        data = {
            **task.metadata,
            "solve_rate": sum(solved) / len(solved) if solved else None,
            "attempts": len(solved),
        }
        tasks[task.id] = task.model_copy(update={"metadata": data})
    return list(tasks.values()), left
