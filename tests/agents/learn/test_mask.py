"""NLPO in a whole loop: the mask of who samples is the mask of who learns, also when it is renewed and resumed."""

import asyncio
import json

import pytest

torch = pytest.importorskip("torch")

from envgym_agents.chat import LMAgents  # noqa: E402
from envgym_agents.learn.config import Reinforce, load  # noqa: E402
from envgym_agents.learn.parts import Parts  # noqa: E402
from envgym_agents.learn.play import Arena, TaskOrder  # noqa: E402
from envgym_agents.learn.reinforce import Loop  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.template import template_for  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

from envgym.limits import Limits, Sampling  # noqa: E402
from envgym.rollout import Rollout  # noqa: E402

MASKED = Reinforce(
    steps=5, tasks=3, group=4, lr=1e-2, checkpoint_every=1, teaches="all",
    loss={"old": "recomputed", "mask": {"top_p": 0.7, "renew_every": 2}},
)  # fmt: skip
GAME = {"env": "guess", "expert": "random"}
ACTIONS = ["act:read", *(f"act:press-{panel}" for panel in "ab"), *(f"act:open-{digit}" for digit in "012")]


@pytest.mark.slow
def test_a_renewed_mask_is_the_samplers_and_the_learners_and_a_killed_run_resumes_to_the_same_weights(
    vault, tmp_path
):
    tokenizer = train_tokenizer(["you are in front of the vault"], actions=ACTIONS, vocab_size=300)
    history, masks = [], []

    async def play(folder, die_at=None):
        async def on_step(progress, found, metrics):
            history.append(metrics)
            masks.append({name: weight.clone() for name, weight in learner.masks.items()})
            assert all(torch.equal(weight, masks[-1][name]) for name, weight in mask.state_dict().items())
            if progress.step == die_at:
                raise KeyboardInterrupt

        model, mask, own = (new_model(len(tokenizer), size="tiny", seed=5, context=128) for _ in range(3))
        learner = Learner(Scorer(model), adamw(model, lr=1e-2, weight_decay=0.0), masking=Scorer(own))
        async with TransformerPolicy(model) as policy:
            policy.mask(mask, top_p=0.7)
            await Loop(
                Parts(
                    learner=learner,
                    policy=policy,
                    make_agent=LMAgents(policy, template_for(tokenizer), "compact", Sampling(max_tokens=1)),
                    arena=Arena(env="test-vault", rollout=Rollout(limits=Limits(turns=5)), concurrency=16),
                    order=TaskOrder(vault.tasks().split("train"), 0),
                    config=MASKED,
                    seed=0,
                    folder=tmp_path / folder,
                    on_step=on_step,
                )
            ).run()
        return model.state_dict()

    whole = asyncio.run(play("whole"))
    assert [one["mask_renewed"] for one in history] == [0.0, 1.0, 0.0, 1.0, 0.0]
    same = [torch.equal(masks[at]["lm_head.weight"], masks[at + 1]["lm_head.weight"]) for at in range(4)]
    assert same == [False, True, False, True]
    assert max(one["sampler_gap"] for one in history) < 1e-4
    assert max(one["masked_out"] for one in history) == 0.0
    for die_at in (2, 3):  # with a mask that was renewed in that very step, and with one of the step before
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(play(f"killed-{die_at}", die_at=die_at))
        again = asyncio.run(play(f"killed-{die_at}"))
        assert all(torch.equal(weight, again[name]) for name, weight in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "renew_every"), [(0, 0), (1, 2)])
def test_a_run_that_is_told_to_masks_who_samples(tmp_path, staleness, renew_every):
    settings = [
        "model.size=tiny", "model.context=512", "warm_start.min_updates=10", "warm_start.max_updates=20",
        "warm_start.evaluate_every=10", "reinforce.steps=4", "reinforce.tasks=2", "reinforce.teaches=all",
        f"reinforce.loop.staleness={staleness}", "reinforce.loss.old=recomputed", "reinforce.loss.mask.top_p=0.8",
        f"reinforce.loss.mask.renew_every={renew_every}", "evaluate.tasks=2", "tasks=20", "warm_start.imitate=all",
    ]  # fmt: skip
    config = load(base=GAME, overrides=settings)
    train(config, tmp_path / "run")
    told = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [one.get("mask_renewed") for one in told] == ([0, 1, 0, 1] if renew_every else [None] * 4)
    gaps = [one["sampler_gap"] for one in told if "sampler_gap" in one]
    assert gaps
    assert max(gaps) < 1e-4
    if not staleness:
        assert max(one["masked_out"] for one in told) == 0.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["reinforce.loss.mask.renew_every=3"], "mask.top_p is 1: nothing is masked"),
        (["reinforce.loss.mask.top_p=0.9", "reinforce.loss.mask.renew_every=3", "reinforce.loss.old=recomputed",
          "sampler.kind=vllm"], "copies the policy within one process"),
        (["reinforce.loss.mask.top_p=0.9", "reinforce.loss.mask.renew_every=3", "reinforce.loss.old=recomputed",
          "reinforce.loss.kl=0.1", "reinforce.loss.divergence.estimate=exact"], "two other models at once"),
    ],
)  # fmt: skip
def test_what_a_mask_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        load(base=GAME, overrides=settings)
