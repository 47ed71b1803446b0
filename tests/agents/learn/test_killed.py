"""Runs that are ended by kill -9 and gone on with."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.checkpoint import latest  # noqa: E402
from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.learn.report import read_metrics  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402

from envgym.store import StoreReader  # noqa: E402


def weights(path):
    from safetensors.torch import load_file

    return load_file(path / "trained" / "model.safetensors")


WARM = f"""
import importlib.util, os, pathlib, signal, sys, traceback
module = importlib.util.spec_from_file_location("support", {str(Path(__file__).with_name("conftest.py"))!r})
support = importlib.util.module_from_spec(module); sys.modules["support"] = support
module.loader.exec_module(support)
from envgym.registry import EnvSpec, register
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.run import train
import torch
torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    if not (child := os.fork()):
        os.dup2(2, 1)
        try:
            exec(pathlib.Path(line.rstrip("\\n")).read_text())
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Has imported what a run needs, which takes longer than the run, and has computed nothing.

Runs each script that it is told in a process of its own, and says how that ended.
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run in a process of its own that kill -9 ends: when metrics.jsonl has so many lines and after that so many
    worlds are being made, or so many of their steps taken.
    """
    scripts = tmp_path_factory.mktemp("scripts")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", WARM], **pipes) as warm:
        assert warm.stdout.readline() == "ready\n"

        def kill(config, folder, *, lines, worlds=None, steps=None):
            script = scripts / f"{len([*scripts.iterdir()])}.py"
            script.write_text(dying(config, folder, lines, worlds, steps))
            print(script, file=warm.stdin, flush=True)
            assert warm.stdout.readline() == f"{-signal.SIGKILL}\n"
            assert not (folder / "trained").exists()

        yield kill
        warm.stdin.close()
        assert warm.wait(60) == 0


def dying(config, folder, lines, worlds, steps) -> str:
    return f"""
metrics, left = pathlib.Path({str(folder / "metrics.jsonl")!r}), {{"worlds": {worlds}, "steps": {steps}}}
def count(what):
    if left[what] and metrics.exists() and metrics.read_text().count("\\n") >= {lines}:
        left[what] -= 1
        if not left[what]:
            os.kill(os.getpid(), signal.SIGKILL)
class Fatal(support.Vault):
    def __init__(self, task):
        count("worlds")
        super().__init__(task)
    async def step(self, action):
        count("steps")
        return await super().step(action)
register("environments", "test-vault", EnvSpec(name="test-vault", tasks=support.vault_tasks, make=Fatal))
register("agents", "test-solver", lambda task, *, seed: support.Solver())
register("agents", "test-guesser", lambda task, *, seed: support.Guesser(seed))
register("schemes", support.ACCOUNTED.name, support.ACCOUNTED)
train(TrainConfig.model_validate_json({config.model_dump_json()!r}), pathlib.Path({str(folder)!r}))
"""


def stored(folder):
    return {one.id: one for one in StoreReader(folder / "trajectories")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("concurrency", "moments"),
    [
        (16, [(0, dict(lines=1, worlds=1)), (2, dict(lines=2, worlds=1))]),  # before a step, before an evaluation
        (1, [(0, dict(lines=1, worlds=4))]),  # of the step's eight episodes three are over
    ],
)
def test_a_run_killed_with_sigkill_resumes_to_the_same_weights_and_episodes(
    config, killed, tmp_path, concurrency, moments
):
    """Law p, with a fixed batch composition: what the whole run computes together, the resumed one does, too."""
    config = config.model_copy(update={"concurrency": concurrency})
    train(config, tmp_path / "whole")
    for snapshot_every, moment in moments:
        folder = tmp_path / f"killed-{snapshot_every}"
        killed(config.model_copy(update={"snapshot_every": snapshot_every}), folder, **moment)
        train(config, folder, resume=True)  # how often snapshots are taken may change
        whole, resumed = weights(tmp_path / "whole"), weights(folder)
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
        assert stored(folder) == stored(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_a_wave_plays_nothing_twice_and_differs_by_rounding(config, killed, tmp_path):
    """Law p elsewhere: what was played stays as it is, and the rest of the wave is computed among fewer."""
    train(config, tmp_path / "whole")
    for lines, steps in ((1, 20), (2, 10)):  # of a step, of an evaluation
        folder = tmp_path / f"killed-{lines}"
        killed(config, folder, lines=lines, steps=steps)
        before = stored(folder)
        train(config, folder, resume=True)
        whole, resumed = stored(tmp_path / "whole"), stored(folder)
        assert before.items() <= resumed.items()
        assert whole.keys() == resumed.keys()
        for name, episode in whole.items():
            for turn, again in zip(episode.turns, resumed[name].turns, strict=True):
                assert (turn.messages, turn.step) == (again.messages, again.step)
                if turn.sampled_ids is not None:
                    np.testing.assert_array_equal(turn.sampled_ids, again.sampled_ids)
                    np.testing.assert_allclose(turn.logprobs, again.logprobs, rtol=0, atol=1e-5)
        ours, theirs = weights(folder), weights(tmp_path / "whole")
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_run_with_a_critic_that_is_killed_while_playing_and_learning_overlap_counts_everything_once(
    config, accounted, killed, tmp_path
):
    folder, account = tmp_path / "run", tmp_path / "account"
    reinforce = {
        "steps": 6, "tasks": 2, "group": 4, "oversample": 2, "checkpoint_every": 2, "credit": accounted,
        "credit_options": {"account": str(account)}, "critic": {"kind": "turn", "warmup": 2, "updates": 2},
    }  # fmt: skip
    config = load(
        base=config.model_dump(exclude={"reinforce"})
        | {"reinforce": reinforce, "evaluate": {"baselines": [], "tasks": 4, "greedy": False, "bootstrap": 200}}
    )
    killed(config, folder, lines=3, steps=6)
    kept = int(latest(folder / "checkpoints" / "reinforce").name.removeprefix("step-"))
    assert 2 <= kept < 6
    before, lines = stored(folder), credited(account)
    train(config, folder, resume=True)
    assert before.items() <= stored(folder).items()
    after = credited(account)[len(lines) :]
    assert len(after) == 6 - kept
    trained = [name for groups in [*lines[: kept - 1], *after] for group in groups for name in group]
    assert len(trained) == len(set(trained)), "nothing trains twice"
    assert set(trained) <= stored(folder).keys()
    metrics = read_metrics(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert [line["version"] for line in metrics] == [0, 1, 2, 3, 4, 5], "the critic warms up for one step"
    assert max(line["staleness_max"] for line in metrics) <= 1
    last = json.loads((folder / "checkpoints" / "reinforce" / "step-000006" / "progress.json").read_text())
    counter = last["queue"]["facts"]["counters"]["counter"]
    assert counter["trained"] == 2 * 6
    told = sum(line["groups"] for line in metrics) + last["since"]["played"]
    assert told == counter["accepted"] + counter.get("abandoned", 0)
    state = torch.load(folder / "checkpoints" / "reinforce" / "step-000006" / "optimizer.pt", weights_only=True)
    assert state["beside"]["estimator"]["updates"] == 2 * 6


def credited(account):
    """The groups of each time that training asked for credit; a trial's are not of the loop."""
    found = [json.loads(line) for line in account.read_text().splitlines()]
    return [groups for groups in found if groups[0][0].startswith("a0")]
