"""`service`: the contracts, the scripted user, policies, a user that is an actor, tau2's files."""

import asyncio
import json

import msgspec
import pytest
from envgym_environments.tool.service.world import SPEC, expert, service_tasks

from envgym import play
from envgym.env import Step, StopReason
from envgym.limits import Limits
from envgym.messages import Action
from envgym.registry import make
from envgym.rollout import Origin, Rollout
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent

SERVICES = pytest.mark.parametrize("service", ["retail", "office", "files"])
LONG = Limits(turns=60)


@SERVICES
def test_it_meets_the_environment_contract(service) -> None:
    check_env_sync(lambda: make(SPEC, service_tasks(service=service)[1]), uses_seed=True)


@SERVICES
def test_cases_of_all_difficulties_are_solved_by_the_expert_and_not_by_doing_nothing(service) -> None:
    check_task_sync(service_tasks(30, service=service), lambda t: make(SPEC, t), expert, seeds=(0,), limits=LONG)


def test_tasks_are_data_that_is_drawn_without_end() -> None:
    tasks = service_tasks(150)
    check_tasks(tasks, splits=("train", "heldout"))
    assert {task.metadata["difficulty"] for task in tasks.split("heldout")} == {1, 2, 3, 4, 5}
    assert len({task.prompt for task in tasks}) > 120
    assert service_tasks(None)[10**6].prompt
    for wrong in ({"service": "bank"}, {"difficulty": 0}, {"count": 0}):
        with pytest.raises(ValueError, match="must be"):
            service_tasks(**wrong)  # type: ignore[arg-type]


async def _played(actions, task) -> Step:
    env = make(SPEC, task)
    step = await env.reset(seed=0)
    for action in actions:
        if step.stop is None:
            step = await env.step(Action.say(action) if isinstance(action, str) else action)
    await env.close()
    return step


def _expert_actions(task):
    async def run():
        env, agent, actions = make(SPEC, task), expert(task, seed=0), []
        step = await env.reset(seed=0)
        while step.stop is None:
            actions.append((await agent.act(step)).action)
            step = await env.step(actions[-1])
        return actions

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("leaves_out", "channel"),
    [("find_user_id_by_email", "kept"), ("Shall I proceed?", "kept"), ("cancel_", "state")],
)
def test_a_right_end_is_not_enough_where_the_policy_was_broken(leaves_out, channel) -> None:
    tasks = service_tasks(service="retail", difficulty=1)
    task = next(task for task in tasks if "cancel" in task.prompt)
    kept = [one for one in _expert_actions(task) if leaves_out not in f"{one.text} {[c.name for c in one.calls]}"]
    end = asyncio.run(_played(kept, task))
    assert end.stop is StopReason.SUBMITTED
    assert (end.reward, end.channels[channel]) == (0.0, 0.0)


def test_a_request_against_the_policy_must_be_refused_in_words() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=5) if "urgent" in task.prompt)
    silent = asyncio.run(_played(["It is all done."], task))
    assert (silent.reward, silent.channels["told"], silent.channels["state"]) == (0.0, 0.0, 1.0)
    assert asyncio.run(_played(["I am unable to do that. Is there anything else?"], task)).reward == 1.0


def test_a_refused_change_leaves_nothing_half_done() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=1) if "cancel" in task.prompt)
    order = next(word for word in task.prompt.replace("?", " ").replace(".", " ").split() if word.startswith("#"))

    async def run() -> None:
        env = make(SPEC, task)
        await env.reset(seed=0)
        before = msgspec.json.decode((await env.snapshot()).state)["state"]["db"]
        refused = await env.step(Action.call("modify_pending_order_payment", order_id=order, payment_method_id="x"))
        assert refused.text.startswith("refused: ")
        assert msgspec.json.decode((await env.snapshot()).state)["state"]["db"] == before

    asyncio.run(run())


def test_an_actor_may_play_the_user() -> None:
    task = next(task for task in service_tasks(service="files", difficulty=1))
    env = make(SPEC, task, user="actor")
    _, _, name, _, folder = task.prompt.split(" ")
    path = f"{folder.rstrip('.')}/{name}"
    agent = ScriptedAgent(
        ["Shall I move it to /trash?", Action.call("move_file", path=path, to=f"/trash/{name}"), "It is done."]
    )
    user = ScriptedAgent(["move_file a b is what I mean: yes", "Goodbye"], name="user")
    episode = asyncio.run(play(env, {"agent": agent, "user": user}, origin=Origin("one", 0), rollout=Rollout()))
    assert [turn.actor for turn in episode.turns] == ["agent", "user", "agent", "agent", "user"]
    assert "You are the user" in episode.turns[0].step.text
    assert episode.reward == 1.0


def test_tau2s_retail_tasks_are_played_as_they_lie(tmp_path) -> None:
    drawn = next(task for task in service_tasks(service="retail", difficulty=3))

    async def database():
        env = make(SPEC, drawn)
        await env.reset(seed=0)
        return msgspec.json.decode((await env.snapshot()).state)["state"]["db"]

    db = asyncio.run(database())
    user = next(
        user for user in db["users"].values() for o in user["orders"] if db["orders"][o]["status"] == "pending"
    )
    order = next(key for key in user["orders"] if db["orders"][key]["status"] == "pending")
    actions = [
        {"action_id": "0_0", "name": "find_user_id_by_email", "arguments": {"email": user["email"]}, "info": None},
        {
            "action_id": "0_1",
            "name": "cancel_pending_order",
            "arguments": {"order_id": order, "reason": "no longer needed"},
            "info": None,
        },
    ]
    says = {
        "domain": "retail",
        "reason_for_call": "You want to cancel your order.",
        "known_info": "Your email is x.",
        "unknown_info": None,
        "task_instructions": "You are terse.",
    }
    entry = {
        "id": "0",
        "user_scenario": {"persona": None, "instructions": says},
        "evaluation_criteria": {"actions": actions, "communicate_info": ["12.5"], "nl_assertions": None},
    }
    (tmp_path / "db.json").write_text(json.dumps(db))
    (tmp_path / "tasks.json").write_text(json.dumps([entry]))
    (tmp_path / "split_tasks.json").write_text(json.dumps({"train": [], "test": ["0"]}))
    tasks = service_tasks(path=str(tmp_path))
    assert [task.split for task in tasks] == ["heldout"]
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    check_env_sync(lambda: make(SPEC, tasks[0]), uses_seed=True)
    (tmp_path / "db.json").write_text("{}")
    with pytest.raises(ValueError, match="retail"):
        service_tasks(path=str(tmp_path))
