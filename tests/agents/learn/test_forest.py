"""A forest says who sees whom, its attention computes just that, and logits exist for a chunk of positions only."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import transformers  # noqa: E402
from envgym_agents.learn.attention import block_mask, flexible, in_blocks  # noqa: E402
from envgym_agents.learn.forest import grown  # noqa: E402
from envgym_agents.learn.head import Asked, in_chunks, positions_at_once  # noqa: E402
from envgym_agents.learn.losses.divergence import between  # noqa: E402
from envgym_agents.learn.pack import Row, batches, padded, shared  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

ROWS = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=9).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(rows=ROWS)
def test_a_node_sees_itself_and_what_is_above_it_in_its_row_and_nothing_else(rows):
    forest = grown(rows)
    sees = forest.sees().numpy()
    for row, path in zip(rows, forest.paths, strict=True):
        assert forest.ids[path].tolist() == row.tolist()
        assert forest.depth[path].tolist() == list(range(len(row)))
        for place, node in enumerate(path):
            assert np.flatnonzero(sees[node]).tolist() == path[: place + 1].tolist()
    assert len(forest.ids) == len({tuple(row[: k + 1].tolist()) for row in rows for k in range(len(row))})
    covered = [node for one in forest.segments for node in range(one.start, one.stop)]
    assert covered == list(range(len(forest.ids)))


@settings(max_examples=20)
@given(rows=ROWS, seed=st.integers(0, 2**31))
def test_attention_by_blocks_is_attention_with_the_whole_mask(rows, seed):
    forest = grown(rows)
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, 2, len(forest.ids), 16, generator=generator, requires_grad=True) for _ in range(3)
    )
    whole = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=forest.sees(), scale=0.3)
    weight = torch.randn(whole.shape, generator=generator)
    expected = torch.autograd.grad((whole * weight).sum(), (query, key, value))
    found = in_blocks(query, key, value, forest, scale=0.3)
    assert torch.allclose(found, whole, atol=1e-5)
    gradients = torch.autograd.grad((found * weight).sum(), (query, key, value))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, expected, strict=True))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31), stems=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    tail=st.integers(1, 200),
)  # fmt: skip
def test_a_block_is_in_the_gpus_mask_where_some_pair_of_it_is_seen_and_whole_where_all_are(seed, stems, tail):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 5, 300)
    rows = [np.concatenate([start[:cut], rng.integers(0, 5, tail)]).astype(np.int32) for cut in stems]
    forest = grown(rows)
    size = len(forest.ids)
    blocks = -(-size // 128)
    sees = torch.zeros(128 * blocks, 128 * blocks, dtype=torch.bool)
    sees[:size, :size] = forest.sees()
    sees[size:] = sees[size - 1]  # rows that do not exist are of no matter
    by_block = sees.view(blocks, 128, blocks, 128).transpose(1, 2).flatten(2)
    found = block_mask(forest, "cpu")
    some, every = (
        [set(row[:count].tolist()) for count, row in zip(counts[0, 0], lists[0, 0], strict=True)]
        for counts, lists in (
            (found.kv_num_blocks, found.kv_indices), (found.full_kv_num_blocks, found.full_kv_indices)
        )
    )  # fmt: skip
    for number in range(blocks):
        assert some[number] | every[number] == set(by_block[number].any(-1).nonzero()[:, 0].tolist())
        assert every[number] == set(by_block[number].all(-1).nonzero()[:, 0].tolist()) - {number}
        assert not some[number] & every[number]


@pytest.mark.slow
def test_forests_of_many_sizes_are_compiled_for_a_few_times_only():
    """What is compiled too often falls back to every pair: counted without a GPU, by the compiler's front end."""
    counter = CompileCounter()
    run = torch.compile(flex_attention, backend=counter)
    rng = np.random.default_rng(0)
    for size in (20, 300, 517, 260, 1100, 140, 901, 77, 640, 1500):
        start = rng.integers(0, 9, size // 2)
        rows = [np.concatenate([start, rng.integers(0, 9, size // 4)]).astype(np.int32) for _ in range(2)]
        forest = grown(rows)
        query, key, value = (torch.randn(1, heads, len(forest.ids), 16) for heads in (4, 2, 2))
        found = flexible(query, key, value, forest, scale=0.3, run=run)
        expected = in_blocks(
            query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), forest, scale=0.3
        )  # fmt: skip
        assert torch.allclose(found, expected, atol=1e-5)
    assert counter.frame_count <= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_by_a_block_mask_of_the_gpus_kind_is_the_same_also_with_grouped_heads():
    rng = np.random.default_rng(3)
    start = rng.integers(0, 9, 30)
    rows = [np.concatenate([start[:cut], rng.integers(0, 9, 20)]).astype(np.int32) for cut in (30, 30, 12, 0)]
    forest = grown(rows)
    query, key, value = (torch.randn(1, heads, len(forest.ids), 16) for heads in (4, 2, 2))
    keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=forest.sees(), scale=0.3
    )
    assert torch.allclose(flexible(query, key, value, forest, scale=0.3), whole, atol=1e-5)


def test_a_long_segment_is_cut_into_blocks_of_queries():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 9, 700)
    rows = [np.concatenate([start, rng.integers(0, 9, size)]).astype(np.int32) for size in (600, 40)]
    forest = grown(rows)
    query, key, value = (torch.randn(1, 1, len(forest.ids), 8) for _ in range(3))
    whole = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=forest.sees())
    assert torch.allclose(in_blocks(query, key, value, forest, scale=None), whole, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_of_logits_change_neither_values_nor_gradients(chunk):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    other = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 11, (7,), generator=generator)
    scale = torch.randn(7, generator=generator, dtype=torch.float64)

    def gradient(take):
        leaves = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
        total = take(*leaves)
        return float(total.detach()), torch.autograd.grad(total, leaves)

    def naive(states, weight):
        logs = (states @ weight.T).log_softmax(-1)
        chosen, entropy = logs[torch.arange(7), targets], -(logs.exp() * logs).sum(-1)
        apart = between(logs, (states.detach() @ other.T).log_softmax(-1), kind="js")
        return (scale * (chosen + 0.3 * entropy + 0.2 * apart)).sum()

    def chunked(states, weight):
        found = in_chunks(
            states, targets, lambda x: x @ weight.T, chunk=chunk,
            other=(states.detach(), lambda x: x @ other.T), asked=Asked(divergence="js"),
        )  # fmt: skip
        return (scale * (found.logprobs + 0.3 * found.entropy + 0.2 * found.divergence)).sum()

    (one, grads), (two, again) = gradient(naive), gradient(chunked)
    assert one == pytest.approx(two, rel=1e-12)
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(grads, again, strict=True))


