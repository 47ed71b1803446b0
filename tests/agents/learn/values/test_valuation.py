"""A critic in a run: what it may be asked for, that a resumed run is the same, and a whole run with one."""

import asyncio
import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learned values need the extra [train]")
pytest.importorskip("matplotlib")

from envgym_agents.chat import LMAgents  # noqa: E402
from envgym_agents.learn.collect import scheme_of  # noqa: E402
from envgym_agents.learn.config import Critic, Forks, Members, Reinforce, Rewards, load  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.values import Valuation  # noqa: E402
from envgym_agents.learn.values.packed import packed, unpacked  # noqa: E402
from envgym_agents.learn.values.several import Several, valued  # noqa: E402
from envgym_agents.learn.values.valuation import try_scheme  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.template import template_for  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

from envgym.buffer import Replay  # noqa: E402
from envgym.credit import (  # noqa: E402
    Level,
    Meaning,
    SchemeSpec,
    advantage,
    estimated,
    group_mean,
    outcome,
    returns,
    rewards,
    spread,
    state_peers,
    token_advantage,
)
from envgym.credit.schemes.archer import archer  # noqa: E402
from envgym.limits import Limits, Sampling  # noqa: E402
from envgym.registry import register, unregister  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.testing.credit_groups import random_groups  # noqa: E402


def by_turns(*, values, gamma: float = 1.0):
    return advantage(rewards(), estimated(values, Level.STATE, Meaning.VALUE), gamma=gamma, lam=0.9) >> spread()


def by_tokens(*, values, gamma: float = 1.0):
    return token_advantage(estimated(values, Level.TOKEN, Meaning.VALUE), earned=rewards(), gamma=gamma)


def by_contributions(*, contributions):
    return returns(of=estimated(contributions, Level.TURN, Meaning.REWARD)) >> state_peers() >> spread()


def by_log_ratios(*, log_ratios):
    ratios = estimated(log_ratios, Level.TOKEN, Meaning.CREDIT)
    return (outcome() >> group_mean() >> spread()) + 0.1 * ratios


NEEDS = {
    "test-archer": (archer, {"action_values": Level.TURN, "values": Level.STATE}, "archer"),
    "test-turns": (by_turns, {"values": Level.STATE}, "turn"),
    "test-tokens": (by_tokens, {"values": Level.TOKEN}, "token"),
    "test-contributions": (by_contributions, {"contributions": Level.TURN}, "progress"),
    "test-log-ratios": (by_log_ratios, {"log_ratios": Level.TOKEN}, "implicit"),
}
KIND_OF = {name: kind for name, (_, _, kind) in NEEDS.items()} | {"test-contributions-of-scores": "reward-model"}


@pytest.fixture(autouse=True)
def _schemes():
    for name, (make, needs, _) in NEEDS.items():
        register("schemes", name, SchemeSpec(name, make, "a test's", "own", needs=needs))
    register(
        "schemes",
        "test-contributions-of-scores",
        SchemeSpec(
            "test-contributions-of-scores", by_contributions, "a test's", "own", needs={"contributions": Level.TURN}
        ),
    )
    yield
    for name in KIND_OF:
        unregister("schemes", name)


def test_a_scheme_is_given_what_it_needs_and_a_misfit_is_refused_before_a_run():
    for name, kind in KIND_OF.items():
        try_scheme(Reinforce(credit=name, critic=Critic(kind=kind)))
    try_scheme(Reinforce())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"teaches": "credit"}, "which groups teach would depend on groups that were not played yet"),
        ({"loop": {"past": {"kind": "beside", "path": "x"}}}, "past.kind is 'beside' and the baseline 'sampled'"),
    ],
)
def test_a_baseline_of_what_a_step_sampled_is_refused_where_other_groups_would_be_compared_with_it(changes, said):
    options = {"credit": "reinforce", "credit_options": {"baseline": "sampled"}}
    try_scheme(Reinforce.model_validate(options))
    with pytest.raises(ValueError, match=said):
        try_scheme(Reinforce.model_validate(options | changes))
    for name, kind, said in (
        (
            "test-turns",
            "none",
            r"'test-turns' needs values of states; reinforce.critic.kind is 'none': make it 'turn' or 'archer'",
        ),
        (
            "test-turns",
            "token",
            r"needs values of states, .* 'token' estimates those of tokens; make it 'turn' or 'archer'",
        ),
        ("test-archer", "turn", r"scheme 'test-archer' needs action_values"),
        ("grpo", "turn", r"'grpo' uses no estimate"),
        (
            "reinforced-tokens",
            "implicit",
            r"needs values of tokens; .*let reinforce.critic.second.kind be 'token'$",
        ),
        ("archer", "turn", r"needs action_values of turns; .*make it 'archer'$"),
        ("test-turns", "progress", r"'progress', which estimates contributions of turns: make it 'turn'"),
    ):
        with pytest.raises(ValueError, match=said):
            try_scheme(Reinforce(credit=name, critic=Critic(kind=kind)))
    with pytest.raises(ValueError, match=r"the scheme's gamma is 0.5, and reinforce.critic.gamma 1.0"):
        try_scheme(Reinforce(credit="test-turns", credit_options={"gamma": 0.5}, critic=Critic(kind="turn")))
    plain = archer(action_values=lambda ledger: np.zeros(3), values=lambda ledger: np.zeros(5))
    assert plain.level == Level.TOKEN


