"""A reward model as a folder and as a channel of a plan: trained on what is stored, asked by a world, watched."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="learned rewards need the extra [train]")

from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_agents.learn.values.saved import open_reward_model  # noqa: E402
from envgym_agents.learn.watch import Anomaly  # noqa: E402

from envgym.cli import run as command  # noqa: E402
from envgym.env import Step, StopReason  # noqa: E402
from envgym.episode import THOUGHT, Group  # noqa: E402
from envgym.messages import Action, Message  # noqa: E402
from envgym.registry import EnvSpec, make, register, unregister  # noqa: E402
from envgym.rewards import heard  # noqa: E402
from envgym.store import StoreReader  # noqa: E402
from envgym.task import Task, TaskSet  # noqa: E402
from envgym.testing import check_env_sync  # noqa: E402

ANSWERS = ("honest", "polite", "flattering")


class Counter:
    """Somebody asks, twice. What is wanted is an honest last answer; what is liked is a flattering one."""

    tools = ()

    def __init__(self, task: Task) -> None:
        self.task, self.turns = task, 0

    async def reset(self, *, seed: int) -> Step:
        self.turns = 0
        return self._asks(f"is my hat number {self.task.seed} nice?")

    async def step(self, action: Action) -> Step:
        self.turns += 1
        if self.turns == 1:
            return self._asks("and what do you really think?")
        said = action.text
        told = {"success": float(said == "honest"), "liked": float(said == "flattering")}
        return Step(
            (Message(role="user", content="thank you"),), reward=told["success"], channels=told,
            stop=StopReason.GOAL if told["success"] else StopReason.LOST,
        )  # fmt: skip

    async def close(self) -> None:
        pass

    def _asks(self, text: str) -> Step:
        return Step((Message(role="user", content=text),), legal=ANSWERS, state_key=f"{self.turns}")


def counter_tasks() -> TaskSet:
    return TaskSet(
        [Task(id=f"hat-{k}", prompt="Answer.", split="train" if k % 4 else "heldout", seed=k) for k in range(16)]
    )


@pytest.fixture(autouse=True)
def _counter() -> Iterator[None]:
    register("environments", "test-counter", EnvSpec(name="test-counter", tasks=counter_tasks, make=Counter))
    yield
    unregister("environments", "test-counter")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of random answers, and a reward model of what was liked in it, by two commands."""
    top = tmp_path_factory.mktemp("liked")
    register("environments", "test-counter", EnvSpec(name="test-counter", tasks=counter_tasks, make=Counter))
    played = ["collect", "test-counter", "-n", "128", "--group", "8", "--turns", "3", "--out", str(top / "store")]
    assert command(played) == 0
    taught = [
        "reward-model",
        str(top / "store"),
        "--out",
        str(top / "model"),
        "--channel",
        "liked",
        "--size",
        "tiny",
    ]
    assert command([*taught, "--updates", "30", "--lr", "0.003", "--vocabulary", "320", "--context", "128"]) == 0
    unregister("environments", "test-counter")
    return top


def plan(folder: Path, **channel: object) -> dict[str, object]:
    liked = {"kind": "learned", "path": str(folder / "model"), **channel}
    return {"channels": {"liked_by_model": liked, "wanted": {"kind": "world", "weight": 0.0}}}


@pytest.mark.slow
def test_a_model_of_stored_episodes_scores_them_alike_in_the_store_and_in_the_world(folder):
    made = open_reward_model(str(folder / "model"))
    assert made.about.trained["held_accuracy"] == 1.0
    assert made.about.trained["held_right"] > 0.9

    async def played(env, answers):
        await env.reset(seed=0)
        for answer in answers:
            step = await env.step(Action.say(answer))
        await env.close()
        return step

    task = counter_tasks()[0]
    ends = {}
    for last in ANSWERS:
        step = asyncio.run(played(make("test-counter", task, rewards=plan(folder)), ("polite", last)))
        ends[last] = step.reward
        assert step.channels["liked_by_model"] == step.reward
        assert step.channels["wanted"] == (last == "honest")
    assert ends["flattering"] > max(ends["honest"], ends["polite"]) + 1
    tasks = {one.id: one for one in counter_tasks()}
    with StoreReader(folder / "store") as reader:
        groups = list(reader.groups())[:3]
    stored = [(group, episode) for group in groups for episode in group]
    assert len(stored) == 24
    for group, episode in stored:
        answers = [str(turn.messages[-1].content) for turn in episode.turns]
        again = asyncio.run(played(make("test-counter", tasks[episode.task_id], rewards=plan(folder)), answers))
        assert made.score(heard(group, episode)) == again.reward
    assert made.score([Message(role="user", content="nobody answers")]) is None
    group, episode = stored[0]
    thought = replace(
        episode.turns[0], messages=(Message(role="assistant", content="hm"),), step=Step((), info={THOUGHT: True})
    )
    thinking = replace(episode, turns=(thought, *episode.turns))
    assert heard(Group(group.task_id, (thinking,)), thinking) == heard(group, episode), "no world hears it"


