"""Groups in training: a greedy member that teaches nothing, rounds until enough is known, clean successes."""

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from envgym_agents.learn.collect import (  # noqa: E402
    Collected,
    collect,
    credited,
    metrics,
    running_of,
    scheme_of,
    teaches,
)
from envgym_agents.learn.config import Critic, Members, Reinforce, load  # noqa: E402
from envgym_agents.learn.diagnose import Diagnosed  # noqa: E402
from envgym_agents.learn.members import Players, adaptive_of, chosen, sampled_only, slot  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.values.valuation import try_scheme  # noqa: E402

from envgym.credit import Ledger, Running, means_of, outcome  # noqa: E402
from envgym.credit.reference import GREEDY, is_greedy  # noqa: E402
from envgym.episode import Group  # noqa: E402
from envgym.errors import Boundary, Failure  # noqa: E402
from envgym.limits import Limits  # noqa: E402
from envgym.messages import Message, ToolCall  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.store import StoreReader, StoreWriter  # noqa: E402
from envgym.testing.credit_groups import random_groups  # noqa: E402

QUICK = Reinforce(steps=3, tasks=3, group=4, lr=1e-3, checkpoint_every=2, oversample=1, teaches="all")


class Learned(list):
    """Metrics and episodes of every step."""


@pytest.fixture
def loop(vault, model_factory, word_agents, word_policy, tmp_path):
    def make(
        config: Reinforce, folder: str = "run", *, die_at: int | None = None, memory=None
    ) -> tuple[Loop, Learned]:
        model = model_factory(seed=3)
        policy = word_policy(model)
        history = Learned()

        async def record(progress, found, values):
            history.append((progress, found, values))
            if progress.step == die_at:
                raise KeyboardInterrupt

        arena = Arena(env="test-vault", rollout=Rollout(limits=Limits(turns=5)), concurrency=16, memory=memory)
        made = Loop(
            Parts(
                learner=Learner(Scorer(model), adamw(model, lr=config.lr, weight_decay=0.0)),
                policy=policy,
                make_agent=word_agents(policy),
                arena=arena.by("student"),
                order=TaskOrder(vault.tasks().split("train"), 0),
                config=config,
                seed=0,
                folder=tmp_path / folder,
                on_step=record,
            ),
            make_greedy=word_agents(word_policy(model, temperature=0.0)),
        )
        return made, history

    return make


def weights(loop: Loop):
    return {name: value.clone() for name, value in loop.parts.learner.scorer.model.state_dict().items()}


def identical(a, b) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


REMAX = QUICK.model_copy(update={"credit": "remax"})
RAE = QUICK.model_copy(update={"credit": "rae", "credit_options": {"baseline": {"by": ["actor"], "decay": 0.5}}})


def marked(rng: np.random.Generator) -> list[Group]:
    """Random groups whose first members are greedy ones, where no member is a fork of them."""
    found = []
    for group in random_groups(rng):
        parents = {episode.parent.episode for episode in group if episode.parent is not None}
        free = [episode.id for episode in group if episode.parent is None and episode.id not in parents]
        one = free[0] if free else None
        members = (replace(e, provenance=(*e.provenance, GREEDY)) if e.id == one else e for e in group)
        found.append(Group(group.task_id, tuple(members)))
    return found


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), truncation=st.sampled_from([0.0, 0.5, "mask"]))
def test_a_greedy_member_gets_no_credit_and_no_row_whatever_the_others_did(seed, truncation):
    groups = marked(np.random.default_rng(seed))
    options = {"truncation": truncation, "missing": "leave_one_out"}
    config = REMAX.model_copy(update={"credit_options": options})
    scheme = scheme_of(config)
    credits = iter(scheme(groups))
    for group in groups:
        for episode in group:
            credit = next(credits)
            assert not is_greedy(episode) or not credit.any()
    greedy = {(one.task_id, one.id) for group in groups for one in group if is_greedy(one)}
    rows = {(row.key, row.episode) for part in credited(groups, scheme, config) for row in part}
    assert not greedy & rows
    diagnosed = Diagnosed(scheme, config)
    assert len(diagnosed(groups)) == sum(map(len, groups))


