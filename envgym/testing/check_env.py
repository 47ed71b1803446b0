"""The environment contract, executable: `check_env(make)` drives one and fails with the sentence it broke.

A third party's whole test is::

    from envgym.testing import check_env_sync
    def test_contract():
        check_env_sync(lambda: CoinFlip(TASKS[0]))

It drives with legal actions where the environment lists them, with calls drawn from the tool schemas otherwise.
It does not judge whether tasks can be solved: that is `check_task`.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.env import Env, Snapshot
from envgym.messages import Action, ToolSpec
from envgym.task import Task
from envgym.testing.actions import bad_actions, sample_action
from envgym.testing.drive import Broken, Chooser, Kit, Make, Track, require, same
from envgym.testing.leftovers import Census
from envgym.wire import dumps, snapshot_from_json, snapshot_to_json

__all__ = ["Chooser", "EnvReport", "check_env", "check_env_sync"]


_ROUNDS = 3
_SEEDS = 8
"""How many seeds are tried at least before none is said to decide anything."""


@dataclass(frozen=True, slots=True)
class EnvReport:
    """What was checked, and what this environment gave no occasion to check."""

    checked: tuple[str, ...]
    unreached: tuple[str, ...]


async def _raises_runtime_error(kit: Kit, env: Env, name: str, *given: Any, sentence: str) -> None:
    try:
        await kit.within(env, name, *given)
    except RuntimeError:
        return
    except Broken:
        raise
    except (Exception, SystemExit) as error:  # any other class breaks the sentence just as silence does
        raise Broken(f"{sentence}; it raised {type(error).__name__}: {error}") from error
    raise Broken(f"{sentence}; it raised nothing")


_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


def _check_tools(tools: Any) -> None:
    require(
        isinstance(tools, tuple) and all(isinstance(one, ToolSpec) for one in tools),
        "tools is a tuple of ToolSpec",
        tools,
    )
    names = [spec.name for spec in tools]
    require(len(set(names)) == len(names), "tool names are unique", names)
    for spec in tools:
        require(bool(spec.name) and not set(spec.name) & set(" \t\n'\""), "a tool name is one word", spec.name)
        require(bool(spec.description), f"tool {spec.name} has a description: models read it")
        schema: Any = spec.parameters
        require(schema.get("type") == "object", f"the parameters of {spec.name} are a JSON object schema", schema)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        require(
            isinstance(properties, dict) and isinstance(required, list) and set(required) <= set(properties),
            f"the required arguments of {spec.name} are among its properties", schema,
        )  # fmt: skip
        for name, part in properties.items():
            kind = part.get("type") if isinstance(part, dict) else None
            known = kind in _TYPES or (kind is None and isinstance(part, dict))
            require(known, f"argument {name} of {spec.name} has a JSON schema type", part)


async def _shape(kit: Kit) -> None:
    env = await kit.make()
    try:
        require(isinstance(env.task, Task), "env.task is a Task", env.task)
        _check_tools(env.tools)
        early, order = Action.say("too early"), "before reset raises RuntimeError"
        await _raises_runtime_error(kit, env, "step", early, sentence=f"step {order}")
        await _raises_runtime_error(kit, env, "snapshot", sentence=f"snapshot {order}")
    finally:
        await kit.call(env, "close")


async def _determinism(kit: Kit) -> None:
    law = "same task, seed and actions give the same observations, rewards, stops, state keys and legal actions"
    one, two = await kit.make(), await kit.make()
    try:
        tracks = [await kit.longest(one, seed) for seed in kit.seeds]
        await kit.drive(two, kit.seeds[-1] + 7919, salt=9)  # what it did before must not matter
        for track in tracks:
            await kit.replay(two, track, law)
        for track in tracks:
            await kit.replay(one, track, "a second reset leaks nothing of the first episode")
        declared = _declared(one) if kit.uses_seed is None else kit.uses_seed
        if declared is None:
            kit.unreached.append("uses_seed is not said: whether a seed decides anything was not tried")
        else:
            await _seeds(kit, two, tracks[0], declared)
    finally:
        await kit.call(one, "close")
        await kit.call(two, "close")


def _declared(env: Env) -> bool | None:
    """What an environment says of itself."""
    said = getattr(env, "uses_seed", None)
    return None if said is None else bool(said)


async def _seeds(kit: Kit, env: Env, known: Track, declared: bool) -> None:
    """Whether the same actions meet the same with other seeds, as it is declared; the first difference decides."""
    first = max(map(abs, kit.seeds)) + 1
    more = range(first, first + _SEEDS - len(kit.seeds)) if declared else ()
    seeds = (*kit.seeds, *more)
    for seed in seeds:
        steps = [await kit.reset(env, seed)]
        for action in known.actions:
            if steps[-1].stop is not None:
                break
            steps.append(await kit.step(env, action))
        digests = Track(seed, steps).digests
        if digests == known.digests:
            continue
        at = next((n for n, pair in enumerate(zip(digests, known.digests, strict=False)) if len({*pair}) > 1), 0)
        require(
            declared,
            f"what is said of the seed holds: uses_seed is False, and after the same actions seed {known.seed} and "
            f"seed {seed} differ in step {at}",
            steps[at].text,
        )
        return
    require(not declared, f"a seed that is accepted is honoured: seeds {seeds} gave one and the same episode")


async def _the_end(kit: Kit) -> None:
    env = await kit.make()
    try:
        for salt in range(8):
            track = await kit.drive(env, kit.seeds[0], salt=salt)
            if track.ended:
                late, order = Action.say("too late"), "after the end raises RuntimeError"
                await _raises_runtime_error(kit, env, "step", late, sentence=f"step {order}")
                await kit.reset(env, kit.seeds[0])
                return
        kit.unreached.append(f"no episode ended within {kit.turns} turns: step after the end was not checked")
    finally:
        await kit.call(env, "close")


async def _bad_actions(kit: Kit) -> None:
    env = await kit.make()
    try:
        step = await kit.reset(env, kit.seeds[0])
        for what, action in bad_actions(env.tools).items():
            if step.stop is not None:
                step = await kit.reset(env, kit.seeds[0])
            try:
                step = await kit.step(env, action)
            except Broken as error:  # whatever it is, it was the model's fault and had to be an observation
                raise Broken(f"a bad action is data, answered by an observation ({what}): {error}") from error
            require(
                bool(step.observation) or step.stop is not None,
                f"a bad action is answered: {what} got an empty observation",
            )
    finally:
        await kit.call(env, "close")


async def _snapshots(kit: Kit) -> None:
    one, two = await kit.make(), await kit.make()
    try:
        track = await kit.longest(one, kit.seeds[0])
        middle = len(track.actions) // 2
        if track.ended and middle == len(track.actions):
            kit.unreached.append("no drive had a middle: snapshots were taken at its begin only")
        law = "a snapshot does not disturb the environment"
        same(track.steps[0], await kit.reset(one, track.seed), 0, law)
        for index in range(middle):
            same(track.steps[index + 1], await kit.step(one, track.actions[index]), index + 1, law)
        snapshot = await kit.call(one, "snapshot")
        require(isinstance(snapshot, Snapshot), "snapshot answers with a Snapshot", snapshot)
        require(snapshot.task_id == one.task.id, "a snapshot names its task", snapshot.task_id)
        await kit.follow(one, track, begin=middle, law=law)
        stored = snapshot_from_json(json.loads(dumps(snapshot_to_json(snapshot))))
        require(stored == snapshot, "a snapshot is plain data: it reads back from JSON as it was")
        for _ in range(2):  # it must serve more than once
            await kit.reset(two, track.seed + 1)
            await kit.call(two, "reset", seed=track.seed, start=stored)
            await kit.follow(two, track, begin=middle, law="a snapshot restores the state it was taken in")
        await kit.call(one, "release", snapshot)
    finally:
        await kit.call(one, "close")
        await kit.call(two, "close")


async def _forks(kit: Kit) -> None:
    env = await kit.make()
    opened: list[Env] = [env]
    try:
        track = await kit.longest(env, kit.seeds[0])
        middle = len(track.actions) // 2
        await kit.reset(env, track.seed)
        for index in range(middle):
            await kit.step(env, track.actions[index])
        for _ in range(3):
            fork = await kit.call(env, "fork")
            require(isinstance(fork, Env), "fork answers with an Env", fork)
            opened.append(fork)
        disturbed, quiet, sibling = opened[1:]
        rng = np.random.default_rng([abs(track.seed), 4242])
        step = track.steps[middle]
        for _ in range(kit.turns):
            if step.stop is not None:
                break
            step = await kit.step(disturbed, kit.choose(step, disturbed.tools, rng))
        law = "fork, then the same actions: the original's future"
        await kit.follow(quiet, track, begin=middle, law=law)
        await kit.follow(env, track, begin=middle, law="nothing done in a fork is visible in its parent")
        await kit.call(env, "close")
        await kit.follow(sibling, track, begin=middle, law=f"{law}, whatever its parent and siblings did")
    finally:
        for one in reversed(opened):
            await kit.call(one, "close")


async def _close_leaves_nothing(kit: Kit) -> None:
    async def cycle() -> None:
        env = await kit.make()
        await kit.drive(env, kit.seeds[0])
        fork = await kit.call(env, "fork")
        await kit.call(fork, "close")
        await kit.call(env, "close")
        await kit.call(env, "close")  # the second time

    await cycle()  # what is made once per process (pools, caches) is not a leak
    for _ in range(_ROUNDS):  # nor what a backend makes ready meanwhile; a leak is more in every round
        before = Census.take(kit.leftovers)
        for _ in range(2):
            await cycle()
        left = await before.wait_until_back(kit.leftovers)
        if not left:
            return
    require(not left, "close is idempotent and leaves nothing behind; left: " + "; ".join(left))


_CHECKS = {
    "shape, tools and order of calls": _shape,
    "determinism, reset and seeds": _determinism,
    "the end": _the_end,
    "bad actions are data": _bad_actions,
    "snapshots": _snapshots,
    "forks": _forks,
    "close leaves nothing": _close_leaves_nothing,
}


async def check_env(
    make: Make,
    *,
    seeds: Sequence[int] = (0, 1),
    turns: int = 8,
    policy: Chooser | None = None,
    deadline_s: float = 60.0,
    uses_seed: bool | None = None,
    leftovers: Callable[[], Collection[str]] | None = None,
) -> EnvReport:
    """Check every sentence of the environment contract. Raises AssertionError with the one that is broken.

    Args:
        make: gives a fresh environment per call (an Env or a Playable, or an awaitable of one).
        seeds: at least two, different.
        turns: how long a drive is at most.
        policy: how the next action is chosen; default `sample_action`.
        deadline_s: how long any one call may take.
        uses_seed: True fails an environment in which none of eight seeds (of `seeds`, if those are more) changes
            anything, False one in which one of `seeds` does; None asks its ``uses_seed``.
        leftovers: names of further things that must be gone after close (mounts, cgroups, containers ...).
    """
    if len(set(seeds)) < 2:
        raise ValueError(f"seeds is {tuple(seeds)}; give at least two different ones")
    if turns < 2:
        raise ValueError(f"turns is {turns}; a drive needs at least 2 to have a middle")
    kit = Kit(make, tuple(seeds), turns, policy or sample_action, deadline_s, uses_seed, leftovers)
    for check in _CHECKS.values():
        await check(kit)
    return EnvReport(tuple(_CHECKS), tuple(kit.unreached))


def check_env_sync(make: Make, **options: Any) -> EnvReport:
    """`check_env` on an event loop of its own, for a plain test function."""
    return asyncio.run(check_env(make, **options))
