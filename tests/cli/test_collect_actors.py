"""`envgym collect --actor`: another agent plays another actor of the world, such as the user of `service`."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envgym.cli.bench_store import forked_store
from envgym.credit import Ledger
from envgym.episode import Group
from envgym.messages import Action
from envgym.registry import register, unregister
from envgym.store import StoreReader
from envgym.task import Task
from envgym.testing.fakes import ScriptedAgent, ScriptedPolicy

Envgym = Callable[..., Any]
PLAY = (
    "collect", "service", "-n", "2", "--agent", "desk", "--env-option", "user=actor",
    "--task-option", "service=files", "--task-option", "difficulty=1",
)  # fmt: skip
SHOWN: list[Any] = []


@pytest.fixture
def people() -> Iterator[None]:
    """An agent that moves what the first task names, and a caller who samples every word."""

    def desk(task: Task, *, seed: int) -> ScriptedAgent:
        _, _, name, _, folder = task.prompt.split(" ")[:5]
        move = Action.call("move_file", path=f"{folder.rstrip('.')}/{name}", to=f"/trash/{name}")
        words = ["Shall I move it to /trash?", move, "It is done."]
        return ScriptedAgent(words, policy=ScriptedPolicy(tokens=2))

    def caller(task: Task, *, seed: int, tools: object = (), last: str = "Goodbye.") -> ScriptedAgent:
        SHOWN.append(tools)
        return ScriptedAgent(["yes", last], policy=ScriptedPolicy(tokens=3))

    register("agents", "desk", desk)
    register("agents", "caller", caller)
    SHOWN.clear()
    yield
    unregister("agents", "caller")
    unregister("agents", "desk")


def test_a_registered_agent_plays_the_user_in_words_and_the_agent_earns_the_end(
    envgym: Envgym, people: None, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    ran = envgym(*PLAY, "--actor", "user=caller", "--out", str(out), "--json")
    assert ran.code == 0, ran.err
    with StoreReader(out) as reader:
        episode = reader[min(reader.ids)]
    assert episode.failure is None
    assert [turn.actor for turn in episode.turns] == ["agent", "user", "agent", "agent", "user"]
    assert [len(turn.sampled_ids) for turn in episode.turns] == [2, 0, 2, 2, 0], "what a user says trains nobody"
    assert episode.turns[-1].messages[-1].content == "Goodbye."
    assert SHOWN == [(), ()], "the tools are the agent's"
    ledger = Ledger.of([Group(episode.task_id, (episode,))])
    assert ledger.reward_N[ledger.turns[0] : ledger.turns[1]].tolist() == [0.0, 0.0, 1.0]
    assert json.loads(dict(episode.provenance)["actors"])["user"]["agent"] == "caller"
    again = envgym(*PLAY, "--actor", 'user={"agent": "caller", "options": {"last": "Bye."}}', "--out", str(out))
    assert (again.code, "actors was" in again.err) == (2, True), "another user is another collection"
    with pytest.raises(ValueError, match="user had an agent of their own there"):
        asyncio.run(forked_store(out, 1, 1))


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ("user=callr", "unknown agent 'callr'; did you mean 'caller'?"),
        ('user={"agent": "caller", "options": {"lst": 1}}', "user: options.lst = 1: there is no such option"),
        ('user={"agnt": "caller"}', "--actor user.agent"),
        ("user", "is not of the form name=value"),
    ],
)
def test_an_actor_that_cannot_be_is_refused(envgym: Envgym, people: None, actor: str, said: str) -> None:
    ran = envgym(*PLAY, "--actor", actor)
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_an_actor_that_nobody_asks_for_is_said_and_one_that_nobody_plays_is_refused(
    envgym: Envgym, people: None
) -> None:
    ran = envgym(*PLAY, "--actor", "user=caller", "--actor", "solver-1=caller")
    assert "--actor solver-1: no episode asked for an actor of that name; those that acted: agent, user" in ran.err
    lacking = envgym(*PLAY)
    assert (lacking.code, "--actor user=AGENT" in lacking.err) == (2, True), lacking.err
