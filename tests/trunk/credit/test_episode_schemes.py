"""Schemes by episode, each on a group small enough to do on paper; and their laws under other options."""

import json
from dataclasses import replace
from math import exp, lgamma, log
from statistics import fmean, pstdev, variance

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.credit import Ledger, SchemeSpec, group_mean, outcome, rewards, spread, succeeded
from envgym.credit.batch import beta_density, beta_normalised
from envgym.credit.keyed import Running, constant, keys, means_of
from envgym.credit.reference import GREEDY, greedy_member, log_mean_exp
from envgym.credit.schemes import baselines, batch, gates, relative, weights
from envgym.credit.schemes.baselines import asymre, opmd, rae, reinforce, remax, rloo
from envgym.credit.schemes.batch import (
    bnpo,
    copo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    trr_plus_plus,
)
from envgym.credit.schemes.gates import p_grpo, prof
from envgym.credit.schemes.weights import duration_aware, nsr, psr, unlikely_group, weighted_reinforce
from envgym.credit.select import agreement, kept
from envgym.credit.weighing import by_duration, disagreement, drop_outliers, rest, sides, unlikely, verdict
from envgym.env import StopReason
from envgym.episode import ForkPoint, Group
from envgym.testing import check_credit
from envgym.testing.credit_groups import made_episode, made_turn

SPECS = [
    spec
    for module in (relative, baselines, batch, weights, gates)
    for spec in vars(module).values()
    if isinstance(spec, SchemeSpec)
]


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def played(*outcomes, task="t", tokens=1, **options):
    """A group of one-turn episodes with these outcomes; None: the world failed."""
    return Group(
        task,
        tuple(
            made_episode(f"e{k}", [made_turn(one, sampled=tokens, **options)], failed=one is None, task=task)
            for k, one in enumerate(outcomes)
        ),
    )


def each(scheme, *groups):
    """The credit of each episode's first token."""
    return [float(one[0]) for one in scheme(list(groups))]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_scheme_keeps_its_laws_and_declares_the_rest(spec: SchemeSpec) -> None:
    check_credit(spec, examples=20, seed=11)
    assert spec.summary
    assert spec.source


# -- baselines -------------------------------------------------------------------------------------------------


def test_reinforce_subtracts_a_number() -> None:
    near(each(reinforce(), played(1.0, 0.0, None)), [1, 0, 0])
    near(each(reinforce(baseline=0.25), played(1.0, 0.0, None)), [0.75, -0.25, 0])


def test_a_running_mean_by_hand() -> None:
    """decay 0.5 from 0: two outcomes of mean 1/2 give 0.25 * 0 + 0.75 / 2; then one of 1: half of each."""
    first = Running(decay=0.5).updated([played(1.0, 0.0, None)])
    assert first.expects(()) == pytest.approx(0.375)
    assert first.updated([played(1.0)]).expects(()) == pytest.approx(0.6875)
    near(each(reinforce(baseline=first), played(1.0, 0.0, None)), [0.625, -0.375, 0])


def test_a_running_mean_without_a_start_begins_with_what_was_seen() -> None:
    """0.75 * 1/2 seen of what is 0.75 of the whole: 1/2. A key that was never met has nothing to compare with."""
    begun = Running(decay=0.5, start=None).updated([played(1.0, 0.0)])
    assert begun.expects(()) == pytest.approx(0.5)
    near(each(reinforce(baseline=Running(by=("task",), start=None)), played(1.0, 0.0)), [0, 0])


def test_rae_has_one_mean_for_each_role() -> None:
    game = made_episode("g", [made_turn(1.0, actor="white", sampled=1), made_turn(-1.0, actor="black", sampled=1)])
    known = Running(by=("actor",), decay=0.5).updated([Group("t", (game,))])
    assert known.means == {("white",): (0.5, 1), ("black",): (-0.5, 1)}
    near(np.concatenate(rae(baseline=known)([Group("t", (game,))])), [0.5, -0.5])
    with pytest.raises(ValueError, match="Running"):
        rae(baseline=Running())


