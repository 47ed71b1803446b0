"""Shared by the learner's tests: a tiny transformer, synthetic episodes, and a small world that must be learned."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from envgym.env import Step, StopReason
from envgym.episode import Episode, Turn
from envgym.limits import Sampling
from envgym.messages import Action, Message, ToolSpec
from envgym.policy import Completion, Reply, VersionRun
from envgym.registry import EnvSpec, register, unregister
from envgym.task import Task, TaskSet

torch = pytest.importorskip("torch", reason="the learner needs the extra [train]")
transformers = pytest.importorskip("transformers", reason="the learner needs the extra [train]")

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
