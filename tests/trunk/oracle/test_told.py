"""What schemes are told that is no value: greedy members, earlier steps, a grader's verdicts, words, goals."""

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.credit import Ledger, SchemeSpec, spread
from envgym.credit import outcome as outcome_of
from envgym.credit.compare import group_mean
from envgym.credit.reference import GREEDY, is_greedy
from envgym.limits import Limits
from envgym.oracle import WORLDS, Sampler, SolvableEnv, TableAgent, TablePolicy, softened, solve
from envgym.oracle.bench import Setting, bench
from envgym.oracle.candidates import BASIS, candidate_of
from envgym.oracle.measure import places
from envgym.oracle.played import played
from envgym.oracle.told import PROCESS, Grader, goal_of, spans_of
from envgym.oracle.world import Solvable
from envgym.registry import find, names
from envgym.rollout import Origin, Rollout, play

ALL = pytest.mark.parametrize("name", sorted(WORLDS))
TOLD = ("p-grpo", "prof", "remax", "rae", "span-feedback", "timed-subgoals")


@ALL
def test_a_greedy_member_is_the_one_that_is_played_greedily_and_says_so(name: str):
    world = WORLDS[name]()
    sampler = Sampler.of(softened(world, 1.0))
    group = sampler.group([3, 4], greedy=[8, 9])
    assert [is_greedy(episode) for episode in group] == [False, False, True, True]
    assert not any(episode.provenance for episode in sampler.group([3, 4]))

    async def again(seed: int):
        env, agent = SolvableEnv(sampler.task, world), TableAgent(sampler.policy, seed, greedy=True)
        rollout = Rollout(limits=Limits(turns=1000))
        return await play(env, {"agent": agent.fork(seed=seed)}, origin=Origin("e", seed), rollout=rollout)

    for episode in group.episodes[2:]:
        found = asyncio.run(again(episode.seed))
        assert (found.root, found.turns, found.stop) == (episode.root, episode.turns, episode.stop)
        assert episode.provenance == (GREEDY,)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), name=st.sampled_from(sorted(WORLDS)))
def test_greedy_sampling_takes_the_likeliest_token_after_each_token(seed: int, name: str):
    world = WORLDS[name]()
    logits = np.random.default_rng(seed).normal(size=world.possible_SA.shape)
    policy = TablePolicy(world, logits)
    begin, most = policy.places.begin, logits.shape[1]
    depth_P = np.arange(begin[-1]) - np.repeat(begin[:-1], np.diff(begin))
    for state in np.flatnonzero(world.counts_S > 0).tolist():
        cell = state * most + int(policy.likeliest_S[state])
        for place in range(begin[cell], begin[cell + 1]):
            here = np.flatnonzero(
                (policy.places.state_P == state)
                & (depth_P == place - begin[cell])
                & (policy.places.before_PA == policy.places.before_PA[place]).all(axis=1)
            )
            assert policy.logprob_P[place] == pytest.approx(policy.logprob_P[here].max())


def test_the_likeliest_first_word_may_not_begin_the_likeliest_answer():
    world = WORLDS["corridor"]()
    doors = [k for k, text in enumerate(world.says[0]) if text.startswith("open")]
    search = next(k for k, text in enumerate(world.says[0]) if text.startswith("search"))
    logits = np.zeros(world.possible_SA.shape)
    logits[0, search] = np.log(1.5)  # 3/7 against 2/7 and 2/7, but "open" has 4/7
    assert int(TablePolicy(world, logits).likeliest_S[0]) in doors


def test_every_kind_of_data_measures_the_same_turns_and_costs_about_the_same():
    policy = softened(WORLDS["corridor"](), 1.0)
    sampler, truth = Sampler.of(policy), solve(policy)
    setting = Setting(runs=1, groups=2, group=4, budget=8.0, times=2)
    kinds = frozenset({"peers", "forks", "greedy", "earlier", "graded"})
    found = played(sampler, truth, setting, 0, kinds)
    assert set(found) == kinds
    measured = found["peers"].places.true_N[found["peers"].mask_N].tolist()
    for kind, one in found.items():
        assert one.places.true_N[one.mask_N].tolist() == measured
        assert one.tokens == pytest.approx(found["peers"].tokens, rel=0.3), kind
    assert all(one.mask_N.sum() < len(one.mask_N) for kind, one in found.items() if kind != "earlier")
    steps = found["earlier"].steps
    names_of = [[[episode.id for episode in group] for group in groups] for groups in steps]
    for number in range(2):
        own = [part for groups in names_of for part in groups if part[0].startswith(f"r0-g{number}-")]
        assert {len(part) for part in own[:-1]} == {4}
    met = {episode.id for group in found["earlier"].ledger.groups for episode in group}
    before = [episode.id for groups in steps for group in groups for episode in group]
    assert len(set(before)) == len(before)
    assert not met & set(before)


def test_a_greedy_member_is_played_even_where_the_budget_leaves_nothing():
    policy = softened(WORLDS["vault"](), 1.0)
    setting = Setting(runs=1, groups=2, group=3, budget=1.0)
    found = played(Sampler.of(policy), solve(policy), setting, 0, frozenset({"greedy"}))["greedy"]
    assert [sum(map(is_greedy, group)) for group in found.ledger.groups] == [1, 1]


