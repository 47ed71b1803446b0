"""Low-rank adapters: few weights train, all else is as without them, and what is saved is an ordinary folder."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from envgym_agents.learn.adapters import adapt, adapted, merged_weights  # noqa: E402
from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import adamw  # noqa: E402
from envgym_agents.model import load_model, new_model, parameters, save_model  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

IDS = torch.arange(24).reshape(2, 12)


def gpt2() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> transformers.LlamaForCausalLM:
    return new_model(300, size="tiny", seed=1)


def trained(model) -> None:
    """A few steps of the optimiser that training uses, towards any text."""
    optimizer = adamw(model, lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()


@pytest.mark.parametrize("make", [llama, gpt2])
def test_adapters_change_nothing_at_first_and_then_they_alone_train(make):
    model = make()
    before, names = model(input_ids=IDS).logits.detach(), set(model.state_dict())
    whole = parameters(model)
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert adapt(model, rank=2, alpha=4.0, seed=0) is model
    assert adapted(model)
    assert torch.equal(model(input_ids=IDS).logits, before)
    assert sum(w.numel() for w in model.parameters() if w.requires_grad) < whole / 2
    trained(model)
    assert not torch.allclose(model(input_ids=IDS).logits, before, atol=1e-3)
    now = {name.replace(".base_layer.", "."): weight for name, weight in model.state_dict().items()}
    assert names <= now.keys()
    assert all(torch.equal(now[name], weight) for name, weight in kept.items())


@pytest.mark.parametrize("make", [llama, gpt2])
def test_what_is_saved_is_a_folder_without_adapters_that_computes_the_same(make, tmp_path):
    model = adapt(make(), rank=2, alpha=4.0, seed=0)
    trained(model)
    with torch.no_grad():
        wanted = model(input_ids=IDS).logits
    tokenizer = train_tokenizer(["a text to read"], actions=["go"], vocab_size=300)
    save_model(tmp_path, model, tokenizer, weights=merged_weights(model))
    again, _ = load_model(tmp_path)
    assert not adapted(again)
    with torch.no_grad():
        assert torch.allclose(again(input_ids=IDS).logits, wanted, atol=1e-5)
        assert torch.equal(model(input_ids=IDS).logits, wanted)  # the model in training is as it was


def test_the_learners_short_cuts_hold_with_adapters():
    model = adapt(llama(), rank=2, alpha=4.0, seed=0)
    trained(model)
    assert Scorer(model).shares_prefixes


def test_adapters_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, two, other = (adapt(llama(), rank=2, alpha=4.0, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(one.state_dict().items(), two.state_dict().values(), other.state_dict().values(), strict=True)
    found = [(torch.equal(a, b), torch.equal(a, c)) for (name, a), b, c in pairs if ".lora_A." in name]
    assert found
    assert all(same and not as_other for same, as_other in found)


def test_a_fresh_model_has_nothing_that_adapters_could_keep():
    with pytest.raises(ValueError, match="lora_rank 4 needs a model folder"):
        load(overrides=["model.lora_rank=4"])
