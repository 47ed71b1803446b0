"""Laws a and q: how episodes are cut into rows, padded or shared changes neither loss nor gradient."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.episode import ForkPoint

torch = pytest.importorskip("torch")
from envgym_agents.learn.pack import Row, batches, padded, rows_of, shared  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402

VOCABULARY = 24


@st.composite
def _episodes(draw):
    """Episodes of a few tasks; those of one task start alike, as the rollouts of a group do."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = []
    for task in range(draw(st.integers(1, 3))):
        start = rng.integers(0, VOCABULARY, rng.integers(1, 12)).tolist()
        for member in range(draw(st.integers(1, 4))):
            turns, position, segment = [], 0, 0
            for index in range(draw(st.integers(1, 4))):
                prompt = start if index == 0 else rng.integers(0, 3, rng.integers(0, 5)).tolist()
                sampled = rng.integers(0, 4, rng.integers(0 if index else 1, 3)).tolist()
                allowed = None
                if sampled and rng.random() < 0.6:
                    allowed = sorted({sampled[0], *rng.integers(0, VOCABULARY, 5).tolist()})
                if index and rng.random() < 0.25:
                    segment, position = segment + 1, 0
                    prompt = rng.integers(0, VOCABULARY, 4).tolist()
                turns.append(
                    dict(prompt=prompt, sampled=sampled, position=position, segment=segment, allowed=allowed)
                )
                position += len(prompt) + len(sampled)
            made.append((f"e{task}-{member}", f"task{task}", turns))
    return made


def _naive(model, episodes, credits):
    """One row at a time, full logits, plain sums: over episodes, the mean over tokens of credit * logprob.

    Also the sum of the terms' sizes: what is left of terms of both signs is no measure of their rounding.
    """
    total, size = 0.0, 0.0
    for episode, credit in zip(episodes, credits, strict=True):
        context, number = [], 0
        segment = 0
        for turn in episode.turns:
            if turn.segment != segment:
                context, segment = [], turn.segment
            context += turn.prompt_ids.tolist()
            for index, token in enumerate(turn.sampled_ids.tolist()):
                logits = model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1]
                allowed = turn.allowed if index == 0 else None
                chosen = range(VOCABULARY) if allowed is None else allowed
                logs = logits[list(chosen)].log_softmax(-1)
                term = logs[list(chosen).index(token)] * float(credit[number]) / len(credit)
                total, size = total + term, size + abs(float(term.detach()))
                context.append(token)
                number += 1
    return total, size


def _packed(scorer, parts):
    total = 0.0
    for batch in parts:
        total = total + (scorer.score(batch).logprobs * batch.credit * batch.weights).sum()
    return total


