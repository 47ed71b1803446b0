"""The formulas of SSR, by hand and as properties."""

import pytest
from envgym_environments.code_repair.self_play.rewards import injector_reward, solve_rate, solver_reward
from hypothesis import given
from hypothesis import strategies as st


def test_the_injectors_reward_by_hand() -> None:
    assert injector_reward(None) == -1.0
    assert injector_reward(0.0) == injector_reward(1.0) == -0.8
    assert injector_reward(0.5) == pytest.approx(0.1)
    assert injector_reward(0.25, alpha=0.5) == pytest.approx(0.625)
    assert (solver_reward(True), solver_reward(False)) == (1.0, -1.0)
    assert solve_rate([True, False, False, True]) == 0.5


@given(st.integers(1, 99), st.integers(1, 99), st.floats(0.01, 0.99))
def test_a_bug_that_is_rarely_repaired_pays_more_than_an_easy_one_and_both_more_than_none(a, b, alpha) -> None:
    low, high = sorted((a / 100, b / 100))
    assert injector_reward(low, alpha=alpha) >= injector_reward(high, alpha=alpha) > -alpha
    assert injector_reward(None, alpha=alpha) < injector_reward(0.0, alpha=alpha)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="share"):
        injector_reward(wrong)
    with pytest.raises(ValueError, match="alpha"):
        injector_reward(0.5, alpha=1.0)
    with pytest.raises(ValueError, match="at least one"):
        solve_rate([])
