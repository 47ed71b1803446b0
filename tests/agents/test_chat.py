import asyncio
import shutil
from dataclasses import replace

import pytest
import torch
from envgym_agents.chat import LMAgents, turn_seed
from envgym_agents.compaction import compacted
from envgym_agents.model import new_model, save_model, weights_digest
from envgym_agents.parse import read_action
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.registered import lm_agent
from envgym_agents.template import OwnTemplate
from envgym_agents.tokenizer import train_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from envgym.env import Step, StopReason
from envgym.episode import Group
from envgym.limits import Limits, Sampling
from envgym.messages import Message, text_of
from envgym.policy import Agent
from envgym.provenance import told_by
from envgym.redaction import Host, Redactor
from envgym.rollout import Origin, Rollout, play
from envgym.synthesis import synthesize
from envgym.synthesis.explore import AgentExplorer
from envgym.testing.memory import MemoryEnv, memory_tasks

torch.set_num_threads(1)
ACTIONS = ["give_up", *(f"look {n}" for n in range(8)), *(f"open {n}" for n in range(8))]
TOKENIZER = train_tokenizer(["the treasure seems to be left of 3"] * 3, actions=ACTIONS, vocab_size=340)
TEMPLATE = OwnTemplate(TOKENIZER)
MODEL = new_model(len(TOKENIZER), size="tiny", context=2048)
TASK = memory_tasks(1)[0]


class Listing(MemoryEnv):
    """The treasure game with compact legal actions."""

    def _step(self, text, reward):
        step = super()._step(text, reward)
        return replace(step, legal=None if step.stop else tuple(f"open {n}" for n in range(4)))


def episode(make, *, seed=0, env=None, turns=12):
    async def run():
        async with TransformerPolicy(MODEL) as policy:
            agents, world = make(policy), env or Listing(TASK)
            agent = agents.for_env(world, seed=seed)
            assert isinstance(agent, Agent)
            try:
                rollout = Rollout(limits=Limits(turns=turns))
                return await play(world, {agent.name: agent}, origin=Origin("e", seed), rollout=rollout)
            finally:
                await agent.close()
                assert policy.cached_tokens == 0

    return asyncio.run(run())


def test_an_episode_in_the_compact_format_is_token_exact_and_legal():
    played = episode(lambda policy: LMAgents(policy, TEMPLATE))
    assert played.failure is None
    for turn in played.turns:
        (sampled,) = turn.sampled_ids.tolist()
        assert sampled in turn.allowed
        action = text_of(turn.messages[0])
        assert TEMPLATE.actions[action] == sampled
        assert turn.messages[0].tool_calls[0].name == "open"
        assert sum(count for _, count in turn.roles) == len(turn.prompt_ids)
    assert {role for turn in played.turns for role, _ in turn.roles} == {
        "template", *(message.role for message in played.root.observation),
        *(message.role for turn in played.turns[:-1] for message in turn.step.observation),
    }  # fmt: skip
    ids = [i for turn in played.turns for i in [*turn.prompt_ids, *turn.sampled_ids]]
    shown = [{"role": m.role, "content": text_of(m)} for m in played.root.observation]
    for turn in played.turns:
        shown.append({"role": "assistant", "content": text_of(turn.messages[0])})
        if turn is not played.turns[-1]:
            shown += [{"role": m.role, "content": text_of(m)} for m in turn.step.observation]
    text = TOKENIZER.apply_chat_template(shown, tokenize=False)
    assert ids == TOKENIZER.encode(text, add_special_tokens=False)[:-1]  # the last message is not ended yet


def test_the_same_seed_gives_the_same_episode_and_another_one_another():
    first, same, other = (episode(lambda p: LMAgents(p, TEMPLATE), seed=seed) for seed in (1, 1, 2))
    assert first.turns == same.turns
    assert first.turns != other.turns


