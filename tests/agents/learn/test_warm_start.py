"""Imitation goes to its plateau, honours its bounds, and resumes to the same weights."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from envgym_agents.learn.config import WarmStart  # noqa: E402
from envgym_agents.learn.pack import padded, rows_of  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.warm_start import (  # noqa: E402
    Imitation,
    Point,
    imitate,
    split_tasks,
    with_observations,
)  # fmt: skip


def points(*losses: float) -> list[Point]:
    return [Point(100 * (i + 1), 0.0, loss, 0.0, float(i)) for i, loss in enumerate(losses)]


def run(config: WarmStart, *losses: float) -> Imitation:
    state = Imitation()
    for point in points(*losses):
        if not state.stop:
            state.see(point, config)
    return state


def test_a_plateau_drops_the_rate_and_the_next_one_ends_it():
    config = WarmStart(min_updates=100, patience=2, decays=1, tolerance=0.01)
    state = run(config, 1.0, 0.5, 0.5, 0.499, 0.3, 0.3, 0.2999, 0.1)
    #                        wait  drop     better  wait stop: 0.1 is never seen
    assert (state.stop, state.drops, len(state.curve)) == ("plateau", 2, 7)
    assert state.best == 0.2999


def test_no_plateau_ends_it_before_the_least_number_of_updates():
    config = WarmStart(min_updates=600, max_updates=1000, patience=1, decays=0)
    state = run(config, *[1.0] * 10)
    assert (state.stop, state.curve[-1].update) == ("plateau", 600)


def test_the_rate_warms_up_then_falls_by_the_decay():
    config = WarmStart(lr=1.0, warmup=10, decay=5.0)
    assert Imitation(update=0).lr(config) == pytest.approx(0.1)
    assert Imitation(update=500).lr(config) == 1.0
    assert Imitation(update=500, drops=1).lr(config) == pytest.approx(0.2)


def test_a_split_has_both_sides_and_no_task_in_both():
    learn, held = split_tasks(["a", "b", "c", "c"], 0.01, seed=0)
    assert len(held) == 1
    assert learn | held == {"a", "b", "c"}
    assert not learn & held
    with pytest.raises(ValueError, match="at least 2"):
        split_tasks(["a", "a"], 0.5, seed=0)


def test_observation_targets_are_marked_and_weigh_what_was_asked(turn, episode):
    (row,) = rows_of(episode("e", [turn([1, 2, 3], [4], position=0, allowed=[4, 5])]), np.ones(1, np.float32))
    full = with_observations(row, 0.25)
    assert sorted(full.at.tolist()) == [1, 2, 3]
    assert full.weights.sum() == pytest.approx(1.25)
    assert full.credit.sum() == 1.0
    batch = padded([full])
    assert batch.restricted == 1
    assert batch.targets.tolist() == [4, 2, 3]


def test_what_rows_begin_with_alike_is_learned_once_and_the_update_is_that_of_each_row_alone(
    learner, turn, episode
):
    rng = np.random.default_rng(1)
    start = rng.integers(0, 12, 200).tolist()
    rows = []
    for index, tail in enumerate((3, 5, 5, 2)):
        prompt = [*start, *rng.integers(0, 12, tail).tolist()]
        e = episode(f"e{index}", [turn(prompt, [13, index], position=0, allowed=[12, 13])], task=f"t{index}")
        rows += [with_observations(row, 0.5) for row in rows_of(e, np.ones(2, np.float32))]
    together, apart = learner(), learner()
    (batch,) = together._together(rows)
    assert batch.tokens < sum(len(row.ids) - 1 for row in rows) - 2 * len(start)
    assert len(batch.targets) < sum(len(row.at) for row in rows) - 2 * (len(start) - 1)
    assert float(batch.weights.sum()) == pytest.approx(4 * 1.5)
    apart.scorer.shares_prefixes = False
    (batch,) = apart._together(rows)
    assert batch.forest is None
    assert together.validate(rows) == pytest.approx(apart.validate(rows), rel=1e-5)
    assert together.imitate(rows, lr=1e-3) == pytest.approx(apart.imitate(rows, lr=1e-3), rel=1e-5)
    for a, b in zip(together.scorer.model.parameters(), apart.scorer.model.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def copying(turn, episode, count: int = 48):
    """Expert episodes that repeat the last token of the prompt: learnable, and not by memorising tasks."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        prompt = rng.integers(0, 8, 5).tolist()
        e = episode(
            f"e{index}", [turn(prompt, [prompt[-1] + 8], position=0, allowed=range(8, 16))], task=f"t{index}"
        )
        rows += rows_of(e, np.ones(1, np.float32))
    return rows


@pytest.fixture
def learner(model_factory):
    def make(lr: float = 3e-3) -> Learner:
        model = model_factory(seed=0)
        return Learner(Scorer(model), adamw(model, lr=lr, weight_decay=0.0))

    return make


@pytest.mark.slow
def test_imitation_learns_and_leaves_the_best_weights(learner, turn, episode, tmp_path):
    rows = copying(turn, episode, 240)
    config = WarmStart(min_updates=60, max_updates=160, evaluate_every=20, rows=24, lr=5e-3, warmup=5, patience=2)
    pupil = learner()
    before = pupil.validate(rows[200:])
    state = imitate(pupil, rows[:200], rows[200:], config, seed=0, folder=tmp_path)
    after = pupil.validate(rows[200:])
    assert after[0] == pytest.approx(min(point.loss for point in state.curve), abs=1e-6)
    assert before[1] < 0.4
    assert after[1] > 0.9
    assert state.stop in ("plateau", "max_updates")
    assert state.curve[-1].update >= 60


def test_a_killed_warm_start_resumes_to_the_same_weights(learner, turn, episode, tmp_path):
    rows = copying(turn, episode)
    config = WarmStart(min_updates=8, max_updates=8, evaluate_every=2, rows=4, patience=50)
    whole, killed, resumed = learner(), learner(), learner()
    imitate(whole, rows[:40], rows[40:], config, seed=1, folder=tmp_path / "whole")

    def die(state: Imitation, loss: float) -> None:
        if state.update == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imitate(killed, rows[:40], rows[40:], config, seed=1, folder=tmp_path / "k", on_update=die)
    state = imitate(resumed, rows[:40], rows[40:], config, seed=1, folder=tmp_path / "k")
    assert [point.update for point in state.curve] == [2, 4, 6, 8]
    for a, b in zip(whole.scorer.model.parameters(), resumed.scorer.model.parameters(), strict=True):
        assert torch.equal(a, b)
