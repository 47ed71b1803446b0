"""A whole run in a folder: every stage, the report, and resumption from any point."""

import asyncio
import io
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from envgym_agents.learn import run as run_module  # noqa: E402
from envgym_agents.learn.cli import preset, presets  # noqa: E402
from envgym_agents.learn.config import LoopSettings, TrainConfig, Watch, load  # noqa: E402
from envgym_agents.learn.evaluate import evaluation  # noqa: E402
from envgym_agents.learn.folder import RunFolder, differing  # noqa: E402
from envgym_agents.learn.pool import report_runs  # noqa: E402
from envgym_agents.learn.run import evaluate_folders, train  # noqa: E402
from envgym_agents.learn.watch import Anomaly  # noqa: E402

from envgym.cli import run  # noqa: E402
from envgym.store import StoreReader  # noqa: E402


def weights(path):
    from safetensors.torch import load_file

    return load_file(path / "trained" / "model.safetensors")


@pytest.mark.slow
def test_a_run_leaves_a_whole_folder_and_a_report(config, tmp_path):
    out = io.StringIO()
    report = train(config, tmp_path / "run", console=Console(file=out, width=160))
    names = [one["name"] for one in report["evaluations"]]
    students = ["before RL", "before RL, greedy", "after RL", "after RL, greedy"]
    assert names == ["test-guesser", "test-solver", *students]
    assert report["evaluations"][1]["success"] == 1.0
    assert report["expert"]["success"] == 1.0
    assert report["warm_start"]["updates"] >= 10
    assert report["reinforce"]["stop"] == "steps"
    folder = tmp_path / "run"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert max(line["sampler_gap"] for line in steps if "sampler_gap" in line) < 1e-3
    for name in ("learning_curve.png", "warm_start.png", "report.json", "config.json", "trained/model.safetensors"):
        assert (folder / name).exists(), name
    stored = RunFolder(folder, config, resume=True)
    episodes = list(StoreReader(stored.trajectories))
    steps_played = {one.id[:6] for one in episodes if re.match(r"s\d{5}-g", one.id)}
    assert steps_played == {"s00000", "s00001", "s00002"}
    for name, who in {
        "expert": "test-solver",
        "evaluate-test-guesser": "test-guesser",
        "evaluate-after RL, greedy": "after RL, greedy",
        "s00001": "student",
    }.items():
        facts = dict(next(one for one in episodes if one.id.startswith(f"{name}-")).provenance)
        assert (facts["environment"], facts["agent"]) == ("test-vault", who)
        assert facts["torch"] == torch.__version__
    assert "after RL - before RL" in out.getvalue()
    again = train(config, folder, resume=True)  # nothing is left to do; the report is the same
    assert again == report


@pytest.mark.slow
def test_a_run_with_adapters_begins_with_a_folder_and_leaves_an_ordinary_one(config, tmp_path):
    steps = ["reinforce.steps=1", "evaluate.greedy=false"]
    train(load(overrides=steps, base=config.model_dump()), tmp_path / "first")
    begun = tmp_path / "first" / "trained"
    values = config.model_dump() | {"model": {"path": str(begun), "context": 128, "answer": 64, "lora_rank": 2}}
    more = [*steps, "warm_start.episodes_per_task=0", "reinforce.lr=0.05", "reinforce.loss.kl=0"]
    report = train(load(overrides=more, base=values), tmp_path / "second")
    assert report["reinforce"]["stop"] == "steps"
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("proj" in name for name in moved), moved  # embeddings, norms and the output stay


def test_a_report_s_intervals_are_those_of_its_seed_and_resamples(config, tmp_path):
    twice = load(overrides=["evaluate.attempts=2", "evaluate.bootstrap=150", "seed=7"], base=config.model_dump())
    report = asyncio.run(evaluate_folders(twice, tmp_path / "eval", agents=["test-guesser"]))
    stored = RunFolder(tmp_path / "eval", twice, resume=True)
    played = evaluation("test-guesser", stored.read("evaluate-test-guesser"))
    assert 0 < played.rate < 1
    wanted = played.summary(seed=7, draws=150)
    for found in (report["evaluations"][0], stored.done("evaluate-test-guesser")):
        assert (found["low"], found["high"]) == (wanted["low"], wanted["high"])