def test_a_group_of_remax_has_one_greedy_member_that_the_store_knows_and_the_metrics_leave_out(loop, tmp_path):
    with StoreWriter(tmp_path / "store") as store:
        made, history = loop(REMAX, memory=store)
        asyncio.run(made.run())
    assert len(history) == 3
    played = {}
    for step, (progress, found, values) in enumerate(history):
        assert values["episodes"] == 12
        assert len(found.episodes) == 15
        assert values["greedy_reward"] in (0, *(k / 3 for k in range(1, 4)))
        assert progress.tokens == sum(
            one.sampled_tokens for _, seen, _ in history[: step + 1] for one in seen.episodes
        )
        for number, group in enumerate(found.whole):
            likeliest = [episode for episode in group if is_greedy(episode)]
            assert [episode.id for episode in likeliest] == [f"{slot(step, number)}-greedy"]
            assert ("agent", "student") in likeliest[0].provenance
            played[likeliest[0].id] = likeliest[0]
    with StoreReader(tmp_path / "store") as reader:
        stored = {episode.id for episode in reader if is_greedy(episode)}
    assert stored == set(played)


def test_other_schemes_play_no_greedy_member_and_remax_refuses_to_run_without_one(loop):
    made, history = loop(QUICK.model_copy(update={"steps": 1}))
    asyncio.run(made.run())
    assert not any(map(is_greedy, history[0][1].episodes))
    made, _ = loop(REMAX)
    made.make_greedy = None
    with pytest.raises(ValueError, match="compares with greedy members; give make_greedy"):
        asyncio.run(made.run())


def test_a_group_whose_greedy_member_failed_teaches_nothing_unless_the_scheme_is_told_what_to_do(episode, turn):
    def group(*greedy):
        members = [episode(f"e{k}", [turn([1], [2], position=0, reward=float(k))]) for k in range(3)]
        return Group("t", (*members, *greedy))

    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="Gone", message="it is gone", where="step", turn=0)
    likeliest = episode("g", [turn([1], [2], position=0, reward=1.0)], provenance=(GREEDY,))
    failed = replace(likeliest, failure=failure, stop=None)
    for teaching in ("all", "outcomes", "credit"):
        config = REMAX.model_copy(update={"teaches": teaching})
        assert teaches(group(likeliest), config)
        assert not teaches(group(failed), config)
        assert not teaches(group(), config)
        told = config.model_copy(update={"credit_options": {"missing": "leave_one_out"}})
        assert teaches(group(failed), told)


@pytest.mark.slow
@pytest.mark.parametrize("config", [REMAX, RAE], ids=["remax", "rae"])
def test_r_a_run_that_is_killed_and_resumed_gives_the_same_weights_and_the_same_means(loop, config):
    config = config.model_copy(update={"steps": 4})
    whole, history = loop(config, "whole")
    asyncio.run(whole.run())
    killed, _ = loop(config, "killed", die_at=3)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(killed.run())
    resumed, again = loop(config, "killed")
    asyncio.run(resumed.run())
    assert identical(weights(whole), weights(resumed))
    assert [progress.running for progress, _, _ in again] == [progress.running for progress, _, _ in history[2:]]


def test_the_running_mean_of_a_run_is_that_of_all_it_sampled_step_by_step(loop):
    made, history = loop(RAE)
    asyncio.run(made.run())
    expected = Running(by=("actor",), decay=0.5)
    for progress, found, _ in history:
        credit = scheme_of(RAE, running=expected)(found.groups)
        mean = expected.expects(("agent",))
        outcomes = outcome().of(Ledger.of(found.groups))  # NaN where a bound cut it off: it is credited nothing
        wanted = np.nan_to_num(outcomes - mean).tolist()
        assert [float(one[0]) for one in credit] == pytest.approx(wanted, abs=1e-6)
        expected = expected.updated(found.whole)
        assert Running.of_state(progress.running) == expected
    assert expected.means


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"baseline": {"by": "actor"}}, "by .a list of names."),
        ({"baseline": {"by": ["actor"], "rate": 1}}, "a running mean is a table of by"),
        ({"baseline": {"by": ["task"]}}, r"must be Running\(by=\('actor',\)\) or more"),
        ({"baseline": {"decay": 2.0}}, "decay"),
        ({"baseline": 0.5}, "must be Running"),
    ],
)
def test_a_wrong_running_mean_is_refused_before_a_run(options, said):
    with pytest.raises(ValueError, match=said):
        try_scheme(Reinforce(credit="rae", credit_options=options))


