"""vLLM itself, on a CPU: the whole contract over syncs, in a process and inside, and training runs with it.

Its model has tied embeddings, which vLLM by itself keeps as they were when new weights come.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from envgym_agents.learn.config import LoopSettings, Reinforce
from envgym_agents.learn.overlap import Overlapped
from envgym_agents.learn.parts import Parts
from envgym_agents.learn.play import Arena, TaskOrder
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.policies.vllm.link import VllmMissing, find_python, server
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.weights import gap
from envgym_agents.policies.vllm.wire import EngineSettings
from transformers import Qwen2Config, Qwen2ForCausalLM

from envgym.buffer import oldest_version
from envgym.cli import run
from envgym.env import Step, StopReason
from envgym.limits import Sampling
from envgym.messages import Action, Message
from envgym.policy import Prompt, Reply
from envgym.registry import EnvSpec, register, unregister
from envgym.rollout import Rollout
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task, TaskSet
from envgym.testing import check_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]
VOCAB, LENGTH = 256, 512


def model_of(seed=1):
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=LENGTH, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def python():
    try:
        return find_python()
    except VllmMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def policy(python, loop):
    """One engine for this module."""
    made = VllmPolicy(model_of(), server(python), settings=EngineSettings("", 0, threads=1))
    yield made
    loop(made.close())


def test_vllm_keeps_the_whole_contract_and_its_log_probabilities_are_the_learners_after_every_sync(
    policy, loop, case_of
):
    case = replace(case_of(policy, model_of()), vocabulary=VOCAB)
    names = loop(check_policy(case))
    assert {"logprobs", "syncs", "in_flight", "forks", "abort", "seeds"} <= set(names)
    assert policy.engine.startswith("vLLM ")
    assert policy.counts.updates == 3
    assert len(policy.counts.gaps) == 4
    assert max(policy.counts.gaps) < 1e-4


def test_more_prompts_at_once_than_one_step_holds_are_all_answered_with_their_seeds(policy, loop):
    """vLLM cuts prompts by default; on a CPU that breaks the engine where a request has a seed."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, 400).tolist() for _ in range(16)]

    async def play():
        return await asyncio.gather(
            *(policy.sample(Prompt(ids), Sampling(max_tokens=3, seed=n)) for n, ids in enumerate(prompts))
        )

    found = loop(play())
    assert [len(one.ids) for one in found] == [3] * 16
    assert max(gap(policy.model, prompts[n], found[n].ids, found[n].logprobs, Sampling()) for n in (0, 15)) < 1e-4


def test_a_growing_context_is_cached_and_never_across_an_update(policy, loop):
    async def play():
        found, context = [], list(range(100))
        session = policy.session()
        for turn in range(3):
            before = policy.counts.cached_tokens
            one = await policy.sample(Prompt(context), Sampling(max_tokens=3, seed=turn), session)
            found.append(policy.counts.cached_tokens - before)
            context += [*one.ids, 7, 8]
            if turn == 1:
                await policy.update(model_of(5).state_dict())
        assert gap(model_of(5), context[:-5], one.ids, one.logprobs, Sampling(max_tokens=3)) < 1e-4
        return found

    first, second, third = loop(play())
    assert (first, third) == (0, 0)
    assert second >= 96  # whole blocks of 32


def test_a_completion_that_meets_an_update_is_exact_on_both_sides_of_it(policy, loop):
    async def play():
        old, new = model_of(6), model_of(7)
        await policy.update(old.state_dict())
        version, context, sampling = policy.version, [3, 1, 4], Sampling(max_tokens=400, seed=2)
        session = policy.session()
        call = asyncio.ensure_future(policy.sample(Prompt(context), sampling, session))
        await policy.sample(Prompt([1]), Sampling(max_tokens=5))  # five steps, which the other took part in
        await policy.update(new.state_dict())
        found = await call
        assert [one.version for one in found.versions] == [version, version + 1]
        cut = found.versions[1].start
        assert gap(old, context, found.ids[:cut], found.logprobs[:cut], sampling) < 1e-4
        rest = [*context, *found.ids[:cut]]
        assert gap(new, rest, found.ids[cut:], found.logprobs[cut:], sampling) < 1e-4

    loop(play())


