"""Recipes that learn from more than their own plain episodes do learn, and go on where they were stopped."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.learn.recipe import follow_recipe, recipe  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402

from envgym.env import Step, StopReason  # noqa: E402
from envgym.messages import Action, Message  # noqa: E402
from envgym.policy import Reply  # noqa: E402
from envgym.registry import EnvSpec, register, unregister  # noqa: E402
from envgym.store import StoreReader  # noqa: E402
from envgym.task import Task, TaskSet  # noqa: E402

WORDS = ("a", "b", "c", "d")
LEGAL = tuple(f"say {word}" for word in WORDS)
ROLES = ("teller", "hearer")


class Echo:
    """Says a word, which is to be said again, four times; the process dies when `dies_in` more worlds were made."""

    tools = ()
    dies_in: int | None = None

    def __init__(self, task: Task, *, roles: bool = False) -> None:
        self.task, self.roles = task, roles

    async def reset(self, *, seed: int) -> Step:
        if Echo.dies_in is not None:
            Echo.dies_in -= 1
            if Echo.dies_in < 0:
                raise KeyboardInterrupt
        self.rng, self.turns, self.right = np.random.default_rng([self.task.seed, seed]), 0, 0
        return self._asked()

    async def step(self, action: Action) -> Step:
        right = action.text == f"say {self.word}"
        self.turns, self.right = self.turns + 1, self.right + right
        last = self.turns == 4
        return self._asked(
            reward=float(right) / (1 if self.roles else 4),
            channels={"success": float(self.right == 4)} if last else {},
            stop=StopReason.GOAL if last else None,
        )

    async def close(self) -> None:
        pass

    def _asked(self, **rest: object) -> Step:
        """The hearer is asked for the word after the one that it sees."""
        self.word = WORDS[int(self.rng.integers(4))]
        who = ROLES[self.turns % 2] if self.roles else "agent"
        shown = WORDS[WORDS.index(self.word) - 1] if who == "hearer" else self.word
        return Step((Message(role="user", content=f"{who} {shown}"),), legal=LEGAL, next_actor=who, **rest)


class Echoer:
    """Says what it hears, with some mistakes."""

    name = "agent"

    def __init__(self, seed: int, skill: float) -> None:
        self.rng, self.skill = np.random.default_rng([seed, 5]), skill

    async def act(self, step: Step) -> Reply:
        who, word = step.text.split()
        right = WORDS[(WORDS.index(word) + (who == "hearer")) % 4]
        return Reply(Action.say(f"say {right if self.rng.random() < self.skill else WORDS[self.rng.integers(4)]}"))

    def fork(self, *, seed: int) -> "Echoer":
        return Echoer(seed, self.skill)

    async def close(self) -> None:
        pass


def echoes() -> TaskSet:
    return TaskSet(
        [Task(id=f"e{n}", prompt="", split="heldout" if n % 4 == 0 else "train", seed=n) for n in range(48)]
    )


@pytest.fixture(scope="module", autouse=True)
def echo():
    register("environments", "test-echo", EnvSpec(name="test-echo", tasks=echoes, make=Echo, in_process=True))
    register("agents", "test-echoer", lambda task, *, seed, skill=1.0: Echoer(seed, skill))
    yield
    unregister("environments", "test-echo")
    unregister("agents", "test-echoer")
    Echo.dies_in = None


BASE = {
    "env": "test-echo", "turns": 6, "expert": "test-echoer", "threads": 1, "concurrency": 32,
    "model": {"size": "tiny", "vocabulary": 300, "context": 128, "answer": 64},
    "warm_start": {"min_updates": 30, "max_updates": 30, "evaluate_every": 30, "rows": 8, "lr": 3e-3, "warmup": 2},
    "reinforce": {
        "steps": 0, "tasks": 6, "group": 6, "oversample": 1, "checkpoint_every": 3, "lr": 1e-3,
        "loop": {"staleness": 0},
    },
    "evaluate": {"baselines": [], "attempts": 4, "greedy": False, "bootstrap": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def weak(tmp_path_factory, echo):
    """A run whose student learned little, and played twelve steps without learning more."""
    folder = tmp_path_factory.mktemp("weak") / "run"
    still = ["reinforce.steps=12", "reinforce.lr=1e-9", "warm_start.imitate='all'", "agent_options.skill=0.4"]
    train(load(base=BASE, overrides=still), folder)
    return folder


@pytest.fixture(scope="module")
def strong(tmp_path_factory, echo):
    """A run whose student imitated the expert well."""
    folder = tmp_path_factory.mktemp("strong") / "run"
    train(load(base=BASE, overrides=["warm_start.min_updates=250", "warm_start.max_updates=250"]), folder)
    return folder


def success(report, name: str = "after RL") -> float:
    return next(one["success"] for one in report["evaluations"] if one["name"] == name)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "trained" / "model.safetensors")


def same(one, other) -> bool:
    a, b = weights(one), weights(other)
    return all(torch.equal(a[name], b[name]) for name in a)


def killed(stages, folder, *, after: int):
    """Followed until so many worlds were made, then again from what is there."""
    Echo.dies_in = after
    with pytest.raises(KeyboardInterrupt):
        follow_recipe(stages, folder)
    Echo.dies_in = None
    return follow_recipe(stages, folder, resume=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("estimate", "staleness"), [("sampled", "0"), ("exact", "none")])
def test_a_student_that_never_saw_an_expert_comes_to_its_teacher_on_what_it_samples(
    strong, tmp_path, estimate, staleness
):
    teacher = str(strong / "trained")
    more = [f"model.tokenizer={teacher}", f"reinforce.loss.distill.teacher={teacher}", "reinforce.steps=40",
            "warm_start.episodes_per_task=0", "reinforce.lr=3e-3",
            f"reinforce.loss.distill.estimate={estimate}", f"reinforce.loop.staleness={staleness}"]  # fmt: skip
    stages = recipe("distillation", base=BASE, overrides=more)
    report = follow_recipe(stages, tmp_path / "whole")["distil"]
    folder = tmp_path / "whole" / "1-distil"
    apart = [one["teacher_kl"] for one in metrics(folder)]
    assert np.mean(apart[-5:]) < 0.3 * apart[0]
    rewards = [one["reward"] for one in metrics(folder)]
    assert np.mean(rewards[-5:]) > rewards[0] + 0.3  # of the teacher's words, no outcome was learned from
    assert success(report) > success(report, "before RL")
    if staleness == "none":  # as the recipe is where nothing is said: playing and learning overlap
        assert max(one["staleness_max"] for one in metrics(folder)) == 1
    else:
        killed(stages, tmp_path / "killed", after=600)
        assert same(folder, tmp_path / "killed" / "1-distil")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stored_episodes_teach_before_anything_is_played_and_go_on_beside_what_is(weak, tmp_path):
    more = [f"model.path={weak / 'trained'}", f"reinforce.loop.past.path={weak}", "warm_start.episodes_per_task=0"]
    stages = recipe("offline-online", base=BASE, overrides=more)
    short = {"offline": 15, "online": 10}
    for number, stage in enumerate(stages):
        reinforce = stage.config.reinforce.model_copy(update={"steps": short[stage.name]})
        config = stage.config.model_copy(update={"reinforce": reinforce})
        stages[number] = type(stage)(stage.name, config)
    reports = follow_recipe(stages, tmp_path / "whole")
    offline = tmp_path / "whole" / "1-offline"
    with StoreReader(offline / "trajectories") as reader:
        assert all(name.startswith("evaluate-") for name in reader.ids)
    assert success(reports["offline"]) > success(reports["offline"], "before RL") + 0.1
    assert success(reports["online"]) > success(reports["offline"])
    online = metrics(tmp_path / "whole" / "2-online")
    assert all(one["mismatch_max"] > 0.1 for one in online if "mismatch_max" in one)  # the old ones are others'
    evaluations = 2 * 12 * 4
    killed(stages, tmp_path / "killed", after=2 * evaluations - 12 * 4 + 5 * 36)
    for name in ("1-offline", "2-online"):
        assert same(tmp_path / "whole" / name, tmp_path / "killed" / name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_policy_plays_both_actors_and_each_learns_from_what_it_earned_itself(tmp_path):
    more = ["env=test-echo", "expert=test-echoer", "env_options.roles=true", "agent_options.skill=0.4",
            "reinforce.steps=45", "reinforce.lr=3e-3"]  # fmt: skip
    stages = recipe("self-play", base=BASE, overrides=more)
    follow_recipe(stages, tmp_path / "whole")
    folder = tmp_path / "whole" / "1-play"
    for actor in ROLES:
        rewards = [one[f"reward_{actor}"] for one in metrics(folder)]
        assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.25
    with StoreReader(folder / "trajectories") as reader:
        played = reader[next(name for name in reader.ids if name.startswith("s00000-"))]
    assert [turn.actor for turn in played.turns] == [*ROLES, *ROLES]
    assert len({turn.segment for turn in played.turns}) == 4
    killed(stages, tmp_path / "killed", after=36 + 48 + 14 * 36)
    assert same(folder, tmp_path / "killed" / "1-play")