@pytest.mark.slow
def test_runs_of_several_seeds_are_reported_as_one(config, tmp_path):
    short = config.model_copy(update={"reinforce": config.reinforce.model_copy(update={"steps": 1})})
    paths = [tmp_path / "zero", tmp_path / "one"]
    alone = [train(short.model_copy(update={"seed": seed}), path) for seed, path in enumerate(paths)]
    out = io.StringIO()
    report = report_runs(paths, Console(file=out, width=160))
    rates = {one["name"]: one for one in report["evaluations"]}
    for name in ("test-guesser", "after RL"):
        own = [next(e for e in run["evaluations"] if e["name"] == name) for run in alone]
        assert rates[name]["attempts"] == sum(one["attempts"] for one in own)
        assert rates[name]["success"] == pytest.approx(sum(one["success"] for one in own) / 2)
    assert {f"after RL - before RL, seed {seed} ({path.name})" for seed, path in enumerate(paths)} < set(
        report["differences"]
    )
    assert "2 runs" in out.getvalue()
    beside = [tmp_path / "beside", tmp_path / "beside-one"]
    longer = short.model_copy(update={"reinforce": short.reinforce.model_copy(update={"lr": 0.05})})
    other = [train(longer.model_copy(update={"seed": seed}), path) for seed, path in enumerate(beside)]
    compared = report_runs(paths, Console(file=out, width=160), against=beside[::-1])
    after = [[next(e["success"] for e in run["evaluations"] if e["name"] == "after RL") for run in runs]
             for runs in (alone, other)]  # fmt: skip
    found = compared["differences"]["after RL - the others' after RL, by task"]
    assert found["mean"] == pytest.approx((sum(after[0]) - sum(after[1])) / 2)
    assert found["low"] <= found["mean"] <= found["high"]
    assert [one.partition(" ")[0] for one in compared["differ"]] == ["reinforce.lr"]
    assert "the others differ in: reinforce.lr" in out.getvalue()
    with pytest.raises(ValueError, match=r"these have \[0, 1\], the others \[0\]"):
        report_runs(paths, None, against=beside[:1])
    with pytest.raises(ValueError, match="twice"):
        report_runs([paths[0], paths[0]], None)
    shutil.copytree(paths[0], tmp_path / "again")
    with pytest.raises(ValueError, match="are both of seed 0, and would count as two"):
        report_runs([*paths, tmp_path / "again"], None)
    with pytest.raises(ValueError, match="no run"):
        report_runs([tmp_path], None)
    assert run(["train", "--resume", "--out", str(paths[1])]) == 0, "as it was begun, and nothing is left to do"
    stored = (paths[1] / "config.json").read_text()
    (paths[1] / "config.json").write_text(stored.replace('"turns": 5', '"turns": 9'))
    with pytest.raises(ValueError, match=r"different experiments; they differ in: turns \(5, 9\)"):
        report_runs(paths, None)
    (paths[0] / "stages.json").write_text("{}")
    with pytest.raises(ValueError, match="not finished"):
        report_runs(paths, None)


def test_a_fresh_model_without_an_expert_is_refused(config, tmp_path):
    without = config.model_copy(
        update={"warm_start": config.warm_start.model_copy(update={"episodes_per_task": 0})}
    )
    with pytest.raises(ValueError, match="needs the expert's episodes"):
        train(without, tmp_path / "run")


