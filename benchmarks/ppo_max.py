"""What each of PPO-max's switches does to a small policy, alone and all together, beside plain PPO with a critic.

    python benchmarks/ppo_max.py --json ppo_max.json --runs runs/ppo-max

Every run begins at the same imitated model and takes turns of playing and learning in a game whose worlds never
wait, so its numbers are a function of the seed. All switches are off by default but the bound on a gradient's
length, which plain PPO has not here. Beside success on held-out tasks: the KL of an update (k3 of its tokens), the
policy's entropy, the share of clipped tokens, how much of the targets' variance the critic's values explain, and
the gradient's length, in the last quarter of the steps. It says nothing of large models, and has no bar.
Without an arm: PPO-max's language-model loss on other data (`loss.streams`), and `loss.credit_filter`, which is
StableReinforce's.
Source of the switches: "Secrets of RLHF, part I: PPO" (Zheng et al. 2023, arXiv 2307.04964).
"""

import argparse
import json
import statistics
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.config import load
from envgym_agents.learn.run import train

PLAIN = (
    "credit=turn-gae", "critic.kind=turn", "critic.loss=mse", "teaches=all", "max_grad_norm=1000000.0",
    "epochs=2", "minibatches=2", "lr=0.001",
)  # fmt: skip
SWITCHES: dict[str, tuple[str, ...]] = {
    "rewards in deviations": ("critic.rewards.scale=std",),
    "rewards normal, clipped": ("critic.rewards.scale=normal", "critic.rewards.clip=2.0"),
    "KL in the credit": ("loss.kl=0.02", "loss.divergence.place=credit"),
    "credit in deviations": ("loss.credit_scale=std",),
    "credit clipped": ("loss.credit_clip=0.5",),
    "values clipped": ("critic.value_clip=0.2",),
    "critic first": ("critic.warmup=16",),
    "gradient clipped": ("max_grad_norm=1.0",),
    "entropy bonus": ("entropy=0.01",),
}
WATCHED = ("kl", "entropy", "sampled_tokens", "clip_share", "critic_explained", "grad_norm")


def base(quick):
    return {
        "env": "guess", "expert": "random", "tasks": 8 if quick else 60, "turns": 8, "threads": 1,
        "model": {"size": "tiny"},
        "warm_start": {"min_updates": 5, "max_updates": 5 if quick else 60, "rows": 8},
        "reinforce": {"steps": 2 if quick else 40, "tasks": 2 if quick else 8, "group": 4, "oversample": 1.0,
                      "loop": {"staleness": 0}},
        "evaluate": {"tasks": 4 if quick else 60, "greedy": False, "baselines": [], "bootstrap": 100},
    }  # fmt: skip


def warmed(place, quick):
    """The folder of the model that every run begins with."""
    run = place / "warm"
    if not (run / "report.json").exists():
        train(load(base=base(quick), overrides=["reinforce.steps=0"]), run, resume=(run / "config.json").exists())
    return run / "warm"


def learned(place, warm, name, settings, seed, quick):
    """What one run says: success, and the means of its last quarter of steps."""
    run = place / f"{name.replace(' ', '-')}-{seed}"
    if not (run / "report.json").exists():
        begun = (f"model.path={warm}", "warm_start.episodes_per_task=0", "warm_start.min_updates=0",
                 "warm_start.max_updates=0", f"seed={seed}")  # fmt: skip
        said = [*begun, *(f"reinforce.{one}" for one in (*PLAIN, *settings))]
        train(load(base=base(quick), overrides=said), run, resume=(run / "config.json").exists())
    rates = {one["name"]: one["success"] for one in json.loads((run / "report.json").read_text())["evaluations"]}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = lines[-max(1, len(lines) // 4) :]
    found = {what: statistics.fmean(one[what] for one in last if what in one)
             for what in WATCHED if any(what in one for one in last)}  # fmt: skip
    return found | {"success": rates["after RL"], "before": rates["before RL"]}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, help="where runs are kept, and found again (default: nowhere)")
    parser.add_argument("--seeds", type=int, default=3)


def main():
    given = options(__doc__, more=more)
    together = tuple(one for settings in SWITCHES.values() for one in settings)  # of a name said twice the last one
    arms = {"plain": (), **SWITCHES, "all of them": together}
    if given.quick:
        arms = {name: arms[name] for name in ("plain", "rewards normal, clipped", "all of them")}
    with scratch_folder() as scratch:
        place = given.runs or scratch
        place.mkdir(parents=True, exist_ok=True)
        warm = warmed(place, given.quick)
        found = {
            name: [learned(place, warm, name, settings, seed, given.quick)
                   for seed in range(1 if given.quick else given.seeds)]
            for name, settings in arms.items()
        }  # fmt: skip
    means = {
        name: {
            what: statistics.fmean(one[what] for one in runs if what in one) for what in sorted(set().union(*runs))
        }
        for name, runs in found.items()
    }
    for name, one in means.items():
        print(f"{name:22} " + "  ".join(f"{what} {value:.3g}" for what, value in one.items()))
    rows = [Row("plain: success", means["plain"]["success"], means["plain"]["before"], "before RL", "share")]
    rows += [Row(f"{name}: success", one["success"], means["plain"]["success"], "plain", "share")
             for name, one in means.items() if name != "plain"]  # fmt: skip
    finish("ppo_max", rows, given, runs=found, settings={name: list(one) for name, one in arms.items()})


if __name__ == "__main__":
    main()