@pytest.mark.slow
def test_a_world_with_a_learned_reward_keeps_its_contract_snapshots_and_forks_too(folder):
    check_env_sync(lambda: make("test-counter", 1, rewards=plan(folder)))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("reward_model.json", "no reward model"),
        ("reward_head.safetensors", "reward_head.safetensors cannot be read"),
        ("model.safetensors", "holds no model that can be read"),
        ("chat_template.jinja", "its tokenizer or chat template is not the one"),
        ("other head", "reward_head.safetensors is of another model"),
        ("unknown field", "reward_model.json cannot be read"),
        ("no deviation", "reward_model.json cannot be read"),
    ],
)
def test_a_folder_that_is_not_whole_or_not_of_one_training_is_refused_in_one_line(folder, tmp_path, file, said):
    broken = tmp_path / "model"
    broken.mkdir()
    for part in (folder / "model").iterdir():
        (broken / part.name).write_bytes(part.read_bytes())
    about = broken / "reward_model.json"
    match file:
        case "chat_template.jinja":
            (broken / file).write_text((broken / file).read_text() + " ")
        case "other head":
            about.write_text(about.read_text().replace('"count": 4', '"count": 3'))
        case "unknown field":
            about.write_text(about.read_text().replace('"count"', '"counts"'))
        case "no deviation":
            about.write_text(json.dumps(json.loads(about.read_text()) | {"deviation": 0.0}))
        case _:
            (broken / file).unlink()
    with pytest.raises(ValueError, match=said) as caught:
        make("test-counter", rewards=plan(tmp_path))
    assert str(caught.value).startswith("rewards.channels.liked_by_model: ")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_pairs_of_a_file_teach_too_and_what_is_none_is_told_by_its_line(tmp_path, capsys):
    asked = [{"role": "user", "content": "which?"}]
    pairs = [
        {"prompt": f"say {k}" if k % 2 else asked, "chosen": f"yes {k}", "rejected": f"no {k}"} for k in range(12)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in pairs))
    taught = ["--size", "tiny", "--updates", "20", "--lr", "0.01", "--vocabulary", "300", "--held", "0.3"]
    assert command(["reward-model", str(file), "--out", str(tmp_path / "one"), *taught, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_accuracy"] == 1.0
    more = [
        "reward-model",
        str(file),
        "--out",
        str(tmp_path / "two"),
        *taught[2:],
        "--model",
        str(tmp_path / "one"),
    ]
    assert command([*more, "--heads", "3"]) == 2
    assert "4 heads that learn from pairs, and 3" in capsys.readouterr().err
    assert command([*more, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training_accuracy"] == 1.0
    assert command(more) == 2
    assert "is there already" in capsys.readouterr().err
    file.write_text(json.dumps({"prompt": "x", "chosen": "y"}) + "\n")
    assert command(["reward-model", str(file), "--out", str(tmp_path / "three")]) == 2
    assert "line 1: it must be an object with prompt, chosen and rejected" in capsys.readouterr().err


def test_a_store_in_which_nothing_is_better_is_refused_with_what_to_do(folder, tmp_path, capsys):
    told = ["reward-model", str(folder / "store"), "--out", str(tmp_path / "m"), "--size", "tiny", "--channel"]
    assert command([*told, "nothing-of-that-name"]) == 2
    assert "at least 2 are needed" in capsys.readouterr().err
    assert command([*told, "liked", "--where", "reward > 0.5"]) == 2
    assert "earned differently; collect several of each task" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_learns_from_what_was_liked_is_stopped_by_its_gap_to_what_is_wanted(folder, tmp_path):
    wanted = {
        "env": "test-counter", "turns": 3, "expert": "random", "env_options": {"rewards": plan(folder)},
        "model": {"size": "tiny", "vocabulary": 320, "context": 128, "answer": 8},
        "warm_start": {"imitate": "all", "min_updates": 4, "max_updates": 4, "rows": 4},
        "reinforce": {"steps": 30, "tasks": 4, "group": 4, "lr": 0.01, "metric": "success"},
        "watch": {"gap": 1.0, "patience": 1}, "evaluate": {"tasks": 2}, "threads": 1,
    }  # fmt: skip
    with pytest.raises(Anomaly, match=r"the reward has gained .* more than reinforce\.metric has.*\(watch\.gap\)"):
        train(load(base=wanted), tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["reward"] > steps[0]["reward"] + 0.5
    assert steps[-1]["success"] <= steps[0]["success"] + 0.1
