"""Synthesised tasks: found by exploring, abstract, new, remembered, and proved by being played."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from envgym_environments.synthesized import make_synthesized, synthesized_tasks

from envgym import make
from envgym.registry import find, spec
from envgym.synthesis import Curious, Tried, describe, synthesize
from envgym.synthesis.explore import AgentExplorer
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent
from envgym.wire import action_from_json


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

    made = found(2, explorer=explorer, words=describe(Asker()))
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
