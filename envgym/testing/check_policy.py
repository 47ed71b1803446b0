"""`check_policy`: the contract of policies, executable, for ours and for third parties' ones.

Each check is one paragraph of `envgym.policy`; a failed one raises AssertionError with the sentence it broke. What
a policy may do beyond the contract (take weights, be exact) is checked where it is told how.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envgym.limits import Sampling
from envgym.policy import Completion, Policy, Prompt

__all__ = ["PolicyCase", "check_policy"]

Score = Callable[[Sequence[int], Sequence[int], Sampling], Awaitable[Sequence[float]]]
"""Log-probabilities as the learner's present weights give them: of ids after a context, as they were sampled."""


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """A policy on trial, and what is known of it.

    vocabulary: ids below it may be in prompts and are sampled. score: the learner's log-probabilities; None where
    no weights are at hand, and nothing of them is checked. sync: gives policy and learner new weights, others at
    every call; None where it cannot take any. tolerance: how far the two may differ, in nats. seeded: equal
    seeds give equal ids, whatever else is in the batch.
    """

    policy: Policy
    vocabulary: int
    score: Score | None = None
    sync: Callable[[], Awaitable[object]] | None = None
    tolerance: float = 1e-4
    seeded: bool = True


async def check_policy(case: PolicyCase) -> list[str]:
    """Run every check that applies; returns the names of those that ran. Raises AssertionError."""
    checks = [_sampling, _allowed, _stop_ids, _together, _sessions, _forks, _abort]
    if case.seeded:
        checks.append(_seeds)
    if case.score is not None:
        checks.append(_logprobs)
    if case.sync is not None:
        checks += [_syncs, _in_flight]
    for check in checks:
        await check(case)
    return [check.__name__.strip("_") for check in checks]


def _prompt(case: PolicyCase, count: int, seed: int = 0) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, case.vocabulary, count)]


def _is_whole(case: PolicyCase, found: Completion, sampling: Sampling) -> None:
    count = len(found.ids)
    assert 0 < count <= sampling.max_tokens, f"between 1 and max_tokens ids are sampled: {count}"
    assert len(found.logprobs) == count, "every sampled id has a log-probability"
    assert all(np.isfinite(found.logprobs)), f"log-probabilities are finite: {found.logprobs}"
    assert max(found.logprobs) <= 1e-6, f"in nats, at most 0: {found.logprobs}"
    assert all(0 <= one < case.vocabulary for one in found.ids), f"ids are of the vocabulary: {found.ids}"
    starts = [run.start for run in found.versions]
    assert starts[:1] == [0], f"runs begin at 0: {starts}"
    assert starts == sorted(set(starts)), f"runs begin at 0 and ascend: {starts}"
    assert starts[-1] < count, f"a run has at least one token: {starts} of {count}"
    if found.finish == "stop":
        assert found.ids[-1] in sampling.stop_ids, f"finish 'stop': the last id is a stop id: {found}"
    else:
        assert (found.finish, count) == ("length", sampling.max_tokens), f"else it ends at max_tokens: {found}"


async def _sampling(case: PolicyCase) -> None:
    for sampling in (Sampling(max_tokens=1, seed=1), Sampling(max_tokens=9, seed=2, temperature=0.7)):
        context = _prompt(case, 12)
        before = list(context)
        found = await case.policy.sample(Prompt(context), sampling)
        _is_whole(case, found, sampling)
        assert context == before, "the prompt's ids are not modified"
        assert {run.version for run in found.versions} == {case.policy.version}, "runs name the present version"
    greedy = Sampling(max_tokens=6, temperature=0.0)
    two = [await case.policy.sample(Prompt(_prompt(case, 7)), greedy) for _ in range(2)]
    assert two[0].ids == two[1].ids, "temperature 0 has no draws"


async def _allowed(case: PolicyCase) -> None:
    allowed = (3, 5, 11)
    for seed in range(6):
        found = await case.policy.sample(
            Prompt(_prompt(case, 5)), Sampling(max_tokens=1, seed=seed, allowed=allowed)
        )
        assert found.ids[0] in allowed, f"the first id is one of `allowed`: {found.ids}"


async def _stop_ids(case: PolicyCase) -> None:
    free = await case.policy.sample(Prompt(_prompt(case, 8)), Sampling(max_tokens=8, temperature=0.0))
    stop = free.ids[3]
    sampling = Sampling(max_tokens=8, temperature=0.0, stop_ids=(stop,))
    found = await case.policy.sample(Prompt(_prompt(case, 8)), sampling)
    _is_whole(case, found, sampling)
    at = free.ids.index(stop)
    assert (found.finish, found.ids) == ("stop", free.ids[: at + 1]), f"it ends with the stop id: {found.ids}"


async def _together(case: PolicyCase) -> None:
    sampling = Sampling(max_tokens=5, temperature=0.0)
    alone = [await case.policy.sample(Prompt(_prompt(case, 4 + n, n)), sampling) for n in range(4)]
    beside = await asyncio.gather(
        *(case.policy.sample(Prompt(_prompt(case, 4 + n, n)), sampling) for n in range(4))
    )
    for one, other in zip(alone, beside, strict=True):
        _is_whole(case, other, sampling)
        gap = np.abs(np.subtract(one.logprobs, other.logprobs)).max() if one.ids == other.ids else 0.0
        assert gap <= case.tolerance, f"what else waits does not change a log-probability: by {gap}"


