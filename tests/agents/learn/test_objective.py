"""Every loss that can be chosen, whole: from the configuration through a model to its gradient.

The formulas of TRL and verl are written down here from their papers and definitions, in float64, one sequence after
the other; the packages themselves are run in `peers`.
"""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from envgym_agents.learn.config import Reinforce  # noqa: E402
from envgym_agents.learn.config_loss import Loss  # noqa: E402
from envgym_agents.learn.losses.objective import Objective, Tokens  # noqa: E402
from envgym_agents.learn.losses.policy import advantage_lol  # noqa: E402
from envgym_agents.learn.minibatch import Ready, observed  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner  # noqa: E402

LENGTHS = (3, 5, 2, 4)


def sampled_tokens(seed: int = 0) -> Tokens:
    """Four episodes in two groups, each of equal weight, in float64."""
    rng = np.random.default_rng(seed)
    count = sum(LENGTHS)
    episode = torch.from_numpy(np.repeat(np.arange(4), LENGTHS))
    advantage = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    old = torch.from_numpy(-rng.exponential(1.0, count))
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    zeros = torch.zeros(count, dtype=torch.float64)
    return Tokens(
        logprobs=(old + torch.from_numpy(rng.normal(0, 0.3, count))).requires_grad_(),
        entropy=torch.from_numpy(rng.exponential(1.0, count)).requires_grad_(), divergence=zeros,
        sampled=old + torch.from_numpy(rng.normal(0, 0.2, count)), old=old,
        reference=old + torch.from_numpy(rng.normal(0, 0.2, count)), credit=advantage[episode],
        weights=1 / lengths[episode] / 4, imitation=zeros, observation=zeros, demonstration=zeros, episode=episode,
        turn=episode, group=episode // 2, context=episode // 2, policy=torch.ones(count, dtype=torch.bool),
        inside=torch.ones(count, dtype=torch.bool),
    )  # fmt: skip


def sequences(tokens: Tokens, *names: str):
    return zip(*(getattr(tokens, name).split(list(LENGTHS)) for name in names), strict=True)


def trl(tokens: Tokens, *, kind: str, low: float, high: float, beta: float = 0.0):
    """TRL's GRPO: mean over sequences of the mean over tokens; loss_type grpo or cispo, token or sequence level."""
    losses = []
    for now, old, reference, credit in sequences(tokens, "logprobs", "old", "reference", "credit"):
        apart = now - old
        ratio = torch.exp(apart.mean()).expand_as(apart) if kind == "gspo" else torch.exp(apart)
        if kind == "cispo":
            loss = -torch.clamp(ratio, max=1 + high).detach() * credit * now
        else:
            loss = -torch.min(ratio * credit, torch.clamp(ratio, 1 - low, 1 + high) * credit)
        if beta:
            loss = loss + beta * (torch.exp(reference - now) - (reference - now) - 1)
        losses.append(loss.mean())
    return torch.stack(losses).mean()


def verl_dual_clip(tokens: Tokens, *, low: float, high: float, most: float):
    """verl's vanilla policy loss with clip_ratio_c, aggregated as seq-mean-token-mean."""
    losses = []
    for now, old, credit in sequences(tokens, "logprobs", "old", "credit"):
        ratio = torch.exp(now - old)
        first = torch.maximum(-credit * ratio, -credit * torch.clamp(ratio, 1 - low, 1 + high))
        second = torch.min(-credit * most, first)
        losses.append(torch.where(credit < 0, second, first).mean())
    return torch.stack(losses).mean()