@settings(max_examples=30)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.sampled_from([None, 0.0, 2.0]), st.randoms())
def test_a_running_mean_is_stored_and_does_not_depend_on_order(outcomes, start, random) -> None:
    running = Running(by=("task", "actor"), decay=0.9, start=start).updated([played(*outcomes)])
    shuffled = list(outcomes)
    random.shuffle(shuffled)
    other = Running(by=("task", "actor"), decay=0.9, start=start).updated([played(*shuffled)])
    assert other.expects(("t", "agent")) == pytest.approx(running.expects(("t", "agent")))
    assert Running.of_state(json.loads(json.dumps(running.state()))) == running
    low, high = (
        min([*outcomes, *([] if start is None else [start])]),
        max([*outcomes, *([] if start is None else [start])]),
    )
    assert low - 1e-9 <= running.expects(("t", "agent")) <= high + 1e-9


def test_the_mean_of_all_that_was_sampled_is_expected_of_what_was_kept() -> None:
    """Reinforce-Ada: 8 sampled with 2 successes, 4 kept with 2: the baseline stays 1/4."""
    everything = means_of([played(1.0, 1.0, *[0.0] * 6)])
    near(each(reinforce(baseline=everything), played(1.0, 1.0, 0.0, 0.0)), [0.75, 0.75, -0.25, -0.25])


def test_keys_name_actor_task_group_and_provenance() -> None:
    one = replace(played(1.0).episodes[0], provenance=(("kind", "deduction"),), group="step 3")
    two = replace(played(1.0).episodes[0], id="e1", provenance=(("other", "x"),))
    ledger = Ledger.of([Group("t", (one, two))])
    first, second = keys(ledger, ("actor", "kind", "task", "group", "other", "environment"))
    assert first == ("agent", "deduction", "t", "step 3", "", "")
    assert second == ("agent", "", "t", "t", "x", "")
    with pytest.raises(ValueError, match=r"'kin', which no episode's provenance has; known here: actor, .*kind"):
        keys(ledger, ("kin",))


def test_running_refuses_what_is_no_decay() -> None:
    for decay, said in ((1.0, "less than 1"), (2.0, "decay is 2")):
        with pytest.raises(ValueError, match=said):
            Running(decay=decay)
    with pytest.raises(ValueError, match="value is nan"):
        constant(float("nan"))


def test_rloo_leaves_each_one_out() -> None:
    near(each(rloo(), played(1.0, 0.0, 0.0, None)), [1, -0.5, -0.5, 0])


def test_remax_compares_with_the_greedy_member_which_gets_nothing() -> None:
    group = played(1.0, 0.0, 0.25, None)
    third = replace(group.episodes[2], provenance=(GREEDY,))
    marked = Group("t", (*group.episodes[:2], third, group.episodes[3]))
    near(each(remax(), marked), [0.75, -0.25, 0, 0])
    near(each(remax(greedy=lambda episode: episode.id == "e1"), group), [1, 0, 0.25, 0])
    near(each(remax(greedy=lambda episode: episode.id in ("e0", "e1")), group), [0, 0, -0.25, 0])


def test_remax_without_a_greedy_member_does_as_declared() -> None:
    with pytest.raises(ValueError, match="episode e0 of task t has no greedy member"):
        each(remax(), played(1.0, 0.0))
    near(each(remax(missing="zero"), played(1.0, 0.0)), [0, 0])
    near(each(remax(missing="leave_one_out"), played(1.0, 0.0, 0.0)), [1, -0.5, -0.5])
    broken = {"greedy": lambda episode: episode.id == "e2"}
    near(each(remax(missing="zero", **broken), played(1.0, 0.0, None)), [0, 0, 0])
    with pytest.raises(ValueError, match="no greedy member"):
        each(remax(**broken), played(1.0, 0.0, None))
    with pytest.raises(ValueError, match="missing is 'never'"):
        greedy_member(missing="never")


def test_opmd_subtracts_a_soft_maximum() -> None:
    """tau 1: log((e + 1) / 2) = 0.62011; a small tau compares with the best, a large one with the mean."""
    soft = np.log((np.e + 1) / 2)
    near(each(opmd(), played(1.0, 0.0, None)), [1 - soft, -soft, 0])
    near(each(opmd(tau=1e-3), played(1.0, 0.0)), [1e-3 * np.log(2), -1 + 1e-3 * np.log(2)])
    near(each(opmd(tau=1e6), played(1.0, 0.0)), [0.5, -0.5])
    near(each(opmd(tau=1e-9), played(800.0, -800.0)), [0, -1600])
    with pytest.raises(ValueError, match="tau is 0"):
        log_mean_exp(0)


