"""Training that forks its own episodes: trees of turns that are played, credited, packed, counted and resumed."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from envgym_agents.chat import LMAgents  # noqa: E402
from envgym_agents.learn.collect import Collected, credited, metrics, scheme_of  # noqa: E402
from envgym_agents.learn.config import Curriculum, Forks, LoopSettings, Members, Reinforce, load  # noqa: E402
from envgym_agents.learn.curriculum import EdgeOrder  # noqa: E402
from envgym_agents.learn.lesson import remember  # noqa: E402
from envgym_agents.learn.overlap import Overlapped  # noqa: E402
from envgym_agents.learn.overlap_gap import sampler_gap  # noqa: E402
from envgym_agents.learn.pack import batches, padded, shared  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.values.valuation import Valuation  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.template import template_for  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

from envgym.buffer import Replay, Taken, oldest_version  # noqa: E402
from envgym.episode import Episode, ForkPoint, Group  # noqa: E402
from envgym.limits import Limits, Sampling  # noqa: E402
from envgym.oracle import corridor, softened, solve  # noqa: E402
from envgym.registry import register, unregister  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402
from envgym.store import StoreReader, StoreWriter  # noqa: E402

ACTIONS = ["act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{digit}" for digit in "012")]


def config(points=2, times=1, by="uniform", **rest) -> Reinforce:
    given = {
        "steps": 3,
        "tasks": 2,
        "group": 3,
        "lr": 1e-3,
        "checkpoint_every": 2,
        "oversample": 1,
        "teaches": "all",
    }
    members = Members(forks=Forks(points=points, times=times, by=by))
    return Reinforce(**{"credit": "prefix-restarts", "members": members, **given, **rest})


class Run(list):
    """What every step of a loop found; its weights after the end."""

    weights: dict


@pytest.fixture
def run(vault, tmp_path):
    """Chat agents over batched passes and cached contexts, which forks share, in either loop."""
    tokenizer = train_tokenizer(
        ["you are in front of the vault", "panel a code 1"], actions=ACTIONS, vocab_size=300
    )

    def play(config, folder="run", *, die_at=None, valued=False, store=True, learned_from=None) -> Run:
        overlaps = config.loop.staleness != 0
        models = [new_model(len(tokenizer), size="tiny", seed=5, context=128) for _ in range(1 + overlaps)]
        found = Run()

        async def on_step(progress, collected, told):
            found.append((progress, collected, told))
            if learned_from is not None:
                learned_from(found[-1:])
            if progress.step == die_at:
                raise KeyboardInterrupt

        async def everything(memory):
            async with TransformerPolicy(models[-1]) as policy:
                agents = LMAgents(policy, template_for(tokenizer), "compact", Sampling(max_tokens=1))
                arena = Arena("test-vault", Rollout(limits=Limits(turns=5)), concurrency=16, memory=memory)
                learner = Learner(Scorer(models[0]), adamw(models[0], lr=config.lr, weight_decay=0.0))
                order = TaskOrder(vault.tasks().split("train"), 0)
                parts = Parts(
                    learner, policy, agents, arena.by("student"), order, config, 0, tmp_path / folder, on_step
                )
                valuation = Valuation(config.critic, models[0]) if valued else None
                await (Overlapped(parts) if overlaps else Loop(parts, valuation)).run()
                found.learner = learner

        if store:
            with StoreWriter(tmp_path / f"{folder}-store") as memory:
                asyncio.run(everything(memory))
        else:
            asyncio.run(everything(None))
        found.weights = {name: value.clone() for name, value in models[0].state_dict().items()}
        return found

    return play


def identical(a: Run, b: Run) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)


def groups_of(found: Run) -> list[Group]:
    return [group for _, collected, _ in found for group in collected.whole]


@pytest.mark.slow
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    points=st.integers(1, 3), times=st.integers(1, 2), by=st.sampled_from(["uniform", "entropy"]),
    credit=st.sampled_from(["prefix-restarts", "spo-tree", "dr-grpo"]),
)  # fmt: skip
def test_a_run_with_forks_is_a_function_of_its_configuration(run, points, times, by, credit):
    made = config(points, times, by, credit=credit, loop=LoopSettings(staleness=0), steps=2)
    once, twice = (run(made, uuid4().hex, store=store) for store in (True, False))
    assert identical(once, twice)
    for group, again in zip(groups_of(once), groups_of(twice), strict=True):
        assert group.task_id == again.task_id
        same_but_for_rounding(group.episodes, again.episodes)
        forks = [one for one in group if one.parent is not None]
        assert len([one for one in group if one.parent is None]) == made.group
        wanted = times * sum(min(points, len(one.turns)) for one in group if one.parent is None)
        assert len(forks) == wanted
        assert not [one for one in forks if one.failure is not None]
    for _, collected, told in once:
        assert told["forks"] == sum(one.parent is not None for group in collected.whole for one in group)
        assert told["episodes"] == made.group * len(collected.whole)
        assert told["sampler_gap"] < 1e-4, "what forks said was sampled in the context that they train in"


def test_ancestors_tokens_train_once_and_the_shared_loss_is_that_of_separate_sequences(run):
    made = config(3, 2, loop=LoopSettings(staleness=0), steps=1)
    found = run(made)
    groups = found[0][1].whole
    rows = [row for rows in credited(groups, scheme_of(made), made) for row in rows]
    assert sum(len(row.at) for row in rows) == sum(one.sampled_tokens for group in groups for one in group)
    paths = {one.id: group.path(one) for group in groups for one in group}
    for row in rows:
        whole = np.concatenate(
            [part for turn in paths[row.episode] for part in (turn.prompt_ids, turn.sampled_ids)]
        )
        assert row.ids.tolist() == whole[: len(row.ids)].tolist(), "a fork is computed behind its whole history"
    scorer = found.learner.scorer
    forest = batches(rows, max_tokens=8192, share_prefixes=True)
    assert sum(part.tokens for part in forest) < 0.6 * padded(rows).tokens
    losses, gradients = [], []
    for parts in ([padded([row]) for row in rows], [shared(rows)], forest):
        scorer.model.zero_grad(set_to_none=True)
        loss = sum(-(scorer.score(part).logprobs * part.credit * part.weights).sum() for part in parts)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(
            torch.cat([one.grad.flatten() for one in scorer.model.parameters() if one.grad is not None])
        )
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        assert loss == pytest.approx(losses[0], rel=1e-5, abs=1e-6)
        assert float((gradient - gradients[0]).norm() / gradients[0].norm()) < 1e-5


@pytest.mark.slow
def test_a_killed_run_with_forks_resumes_to_the_same_weights_and_stores_every_episode_once(run, tmp_path):
    made = config(2, 2, loop=LoopSettings(staleness=0), steps=4)
    whole = run(made, "whole")
    for store in (True, False):
        folder = f"killed-{store}"
        with pytest.raises(KeyboardInterrupt):
            run(made, folder, die_at=3, store=store)
        resumed = run(made, folder, store=store)
        assert [progress.step for progress, _, _ in resumed] == [3, 4]
        assert identical(whole, resumed)
    with StoreReader(tmp_path / "whole-store") as reader, StoreReader(tmp_path / "killed-True-store") as again:
        assert (
            sorted(reader.ids) == sorted(again.ids) == sorted(one.id for group in groups_of(whole) for one in group)
        )
        for name in reader.ids:
            assert reader[name].parent == again[name].parent
            same_but_for_rounding([reader[name]], [again[name]])


def same_but_for_rounding(ones: Sequence[Episode], others: Sequence[Episode]) -> None:
    """Whoever is ready joins a pass, so it is time that says what is computed together, and rounds alike."""
    assert list(map(without_logprobs, ones)) == list(map(without_logprobs, others))
    for one, other in zip(ones, others, strict=True):
        for turn, again in zip(one.turns, other.turns, strict=True):
            np.testing.assert_allclose(turn.logprobs, again.logprobs, rtol=0, atol=1e-5)


def without_logprobs(episode: Episode) -> Episode:
    return replace(
        episode, turns=tuple(replace(turn, logprobs=np.zeros_like(turn.logprobs)) for turn in episode.turns)
    )


@pytest.mark.parametrize(
    "spoiled", ["drop_member", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mask", "refill"))]
)
def test_forks_keep_the_bound_on_staleness_in_the_loop_that_overlaps(run, tmp_path, spoiled):
    made = config(
        2, 1, steps=6, checkpoint_every=2, loop=LoopSettings(staleness=1, spoiled=spoiled, replay=1.0, stretch=40)
    )
    trained: dict[int, list[str]] = {}

    def learned_from(steps) -> None:
        for progress, collected, _ in steps:
            trained[progress.step] = [one.id for group in collected.groups for one in group]

    with pytest.raises(KeyboardInterrupt):
        run(made, die_at=3, learned_from=learned_from)
    trained.pop(3)  # whose weights no checkpoint kept
    found = run(made, learned_from=learned_from)
    assert found[-1][0].step == 6
    names = [name for step in sorted(trained) for name in trained[step]]
    assert len(names) == len(set(names)), "nothing trains as new twice"
    forks = 0
    for _, collected, told in found:
        assert told.get("staleness_max", 0.0) <= 1
        assert told.get("sampler_gap", 0.0) < 1e-4
        for group in collected.groups:
            forks += sum(one.parent is not None for one in group)
            if spoiled != "mask":
                assert all(oldest_version(one) >= told["version"] - 2 for one in group if one.turns)
    assert forks
    with StoreReader(tmp_path / "run-store") as reader:
        stored = [reader[name] for name in reader.ids]
    known = {one.id for one in stored}
    assert all(one.parent is None or one.parent.episode in known for one in stored)


def test_the_samplers_gap_of_a_fork_is_that_of_its_whole_context(run):
    made = config(3, 1, loop=LoopSettings(staleness=0), steps=1, lr=1e-12)
    found = run(made)
    deep = next(one for group in groups_of(found) for one in group if one.parent is not None and one.parent.turn)
    group = next(group for group in groups_of(found) if deep in group.episodes)
    older = [replace(turn, versions=()) for one in group if one.id == deep.parent.episode for turn in one.turns]
    parent = next(replace(one, turns=tuple(older)) for one in group if one.id == deep.parent.episode)
    taken = Taken(oldest_version(deep), (Group(group.task_id, (parent, deep)),), (frozenset(),), (0,))
    assert 0 <= sampler_gap(found.learner, taken, made)["sampler_gap"] < 1e-4


def test_a_fork_whose_parent_does_not_train_is_not_learned_from_again(turn, episode):
    parent = episode("a", [turn([1], [2], position=0), turn([3], [4], position=2, reward=1.0)])
    fork = episode("a/1/0", [turn([3], [5], position=2, reward=0.0)], parent=ForkPoint("a", 1))
    other = episode("b", [turn([1], [2], position=0, reward=0.0)])
    for masked, kept in ((frozenset("a"), ["b"]), (frozenset(), ["a", "a/1/0", "b"])):
        replay = Replay(1000)
        remember(replay, Taken(0, (Group("t", (parent, fork, other)),), (masked,), (0,)))
        assert [one.id for one in replay.state().episodes] == kept


@pytest.mark.slow
def test_a_world_that_does_not_repeat_itself_loses_its_forks_and_the_groups_go_on(run, vault):
    class Moody(vault.make):
        asked = 0

        async def reset(self, *, seed):
            Moody.asked += 1
            return await super().reset(seed=seed + Moody.asked)

    unregister("environments", vault.name)
    register("environments", vault.name, replace(vault, make=Moody))
    for loop in (LoopSettings(staleness=0), LoopSettings(staleness=1)):
        found = run(config(2, 1, loop=loop, oversample=9), f"{loop.staleness}")
        assert found[-1][0].step == 3
        failed = [one for group in groups_of(found) for one in group if one.failure is not None]
        assert failed
        assert {one.failure.kind for one in failed} == {"ReplayDiverged"}
        assert all(one.parent is not None and one.reward is None for one in failed)
        assert sum(told.get("fork_failures", 0.0) for _, _, told in found) == len(failed)
        for _, collected, _ in found:
            for group in collected.groups:
                assert len([one for one in group if one.failure is None]) >= 2


def test_what_forks_earned_is_in_no_mean_of_whole_episodes(run):
    found = run(config(2, 2, loop=LoopSettings(staleness=0), steps=1))
    _, collected, told = found[0]
    plain = [one for one in collected.episodes if one.parent is None]
    alone = metrics(Collected(collected.groups, collected.others, collected.whole, plain, collected.played))
    assert alone == {name: told[name] for name in alone}
    assert told["fork_tokens"] == sum(one.sampled_tokens for one in collected.episodes if one.parent is not None)
    assert told["total_sampled"] == sum(one.sampled_tokens for one in collected.episodes)
    tasks = [type("T", (), {"id": group.task_id})() for group in collected.whole]
    order = EdgeOrder(tasks, 0, Curriculum(kind="solve-rate", memory=1.0))
    order.saw(collected.whole)
    assert order._tried.sum() == len(plain)


def test_critics_learn_from_trees_as_from_others(run):
    made = config(
        2, 1, loop=LoopSettings(staleness=0), steps=2, credit="progress-bonus",
        critic={"kind": "turn", "replay": 1000},
    )  # fmt: skip
    found = run(made, valued=True)
    assert all(np.isfinite(value) for _, _, told in found for value in told.values())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["reinforce.members.forks.points=-1"],
            "reinforce.members.forks.points = -1: Input should be greater than",
        ),
        (["reinforce.members.forks.times=2"], "times 2 has no use where points is 0"),
        (["reinforce.members.forks.by=novelty", "reinforce.members.forks.points=1"], "'uniform' or 'entropy'"),
        (["reinforce.members.forks.points=1", "reinforce.members.kind=adaptive"], "a group is cut down before"),
        (
            ["reinforce.members.forks={points=1,times=3,turns=2}"],
            "turns 2 is below times 3: no state could be continued",
        ),
        (
            ["reinforce.members.forks.points=1", "reinforce.loop.past.kind=alone", "reinforce.loop.past.path=x"],
            "members.forks.points 1 has no use where loop.past.kind is 'alone'",
        ),
    ],
)
def test_forks_that_cannot_be_played_are_refused_in_a_line(overrides, said):
    with pytest.raises(ValueError, match=r".") as error:
        load(overrides=overrides)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_configuration_of_forks_survives_json():
    made = load(overrides=["reinforce.members.forks.points=2", "reinforce.members.forks.by=entropy"])
    assert json.loads(made.model_dump_json())["reinforce"]["members"]["forks"]["by"] == "entropy"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_run_with_a_scheme_that_credits_nothing_without_forks_learns_and_stores_its_trees(tmp_path):
    given = load(
        overrides=[
            "env=corridor", "task_options={rooms=5,deadline=20}", "expert=random", "tasks=10", "turns=20",
            "threads=1", "model.size=tiny", "model.context=512",
            "warm_start={min_updates=30,max_updates=30,rows=8}",
            "evaluate={tasks=4,attempts=40,baselines=[],greedy=false,bootstrap=100}", "reinforce.teaches=all",
            "reinforce.credit=prefix-restarts", "reinforce.members.forks.points=3", "reinforce.steps=40",
            "reinforce.tasks=3", "reinforce.group=4", "reinforce.oversample=1.0", "reinforce.lr=1e-3",
            "reinforce.checkpoint_every=99",
        ]
    )  # fmt: skip
    report = train(given, tmp_path / "run")
    rates = {one["name"]: one["success"] for one in report["evaluations"]}
    best = solve(softened(corridor(rooms=5, deadline=20), 50.0)).expected_return
    assert rates["before RL"] < best - 0.3
    assert rates["after RL"] > rates["before RL"] + 0.15, (rates, best)
    with StoreReader(tmp_path / "run" / "trajectories") as reader:
        stored = [reader[name] for name in reader.ids]
    forks = [one for one in stored if one.parent is not None]
    assert len(forks) > 300
    trees: dict[str, list] = {}
    for one in sorted(stored, key=lambda one: one.id):
        trees.setdefault(one.group, []).append(one)
    for name, members in trees.items():
        if name:
            assert Group(members[0].task_id, tuple(members)), "what is stored is a tree that can be credited again"
