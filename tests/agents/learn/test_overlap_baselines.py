"""What a group's members are compared with, and which of them are chosen, while playing and learning overlap."""

import asyncio
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.config import Curriculum, LoopSettings, Members, Past, Reinforce  # noqa: E402
from envgym_agents.learn.members import adaptive_of  # noqa: E402
from envgym_agents.learn.overlap import Overlapped  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.past import PastGroups  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.staleness import staleness_of, told_of  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.values.several import valued  # noqa: E402

from envgym.credit import Ledger, Running, outcome  # noqa: E402
from envgym.credit.reference import is_greedy  # noqa: E402
from envgym.env import StopReason  # noqa: E402
from envgym.episode import Group  # noqa: E402
from envgym.limits import Limits  # noqa: E402
from envgym.registry import register, unregister  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.store import StoreWriter  # noqa: E402

QUICK = Reinforce(steps=4, tasks=3, group=4, lr=1e-3, checkpoint_every=2, teaches="all")
ROC = QUICK.model_copy(update={"members": Members(kind="resample-on-correct", played=7)})
ADAPTIVE = QUICK.model_copy(update={"members": Members(kind="adaptive", per_round=3, rounds=3)})
REMAX = QUICK.model_copy(update={"credit": "remax"})
RAE = QUICK.model_copy(update={"credit": "rae", "credit_options": {"baseline": {"by": ["actor"], "decay": 0.5}}})
SAMPLED = QUICK.model_copy(update={"credit": "reinforce", "credit_options": {"baseline": "sampled"}})
CRITIC = Reinforce.model_validate(
    QUICK.model_dump() | {"credit": "turn-gae", "critic": {"kind": "turn", "warmup": 8, "updates": 4}}
)


given: list[dict] = []


class Told(Learner):
    """A learner that remembers what it was given: rows by episode."""

    def update(self, groups, config, rng, *, lr):
        given.append({row.episode: row for rows in groups for row in rows})
        return super().update(groups, config, rng, lr=lr)


@pytest.fixture
def play(vault, model_factory, word_agents, word_policy, tmp_path):
    """Runs a configuration to its end, or until it is killed after a step; (progress, found, told) of each step."""

    class Published(word_policy):
        async def update(self, weights=None, *, version=None, masks=None):
            if weights is not None:
                self.model.load_state_dict(weights)
            return await super().update(version=version)

    def run(config: Reinforce, folder: str = "run", *, die_at: int | None = None, past: PastGroups | None = None):
        given.clear()
        history = []

        async def on_step(progress, found, told):
            history.append((progress, found, told))
            if progress.step == die_at:
                raise KeyboardInterrupt

        async def whole():
            learns = model_factory(seed=3)
            policy = Published(deepcopy(learns))
            with StoreWriter(tmp_path / f"{folder}-store") as memory:
                arena = Arena("test-vault", Rollout(limits=Limits(turns=5)), concurrency=16, memory=memory)
                made = (Overlapped if staleness_of(config) else Loop)(
                    Parts(
                        Told(Scorer(learns), adamw(learns, lr=config.lr, weight_decay=0.0)), policy,
                        word_agents(policy), arena, TaskOrder(vault.tasks().split("train"), 0), config, 0,
                        tmp_path / folder, on_step, past=past,
                    ),
                    valuation=valued(config.critic, learns),
                    make_greedy=word_agents(Published(policy.model, temperature=0.0)),
                )  # fmt: skip
                await made.run()
                return made

        try:
            return asyncio.run(whole()), history
        except KeyboardInterrupt:
            return None, history

    return run


@pytest.mark.slow
def test_groups_are_cut_down_to_those_that_are_learned_from_and_the_others_are_stored_and_counted(play):
    _, history = play(ROC)
    assert max(told["staleness_max"] for _, _, told in history) <= 1
    for _, found, _ in history:
        assert {len(whole) for whole in found.whole} <= {7}
        assert all(2 <= len(group) <= 4 for group in found.groups)
    whole = {group.episodes[0].group: group for _, found, _ in history for group in found.whole}
    for _, found, _ in history:
        for group in found.groups:
            of = whole[group.episodes[0].group]
            wins, all_wins = (sum((one.reward or 0) > 0 for one in some) for some in (group, of))
            assert abs(wins - 4 * all_wins / 7) <= 1, "in the shares of successes and failures"


