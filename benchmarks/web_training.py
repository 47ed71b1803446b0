"""Does a tiny model learn on pages of MiniWoB++ from its warm start? Success on held-out problems, by seed.

    OMP_NUM_THREADS=1 python benchmarks/web_training.py --runs runs/miniwob

Each seed is one run of `envgym train --preset miniwob`: an expert's episodes on three pages, a transformer from
scratch that imitates them shortly, reinforcement learning in the browser, and evaluation before and after on
held-out problems of the same pages. Beside it a run of the same seed imitates on instead, for as many updates as
reinforcement learning makes. The bar: the mean gain over the warm start, as it is sampled and in greedy play, is at
least 5 points. With --quick it is an update of each kind: to see that it runs, its success means nothing.
"""

from _training import preset_learns

QUICK = (
    "tasks=6", "concurrency=2", "warm_start.min_updates=3", "warm_start.max_updates=3",
    "warm_start.evaluate_every=3", "reinforce.steps=1", "reinforce.tasks=2", "reinforce.group=2",
    "evaluate.tasks=3",
)  # fmt: skip


def main() -> None:
    preset_learns("web_training", "miniwob", __doc__ or "", quick=QUICK, least=0.05, imitate=True)


if __name__ == "__main__":
    main()