@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_the_gradient_by_hand_is_autograds_also_where_choices_are_closed(entropy):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 9, generator=generator, dtype=torch.float64) * 5
    logits[4] = torch.tensor([900.0, -900.0] + [0.0] * 7)  # a share that is 0 to the last bit
    open_KV = torch.rand(6, 9, generator=generator) < 0.7
    targets = torch.randint(0, 9, (6,), generator=generator)
    open_KV[torch.arange(6), targets] = True
    open_KV[5] = torch.arange(9) == targets[5]  # nothing else could be said
    scale = torch.randn(6, generator=generator, dtype=torch.float64)

    def naive(logits):
        logs = logits.masked_fill(~open_KV, -torch.inf).log_softmax(-1)
        finite = logs.masked_fill(~open_KV, 0.0)
        return finite[torch.arange(6), targets], -(finite.exp() * finite * open_KV).sum(-1)

    def by_hand(logits):
        found = in_chunks(logits, targets, lambda states: states, chunk=4, open_KV=open_KV)
        return found.logprobs, found.entropy

    results = []
    for take in (naive, by_hand):
        leaf = logits.clone().requires_grad_()
        logprobs, entropies = take(leaf)
        (gradient,) = torch.autograd.grad((scale * (logprobs + entropy * entropies)).sum(), leaf)
        results.append((logprobs.detach(), entropies.detach(), gradient))
    assert all(torch.allclose(one, other, rtol=1e-10, atol=1e-12) for one, other in zip(*results, strict=True))