def verl_gspo(tokens: Tokens, *, low: float, high: float):
    """verl's gspo: a token's ratio carries the sequence's value and its own gradient."""
    losses = []
    for now, old, credit in sequences(tokens, "logprobs", "old", "credit"):
        ratio = torch.exp((now - old).mean().detach() + now - now.detach())
        losses.append(torch.maximum(-credit * ratio, -credit * torch.clamp(ratio, 1 - low, 1 + high)).mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("settings", "peer"),
    [
        ({}, lambda x: trl(x, kind="grpo", low=0.2, high=0.28)),
        (
            {"kl": 0.1, "divergence": {"estimate": "k3"}},
            lambda x: trl(x, kind="grpo", low=0.2, high=0.28, beta=0.1),
        ),
        ({"ratio": "sequence"}, lambda x: trl(x, kind="gspo", low=0.2, high=0.28)),
        ({"ratio": "sequence"}, lambda x: verl_gspo(x, low=0.2, high=0.28)),
        ({"kind": "cispo"}, lambda x: trl(x, kind="cispo", low=1.0, high=0.28)),
        ({"dual_clip": 3.0}, lambda x: verl_dual_clip(x, low=0.2, high=0.28, most=3.0)),
    ],
)
def test_values_and_gradients_are_those_of_trl_and_verl_in_float64(settings, peer):
    low = 0.999999 if settings.get("kind") == "cispo" else 0.2  # TRL's has no lower bound
    for seed in range(5):
        tokens = sampled_tokens(seed)
        ours, _ = Objective(Reinforce(loss=Loss(**settings), clip_low=low))(tokens)
        theirs = peer(tokens)
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-12)
        (a,), (b,) = (torch.autograd.grad(one, tokens.logprobs) for one in (ours, theirs))
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)


def test_truncated_importance_sampling_multiplies_the_loss_as_in_trl():
    tokens = sampled_tokens()
    settings = Loss(old="recomputed", correction={"weight": "token", "most": 1.1})
    ours, metrics = Objective(Reinforce(loss=settings))(tokens)
    losses = []
    for now, old, sampled, credit in sequences(tokens, "logprobs", "old", "sampled", "credit"):
        ratio = torch.exp(now - old)
        loss = -torch.min(ratio * credit, torch.clamp(ratio, 0.8, 1.28) * credit)
        losses.append((loss * torch.clamp(torch.exp(old - sampled), max=1.1)).mean())
    assert float(ours.detach()) == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-12)
    assert 0 < float(metrics["correction_truncated"]) < 1


def test_a_rejected_token_trains_nothing_and_does_not_weigh_up_the_others():
    tokens = sampled_tokens()
    far = tokens.sampled.clone()
    far[0] = tokens.old[0] - 5.0
    settings = Loss(old="recomputed", correction={"reject": "token", "low": 0.1, "high": 10.0})
    loss, metrics = Objective(Reinforce(loss=settings))(replace(tokens, sampled=far))
    whole, _ = Objective(Reinforce())(tokens)
    (a,), (b,) = (torch.autograd.grad(one, tokens.logprobs) for one in (loss, whole))
    assert float(a[0]) == 0.0
    assert torch.equal(a[1:], b[1:])
    assert float(metrics["rejected"]) == pytest.approx(1 / 12)


def test_a_lol_against_the_reference_asks_it_and_not_who_played():
    tokens = sampled_tokens()
    chosen = Loss(kind="a-lol", against="reference")
    assert chosen.wants_reference
    assert not chosen.reads_sampled
    said = {"credit": tokens.credit, "unit": tokens.episode}
    for config, played in ((chosen, tokens.reference), (Loss(kind="a-lol"), tokens.sampled)):
        loss, _ = Objective(Reinforce(loss=config))(tokens)
        wanted = (tokens.weights * advantage_lol(tokens.logprobs, played, **said)).sum()
        assert loss.item() == pytest.approx(wanted.item())


def test_rec_descends_what_is_kept_by_its_weight_and_a_pull_on_every_token():
    tokens = sampled_tokens()
    plain, weighed, pulled = (
        Objective(Reinforce(loss=Loss(kind="rec", rec=chosen)))(tokens)[0]
        for chosen in ({}, {"weight": "ratio"}, {"pull": "square", "strength": 0.3})
    )
    square = (tokens.weights * (tokens.logprobs - tokens.old) ** 2).sum()
    assert pulled.item() == pytest.approx((plain + 0.3 * square).item())
    assert weighed.item() != pytest.approx(plain.item())


