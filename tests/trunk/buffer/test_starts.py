"""What start states are worth, which are kept and how long they are played, against numbers worked out by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.buffer.starts import Standing, Status, across, classify, edge, kept_turns, starts_of, turn_bound
from envgym.env import Snapshot, Step
from envgym.episode import Episode, ForkPoint, Group


def standing(*tries_wins: tuple[int, int], clusters: str = "") -> Standing:
    tries, wins = np.array([one[0] for one in tries_wins]), np.array([one[1] for one in tries_wins])
    return Standing(tries, wins, list(clusters or "c" * len(tries_wins)))


@pytest.mark.parametrize(
    ("tries", "wins", "status"),
    [
        (0, 0, Status.UNKNOWN),
        (3, 3, Status.UNKNOWN),
        (4, 4, Status.SOLVED),
        (5, 4, Status.SOLVED),
        (4, 3, Status.PROMISING),
        (10, 2, Status.PROMISING),
        (10, 1, Status.DEAD_END),
        (4, 0, Status.DEAD_END),
    ],
)
def test_a_status_is_what_became_of_the_episodes_that_began_there(tries: int, wins: int, status: Status) -> None:
    assert classify(tries, wins) is status


def test_wrong_counts_and_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2 episodes succeeded"):
        classify(2, 3)
    with pytest.raises(ValueError, match=r"dead is 0\.5 and solved 0\.5"):
        classify(2, 1, dead=0.5, solved=0.5)
    assert classify(0, 0, least=0) is Status.UNKNOWN


def test_the_edge_of_competence_weighs_most() -> None:
    # p = 1/2, 1/2, 1/4, 1/10, 9/10
    found = edge(standing((0, 0), (2, 1), (2, 0), (8, 0), (8, 8)))
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.75, 0.36, 0.36])


@given(st.lists(st.integers(0, 50).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1))
def test_no_state_is_given_up_for_good(pairs: list[tuple[int, int]]) -> None:
    found = edge(standing(*pairs))
    assert ((found > 0) & (found <= 1)).all()


def test_across_clusters_each_is_drawn_equally_often() -> None:
    found = across(edge)(standing((0, 0), (2, 1), (2, 0), (0, 0), clusters="aaab"))
    assert found.tolist() == pytest.approx([1 / 2.75, 1 / 2.75, 0.75 / 2.75, 1.0])
    nothing = across(lambda one: np.array([0.0, 0.0, 2.0]))(standing((0, 0), (0, 0), (0, 0), clusters="aab"))
    assert nothing.tolist() == [0.0, 0.0, 1.0]
    assert across(edge)(standing()).tolist() == []


@pytest.mark.parametrize(
    ("turns", "keep", "expected"),
    [
        (0, 3, ()),
        (3, 0, ()),
        (3, 5, (0, 1, 2)),
        (10, 1, (9,)),
        (10, 2, (4, 9)),
        (10, 4, (2, 4, 7, 9)),
    ],
)
def test_kept_states_are_evenly_spaced_from_the_end(turns: int, keep: int, expected: tuple[int, ...]) -> None:
    assert kept_turns(turns, keep) == expected


@given(st.integers(0, 200), st.integers(0, 200))
def test_as_many_states_are_kept_as_asked_for_and_the_last_among_them(turns: int, keep: int) -> None:
    kept = kept_turns(turns, keep)
    assert len(set(kept)) == len(kept) == min(turns, keep)
    assert list(kept) == sorted(kept)
    assert not kept or (kept[-1] == turns - 1 and kept[0] >= 0)


def test_episodes_from_a_state_are_cut_in_proportion_to_what_was_left() -> None:
    assert [turn_bound(left) for left in (0, 1, 3, 40)] == [50, 2, 6, 50]
    assert turn_bound(3, slack=1.5, least=1, most=4) == 4
    assert turn_bound(3, slack=1.1) == 4
    for wrong in ({"left": -1}, {"left": 1, "slack": 0}):
        with pytest.raises(ValueError, match="turn_bound: left is"):
            turn_bound(**wrong)
    with pytest.raises(ValueError, match="turns is -1"):
        kept_turns(-1, 2)


def with_snapshots(group_of: Callable[..., Group], at: set[int], count: int = 4) -> Episode:
    one = group_of("e").episodes[0]
    turns = tuple(
        replace(
            one.turns[0],
            position=4 * index,
            step=Step(state_key=f"k{index}"),
            snapshot=Snapshot(restore="exact", task_id="t", seed=index) if index in at else None,
        )
        for index in range(count)
    )
    return replace(one, turns=turns)


def test_the_starts_of_an_episode_are_the_states_before_its_turns(group_of: Callable[..., Group]) -> None:
    starts, rest = starts_of(with_snapshots(group_of, {0, 2, 3}), origin="teacher", keep=2, size=7)
    assert [(one.key, one.turn, one.left, one.cluster) for one in starts] == [
        ("e/0@2", 2, 2, "k1"),
        ("e/0@3", 3, 1, "k2"),
    ]
    assert [one.seed for one in rest] == [0]
    first, none = starts_of(with_snapshots(group_of, {0}), keep=2)
    assert (first[0].cluster, none) == ("t", ())  # nothing is known of the state before the first turn
    assert {(one.origin, one.size, one.task_id) for one in starts} == {("teacher", 7, "t")}


def test_the_starts_of_a_fork_count_its_parents_turns(group_of: Callable[..., Group]) -> None:
    fork = replace(with_snapshots(group_of, {1}), parent=ForkPoint("p", 10))
    starts, rest = starts_of(fork)
    assert [(one.key, one.turn, one.left) for one in starts] == [("e/0@11", 11, 3)]
    assert rest == ()
