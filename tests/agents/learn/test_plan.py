"""What a plan says of memory is what is measured, and what cannot fit is refused with what would help."""

from itertools import accumulate

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.cluster.placement import Node, place, wanted  # noqa: E402
from envgym_agents.learn.config import Reinforce, load  # noqa: E402
from envgym_agents.learn.facts import Facts, facts_of  # noqa: E402
from envgym_agents.learn.memory import critics_of, memory_of, vllm_of  # noqa: E402
from envgym_agents.learn.pack import Row, batches, rows_of  # noqa: E402
from envgym_agents.learn.plan import plan_of  # noqa: E402
from envgym_agents.learn.scoring import scorer_of  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.work import Work, forward_of, work_of  # noqa: E402
from envgym_agents.model import new_model, parameters  # noqa: E402
from transformers import Qwen2_5_VLConfig  # noqa: E402

from envgym.cli import run  # noqa: E402

FACTOR = 1.6
"""Between the estimate and what is measured, either way."""


def small(**rest):
    base = {"model": {"size": "1M", "vocabulary": 2000, "context": 512}, "max_tokens": 512, **rest}
    return load(base=base)


def measured(config, turn, episode) -> int:
    """Bytes that a learner holds at the most in its second update: of one batch that fills `max_tokens`."""
    model = new_model(config.model.vocabulary, size=config.model.size, context=512)
    scorer = scorer_of(config, model)
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
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_estimate_is_near_the_measured_peak(learner, precision, turn, episode):
    config = small(learner={**learner, "precision": precision, "share": "never"})
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


def test_a_row_longer_than_a_pass_may_be_goes_alone_and_is_counted():
    long = small(model={"size": "1M", "vocabulary": 2000, "context": 2048})
    ids = np.zeros(2048, np.int32)
    one = Row("e", "t", ids, np.array([2047], np.int32), *np.zeros((3, 1), np.float32), (None,))
    computed = max(batch.tokens for batch in batches([one], max_tokens=long.max_tokens, share_prefixes=False))
    wide = small(max_tokens=2048)
    assert computed == 2047 > long.max_tokens
    assert memory_of(facts_of(long), long, processes=1) == memory_of(facts_of(wide), wide, processes=1)


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
    plain = small(learner={"processes": 2})  # overlapped too, so with another copy of the weights
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
    assert run(["train", "--plan", *options]) == 0
    assert run(["train", *options]) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_the_shape_of_a_model_that_sees_is_read_and_planned_with(tmp_path):
    folder = tmp_path / "sees"
    text = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen2_5_VLConfig(text_config={**text, **heads}, vision_config={"depth": 1, "hidden_size": 32}).save_pretrained(
        folder
    )
    (folder / "preprocessor_config.json").write_text("{}")
    facts = facts_of(load(base={"model": {"path": str(folder)}}))
    assert (facts.layers, facts.hidden, facts.vocabulary, facts.kv_width) == (2, 32, 300, 16)
    assert facts.parameters > 300 * 32


def test_vllm_is_counted_as_a_process_of_its_own_with_the_cache_that_it_is_given():
    plain, served = small(), small(sampler={"kind": "vllm", "cache_gib": 3})
    facts = facts_of(plain)
    own, beside = (plan_of(one, facts, there=1 << 40, rate=1e9).devices[0] for one in (plain, served))
    assert beside.memory.kv_cache == 3 << 30
    # a copy of the weights more to compare with, and the file that new ones come in
    assert beside.memory.weights - own.memory.weights == 2 * 4 * facts.parameters
    assert "vLLM in a process of its own" in beside.holds
    gpu = vllm_of(facts, small(sampler={"kind": "vllm", "gpu_share": 0.25}), 80 << 30)
    assert gpu.total == 20 << 30


def test_work_is_that_of_every_pass_by_hand():
    facts = Facts(1000, 1000, layers=2, hidden=8, inner=16, heads=2, kv_width=8, vocabulary=50)
    model = {"context": 128, "answer": 64}
    once = 2 * 1000 + 2 * 2 * 8 * 128
    assert forward_of(facts, 128) == once
    plain = load(base={"model": model, "reinforce": {"epochs": 2}, "warm_start": {"max_updates": 900, "rows": 4}})
    found = work_of(plain, facts, tokens=10)
    assert found == Work(3 * once * 900 * 4 * 128, 2 * 3 * once * 10, 0, 0)
    loss = {"old": "recomputed", "kl": 0.1, "ratio": "sequence"}
    more = load(base={"model": model, "learner": {"checkpoint": True}, "reinforce": {"epochs": 2, "loss": loss}})
    beside = work_of(more, facts, tokens=10, frozen=500)
    assert beside.updates == 2 * 4 * once * 10
    assert beside.passes == 10 * (once + 2 * once + (2 * 500 + 2 * 2 * 8 * 128))
    critic = {"critic": {"kind": "turn", "body": "frozen", "updates": 4, "groups": 8}, "tasks": 16}
    assert work_of(load(base={"model": model, "reinforce": critic}), facts, tokens=10).critics == 3 * once * 10