def test_a_policy_explores_a_world_and_tasks_are_made_of_what_it_did():
    async def run():
        async with TransformerPolicy(MODEL) as policy:
            agents = []

            def explorer(seed):
                agents.append(LMAgents(policy, TEMPLATE).for_env(Listing(TASK), seed=seed))
                return AgentExplorer(agents[-1])

            made = await synthesize("memory", TASK, lambda: Listing(TASK), explorer, count=3, trails=8, turns=4)
            for agent in agents:
                await agent.close()
            return made

    made = asyncio.run(run())
    assert made.tasks
    for task in made.tasks:
        assert task.metadata["synthesized"]["schema"].startswith("open(")


def test_the_text_format_offers_the_tools_and_answers_errors_with_data():
    sampling = Sampling(max_tokens=20)
    played = episode(lambda p: LMAgents(p, TEMPLATE, "text", sampling), env=MemoryEnv(TASK), turns=3)
    assert played.stop is StopReason.TURN_LIMIT
    first = TEMPLATE.decode(played.turns[0].prompt_ids.tolist())
    assert '"name":"look"' in first
    tools, said = played.turns[0].messages
    assert (tools.role, played.turns[0].action.message) == ("system", said)
    assert text_of(tools) in first
    done = Redactor(host=Host(), environment={}).group(Group(played.task_id, (played,))).episodes[0]
    assert done.turns == played.turns, "every text is told, so that no ids go"
    assert all(1 <= len(turn.sampled_ids) <= 20 for turn in played.turns)


@pytest.mark.slow
def test_an_outgrown_context_goes_on_in_a_new_segment_that_fits():
    def make(policy):
        return LMAgents(policy, TEMPLATE, "text", Sampling(max_tokens=30), max_length=400)

    env = MemoryEnv(TASK)
    env.tools = ()
    played = episode(make, env=env, turns=25)
    assert played.failure is None
    assert len(played.turns) == 25
    segments = {turn.segment for turn in played.turns}
    assert segments == set(range(max(segments) + 1))
    assert len(segments) > 1
    for turn in played.turns:
        assert turn.position + len(turn.prompt_ids) + len(turn.sampled_ids) <= 400
    reopened = next(turn for turn in played.turns if turn.segment == 1)
    text = TEMPLATE.decode(reopened.prompt_ids.tolist())
    assert "left out" in text
    assert "left out" in text_of(reopened.messages[0])
    done = Redactor(host=Host(), environment={}).group(Group(played.task_id, (played,))).episodes[0]
    assert done.turns == played.turns, "every text is told, so that no ids go"
    assert text_of(played.root.observation[-1])[:20] in text


def test_any_local_model_folder_acts_by_the_same_name(tmp_path):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(["x"], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=1024)
    save_model(tmp_path, GPT2LMHeadModel(config), tokenizer)
    assert told_by(lm_agent, {"model": str(tmp_path), "temperature": 0.5}) == (
        ("model", tmp_path.name), ("weights", weights_digest(tmp_path)),
    )  # fmt: skip

    async def run():
        world = MemoryEnv(TASK)
        agent = lm_agent(TASK, seed=0, model=str(tmp_path), tools=world.tools[:1], max_tokens=8)
        rollout = Rollout(limits=Limits(turns=6))
        played = await play(world, {agent.name: agent}, origin=Origin("e", 0), rollout=rollout)
        await agent.close()
        return played

    played = asyncio.run(run())
    assert played.failure is None
    assert len(played.turns) == 6
    assert "assistant: " in tokenizer.decode(played.turns[0].prompt_ids)


def test_forks_share_the_past_and_differ_in_their_draws():
    async def run():
        async with TransformerPolicy(MODEL) as policy:
            agent = LMAgents(policy, TEMPLATE)(TASK, seed=0)
            step = Step(observation=(Message(role="user", content="where?"),), legal=tuple(ACTIONS))
            await agent.act(step)
            forks = [agent.fork(seed=seed) for seed in range(8)]
            computed = policy.computed_tokens
            replies = [await fork.act(step) for fork in forks]
            assert policy.computed_tokens - computed == sum(1 + len(reply.prompt_ids) for reply in replies)
            again = await agent.fork(seed=3).act(step)
            return replies, again

    replies, again = asyncio.run(run())
    assert len({reply.completion.ids for reply in replies}) > 1
    assert again.completion.ids == replies[3].completion.ids
    assert {reply.prompt_ids for reply in replies} == {again.prompt_ids}


