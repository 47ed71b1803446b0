"""Steps an hour of our loop beside TRL's GRPO trainer, with one model, tokenizer and tool; and who survives what.

Both sides load one folder (see `_trl_world`) and play the same world: four calls of one tool, then an answer; each
step is one update from `tasks` groups of `group` episodes, in float32, with as many threads. The prompts must be
the same ids. A round runs TRL, then ours, each in a process of its own, and counts its steps after the first two;
rows show the median of rounds as seconds of a step: a ratio of 0.2 is five times the steps an hour. Ours runs as
`envgym train` does by default, overlapped with staleness 1; beside it, taking turns as TRL does. Beside the time of
a step stands the processor time of a step, of all its threads: on a machine that others use, too, the fairer one.

Then the same runs with one fault in the middle, and how each side ended.
"""

import json
import os
import select
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from _harness import Row, finish, options, scratch_folder
from _trl_peer import located, template
from _trl_world import CALLS, FAULTS, LINE, READY, Plan, make_folder

HERE = Path(__file__).resolve().parent
WARM = 2
"""Steps at the begin of a run that do not count."""
TIMES = ("steps_s", "work_s")
"""What both sides tell of each step: seconds, and seconds of processors."""
QUICK = ("garbage", "exits", "hangs")
"""The faults of a quick run."""


def started(side, *plans, staleness=1):
    first = [str(staleness)] if side == "ours" else []
    command = [sys.executable, str(HERE / f"_trl_{side}.py"), *first, *(json.dumps(asdict(plan)) for plan in plans)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    )


def lines(process, patience_s):
    """What a process finds, a line for each plan, as long as each comes within `patience_s`; then it is ended.

    Its first line says that it has imported everything, for which there is more time.
    """
    rest, ready = b"", False
    try:
        while select.select([process.stdout], [], [], patience_s if ready else 600)[0]:
            if not (new := os.read(process.stdout.fileno(), 1 << 16)):
                return
            *whole, rest = (rest + new).split(b"\n")
            for line in whole:
                ready |= line.startswith(READY.encode())
                if line.startswith(LINE.encode()):
                    yield json.loads(line.removeprefix(LINE.encode()))
    finally:
        process.kill()
        process.communicate()


def run(side, plan, *, staleness=1):
    """One run that has to reach its end."""
    process = started(side, plan, staleness=staleness)
    said, errors = process.communicate(timeout=3600)
    found = [json.loads(line.removeprefix(LINE)) for line in said.decode().splitlines() if line.startswith(LINE)]
    if not found or "ended" in found[0]:
        raise SystemExit(f"trl_steps: {side} did not end well: {found} {errors.decode()[-2000:]}")
    return found[0]


def compared(plan, rounds):
    """Median seconds of a step, of TRL, of ours overlapped and in turns; the same of processor time; and facts."""
    found = {"peer": [], "ours": [], "turns": []}
    for _ in range(rounds):
        for name, side, staleness in (("peer", "peer", 0), ("ours", "ours", 1), ("turns", "ours", 0)):
            found[name].append(run(side, plan, staleness=staleness))
            step_s, work_s = (mean(found[name][-1][times]) for times in TIMES)
            print(f"{plan.tool_s * 1000:.0f} ms tool, {name}: {step_s:.3f} s a step, {work_s:.3f} s of processors",
                  flush=True)  # fmt: skip
    prompts = {tuple(one["prompt"]) for runs in found.values() for one in runs}
    if len(prompts) != 1:
        raise SystemExit("trl_steps: the two sides were not shown the same prompt")
    for name, runs in found.items():
        if (calls := min(one["facts"]["calls"] for one in runs)) < 0.7 * CALLS:
            raise SystemExit(
                f"trl_steps: {name}: the model made {calls:.1f} calls an episode, and {CALLS} are meant"
            )
    spread = {times: {name: [mean(one[times]) for one in runs] for name, runs in found.items()} for times in TIMES}
    medians = [{name: statistics.median(values) for name, values in spread[times].items()} for times in TIMES]
    return medians, {"prompt_ids": len(prompts.pop()), "of_rounds": spread,
                     "facts": {name: runs[-1]["facts"] for name, runs in found.items()}}  # fmt: skip


def mean(times):
    """Of the steps that count."""
    return statistics.mean(times[WARM - 1 :])


def survivals(plan, faults, patience_s):
    """How each side ended with each fault: "" where it reached its last step."""
    found = {}
    for side in ("peer", "ours"):
        said = list(lines(started(side, *(replace(plan, fault=fault) for fault in faults)), patience_s))
        for fault, one in zip(faults, said, strict=False):
            if one.get("facts", {}).get("went wrong") is False:
                raise SystemExit(f"trl_steps: {fault}: nothing went wrong in the run of {side}")
        ends = [one.get("ended", "") for one in said]
        found[side] = dict(zip(faults, [*ends, f"no end within {patience_s} s"], strict=False))
    return found


def shown(ends):
    """Print who survived what; returns how many faults ended each side's run."""
    for fault in ends["peer"]:
        for side, name in (("peer", "TRL"), ("ours", "ours")):
            how = ends[side].get(fault, "not reached")
            print(f"{fault:11} {name:5} {f'ENDS: {how}' if how else 'goes on'}")
    return [sum(ends[side].get(fault) != "" for fault in ends["peer"]) for side in ("ours", "peer")]


def more(parser):
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs")


def main():
    given = options(__doc__, more=more)
    size, updates = ("tiny", 200) if given.quick else ("1M", 150)
    with scratch_folder() as scratch:
        make_folder(scratch / "model", template(located(scratch / "trl")), size=size, updates=updates)
        cores = len(os.sched_getaffinity(0))
        plan = Plan(str(scratch / "model"), steps=8, threads=cores)
        if given.quick:
            plan = replace(plan, steps=3, tasks=1, group=4, threads=1)
        rows, notes = [], {}
        for tool_s, bar in ((0.05, 5.0),) if given.quick else ((0.05, 5.0), (0.0, 1.5)):
            (seconds, work), told = compared(replace(plan, tool_s=tool_s), 1 if given.quick else given.rounds)
            what = f"{tool_s * 1000:.0f} ms tool" if tool_s else "instant tool"
            notes[what] = told
            rows.append(Row(f"{what}, overlapped", seconds["ours"], seconds["peer"], "TRL GRPO", "s of a step",
                            None if given.quick else 1 / bar))  # fmt: skip
            rows.append(Row(f"{what}, in turns", seconds["turns"], seconds["peer"], "TRL GRPO", "s of a step"))
            rows += [Row(f"{what}, {how}", work[name], work["peer"], "TRL GRPO", "processor s of a step")
                     for how, name in (("overlapped", "ours"), ("in turns", "turns"))]  # fmt: skip
        faults = QUICK if given.quick else FAULTS
        ends = survivals(replace(plan, steps=3, tasks=1, group=4), faults, 60 if given.quick else 120)
    ours, peer = shown(ends)
    rows.append(Row("faults that end the run", ours, peer, f"TRL, of {len(faults)}", "number", 0.0, absolute=True))
    finish("trl_steps", rows, given, plan=asdict(replace(plan, folder="")), ends=ends, **notes)


if __name__ == "__main__":
    main()