def test_asymre_shifts_the_mean() -> None:
    near(each(asymre(), played(1.0, 0.0, None)), [0.6, -0.4, 0])
    near(each(asymre(shift=0.2), played(1.0, 0.0)), [0.3, -0.7])


# -- over the batch --------------------------------------------------------------------------------------------


def test_grpo_divides_by_the_deviation_and_dr_grpo_does_not() -> None:
    near(each(relative.dr_grpo(), played(1.0, 0.0, 0.0, 0.0)), [0.75, -0.25, -0.25, -0.25])
    near(each(relative.grpo(), played(1.0, 0.0, 0.0, 0.0)), np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(3 / 16))
    near(each(relative.grpo(), played(0.3, 0.3)), [0, 0])


def test_reinforce_plus_plus_normalises_over_the_batch() -> None:
    """Outcomes 3, 1 and 0, 0: mean 1, deviation sqrt(1.5)."""
    near(
        each(reinforce_plus_plus(), played(3.0, 1.0), played(0.0, 0.0, None)),
        np.array([2, 0, -1, -1, 0]) / 1.5**0.5,
    )


def test_what_counts_once_is_an_episode_or_a_token() -> None:
    """A success of three tokens beside a failure of one: over tokens the mean is 3/4, over episodes 1/2."""
    both = Group(
        "t", (made_episode("a", [made_turn(1.0, sampled=3)]), made_episode("b", [made_turn(0.0, sampled=1)]))
    )
    near(each(reinforce_plus_plus(), both), np.array([0.25, -0.75]) / np.sqrt(3 / 16))
    near(each(reinforce_plus_plus(over="episode"), both), [1, -1])
    with pytest.raises(ValueError, match="over is 'group'"):
        reinforce_plus_plus(over="group")


def test_reinforce_plus_plus_baseline_subtracts_the_group_first() -> None:
    """Differences 1, -1 and 0, 0: mean 0, deviation sqrt(1/2)."""
    found = each(reinforce_plus_plus_baseline(), played(3.0, 1.0), played(5.0, 5.0))
    near(found, np.array([1, -1, 0, 0]) * np.sqrt(2))


def test_trr_plus_plus_compares_one_role_at_one_kind_of_task() -> None:
    def of(kind, group):
        return Group(group.task_id, tuple(replace(one, provenance=(("kind", kind),)) for one in group))

    easy, hard = of("easy", played(3.0, 1.0)), of("hard", played(0.0, 0.5, None))
    near(each(trr_plus_plus(by=("actor", "kind")), easy, hard), [1, -1, -1, 1, 0])
    near(each(trr_plus_plus(by=("kind",)), easy, of("hard", played(7.0))), [1, -1, 0])


def test_bnpo_divides_by_a_fitted_beta() -> None:
    """Group means 1/4 and 3/4: m 1/2, sample variance 1/8: a = b = (0.25 / 0.125 - 1) / 2 = 1/2, alpha = 7/6."""
    density = beta_density(np.array([0.25]), 7 / 6, 7 / 6)[0]
    groups = [played(1.0, 0.0, 0.0, 0.0), played(1.0, 1.0, 1.0, 0.0)]
    wanted = np.array([0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]) / density
    near(each(bnpo(), *groups), wanted)
    near(each(bnpo(high=2.0, low=0.0), played(2.0, 0.0)), [0.5, -0.5])  # one group: its density is 1
    near(each(bnpo(), played(1.0, 0.0), played(0.0, 1.0)), [0.5, -0.5, -0.5, 0.5])  # equal means
    with pytest.raises(ValueError, match=r"outcome 2 of episode e0 of task t is outside \[0, 1\]"):
        each(bnpo(), played(2.0, 0.0))
    with pytest.raises(ValueError, match=r"high is 1\.0; it must be a finite number above 1"):
        beta_normalised(low=1.0, high=1.0)


def test_bnpo_treats_channels_by_themselves() -> None:
    """One group: both densities are 1, and the two group-relative credits are added."""
    one = made_episode("a", [made_turn(1.0, sampled=1, channels={"right": 1.0, "form": 0.0})])
    two = made_episode("b", [made_turn(0.5, sampled=1, channels={"right": 0.0, "form": 0.5})])
    near(each(bnpo(channels=("right", "form")), Group("t", (one, two))), [0.5 - 0.25, -0.5 + 0.25])