def test_a_scheme_that_lives_on_forks_is_refused_with_what_it_would_be_without_them():
    for name, said in (
        ("prefix-restarts", r"members.forks.points is 0; without them it credits nothing: set some points$"),
        ("spo-tree", r"without them it is 'dr-grpo' \(name that\): set some points$"),
        (
            "stepwise-effect",
            r"credits nothing: set .*, or a critic that gives it values of states \(.*kind 'turn' or 'archer'\)$",
        ),
        ("progress-bonus", r"without them it is 'dr-grpo'"),
        ("spo-chain", r"without them it is 'dr-grpo'"),
    ):
        with pytest.raises(ValueError, match=said):
            try_scheme(Reinforce(credit=name))
        try_scheme(Reinforce(credit=name, members=Members(forks=Forks(points=1))))
    with pytest.raises(ValueError, match=r"values of tokens \(reinforce.critic.kind 'token'\)"):
        try_scheme(Reinforce(credit="spo-chain", critic=Critic(kind="turn")))
    for name, kind in (("progress-bonus", "turn"), ("stepwise-effect", "archer"), ("spo-chain", "token")):
        try_scheme(Reinforce(credit=name, critic=Critic(kind=kind)))
    for name in ("hierarchical", "turn-prefix-tree", "token-prefix-tree", "turn-relative"):
        try_scheme(Reinforce(credit=name))


def test_a_need_that_is_no_estimate_is_asked_for_where_it_can_be_given():
    for name in ("p-grpo", "prof"):
        try_scheme(Reinforce(credit=name, credit_options={"channel": "tests"}))
        for kind in ("none", "turn"):
            with pytest.raises(ValueError, match=r"needs channel: give it as reinforce.credit_options.channel$"):
                try_scheme(Reinforce(credit=name, critic=Critic(kind=kind)))
    with pytest.raises(ValueError, match=r"needs goal, which no configuration can give"):
        try_scheme(Reinforce(credit="timed-subgoals"))
    with pytest.raises(ValueError, match=r"needs judge of turns; .*no critic of training estimates that"):
        try_scheme(Reinforce(credit="subgoal-options"))
    try_scheme(Reinforce(credit="rae"))


def test_a_baseline_of_tokens_is_given_where_it_is_learned():
    seen = {}

    def probe(*, action_values, values, token_baseline=None):
        seen["baseline"] = token_baseline
        return archer(action_values=action_values, values=values, token_baseline=token_baseline)

    register(
        "schemes",
        "test-probe",
        SchemeSpec("test-probe", probe, "", "own", needs={"action_values": Level.TURN, "values": Level.STATE}),
    )
    try:
        for baseline in (False, True):
            try_scheme(Reinforce(credit="test-probe", critic=Critic(kind="archer", baseline=baseline)))
            assert (seen["baseline"] is not None) == baseline
    finally:
        unregister("schemes", "test-probe")


def test_a_replay_survives_a_checkpoint_with_every_bit_of_its_episodes(tmp_path):
    rng = np.random.default_rng(0)
    replay = Replay(400)
    for version in range(12):
        for group in random_groups(rng):
            replay.add(group, version=version, success=float(rng.random()))
    torch.save(packed(replay), tmp_path / "replay.pt")
    again = unpacked(torch.load(tmp_path / "replay.pt", weights_only=True))
    assert again.state() == replay.state()
    draws = [one.sample(8, np.random.default_rng(1), version=20) for one in (replay, again)]
    assert draws[0].groups == draws[1].groups
    assert unpacked(packed(Replay(5))).state() == Replay(5).state()


def test_nothing_played_teaches_nothing_and_no_kind_is_no_valuation():
    model = new_model(64, size="tiny", context=64)
    with pytest.raises(ValueError, match="nothing to learn"):
        Valuation(Critic(), model)
    for replay in (0, 1000):
        made = Valuation(Critic(kind="turn", replay=replay), model)
        assert made.learn([], step=0) == {"critic_warm": 1.0}
    with pytest.raises(ValueError, match="of kind 'turn', and this is 'token'"):
        Valuation(Critic(kind="token"), model).load(made.state())


