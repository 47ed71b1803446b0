"""Synthesised tasks: found by exploring, abstract, new, remembered, and proved by being played."""

import asyncio
import itertools
import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from envgym_environments.synthesized import Goal, make_synthesized, synthesized_tasks

from envgym import Action, Message, Replaying, make
from envgym.errors import EnvironmentFailure
from envgym.registry import find, spec
from envgym.rewards.plan import reward_plan
from envgym.rewards.rewarded import Rewarded
from envgym.synthesis import Curious, Told, Tried, describe, instruct, learned, synthesize
from envgym.synthesis.explore import AgentExplorer
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent
from envgym.testing.memory import MemoryEnv
from envgym.wire import action_from_json
from envgym.wrappers import Adversary, Noise, Perturbation, Wrapped


def found(count: int = 6, **more):
    base = spec("tool").tasks()[0]
    making = partial(make, "tool", base)
    explorer = more.pop("explorer", lambda seed: Curious(np.random.default_rng(seed)))
    return asyncio.run(synthesize("tool", base, making, explorer, count=count, trails=12, turns=6, **more))


def expert(task, *, seed: int) -> ScriptedAgent:
    return ScriptedAgent([action_from_json(one) for one in task.metadata["synthesized"]["reference"]])


def test_tasks_are_found_can_be_solved_and_are_written_for_the_environment_that_plays_them(tmp_path):
    made = found()
    assert len(made.tasks) == 6
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(task.model_dump_json() + "\n" for task in made.tasks))
    tasks = synthesized_tasks(str(path))
    check_tasks(tasks, splits=("train", "heldout"))
    check_task_sync(tasks, make_synthesized, expert)
    check_env_sync(lambda: make("synthesized", tasks[0]), turns=3)


class SaysItsSeed(MemoryEnv):
    """A world that is another under each seed; without snapshots of its own it is replayed."""

    async def reset(self, *, seed, start=None):
        return replace(await super().reset(seed=seed), observation=(Message(role="user", content=f"{seed} " * 20),))


@pytest.mark.parametrize(
    "around",
    [
        lambda env: Wrapped(env, Noise(rate=0.5, sigma=1.0)), lambda env: Wrapped(env, Perturbation(drop=0.5)),
        lambda env: Wrapped(env, Adversary(rate=0.5)),
        lambda env: Rewarded(env, reward_plan({"channels": {"reached": {"kind": "world"}}}), {}),
    ],
)  # fmt: skip
def test_what_is_around_a_world_whose_seed_is_pinned_goes_on_as_it_was(around):
    def made():
        return around(Wrapped(Replaying(SaysItsSeed), Goal(MemoryEnv().task, "nowhere", seed=1234)))

    async def go_on(env) -> list:
        steps = [await env.step(Action.say("open 0")) for _ in range(6)]
        return [(step.observation, step.reward, step.channels) for step in steps]

    async def main() -> None:
        env, other = made(), made()
        await env.reset(seed=5)
        kept = await env.snapshot()
        await other.reset(seed=0, start=kept)
        again = await other.snapshot()
        assert again == kept
        assert await go_on(other) == await go_on(env)
        assert kept.seed == 5

    asyncio.run(main())


def test_the_same_seed_finds_the_same_and_memory_makes_it_look_elsewhere(tmp_path):
    tried = Tried()
    first = found(4, tried=tried)
    assert first.tasks == found(4).tasks
    tried.write(tmp_path / "memory.json")
    again = found(4, tried=Tried.read(tmp_path / "memory.json"))
    goals = [{task.metadata["synthesized"]["goal"] for task in made.tasks} for made in (first, again)]
    assert not goals[0] & goals[1]
    (tmp_path / "memory.json").write_text("[]")
    with pytest.raises(ValueError, match="no memory of a synthesis"):
        Tried.read(tmp_path / "memory.json")


def test_a_way_holds_only_what_matters_and_its_schema_tells_what_was_found_out():
    made = found(8)
    for task in made.tasks:
        told = task.metadata["synthesized"]
        names = [call["name"] for action in told["reference"] for call in action["message"]["tool_calls"]]
        assert "look" not in names, "looking changes nothing"
        assert len(names) == told["schema"].count("(")
    assert made.refused["nothing changed"] > 0
    assert max(Tried().schemas.values(), default=0) == 0


def test_any_agent_explores_and_a_model_writes_the_words():
    class Asker:
        async def ask(self, question: str, *, seed: int) -> str:
            assert "- move: Move a thing" in question
            return " Please tidy up. "

    env = make("tool", 0)

    def explorer(seed: int) -> AgentExplorer:
        return AgentExplorer(find("agents", "random")(env.task, seed=seed, tools=env.tools))

    made = found(2, explorer=explorer, told=Told(words=describe(Asker())))
    assert {task.prompt for task in made.tasks} == {"Please tidy up."}


def test_a_schema_is_used_up():
    made = found(50, per_schema=1)
    schemas = [task.metadata["synthesized"]["schema"] for task in made.tasks]
    assert len(schemas) == len(set(schemas))
    assert made.refused["schema used up"] > 0


@dataclass(frozen=True, slots=True)
class Seeded:
    """States named by the seed of their world, in worlds that are otherwise the same."""

    name: str = "seeded"

    def begin(self, seen):
        return {"of": str(int(seen.rng.integers(1 << 30)))}, replace(seen.last, state_key="begin")

    def act(self, state, action, seen):
        return state, action

    def see(self, state, action, step, seen):
        return state, replace(step, state_key=f"{state['of']}/{step.state_key}")


