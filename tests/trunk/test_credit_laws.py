"""Laws of credit that bind every scheme of the trunk: a, b, f, g, h, i; and c, d, e where they are claimed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.credit import (
    Scheme,
    centre,
    discounted_returns,
    group_relative,
    outcomes,
    turn_relative,
    turn_rewards,
    zero_variance,
)
from envgym.env import Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.messages import Message

SCHEMES: dict[str, Callable[..., Scheme]] = {"group_relative": group_relative, "turn_relative": turn_relative}
BROKE = Failure(boundary=Boundary.INFRASTRUCTURE, kind="SandboxDied", message="gone", where="step", turn=0)
NUMBERS = st.floats(-4, 4).map(lambda x: round(x, 3))

schemes = st.builds(
    lambda name, gamma, baseline, scale: SCHEMES[name](gamma=gamma, baseline=baseline, scale=scale),
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from([1.0, 0.9, 0.5]),
    st.sampled_from(["mean", "leave_one_out"]),
    st.sampled_from(["none", "std"]),
)


def turn(
    reward: float | None, key: str = "", sampled: int = 2, prompt: int = 3, stop: StopReason | None = None
) -> Turn:
    step = Step(observation=(Message(role="tool", content="x" * prompt),), reward=reward, state_key=key)
    ids = np.arange(sampled, dtype=np.int32)
    return Turn("agent", (), step, np.arange(prompt, dtype=np.int32), ids, np.zeros(sampled, np.float32))


def episode(name: str, turns: Sequence[Turn], stop: StopReason = StopReason.GOAL, failed: bool = False) -> Episode:
    placed, position = [], 0
    for one in turns:
        placed.append(replace(one, position=position))
        position += len(one.prompt_ids) + len(one.sampled_ids)
    root = Step(state_key="root")
    outcome: Any = {"failure": BROKE} if failed else {"stop": stop}
    return Episode(id=name, task_id="t", root=root, turns=tuple(placed), seed=0, **outcome)


turns_of = st.builds(
    turn, st.none() | NUMBERS, st.sampled_from(["", "a", "b"]), st.integers(0, 4), st.integers(1, 5)
)


@st.composite
def groups(draw: Callable[[st.SearchStrategy[Any]], Any], *, failures: bool = True) -> Group:
    made = []
    for number in range(draw(st.integers(1, 5))):
        turns = draw(st.lists(turns_of, max_size=4))
        stop = draw(st.sampled_from([StopReason.GOAL, StopReason.LOST, StopReason.TURN_LIMIT]))
        made.append(episode(f"e{number}", turns, stop, failures and draw(st.integers(0, 5)) == 0))
    return Group("t", tuple(made))


def same(one: Sequence[np.ndarray], two: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@given(groups(), schemes)
def test_shape_one_finite_float_per_sampled_token(group: Group, scheme: Scheme) -> None:
    credit = scheme(group)
    assert [len(one) for one in credit] == [member.sampled_tokens for member in group]
    assert all(one.dtype == np.float32 and np.isfinite(one).all() for one in credit)


@given(groups(), schemes, st.integers(1, 3))
def test_law_a_cutting_an_episode_into_segments_changes_nothing(group: Group, scheme: Scheme, every: int) -> None:
    """A new segment per `every` turns is how an episode is cut into rows; credit is per episode."""

    def cut(member: Episode) -> Episode:
        turns, position = [], 0
        for index, one in enumerate(member.turns):
            position = 0 if index % every == 0 else position
            turns.append(replace(one, segment=index // every, position=position))
            position += len(one.prompt_ids) + len(one.sampled_ids)
        return replace(member, turns=tuple(turns))

    same(scheme(group), scheme(Group("t", tuple(cut(member) for member in group))), 0)


@given(groups(), schemes, st.integers(1, 50))
def test_law_b_observation_tokens_get_no_credit_and_enter_nothing(group: Group, scheme: Scheme, more: int) -> None:
    def longer(member: Episode) -> Episode:
        return episode(
            member.id,
            [
                replace(one, prompt_ids=np.arange(len(one.prompt_ids) + more, dtype=np.int32))
                for one in member.turns
            ],
            member.stop or StopReason.GOAL,
            member.failure is not None,
        )

    same(scheme(group), scheme(Group("t", tuple(longer(member) for member in group))), 0)


@pytest.mark.slow
@given(groups(failures=False), st.sampled_from(["mean", "leave_one_out"]))
def test_law_c_without_division_a_zero_reward_is_the_limit_of_a_tiny_one(group: Group, baseline: Any) -> None:
    def nudged(by: float) -> Group:
        def one(member: Episode) -> Episode:
            steps = [replace(t.step, reward=(t.step.reward or 0.0) + by * k) for k, t in enumerate(member.turns)]
            turns = [replace(t, step=step) for t, step in zip(member.turns, steps, strict=True)]
            return replace(member, turns=tuple(turns))

        return Group("t", tuple(one(member) for member in group))

    for make in SCHEMES.values():
        scheme = make(baseline=baseline)
        same(scheme(nudged(0.0)), scheme(nudged(1e-7)), 1e-4)


def test_law_c_is_not_claimed_with_division_here_is_the_counterexample() -> None:
    def group(tiny: float) -> Group:
        return Group("t", (episode("a", [turn(0.0)]), episode("b", [turn(tiny)])))

    scheme = group_relative(scale="std")
    assert scheme(group(0.0))[1].tolist() == [0.0, 0.0]
    assert scheme(group(1e-9))[1].tolist() == [1.0, 1.0]


@given(groups(), schemes)
def test_law_d_a_group_of_one_gets_zero_relative_credit(group: Group, scheme: Scheme) -> None:
    # with no two turns of an episode in one state, turn_relative has no peers inside it either
    (member, *_) = group
    distinct = episode(
        member.id,
        [replace(one, step=replace(one.step, state_key=f"s{k}")) for k, one in enumerate(member.turns)],
        member.stop or StopReason.GOAL,
        member.failure is not None,
    )
    assert all(not one.any() for one in scheme(Group("t", (distinct,))))


@given(groups())
def test_law_e_returns_telescope_turn_rewards_add_up_to_the_outcome(group: Group) -> None:
    returns = discounted_returns(group, gamma=1.0)
    for member, values, outcome in zip(group, returns, outcomes(group), strict=True):
        if member.failure is not None:
            assert np.isnan(values).all()
            assert np.isnan(outcome)
        elif len(values):
            np.testing.assert_allclose(values[0], outcome, atol=1e-9)
            following = np.append(values[1:], 0.0)
            np.testing.assert_allclose(values - following, turn_rewards(member), atol=1e-9)


@given(groups(), schemes, st.randoms(use_true_random=False))
def test_law_f_permuting_members_permutes_credits(group: Group, scheme: Scheme, chance: Any) -> None:
    order = list(range(len(group)))
    chance.shuffle(order)
    permuted = scheme(Group("t", tuple(group.episodes[k] for k in order)))
    credit = scheme(group)
    same(permuted, [credit[k] for k in order])


@given(groups(), schemes)
def test_law_g_turns_without_sampled_tokens_get_nothing(group: Group, scheme: Scheme) -> None:
    def silent(member: Episode) -> Episode:
        empty = np.zeros(0, np.int32)
        turns = [replace(one, sampled_ids=empty, logprobs=np.zeros(0, np.float32)) for one in member.turns]
        return episode(member.id, turns, member.stop or StopReason.GOAL, member.failure is not None)

    (first, *others) = group
    assert len(scheme(Group("t", (silent(first), *others)))[0]) == 0
    same(scheme(group)[1:], scheme(Group("t", (silent(first), *others)))[1:], 0)


@given(groups(failures=False), st.sampled_from(sorted(SCHEMES)), NUMBERS)
def test_law_h_truncation_bootstraps_as_declared(group: Group, name: str, bootstrap: float) -> None:
    """A truncated episode counts as one whose last turn brought `bootstrap` more (gamma 1): never as a loss."""

    def paid(member: Episode) -> Episode:
        if member.stop is None or not member.stop.truncated or not member.turns:
            return member
        *before, last = member.turns
        more = replace(last, step=replace(last.step, reward=(last.step.reward or 0.0) + bootstrap))
        return replace(member, turns=(*before, more), stop=StopReason.GOAL)

    kept = [member for member in group if member.turns]
    if not kept:
        return
    rest = Group("t", tuple(kept))
    same(SCHEMES[name](bootstrap=bootstrap)(rest), SCHEMES[name]()(Group("t", tuple(paid(one) for one in rest))))


@given(groups(), schemes)
def test_law_i_a_failed_member_gets_zero_and_its_peers_are_centred_without_it(group: Group, scheme: Scheme) -> None:
    credit = scheme(group)
    alive = [k for k, member in enumerate(group) if member.failure is None]
    for k, member in enumerate(group):
        if member.failure is not None:
            assert not credit[k].any()
    same([credit[k] for k in alive], scheme(Group("t", group.scored)))


def test_a_worked_example_by_hand() -> None:
    """Outcomes 1, 0, 0 have mean 1/3; two turns with gamma 0.5 give half of it to the earlier one."""
    group = Group(
        "t", (episode("a", [turn(0.0), turn(1.0)]), episode("b", [turn(0.0)]), episode("c", [turn(None)]))
    )
    third = 1 / 3
    same(
        group_relative(gamma=0.5)(group),
        [np.array([third, third, 2 * third, 2 * third]), np.array([-third, -third]), np.array([-third, -third])],
    )
    same(group_relative(baseline="leave_one_out")(group)[:1], [np.full(4, 1.0)])
    assert discounted_returns(group, gamma=0.5)[0].tolist() == [0.5, 1.0]
    assert zero_variance(Group("t", group.episodes[1:]))
    assert not zero_variance(group)


def test_turns_in_the_same_state_are_peers_by_hand() -> None:
    """Both first turns answer the root; returns 1 and 0 are centred to +-1/2 on top of the group's +-1/2."""
    group = Group("t", (episode("a", [turn(1.0)]), episode("b", [turn(0.0)])))
    same(turn_relative()(group), [np.array([1.0, 1.0]), np.array([-1.0, -1.0])])
    same(turn_relative(weight=0.0)(group), group_relative()(group), 0)


@settings(max_examples=30)
@given(st.lists(NUMBERS, min_size=2, max_size=6))
def test_centred_values_sum_to_zero_and_equal_ones_are_zero(values: list[float]) -> None:
    array = np.array(values)
    assert abs(centre(array, ["k"] * len(values)).sum()) < 1e-9
    assert not centre(np.full(len(values), values[0]), ["k"] * len(values), scale="std").any()


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="2 values but 1 peer keys"):
        centre(np.zeros(2), ["a"])
    with pytest.raises(ValueError, match="gamma is 2"):
        discounted_returns(Group("t", ()), gamma=2)


@given(schemes)
def test_a_group_without_episodes_has_no_credit(scheme: Scheme) -> None:
    assert scheme(Group("t", ())) == []