def test_gated_tokens_have_no_policy_gradient_and_the_bonus_can_be_gated_too():
    tokens = sampled_tokens()
    loss, _ = Objective(Reinforce(loss=Loss(kind="reinforce", entropy_share=0.5)))(tokens)
    (gradient,) = torch.autograd.grad(loss, tokens.logprobs)
    order = tokens.entropy.detach().argsort(descending=True)
    assert (gradient[order[7:]] == 0).all()
    assert (gradient[order[:7]] != 0).all()
    both = Reinforce(entropy=0.1, loss=Loss(entropy_share=0.5, entropy_gate="both"))
    (bonus,) = torch.autograd.grad(Objective(both)(tokens)[0], tokens.entropy)
    assert (bonus[order[7:]] == 0).all()
    assert torch.allclose(bonus[order[:7]], -0.1 * tokens.weights[order[:7]])


KINDS = [
    {}, {"kind": "reinforce"}, {"kind": "cispo", "pre_clip": 1.0}, {"kind": "topr", "taper": 0.9},
    {"kind": "a-lol"},
    {"kind": "a-lol", "variant": "sequence"}, {"kind": "opmd", "tau": 0.5}, {"kind": "kimi-opmd", "tau": 0.5},
    {"kind": "rec", "rec": {"sides": "ring", "weight": "ratio", "pull": "square"}}, {"kind": "dpo"},
    {"kind": "dpo", "preference": {"unit": "turn", "mean": True}},
    {"kind": "dpo", "preference": {"against": "reference", "smoothing": 0.1}}, {"kind": "raft"},
    {"kind": "expert-iteration", "least": 0.1}, {"kind": "sft"}, {"ratio": "sequence"}, {"ratio": "turn"},
    {"dual_clip": 3.0, "credit_scale": "std", "credit_clip": 1.5, "credit_filter": 2.5},
    {"entropy_share": 0.4}, {"kl": 0.1}, {"kl": 0.1, "divergence": {"kind": "forward", "estimate": "exact"}},
    {"kl": 0.1, "divergence": {"kind": "js", "estimate": "exact"}}, {"kl": 0.1, "divergence": {"kind": "js"}},
    {"kl": 0.1, "divergence": {"estimate": "k3"}}, {"kl": 0.1, "divergence": {"place": "credit"}},
    {"old": "recomputed", "correction": {"weight": "sequence", "reject": "turn"}},
    {"kind": "reinforce", "correction": {"weight": "token", "reject": "sequence"}},
    {"streams": {"imitation": 0.3, "observation": 0.2, "demonstrations": 0.5, "demonstrations_rows": 2}},
    {"prices": {"length": 0.5, "length_free": 2, "length_most": 6, "costs": {"opens": 0.1}}},
    {"prices": {"length": 0.1, "length_kind": "group", "limits": {"opens": 0.5}}},
    {"old": "recomputed", "mask": {"top_p": 0.9}},
]  # fmt: skip


@pytest.fixture
def groups(turn, episode):
    """Two groups of three episodes of two turns and sometimes two segments, with credit of both signs."""
    rng = np.random.default_rng(5)
    found = []
    for task in range(2):
        start = rng.integers(0, 32, 5).tolist()
        rows = []
        for member in range(3):
            first, second = (rng.integers(0, 32, size).tolist() for size in (2 + member, 3))
            answer, segment = rng.integers(0, 32, 3).tolist(), int(member == 2)
            turns = [
                turn(start, first, position=0),
                turn(answer, second, position=0 if segment else 5 + len(first), segment=segment,
                     reward=float(member), stop=None),
            ]  # fmt: skip
            made = episode(f"e{task}-{member}", turns, task=f"t{task}")
            credit = np.full(made.sampled_tokens, member - 1.0, np.float32) + rng.normal(
                0, 0.1, made.sampled_tokens
            ).astype(np.float32)
            rows += [replace(row, costs={"opens": float(member)}) for row in rows_of(made, credit)]
        found.append(rows)
    return found