def test_a_beta_density_by_hand_and_where_it_is_a_normal_one() -> None:
    near(beta_density(np.array([0.0, 0.3, 1.0]), 1, 1), [1, 1, 1])
    near(beta_density(np.array([0.0, 0.25, 1.0]), 2, 1), [0, 0.5, 2])
    near(beta_density(np.array([0.5]), 2, 2), [1.5])
    at = np.array([0.4999, 0.5, 0.5002])
    np.testing.assert_allclose(beta_density(at, 4.999e6, 4.999e6), beta_density(at, 5.001e6, 5.001e6), rtol=2e-3)


def test_copo_blends_by_the_groups_entropy() -> None:
    """A split group has entropy ln 2, one that agrees 0. Group means 1/2 and 1 have mean 3/4, deviation 1/4."""
    split, sure = (1 / (1 + np.exp(-20 * (h - 0.35))) for h in (np.log(2), 0.0))
    found = each(copo(), played(1.0, 0.0), played(1.0, 1.0, None))
    near(found, [split - (1 - split), -split - (1 - split), 1 - sure, 1 - sure, 0])
    told = each(copo(answer=lambda episode: episode.id, middle=0.1), played(1.0, 1.0), played(0.0, 0.0))
    near(told, [1 / (1 + np.exp(20 * (np.log(2) - 0.1)))] * 2 + [-1 / (1 + np.exp(20 * (np.log(2) - 0.1)))] * 2)
    with pytest.raises(TypeError, match=r"rest: weight is .*here stand weights"):
        rest(outcome())


# -- weights ---------------------------------------------------------------------------------------------------


def test_sides_of_successes_and_failures() -> None:
    group = played(1.0, 0.0, None)
    near(each(weighted_reinforce(), group), [0.1, -1, 0])
    near(each(nsr(), group), [0, -1, 0])
    near(each(psr(), group), [1, 0, 0])
    near(each(psr(above=1.0), group), [0, 0, 0])
    near(each(outcome() >> group_mean() >> sides(positive=0.5, negative=2) >> spread(), group), [0.25, -1, 0])
    with pytest.raises(ValueError, match="both 0"):
        sides(positive=0, negative=0)
    near(each(outcome() >> verdict(above=0.5) >> spread(), played(0.5, 0.6)), [-1, 1])


def likely(*pairs):
    """A group of (outcome, log-probability of its one token)."""
    group = played(*[one for one, _ in pairs])
    made = []
    for episode, (_, logprob) in zip(group, pairs, strict=True):
        turn = replace(episode.turns[0], logprobs=np.array([logprob], np.float32))
        made.append(replace(episode, turns=(turn,)))
    return Group("t", tuple(made))


def test_the_unlikely_success_earns_more() -> None:
    """Ranks from the likeliest: 0, 1, 2 of n = 4; successes keep 3/4, (failure), 7/8 of 1 with beta 1/4, n = 4."""
    group = likely((1.0, -0.1), (0.0, -0.2), (1.0, -0.3), (0.0, -0.4))
    ledger = Ledger.of([group])
    near((outcome() >> unlikely(0.25)).of(ledger), [0.75, 0, 0.875, 0])
    near((outcome() >> unlikely(0.25, among="successes")).of(ledger), [0.75, 0, 0.875, 0])
    near((outcome() >> unlikely(0.5, among="successes")).of(ledger), [0.5, 0, 0.75, 0])
    near(each(unlikely_group(scale="none"), group), np.array([0.75, 0, 0.875, 0]) - 1.625 / 4)
    equal = Ledger.of([likely((1.0, -0.1), (1.0, -0.1), (-1.0, -5.0))])
    near((outcome() >> unlikely(1.0)).of(equal), [0.5 / 3, 0.5 / 3, -1])
    with pytest.raises(ValueError, match="among is 'all'"):
        unlikely(among="all")


def test_a_fork_is_as_likely_as_its_whole_path() -> None:
    """The trunk's turns: -1 and -1; a fork after the first adds -0.5: -1.5 in all, likelier than -2."""

    def turn(logprob):
        return replace(made_turn(0.5, sampled=1), logprobs=np.array([logprob], np.float32))

    trunk = made_episode("a", [turn(-1.0), turn(-1.0)])
    fork = made_episode("b", [turn(-0.5)], parent=ForkPoint("a", 1), start=4)
    near((outcome() >> unlikely(0.5)).of(Ledger.of([Group("t", (trunk, fork))])), [0.75, 0.5])