@pytest.mark.slow
def test_each_group_goes_on_for_as_many_rounds_as_its_own_samples_ask_for(play):
    _, history = play(ADAPTIVE)
    adaptive, sizes = adaptive_of(ADAPTIVE), set()
    for _, found, _ in history:
        for whole in found.whole:
            sizes.add(len(whole))
            assert len(whole) == 9 or adaptive.enough(whole)
            assert [one.id[-3:] for one in whole] == [f"{member:03d}" for member in range(len(whole))]
        assert all(len(group) <= 4 for group in found.groups)
    assert len(sizes) > 1


def test_every_group_has_a_greedy_member_that_nothing_is_learned_from(play):
    _, history = play(REMAX)
    taught = [(found, told) for _, found, told in history if "updates" in told]
    assert taught
    for (found, told), rows in zip(taught, given, strict=True):
        assert told.get("sampler_gap", 0.0) < 1e-4
        for group in found.groups:
            likeliest = next(filter(is_greedy, group), None)
            if likeliest is None:  # too old for its group
                assert not rows.keys() & {one.id for one in group}
                continue
            assert likeliest.id not in rows
            for one in group:
                if one.id in rows and StopReason.TURN_LIMIT not in (one.stop, likeliest.stop):
                    assert rows[one.id].credit[0] == pytest.approx((one.reward or 0) - (likeliest.reward or 0))


def test_a_running_mean_expects_only_what_it_saw_before_and_sees_each_group_once(play):
    _, history = play(RAE)
    expected, seen = Running(by=("actor",), decay=0.5), []
    for (progress, found, _), rows in zip(history, given, strict=True):
        mean = expected.expects(("agent",))
        known = outcome().of(Ledger.of(found.groups))
        for one, value in zip((one for group in found.groups for one in group), known, strict=True):
            assert rows[one.id].credit[0] == pytest.approx(np.nan_to_num(value - mean), abs=1e-6)
        expected = expected.updated([*found.groups, *found.others])
        assert Running.of_state(progress.running) == expected
        seen += [one.id for group in (*found.groups, *found.others) for one in group]
    assert len(seen) == len(set(seen))


def test_the_mean_of_what_was_sampled_is_that_of_the_group_itself(play):
    play(SAMPLED)
    assert any(np.abs(row.credit).max() > 0 for rows in given for row in rows.values())
    for rows in given:
        by_group: dict[str, list[float]] = {}
        for row in rows.values():
            by_group.setdefault(row.episode[:7], []).append(float(row.credit[0]))
        assert all(abs(sum(credits)) < 1e-5 for credits in by_group.values())


@pytest.mark.slow
def test_a_critic_learns_beside_the_policy_which_rests_until_it_is_warm(play):
    _, history = play(CRITIC)
    versions = [told["version"] for _, _, told in history]
    assert versions == [0, 0, 1, 2], "eight updates of the critic, four a step, before the first of the policy"
    assert all(told["critic_loss"] > 0 for _, _, told in history)
    (first, *_) = given
    assert any(row.credit.any() for row in first.values())


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_stored_groups_wait_too_until_a_critic_is_warm(play, turn, episode, staleness):
    members = tuple(episode(f"p{n}", [turn([1], [2], position=0, reward=float(n))], task="past") for n in range(3))
    past = PastGroups([Group("past", members)], seed=0, count=1)
    loop = LoopSettings(staleness=staleness, past=Past(kind="beside", path="given"))
    _, history = play(CRITIC.model_copy(update={"loop": loop, "steps": 3}), past=past)
    assert ["grad_norm" in told for _, _, told in history] == [False, False, True]
    assert [row for rows in given for row in rows if row.startswith("p")] == ["p0", "p1", "p2"]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("config", [RAE, CRITIC, ROC, REMAX], ids=["running", "critic", "chosen", "greedy"])
def test_a_killed_run_has_its_baselines_again(play, config):
    config = config.model_copy(update={"steps": 6})
    _, before = play(config, die_at=3)
    made, after = play(config)
    assert [progress.step for progress, _, _ in after] == [3, 4, 5, 6]
    if config.credit == "rae":
        again = Running.of_state(before[1][0].running).updated([*after[0][1].groups, *after[0][1].others])
        assert Running.of_state(after[0][0].running) == again
    if made.valuation is not None:
        assert made.valuation.estimator.network.updates == 24
    names = [
        one.id for history in (before[:2], after) for _, found, _ in history for g in found.groups for one in g
    ]
    assert len(names) == len(set(names)), "nothing trains as new twice"


