"""Tools, wrappers, synthesis and rewards from the command line."""

import json
from dataclasses import replace

import pytest

from envgym import StoreReader
from envgym.errors import AgentFailure
from envgym.registry import register, unregister
from envgym.testing.fakes import MEMORY, MemoryEnv, RandomAgent


def test_a_wrapped_environment_is_collected_and_wrong_wraps_are_told(envgym, tmp_path):
    out = tmp_path / "store"
    wrap = 'wrap=[{"name": "budget", "total": 2}, "delay"]'
    assert envgym("collect", "guess", "-n", "2", "--out", str(out), "--env-option", wrap).code == 0
    with StoreReader(out) as reader:
        episodes = list(reader)
    assert all(len(episode.turns) <= 2 for episode in episodes)
    assert "budget_left" in episodes[0].turns[0].step.channels
    wrong = envgym("collect", "guess", "-n", "1", "--env-option", "wrap=dely")
    assert wrong.code != 0
    assert "did you mean 'delay'" in wrong.err


def test_a_proxy_is_shown_beside_its_gold(envgym, tmp_path):
    out = str(tmp_path / "store")
    assert envgym("collect", "guess", "-n", "12", "--out", out).code == 0
    report = json.loads(envgym("rewards", out, "--gold", "reward", "--json").out)
    assert (report["pairs"], report["silent"], report["hacked"]) == (12, 0, False)
    assert report["rank"] in (None, pytest.approx(1.0))
    unknown = envgym("rewards", out, "--gold", "nothing").out
    assert "rank        unknown" in unknown
    assert "silent      12" in unknown


def test_tasks_are_synthesized_remembered_and_played(envgym, tmp_path):
    tasks, memory = tmp_path / "tasks.jsonl", tmp_path / "memory.json"
    made = envgym("synthesize", "tool", "--out", str(tasks), "-n", "3", "--trails", "6", "--memory", str(memory))
    assert made.code == 0, made.err
    assert "3 tasks of" in made.out
    assert json.loads(memory.read_text())["goals"]
    again = ("collect", "synthesized", "--task-option", f"path={tasks}", "-n", "2", "--turns", "2", "--json")
    assert json.loads(envgym(*again).out)["failed"] == 0


def test_who_names_rates_and_writes_single_steps_is_asked_by_the_command(envgym, tmp_path):
    tasks, steps = tmp_path / "tasks.jsonl", tmp_path / "steps.jsonl"
    call = ("synthesize", "tool", "--out", str(tasks), "-n", "3", "--trails", "6", "--steps", str(steps))
    asked = ("--words", "scripted-namer", "--rating", "scripted-namer")
    made = envgym(*call, *asked)
    assert made.code == 0, made.err
    prompts = [json.loads(line)["prompt"] for line in steps.read_text().splitlines()]
    assert any(prompt.startswith("Please note text ") for prompt in prompts), prompts
    assert all(prompt.startswith("Please ") for prompt in prompts)
    told = [json.loads(line) for line in tasks.read_text().splitlines()]
    assert all(one["prompt"].startswith("Please ") for one in told)
    assert {one["metadata"]["synthesized"]["score"] * 5 % 1 for one in told} == {0}
    played = ("collect", "synthesized", "--task-option", f"path={steps}", "-n", "2", "--turns", "2", "--json")
    assert json.loads(envgym(*played).out)["failed"] == 0
    strict = envgym(*call, *asked, "--least", "1.0")
    kept = [json.loads(line)["metadata"]["synthesized"]["score"] for line in tasks.read_text().splitlines()]
    assert "rated too low" in strict.out
    assert set(kept) <= {1.0}
    plain = envgym(*call)
    assert "of single steps in" in plain.out
    assert '"prompt":"Do this one step: note text ' in steps.read_text()
    for wrong in (
        ("--words-option", "a=1"),
        ("--words", "nobody"),
        ("--rating", "scripted-namer", "--rating-option", "a=1"),
    ):
        assert envgym(*call, *wrong).code != 0


class _Counts:
    made = closed = 0

    def __init__(self, task, *, seed, tools=(), breaks=False):
        type(self).made += 1
        self._inner, self._breaks = RandomAgent(tools, seed=seed), breaks
        self.name = "agent"

    async def act(self, step):
        if self._breaks:
            raise AgentFailure("it does not know")
        return await self._inner.act(step)

    async def close(self):
        type(self).closed += 1


class _Env(MemoryEnv):
    open = 0

    def __init__(self, *given):
        super().__init__(*given)
        type(self).open += 1
        self._closed = False

    async def close(self):
        type(self).open -= not self._closed
        self._closed = True
        await super().close()


@pytest.mark.parametrize("breaks", [False, True])
def test_agents_and_worlds_of_an_exploration_are_closed(envgym, tmp_path, breaks):
    register("environments", "counted", replace(MEMORY, name="counted", make=_Env))
    register("agents", "counts", _Counts)
    try:
        call = (
            "synthesize",
            "counted",
            "--out",
            str(tmp_path / "t.jsonl"),
            "-n",
            "2",
            "--trails",
            "3",
            "--turns",
            "3",
        )
        ran = envgym(*call, "--agent", "counts", "--agent-option", f"breaks={str(breaks).lower()}")
    finally:
        unregister("environments", "counted")
        unregister("agents", "counts")
    assert (ran.code == 0) != breaks, ran.err
    assert _Counts.made > 0
    assert _Counts.made == _Counts.closed
    assert _Env.open == 0