def gradients(learner: Learner, groups, config: Reinforce):
    """The gradient of the first update, and its metrics."""
    caught = []
    weights = [weight for part in learner.optimizer.param_groups for weight in part["params"]]
    hook = learner.optimizer.register_step_pre_hook(
        lambda *_: caught.append(torch.cat([weight.grad.flatten().clone() for weight in weights]))
    )
    metrics = learner.update(groups, config, np.random.default_rng(0), lr=0.0)
    hook.remove()
    return caught[0], metrics


def made_learner(model_factory, groups, max_tokens: int = 8192, **scorer) -> Learner:
    model, other = model_factory(), model_factory(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Learner(
        Scorer(model, **scorer), optimizer, max_tokens=max_tokens, reference=Scorer(other),
        demonstrations=tuple(groups[0]),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_an_update_does_not_depend_on_how_it_is_cut_into_parts(model_factory, groups, settings):
    config = Reinforce(epochs=1, minibatches=1, entropy=0.01, max_grad_norm=1e9, loss=Loss(**settings))
    whole, metrics = gradients(made_learner(model_factory, groups), groups, config)
    assert torch.isfinite(whole).all()
    assert float(whole.norm()) > 1e-4, "it learns something"
    assert all(np.isfinite(value) for value in metrics.values())
    cut, again = gradients(made_learner(model_factory, groups, 9, chunk=2, share=False), groups, config)
    assert float((whole - cut).norm() / whole.norm()) < 1e-5
    for name in metrics.keys() - {"positions"}:  # the terms of a loss have sizes of 0.1 and more together
        near = {"rel": 1e-5, "abs": 1e-6} if name.endswith("loss") else {"rel": 1e-4, "abs": 1e-5}
        assert again[name] == pytest.approx(metrics[name], **near), name


def test_separate_streams_have_separate_denominators(model_factory, groups):
    """More observation tokens, or more episodes of one stream, do not dilute another's gradient."""

    def gradient(**streams):
        config = Reinforce(epochs=1, minibatches=1, max_grad_norm=1e9, loss=Loss(streams=streams))
        return gradients(made_learner(model_factory, groups), groups, config)[0]

    plain = gradient()
    observation, imitation = gradient(observation=0.5) - plain, gradient(imitation=0.5) - plain
    both = gradient(observation=0.5, imitation=0.5)
    assert torch.allclose(both, plain + observation + imitation, atol=1e-6)
    assert min(float(observation.norm()), float(imitation.norm())) > 1e-3


def test_observations_are_what_the_world_answered_and_get_no_credit(groups):
    row = groups[0][0]
    found = observed(Ready.of(row, 0))
    assert found.row.at.tolist() == [*row.at.tolist(), 7, 8, 9]
    assert found.stream.tolist() == [0] * len(row.at) + [1] * 3
    assert found.row.credit[len(row.at) :].tolist() == [0.0] * 3
    assert found.row.weights[len(row.at) :].tolist() == [0.0] * 3


def test_what_costs_more_than_its_group_earns_less_and_prices_survive_a_checkpoint(model_factory, groups):
    config = Reinforce(epochs=1, minibatches=1, loss=Loss(prices={"limits": {"opens": 0.25}, "limits_lr": 0.5}))
    learner = made_learner(model_factory, groups)
    first = learner.update(groups, config, np.random.default_rng(0), lr=0.0)
    assert (first["price_opens"], first["paid_opens"]) == (0.0, 1.0)
    second = learner.update(groups, config, np.random.default_rng(0), lr=0.0)
    assert second["price_opens"] == pytest.approx(0.5 * 0.75)
    other = made_learner(model_factory, groups)
    other.optimizer.load_state_dict(learner.optimizer.state_dict())
    third = other.update(groups, config, np.random.default_rng(0), lr=0.0)
    assert third["price_opens"] == pytest.approx(2 * 0.5 * 0.75)


def test_a_loss_that_asks_for_what_the_learner_has_not_is_refused(model_factory, groups):
    learner = made_learner(model_factory, groups)
    learner.reference, learner.demonstrations = None, ()
    for settings, wanted in (({"kl": 0.1}, "reference"), ({"streams": {"demonstrations": 0.1}}, "demonstrations")):
        with pytest.raises(ValueError, match=wanted):
            learner.update(groups, Reinforce(loss=Loss(**settings)), np.random.default_rng(0), lr=0.0)


def test_nothing_to_prefer_and_nobody_to_imitate_gives_no_gradient(model_factory, groups):
    flat = [[replace(row, credit=np.zeros_like(row.credit)) for row in group] for group in groups]
    for kind in ("dpo", "raft", "expert-iteration"):
        config = Reinforce(epochs=1, minibatches=1, loss=Loss(kind=kind))
        gradient, _ = gradients(made_learner(model_factory, flat), flat, config)
        assert float(gradient.norm()) == 0.0


REFUSED = [
    ({"kind": "reinforce", "dual_clip": 3.0}, "dual_clip 3.0 has no use where kind is 'reinforce'"),
    ({"kind": "sft", "ratio": "sequence"}, "ratio 'sequence' has no use"),
    ({"tau": 0.5}, "tau 0.5 has no use where kind is 'ppo'"),
    ({"kind": "a-lol", "variant": "free", "weight_clip": 0.5}, "weight_clip 0.5 has no use"),
    ({"kind": "rec", "rec": {"outer": 3.0}}, "outer 3.0 has no use where sides is 'one'"),
    ({"kind": "rec", "rec": {"temperature": 3.0}}, "temperature 3.0 has no use where weight is 'none'"),
    ({"kind": "rec", "rec": {"strength": 3.0}}, "strength 3.0 has no use where pull is 'none'"),
    ({"rec": {"weight": "ratio"}}, "has no use where kind is 'ppo'"),
    ({"kind": "topr", "against": "reference"}, "against 'reference' has no use where kind is 'topr'"),
    ({"kind": "a-lol", "variant": "free", "against": "reference"}, "against 'reference' has no use where variant"),
    ({"preference": {"unit": "turn"}}, "has no use where kind is 'ppo'"),
    ({"divergence": {"kind": "js"}}, "has no use where kl is 0"),
    ({"kl": 0.1, "divergence": {"kind": "js", "place": "credit"}}, "kind 'js' has no use where place is 'credit'"),
    ({"correction": {"most": 3.0}}, "most 3.0 has no use where weight is 'none'"),
    ({"correction": {"weight": "token"}}, "needs old = 'recomputed'"),
    ({"kind": "topr", "correction": {"weight": "token"}}, "weights of its own"),
    ({"kind": "reinforce", "old": "recomputed"}, "compares with no old policy"),
    ({"mask": {"top_p": 0.9}}, "needs a kind with a ratio and old = 'recomputed'"),
    ({"kind": "dpo", "entropy_share": 0.5}, "entropy_share 0.5 has no use"),
    ({"entropy_gate": "both"}, "entropy_gate 'both' has no use where entropy_share is 1"),
    ({"prices": {"length_free": 3}}, "length_free 3 has no use where length is 0"),
    ({"prices": {"costs": {"a": 1.0}, "limits": {"a": 1.0}}}, "costs and limits both name a"),
    ({"streams": {"demonstrations_rows": 3}}, "demonstrations_rows 3 has no use"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_a_setting_that_its_loss_has_no_use_for_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Reinforce(loss=settings)


def test_bounds_of_a_clip_are_refused_where_nothing_is_clipped():
    with pytest.raises(ValueError, match=r"clip_high 0\.4 has no use where loss\.kind is 'topr'"):
        Reinforce(clip_high=0.4, loss=Loss(kind="topr"))