def test_wrong_combinations_are_refused_at_once():
    async def run():
        async with TransformerPolicy(MODEL) as policy:
            bare = OwnTemplate(train_tokenizer(["x"], vocab_size=300))
            with pytest.raises(ValueError, match="one token per action"):
                LMAgents(policy, bare)
            with pytest.raises(ValueError, match="too short"):
                LMAgents(policy, TEMPLATE, max_length=10)
            agent = LMAgents(policy, TEMPLATE)(TASK, seed=0)
            with pytest.raises(ValueError, match="no token for it"):
                await agent.act(Step(legal=("fly 1",)))

    asyncio.run(run())


def test_turn_seeds_differ_by_turn_and_seed():
    assert len({turn_seed(seed, turn) for seed in range(10) for turn in range(10)}) == 100


messages = st.lists(
    st.builds(
        Message, role=st.sampled_from(["user", "assistant", "tool", "system"]), content=st.text(max_size=400)
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(messages, st.integers(400, 2000))
@settings(max_examples=100)
def test_compaction_fits_keeps_the_ends_and_never_reorders(conversation, room):
    def cost(some):
        return sum(len(text_of(message)) + 4 for message in some)

    head = [m for m in conversation[: next((i for i, m in enumerate(conversation) if m.role != "system"), 0) + 1]]
    if len(head) > 2:
        return  # a heap of system messages may not fit at all, which is refused
    kept = compacted(conversation, room, cost)
    assert cost(kept) <= room
    assert text_of(kept[-1])[-30:] == text_of(conversation[-1])[-30:]
    assert text_of(kept[0])[:30] == text_of(conversation[0])[:30]
    whole = [m for m in kept if m in conversation]
    places = iter(conversation)
    assert all(any(m == other for other in places) for m in whole)


@pytest.mark.parametrize(
    ("text", "calls", "wrong"),
    [
        ("look 3", ["look"], False),
        ('{"name": "look", "arguments": {"cell": 3}}', ["look"], False),
        ('I think.\n<tool_call>{"name": "open", "arguments": {"cell": 1}}</tool_call>', ["open"], False),
        ("<tool_call>look 1</tool_call><tool_call>give_up</tool_call>", ["look", "give_up"], False),
        ('{"name": "look", "arguments": "{\\"cell\\": 3}"}', ["look"], False),
        ("just some words", [], False),
        ("", [], False),
        ("look far", [], True),
        ('{"name": "fly"}', [], True),
        ("<tool_call>{oops", [], True),
        ('{"name": 3}', [], True),
        ("[" * 5000, [], False),
        ('{"a":' * 5000, [], True),
        ('{"name": "look", "arguments": {"cell": ' + "9" * 5000 + "}}", [], True),
    ],
)
def test_texts_are_read_as_calls_words_or_errors(text, calls, wrong):
    action = read_action(text, MemoryEnv.tools)
    assert [call.name for call in action.calls] == calls
    assert (action.error is not None) == wrong
    assert action.text == text


@given(st.text())
@settings(max_examples=200)
def test_no_text_makes_reading_raise(text):
    read_action(text, MemoryEnv.tools)
    read_action("{" + text, MemoryEnv.tools)
    read_action("<tool_call>" + text, MemoryEnv.tools)


def test_the_digest_of_weights_is_of_what_is_in_the_folder(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    save_model(one, MODEL, TOKENIZER)
    shutil.copytree(one, other)
    assert weights_digest(one) == weights_digest(other), "wherever it lies"
    (other / "README.md").write_text("about it")
    assert weights_digest(one) == weights_digest(other), "whatever else lies there"
    changed = bytearray((other / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (other / "model.safetensors").write_bytes(changed)
    assert weights_digest(one) != weights_digest(other)