@pytest.mark.slow
def test_model_folders_and_agents_are_compared_on_the_same_worlds(config, tmp_path):
    train(config, tmp_path / "run")
    folders = [tmp_path / "run" / "warm", tmp_path / "run" / "trained"]
    report = asyncio.run(evaluate_folders(config, tmp_path / "eval", models=folders, agents=["test-solver"]))
    names = [one["name"] for one in report["evaluations"]]
    assert names == ["test-solver", "run-warm", "run-warm, greedy", "run-trained", "run-trained, greedy"]
    assert report["evaluations"][0]["success"] == 1.0
    change = report["differences"]["run-warm - test-solver, by task"]
    assert change["mean"] == pytest.approx(report["evaluations"][1]["success"] - 1.0)

    def again(models, agents=(), **rest):
        return asyncio.run(evaluate_folders(config, tmp_path / "eval", models=models, agents=agents, **rest))

    assert again(folders, ["test-solver"], resume=True) == report
    namesake = tmp_path / "other" / "run" / "trained"
    shutil.copytree(folders[1], namesake)
    for models, label in (([folders[1], namesake], "run-trained"), ([folders[0], folders[0]], "run-warm")):
        with pytest.raises(ValueError, match=f"'{label}' names 2 of what is to be compared"):
            again(models, resume=True)
    assert again([namesake], resume=True)["evaluations"][0]["name"] == "run-trained"  # the same weights, elsewhere
    shutil.copy(folders[0] / "model.safetensors", namesake)
    with pytest.raises(ValueError, match=r"episodes of another model as 'run-trained': .*digest"):
        again([namesake], resume=True)


def test_presets_are_valid_configurations():
    assert {name: load(base=preset(name)).env for name in presets()} == {
        "demo": "code-repair",
        "miniwob": "miniwob",
        "record": "code-repair",
        "sql": "sql",
    }
    with pytest.raises(ValueError, match="known: demo, miniwob, record, sql"):
        preset("none")
    with pytest.raises(ValueError, match=r"did you mean 'record'\?"):
        preset("recrod")


def test_the_recorded_preset_is_what_the_log_records_but_for_files():
    log = (Path(__file__).parents[3] / "LOG.md").read_text()
    (recorded,) = (block for block in re.findall(r"```toml\n(.*?)```", log, re.S) if "[warm_start]" in block)
    own = load(base=preset("record"))
    then = tomllib.loads(recorded)
    del then["store_every"]  # a setting of then: which steps were stored; all are now
    then["reinforce"]["loop"] = {"staleness": 0}  # the only loop of then
    changed = differing(load(base=then), own)
    declared = "reinforce.credit_options.truncation"  # what was the default then
    assert {line.partition(" ")[0] for line in changed} == {"task_options.path", "env_options.memo", declared}
    assert (own.reinforce.steps, own.reinforce.minutes) == (41, None)  # gone on with up to there, says the log