def test_slow_turns_weigh_more() -> None:
    """Turns of 3 s and 1 s (mean 2): a success' 1/2 is weighed 1.5 and 0.5; nobody timed the failure's turn."""

    def turn(reward, act_s, step_s):
        return replace(made_turn(reward, sampled=1), act_s=act_s, step_s=step_s)

    win, loss = made_episode("a", [turn(0.0, 1, 2), turn(1.0, 0.5, 0.5)]), made_episode("b", [turn(0.0, 0, 0)])
    near(np.concatenate(duration_aware()([Group("t", (win, loss))])), [0.75, 0.25, -0.5])
    near(np.concatenate(duration_aware(most=1.2)([Group("t", (win, loss))])), [0.6, 0.25, -0.5])
    with pytest.raises(TypeError, match="seconds are of whole turns"):
        outcome() >> group_mean() >> spread() >> by_duration()


def test_outliers_are_dropped_not_clipped() -> None:
    """One success in 12: sqrt(11) = 3.3 deviations; the failures' -1/sqrt(11) stay."""
    group = played(1.0, *[0.0] * 11)
    found = each(outcome() >> group_mean(scale="std") >> drop_outliers() >> spread(), group)
    near(found, [0, *[-1 / np.sqrt(11)] * 11])
    near(each(outcome() >> group_mean(scale="std") >> drop_outliers(4) >> spread(), group)[0], np.sqrt(11))


# -- gates -----------------------------------------------------------------------------------------------------


def judged(*pairs):
    """A group of (outcome, process); None as an outcome: the world failed."""
    return Group(
        "t",
        tuple(
            made_episode(f"e{k}", [made_turn(won, sampled=1, channels={"process": score})], failed=won is None)
            for k, (won, score) in enumerate(pairs)
        ),
    )


def test_p_grpo_counts_the_process_of_successes_only() -> None:
    """Earned: 1.5, 1, 0, 0, with mean 0.625; the failure's process of 9 and the failed world's count nothing."""
    group = judged((1.0, 0.5), (1.0, 0.0), (0.0, 9.0), (0.0, 0.0), (None, 7.0))
    near(each(p_grpo(channel="process", scale="none"), group), [0.875, 0.375, -0.625, -0.625, 0])
    near(each(p_grpo(channel="process", scale="none", weight=2.0), group), [1.25, 0.25, -0.75, -0.75, 0])


def test_a_return_of_which_a_part_is_not_known_is_not_known() -> None:
    cut = made_episode("a", [made_turn(1.0, channels={"process": 1.0})], stop=StopReason.TURN_LIMIT)
    ledger = Ledger.of([Group("t", (cut,)), judged((None, 1.0))])
    masked = outcome(truncation="mask") + outcome("process").when(succeeded(truncation="mask"))
    assert np.isnan(masked.of(ledger)).all()
    assert succeeded(above=1.5, truncation=1.0).of(ledger).tolist() == [1, 0]


def test_a_channel_is_summed_over_the_whole_path_of_its_actor() -> None:
    def turn(score, actor="agent"):
        return made_turn(0.0, actor=actor, sampled=1, channels={"process": score})

    trunk = made_episode("a", [turn(1.0), turn(8.0, "other"), turn(2.0)])
    fork = made_episode("b", [turn(5.0)], parent=ForkPoint("a", 2), start=8)
    assert outcome("process").of(Ledger.of([Group("t", (trunk, fork))])).tolist() == [3.0, 8.0, 6.0]


def test_prof_keeps_members_whose_process_agrees_and_balances_them() -> None:
    """Three successes, one failure, half stays: of the successes the two with the lowest process go."""
    group = judged((1.0, 0.9), (1.0, 0.5), (1.0, 0.1), (0.0, 0.3), (None, 0.0))
    near(each(prof(channel="process"), group), [0.5, 0, 0, -0.5, 0])
    near(each(prof(channel="process", keep=1.0), group), [0.25, 0.25, 0.25, -0.75, 0])
    even = judged((1.0, 0.9), (1.0, 0.1), (0.0, 0.9), (0.0, 0.1))
    near(each(prof(channel="process"), even), [0.5, 0, 0, -0.5])
    equal = judged((1.0, 0.5), (1.0, 0.5), (1.0, 0.5), (0.0, 0.5))
    near(each(prof(channel="process", keep=0.5), equal), [0.5, 0, 0, -0.5])


