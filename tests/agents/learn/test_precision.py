"""A learner that computes in bfloat16 learns what one in float32 learns, to its rounding, with float32 weights."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.checkpoint import latest  # noqa: E402
from envgym_agents.learn.config import Reinforce, load  # noqa: E402
from envgym_agents.learn.pack import rows_of, shared  # noqa: E402
from envgym_agents.learn.scoring import scorer_of  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402

ROUNDING = 2.0**-8
"""Of bfloat16: half a unit in its last place, relative (7 bits of fraction, one before)."""
ONCE = Reinforce(epochs=1, minibatches=1)


@pytest.fixture
def groups(turn, episode):
    """Two groups whose members share a prompt."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 32, 9).tolist()

    def row(name):
        made = episode(name, [turn(prompt, rng.integers(0, 32, 8).tolist(), position=0)])
        return rows_of(made, np.full(made.sampled_tokens, 1.0 - 2.0 * (name[-1] == "0"), np.float32))

    return [[one for member in range(3) for one in row(f"{group}-{member}")] for group in range(2)]


def learner(model, precision, **memory) -> Learner:
    config = load(base={"learner": {"precision": precision, **memory}})
    return Learner(scorer_of(config, model), adamw(model, lr=1e-3, weight_decay=0.01))


def weights(made) -> dict:
    return {name: weight.detach().clone() for name, weight in made.scorer.model.named_parameters()}


@pytest.mark.parametrize("memory", [{}, {"checkpoint": True, "chunk": 5}, {"share": "never"}])
def test_bfloat16_scores_and_descends_as_float32_to_its_rounding_and_no_weight_leaves_float32(
    model_factory, groups, memory
):
    rows = [row for group in groups for row in group]
    said, gradients = {}, {}
    for precision in ("float32", "bfloat16"):
        made = learner(model_factory(tied=False), precision, **memory)
        scored = made.scorer.score(shared(rows))
        scored.logprobs.sum().backward()
        assert scored.logprobs.dtype == scored.entropy.dtype == torch.float32
        said[precision] = torch.stack([scored.logprobs.detach(), scored.entropy.detach()])
        found = [weight.grad for weight in made.scorer.model.parameters()]
        assert {one.dtype for one in found} == {torch.float32}
        gradients[precision] = torch.cat([one.flatten() for one in found])
    apart = (said["bfloat16"] - said["float32"]).abs().max()
    assert 0 < apart <= 4 * ROUNDING * said["float32"].abs().max()  # 0: nothing would be computed in bfloat16
    off = (gradients["bfloat16"] - gradients["float32"]).norm() / gradients["float32"].norm()
    assert 0 < off <= 4 * ROUNDING


def test_updates_in_bfloat16_keep_masters_and_moments_in_float32_and_a_checkpoint_goes_on_to_the_same_weights(
    model_factory, groups, tmp_path: Path
):
    def step(made, number):
        return made.update(groups, ONCE, np.random.default_rng(number), lr=1e-3)

    made = learner(model_factory(), "bfloat16")
    assert np.isfinite(step(made, 0)["loss"])
    assert {one.dtype for one in made.scorer.model.parameters()} == {torch.float32}
    moments = [value for state in made.optimizer.state.values() for value in state.values()]
    assert {one.dtype for one in moments} == {torch.float32}
    made.save(tmp_path, 1, {"step": 1})
    again = learner(model_factory(seed=1), "bfloat16")
    assert again.load(latest(tmp_path)) == {"step": 1}
    step(made, 1), step(again, 1)
    mine, theirs = weights(made), weights(again)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    plain = learner(model_factory(), "float32")
    step(plain, 0), step(plain, 1)
    # AdamW's first steps are of lr each, in the gradient's direction: most entries go the same way
    begun = weights(learner(model_factory(), "float32"))
    moved = {
        which: torch.cat([(one[name] - begun[name]).flatten() for name in begun])
        for which, one in (("bfloat16", mine), ("float32", weights(plain)))
    }
    assert torch.nn.functional.cosine_similarity(moved["bfloat16"], moved["float32"], dim=0) > 0.95
