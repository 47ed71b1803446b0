"""Distillation on policy: the formula, its gradient, what is refused, and a student that comes to its teacher."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from envgym_agents.learn.config import Reinforce, load  # noqa: E402
from envgym_agents.learn.losses.distillation import teaching  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.resolve import check_sources  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.teacher import check_teacher, check_tokenizers  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.model import new_model, save_model  # noqa: E402
from envgym_agents.tokenizer import load_tokenizer, train_tokenizer  # noqa: E402

EXACT = {"kind": "distill", "distill": {"estimate": "exact"}}


def test_each_token_is_paid_by_how_much_likelier_the_teacher_finds_it():
    sampled = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64).log()
    teacher = torch.tensor([0.25, 0.5, 0.1], dtype=torch.float64).log()
    assert teaching(sampled, teacher).tolist() == pytest.approx([-math.log(2), math.log(2), 0.0])


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_policy_gradients_with_that_credit_are_on_average_the_gradient_of_the_reverse_kl(seed):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=5)).requires_grad_()
    teacher = torch.from_numpy(rng.normal(size=5)).log_softmax(-1)
    logs = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad((logs.exp() * (logs - teacher)).sum(), logits, retain_graph=True)
    # every token, as often as it is sampled
    surrogate = -(logs.detach().exp() * teaching(logs.detach(), teacher) * logs).sum()
    (found,) = torch.autograd.grad(surrogate, logits)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_what_does_not_go_with_a_teacher_is_refused():
    for loss, told in [
        ({"kind": "distill", "kl": 0.1}, "one other model is kept"),
        ({"kind": "distill", "distill": {"kind": "js"}}, "has no use where estimate is 'sampled'"),
        ({**EXACT, "credit_clip": 1.0}, "no token gets credit"),
        ({"distill": {"teacher": "x"}}, "has no use where kind is 'ppo'"),
    ]:
        with pytest.raises(ValueError, match=told):
            load(base={"reinforce": {"loss": loss, "teaches": "all"}})
    with pytest.raises(ValueError, match="make it 'all'"):
        load(base={"reinforce": {"loss": {"kind": "distill"}}})


def test_another_tokenizer_is_refused_with_the_first_id_that_means_something_else():
    one, other = (
        train_tokenizer(["open the vault"], actions=[action, "act:read"], vocab_size=300)
        for action in ("act:a", "act:b")
    )
    check_tokenizers(one, one, "there")
    with pytest.raises(
        ValueError, match=r"'there': its tokenizer is not.*1 of \d+ ids.*'<\|act:a\|>' of the student"
    ):
        check_tokenizers(one, other, "there")


def test_a_teacher_is_looked_at_before_anything_is_made(tmp_path):
    for name in "ab":
        tokenizer = train_tokenizer(["open the vault"], actions=[f"act:{name}"], vocab_size=300)
        model = new_model(len(tokenizer) + 8 * (name == "b"), size="tiny", context=64)
        save_model(tmp_path / name, model, tokenizer)
    own, other = str(tmp_path / "a"), str(tmp_path / "b")

    def config(teacher: str, **distill: str):
        loss = {"kind": "distill", "distill": {"teacher": teacher, **distill}}
        return load(base={"model": {"path": own}, "reinforce": {"teaches": "all", "loss": loss}})

    check_sources(config(own))
    with pytest.raises(ValueError, match=r"distill.teacher = '': this is no model folder"):
        check_sources(config(""))
    with pytest.raises(ValueError, match="tokenizer is not the student's"):
        check_sources(config(other))
    tokenizer = load_tokenizer(other)
    check_teacher(config(other), tokenizer, len(tokenizer))
    with pytest.raises(ValueError, match="choose estimate = 'sampled'"):
        check_teacher(config(other, estimate="exact"), tokenizer, len(tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [{"kind": "distill"}, EXACT])
def test_an_update_brings_the_student_nearer_to_its_teacher_on_what_it_sampled(model_factory, turn, episode, loss):
    """Prompts with every first token, sampled from the student itself, whose outcomes are all the same."""
    student, teacher = model_factory(seed=0), model_factory(seed=1)
    learner = Learner(Scorer(student), adamw(student, lr=1e-2, weight_decay=0.0), reference=Scorer(teacher))
    config = Reinforce(teaches="all", loss=loss, epochs=1, minibatches=1)
    found = []
    for step in range(25):
        rng = np.random.default_rng(step)
        groups = []
        for first in range(8):
            with torch.no_grad():
                logs = student(input_ids=torch.tensor([[first]])).logits[0, -1].log_softmax(-1)
            drawn = rng.choice(len(logs), size=4, p=logs.double().softmax(-1).numpy())
            rows = []
            for number, token in enumerate(drawn.tolist()):
                one = turn([first], [token], position=0)
                one.logprobs[:] = float(logs[token])
                rows += rows_of(episode(f"{first}-{number}", [one]), np.zeros(1, np.float32))
            groups.append(rows)
        found.append(learner.update(groups, config, rng, lr=1e-2))
    assert np.mean([one["teacher_kl"] for one in found[-5:]]) < 0.5 * found[0]["teacher_kl"]
    assert found[0]["sampler_gap"] < 1e-4
