"""Does a tiny model learn on `sql` from its warm start? Success on databases that were never trained on, by seed.

    OMP_NUM_THREADS=1 python benchmarks/sql_training.py --runs runs/sql --json benchmarks/results/sql_training.json

Each seed is one run of `envgym train --preset sql`: an expert's episodes on training databases, a transformer of
about a million parameters from scratch that imitates them for 300 updates, reinforcement learning on other
questions to training databases with the expert's tokens as a second stream of the loss, and evaluation before and
after on 160 databases that neither saw. The schema comes with the question (`given`), so an episode is one query.
What is compared is the same model before RL, and a policy that acts at random.

The warm start is weak because it is short: 300 updates of 16 of 2,000 expert episodes. Rewards alone
(`--set reinforce.loss.streams.demonstrations=0`) make such a policy surer of what it says and teach it nothing new:
+11 points as it is sampled and -2 greedily, over three seeds. So beside each run one of the same seed imitates on
instead, for as many updates as both stages make: over three seeds it comes to 39 and 58 %, where RL with the
expert's tokens comes to 39 and 58 %, and takes 3.4 to 3.6 minutes of a processor, not 10 to 11
(results/sql_training.json).

The bars: the mean gain is at least 20 points, as it is sampled and greedily (a policy that only becomes surer of
itself gains the first and not the second); and a whole run, warm start and evaluations included, takes at most 20
minutes of one processor, which a machine with one free core would need. A run that is finished in
the folder is taken as it is, one that was stopped goes on. With --quick it is a few updates of the smallest model:
to see that it runs, its success means nothing.
"""

from _training import preset_learns

QUICK = (
    "task_options.count=100", "tasks=20", "model.size=tiny", "model.vocabulary=600",
    "warm_start.min_updates=3", "warm_start.max_updates=3", "warm_start.evaluate_every=3", "reinforce.steps=1",
    "reinforce.tasks=2", "reinforce.group=2", "evaluate.tasks=4",
)  # fmt: skip


def main() -> None:
    preset_learns("sql_training", "sql", __doc__ or "", quick=QUICK, least=0.20, imitate=True, within_min=20.0)


if __name__ == "__main__":
    main()
