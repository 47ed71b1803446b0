"""The conformance kit of policies passes ours, and fails each that breaks a sentence of the contract."""

import asyncio
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from envgym_agents.model import new_model  # noqa: E402
from envgym_agents.policies.transformer import TransformerPolicy  # noqa: E402
from envgym_agents.policies.vllm.weights import logprobs_of  # noqa: E402

from envgym.testing import PolicyCase, check_policy  # noqa: E402

VOCAB = 64


def case_of(policy, learner, *, stale=False):
    """A learner beside the policy, whose weights change at random at every sync."""

    async def score(context, ids, sampling):
        return logprobs_of(learner, context, ids, sampling)

    async def sync():
        with torch.no_grad():
            for weight in learner.parameters():
                weight.add_(
                    0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(policy.version))
                )
        if stale:
            policy.version += 1
        else:
            await policy.update(learner.state_dict())

    return PolicyCase(policy, VOCAB, score, sync)


def checked(change=lambda policy: policy, **options):
    async def run():
        learner, model = (new_model(VOCAB, size="tiny", seed=1, context=256) for _ in range(2))
        async with TransformerPolicy(model) as policy:
            return await check_policy(case_of(change(policy), learner, **options))

    return asyncio.run(run())


def test_our_policy_keeps_the_whole_contract_over_syncs():
    assert checked() == [
        "sampling", "allowed", "stop_ids", "together", "sessions", "forks", "abort", "seeds", "logprobs", "syncs",
        "in_flight",
    ]  # fmt: skip


class Changed:
    """A policy that passes everything on but what it is told to change in its completions."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change
        self.session, self.update = inner.session, inner.update

    @property
    def version(self):
        return self.inner.version

    async def sample(self, prompt, sampling, session=None):
        return self.change(await self.inner.sample(prompt, sampling, session), sampling)


BROKEN = {
    "at most 0": lambda found, sampling: replace(found, logprobs=tuple(0.5 for _ in found.ids)),
    "runs begin at 0": lambda found, sampling: replace(found, versions=()),
    "the first id is one of": lambda found, sampling: (
        replace(found, ids=(0, *found.ids[1:])) if sampling.allowed else found
    ),
    "the last id is a stop id": lambda found, sampling: replace(found, finish="stop"),
    "are the learner's to": lambda found, sampling: replace(
        found, logprobs=tuple(one - 0.01 for one in found.logprobs)
    ),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_policy_that_breaks_a_sentence_is_told_which(said):
    with pytest.raises(AssertionError, match=said):
        checked(lambda policy: Changed(policy, BROKEN[said]))


def test_a_policy_that_keeps_its_old_weights_is_found_out():
    with pytest.raises(AssertionError, match="new weights are sampled from"):
        checked(stale=True)
