"""Replay: what is kept, what leaves first, what is drawn, and that a restored one goes on alike."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from envgym.buffer.replay import ONLINE, Evict, Replay, ReplayState, group_tokens, success_rate
from envgym.buffer.sampling import combined, failures_first, recent, uniform
from envgym.episode import Group


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def names(groups: tuple[Group, ...]) -> list[str]:
    return [group.episodes[0].id.partition("/")[0] for group in groups]


def test_a_groups_size_is_all_its_tokens_and_its_success_what_was_rewarded(group_of: Callable[..., Group]) -> None:
    assert group_tokens(group_of("a", members=3, tokens=5)) == 15
    assert success_rate(group_of("a", reward=1.0)) == 1.0
    assert success_rate(group_of("a", reward=1.0), above=1.0) == 0.0
    assert success_rate(Group("t", ())) is None


def test_the_oldest_leaves_first(group_of: Callable[..., Group]) -> None:
    replay = Replay(10)
    assert replay.add(group_of("a"), version=0).evicted == ()
    replay.add(group_of("b"), version=0)
    added = replay.add(group_of("c", tokens=6), version=0)
    assert (added.number, names(added.evicted)) == (2, ["a"])
    assert (len(replay), replay.tokens) == (2, 10)
    assert names(replay.add(group_of("d", tokens=7), version=0).evicted) == ["b", "c"]


def test_solved_ones_leave_first_the_older_first_and_the_unknown_last(group_of: Callable[..., Group]) -> None:
    replay = Replay(16, evict=Evict.SOLVED)
    for name, success in (("a", 0.5), ("b", 1.0), ("c", 0.5), ("d", None)):
        replay.add(group_of(name, task=name), version=0, success=success)
    assert names(replay.add(group_of("e", task="e"), version=0, success=0.0).evicted) == ["b"]
    assert replay.rescore("c", 1.0) == 1
    assert names(replay.add(group_of("f", task="f"), version=0, success=0.0).evicted) == ["c"]
    assert replay.rescore("a", 0.0) == 1  # what was to leave next may stay
    assert replay.rescore("gone", 1.0) == 0
    added = replay.add(group_of("g", task="g"), version=0, success=0.75)
    assert names(added.evicted) == ["g"]  # it is what succeeds most
    assert added.number == 6


def test_what_is_larger_than_all_there_is_is_refused_and_counted(group_of: Callable[..., Group]) -> None:
    replay = Replay(10)
    replay.add(group_of("a"), version=0)
    assert replay.add(group_of("b", tokens=11), version=0).number is None
    assert (len(replay), replay.counts) == (1, {"added": 1, "refused": 1})


def test_kept_sources_never_leave_and_must_fit(group_of: Callable[..., Group], rng: np.random.Generator) -> None:
    replay = Replay(12, keep=("expert",))
    replay.add(group_of("online"), version=0)
    replay.add(group_of("x"), version=0, source="expert")
    assert names(replay.add(group_of("y", tokens=6), version=0, source="expert").evicted) == ["online"]
    with pytest.raises(ValueError, match=r"3 more tokens of it do not fit: 10 of 12"):
        replay.add(group_of("z", tokens=3), version=0, source="expert")
    assert replay.add(group_of("big", tokens=3), version=0).number is None
    replay.add(group_of("one", tokens=1), version=0)
    assert replay.sources == {ONLINE: 1, "expert": 2}


def test_draws_tell_source_age_and_importance(group_of: Callable[..., Group], rng: np.random.Generator) -> None:
    replay = Replay(1000)
    replay.add(group_of("a", task="a"), version=1, success=0.0, source="expert")
    replay.add(group_of("b", task="b"), version=3, success=0.5)
    replay.add(group_of("c", task="c"), version=3, success=1.0)
    draw = replay.sample(400, rng, version=5, rule=failures_first())
    by_name = dict(zip(names(draw.groups), zip(draw.sources, draw.ages, draw.weights, strict=True), strict=True))
    assert by_name.keys() == {"a", "b"}  # c never fails
    assert by_name["a"] == ("expert", 4, pytest.approx(1 / (3 * 2 / 3)))
    assert by_name["b"] == (ONLINE, 2, pytest.approx(1 / (3 * 1 / 3)))
    assert names(draw.groups).count("a") == pytest.approx(400 * 2 / 3, abs=40)


def test_a_mixed_batch_has_its_shares_and_importance_is_within_the_source(
    group_of: Callable[..., Group], rng: np.random.Generator
) -> None:
    replay = Replay(10_000)
    for index in range(100):
        replay.add(group_of(f"o{index}"), version=0)
    for index in range(4):
        replay.add(group_of(f"e{index}"), version=0, source="expert")
    draw = replay.sample(64, rng, version=0, shares={"expert": 0.5, ONLINE: 0.5})
    assert draw.sources.count("expert") == 32
    assert draw.weights.tolist() == [1.0] * 64
    assert set(replay.sample(10, rng, version=0, shares={"expert": 1.0}).sources) == {"expert"}
    with pytest.raises(ValueError, match=r"shares name \['teacher'\]; stored sources are \['online', 'expert'\]"):
        replay.sample(1, rng, version=0, shares={"teacher": 1.0})


def test_recent_ones_are_drawn_more(group_of: Callable[..., Group], rng: np.random.Generator) -> None:
    replay = Replay(1000)
    for version in range(3):
        replay.add(group_of(f"v{version}"), version=version)
    drawn = names(replay.sample(700, rng, version=2, rule=recent(half_life=1)).groups)
    assert [drawn.count(f"v{version}") for version in range(3)] == pytest.approx([100, 200, 400], abs=50)


def test_the_warm_up_forgets_takes_only_the_frozen_version_and_holds_the_learner(
    group_of: Callable[..., Group], rng: np.random.Generator
) -> None:
    replay = Replay(8, keep=("expert",))
    replay.add(group_of("old"), version=0, source="expert")
    assert replay.warm
    assert replay.warm_up(3, version=0) == 1
    with pytest.raises(ValueError, match="sampled by version 1; the warm-up takes only what the frozen version 0"):
        replay.add(group_of("x", version=1), version=1)
    for index in range(3):
        assert not replay.warm
        with pytest.raises(RuntimeError, match=f"{index} of 3 groups of version 0 came"):
            replay.sample(1, rng, version=0)
        replay.add(group_of(f"w{index}"), version=0)  # the third evicts the first, and counts
    assert replay.warm
    assert set(names(replay.sample(50, rng, version=0).groups)) == {"w1", "w2"}
    replay.add(group_of("y", version=1), version=1)
    with pytest.raises(ValueError, match="groups is 0"):
        replay.warm_up(0, version=0)


def test_wrong_arguments_are_refused(group_of: Callable[..., Group], rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        Replay(0)
    replay = Replay(10)
    with pytest.raises(ValueError, match="0 groups are stored"):
        replay.sample(1, rng, version=0)
    for success in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="success is"):
            replay.add(group_of("a"), version=0, success=success)
        with pytest.raises(ValueError, match="success is"):
            replay.rescore("t", success)
    replay.add(group_of("a"), version=0)
    with pytest.raises(ValueError, match="size is 0"):
        replay.sample(0, rng, version=0)


@pytest.mark.slow
def test_a_hundred_thousand_groups_are_drawn_from_in_whole_array_operations(
    group_of: Callable[..., Group], rng: np.random.Generator
) -> None:
    replay, one = Replay(10**9, evict=Evict.SOLVED), group_of("a")
    for index in range(100_000):
        replay.add(one, version=index // 1000, success=(index % 11) / 10)
    rule = combined(failures_first(floor=0.01), recent(half_life=20))
    started = time.process_time()
    for _ in range(20):
        replay.sample(64, rng, version=100, rule=rule)
    assert (time.process_time() - started) / 20 < 0.03  # some 3 ms; a Python loop over them takes over 100


# -- laws ------------------------------------------------------------------------------------------------------


def saved(replay: Replay) -> Replay:
    state = replay.state()
    return Replay.restore(ReplayState(json.loads(json.dumps(state.facts)), state.episodes))


class ReplayMachine(RuleBasedStateMachine):
    """Any use of a replay; beside it a twin that is saved and restored before every call, and a plain model."""

    group_of: Any = None

    @initialize(capacity=st.integers(8, 40), evict=st.sampled_from(Evict), keep=st.sampled_from([(), ("expert",)]))
    def begin(self, capacity: int, evict: Evict, keep: tuple[str, ...]) -> None:
        self.replay = Replay(capacity, evict=evict, keep=keep)
        self.twin = saved(self.replay)
        self.model: dict[int, tuple[int, float, bool]] = {}  # number -> tokens, success, kept
        self.made = 0

    def both(self, call: Any) -> Any:
        self.twin = saved(self.twin)
        answers: list[Any] = []
        for replay in (self.replay, self.twin):
            try:
                answers.append(call(replay))
            except (ValueError, RuntimeError) as error:
                answers.append(str(error))
        assert repr(answers[0]) == repr(answers[1])
        assert answers[0] == answers[1] or hasattr(answers[0], "weights")
        return answers[0]

    @rule(
        tokens=st.integers(1, 20),
        success=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
        source=st.sampled_from([ONLINE, "expert", "play"]),
        version=st.integers(0, 2),
        task=st.sampled_from("xyz"),
    )
    def add(self, tokens: int, success: float | None, source: str, version: int, task: str) -> None:
        self.made += 1
        group = self.group_of(f"g{self.made}", task=task, tokens=tokens, version=version)
        added = self.both(lambda replay: replay.add(group, version=version, success=success, source=source))
        if isinstance(added, str) or added.number is None:
            return
        self.model[added.number] = (tokens, success or 0.0, source in self.replay.keep)
        victims = []
        while sum(size for size, _success, _kept in self.model.values()) > self.replay.capacity:
            order = [number for number, (_size, _success, kept) in self.model.items() if not kept]
            solved = self.replay.evict is Evict.SOLVED
            victim = min(order, key=lambda number: (-self.model[number][1] if solved else 0, number))
            victims.append(victim)
            del self.model[victim]
        assert len(victims) == len(added.evicted)
        assert set(self.model) == set(self.replay._groups)

    @rule(task=st.sampled_from("xyz"), success=st.sampled_from([0.0, 0.5, 1.0]))
    def rescore(self, task: str, success: float) -> None:
        self.both(lambda replay: replay.rescore(task, success))
        for number, group in self.replay._groups.items():
            if group.task_id == task:
                self.model[number] = (self.model[number][0], success, self.model[number][2])

    @rule(
        seed=st.integers(0, 99),
        rule_=st.sampled_from([uniform, failures_first(floor=0.1), recent(half_life=2)]),
        shares=st.sampled_from([None, {ONLINE: 1.0}, {ONLINE: 0.5, "expert": 0.5}]),
    )
    def sample(self, seed: int, rule_: Any, shares: Any) -> None:
        drawn = []

        def call(replay: Replay) -> Any:
            rng = np.random.default_rng(seed)
            drawn.append(replay.sample(5, rng, version=3, rule=rule_, shares=shares))
            return drawn[-1].numbers.tolist(), drawn[-1].sources, drawn[-1].weights.tolist()

        self.both(call)

    @rule(groups=st.integers(1, 3))
    def warm_up(self, groups: int) -> None:
        self.both(lambda replay: replay.warm_up(groups, version=0))
        self.model.clear()

    @invariant()
    def the_counters_add_up(self) -> None:
        counts = self.replay.counts
        assert counts["added"] == len(self.replay) + counts["evicted"] + counts["forgotten"]
        assert self.replay.tokens == sum(group_tokens(one) for one in self.replay._groups.values())
        assert self.replay.tokens <= self.replay.capacity
        assert sum(self.replay.sources.values()) == len(self.replay)


@pytest.mark.slow
def test_any_use_of_a_replay_adds_up_and_a_restored_one_goes_on_alike(group_of: Callable[..., Group]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    ReplayMachine.group_of = staticmethod(group_of)
    run_state_machine_as_test(ReplayMachine, settings=settings(max_examples=60, stateful_step_count=40))


def test_a_state_that_does_not_fit_its_episodes_is_refused(group_of: Callable[..., Group]) -> None:
    replay = Replay(10)
    replay.add(group_of("a"), version=0)
    state = replay.state()
    with pytest.raises(ValueError, match="counts 1 episodes, and 0 came with it"):
        Replay.restore(ReplayState(state.facts, ()))
    with pytest.raises(ValueError, match="schema 9"):
        Replay.restore(ReplayState({**state.facts, "schema": 9}, state.episodes))