ACTIONS = ["act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{digit}" for digit in "012")]


@pytest.fixture
def played(vault, tmp_path):
    tokenizer = train_tokenizer(
        ["you are in front of the vault", "panel a code 1"], actions=ACTIONS, vocab_size=300
    )

    async def play(config: Reinforce, folder: str, die_at: int | None = None):
        history = []

        async def on_step(progress, found, metrics):
            history.append(metrics)
            if progress.step == die_at:
                raise KeyboardInterrupt

        model = new_model(len(tokenizer), size="tiny", seed=5, context=128)
        begun = {name: weight.clone() for name, weight in model.state_dict().items()}
        async with TransformerPolicy(model) as policy:
            valuation = valued(config.critic, model, seed=1)
            loop = Loop(
                Parts(
                    learner=Learner(Scorer(model), adamw(model, lr=config.lr, weight_decay=0.0)),
                    policy=policy,
                    make_agent=LMAgents(policy, template_for(tokenizer), "compact", Sampling(max_tokens=1)),
                    arena=Arena(env="test-vault", rollout=Rollout(limits=Limits(turns=5)), concurrency=16),
                    order=TaskOrder(vault.tasks().split("train"), 0),
                    config=config,
                    seed=0,
                    folder=tmp_path / folder,
                    on_step=on_step,
                ),
                valuation=valuation,
            )
            await loop.run()
            return model.state_dict(), begun, valuation, history

    return lambda *args, **options: asyncio.run(play(*args, **options))


def same(one, two) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def config_of(name: str, **critic) -> Reinforce:
    chosen = Critic(kind=KIND_OF[name], updates=2, groups=4, replay=1500, lr=1e-3, **critic)
    return Reinforce(
        steps=4, tasks=3, group=4, lr=1e-3, checkpoint_every=2, oversample=1, credit=name, critic=chosen,
        teaches="credit",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test-turns", {}),
        ("test-turns", {"body": "own", "size": "tiny", "first": True}),
        ("test-tokens", {"body": "frozen", "loss": "two-hot"}),
        ("test-archer", {"baseline": True, "warmup": 3}),
        ("test-turns", {"loss": "mse", "rewards": {"scale": "normal", "clip": 1.5}}),
        ("test-contributions", {"tau": 0.2}),
        ("test-log-ratios", {}),
        ("test-contributions-of-scores", {"aggregate": "worst-case"}),
    ],
)
def test_r_a_run_with_a_critic_is_resumed_to_the_same_weights(played, name, options):
    config = config_of(name, **options)
    whole, begun, critic, history = played(config, "whole")
    assert not same(whole, begun)
    assert all(math.isfinite(metrics["critic_loss"]) for metrics in history)
    with pytest.raises(KeyboardInterrupt):
        played(config, "killed", die_at=3)  # one step after the checkpoint of step 2
    again, _, resumed, _ = played(config, "killed")
    assert same(whole, again)
    one, two = critic.state(), resumed.state()
    assert same(one["estimator"], two["estimator"])
    # the bytes of episodes hold the seconds they took, which are no part of what an episode is
    assert unpacked(one["replay"]).state() == unpacked(two["replay"]).state()


def test_a_run_with_scaled_rewards_learns_otherwise_and_tells_what_was_really_earned(played):
    plain = config_of("test-turns", loss="mse").model_copy(update={"teaches": "all", "steps": 2})
    scaled = plain.model_copy(
        update={"critic": plain.critic.model_copy(update={"rewards": Rewards(scale="normal")})}
    )
    (before, _, _, told), (after, _, critic, shown) = played(plain, "plain"), played(scaled, "scaled")
    assert not same(before, after)
    assert told[0]["reward"] == shown[0]["reward"], "the first step plays the same"
    assert "return_spread" not in told[0]
    assert shown[0]["return_mean"] == pytest.approx(shown[0]["reward"])
    assert shown[0]["return_spread"] > 0
    held = [one.reward for one in unpacked(critic.state()["replay"]).state().episodes]
    assert any(reward not in (0.0, 1.0) for reward in held), "the critic's replay holds what it learns from"