@ALL
def test_the_grader_errs_as_often_as_it_says_and_says_the_same_twice(name: str):
    policy = softened(WORLDS[name](), 1.0)
    truth = solve(policy)
    groups = [Sampler.of(policy).group(range(60))]
    ledger = Ledger.of(groups)
    true_N = places(ledger, policy, truth).true_N
    right = np.where(np.abs(true_N) > 0.01, np.sign(true_N), 0.0)
    for wrong in (0.0, 0.3):
        grader = Grader(wrong=wrong)
        graded = Ledger.of(grader.graded(groups, true_N))
        said = graded.channel_N(PROCESS)
        assert said.tolist() == Ledger.of(grader.graded(groups, true_N)).channel_N(PROCESS).tolist()
        assert set(np.unique(said)) <= {-1.0, 0.0, 1.0}
        assert np.mean(said != right) == pytest.approx(wrong, abs=0.05)
        assert graded.reward_N.tolist() == ledger.reward_N.tolist()
        assert places(graded, policy, truth).true_N.tolist() == true_N.tolist()
    with pytest.raises(ValueError, match=r"wrong is 1\.5"):
        Grader(wrong=1.5)


def test_words_are_about_the_tokens_that_tell_an_answer_from_the_others():
    policy = softened(WORLDS["corridor"](), 1.0)
    truth = solve(policy)
    ledger = Ledger.of([Sampler.of(policy).group(range(6))])
    where = places(ledger, policy, truth)
    spans = spans_of(policy, truth, Grader(wrong=0.0))(ledger)
    assert spans
    rows = {episode.id: row for row, (episode, _) in enumerate(ledger.parts)}
    for span in spans:
        turn = int(ledger.turns[rows[span.episode]]) + span.turn
        assert span.reward == np.sign(where.true_N[turn])
        assert abs(where.true_N[turn]) > 0.01
        tokens = np.arange(ledger.tokens[turn], ledger.tokens[turn + 1])
        outside = np.delete(tokens, np.arange(span.begin, span.end))
        assert where.true_T[outside] == pytest.approx(0.0, abs=1e-12)
        assert ("better" in span.why) == (span.reward > 0)
    assert len(spans) == int((np.abs(where.true_N) > 0.01).sum())


@ALL
def test_a_goal_pays_in_full_on_the_shortest_way_and_in_time(name: str):
    world = WORLDS[name]()
    goal = goal_of(world)
    assert sum(stage.reward for stage in goal.stages) == pytest.approx(1.0)
    assert all(stage.within is not None and stage.within % 4 == 0 for stage in goal.stages)
    paid = []
    for episode in Sampler.of(softened(world, 9.0)).group(range(40)):
        earned, _ = goal.watch([episode.root, *(turn.step for turn in episode.turns)])
        paid.append(earned.sum())
        assert earned.sum() <= 1 + 1e-9
        if not (episode.reward or 0) > 0:
            assert earned.sum() < 1
    assert max(paid) == pytest.approx(1.0)


def test_a_world_without_a_declared_goal_is_refused():
    vault = WORLDS["vault"]()
    other = Solvable("cave", *(getattr(vault, one) for one in vault.__dataclass_fields__ if one != "name"))
    with pytest.raises(ValueError, match="no goal is declared for world 'cave'"):
        goal_of(other)
    with pytest.raises(ValueError, match="no goal is declared"):
        bench(
            softened(other, 1.0), [candidate_of(find("schemes", "timed-subgoals"), {})], Setting(runs=1, groups=1)
        )


@ALL
@pytest.mark.slow
def test_every_registered_scheme_has_a_row(name: str):
    policy = softened(WORLDS[name](), 1.0)
    candidates = [candidate_of(find("schemes", one), {}) for one in names("schemes")]
    assert {*TOLD} <= {one.name for one in candidates}
    data = {one.name: one.data for one in candidates}
    assert [data[one] for one in TOLD] == ["graded", "graded", "greedy", "earlier", "peers", "peers"]
    setting = Setting(runs=1, groups=1, group=4, budget=4.0, times=2)
    found = {one.name: one for one in bench(policy, [*candidates, BASIS[0]], setting)}
    assert set(found) == {*names("schemes"), "zero"}
    for one in found.values():
        assert np.isfinite([one.quality.mse, one.quality.cosine, one.tokens]).all(), one.name
    assert {one.quality.power for one in found.values()} == {found["zero"].quality.power}
    assert all(found[one].quality.mse != found["zero"].quality.mse for one in TOLD)


def test_what_the_bench_does_not_know_is_refused_and_what_is_given_is_not_asked_for():
    def needy(*, oracle: object, channel: str = ""):
        return outcome_of(channel or None) >> group_mean() >> spread()

    spec = SchemeSpec("needy", needy, "a test's", "own", needs={"oracle": None, "channel": None})
    with pytest.raises(ValueError, match="needs oracle, which the bench has none of"):
        candidate_of(spec, {})
    assert candidate_of(spec, {"oracle": 1}).data == "graded"
    assert candidate_of(spec, {"oracle": 1, "channel": "score"}).data == "peers"
    assert candidate_of(spec, {"oracle": 1}, data="forks").data == "forks"


@pytest.mark.parametrize("field", ["greedy", "running"])
def test_what_a_specification_says_of_its_scheme_is_what_the_registered_ones_read(field: str):
    wants: Mapping[str, set[str]] = {"greedy": {"remax"}, "running": {"rae", "reinforce"}}
    said = {one for one in names("schemes") if getattr(find("schemes", one), field)}
    assert said & {*TOLD, "reinforce"} == wants[field]
