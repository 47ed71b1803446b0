"""Imagined conversations train a learner offline: by imitation of good ones, by preference over poor ones."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("torch")
from envgym_agents.learn.collect import credited, scheme_of
from envgym_agents.learn.config import Reinforce, load
from envgym_agents.learn.pack import rows_of
from envgym_agents.learn.resolve import check_student
from envgym_agents.learn.run import train
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.student import new_student
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.scripted_imaginer import scripted_imaginer

from envgym.episode import Group
from envgym.store import StoreReader, StoreWriter
from envgym.synthesis import AgentAsker, Amounts, Goal, imagine

GOAL = Goal(name="seller", says="Find out what the person wants, and offer it.")


@pytest.fixture
def store(tmp_path):
    """A store of imagined conversations."""

    async def work():
        with StoreWriter(tmp_path / "store") as store:
            async for one in imagine(GOAL, AgentAsker(scripted_imaginer), Amounts(8), who="a script"):
                if one.episode is not None:
                    store.append(one.episode)

    asyncio.run(work())
    return tmp_path / "store"


def config_of(store, **warm):
    warm = dict(min_updates=2, max_updates=4, evaluate_every=2, rows=4, validation=0.3, warmup=1) | warm
    return load(
        base={
            "env": "test-vault", "turns": 5, "expert": "random",
            "model": {"size": "tiny", "vocabulary": 400, "context": 512, "answer": 64},
            "warm_start": {**warm, "store": str(store)},
            "reinforce": dict(steps=1, tasks=2, group=2, oversample=1, loop={"staleness": 0}),
            "evaluate": dict(baselines=[], bootstrap=100, greedy=False, tasks=2),
        }
    )  # fmt: skip


@pytest.mark.slow
def test_what_was_imagined_has_no_token_that_trains_until_a_student_writes_it_in_its_own(store, vault):
    config = config_of(store)
    with StoreReader(store) as reader:
        groups = [Group(members[0].task_id, tuple(members)) for members in map(list, reader.groups())]
    assert not any(rows_of(one, np.zeros(0, np.float32)) for group in groups for one in group)
    env = vault.make(vault.tasks()[0])

    async def learn():
        async with new_student(config, [one for group in groups for one in group], env) as student:
            told = [Group(g.task_id, tuple([await student.retrace(one, env) for one in g])) for g in groups]
            pairs = Reinforce(credit="dr-grpo", loss={"kind": "dpo", "preference": {"against": "reference"}})
            rows = credited(told, scheme_of(pairs), pairs)
            frozen = Scorer(student.model.__class__(student.model.config))
            frozen.model.load_state_dict(student.model.state_dict())
            learner = Learner(
                Scorer(student.model), adamw(student.model, lr=1e-3, weight_decay=0.0), reference=frozen
            )
            losses = [
                learner.update(rows, pairs, np.random.default_rng(step), lr=1e-3)["loss"] for step in range(8)
            ]
            flat = [row for one in told[0] for row in rows_of(one, np.ones(one.sampled_tokens, np.float32))]
            before = learner.validate(flat)[0]
            for _ in range(8):
                learner.imitate(flat, lr=1e-3)
            return losses, before, learner.validate(flat)[0]

    losses, before, after = asyncio.run(learn())
    assert losses[-1] < losses[0]
    assert after < before


def test_a_store_that_is_none_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match=r"warm_start\.store = .*no store of episodes"):
        check_student(config_of(tmp_path / "nothing"))


@pytest.mark.slow
def test_a_run_begins_with_what_was_imagined_in_the_place_of_an_expert(store, vault, tmp_path):
    report = train(config_of(store, episodes_per_task=0), tmp_path / "run")
    with StoreReader(store) as reader:
        reached = [[one.reward for one in group] for group in reader.groups()]
    assert report["expert"]["success"] == pytest.approx(np.mean([np.mean(one) for one in reached]))
    assert 0 < report["expert"]["success"] < 1
    assert report["warm_start"]["updates"] >= 2
    assert not [one for one in StoreReader(tmp_path / "run" / "trajectories").ids if one.startswith("expert")]