def test_a_completion_is_aborted_with_what_there_is_and_resumed(policy, loop):
    async def play():
        context = [2, 7, 1, 8]
        for seed in range(3, 9):  # on a busy machine an abort may come before a block is full, or after the end
            session = policy.session()
            asked = policy.sample(Prompt(context), Sampling(max_tokens=450, seed=seed), session)
            call = asyncio.ensure_future(asked)
            await policy.sample(Prompt([1]), Sampling(max_tokens=40))
            session.abort()
            part = await call
            if part.finish == "abort" and len(part.ids) > 30:
                break
        assert part.finish == "abort"
        assert 30 < len(part.ids) < 450
        before = policy.counts.cached_tokens
        rest = await policy.sample(Prompt([*context, *part.ids]), Sampling(max_tokens=4, seed=4), session)
        assert policy.counts.cached_tokens - before >= 32
        whole = gap(policy.model, context, [*part.ids, *rest.ids], [*part.logprobs, *rest.logprobs], Sampling())
        assert whole < 1e-4

    loop(play())


def test_draws_are_of_the_distribution_that_is_reported_also_with_a_nucleus(policy, loop):
    async def play():
        for seed in range(4):
            sampling = Sampling(max_tokens=6, seed=seed, temperature=0.8, top_p=0.9, allowed=(5, 6, 7))
            found = await policy.sample(Prompt([9, 9, seed]), sampling)
            assert found.ids[0] in (5, 6, 7)
            assert gap(policy.model, [9, 9, seed], found.ids, found.logprobs, sampling) < 1e-4

    loop(play())


class Talk:
    """Three turns of a world that says little, and is pleased by chance."""

    tools = ()

    def __init__(self, task):
        self.task = task

    async def reset(self, *, seed):
        self.turns, self.reward = 0, float(seed % 7)
        return Step((Message(role="user", content="go"),))

    async def step(self, action):
        self.turns += 1
        done = self.turns == 3
        stop = StopReason.GOAL if done else None
        return Step((Message(role="user", content="on"),), reward=self.reward if done else None, stop=stop)

    async def close(self):
        return


class Talker:
    """Samples forty tokens in each turn, after two that stand for what the world said."""

    name = "agent"

    def __init__(self, policy, seed):
        self.policy, self.ids, self.seed, self.session = policy, [], seed, policy.session()

    async def act(self, step):
        self.seed, position, shown = self.seed + 1, len(self.ids), (self.seed % VOCAB, 5)
        self.ids += shown
        completion = await self.policy.sample(
            Prompt(self.ids), Sampling(max_tokens=40, seed=self.seed), self.session
        )
        self.ids += completion.ids
        return Reply(Action.say("x"), shown, completion, position=position)

    async def close(self):
        self.session.close()


class Published:
    """A policy that keeps a copy of every weights that it is given."""

    def __init__(self, policy):
        self.policy, self.weights = policy, {}

    version = property(lambda self: self.policy.version)

    async def update(self, weights, *, version, masks=None):
        self.weights[version] = {name: value.clone() for name, value in weights.items()}
        return await self.policy.update(weights, version=version, masks=masks)


@pytest.fixture
def talk():
    spec = EnvSpec(name="test-talk", in_process=True, make=Talk, tasks=lambda: TaskSet([Task(id="t0", prompt="")]))
    register("environments", spec.name, spec)
    yield spec
    unregister("environments", spec.name)


def test_an_overlapped_run_keeps_its_bound_and_every_token_is_of_the_weights_that_its_run_names(
    policy, loop, talk, tmp_path
):
    config = Reinforce(
        steps=5, tasks=2, group=2, teaches="all", credit="reinforce", lr=3e-3, warmup=0,
        loop=LoopSettings(staleness=1),
    )  # fmt: skip
    model, published, before = model_of(8), Published(policy), len(policy.counts.gaps)
    told = []

    async def on_step(progress, found, values):
        told.append(values)
        for one in (member for group in found.groups for member in group):
            assert oldest_version(one) >= values["version"] - 2

    async def play():
        with StoreWriter(tmp_path / "store") as memory:
            arena = Arena("test-talk", Rollout(), concurrency=8, memory=memory)
            learner = Learner(Scorer(model), adamw(model, lr=config.lr, weight_decay=0.0))
            progress = await Overlapped(Parts(
                learner, published, lambda _task, *, seed: Talker(policy, seed), arena,
                TaskOrder([Task(id=f"t{number}", prompt="") for number in range(4)], 0), config, 0,
                tmp_path / "run", on_step,
            )).run()  # fmt: skip
        assert progress.stop == "steps"

    loop(play())
    assert [one.get("staleness_max", 0.0) <= 1 for one in told] == [True] * 5
    assert max(one.get("sampler_gap", 0.0) for one in told) < 1e-4
    gaps = policy.counts.gaps[before:]
    assert len(gaps) == len(published.weights) == 6
    assert max(gaps) < 1e-4
    changed = check_runs(StoreReader(tmp_path / "store"), published.weights)
    assert changed, "some turn met an update in its middle"