@pytest.mark.slow
def test_memory_of_logits_is_three_chunks_whatever_the_length_and_the_vocabulary():
    width, most_mib = 4, 1

    def held(length, vocabulary):
        states = torch.randn(length, width, requires_grad=True)
        weight = torch.randn(vocabulary, width, requires_grad=True)
        targets = torch.randint(0, vocabulary, (length,))
        chunk = positions_at_once(1024, most_mib, vocabulary)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiled:
            found = in_chunks(states, targets, lambda x: x @ weight.T, chunk=chunk)
            (found.logprobs.sum() + found.entropy.sum()).backward()
        events = profiled.profiler.kineto_results.events()
        changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
        return (max(accumulate(size for _, size in changes)) - 2 * 4 * width * vocabulary) / 2**20

    for length, vocabulary in ((512, 2_000), (2048, 2_000), (128, 20_000), (512, 20_000), (64, 150_000)):
        assert held(length, vocabulary) < 3.5 * most_mib, (length, vocabulary)


def test_a_mask_renormalises_over_the_other_models_nucleus_and_says_what_it_shut_out():
    logits, theirs = torch.tensor([[0.2, 0.3, 0.5]]).log(), torch.tensor([[0.6, 0.3, 0.1]]).log()
    states = torch.zeros(1, 1)
    for target, inside, probability in ((1, True, 0.6), (2, False, 1.0)):
        found = in_chunks(
            states, torch.tensor([target]), lambda x: logits, chunk=4, other=(states, lambda x: theirs),
            asked=Asked(top_p=0.7),
        )  # fmt: skip
        assert found.inside.tolist() == [inside]
        assert float(found.logprobs) == pytest.approx(np.log(probability), abs=1e-6)


def rows_with_a_common_start(vocabulary: int, *, count: int = 3, start: int = 12, tail: int = 6) -> list[Row]:
    rng = np.random.default_rng(1)
    common = rng.integers(0, vocabulary, start)
    found = []
    for number in range(count):
        ids = np.concatenate([common, rng.integers(0, vocabulary, tail)]).astype(np.int32)
        at = np.arange(start, start + tail, dtype=np.int32)
        zeros = np.zeros(tail, np.float32)
        ones = np.full(tail, 1 / tail, np.float32)
        found.append(Row(f"e{number}", "t", ids, at, zeros, zeros + number, ones, (None,) * tail))
    return found


def test_checkpointed_layers_give_the_same_gradient_and_leave_the_model_as_it_was(model):
    rows = rows_with_a_common_start(32)

    def gradient(scorer, layout):
        model.zero_grad()
        scorer.score(layout(rows)).logprobs.sum().backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    expected = gradient(Scorer(model), padded)
    for layout in (padded, shared):
        scorer = Scorer(model, checkpointed=True, chunk=2)
        assert torch.allclose(gradient(scorer, layout), expected, atol=1e-5)
    assert not any(module.training for module in model.modules())


def test_checkpointing_is_refused_where_the_model_cannot():
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    ).eval()
    model.supports_gradient_checkpointing = False
    with pytest.raises(ValueError, match="set checkpoint = false"):
        Scorer(model, checkpointed=True)


def test_a_model_that_sees_only_a_window_shares_no_prefixes_for_a_mask_of_ours_would_undo_it():
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=20, initializer_range=0.3,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    scorer = Scorer(transformers.MistralForCausalLM(config).eval())
    assert not scorer.shares_prefixes, "the window is longer than what is tried, and shorter than many rows"
    assert all(one.forest is None for one in batches(rows_with_a_common_start(32), max_tokens=999,
                                                    share_prefixes=scorer.shares_prefixes))  # fmt: skip


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma2"])
def test_other_families_share_exactly_or_do_without(family):
    torch.manual_seed(0)
    small = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=8, initializer_range=0.2, pad_token_id=None, bos_token_id=None,
                 eos_token_id=None)  # fmt: skip
    makers = {
        "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**small)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=64)
        ),
        "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**small)),
    }
    model = makers[family]().eval()
    rows = rows_with_a_common_start(32)
    scorer = Scorer(model, chunk=4)
    with torch.no_grad():
        expected = torch.cat([
            model(input_ids=torch.from_numpy(row.ids[None].astype(np.int64)), use_cache=False).logits[0]
            .log_softmax(-1)[row.at - 1, row.ids[row.at].astype(np.int64)] for row in rows
        ])  # fmt: skip
        (batch,) = batches(rows, max_tokens=999, share_prefixes=scorer.shares_prefixes, blocks=scorer.blocks)
        found = scorer.score(batch).logprobs
    back = torch.empty_like(found)
    back[batch.order] = found
    assert torch.allclose(back, expected, atol=1e-5)
