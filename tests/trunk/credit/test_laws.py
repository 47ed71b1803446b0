"""Every registered scheme keeps the laws that bind all and those it claims; so do random compositions of parts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.credit import (
    Level,
    Meaning,
    SchemeSpec,
    Term,
    advantage,
    against,
    agreement,
    by_duration,
    constant,
    decay,
    drop_outliers,
    estimated,
    fork_siblings,
    forked,
    greedy_member,
    group_in_batch,
    group_mean,
    kept,
    leave_one_out,
    log_mean_exp,
    outcome,
    ranked,
    returns,
    rewards,
    role_mean,
    shifted,
    sides,
    spread,
    state_peers,
    state_value,
    succeeded,
    token_advantage,
    token_scores,
    unlikely,
    verdict,
    whiten,
)
from envgym.credit.schemes.counterexamples import nearly_equal, unequal_lengths
from envgym.credit.schemes.relative import DR_GRPO, dr_grpo, grpo, turn_relative
from envgym.credit.schemes.stand_ins import state_values, token_values
from envgym.episode import Group
from envgym.registry import find, names
from envgym.testing import check_credit
from envgym.testing import credit_laws as laws
from envgym.testing.check_credit import try_laws
from envgym.testing.credit_groups import Make, made_episode, made_turn, random_groups
from envgym.testing.strategies import Drawn

SCALES = ["none", "std", ranked]
CRITIC = estimated(state_values, Level.STATE, Meaning.VALUE, name="critic")
TOKENS = estimated(token_values, Level.TOKEN, Meaning.VALUE, name="token critic")
FIRST = greedy_member(greedy=lambda episode: episode.id.endswith("e0"), missing="leave_one_out")
SURPRISE = estimated(lambda ledger: -ledger.logprob_T, Level.TOKEN, Meaning.WEIGHT, name="surprise")
Draw = Callable[[st.SearchStrategy[Any]], Any]


@pytest.mark.parametrize("name", names("schemes"))
def test_a_registered_scheme_declares_what_it_keeps_and_shows_what_it_breaks(name: str) -> None:
    spec = find("schemes", name)
    assert isinstance(spec, SchemeSpec)
    assert spec.name == name
    assert spec.source
    check_credit(spec, examples=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", names("schemes"))
def test_a_registered_scheme_keeps_its_laws(name: str) -> None:
    spec = find("schemes", name)

    @settings(max_examples=5, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(st.data())
    def hold(data: st.DataObject) -> None:
        try_laws(spec, Drawn(data.draw))

    hold()


@st.composite
def episode_credit(draw: Draw) -> Term:
    truncation = draw(st.sampled_from([0.0, 0.5, "mask"]))
    scale = draw(st.sampled_from(SCALES))
    compared = [group_mean(scale=scale), leave_one_out(scale=scale), role_mean(by=("task", "actor"), scale=scale)]
    compared += [log_mean_exp(0.5), group_in_batch(), against(constant(0.5)), FIRST, verdict()]
    earned = draw(st.sampled_from([outcome(truncation=truncation), outcome("process", truncation=truncation)]))
    if draw(st.booleans()):
        earned = earned >> draw(st.sampled_from([unlikely(), kept(agreement(rewards("process"), earned))]))
    made = earned >> draw(st.sampled_from(compared))
    return draw(
        st.sampled_from([made, made >> sides(positive=0.5), made >> drop_outliers(1.0), made >> shifted(0.1)])
    )


@st.composite
def turn_credit(draw: Draw) -> Term:
    gamma, lam = draw(st.sampled_from([1.0, 0.9, 0.0])), draw(st.sampled_from([0.0, 0.5, 1.0]))
    truncation = draw(st.sampled_from([0.0, "mask"]))
    baseline = draw(st.sampled_from(["mean", "leave_one_out"]))
    values = draw(st.sampled_from([CRITIC, forked(), forked(own=True), state_value(), state_value(least=3)]))
    made = [
        advantage(rewards(), values, gamma=gamma, lam=lam),
        advantage(rewards(), values, gamma=gamma, lam=lam, truncation=truncation),
        returns(gamma=gamma, truncation=truncation)
        >> state_peers(baseline=baseline, scale=draw(st.sampled_from(SCALES))),
        returns(gamma=gamma) >> fork_siblings(baseline=baseline),
        returns(gamma=gamma) >> against(CRITIC),
        draw(episode_credit()) >> decay(gamma),
        draw(episode_credit()) >> by_duration(),
    ]
    return draw(st.sampled_from(made))


@st.composite
def compositions(draw: Draw) -> Term:
    """Any scheme that the parts allow, up to three terms mixed."""
    mixed = draw(st.sampled_from([0.5, -1.0, 2])) * draw(turn_credit())
    for _ in range(draw(st.integers(0, 2))):
        more = draw(turn_credit())
        mixed = mixed + (more.when(succeeded()) if draw(st.booleans()) else more)
    down = draw(st.sampled_from([spread(), token_scores(SURPRISE)]))
    tokens = mixed >> down
    if draw(st.booleans()):
        tokens = tokens + token_advantage(TOKENS, earned=rewards())
    return tokens >> whiten() if draw(st.booleans()) else tokens


@settings(max_examples=60)
@given(compositions(), st.integers(0, 2**32))
def test_random_compositions_keep_the_laws_that_bind_all(scheme: Term, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = random_groups(rng)
    laws.law_g(scheme, groups)
    laws.law_a(scheme, groups)
    laws.law_b(scheme, groups)
    laws.law_f(scheme, groups, rng)
    laws.law_i(scheme, groups)


@settings(max_examples=30)
@given(
    st.sampled_from([1.0, 0.9]),
    st.sampled_from(["mean", "leave_one_out"]),
    st.sampled_from(SCALES),
    st.integers(0, 2**32),
)
def test_options_of_relative_schemes_keep_their_laws(gamma: float, baseline: Any, scale: Any, seed: int) -> None:
    claims = "cd" if scale == "none" else "d"
    for made in (grpo(gamma=gamma, scale=scale), turn_relative(gamma=gamma, baseline=baseline, scale=scale)):
        check_credit(made, claims=claims, examples=1, seed=seed)


@settings(max_examples=40)
@given(st.sampled_from([CRITIC, state_value(least=1)]), st.integers(0, 2**32))
def test_law_e_differences_of_values_telescope(values: Term, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, Make(tokens=1, turns=1, forks=False, actors=False, states=False))
    laws.law_e(advantage(rewards(), values, lam=0.0) >> spread(), groups)


def test_the_laws_can_be_broken_each_by_a_scheme_that_deserves_it() -> None:
    """A kit that nothing fails checks nothing."""
    rng = np.random.default_rng(3)

    def try_often(law, make):
        for _ in range(50):
            law(random_groups(rng, make))

    def rows(groups):  # counts context windows
        return [
            np.full(one.sampled_tokens, 1.0 + len({t.segment for t in one.turns}), np.float32)
            for g in groups
            for one in g
        ]

    def prompts(groups):
        return [
            np.full(one.sampled_tokens, sum(len(t.prompt_ids) for t in one.turns), np.float32)
            for g in groups
            for one in g
        ]

    def first(groups):
        return [np.full(one.sampled_tokens, float(k), np.float32) for g in groups for k, one in enumerate(g)]

    def failure(groups):
        return [np.ones(one.sampled_tokens, np.float32) for g in groups for one in g]

    def wide(groups):
        return [np.zeros(one.sampled_tokens + 1, np.float32) for g in groups for one in g]

    def endless(groups):
        return [np.full(one.sampled_tokens, np.nan, np.float32) for g in groups for one in g]

    for law, scheme in (("a", rows), ("b", prompts), ("f", first), ("i", failure), ("g", wide), ("g", endless)):
        extra = (rng,) if law == "f" else ()
        with pytest.raises(laws.LawBroken, match=f"law [{law}g]"):
            try_often(lambda groups: getattr(laws, f"law_{law}")(scheme, groups, *extra), Make(members=6))  # noqa: B023
    with pytest.raises(laws.LawBroken, match="law c"):
        laws.law_c(outcome() >> group_mean(scale="std") >> spread(), nearly_equal())
    with pytest.raises(laws.LawBroken, match="law e"):
        laws.law_e(dr_grpo(), unequal_lengths())


def test_law_h_can_be_broken_in_each_of_its_forms() -> None:
    rng = np.random.default_rng(3)

    def try_often(law, make):
        for _ in range(50):
            law(random_groups(rng, make))

    for wrong, declared in (
        (dr_grpo(truncation=0.0), "mask"),
        (dr_grpo(), 0.5),
        (dr_grpo(truncation=-7.0), (-1, 1)),
    ):
        with pytest.raises(laws.LawBroken, match="law h"):
            try_often(lambda groups: laws.law_h(wrong, groups, declared), Make(forks=False, actors=False, tokens=1))  # noqa: B023


def test_a_scheme_that_punishes_being_cut_off_is_found_whatever_it_is_made_of() -> None:
    def punished(groups):
        return [
            np.full(e.sampled_tokens, -7.0 * bool(e.stop and e.stop.truncated and not e.failure), np.float32)
            for g in groups
            for e in g
        ]

    for declared in ("mask", 0.0, (-1.0, 1.0)):
        with pytest.raises(laws.LawBroken, match="law h"):
            check_credit(punished, truncation=declared)
    penalised = SchemeSpec("penalised", lambda: punished, "", "own", claims="cde")
    with pytest.raises(laws.LawBroken, match="law h"):
        check_credit(penalised)


def test_a_scheme_that_compares_the_lengths_of_prompts_breaks_law_b() -> None:
    def prompts(groups):
        found = []
        for group in groups:
            means = [np.mean([len(t.prompt_ids) for t in e.turns]) if e.turns else 0.0 for e in group]
            alive = [m for m, e in zip(means, group, strict=True) if not e.failure] or [0.0]
            found += [np.full(e.sampled_tokens, 0.0 if e.failure else m - np.mean(alive), np.float32)
                      for m, e in zip(means, group, strict=True)]  # fmt: skip
        return found

    with pytest.raises(laws.LawBroken, match="law b"):
        check_credit(prompts, claims="d", examples=60)


def test_law_a_moves_the_bounds_of_contexts() -> None:
    groups = [Group("t", (made_episode("a", [made_turn(1.0), made_turn(0.0), made_turn(2.0)]),))]
    cut = laws._each_turn(groups, lambda number, turn: replace(turn, segment=turn.segment + number % 2))
    assert [turn.segment for turn in cut[0].episodes[0].turns] == [0, 1, 1]


def test_a_spec_that_says_nothing_of_a_law_or_shows_no_counterexample_is_refused() -> None:
    silent = SchemeSpec("silent", dr_grpo, "", "own", claims="c")
    with pytest.raises(ValueError, match="neither claims law 'd' nor"):
        check_credit(silent, examples=1)
    weak = SchemeSpec(
        "weak", dr_grpo, "", "own", claims="c", counterexamples={"d": unequal_lengths, "e": unequal_lengths}
    )
    with pytest.raises(laws.LawBroken, match="holds for the counterexample of scheme 'weak'"):
        check_credit(weak, examples=1)
    with pytest.raises(ValueError, match="claims law 'x'"):
        SchemeSpec("x", dr_grpo, "", "own", claims="x")
    with pytest.raises(ValueError, match="counterexample to law 'c'"):
        SchemeSpec("x", dr_grpo, "", "own", claims="c", counterexamples={"c": unequal_lengths})
    check_credit(DR_GRPO, examples=2, options={"gamma": 0.5})


@pytest.mark.parametrize("name", names("schemes"))
def test_a_scheme_that_comes_along_has_a_row_in_the_document(name: str) -> None:
    document = (Path(__file__).resolve().parents[3] / "docs/credit.md").read_text()
    assert any(f"`{name}`" in line for line in document.splitlines() if line.startswith("| `")), name
