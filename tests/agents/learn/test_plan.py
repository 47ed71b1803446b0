"""What a plan says of memory is what is measured, and what cannot fit is refused with what would help."""

from itertools import accumulate

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.config import Reinforce, load  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.plan import critics_of, facts_of, memory_of, plan_of  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.model import new_model, parameters  # noqa: E402

from envgym.cli import run  # noqa: E402

FACTOR = 1.6
"""Between the estimate and what is measured, either way."""


def small(**rest):
    base = {"model": {"size": "1M", "vocabulary": 2000}, "max_tokens": 512, **rest}
    return load(base=base)


def measured(config, turn, episode) -> int:
    """Bytes that a learner holds at the most in its second update: of one batch that fills `max_tokens`."""
    model = new_model(config.model.vocabulary, size=config.model.size, context=512)
    scorer = Scorer(model, chunk=config.learner.chunk, checkpointed=config.learner.checkpoint, share=False)
    learner = Learner(scorer, adamw(model, lr=1e-3, weight_decay=0.0), max_tokens=config.max_tokens)
    ids = [int(one) for one in np.random.default_rng(0).integers(0, 2000, 128)]
    groups = [
        rows_of(episode(f"{n}", [turn(ids[:8], ids[8:], position=0)]), np.full(120, 1.0 - n % 2 * 2, np.float32))
        for n in range(4)
    ]
    once = Reinforce(epochs=1, minibatches=1)
    learner.update(groups, once, np.random.default_rng(0), lr=1e-3)
    learner.optimizer.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        learner.update(groups, once, np.random.default_rng(0), lr=1e-3)
    events = profiled.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    peak = max(accumulate(size for _, size in changes))
    return peak + (4 + 8) * parameters(model)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [{}, {"checkpoint": True}, {"chunk": 64}, {"chunk": 64, "checkpoint": True}])
def test_the_estimate_is_near_the_measured_peak(learner, turn, episode):
    config = small(learner=learner)
    estimate = memory_of(facts_of(config), config, processes=1).total
    peak = measured(config, turn, episode)
    assert 1 / FACTOR <= estimate / peak <= FACTOR, (estimate, peak)


def test_what_divides_and_what_shrinks_is_in_the_estimate():
    config = small()
    facts = facts_of(config)
    one, four = (memory_of(facts, config, processes=number) for number in (1, 4))
    assert four.optimizer == one.optimizer // 4
    assert four.gradients == one.gradients // 4
    assert four.activations == one.activations
    less = memory_of(facts, small(learner={"checkpoint": True, "chunk": 64}), processes=1)
    assert less.activations < one.activations
    assert less.logits < one.logits


def test_a_plan_says_what_runs_and_refuses_what_cannot_fit():
    config = small(learner={"processes": 2}, reinforce={"loop": {"staleness": 0}})
    plan = plan_of(config, facts_of(config), there=1 << 40, rate=1e9)
    plan.check()
    text = "\n".join(plan.lines())
    assert "warm start" in text
    assert "over 2 processes (FSDP2)" in text
    assert "take turns" in text
    tight = plan_of(config, facts_of(config), there=1 << 20, rate=1e9)
    with pytest.raises(ValueError, match=r"this host's memory has 1.0 MiB free.*concurrency or model.context"):
        tight.check()


def test_critics_are_counted_whole_however_many_processes_the_learner_has():
    def planned(processes: int, **critic):
        credit = {"turn": "direct-advantage", "implicit": "implicit-rewards"}[critic["kind"]]
        config = small(learner={"processes": processes}, reinforce={"critic": critic, "credit": credit})
        return plan_of(config, facts_of(config), there=1 << 40, rate=1e9), critics_of(facts_of(config), config)

    count = facts_of(small()).parameters
    for body, weights, trained in (("policy", 0, 0), ("frozen", count, 0)):
        found = planned(1, kind="turn", body=body)[1]
        assert (found.weights, found.gradients, found.optimizer) == (4 * weights, 4 * trained, 8 * trained)
    own = planned(1, kind="turn", body="own", size="1M")[1]
    assert own.weights == 2 * own.gradients == own.optimizer
    assert own.gradients == 4 * parameters(new_model(2000, size="1M"))
    implicit = planned(1, kind="implicit")[1]
    assert (implicit.weights, implicit.gradients) == (8 * count, 4 * count)
    plain = small(learner={"processes": 2}, reinforce={"loop": {"staleness": 0}})
    without = plan_of(plain, facts_of(plain), there=1 << 40, rate=1e9)
    divided, critics = planned(2, kind="implicit")
    assert divided.devices[0].memory.total - without.devices[0].memory.total == critics.total
    assert "critic 'implicit' (whole, in this process)" in "\n".join(divided.lines())


def test_the_plan_of_a_recipe_is_of_all_its_stages_and_says_what_each_learns_from(tmp_path, capsys):
    common = ["--plan", "--out", str(tmp_path / "run"), "--set", "env=guess", "--set", "expert=random"]
    assert run(["train", "--recipe", "sft-preference-rl", *common]) == 0
    told = capsys.readouterr().out
    assert "stage preference: the model that sft leaves" in told
    assert "loss 'dpo'" in told
    assert run(["train", "--recipe", "curriculum", *common]) == 0
    assert "tasks drawn by solve-rate" in capsys.readouterr().out
    assert run(["train", "--recipe", "offline-online", *common]) == 2
    assert "reinforce.loop.past.path = ''" in capsys.readouterr().err
    assert run(["train", "--recipe", "distillation", *common]) == 2
    assert "reinforce.loss.distill.teacher = ''" in capsys.readouterr().err
    assert run(["train", "--recipe", "self-play", *common, "--set", "env=propose-solve"]) == 0
    assert "credit 'rae'" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_the_command_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    options = ["--set", "env=guess", "--set", "model.size=tiny", "--set", "concurrency=4"]
    assert run(["train", "--plan", "--out", str(tmp_path / "run"), *options]) == 0
    assert "this host's memory" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