def test_running_means_begin_as_configured_and_reinforce_may_have_one_or_a_number():
    assert running_of(Reinforce(credit="rae")) == Running(by=("actor",))
    table = {"baseline": {"by": ["task", "actor"], "decay": 0.8, "start": 0.5}}
    assert running_of(Reinforce(credit="reinforce", credit_options=table)) == Running(("task", "actor"), 0.8, 0.5)
    for options in ({}, {"baseline": 0.25}, {"baseline": "sampled"}):
        config = Reinforce(credit="reinforce", credit_options=options)
        assert running_of(config) is None
        try_scheme(config)
    assert running_of(Reinforce()) is None
    try_scheme(Reinforce(credit="rae"))
    try_scheme(Reinforce(credit="remax"))
    try_scheme(Reinforce(credit="p-grpo", credit_options={"channel": "success"}))
    sampled = Reinforce(credit="reinforce", credit_options={"baseline": "sampled"}, teaches="credit")
    with pytest.raises(ValueError, match="would depend on groups that were not played yet"):
        try_scheme(sampled)


ADAPTIVE = QUICK.model_copy(update={"members": Members(kind="adaptive", per_round=3, rounds=3)})
ROC = QUICK.model_copy(update={"members": Members(kind="resample-on-correct", played=7)})


