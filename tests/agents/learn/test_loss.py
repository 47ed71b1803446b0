"""The formulas against values computed by hand."""

import math

import pytest

torch = pytest.importorskip("torch")
from envgym_agents.learn.loss import clip_share, clipped_policy_gradient, kl_k3, weighted_mean  # noqa: E402


def t(*values: float):
    return torch.tensor(values, dtype=torch.float64)


def test_surrogate_of_an_unchanged_policy_is_minus_the_weighted_credit():
    loss = clipped_policy_gradient(
        t(-1.0, -2.0), t(-1.0, -2.0), credit=t(3.0, -1.0), weights=t(0.25, 0.75), clip_low=0.2, clip_high=0.2
    )
    assert float(loss) == pytest.approx(-(0.25 * 3.0 - 0.75 * 1.0))


def test_surrogate_clips_each_side_with_its_own_bound():
    # ratios 1.5, 1.5, 0.5, 0.5 with credit +1, -1, +1, -1 and the band [0.8, 1.3]:
    # min(1.5, 1.3) = 1.3; min(-1.5, -1.3) = -1.5; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8
    old, ratios = t(-1.0, -1.0, -1.0, -1.0), t(1.5, 1.5, 0.5, 0.5)
    new = (old + ratios.log()).requires_grad_()
    credit, weights = t(1, -1, 1, -1), t(1, 1, 1, 1)
    loss = clipped_policy_gradient(new, old, credit=credit, weights=weights, clip_low=0.2, clip_high=0.3)
    assert float(loss.detach()) == pytest.approx(-(1.3 - 1.5 + 0.5 - 0.8))
    loss.backward()
    # the gradient of -r*A is -r*A where it was not clipped, and zero where it was
    assert new.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])
    cut = clip_share(new.detach(), old, credit=credit, weights=weights / 4, clip_low=0.2, clip_high=0.3)
    assert float(cut) == pytest.approx(0.5)


def test_zero_credit_gives_zero_loss_and_zero_gradient():
    new = t(-3.0, -0.1).requires_grad_()
    loss = clipped_policy_gradient(new, t(-1.0, -1.0), credit=t(0, 0), weights=t(1, 1), clip_low=0.2, clip_high=0.2)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert new.grad.tolist() == [0.0, 0.0]


def test_k3_is_zero_for_equal_policies_and_positive_otherwise():
    assert float(kl_k3(t(-1.0), t(-1.0), weights=t(1.0))) == 0.0
    expected = 0.5 * (math.exp(0.5) - 0.5 - 1) + 0.5 * (math.exp(-0.5) + 0.5 - 1)
    assert float(kl_k3(t(-1.0, -1.0), t(-0.5, -1.5), weights=t(0.5, 0.5))) == pytest.approx(expected)


def test_the_mean_is_over_episodes_not_tokens():
    # one episode of three tokens worth 1, one of a single token worth 5: (1 + 5) / 2, not (3 + 5) / 4
    third = 1 / 6
    assert float(weighted_mean(t(1, 1, 1, 5), weights=t(third, third, third, 0.5))) == pytest.approx(3.0)