async def _sessions(case: PolicyCase) -> None:
    """A conversation that grows gives with a session what it gives without."""
    session, context = case.policy.session(), _prompt(case, 6)
    try:
        for turn in range(3):
            sampling = Sampling(max_tokens=3, temperature=0.0)
            kept = await case.policy.sample(Prompt(context), sampling, session)
            fresh = await case.policy.sample(Prompt(context), sampling)
            _close(case, kept, fresh, "a session is a cache and changes nothing")
            context += [*kept.ids, *_prompt(case, 2, turn)]
        shorter = await case.policy.sample(Prompt(context[:5]), Sampling(max_tokens=2, temperature=0.0), session)
        fresh = await case.policy.sample(Prompt(context[:5]), Sampling(max_tokens=2, temperature=0.0))
        _close(case, shorter, fresh, "a context that does not extend the session's is read as it is")
    finally:
        session.close()
        session.close()  # idempotent


async def _forks(case: PolicyCase) -> None:
    session, context = case.policy.session(), _prompt(case, 10)
    sampling = Sampling(max_tokens=3, temperature=0.0)
    begun = await case.policy.sample(Prompt(context), sampling, session)
    fork = session.fork()
    left, right = ([*context, *begun.ids, *_prompt(case, 3, seed)] for seed in (1, 2))
    found = await asyncio.gather(
        case.policy.sample(Prompt(left), sampling, session), case.policy.sample(Prompt(right), sampling, fork)
    )
    session.close()
    for one, at in zip(found, (left, right), strict=True):
        _close(case, one, await case.policy.sample(Prompt(at), sampling), "forks are independent of each other")
    again = await case.policy.sample(Prompt(right), sampling, fork)
    _close(case, again, found[1], "a fork outlives what it was forked from")
    fork.close()


async def _abort(case: PolicyCase) -> None:
    """A call that is cancelled leaves its session as good as before: it can go on."""
    session, context = case.policy.session(), _prompt(case, 9)
    call = asyncio.ensure_future(case.policy.sample(Prompt(context), Sampling(max_tokens=64, seed=1), session))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    sampling = Sampling(max_tokens=3, temperature=0.0)
    other = await case.policy.sample(Prompt(context), sampling)
    async with asyncio.timeout(60):
        while True:
            try:
                found = await case.policy.sample(Prompt(context), sampling, session)
                break
            except ValueError:  # the aborted call still holds it, until its pass is over
                await case.policy.sample(Prompt(context), Sampling(max_tokens=1))
    _close(case, found, other, "after an aborted call a session goes on")
    session.close()


async def _seeds(case: PolicyCase) -> None:
    context, sampling = _prompt(case, 6), Sampling(max_tokens=8, seed=7)
    one, two = [await case.policy.sample(Prompt(context), sampling) for _ in range(2)]
    assert one.ids == two.ids, "a seed fixes the draw"
    others = [await case.policy.sample(Prompt(context), replace(sampling, seed=seed)) for seed in range(8, 16)]
    assert any(other.ids != one.ids for other in others), "another seed draws anew"


async def _logprobs(case: PolicyCase) -> None:
    assert case.score is not None
    for sampling in (
        Sampling(max_tokens=6, seed=1),
        Sampling(max_tokens=6, seed=2, temperature=0.6),
        Sampling(max_tokens=1, seed=3, allowed=(2, 4, 9)),
    ):
        context = _prompt(case, 11)
        found = await case.policy.sample(Prompt(context), sampling)
        gap = np.abs(np.subtract(await case.score(context, found.ids, sampling), found.logprobs)).max()
        assert gap <= case.tolerance, (
            f"log-probabilities are the learner's to {case.tolerance:g} nats (version {case.policy.version}, "
            f"{sampling}): they differ by {gap:.3g}"
        )


async def _syncs(case: PolicyCase) -> None:
    """New weights are sampled from at once, and no cache of older ones is read."""
    assert case.sync is not None
    session, context = case.policy.session(), _prompt(case, 9)
    sampling = Sampling(max_tokens=3, temperature=0.0)
    before = await case.policy.sample(Prompt(context), sampling, session)
    for _ in range(2):
        version = case.policy.version
        await case.sync()
        assert case.policy.version == version + 1, "an update counts one version"
        kept = await case.policy.sample(Prompt(context), sampling, session)
        fresh = await case.policy.sample(Prompt(context), sampling)
        _close(case, kept, fresh, "a session forgets what older weights computed")
        changed = kept.ids != before.ids or not np.allclose(kept.logprobs, before.logprobs, atol=case.tolerance)
        assert changed, "new weights are sampled from"
        if case.score is not None:
            await _logprobs(case)
        before = kept
    session.close()


async def _in_flight(case: PolicyCase) -> None:
    """What is sampled while weights change says which token is whose."""
    assert case.sync is not None
    first, sampling = case.policy.version, Sampling(max_tokens=48, seed=3)
    call = asyncio.ensure_future(case.policy.sample(Prompt(_prompt(case, 5)), sampling))
    await asyncio.sleep(0)
    await case.sync()
    found = await call
    _is_whole(case, found, sampling)
    versions = [run.version for run in found.versions]
    assert versions == sorted(set(versions)), f"versions ascend: {versions}"
    assert {*versions} <= {first, first + 1}, f"and are those that there were: {versions}"


def _close(case: PolicyCase, one: Completion, other: Completion, what: str) -> None:
    assert one.ids == other.ids, f"{what}: {one.ids} and {other.ids}"
    gap = float(np.abs(np.subtract(one.logprobs, other.logprobs)).max())
    assert gap <= case.tolerance, f"{what}: log-probabilities differ by {gap:.3g}"
