"""Success of a small model after training from one warm start, by the scheme that its credit comes from.

    python benchmarks/credit_training.py --json training.json --runs runs/credit-training

Every run samples as many tokens, from the same warm model, on code-repair tasks of ten packages, and plays held-out
tasks of five others; what the critics of a scheme cost is part of its minutes, which are shown and bound nothing.
Schemes differ in where credit comes from and how it travels, in nothing else. Intervals are over tasks and seeds. A
run that is finished in the folder is taken as it is; so the whole can be stopped and go on. With --quick it is a
few steps of a game: to see that it works.
"""

import argparse
from pathlib import Path

from _harness import finish, options, scratch_folder
from _training import arms_beside, envgym, play_arms, settings

ARMS: dict[str, tuple[str, ...]] = {
    "grpo": ("credit=grpo", "credit_options.scale=std", "credit_options.gamma=1.0"),
    "turn": ("credit=turn-relative", "credit_options.scale=std", "credit_options.gamma=0.9"),
    "hier": ("credit=hierarchical", "credit_options.group=0.1"),
}
"""The best setting of each that was found on other seeds; "grpo" is the outcome-only reference."""

PACKAGES = (
    *("anytree", "boltons", "funcy", "inflection", "parse", "pyrsistent", "tinydb", "toolz", "voluptuous"),
    *("webcolors", "cachetools", "humanize", "schema", "sqlparse", "xmltodict"),
)
GAME = ("env=guess", "expert=random", "tasks=20", "turns=8", "threads=1", "model.size=tiny", "evaluate.tasks=4",
        "warm_start.min_updates=5", "warm_start.max_updates=5", "warm_start.rows=8",
        "reinforce.tasks=4")  # fmt: skip


def prepared(place: Path, quick: bool) -> list[str]:
    """What all runs have in common: tasks, where results of tests are kept, and the warm model."""
    if quick:
        common = settings(*GAME)
    else:
        tasks = place / "tasks.jsonl"
        if not tasks.exists():
            chosen = [word for name in PACKAGES for word in ("--package", name)]
            envgym("tasks", "build", "--per-package", "12", "--file", str(tasks), *chosen)
        common = ["--preset", "demo", *settings(f"task_options.path={tasks}", f"env_options.memo={place / 'memo'}")]
    warm = place / "warm"
    if not (warm / "report.json").exists():
        resume = ["--resume"] * (warm / "config.json").exists()
        envgym("train", *common, *settings("reinforce.steps=0"), "--out", str(warm), *resume)
    from_warm = (f"model.path={warm / 'warm'}", "warm_start.episodes_per_task=0", "evaluate.baselines=[]")
    return common + settings(*from_warm)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=50_000, help="sampled by each run")


def main() -> None:
    given = options(__doc__ or "", more=more)
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        seeds = 1 if given.quick else given.seeds
        length = (
            ("reinforce.steps=1",)
            if given.quick
            else ("reinforce.minutes=none", f"reinforce.tokens={given.tokens}")
        )
        common = prepared(place, given.quick)
        play_arms(place, range(seeds), ARMS, [*common, *settings(*length)])
        rows, arms = arms_beside(place, range(seeds), ARMS, "grpo")
        finish("credit_training", rows, given, arms=arms, seeds=seeds)


if __name__ == "__main__":
    main()
