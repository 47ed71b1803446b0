"""Stored episodes continued from each of their turns, with the environment and the agent that played them."""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from envgym.cli.options import tasks_of
from envgym.env import Env
from envgym.episode import Group
from envgym.limits import Limits
from envgym.options import wrong_option
from envgym.oracle.choosing import Spot
from envgym.oracle.forking import Grown, Place, grow
from envgym.policy import Agent
from envgym.registry import find, make, make_backend, spec
from envgym.rollout import Rollout
from envgym.sandbox import SandboxBackend
from envgym.store import StoreReader
from envgym.task import Task

__all__ = ["forked_store"]


async def forked_store(
    store: Path, episodes: int, times: int, *, agent_options: Mapping[str, Any] | None = None, sandbox: str = "auto"
) -> Grown:
    """Continue every turn of the first episodes that `envgym collect` stored, `times` times each.

    agent_options: in place of what the store says, such as where a model lies now. Episodes of one task are one
    group. Raises ValueError where the store does not say who played what.
    """
    with StoreReader(store) as reader:
        chosen: dict[str, list[Any]] = {}
        for episode in reader:
            if sum(map(len, chosen.values())) < episodes and episode.parent is None and episode.failure is None:
                chosen.setdefault(episode.task_id, []).append(episode)
    groups = [Group(task, tuple(members)) for task, members in chosen.items()]
    if not groups:
        raise ValueError(f"--store {store} holds no episode that was played from its beginning to an end")
    known = _known(store, groups)
    known["agent options"] |= agent_options or {}
    agent, options = known["agent"], known["agent options"]
    own = {"seed", "tools"}
    if wrong := wrong_option(f"options of agent {agent!r}", options, find("agents", agent), given=own, skip=1):
        raise ValueError(wrong)
    limits = Limits(turns=known["turns"])
    spots = [
        Spot(number, episode.id, turn, times)
        for number, group in enumerate(groups) for episode in group for turn in range(len(episode.turns))
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        backend: SandboxBackend | None = None
        if spec(known["environment"]).sandbox:
            backend = await stack.enter_async_context(make_backend(sandbox))
        place = _place(known, backend)
        return await grow(groups, spots, place, rollout=Rollout(limits=limits))


def _known(store: Path, groups: list[Group]) -> dict[str, Any]:
    """Environment, agent, their options and the bound on turns, as the episodes' provenance has them."""
    said = {episode.provenance for group in groups for episode in group}
    kinds = {(dict(one).get("environment"), dict(one).get("agent")) for one in said}
    if len(kinds) != 1 or None in next(iter(kinds)):
        raise ValueError(
            f"--store {store}: its episodes name environment and agent as {sorted(map(str, kinds))}; one of "
            "each is needed, as `envgym collect` writes them"
        )
    one = dict(next(iter(said)))
    if others := json.loads(one.get("actors", "{}")):
        raise ValueError(
            f"--store {store}: {', '.join(sorted(others))} had an agent of their own there (--actor), and what is "
            "continued here is played by one agent; give a store of one"
        )
    options = {f"{name} options": json.loads(one.get(f"{name} options", "{}")) for name in ("env", "task", "agent")}
    turns = int(json.loads(one.get("turns", "50")))
    return {"environment": one["environment"], "agent": one["agent"], "turns": turns, **options}


def _place(known: dict[str, Any], backend: SandboxBackend | None) -> Callable[[Group], Place]:
    tasks = {task.id: task for task in tasks_of(known["environment"], known["task options"], "task option")}
    factory = find("agents", known["agent"])
    wants_tools = "tools" in inspect.signature(factory).parameters

    def place(group: Group) -> Place:
        if group.task_id not in tasks:
            raise ValueError(f"environment {known['environment']!r} has no task {group.task_id!r} any more")
        task: Task = tasks[group.task_id]
        tools = make(known["environment"], task, backend=backend, **known["env options"]).tools

        async def make_env() -> Env:
            return make(known["environment"], task, backend=backend, **known["env options"])

        def make_agent(seed: int) -> Agent:
            given = {"tools": tools} if wants_tools else {}
            made: Agent = factory(task, seed=seed, **given, **known["agent options"])
            return made

        return Place(make_env, make_agent)

    return place