def test_what_selects_is_typed() -> None:
    with pytest.raises(TypeError, match=r"process is .*here stand rewards of turns"):
        agreement(outcome(), outcome())
    with pytest.raises(TypeError, match=r"outcomes is .*here stand returns of episodes"):
        agreement(rewards("process"), rewards())
    with pytest.raises(TypeError, match=r"kept: gate is .*here stand weights of episodes"):
        kept(outcome())
    with pytest.raises(TypeError, match="whole episodes are left out"):
        outcome() >> group_mean() >> kept(disagreement(outcome()))


# -- the papers' formulas, written once more with loops ---------------------------------------------------------


FORMULAS = [
    relative.GRPO, baselines.RLOO, baselines.OPMD, baselines.ASYMRE, batch.REINFORCE_PLUS_PLUS, batch.BNPO,
]  # fmt: skip


def by_loops(name, groups):
    """Credits of groups of outcomes from 0 to 1, by the formula of a scheme's paper and nothing of ours."""
    everything = [one for group in groups for one in group]
    means = [fmean(group) for group in groups]
    m, v = fmean(means), variance(means) if len(means) > 1 else 0.0
    found = []
    for group, p in zip(groups, means, strict=True):
        for k, one in enumerate(group):
            others = [*group[:k], *group[k + 1 :]]
            deviation = pstdev(group)
            if name == "rloo":
                found.append(one - fmean(others) if others else 0.0)
            elif name == "grpo":
                found.append((one - p) / deviation if deviation > 1e-9 else 0.0)
            elif name == "opmd":
                found.append(one - log(fmean(exp(other) for other in group)))
            elif name == "asymre":
                found.append(one - (p - 0.1))
            elif name == "reinforce-plus-plus":
                whole = pstdev(everything)
                found.append((one - fmean(everything)) / whole if whole > 1e-9 else 0.0)
            elif name == "bnpo":
                a, b = ((m * (1 - m) / v - 1) * part if v > 1e-12 else 0.0 for part in (m, 1 - m))
                alpha, beta = max(1.0, 1 + a / 3), max(1.0, 1 + b / 3)
                scale = lgamma(alpha + beta) - lgamma(alpha) - lgamma(beta)
                shape = (alpha - 1) * log(p) + (beta - 1) * log(1 - p) if 0 < p < 1 else 0.0  # else all are equal
                density = exp(scale + shape)
                found.append(min(1 / density, 1e6) * (one - p))
    return found


@settings(max_examples=60)
@given(
    st.sampled_from(FORMULAS),
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_schemes_agree_with_the_formulas_of_their_papers(spec, groups) -> None:
    found = each(spec.make(), *[played(*group) for group in groups])
    np.testing.assert_allclose(found, by_loops(spec.name, groups), rtol=1e-4, atol=1e-5)


# -- laws under other options ----------------------------------------------------------------------------------

OTHERS = {
    "remax raising": lambda t: remax(greedy=lambda e: True, truncation=t),
    "remax zero": lambda t: remax(greedy=lambda e: e.id.endswith("e0"), missing="zero", truncation=t),
    "opmd": lambda t: opmd(tau=0.1, gamma=0.9, truncation=t),
    "running": lambda t: reinforce(baseline=Running(by=("task", "actor"), start=None), truncation=t),
    "over episodes": lambda t: reinforce_plus_plus(over="episode", truncation=t),
    "channels": lambda t: bnpo(channels=("process",), low=-50, high=50, truncation=t),
    "copo of answers": lambda t: copo(
        answer=lambda e: e.turns[0].messages[0].content if e.turns else "", truncation=t
    ),
    "unlikely successes": lambda t: unlikely_group(beta=1.0, among="successes", truncation=t),
    "durations": lambda t: duration_aware(scale="std", most=2.0, truncation=t),
    "p-grpo": lambda t: p_grpo(channel="process", gamma=0.5, scale="none", truncation=t),
    "prof": lambda t: prof(channel="process", keep=0.3, scale="std", truncation=t),
    "filtered": lambda t: outcome(truncation=t) >> group_mean(scale="std") >> drop_outliers(1.0) >> spread(),
}


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from(sorted(OTHERS)), st.sampled_from([0.0, 0.5, "mask"]), st.integers(0, 2**32))
def test_other_options_keep_the_laws_that_bind_all(name, truncation, seed) -> None:
    check_credit(OTHERS[name](truncation), truncation=truncation, examples=2, seed=seed)