def _gradient(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@settings(max_examples=25)
@given(described=_episodes(), max_tokens=st.sampled_from([8, 40, 1000]))
def test_padded_and_shared_losses_and_gradients_equal_the_naive_ones(
    model_cache, turn, episode, described, max_tokens
):
    model, scorer = model_cache
    assert scorer.shares_prefixes
    episodes = [episode(name, [turn(**values) for values in turns], task=task) for name, task, turns in described]
    credits = [
        np.random.default_rng(n).normal(size=e.sampled_tokens).astype(np.float32) for n, e in enumerate(episodes)
    ]
    rows = [row for e, c in zip(episodes, credits, strict=True) for row in rows_of(e, c)]
    expected, size = _naive(model, episodes, credits)
    gradient = _gradient(model, expected)
    for parts in (
        batches(rows, max_tokens=max_tokens, share_prefixes=False),
        batches(rows, max_tokens=max_tokens, share_prefixes=True),
        [shared(rows)],
    ):
        value = _packed(scorer, parts)
        assert abs(float(value.detach()) - float(expected.detach())) <= 1e-5 * size
        assert float((_gradient(model, value) - gradient).norm()) <= 1e-5 * float(gradient.norm()) + 1e-7


@pytest.fixture(scope="module")
def model_cache():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.2, tie_word_embeddings=True,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    return model, Scorer(model)


def test_a_row_holds_one_segment_and_marks_only_what_was_sampled(turn, episode):
    e = episode(
        "e",
        [
            turn([1, 2, 3], [4], position=0),
            turn([5], [6, 7], position=4, allowed=[2, 6]),
            turn([8, 8], [9], position=0, segment=1),
            turn([1, 1, 1], [], position=3, segment=1),
        ],
    )
    first, second = rows_of(e, np.array([1, 2, 3, 4], np.float32))
    assert first.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert first.at.tolist() == [3, 5, 6]
    assert first.allowed == (None, (2, 6), None)
    assert first.credit.tolist() == [1, 2, 3]
    assert second.ids.tolist() == [8, 8, 9]  # what follows the last sampled token predicts nothing
    assert second.at.tolist() == [2]
    assert first.weights.sum() + second.weights.sum() == pytest.approx(1.0)


def test_a_common_prefix_is_computed_once(turn, episode):
    prompt = list(range(20))
    rows = [
        row
        for n in range(8)
        for row in rows_of(episode(f"e{n}", [turn(prompt, [n % 3, 5], position=0)]), np.ones(2, np.float32))
    ]
    assert padded(rows).tokens == 8 * 21
    assert shared(rows).tokens == 20 + 3  # the prompt, and one node for each distinct first token


def test_rows_of_uneven_length_and_nothing_in_common_are_packed_without_padding_and_even_ones_stay_side_by_side():
    def row(name, first, length):
        ids = np.array([first, *range(length)], np.int32)
        zeros = np.zeros(1, np.float32)
        return Row(name, name, ids, np.array([length], np.int32), zeros, zeros, zeros, (None,))

    uneven = [row("a", 1, 100), row("b", 2, 10), row("c", 3, 30)]
    (packed,) = batches(uneven, max_tokens=1000, share_prefixes=True)
    assert packed.forest is not None
    assert packed.tokens == 140
    (padded_one,) = batches(uneven, max_tokens=1000, share_prefixes=True, blocks=False)
    assert padded_one.tokens == 300
    (even,) = batches([row("a", 1, 100), row("b", 2, 99)], max_tokens=1000, share_prefixes=True)
    assert even.forest is None


def test_a_forked_episode_trains_only_its_own_tokens(turn, episode):
    history = (turn([1, 2], [3], position=0), turn([4], [5], position=3))
    e = episode("fork", history[1:], parent=ForkPoint("root", 1))
    (row,) = rows_of(e, np.array([2.0], np.float32), history=history)
    assert row.ids.tolist() == [1, 2, 3, 4, 5]
    assert row.at.tolist() == [4]


def test_a_credit_of_the_wrong_length_is_refused(turn, episode):
    e = episode("e", [turn([1], [2], position=0)])
    with pytest.raises(ValueError, match="2 credits for 1 sampled tokens"):
        rows_of(e, np.zeros(2, np.float32))


def test_a_token_outside_its_allowed_set_is_refused(turn, episode):
    e = episode("e", [turn([1], [2], position=0, allowed=[3, 4])])
    with pytest.raises(ValueError, match="token 2 was sampled although only"):
        padded(rows_of(e, np.zeros(1, np.float32)))


def test_a_token_with_nothing_before_it_is_refused(turn, episode):
    with pytest.raises(ValueError, match="position 0"):
        rows_of(episode("e", [turn([], [2], position=0)]), np.zeros(1, np.float32))


def test_tokens_that_a_fork_shares_with_its_parents_turn_do_not_train_again(turn, episode):
    history = (turn([1, 2], [3, 4, 5, 6], position=0, allowed=[3, 9]), turn([7], [8], position=6))
    e = episode("fork", history, parent=ForkPoint("root", 0, 2))
    credit = np.array([0, 0, 1, 2, 3], np.float32)
    (row,) = rows_of(e, credit, history=history)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (row.at.tolist(), row.credit.tolist()) == ([4, 5, 7], [1, 2, 3])
    assert row.weights.sum() == pytest.approx(1)
    assert row.allowed == (None, None, None)
    (read,) = rows_of(e, credit, history=history, inherited=True)
    assert read.at.tolist() == [2, 3, 4, 5, 7]
    assert rows_of(episode("whole", history[:1], parent=ForkPoint("root", 0, 4)), credit[:4]) == []
