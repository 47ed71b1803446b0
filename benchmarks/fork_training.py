"""Success of a small model after training with forks, beside outcome credit alone, for as many sampled tokens.

    python benchmarks/fork_training.py --json forks.json --runs runs/fork-training

The world is `corridor` of eight rooms: one reward at its end, traps on the way, and what uniform and best play earn
is known exactly. Every run begins with the same model, which plays about uniformly, and samples as many tokens,
continuations included. The arms differ in the scheme and in where those tokens are spent: more whole episodes of a
group, or continuations of states of fewer. Intervals are over tasks and seeds. A finished run in the folder is
taken as it is. With --quick it is a step of each: to see that it works.
"""

import argparse
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from _training import arms_beside, envgym, play_arms, settings

from envgym.oracle import corridor, softened, solve

ROOMS, DEADLINE = 8, 40
FORKS = ("tasks=2", "group=4", "members.forks.points=3")
ARMS: dict[str, tuple[str, ...]] = {
    "outcome": ("credit=dr-grpo", "tasks=4", "group=8"),
    "progress-bonus": ("credit=progress-bonus", *FORKS),
    "prefix-restarts": ("credit=prefix-restarts", *FORKS),
}
"""A step samples about as much in each: 32 episodes, or 8 and 24 continuations."""

WORLD = (
    "env=corridor", f"task_options={{rooms={ROOMS},deadline={DEADLINE}}}", f"turns={DEADLINE}", "expert=random",
    "tasks=20", "threads=1", "model.size=tiny", "model.context=512", "evaluate.baselines=[]",
    "evaluate.greedy=false",
)  # fmt: skip
LEARNS = (
    "reinforce.oversample=1.0", "reinforce.teaches=all", "reinforce.lr=1e-3", "reinforce.warmup=0",
    "reinforce.checkpoint_every=50", "reinforce.loop.staleness=0",
)  # fmt: skip


def prepared(place: Path, quick: bool) -> list[str]:
    """What all runs have in common; the warm model, which imitates random play, is made once."""
    updates, tasks = (5, 4) if quick else (60, 20)
    common = settings(
        *WORLD, f"warm_start={{min_updates={updates},max_updates={updates},rows=8}}", f"evaluate.tasks={tasks}",
        f"evaluate.attempts={1 if quick else 10}",
    )  # fmt: skip
    warm = place / "warm"
    if not (warm / "report.json").exists():
        resume = ["--resume"] * (warm / "config.json").exists()
        envgym("train", *common, *settings("reinforce.steps=0"), "--out", str(warm), *resume)
    return common + settings(*LEARNS, f"model.path={warm / 'warm'}", "warm_start.episodes_per_task=0")


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=20_000, help="sampled by each run")


def main() -> None:
    given = options(__doc__ or "", more=more)
    world = corridor(rooms=ROOMS, deadline=DEADLINE)
    uniform, best = (solve(softened(world, skill)).expected_return for skill in (0.0, 50.0))
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        seeds = range(1 if given.quick else given.seeds)
        length = ("steps=1",) if given.quick else ("steps=100000", f"tokens={given.tokens}")
        common = prepared(place, given.quick)
        play_arms(place, seeds, ARMS, [*common, *settings(*(f"reinforce.{one}" for one in length))])
        rows, arms = arms_beside(place, seeds, ARMS, "outcome")
        rows += [
            Row(f"{arm}, of the best play's {best:.3f} (exact)", one["rates"]["after RL"][0], best, "best", "share")
            for arm, one in arms.items()
        ]
        exact = {"uniform": uniform, "best": best}
        finish("fork_training", rows, given, arms=arms, seeds=len(seeds), exact=exact)


if __name__ == "__main__":
    main()