def test_the_time_is_that_of_learning_and_of_sampling_where_this_process_samples_and_says_what_ends_it_sooner():
    reinforce = {"steps": 2, "tasks": 3, "oversample": 2, "group": 4, "minutes": 5}
    model = {"context": 256, "answer": 64}
    config = small(reinforce=reinforce, model=model)
    facts = facts_of(config)
    plan = plan_of(config, facts, there=1 << 40, rate=1e9)
    assert plan.work.sampling == 2 * 6 * 4 * 256 * forward_of(facts, 256)  # steps, groups, members, tokens
    masked = small(reinforce={**reinforce, "loss": {"old": "recomputed", "mask": {"top_p": 0.9}}}, model=model)
    assert plan_of(masked, facts, there=1 << 40, rate=1e9).work.sampling == 2 * plan.work.sampling
    *_, time, until = plan.lines()
    minutes = (plan.work.learning + plan.work.sampling) / 1e9 / 60
    assert f"about {minutes:,.1f} minutes of arithmetic at 1.0 GFLOP/s" in time
    assert f"sampling {plan.work.sampling / 1e9 / 60:,.1f}" in time
    assert until == "  RL ends after 5 minutes (reinforce.minutes), however far it is then"
    assert "a bound on time" not in time
    warm = {"episodes_per_task": 1, "max_updates": 1000, "rows": 16, "minutes": 0.5}
    bounded = small(reinforce={**reinforce, "minutes": 0.25}, model=model, warm_start=warm)
    *_, time, first, second = plan_of(bounded, facts, there=1 << 40, rate=1e9).lines()
    assert "of which a bound on time lets at most 0.8 happen" in time  # half a minute and a quarter
    assert first == "  the warm start ends after 0.5 minutes (warm_start.minutes), however far it is then"
    assert second == "  RL ends after 0.25 minutes (reinforce.minutes), however far it is then"
    for elsewhere in ({"sampler": {"kind": "vllm"}}, {"cluster": {"workers": 1}}):
        other = small(reinforce=reinforce, model=model, **elsewhere)
        assert work_of(other, facts, tokens=10, played=100).sampling == 0
    nothing_played = small(reinforce={"steps": 2, "loop": {"past": {"kind": "alone", "path": "x"}}}, model=model)
    assert plan_of(nothing_played, facts, there=1 << 40, rate=1e9).work.sampling == 0


@pytest.mark.parametrize(
    ("members", "played", "learned"),
    [
        ({}, 4, 4),
        ({"forks": {"points": 2, "times": 3}}, 28, 28),
        ({"kind": "resample-on-correct", "played": 9}, 9, 4),
        ({"kind": "adaptive", "per_round": 3, "rounds": 5}, 15, 4),
    ],
)
def test_continuations_and_members_that_are_not_learned_from_are_counted(members, played, learned):
    reinforce = {"steps": 2, "tasks": 3, "oversample": 2, "group": 4, "members": members}
    config = small(reinforce=reinforce, model={"context": 256, "answer": 64})
    plan = plan_of(config, facts_of(config), there=1 << 40, rate=1e9)
    assert (plan.episodes, plan.tokens) == (12 * played, 12 * learned * 256)


def test_what_each_gpu_of_a_node_of_ray_has_to_hold_is_told_though_its_size_is_not_known():
    config = small(cluster={"workers": 1, "learners": 2, "learner_gpus": 1, "gpus": 1})
    facts, nodes = facts_of(config), [Node("a", "host-a", 8.0, 4.0, memory=1 << 40)]
    plan = plan_of(config, facts, there=1 << 40, rate=1e9, placed=place(wanted(config.cluster), nodes, "spread"))
    told = {device.holds: device for device in plan.devices if device.there is None}
    assert told["2 learner(s), each with this much on its 1 GPU"].memory == memory_of(facts, config, processes=2)
    assert "1 worker(s), each with this much on its 1 GPU" in told
    plan.check()
    assert "of an unknown size" in "\n".join(plan.lines())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, whose memory and rate are known")
def test_a_plan_for_a_device_that_is_not_here_says_what_is_not_known():
    config = small(device="cuda", learner={"processes": 2})
    lines = plan_of(config, facts_of(config)).lines()
    assert [line for line in lines if line.startswith("cuda:")] != []
    assert any("of an unknown size" in line for line in lines)
    assert lines[-1] == "  how long that takes is not known: the device is not here"
    with pytest.raises(ValueError, match="device = 'cudda'"):
        plan_of(small(device="cudda"), facts_of(config))