def test_rounds_go_on_with_the_tasks_of_which_not_enough_is_known_and_groups_are_balanced(loop):
    made, history = loop(ADAPTIVE)
    asyncio.run(made.run())
    adaptive = adaptive_of(ADAPTIVE)
    seen = Counter()
    for step, (_, found, values) in enumerate(history):
        assert [group.task_id for group in found.whole] == [
            task.id for task in TaskOrder(made.parts.order.tasks, 0).draw(9)[3 * step : 3 * step + 3]
        ]
        for number, whole in enumerate(found.whole):
            seen[len(whole)] += 1
            ids = [f"{slot(step, number)}-{member:03d}" for member in range(len(whole))]
            assert [episode.id for episode in whole] == ids
            for rounds in range(1, len(whole) // 3):
                assert not adaptive.enough(Group(whole.task_id, whole.episodes[: 3 * rounds]))
            assert len(whole) == 9 or adaptive.enough(whole)
        for group in (*found.groups, *found.others):
            assert len(group) <= 4
            (whole,) = (one for one in found.whole if one.episodes[0].group == group.episodes[0].group)
            assert {episode.id for episode in group} <= {episode.id for episode in whole}
            won = sum((episode.reward or 0) > 0 for episode in group)
            there = sum((episode.reward or 0) > 0 for episode in whole)
            assert won == min(there, max(2, 4 - (len(whole) - there)))
        assert values["episodes"] == sum(map(len, found.whole))
        assert values["sampled_tokens"] * values["episodes"] == pytest.approx(
            sum(one.sampled_tokens for one in found.episodes)
        )
    assert len(seen) > 1, seen


def test_of_what_was_played_in_excess_the_cleanest_successes_stay_and_the_share_of_successes_does(episode, turn):
    called = Message(role="assistant", content="", tool_calls=(ToolCall(name="look"),))

    def played(name: str, reward: float, wrong: int):
        turns = [replace(turn([1], [2], position=2 * k), messages=(called,)) for k in range(4)]
        turns[-1] = replace(turns[-1], step=replace(turns[-1].step, reward=reward))
        for k in range(wrong):
            turns[k] = replace(turns[k], step=replace(turns[k].step, channels={"failed": 1.0}))
        return episode(name, turns)

    won = [played(f"w{k}", 1.0, k) for k in range(4)]
    lost = [played(f"l{k}", 0.0, k) for k in range(4)]
    likeliest = replace(played("z", 1.0, 3), provenance=(GREEDY,))
    whole = Group("t", (*won, *lost, likeliest))
    members = Members(kind="resample-on-correct", played=8, errors="failed", failures="penalty")
    config = QUICK.model_copy(update={"members": members})
    kept = chosen(whole, config, np.random.default_rng(0))
    assert [one.id for one in kept] == ["w0", "w1", "l0", "l1", "z"]
    assert chosen(whole, QUICK, np.random.default_rng(0)) is whole
    assert [one.id for one in sampled_only(whole)] == [one.id for one in (*won, *lost)]
    silent = episode(
        "s", [replace(turn([1], [2], position=0, reward=1.0), messages=(Message(role="assistant", content="7"),))]
    )
    kept = chosen(Group("t", (*won, silent, *lost, played("l4", 0.0, 0))), config, np.random.default_rng(0))
    assert [one.id for one in kept if one.reward == 1.0] == ["w0", "w1"]  # who called nothing has 0.5, as w2 has
    by_form = config.model_copy(update={"members": members.model_copy(update={"errors": ""})})
    drawn = {tuple(one.id for one in chosen(whole, by_form, np.random.default_rng(k))) for k in range(20)}
    assert len(drawn) > 1  # without the channel all are equally clean


def test_groups_are_cut_down_to_what_is_learned_from_and_the_rest_is_counted(loop):
    made, history = loop(ROC)
    asyncio.run(made.run())
    for _, found, values in history:
        assert {len(group) for group in found.whole} == {7}
        assert {len(group) for group in (*found.groups, *found.others)} == {4}
        assert values["episodes"] == len(found.episodes) == 21


@pytest.mark.slow
@pytest.mark.parametrize("config", [ADAPTIVE, ROC], ids=["adaptive", "resample-on-correct"])
def test_r_chosen_members_are_a_function_of_the_seed_also_when_a_run_is_resumed(loop, config):
    config = config.model_copy(update={"steps": 4})
    whole, _ = loop(config, "whole")
    asyncio.run(whole.run())
    killed, _ = loop(config, "killed", die_at=3)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(killed.run())
    resumed, _ = loop(config, "killed")
    asyncio.run(resumed.run())
    assert identical(weights(whole), weights(resumed))


def test_the_baseline_of_all_that_was_sampled_is_what_chosen_members_are_compared_with(loop):
    config = ADAPTIVE.model_copy(
        update={"credit": "reinforce", "credit_options": {"baseline": "sampled"}, "steps": 1}
    )
    made, history = loop(config)
    asyncio.run(made.run())
    ((_, found, values),) = history
    assert values["credit_effective"] > 0
    scheme = scheme_of(config, running=means_of(found.sampled))
    credits = iter(scheme(found.groups))
    for group in found.groups:
        (whole,) = (one for one in found.whole if one.episodes[0].group == group.episodes[0].group)
        mean = np.mean([episode.reward or 0.0 for episode in whole])
        for episode in group:
            assert next(credits)[0] == pytest.approx((episode.reward or 0.0) - mean, abs=1e-6)


def test_a_greedy_member_is_played_once_and_never_cut_away(loop):
    for config in (ADAPTIVE, ROC):
        made, history = loop(
            config.model_copy(update={"credit": "remax", "steps": 1}), f"run-{config.members.kind}"
        )
        asyncio.run(made.run())
        ((_, found, _),) = history
        for group in (*found.whole, *found.groups, *found.others):
            assert sum(map(is_greedy, group)) == 1
        assert all(len(sampled_only(group)) <= 4 for group in found.groups)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["members.kind=resample-on-correct", "members.played=4", "group=8"], "members.played 4 is below group 8"),
        (["members.per_round=3"], "per_round 3 has no use where kind is 'plain'"),
        (["members.kind=adaptive", "members.errors=x"], "errors 'x' has no use where kind is 'adaptive'"),
        (["members.kind=magic"], "reinforce.members.kind"),
        (["critic.second.kind=token"], "give both"),
        (["critic.kind=implicit", "critic.second.kind=token", "critic.second.first=true"], "second.first"),
        (["critic.kind=turn", "critic.learn=pairs"], "learn 'pairs' is of kind 'implicit'"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load(overrides=[f"reinforce.{one}" for one in overrides])


def test_two_critics_give_a_scheme_both_estimates_and_idle_or_equal_ones_are_refused():
    def tried(credit: str, one: str, other: str, **options: object) -> None:
        critic = Critic(kind=one, second=Critic(kind=other))
        try_scheme(Reinforce(credit=credit, critic=critic, credit_options=options))

    tried("reinforced-tokens", "implicit", "token")
    tried("reinforced-tokens", "token", "implicit")
    for credit, one, other, said in (
        ("reinforced-tokens", "token", "turn", "both estimate values"),
        ("token-gae", "token", "implicit", "uses nothing that a critic of kind 'implicit' estimates"),
        ("reinforced-tokens", "implicit", "progress", "uses nothing that a critic of kind 'progress'"),
    ):
        with pytest.raises(ValueError, match=said):
            tried(credit, one, other)
    with pytest.raises(ValueError, match=r"the scheme's beta is 0\.1"):
        tried("reinforced-tokens", "token", "implicit", beta=0.1)


def test_nothing_played_has_metrics(vault, word_agents, word_policy, model_factory):
    assert metrics(Collected())["episodes"] == 0
    policy = word_policy(model_factory())
    players = Players(Arena(env="test-vault", rollout=Rollout(limits=Limits(turns=2))), word_agents(policy), 0, 0)
    found = asyncio.run(collect(players, TaskOrder(vault.tasks(), 0), QUICK.model_copy(update={"tasks": 1})))
    assert found.whole == found.groups
    assert found.sampled == found.whole
