"""Rules, schedules and draws, against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envgym.buffer.sampling import (
    Columns,
    combined,
    constant,
    dealt,
    drawn,
    failures_first,
    importance,
    linear,
    probabilities,
    recent,
    uniform,
)

NAN = float("nan")


def columns(success: list[float], age: list[int] | None = None) -> Columns:
    count = len(success)
    ages = np.array(age if age is not None else [0] * count, np.int64)
    return Columns(np.array(success, np.float64), ages, np.ones(count, np.int64))


def test_uniform_weighs_all_alike() -> None:
    assert uniform(columns([0.1, 0.9])).tolist() == [1.0, 1.0]


def test_failures_first_weighs_by_one_minus_success() -> None:
    known = columns([0.0, 0.25, 1.0, NAN])
    assert failures_first()(known).tolist() == [1.0, 0.75, 0.0, 1.0]
    assert failures_first(floor=0.5)(known).tolist() == [1.0, 0.75, 0.5, 1.0]
    assert probabilities(failures_first()(columns([0.5, 0.75, 0.75]))).tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(ValueError, match=r"floor is 1\.5"):
        failures_first(floor=1.5)


def test_recent_halves_per_half_life_and_never_underflows_to_nothing() -> None:
    assert recent(half_life=2)(columns([0] * 3, [4, 6, 10])).tolist() == [1.0, 0.5, 0.125]
    assert recent(half_life=1)(columns([0] * 2, [10**9, 10**9 + 1])).tolist() == [1.0, 0.5]
    assert recent(half_life=1)(columns([])).tolist() == []
    with pytest.raises(ValueError, match="half_life is 0 versions"):
        recent(half_life=0)


def test_rules_multiply() -> None:
    both = combined(failures_first(), recent(half_life=1))
    assert both(columns([0.5, 0.0], [0, 2])).tolist() == [0.5, 0.25]


def test_schedules() -> None:
    assert [constant(0.5)(version) for version in (0, 7)] == [0.5, 0.5]
    assert [linear(1.0, 0.0, over=4)(version) for version in (-1, 0, 1, 4, 9)] == [1.0, 1.0, 0.75, 0.0, 0.0]
    with pytest.raises(ValueError, match="over is 0"):
        linear(1, 0, over=0)


def test_where_nothing_is_preferred_all_are_alike_and_wrong_weights_are_refused() -> None:
    assert probabilities(np.zeros(4)).tolist() == [0.25] * 4
    assert probabilities(np.array([1e308, 1e308])).tolist() == [0.5, 0.5]
    assert probabilities(np.array([5e-324, 5e-324])).tolist() == [0.5, 0.5]
    assert probabilities(np.zeros(0)).tolist() == []
    for wrong in (-1.0, NAN, float("inf")):
        with pytest.raises(ValueError, match="weight 1 of 2 is"):
            probabilities(np.array([1.0, wrong]))


def test_importance_by_hand() -> None:
    chances = np.array([0.5, 0.25, 0.25, 0.0])
    assert importance(chances).tolist() == [0.5, 1.0, 1.0, 0.0]
    assert importance(chances, beta=0.5).tolist() == pytest.approx([0.5**0.5, 1.0, 1.0, 0.0])
    assert importance(chances, beta=0.0).tolist() == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="beta is 2"):
        importance(chances, beta=2.0)


weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=30).map(np.array)


@given(weights, st.lists(st.floats(-100, 100), min_size=30, max_size=30))
def test_importance_weighted_draws_have_the_mean_of_all(given_weights: np.ndarray, values: list[float]) -> None:
    """The expectation, summed over every possible draw, is the plain mean: exactly unbiased at beta 1."""
    chances = probabilities(given_weights)
    assume((chances > 0).all())
    numbers = np.array(values[: len(chances)])
    assert (chances * importance(chances) * numbers).sum() == pytest.approx(numbers.mean(), abs=1e-9)


@given(weights, st.integers(0, 2**32), st.integers(1, 50))
def test_what_has_no_chance_is_never_drawn(given_weights: np.ndarray, seed: int, size: int) -> None:
    chances = probabilities(given_weights)
    picked = drawn(chances, size, np.random.default_rng(seed))
    assert picked.shape == (size,)
    assert (chances[picked] > 0).all()


def test_draws_come_as_often_as_their_chances_say() -> None:
    chances = np.array([0.5, 0.0, 0.3, 0.2, 0.0])
    counts = np.bincount(drawn(chances, 100_000, np.random.default_rng(0)), minlength=5) / 100_000
    assert counts == pytest.approx(chances, abs=0.006)  # four standard deviations of the largest


def test_half_and_half_is_exact_and_a_missing_source_leaves_its_share_to_the_others() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert dealt(64, {"data": 0.5, "online": 0.5}, {"data": 3, "online": 900}, rng) == {
            "data": 32,
            "online": 32,
        }
    assert dealt(8, {"data": 0.5, "online": 0.5}, {"data": 3}, rng) == {"data": 8}
    assert dealt(8, {"data": 1, "play": 1, "online": 2}, {"data": 1, "online": 1, "more": 1}, rng).keys() == {
        "data", "online"
    }  # fmt: skip
    assert dealt(8, {"data": 1.0, "online": 0.0}, {"data": 3, "online": 5}, rng) == {"data": 8}


@pytest.mark.parametrize("shares", [{"a": -1.0, "b": 2.0}, {"a": 0.0}, {}, {"a": NAN}, {"a": float("inf")}])
def test_wrong_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be >= 0 and not all 0"):
        dealt(8, shares, {"a": 1, "b": 1}, np.random.default_rng(0))
    with pytest.raises(ValueError, match="nothing to draw from"):
        dealt(8, {"c": 1.0}, {"a": 1}, np.random.default_rng(0))


@given(
    st.integers(1, 100),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 10), min_size=1),
    st.integers(0, 2**32),
)
def test_shares_are_dealt_whole_and_within_one(size: int, shares: dict[str, float], seed: int) -> None:
    counts = dealt(size, shares, dict.fromkeys("abcd", 5), np.random.default_rng(seed))
    assert sum(counts.values()) == size
    total = sum(shares.values())
    for name, share in shares.items():
        assert abs(counts[name] - size * share / total) < 1 + 1e-6


def test_what_cannot_be_split_evenly_is_dealt_fairly() -> None:
    rng = np.random.default_rng(1)
    counts = [dealt(1, {"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 1}, rng) for _ in range(4000)]
    means = [np.mean([one[name] for one in counts]) for name in "abc"]
    assert means == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
