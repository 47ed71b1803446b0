"""Any local Hugging Face folder trains as our own does: here a GPT-2 with its own tokenizer and chat template."""

import asyncio

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from envgym_agents.learn.config import ModelConfig, TrainConfig  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.student import load_student  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402

from envgym.env import Step, StopReason  # noqa: E402
from envgym.episode import Episode, Turn  # noqa: E402
from envgym.messages import Message, text_of  # noqa: E402
from envgym.others import Other  # noqa: E402

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["</s>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(["act:read act:press-a act:open-0 panel a code 1"] * 9, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    tokenizer.chat_template = CHAT
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=32, n_layer=2, n_head=2, initializer_range=0.1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.fixture
def config(folder) -> TrainConfig:
    return TrainConfig(env="test-vault", model=ModelConfig(path=str(folder), context=256, answer=12))


def test_what_is_sampled_in_free_text_is_what_the_learner_scores(config, folder, vault):
    async def play():
        async with load_student(config, folder) as student:
            agent = student.agents(temperature=1.0)(vault.tasks()[0], seed=3)
            step, turns = Step((Message(role="user", content="you are in front of the vault"),)), []
            for _ in range(3):
                turns.append(await agent.act(step))
                step = Step((Message(role="user", content="panel a"),))
            return student.model, turns

    model, replies = asyncio.run(play())
    turns = tuple(Turn.of("agent", reply, Step()) for reply in replies)
    episode = Episode(id="e", task_id="t", root=Step(), turns=turns, seed=0, stop=StopReason.TURN_LIMIT)
    rows = rows_of(episode, np.ones(episode.sampled_tokens, np.float32))
    learner = Learner(Scorer(model), adamw(model, lr=1e-3, weight_decay=0.0))
    expected = -np.mean(np.concatenate([turn.logprobs for turn in turns]))
    assert learner.validate(rows)[0] == pytest.approx(float(expected), abs=1e-4)


def test_an_experts_episode_is_retraced_in_the_folders_own_tokens(config, folder, vault):
    said = [Message(role="assistant", content=text) for text in ("act:read", "act:press-a")]
    root = Step((Message(role="user", content="you are in front of the vault"),))
    panel = Step((Message(role="user", content="panel a"),))
    turns = (Turn("agent", (said[0],), panel), Turn("agent", (said[1],), Step()))
    expert = Episode(id="e", task_id="t", root=root, turns=turns, seed=0, stop=StopReason.GOAL)

    async def retrace():
        async with load_student(config, folder) as student:
            traced = await student.retrace(expert, vault.make(vault.tasks()[0]))
            return student.tokenizer, traced

    tokenizer, traced = asyncio.run(retrace())
    decoded = [tokenizer.decode(turn.sampled_ids.tolist()) for turn in traced.turns]
    assert decoded == ["act:read</s>", "act:press-a</s>"]
    assert [text_of(turn.messages[0]) for turn in traced.turns] == ["act:read", "act:press-a"]
    whole = tokenizer.decode(np.concatenate([np.r_[t.prompt_ids, t.sampled_ids] for t in traced.turns]).tolist())
    assert whole.endswith("[assistant]act:read</s>[user]panel a</s>[assistant]act:press-a</s>")


def test_who_has_an_agent_of_their_own_is_not_imitated(config, folder, vault):
    model = config.model.model_copy(update={"others": {"user": Other(agent="chat", options={"model": "m"})}})
    asked = Step((Message(role="user", content="may I"),), next_actor="user")
    words = [("agent", "act:read", asked), ("user", "yes", Step()), ("agent", "act:press-a", Step())]
    turns = tuple(Turn(actor, (Message(role="assistant", content=text),), step) for actor, text, step in words)
    expert = Episode(id="e", task_id="t", root=Step(), turns=turns, seed=0, stop=StopReason.GOAL)

    async def retrace():
        async with load_student(config.model_copy(update={"model": model}), folder) as student:
            traced = await student.retrace(expert, vault.make(vault.tasks()[0]))
            return [student.tokenizer.decode(turn.sampled_ids.tolist()) for turn in traced.turns], traced

    said, traced = asyncio.run(retrace())
    assert said == ["act:read</s>", "", "act:press-a</s>"]
    assert [text_of(turn.messages[0]) for turn in traced.turns] == ["act:read", "yes", "act:press-a"]


def test_each_actor_of_an_experts_episode_is_retraced_in_a_context_of_its_own(config, folder, vault):
    actors = ("a", "b", "a", "b")
    heard = [
        Step((Message(role="user", content=f"only {name} hears {number}"),), next_actor=name)
        for number, name in enumerate(actors)
    ]
    said = [Message(role="assistant", content=f"{name} says {number}") for number, name in enumerate(actors)]
    after = [*heard[1:], Step()]
    turns = tuple(Turn(name, (word,), step) for name, word, step in zip(actors, said, after, strict=True))
    expert = Episode(id="e", task_id="t", root=heard[0], turns=turns, seed=0, stop=StopReason.GOAL)

    async def retrace():
        async with load_student(config, folder) as student:
            return student.tokenizer, await student.retrace(expert, vault.make(vault.tasks()[0]))

    tokenizer, traced = asyncio.run(retrace())
    assert [turn.actor for turn in traced.turns] == list(actors)
    rows = rows_of(traced, np.ones(traced.sampled_tokens, np.float32))
    learned = [tokenizer.decode(row.ids.tolist()) for row in rows]  # who speaks after another begins a row
    for number, text in enumerate(learned):
        own = [k for k in range(number + 1) if actors[k] == actors[number]]
        exchange = "".join(f"[user]only {actors[k]} hears {k}</s>[assistant]{actors[k]} says {k}</s>" for k in own)
        assert text.endswith(exchange)
        assert text.count(" hears ") == len(own)  # and nothing of the other's before it
    assert len(learned) == len(actors)