@pytest.mark.slow
@pytest.mark.parametrize("die_at", [3, 5])
def test_what_came_in_while_the_learner_learned_is_told_once_also_by_a_run_that_is_killed(play, die_at):
    """Of such groups a checkpoint has to know: they are told in the step after it, and a running mean sees them."""
    config = RAE.model_copy(update={"teaches": "outcomes", "oversample": 2.0, "steps": 8})
    _, before = play(config, die_at=die_at)
    made, after = play(config)
    survived = [*before[: die_at - 1], *after]  # the step that it died after was in no checkpoint
    assert [progress.step for progress, _, _ in survived] == list(range(1, 9))
    told = [one.id for _, found, _ in survived for one in found.episodes]
    assert len(told) == len(set(told))
    assert {one.id for _, found, _ in survived for group in found.groups for one in group} <= set(told)
    counts, since = made.queue.counts, made.since
    assert sum(found.played for _, found, _ in survived) + since.played == counts.accepted + counts.abandoned
    assert sum(len(found.others) for _, found, _ in survived) + len(since.others) == counts.abandoned > 0
    tokens = sum(one.sampled_tokens for _, found, _ in survived for one in found.episodes)
    assert survived[-1][0].tokens == tokens


@pytest.mark.slow
def test_a_group_whose_greedy_member_is_lost_is_learned_from_by_nobody(play, vault):
    async def stumbles(self, action):
        if self.stumbles and self.turns == 1:
            raise OSError("injected")
        return await vault.make.step(self, action)

    async def reset(self, *, seed):
        self.stumbles = seed % 5 == 0
        return await vault.make.reset(self, seed=seed)

    unregister("environments", vault.name)
    broken = type("Broken", (vault.make,), {"step": stumbles, "reset": reset})
    register("environments", vault.name, replace(vault, make=broken))
    try:
        _, history = play(REMAX.model_copy(update={"steps": 6}))
    finally:
        unregister("environments", vault.name)
        register("environments", vault.name, vault)
    groups = [group for _, found, _ in history for group in (*found.groups, *found.others)]
    alone = [group for group in groups if not any(is_greedy(one) and one.failure is None for one in group)]
    assert alone
    rows = set().union(*given)
    assert rows
    assert not rows & {one.id for group in alone for one in group}


@pytest.mark.slow
def test_a_batch_is_short_only_where_groups_taught_nothing(play):
    """Bound 0, so slow groups come too late; they had counted as played, and the next batch was short of them."""
    _, history = play(Reinforce(steps=8, tasks=6, group=4, lr=3e-3, oversample=1, loop=LoopSettings(staleness=0)))
    for _, found, _ in history:
        assert len(found.groups) + len(found.others) >= 6


def test_what_needs_whole_steps_takes_turns_and_says_so_where_it_is_told_to_overlap():
    assert staleness_of(Reinforce()) == 1
    assert staleness_of(Reinforce(loop=LoopSettings(staleness=0))) == 0
    for config in (ROC, ADAPTIVE, REMAX, RAE, SAMPLED, CRITIC):
        assert told_of(config) == "playing and learning overlap, tokens at most 1 version(s) old"
    curriculum = Reinforce(loop=LoopSettings(curriculum=Curriculum(kind="solve-rate")))
    assert staleness_of(curriculum) == 0
    assert told_of(curriculum).endswith("take turns, for curriculum.kind 'solve-rate' is of whole steps")
    assert "staleness is 0" in told_of(Reinforce(loop=LoopSettings(staleness=0)))
    with pytest.raises(ValueError, match="refills 3 has no use where staleness is 0"):
        LoopSettings(staleness=0, refills=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"members": ADAPTIVE.members, **{name: getattr(SAMPLED, name) for name in ("credit", "credit_options")}},
         r"loop\.staleness is 2, and members\.kind 'adaptive' with a baseline of all that is sampled is of whole"),
        ({"credit": "rae", "teaches": "credit"}, "teaches 'credit' with a baseline that is learned is of whole"),
        ({"credit": "remax", "loop": {"staleness": 2, "spoiled": "refill"}}, "its greedy members they are"),
        ({"group": 4, "members": ROC.members, "loop": {"staleness": 2, "spoiled": "refill"}}, "they are not"),
        ({"credit": "rae", "loop": {"staleness": 2, "replay": 0.5}}, r"loop\.replay 0\.5 gives groups"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_while_playing_and_learning_overlap_is_refused(changes, said):
    config = Reinforce.model_validate({"loop": {"staleness": 2}, **changes})
    with pytest.raises(ValueError, match=said):
        staleness_of(config)