@pytest.mark.slow
def test_r_a_run_with_two_critics_is_resumed_to_the_same_weights_and_rests_until_both_are_warm(played):
    common = {"updates": 2, "groups": 4, "replay": 1500}
    second = Critic(kind="token", warmup=3, lr=1e-3, **common)
    critic = Critic(kind="implicit", learn="pairs", lr=1e-4, second=second, **common)
    config = config_of("test-turns").model_copy(update={"credit": "reinforced-tokens", "critic": critic})
    whole, begun, both, history = played(config, "whole")
    assert isinstance(both, Several)
    assert set(both.estimates) == {"log_ratio", "values"}
    assert not same(whole, begun)
    assert [metrics["critic_warm"] for metrics in history] == [1.0] * 4
    assert [metrics["second_warm"] for metrics in history] == [0.0, 1.0, 1.0, 1.0]
    assert all(math.isfinite(metrics["second_loss"]) for metrics in history)
    assert sum(metrics.get("critic_pairs", 0.0) for metrics in history) > 0
    with pytest.raises(KeyboardInterrupt):
        played(config, "killed", die_at=3)
    again, _, resumed, _ = played(config, "killed")
    assert same(whole, again)
    for name in ("one", "other"):
        assert same(both.state()[name]["estimator"], resumed.state()[name]["estimator"])
    with pytest.raises(ValueError, match="two critics were to be loaded"):
        both.load(both.one.state())


@pytest.mark.slow
def test_the_policy_rests_until_the_critic_is_warm(played):
    config = config_of("test-turns", warmup=100)
    end, begun, critic, history = played(config, "cold")
    assert same(end, begun)
    assert not critic.warm
    assert [metrics["critic_warm"] for metrics in history] == [0.0] * 4
    scheme = scheme_of(config, critic.estimates)
    assert scheme([]) == []


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("turn-gae", "turn", ()),
        ("token-gae", "token", ()),
        ("test-archer", "archer", ()),
        ("archer", "archer", ("critic.fresh=8", "critic.baseline=true")),
        ("progress-attribution", "progress", ()),
        ("implicit-rewards", "implicit", ()),
        ("reinforced-tokens", "implicit", ("critic.learn=pairs", "critic.second.kind=token")),
    ],
)
def test_a_whole_run_trains_with_a_critic(tmp_path, name, kind, more):
    """What `envgym train --set reinforce.credit=NAME --set reinforce.critic.kind=KIND` does, on `guess`."""
    config = load(
        overrides=[
            *(f"reinforce.{one}" for one in more),
            "env=guess", "expert=random", "tasks=10", "turns=6", "threads=1", "model.size=tiny",
            "model.vocabulary=400", "model.context=256", "model.answer=32",
            "warm_start.min_updates=4", "warm_start.max_updates=4",
            "warm_start.rows=4",
            "warm_start.evaluate_every=2", "task_options.most=6", "reinforce.steps=2", "reinforce.tasks=3",
            "reinforce.group=4", "reinforce.oversample=1", "evaluate.tasks=4", "evaluate.bootstrap=100",
            f"reinforce.credit={name}", f"reinforce.critic.kind={kind}", "reinforce.critic.updates=2",
        ]
    )  # fmt: skip
    report = train(config, tmp_path / "run")
    assert report["reinforce"]["stop"] == "steps"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["critic_warm"] for line in lines] == [1.0, 1.0]
    assert all(math.isfinite(line.get("critic_loss", 0.0)) for line in lines)  # no pairs, no loss
    assert train(config, tmp_path / "run", resume=True) == report


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    "chosen",
    [
        ("credit=remax", "teaches=all"),
        ("credit=rae", "teaches=all", "credit_options.baseline={by=['actor'],decay=0.9}"),
        ("members.kind=adaptive", "members.per_round=2", "credit=reinforce", "credit_options.baseline=sampled"),
        ("members.kind=resample-on-correct", "members.played=6"),
    ],
    ids=["remax", "rae", "adaptive", "resample-on-correct"],
)
def test_a_whole_run_trains_with_what_is_played_beside_a_group(tmp_path, chosen):
    """What `envgym train --set reinforce...` does with them, on `guess`; and it is resumed."""
    config = load(
        overrides=[
            "env=guess", "expert=random", "tasks=10", "turns=6", "threads=1", "model.size=tiny",
            "model.vocabulary=400", "model.context=256", "model.answer=32",
            "warm_start.min_updates=2", "warm_start.max_updates=2", "warm_start.rows=4",
            "warm_start.evaluate_every=2", "task_options.most=6", "reinforce.steps=2", "reinforce.tasks=2",
            "reinforce.group=4", "reinforce.oversample=1", "evaluate.tasks=4", "evaluate.bootstrap=100",
            *(f"reinforce.{one}" for one in chosen),
        ]
    )  # fmt: skip
    report = train(config, tmp_path / "run")
    assert report["reinforce"]["stop"] == "steps"
    assert train(config, tmp_path / "run", resume=True) == report