@pytest.mark.parametrize("wrap", [(), (Seeded(),)], ids=["the same states", "states of the seed's"])
def test_the_same_under_another_seed_is_no_new_task(wrap):
    base = spec("tool").tasks()[0]
    making = partial(make, "tool", base, wrap=wrap)
    made = asyncio.run(synthesize("tool", base, making, lambda seed: Curious(np.random.default_rng(seed)),
                                  count=200, trails=40, turns=3, per_schema=200))  # fmt: skip
    told = [task.metadata["synthesized"] for task in made.tasks]
    assert len({one["seed"] for one in told}) > 3
    assert len(told) == len({one["goal"] for one in told})
    assert len(told) == len(
        {(str(one["reference"]), task.prompt) for one, task in zip(told, made.tasks, strict=True)}
    )
    assert made.refused["asked for before"] > 0


def test_a_memory_of_goals_by_seed_is_still_read(tmp_path):
    file = tmp_path / "memory.json"
    file.write_text('{"schemas": {}, "goals": ["17:a:b"], "calls": {}}')
    assert Tried.read(file).goals == {"a:b"}


class Named:
    """Says what it is asked for, and keeps the questions."""

    def __init__(self):
        self.asked = []

    async def ask(self, question, *, seed):
        about = json.loads(question.splitlines()[-1])
        self.asked.append(about)
        return f"{about['asked']} {len(self.asked)}"


def test_each_step_gets_an_instruction_and_is_a_task_that_begins_where_it_began(tmp_path):
    namer = Named()
    made = found(4, told=Told(words=describe(namer), steps=instruct(namer)))
    singles = [about for about in namer.asked if about["asked"] == "instruction"]
    assert all(about["done"] and about["before"] != about["after"] for about in singles)
    assert 0 < len(made.steps) <= len(singles)
    keys = [
        (task.metadata["synthesized"]["goal"], str(task.metadata["synthesized"]["reference"]))
        for task in made.steps
    ]
    assert len(keys) == len(set(keys))
    assert any(task.metadata["synthesized"]["lead"] for task in made.steps), "not only first steps"
    told = [task.metadata["synthesized"] for task in made.tasks]
    assert all(len(one["instructions"]) == len(one["reference"]) for one in told)
    asked = [about["steps"] for about in namer.asked if about["asked"] == "task"]
    assert asked == [one["instructions"] for one in told], "a task is named by its steps' instructions"
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(task.model_dump_json() + "\n" for task in made.steps))
    tasks = synthesized_tasks(str(path))
    assert all(task.prompt.startswith("instruction ") for task in tasks)
    check_tasks(tasks, splits=("train", "heldout"))
    check_task_sync(tasks, make_synthesized, expert)
    late = max(tasks, key=lambda task: len(task.metadata["synthesized"]["lead"]))
    check_env_sync(lambda: make("synthesized", late), turns=3)


def test_a_step_that_does_not_come_out_again_makes_no_task():
    base, count = spec("tool").tasks()[0], itertools.count()

    def changing():
        return make("tool", base if next(count) % 2 == 0 else spec("tool").tasks()[1])

    made = asyncio.run(
        synthesize("tool", base, changing, _curious, count=1, trails=1, turns=6, told=Told(steps=instruct(Named())))
    )
    assert made.steps == ()
    assert made.refused["step not repeated"] > 0


def _curious(seed):
    return Curious(np.random.default_rng(seed))


class Counted(Curious):
    """Counts itself while it is open; broken: nobody knows what to do."""

    open: list[int]
    broken = False

    async def choose(self, step, tools, tried):
        if self.broken:
            raise EnvironmentFailure("nobody knows what to do")
        return await super().choose(step, tools, tried)

    async def close(self):
        self.open.append(-1)


@pytest.mark.parametrize("broken", [False, True])
def test_who_explores_is_closed_after_its_trail_whatever_happens(broken):
    counts = []

    def explorer(seed):
        made = Counted(np.random.default_rng(seed))
        made.open, made.broken = counts, broken
        assert sum(counts) == 0, "the one before is closed"
        counts.append(1)
        return made

    with pytest.raises(EnvironmentFailure) if broken else nullcontext():
        found(2, explorer=explorer)
    assert counts
    assert sum(counts) == 0


def test_a_reward_model_rates_the_way_as_its_world_heard_it():
    asked = []

    class Model:
        def share(self, messages):
            asked.append(messages)
            return 1 / len(messages)

    made = found(3, told=Told(rating=learned(Model())))
    assert made.tasks
    for task, messages in zip(made.tasks, asked, strict=True):
        way = task.metadata["synthesized"]["reference"]
        assert task.metadata["synthesized"]["score"] == 1 / len(messages)
        assert messages[0].content == task.prompt, "the script's words"
        assert messages[1].role == "user", "what the world showed first"
        done = [message.tool_calls[0].name for message in messages if message.role == "assistant"]
        assert done == [action["message"]["tool_calls"][0]["name"] for action in way]
        assert messages[-1].role == "assistant", "what came of the last action would say that it worked"


def test_trails_that_are_rated_too_low_make_no_task():
    async def half(found):
        return 0.5 if "move" in found.schema else 0.9

    def moving(seed: int) -> Curious:  # an explorer that finds out how to move things among its first tasks
        return Curious(np.random.default_rng([seed, 6]))

    everything = found(6, told=Told(rating=half), explorer=moving)
    kept = found(6, told=Told(rating=half, least=0.6), explorer=moving)
    scores = {task.metadata["synthesized"]["score"] for task in everything.tasks}
    assert scores == {0.5, 0.9}
    assert {task.metadata["synthesized"]["score"] for task in kept.tasks} == {0.9}
    assert kept.refused["rated too low"] > 0
    with pytest.raises(ValueError, match="least is 2"):
        Told(least=2)
