"""Shared by the learner's tests: a tiny transformer, synthetic episodes, and a small world that must be learned."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from envgym.credit import Level, SchemeSpec
from envgym.credit.schemes.values import turn_gae
from envgym.env import Step, StopReason
from envgym.episode import Episode, Turn
from envgym.limits import Sampling
from envgym.messages import Action, Message, ToolSpec
from envgym.policy import Completion, Reply, VersionRun
from envgym.registry import EnvSpec, register, unregister
from envgym.task import Task, TaskSet

torch = pytest.importorskip("torch", reason="the learner needs the extra [train]")
transformers = pytest.importorskip("transformers", reason="the learner needs the extra [train]")

from envgym_agents.learn.config import TrainConfig, load  # noqa: E402

TEXT = "read press open panel code says a b 0 1 2 you are in front of the vault wrong nothing"
WORDS = [*TEXT.split(" "), "act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{d}" for d in "012")]
ID = {word: index for index, word in enumerate(WORDS)}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model(*, vocabulary: int = 32, width: int = 32, layers: int = 2, seed: int = 0, tied: bool = True):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=tied,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, initializer_range=0.1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def model():
    return make_model()


@pytest.fixture(scope="session")
def model_factory() -> Callable[..., object]:
    return make_model


def make_turn(
    prompt: Sequence[int], sampled: Sequence[int], *, position: int, segment: int = 0,
    allowed: Sequence[int] | None = None, reward: float | None = None, stop: StopReason | None = None,
) -> Turn:  # fmt: skip
    return Turn(
        actor="agent",
        messages=(Message(role="assistant", content="x"),),
        step=Step(reward=reward, stop=stop),
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.full(len(sampled), -1.0, np.float32),
        versions=(VersionRun(0, 0),),
        segment=segment,
        position=position,
        allowed=None if allowed is None else tuple(allowed),
    )


@pytest.fixture(scope="session")
def turn() -> Callable[..., Turn]:
    return make_turn


def make_episode(name: str, turns: Sequence[Turn], *, task: str = "t", **rest: object) -> Episode:
    fields = {"stop": StopReason.GOAL, **rest}
    return Episode(id=name, task_id=task, root=Step(), turns=tuple(turns), seed=0, **fields)


@pytest.fixture(scope="session")
def episode() -> Callable[..., Episode]:
    return make_episode


class Vault:
    """Three digits, two panels, one honest: read which, press it, open with the digit it shows.

    Not a bandit: what to press is only in an observation, and what to open in the next one.
    """

    tools = (ToolSpec(name="act", description="", parameters={"type": "object", "properties": {}}),)

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Step:
        rng = np.random.default_rng([self.task.seed, seed])
        self.digit, self.lie = (int(value) for value in rng.permutation(3)[:2])
        self.honest = "ab"[int(rng.integers(2))]
        self.turns = 0
        return self._say("you are in front of the vault")

    async def step(self, action: Action) -> Step:
        self.turns += 1
        word = action.text
        if word == "act:read":
            return self._say(f"panel {self.honest}")
        if word.startswith("act:press-"):
            shown = self.digit if word.endswith(self.honest) else self.lie
            return self._say(f"code {shown}")
        won = word == f"act:open-{self.digit}"
        step = self._say("nothing" if won else "wrong")
        return Step(
            step.observation, reward=float(won), channels={"success": float(won)}, cost={"opens": 1.0},
            stop=StopReason.GOAL if won else StopReason.LOST,
        )  # fmt: skip

    async def close(self) -> None:
        pass

    def _say(self, text: str) -> Step:
        legal = tuple(word for word in WORDS if word.startswith("act:"))
        return Step((Message(role="user", content=text),), legal=legal, state_key=f"{self.turns}:{text}")


def vault_tasks(count: int = 64) -> TaskSet:
    return TaskSet(
        [
            Task(
                id=f"vault-{index}",
                prompt="open the vault",
                split="train" if index % 4 else "heldout",
                seed=index,
                metadata={"package": f"p{index % 5}"},
            )
            for index in range(count)
        ]
    )


@pytest.fixture
def vault() -> Iterator[EnvSpec]:
    spec = EnvSpec(name="test-vault", tasks=vault_tasks, make=Vault, in_process=True)
    register("environments", spec.name, spec)
    yield spec
    unregister("environments", spec.name)


class Solver:
    """Plays the vault as one should."""

    name = "agent"

    async def act(self, step):
        words = step.text.split()
        if words[0] == "panel":
            return Reply(Action.say(f"act:press-{words[1]}"))
        if words[0] == "code":
            return Reply(Action.say(f"act:open-{words[1]}"))
        return Reply(Action.say("act:read"))

    def fork(self, *, seed):
        return Solver()

    async def close(self):
        pass


class Guesser(Solver):
    """Opens with a guess."""

    def __init__(self, seed):
        self.seed = seed

    async def act(self, step):
        return Reply(Action.say(f"act:open-{self.seed % 3}"))


def make_solver(task, *, seed, speed=1):
    if speed < 1:
        raise ValueError(f"speed is {speed}; it must be at least 1")
    return Solver()


def make_accounted(*, values, account, gamma=1.0):
    """turn-gae that writes down, a line of JSON each time, the ids of the groups that it gives credit for."""
    credit = turn_gae(values=values, gamma=gamma)

    def scheme(groups):
        with open(account, "a") as file:
            file.write(json.dumps([[one.id for one in group] for group in groups]) + "\n")
        return credit(groups)

    return scheme


ACCOUNTED = SchemeSpec(
    name="test-accounted", make=make_accounted, summary="turn-gae, accounted for", source="own", claims="c",
    needs={"values": Level.STATE},
)  # fmt: skip


@pytest.fixture
def accounted() -> Iterator[str]:
    register("schemes", ACCOUNTED.name, ACCOUNTED)
    yield ACCOUNTED.name
    unregister("schemes", ACCOUNTED.name)


@pytest.fixture
def config(vault: EnvSpec) -> Iterator[TrainConfig]:
    register("agents", "test-solver", make_solver)
    register("agents", "test-guesser", lambda task, *, seed: Guesser(seed))
    yield load(
        base={
            "env": "test-vault",
            "turns": 5,
            "expert": "test-solver",
            "model": {"size": "tiny", "vocabulary": 300, "context": 128, "answer": 64},
            "warm_start": dict(min_updates=10, max_updates=20, evaluate_every=10, rows=8, validation=0.2, warmup=2),
            "reinforce": dict(
                steps=3,
                tasks=2,
                group=4,
                oversample=1,
                checkpoint_every=1,
                loss={"kl": 0.01},
                loop={"staleness": 0},
            ),
            "evaluate": dict(baselines=["test-guesser", "test-solver"], every=2, quick=4, bootstrap=200),
            "concurrency": 16,
        }
    )
    unregister("agents", "test-solver")
    unregister("agents", "test-guesser")


@dataclass
class WordPolicy:
    """Samples one word at a time from a model, unbatched: slow, and so simple that it is plainly right."""

    model: object
    temperature: float = 1.0
    version: int = 0

    async def update(self, weights: None = None, *, version: int | None = None, masks=None) -> int:
        self.version = self.version + 1 if version is None else version
        return self.version


class WordAgent:
    """One token per action, chosen among the legal words."""

    name = "agent"

    def __init__(self, policy: WordPolicy, seed: int) -> None:
        self.policy, self.seed = policy, seed
        self.ids: list[int] = []

    async def act(self, step: Step) -> Reply:
        prompt = [ID[word] for word in step.text.split()]
        position = len(self.ids)
        self.ids += prompt
        allowed = tuple(sorted(ID[word] for word in step.legal))
        sampling = Sampling(max_tokens=1, temperature=self.policy.temperature, allowed=allowed)
        with torch.inference_mode():
            logits = self.policy.model(input_ids=torch.tensor([self.ids]), use_cache=False).logits[
                0, -1, list(allowed)
            ]
        logs = (logits / max(sampling.temperature, 1e-6)).log_softmax(-1).double().numpy()
        draw = np.random.default_rng([self.seed, position]).random()
        index = min(int(np.searchsorted(np.exp(logs).cumsum(), draw)), len(allowed) - 1)
        self.ids.append(allowed[index])
        return Reply(
            Action.say(WORDS[allowed[index]]), prompt,
            Completion((allowed[index],), (float(logs[index]),), (VersionRun(0, self.policy.version),), "stop"),
            position=position, allowed=allowed,
        )  # fmt: skip

    def fork(self, *, seed: int) -> "WordAgent":
        other = WordAgent(self.policy, seed)
        other.ids = list(self.ids)
        return other

    async def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def word_agents() -> Callable[[WordPolicy], Callable[..., WordAgent]]:
    return lambda policy: lambda task, *, seed: WordAgent(policy, seed)


@pytest.fixture(scope="session")
def word_policy() -> type[WordPolicy]:
    return WordPolicy


@pytest.fixture(scope="session")
def word_ids() -> dict[str, int]:
    return ID