def test_a_split_without_tasks_is_refused(config, tmp_path):
    with pytest.raises(ValueError, match="no tasks in its split 'valid'"):
        train(config.model_copy(update={"split": "valid"}), tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("env=test-vaul", "env = 'test-vaul': unknown environment 'test-vaul'; did you mean 'test-vault'?"),
        ("split=trian", "split = 'trian': environment 'test-vault' has no tasks in its split 'trian'; did you mean "
         "'train'?"),
        ("evaluate.split=helt", "evaluate.split = 'helt': environment"),
        ("task_options.cuont=3", "task_options.cuont = 3: there is no such option; did you mean 'count'?"),
        ("env_options.size=3", "env_options.size = 3: there is no such option; known: none"),
        ("expert=test-solvr", "expert = 'test-solvr': unknown agent 'test-solvr'; did you mean 'test-solver'?"),
        ("evaluate.baselines=['test-gueser']", "evaluate.baselines = 'test-gueser': unknown agent"),
        ("evaluate.baselines=['lm']", "evaluate.baselines = 'lm': it needs the option 'model', which is not given"),
        ("agent_options.sped=2", "agent_options.sped = 2: there is no such option; did you mean 'speed'?"),
        ("agent_options.speed=0", "agent 'test-solver' with agent_options {'speed': 0}: speed is 0"),
        ("model.size=tyni", "model.size = 'tyni': unknown model size 'tyni'; did you mean 'tiny'?"),
        ("model.path=nowhere", "model.path = 'nowhere': this is no model folder, there is no config.json in it"),
        ("reinforce.credit=grop-relative", "reinforce.credit = 'grop-relative': unknown scheme 'grop-relative'"),
        ("reinforce.credit_options.gama=1", "option.gama = 1: there is no such option; did you mean 'gamma'?"),
        ("reinforce.credit_options.gamma=2", "gamma is 2; it must be from 0 to 1"),
        ("device=cdua", "device = 'cdua': "),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_before_anything_is_written(config, tmp_path, wrong, said):
    mistaken = load(overrides=[wrong], base=config.model_dump())
    with pytest.raises(ValueError, match=r".") as error:
        train(mistaken, tmp_path / "run")
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_what_eval_is_to_play_is_checked_before_anything_is_written(config, tmp_path):
    for models, agents, said in (
        ([tmp_path / "nowhere"], [], r"model = .*nowhere.*no model folder"),
        ([], ["test-solvr"], r"agent = 'test-solvr': unknown agent 'test-solvr'; did you mean 'test-solver'\?"),
        ([], ["random", "random"], r"'random' names 2 of what is to be compared \(agents\)"),
    ):
        with pytest.raises(ValueError, match=said):
            asyncio.run(evaluate_folders(config, tmp_path / "eval", models=models, agents=agents))
    assert not (tmp_path / "eval").exists()


def test_a_step_s_deadline_is_the_configuration_s(config, tmp_path):
    async def limits():
        patient = load(overrides=["step_s=900"], base=config.model_dump())
        async with run_module.opened(patient, tmp_path / "run", False, None) as run:
            return run.arena.by("anybody").rollout.limits

    assert asyncio.run(limits()).step_s == 900


def test_options_of_the_expert_are_for_no_other_agent(config, tmp_path):
    chosen = load(overrides=["agent_options.speed=3"], base=config.model_dump())

    async def agents():
        names = [("expert", "test-solver"), ("evaluate.baselines", "test-guesser")]
        async with run_module.opened(chosen, tmp_path / "run", False, None, names) as run:
            return {name: agent.options for name, agent in run.named.agents.items()}

    assert asyncio.run(agents()) == {"test-solver": {"speed": 3}, "test-guesser": {}}


@pytest.mark.slow
def test_another_model_folder_trains_with_the_same_command(config, tmp_path):
    train(config, tmp_path / "first")
    path = str(tmp_path / "first" / "warm")
    values = {**config.model_dump(), "model": {"path": path, "context": 128, "answer": 64}}
    report = train(TrainConfig.model_validate(values), tmp_path / "second")
    assert report["reinforce"]["step"] == 3


def test_a_part_of_the_tasks_comes_from_all_over_their_order(config, vault, tmp_path):
    async def chosen():
        async with run_module.opened(config.model_copy(update={"tasks": 4}), tmp_path / "run", False, None) as run:
            return [task.id for task in run.named.train_tasks]

    known = [task.id for task in vault.tasks().split("train")]
    assert asyncio.run(chosen()) == [known[place * len(known) // 4] for place in range(4)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_overlaps_is_stopped_by_what_it_watches_and_goes_on_with_another_bound(config, tmp_path):
    config = config.model_copy(
        update={
            "reinforce": config.reinforce.model_copy(update={"loop": LoopSettings(staleness=1), "teaches": "all"}),
            "watch": Watch(entropy=50.0, patience=2),
        }
    )
    with pytest.raises(Anomaly, match=r"stopped after step 2: the entropy .* below 50.*\(watch\.entropy\)"):
        train(config, tmp_path / "run")
    config = config.model_copy(update={"watch": Watch()})
    report = train(config, tmp_path / "run", resume=True)
    assert report["reinforce"]["stop"] == "steps"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert max(line.get("staleness_max", 0.0) for line in lines) <= 1
    assert (tmp_path / "run" / "trained" / "model.safetensors").exists()