def check_runs(episodes, weights):
    """Each token's log-probability by the weights of its version; returns how many turns have several versions."""
    models, changed = {}, 0
    for version, state in weights.items():
        models[version] = model_of()
        models[version].load_state_dict(state)
    for episode in episodes:
        context = []
        for turn in episode.turns:
            context += turn.prompt_ids.tolist()
            starts = [one.start for one in turn.versions]
            for one, stop in zip(turn.versions, [*starts[1:], len(turn.sampled_ids)], strict=True):
                ids, logprobs = turn.sampled_ids[one.start : stop].tolist(), turn.logprobs[one.start : stop]
                assert gap(models[one.version], context, ids, logprobs, Sampling()) < 1e-4
                context += ids
            changed += len(starts) > 1
    return changed


def test_the_engine_listens_on_loopback_only(policy, loop):
    loop(policy.sample(Prompt([1]), Sampling(max_tokens=1)))
    pid = policy._link.process.pid
    own = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(one))
        except OSError:
            continue  # closed meanwhile
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = line.split()[1], line.split()[3], line.split()[9]
            if state == "0A" and f"socket:[{inode}]" in own:
                assert local.partition(":")[0] in (loopback, "0" * 16 + "FFFF0000" + "0100007F"), local


INSIDE = """
import asyncio, importlib.util, json, sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
root = sys.argv[1]
class Ours(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if path is None and name in ("envgym", "envgym_agents"):
            return PathFinder.find_spec(name, [root, root + "/agents"])
sys.meta_path.insert(0, Ours())
def module(path):
    spec = importlib.util.spec_from_file_location("m" + str(len(sys.modules)), path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found
kit = module(root + "/envgym/testing/check_policy.py")
import torch
from envgym_agents.model import new_model
from envgym_agents.policies.vllm.link import inside
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.weights import logprobs_of
from envgym_agents.policies.vllm.wire import EngineSettings

async def main():
    learner, model = (new_model(64, size="1M", seed=1, context=256) for _ in range(2))
    async with VllmPolicy(model, inside(), settings=EngineSettings("", 0, threads=1)) as policy:
        async def score(context, ids, sampling):
            return logprobs_of(learner, context, ids, sampling)
        async def sync():
            with torch.no_grad():
                for weight in learner.parameters():
                    weight.add_(0.05 * torch.randn(weight.shape))
            await policy.update(learner.state_dict())
        names = await kit.check_policy(kit.PolicyCase(policy, 64, score, sync))
        print("FOUND", json.dumps([names, policy.engine, max(policy.counts.gaps), policy.counts.updates]))

asyncio.run(main())
"""


def test_where_envgym_runs_in_an_interpreter_with_vllm_the_engine_is_inside(python):
    done = subprocess.run(
        [python, "-I", "-c", INSIDE, str(ROOT)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    names, engine, worst, updates = json.loads(line.removeprefix("FOUND "))
    assert {"logprobs", "syncs", "in_flight"} <= set(names)
    assert engine.startswith("vLLM ")
    assert updates == 3
    assert worst < 1e-4


def test_envgym_train_samples_with_vllm_and_gives_it_the_weights_of_every_step(python, tmp_path):
    settings = {
        "env": "guess", "expert": "random", "tasks": 8, "turns": 4, "threads": 1, "model.size": "1M",
        "model.context": 512, "model.answer": 64, "warm_start.min_updates": 2, "warm_start.max_updates": 2,
        "warm_start.rows": 4, "warm_start.imitate": "all", "reinforce.steps": 3, "reinforce.tasks": 2,
        "reinforce.group": 2, "reinforce.teaches": "all", "reinforce.credit": "reinforce",
        "reinforce.loop.staleness": 0, "evaluate.tasks": 2, "evaluate.greedy": "false",
        "evaluate.baselines": "[]", "sampler.kind": "vllm", "sampler.python": python, "sampler.threads": 1,
    }  # fmt: skip
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    assert run(["train", "--out", str(tmp_path / "run"), "--json", *arguments]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    gaps = [line["sampler_gap"] for line in lines if "sampler_gap" in line]
    assert gaps
    assert max(gaps) < 1e-4  # as sampled by vLLM, and as the learner computes them


def test_envgym_collect_samples_with_vllm(python, tmp_path):
    from envgym_agents.model import new_model, save_model
    from envgym_agents.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(["guess a number", "too low", "too high"], actions=[], vocab_size=300)
    save_model(tmp_path / "model", new_model(len(tokenizer), size="1M", context=1024), tokenizer)
    command = [
        sys.executable, "-m", "envgym", "collect", "guess", "--agent", "lm", "-n", "2", "--turns", "2", "--json",
        "--agent-option", f"model={tmp_path / 'model'}", "--agent-option", "sampler=vllm",
        "--agent-option", "max_tokens=8", "--agent-option", f"vllm_python={python}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["episodes"] == 2
