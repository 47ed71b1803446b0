"""The policy-gradient formulas, corrections, masks and prices against values computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from envgym_agents.learn.losses import correction, divergence, masks, penalties, policy, units  # noqa: E402
from envgym_agents.learn.losses.imitation import best_of_groups, negative_likelihood, restricted_share  # noqa: E402
from envgym_agents.learn.losses.preference import dpo, pairs, totals  # noqa: E402


def t(*values: float):
    return torch.tensor(values, dtype=torch.float64)


def n(*values: int):
    return torch.tensor(values)


def slope(make, *values: float) -> list[float]:
    """The gradient of the sum of what `make` makes of log-probabilities."""
    leaf = t(*values).requires_grad_()
    make(leaf).sum().backward()
    return leaf.grad.tolist()


OLD = t(-1.0, -1.0, -1.0, -1.0)
RATIOS = t(1.5, 1.5, 0.5, 0.5)
NOW = OLD + RATIOS.log()
SIGNS = t(1, -1, 1, -1)


def test_reinforce_is_minus_credit_times_the_logarithm():
    assert policy.reinforce(t(-1.0, -2.0), credit=t(3.0, -1.0)).tolist() == [3.0, -2.0]
    assert slope(lambda now: policy.reinforce(now, credit=t(3.0, -1.0)), -1.0, -2.0) == [-3.0, 1.0]


def test_ppo_clips_each_side_with_its_own_bound():
    # the band [0.8, 1.3]: min(1.5, 1.3) = 1.3; min(-1.5, -1.3) = -1.5; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8
    def make(now):
        return policy.ppo_clip(units.ratio(now, OLD), credit=SIGNS, low=0.2, high=0.3)

    assert make(NOW).tolist() == pytest.approx([-1.3, 1.5, -0.5, 0.8])
    assert slope(make, *NOW.tolist()) == pytest.approx([0.0, 1.5, -0.5, 0.0])
    kept = policy.in_band(RATIOS, credit=SIGNS, low=0.2, high=0.3)
    assert kept.tolist() == [False, True, True, False], "exactly those with a gradient"


def test_dual_clip_bounds_what_negative_credit_costs_and_nothing_else():
    ratio, credit = t(5.0, 5.0, 2.0), t(1.0, -1.0, -1.0)
    found = policy.dual_clip(ratio, credit=credit, low=0.2, high=0.2, most=3.0)
    assert found.tolist() == pytest.approx([-1.2, 3.0, 2.0])  # min(5, 1.2); min(5, 3); 2 is below 3
    plain = policy.ppo_clip(ratio, credit=credit, low=0.2, high=0.2)
    assert torch.equal(policy.dual_clip(ratio, credit=credit, low=0.2, high=0.2, most=math.inf), plain)


def test_cispo_clips_the_weight_and_cuts_no_gradient():
    def make(now):
        return policy.cispo(now, units.ratio(now, OLD), credit=SIGNS, low=0.2, high=0.3)

    assert slope(make, *NOW.tolist()) == pytest.approx([-1.3, 1.3, -0.8, 0.8])
    assert slope(make, *OLD.tolist()) == slope(lambda now: policy.reinforce(now, credit=SIGNS), *OLD.tolist())


def test_gspo_is_ppo_with_the_geometric_mean_ratio_of_a_sequence():
    # log-ratios 0.2, 0.4 and -0.1: the first sequence's ratio is exp(0.3), the second's exp(-0.1)
    old, unit = t(-1, -1, -1), n(0, 0, 1)
    found = units.ratio(old + t(0.2, 0.4, -0.1), old, unit=unit)
    assert found.tolist() == pytest.approx([math.exp(0.3), math.exp(0.3), math.exp(-0.1)])
    # d exp(mean)/d each = exp(mean) / n; summed over the sequence with 1 / n each it is GSPO's own gradient
    by_token = slope(lambda now: units.ratio(now, old, unit=unit) / t(2, 2, 1), -0.8, -0.6, -1.1)
    assert by_token == pytest.approx([math.exp(0.3) / 2, math.exp(0.3) / 2, math.exp(-0.1)])
    assert torch.equal(units.ratio(old, old, unit=unit), torch.ones(3, dtype=torch.float64))


def test_pre_clip_holds_the_log_ratio_and_no_ratio_is_infinite():
    assert units.ratio(t(4.0, 0.0), t(0.0, 4.0), bound=1.0).tolist() == pytest.approx([math.e, 1 / math.e])
    assert slope(lambda now: units.ratio(now, t(0.0, 0.0), bound=1.0), 4.0, 0.5) == pytest.approx(
        [0, math.exp(0.5)]
    )
    huge = units.ratio(torch.tensor([0.0]), torch.tensor([-1e6]))
    assert torch.isfinite(huge).all()


def test_topr_follows_what_is_good_and_lets_go_of_what_is_bad():
    # two sequences of two tokens; pi/mu is exp(0.3 - 0.8) = exp(-0.5) for the bad one, exp(1) for another bad one
    sampled = t(-1, -1, -1, -1, -1)
    now = sampled + t(5.0, 5.0, 0.3, -0.8, 1.0)
    credit, unit = t(2.0, 2.0, -1.0, -1.0, -1.0), n(0, 0, 1, 1, 2)
    found = slope(lambda now: policy.topr(now, sampled, credit=credit, unit=unit), *now.tolist())
    assert found == pytest.approx([-2.0, -2.0, math.exp(-0.5), math.exp(-0.5), 1.0])


def test_topr_goes_by_the_whole_trajectory_whatever_a_turn_of_it_earned():
    """Two turns of -2 and +1: together -1, so both are tapered by pi / mu of both, exp(-0.5 + -0.2)."""
    now, sampled, unit = t(-1.5, -1.2, -1.5, -1.2), t(-1.0, -1.0, -1.0, -1.0), n(0, 0, 1, 1)
    credit = t(-2.0, 1.0, 2.0, -1.0)  # the second episode: +1 together, so nothing of it is tapered
    found = slope(lambda now: policy.topr(now, sampled, credit=credit, unit=unit), *now.tolist())
    weight = math.exp(-0.7)
    assert found == pytest.approx([2 * weight, -weight, -2.0, 1.0])


def test_a_lol_learns_from_positive_advantage_alone_with_its_clipped_weight():
    sampled, unit, credit = t(-1, -1, -1), n(0, 0, 1), t(2.0, 2.0, -1.0)
    now = (sampled + t(0.5, 1.0, 0.0)).tolist()

    def gradient(variant):
        return slope(
            lambda x: policy.advantage_lol(x, sampled, credit=credit, unit=unit, variant=variant, clip=0.9), *now
        )

    assert gradient("full") == pytest.approx([-2 * 1.9, -2 * 1.9, 0.0])  # exp(1.5) is above 1.9
    assert gradient("sequence") == pytest.approx([-2 * math.exp(0.5), -2 * 1.9, 0.0])
    assert gradient("free") == pytest.approx([-2.0, -2.0, 0.0])


def test_opmd_shrinks_by_its_temperature_and_kimis_pulls_back_the_whole_sequence():
    assert policy.opmd(t(-2.0), credit=t(3.0), tau=0.5).tolist() == pytest.approx([4.0])
    old, unit = t(-1.0, -1.0), n(0, 0)

    def kimi(now):
        return policy.kimi_opmd(now, old, credit=t(1.0, 1.0), unit=unit, tau=0.4)

    # sequence log-ratio 0.3 + 0.2 = 0.5: value 0.4 / 2 * 0.25 in all; slope -1 + 0.4 * 0.5
    assert float(kimi(old + t(0.3, 0.2)).sum()) == pytest.approx(0.7 + 0.8 + 0.05)
    assert slope(kimi, -0.7, -0.8) == pytest.approx([-0.8, -0.8])
    assert slope(kimi, -1.0, -1.0) == pytest.approx([-1.0, -1.0])


def test_the_masks_of_rec_keep_what_their_names_say():
    ratio, plus, minus = t(0.1, 0.7, 1.0, 1.4, 2.0), torch.ones(5), -torch.ones(5)
    band = {"low": 0.2, "high": 0.3}
    assert policy.in_band(ratio, credit=plus, **band).tolist() == [True, True, True, False, False]
    assert policy.in_band(ratio, credit=minus, **band).tolist() == [False, False, True, True, True]
    assert policy.in_band(ratio, credit=plus, **band, sides="two").tolist() == [False, False, True, False, False]
    ring = policy.in_band(ratio, credit=plus, **band, sides="ring", outer=2.0)  # below 0.6, good ones come back
    assert ring.tolist() == [True, False, True, False, False]
    ring = policy.in_band(ratio, credit=minus, **band, sides="ring", outer=2.0)  # above 1.6, bad ones do
    assert ring.tolist() == [False, False, True, False, True]


def test_rec_weighs_by_the_ratio_or_by_the_advantage_and_neither_has_a_gradient():
    ratio, credit = t(0.5, 1.0, 2.0), t(1.0, 0.0, -1.0)
    weigh = policy.rec_weight
    assert weigh(ratio, credit=credit, kind="none").tolist() == [1.0, 1.0, 1.0]
    assert weigh(ratio, credit=credit, kind="ratio").tolist() == [0.5, 1.0, 2.0]
    by_credit = weigh(ratio, credit=credit, kind="advantage", temperature=0.5)
    assert by_credit.tolist() == pytest.approx([math.exp(2), 1.0, math.exp(-2)])
    assert torch.isfinite(weigh(ratio, credit=credit * 1e6, kind="advantage")).all()
    assert not weigh(ratio.requires_grad_(), credit=credit, kind="ratio").requires_grad


def test_recs_pull_is_the_square_of_the_log_ratio_or_the_likelihood_of_what_was_sampled():
    old, now = t(-1.0, -1.0), (-0.5, -1.0)  # log-ratios 0.5 and 0
    assert policy.rec_pull(t(*now), old, kind="square").tolist() == [0.25, 0.0]
    assert slope(lambda x: policy.rec_pull(x, old, kind="square"), *now) == [1.0, 0.0]
    assert slope(lambda x: policy.rec_pull(x, old, kind="likelihood"), *now) == [-1.0, -1.0]
    assert not policy.rec_pull(t(*now), old, kind="none").any()


def test_an_outlier_is_dropped_and_equal_credits_have_no_outlier():
    values, weights = t(*[0.0] * 15, 8.0), torch.ones(16, dtype=torch.float64)
    scaled = units.standardised(values, weights)
    assert float(scaled[-1]) == pytest.approx(math.sqrt(15))  # mean 0.5, deviation sqrt(3.75)
    assert policy.advantage_filter(scaled, most=3.0).tolist() == [True] * 15 + [False]
    assert units.standardised(t(0.3, 0.3), t(1, 1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda now, credit: policy.reinforce(now, credit=credit),
        lambda now, credit: policy.ppo_clip(units.ratio(now, OLD), credit=credit, low=0.2, high=0.2),
        lambda now, credit: policy.dual_clip(units.ratio(now, OLD), credit=credit, low=0.2, high=0.2, most=3.0),
        lambda now, credit: policy.cispo(now, units.ratio(now, OLD), credit=credit, low=0.2, high=0.2),
        lambda now, credit: policy.topr(now, OLD, credit=credit, unit=n(0, 0, 1, 1)),
        lambda now, credit: policy.advantage_lol(now, OLD, credit=credit, unit=n(0, 0, 1, 1)),
        lambda now, credit: policy.opmd(now, credit=credit, tau=0.3),
    ],
)
def test_zero_credit_gives_zero_loss_and_zero_gradient(make):
    zero = torch.zeros(4, dtype=torch.float64)
    assert make(NOW, zero).abs().tolist() == [0.0] * 4
    assert [abs(one) for one in slope(lambda now: make(now, zero), *NOW.tolist())] == [0.0] * 4


def test_corrections_truncate_and_reject_by_token_and_by_unit():
    sampled, unit = t(-1, -1, -1), n(0, 0, 1)
    learner = sampled + t(0.5, -1.5, 2.0)
    assert correction.truncated(learner, sampled, unit=None, most=2.0).tolist() == pytest.approx(
        [math.exp(0.5), math.exp(-1.5), 2.0]
    )
    whole = correction.truncated(learner, sampled, unit=unit, most=2.0)
    assert whole.tolist() == pytest.approx([math.exp(-1.0), math.exp(-1.0), 2.0])
    bounds = {"low": 0.5, "high": 2.0}
    assert correction.kept(learner, sampled, unit=None, **bounds).tolist() == [True, False, False]
    # the geometric mean of the first unit is exp(-0.5) = 0.61
    assert correction.kept(learner, sampled, unit=unit, **bounds).tolist() == [True, True, False]
    assert torch.equal(correction.truncated(sampled, sampled, unit=unit, most=2.0), torch.ones_like(sampled))


def test_the_effective_sample_size_is_one_for_equal_weights_and_a_share_for_others():
    assert float(correction.effective_share(t(2, 2, 2))) == 1.0
    assert float(correction.effective_share(t(1, 0, 0, 0))) == 0.25
    found = correction.diagnose(t(-1.0, -2.0), t(-1.0, -1.0), weights=t(0.5, 0.5), episode=n(0, 1))
    assert found["mismatch_kl"] == pytest.approx(0.5 * (math.exp(-1.0) + 1 - 1))
    assert found["mismatch_max"] == pytest.approx(math.e)
    ratios = (1.0, math.exp(-1.0))
    assert found["ess_token"] == pytest.approx(sum(ratios) ** 2 / (2 * sum(r * r for r in ratios)))
    assert found["ess_episode"] == pytest.approx(found["ess_token"])
    assert correction.diagnose(t(), t(), weights=t(), episode=n()) == {}


def test_estimated_divergences_are_zero_for_equals_and_on_average_the_true_ones():
    p, q = t(0.5, 0.3, 0.2), t(0.2, 0.3, 0.5)
    middle = (p + q) / 2
    true = {
        "reverse": (p * (p / q).log()).sum(),
        "forward": (q * (q / p).log()).sum(),
        "js": ((p * (p / middle).log()).sum() + (q * (q / middle).log()).sum()) / 2,
    }
    for kind, value in true.items():
        one = divergence.estimate(p.log(), q.log(), kind=kind)
        assert float((p * one).sum()) == pytest.approx(float(value)), kind
        assert (one >= 0).all()
        assert divergence.estimate(p.log(), p.log(), kind=kind).tolist() == [0.0] * 3
        assert float(divergence.between(p.log(), q.log(), kind=kind)) == pytest.approx(float(value))
    assert divergence.k1(p.log(), q.log()).tolist() == pytest.approx((p / q).log().tolist())


@pytest.mark.parametrize("kind", ["reverse", "forward", "js"])
@settings(derandomize=True)
@given(
    ours=st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    theirs=st.lists(st.floats(-3, 3), min_size=4, max_size=4),
)
def test_what_is_descended_has_on_average_the_gradient_of_the_divergence_that_it_is_named_for(kind, ours, theirs):
    logits, other = t(*ours).requires_grad_(), t(*theirs).log_softmax(-1)
    logs = logits.log_softmax(-1)
    (wanted,) = torch.autograd.grad(divergence.between(logs, other, kind=kind), logits, retain_graph=True)
    drawn = logs.detach().exp()  # how often each is sampled, whatever is learned
    found = divergence.descended(logs, other, kind=kind)
    assert torch.allclose(found, divergence.estimate(logs, other, kind=kind))
    (mean,) = torch.autograd.grad((drawn * found).sum(), logits, retain_graph=True)
    assert torch.allclose(mean, wanted, atol=1e-10)
    (told,) = torch.autograd.grad((drawn * divergence.estimate(logs, other)).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad(divergence.between(logs, other, kind="forward"), logits)
    assert torch.allclose(told, forward, atol=1e-10)  # k3 descended by itself


def test_what_is_closed_in_both_counts_nothing_in_a_divergence():
    one, two = t(math.log(0.5), math.log(0.5), -math.inf), t(math.log(0.25), math.log(0.75), -math.inf)
    for kind in ("reverse", "forward", "js"):
        leaf = one.clone().requires_grad_()
        value = divergence.between(leaf, two, kind=kind)
        value.backward()
        assert torch.isfinite(leaf.grad).all()
        assert float(value.detach()) == pytest.approx(float(divergence.between(one[:2], two[:2], kind=kind)))


def test_a_cost_to_go_sums_what_follows_in_its_own_unit():
    found = divergence.to_go(t(1, 10, 2, 20, 3), n(0, 1, 0, 1, 0))
    assert found.tolist() == [6, 30, 5, 20, 3]


def test_the_entropy_gate_keeps_the_share_that_decides():
    entropy = t(0.1, 0.9, 0.5, 0.0)
    assert masks.entropy_gate(entropy, share=0.5).tolist() == [False, True, True, False]
    assert masks.entropy_gate(entropy, share=0.01).tolist() == [False, True, False, False]
    assert masks.entropy_gate(entropy, share=1.0).all()
    assert masks.entropy_gate(t(0.5, 0.5, 0.1), share=0.3).tolist() == [True, True, False], "equals stay together"


def test_a_nucleus_is_the_smallest_set_that_holds_enough():
    logits = t(0.5, 0.3, 0.2).log()[None]
    assert masks.nucleus(logits, top_p=0.5).tolist() == [[True, False, False]]
    assert masks.nucleus(logits, top_p=0.7).tolist() == [[True, True, False]]
    assert masks.nucleus(logits, top_p=1.0).all()
    assert masks.within(logits, masks.nucleus(logits, top_p=0.7)).softmax(-1).tolist()[0] == pytest.approx(
        [0.625, 0.375, 0.0]
    )


def test_dpo_compares_units_that_may_be_compared():
    assert pairs([1.0, 0.0, 0.0, 5.0], [7, 7, 7, 8]) == [(0, 1), (0, 2)]
    assert pairs([1.0, 0.9], [0, 0], margin=0.2) == []
    margins = totals(t(0.5, 0.5, -1.0), n(0, 0, 1), units=2)
    assert margins.tolist() == [1.0, -1.0]
    assert float(dpo(margins, [(0, 1)], beta=0.5)) == pytest.approx(math.log(1 + math.exp(-1.0)))
    assert float(dpo(t(0, 0), [(0, 1)], beta=0.5)) == pytest.approx(math.log(2))
    smoothed = 0.9 * math.log(1 + math.exp(-1.0)) + 0.1 * math.log(1 + math.exp(1.0))
    assert float(dpo(margins, [(0, 1)], beta=0.5, smoothing=0.1)) == pytest.approx(smoothed)
    assert totals(t(2, 4, 1), n(0, 0, 1), units=3, mean=True).tolist() == [3, 1, 0]


def test_raft_takes_the_best_of_each_group_and_expert_iteration_what_is_good_enough():
    assert best_of_groups([0.0, 1.0, 1.0, 0.2, 0.2, 9.0], [0, 0, 0, 1, 1, 2]) == [False, True, False] + [False] * 3
    assert best_of_groups([0.0, 1.0, 0.5], [0, 0, 0], least=0.4) == [False, True, True]
    assert negative_likelihood(t(-2.0)).tolist() == [2.0]
    assert restricted_share(t(0.2, 0.2, 0.6), n(1, 1, 0)).tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert restricted_share(t(0.2), n(0)).tolist() == [0.0]


def test_prices_of_length_and_cost():
    assert penalties.overlong(np.array([5.0, 15.0, 30.0]), free=10, most=20).tolist() == [0.0, 0.5, 1.0]
    assert penalties.overlong(np.array([10.0, 11.0]), free=10, most=10).tolist() == [0.0, 1.0]
    length, earned = np.array([10.0, 20.0, 30.0, 5.0]), np.array([1.0, 0.0, 1.0, 1.0])
    assert penalties.kimi_length(length, earned, [0, 0, 0, 1]).tolist() == [-0.5, 0.0, 0.5, 0.0]
    assert penalties.kimi_length(length, np.zeros(4), [0, 0, 0, 1]).tolist() == [0.0, 0.0, 0.5, 0.0]
    assert penalties.per_token(length, price=0.1).tolist() == pytest.approx([1, 2, 3, 0.5])
    assert penalties.relative(np.array([1.0, 3.0, 7.0]), [0, 0, 1]).tolist() == [-1.0, 1.0, 0.0]


def test_a_multiplier_rises_while_its_limit_is_passed_and_falls_to_zero():
    credit, cost = np.array([1.0, -1.0]), {"opens": np.array([4.0, 2.0])}
    assert penalties.constrained(credit, cost, {}, [0, 0]).tolist() == [1.0, -1.0]
    found = penalties.constrained(credit, cost, {"opens": 1.0}, [0, 0])
    assert found.tolist() == [(1 - 1) / 2, (-1 + 1) / 2]
    rising = penalties.updated({}, {"opens": 3.0}, {"opens": 2.0}, lr=0.5, most=10)
    assert rising == {"opens": 0.5}
    assert penalties.updated(rising, {"opens": 0.0}, {"opens": 2.0}, lr=0.5, most=10) == {"opens": 0.0}
    assert penalties.updated(rising, {"opens": 1e9}, {"opens": 2.0}, lr=0.5, most=10) == {"opens": 10.0}
