"""Generations as of UI-Genie, by commands alone: explore, keep what is rated well, corrupt, learn both models."""

import json
from pathlib import Path

import pytest

from envgym.cli import run as command

SMALL = (
    "turns=8", "threads=1", "model.size=tiny", "warm_start.min_updates=4", "warm_start.max_updates=4",
    "warm_start.rows=4", "reinforce.steps=2", "reinforce.tasks=4", "evaluate.tasks=2",
)  # fmt: skip


def generation(number: int, top: Path) -> list[dict[str, object]]:
    """One generation; the metrics of its learning."""
    tasks, pairs, run = (str(top / f"{name}{number}") for name in ("tasks.jsonl", "pairs", "run"))
    explored = (
        f"synthesize tool --out {tasks} -n 6 --trails 12 --turns {4 + 2 * number} --seed {number} --least 0.3"
    )
    assert command([*explored.split(), "--memory", str(top / "tried.json")]) == 0
    played = f"collect synthesized --agent corrupted --group 4 -n 24 --turns 10 --out {pairs}"
    assert command([*played.split(), "--task-option", f"path={tasks}"]) == 0
    wanted = [
        *SMALL, "env=synthesized", f"task_options.path={tasks}", "expert=corrupted", "agent_options.mistake=none",
        "reinforce.critic.kind=reward-model", "reinforce.credit=progress-attribution",
        "reinforce.loss.kind=expert-iteration", "reinforce.loop.past.kind=alone",
        f"reinforce.loop.past.path={pairs}",
    ]  # fmt: skip
    if number > 1:
        wanted.append(f"model.path={top / f'run{number - 1}' / 'trained'}")
    assert command(["train", "--out", run, *(part for one in wanted for part in ("--set", one))]) == 0
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_generation_learns_from_ways_and_from_mistakes_and_the_next_one_asks_for_something_else(tmp_path):
    learned = [generation(number, tmp_path) for number in (1, 2)]
    for metrics in learned:
        assert max(float(str(line.get("critic_pairs", 0))) for line in metrics) > 0, "a reward model saw pairs"
    rated_by_what_lasts(tmp_path)
    asked = [goals(tmp_path / f"tasks.jsonl{number}") for number in (1, 2)]
    assert asked[0]
    assert asked[1]
    assert not asked[0] & asked[1]


def rated_by_what_lasts(top: Path) -> None:
    """A reward model of the first generation goes on in the second, and rates what is explored after each."""
    found = []
    for number, begin in ((1, "--size tiny"), (2, f"--model {top / 'reward1'}")):
        pairs, model = top / f"pairs{number}", top / f"reward{number}"
        made = f"reward-model {pairs} --out {model} {begin} --updates 6 --context 256"
        assert command(made.split()) == 0
        for again in range(2):
            out = top / f"rated{number}-{again}.jsonl"
            rated = f"synthesize tool --out {out} -n 4 --trails 8 --seed 9 --rating learned"
            assert command([*rated.split(), "--rating-option", f"path={model}"]) == 0
        assert out.read_text() == (top / f"rated{number}-0.jsonl").read_text()
        told = (json.loads(line)["metadata"]["synthesized"] for line in out.read_text().splitlines())
        found.append([one["score"] for one in told])
    assert found[0] != found[1], "the second one has learned more"
    assert len(set(found[0])) > 1
    assert all(0.0 < score <= 1.0 for scores in found for score in scores)
    assert command(["synthesize", "tool", "--out", str(out), "--rating", "learned"]) == 2, "whose?"


def goals(path: Path) -> set[tuple[int, str]]:
    told = (json.loads(line)["metadata"]["synthesized"] for line in path.read_text().splitlines())
    return {(one["seed"], one["goal"]) for one in told}
