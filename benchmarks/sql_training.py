"""Does a tiny model learn on `sql` from its warm start? Success on databases that were never trained on, by seed.

    python benchmarks/sql_training.py --runs runs/sql --json benchmarks/results/sql_training.json

Each seed is one run of `envgym train --preset sql`: an expert's episodes on training databases, a transformer of
about a million parameters from scratch that imitates them for a while, 20 minutes of reinforcement learning on two
cores, and evaluation before and after on other databases. The bar: the mean gain, as it is sampled, is at least 20
points. A run that is finished in the folder is taken as it is, one that was stopped goes on. With --quick it is a
few updates of the smallest model: to see that it runs, its success means nothing.
"""

from _training import preset_learns

QUICK = (
    "task_options.count=100", "tasks=20", "threads=1", "model.size=tiny", "model.vocabulary=600",
    "warm_start.min_updates=3", "warm_start.max_updates=3", "warm_start.evaluate_every=3", "reinforce.steps=1",
    "reinforce.tasks=2", "reinforce.group=2", "turns=3", "evaluate.tasks=4",
)  # fmt: skip


def main() -> None:
    preset_learns("sql_training", "sql", __doc__ or "", quick=QUICK, least=0.20)


if __name__ == "__main__":
    main()
