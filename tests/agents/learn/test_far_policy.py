"""A sampler in an actor of Ray keeps the contract of policies, seen from where its agents are."""

import asyncio

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray", reason="pip install 'envgym[cluster]'")

from envgym_agents.learn.cluster.actors import SamplerHost, Shipped  # noqa: E402
from envgym_agents.learn.cluster.far_policy import FarPolicy  # noqa: E402
from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.vllm.weights import logprobs_of  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402

from envgym.testing import PolicyCase, check_policy  # noqa: E402


@pytest.fixture
def host():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    made = ray.remote(num_cpus=1)(SamplerHost).remote(load())
    yield made
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_policy_whose_sampler_is_elsewhere_keeps_the_whole_contract_over_syncs(host):
    tokenizer = train_tokenizer(["press open"], actions=["act:read"], vocab_size=300)
    learner, version = new_model(len(tokenizer), size="tiny", seed=1, context=256), 0

    policy = FarPolicy(host, 256, version)

    async def score(context, ids, sampling):
        return logprobs_of(learner, context, ids, sampling)

    async def sync():
        nonlocal version
        version += 1
        with torch.no_grad():
            for weight in learner.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(version)))
        await host.update.remote(learner.state_dict(), version)
        policy.version = version  # a worker, which is told too, makes a policy with its version for each episode

    async def run():
        shipped = Shipped.of(learner, tokenizer, context=256)
        await host.load.remote(shipped, learner.state_dict(), version)
        return await check_policy(PolicyCase(policy, len(tokenizer), score, sync))

    assert asyncio.run(run()) == [
        "sampling", "allowed", "stop_ids", "together", "sessions", "forks", "abort", "seeds", "logprobs", "syncs",
        "in_flight",
    ]  # fmt: skip
