"""One update: what is left out of it is counted, told and ends the run; what is cut, and what is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.config import Reinforce, WarmStart, Watch  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.warm_start import imitate  # noqa: E402
from envgym_agents.learn.watch import Anomaly, Stops  # noqa: E402
from envgym_agents.policies.engine import engine_for  # noqa: E402
from envgym_agents.refusals import says_cannot  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel  # noqa: E402


@pytest.fixture
def rows(turn, episode):
    rng = np.random.default_rng(0)
    found = []
    for number in range(12):
        ids = rng.integers(0, 32, 9).tolist()
        made = episode(f"e{number}", [turn(ids[:4], ids[4:], position=0)], task=f"t{number}")
        found += rows_of(made, np.full(5, 1.0 - number % 2 * 2, np.float32))
    return found


@pytest.fixture
def learner(model_factory):
    def make() -> Learner:
        model = model_factory()
        return Learner(Scorer(model), adamw(model, lr=1e-3, weight_decay=0.0))

    return make


def broken(row):
    """Whose loss is no number."""
    return replace(row, weights=np.full_like(row.weights, np.nan))


def test_updates_of_a_warm_start_that_are_left_out_are_counted_and_end_it_after_some_in_a_row(
    learner, rows, tmp_path: Path
):
    config = WarmStart(min_updates=6, max_updates=6, evaluate_every=2, rows=2)
    one, seen = learner(), []
    before = [weight.detach().clone() for weight in one.scorer.model.parameters()]

    def watched(stops):
        def look(state, _loss):
            seen.append((state.update, state.skipped, state.skipped_in_a_row))
            stops.look_at_imitation(state.update, state.skipped_in_a_row)

        return look

    ill = [broken(row) for row in rows[:8]]
    with pytest.raises(
        Anomaly, match=r"after update 3 of the warm start: .* 3 updates in a row \(watch\.skipped\)"
    ):
        imitate(
            one, ill, rows[8:], config, seed=0, folder=tmp_path / "a", on_update=watched(Stops(Watch(skipped=3)))
        )
    assert seen == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert all(torch.equal(a, b) for a, b in zip(before, one.scorer.model.parameters(), strict=True))
    state = imitate(
        one, ill, rows[8:], config, seed=0, folder=tmp_path / "b", on_update=watched(Stops(Watch(skipped=0)))
    )
    assert (state.skipped, state.skipped_in_a_row) == (6, 6)
    assert all(np.isfinite(point.train_loss) for point in state.curve)
    state = imitate(one, rows[:8], rows[8:], config, seed=0, folder=tmp_path / "c")
    assert state.skipped == 0


def test_steps_of_rl_whose_gradients_are_no_number_end_it_by_default(learner, rows):
    one, stops = learner(), Stops(Watch())
    config = Reinforce(epochs=1, minibatches=2)
    ill = [[replace(row, credit=np.full_like(row.credit, np.nan))] for row in rows]

    def step(groups):
        return one.update(groups, config, np.random.default_rng(0), lr=1e-3)

    for number in range(1, 5):
        stops.look(number, step(ill))
    stops.look(5, step([[row] for row in rows]))  # one that learns begins the count anew
    for number in range(6, 10):
        stops.look(number, step(ill))
    with pytest.raises(
        Anomaly, match=r"after step 10: every gradient was no number.*5 steps in a row \(watch\.skipped\)"
    ):
        stops.look(10, step(ill))


def test_a_gradient_is_cut_to_its_bound_or_with_none_not_at_all(learner, rows):
    moved = {}
    for most in (0.0, 1e9, 1e-6):
        one = learner()
        one.optimizer = torch.optim.SGD(one.scorer.model.parameters(), lr=1.0)
        before = torch.cat([weight.detach().flatten().clone() for weight in one.scorer.model.parameters()])
        found = one.update(
            [rows], Reinforce(epochs=1, minibatches=1, max_grad_norm=most), np.random.default_rng(0), lr=1.0
        )
        after = torch.cat([weight.detach().flatten() for weight in one.scorer.model.parameters()])
        moved[most] = after - before
        assert found["grad_norm"] > 1e-3
    assert torch.equal(moved[0.0], moved[1e9])
    assert float(moved[1e-6].norm()) == pytest.approx(1e-6, rel=0.3)


class NoRoom(LlamaModel):
    """Has no memory for what a short cut gives it."""

    def forward(self, *given, position_ids=None, **named):
        if position_ids is not None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 bytes of this shape")
        return super().forward(*given, position_ids=position_ids, **named)


def test_a_short_cut_that_runs_out_of_memory_is_no_model_that_cannot():
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.model = NoRoom(config).eval()
    for make in (engine_for, Scorer):
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            make(model)


@pytest.mark.parametrize(
    ("error", "cannot"),
    [
        (TypeError("forward() got an unexpected keyword argument 'position_ids'"), True),
        (ValueError("attention over a forest knows no sliding_window"), True),
        (RuntimeError("The size of tensor a (4) must match the size of tensor b (3)"), True),
        (RuntimeError("shape '[1, 4]' is invalid for input of size 3"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("CUDNN_STATUS_EXECUTION_FAILED"), False),
        (OSError("no space left"), False),
    ],
)
def test_what_says_that_a_model_cannot_is_told_from_what_says_more(error, cannot):
    assert says_cannot(error) == cannot
