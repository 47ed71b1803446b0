"""Speed-up: a function of a real package that works and is slow, for calls that nobody has seen before.

An inefficiency is put into it (`slowing`) that the package's tests do not notice; the workload is drawn anew, by a
secret seed, from the shapes of the arguments that the tests gave it. Graded by the kernel's processor time of whole
processes, slow code, submission and answer in turns with the same arguments, and by the interpreter's own steps
where these show it. (Duan et al., "Leveraging Reinforcement Learning and Large Language Models for Code
Optimization": a faster program counts once its tests pass.)
"""

import ast
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from envgym.errors import GraderFailure
from envgym.sandbox import Sandbox
from envgym.task import evenly
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.assemble import read_text
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.kinds.measured.calls import Calls, Cost, cost_of
from envgym_environments.code_repair.kinds.measured.drawing import drawn_calls, grows
from envgym_environments.code_repair.kinds.measured.states import answer_of
from envgym_environments.code_repair.kinds.measured.states import changed as changed_state
from envgym_environments.code_repair.kinds.moves import dotted
from envgym_environments.code_repair.kinds.slowing import slowdowns
from envgym_environments.code_repair.operators import Mutation, apply
from envgym_environments.code_repair.places import covered_sources
from envgym_environments.code_repair.runner import WORKDIR, Layout, run_tests
from envgym_environments.code_repair.trials import Trials

__all__ = ["SpeedUp", "defined", "judge_speed", "share_of"]

WORKLOAD = "workload.py"
_DRAWING = files("envgym_environments.code_repair.kinds.measured").joinpath("drawing.py").read_text()
_NOTES = ".seen-calls"
_SIZES = (60, 250, 1000, 4000, 16000)
_CALLS, _MOST_SEEN, _MOST_WANTED = 4, 6, 40
_ROUNDS = 3
_LEAST_S, _MOST_S = 0.15, 3.0
_LEAST_RATIO = 3.0
_LEAST_STEPS = 2.0
ENOUGH = 0.5
"""Share of the way from slow to fast, on a logarithmic scale, from which on a function is fast."""


class SpeedUp:
    """See `contract.Kind`. The forms are the operators of `slowing`."""

    name = "speed"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Every inefficiency in a function at the top of a module that some tests run, and not too many."""
        found: list[Place] = []
        for path, source in covered_sources(tree, baseline.layout, list(baseline.covers)):
            top = {one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)}
            for one in slowdowns(source):
                covering = baseline.covering(path, one.first_line, one.last_line)
                if one.function in top and 0 < len(covering) <= plan.most_covering:
                    found.append(
                        {
                            "form": one.operator,
                            "path": path,
                            "function": one.function,
                            "line": one.line,
                            "digest": one.digest,
                        }
                    )
        return found

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """All tests still pass, and drawn calls take at least three times as long and give the same."""
        path, source = str(place["path"]), str(read_text(tree, place["path"]))
        slow = apply(source, _known(source)[place["digest"]])
        node = defined(source, place["function"])
        covering = baseline.covering(path, node.body[0].lineno, node.end_lineno or node.lineno)
        seen = await _calls_seen(base, baseline, place, source, covering) if covering else []
        if not seen:
            return Verdict.SURVIVED
        async with await base.fork() as fork:
            await fork.write(path, slow.encode())
            limit_s = 30.0 + 10.0 * baseline.suite_s
            report = await run_tests(
                fork, baseline.layout, timeout_s=limit_s, test_timeout_s=1.0 + baseline.suite_s
            )
        if not report.ok or set(report.passing) != set(baseline.tests):
            return Verdict.NOT_RESTORED
        states = {"slow": {path: slow}, "fast": {}}
        tried = _Tried(base, place, baseline.layout, seen, states, plan.seed)
        size = await tried.size()
        if isinstance(size, Verdict):
            return size
        return {
            "fail_to_pass": list(evenly(covering, _MOST_WANTED)),
            "pass_to_pass": [],
            "tests": len(baseline.tests),
            "calls": seen,
            "size": size,
            "ratio": round(tried.ratio, 1),
            "counted": await tried.counted(size),
        }

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The slow module, and a program that runs such a workload; the answer puts the module back."""
        path = str(place["path"])
        source = read_text(tree, path)
        if source is None or place["digest"] not in _known(source):
            raise ValueError(f"inefficiency {place['digest']} of {path} is none of this version's operators")
        goal = {name: seen[name] for name in ("calls", "size", "counted")}
        return Draft(
            name=f"{place['form']}-{str(place['function']).strip('_').lower()}",
            prompt=_prompt(place, seen, layout),
            before={
                path: apply(source, _known(source)[place["digest"]]),
                WORKLOAD: _workload(place, seen, layout),
            },
            answer={path: source},
            goal={"module": dotted(path, layout.source_root), "function": place["function"], **goal},
            size={
                "lines": float(len(source.split("\n"))),
                "ratio": float(seen["ratio"]),
                "seen_in_steps": float(seen["counted"]),
            },
        )


def defined(source: str, name: str) -> ast.FunctionDef:
    """The last function of a name at the top of a module: those before it may be overloads without a body."""
    *_, node = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == name]
    return node


@lru_cache(maxsize=8)
def _known(source: str) -> Mapping[str, Mutation]:
    return {one.digest: one for one in slowdowns(source)}


_NOTING = """

def _noting(function, text, place):
    import functools, json
    space = {"__name__": "drawing"}
    exec(text, space)

    @functools.wraps(function)
    def noting(*args, **kwargs):
        shapes = [space["shape_of"](one) for one in args]
        named = {name: space["shape_of"](one) for name, one in kwargs.items()}
        if None not in shapes and None not in named.values():
            with open(place, "a") as file:
                file.write(json.dumps({"args": shapes, "kwargs": named}) + "\\n")
        return function(*args, **kwargs)

    return noting


FUNCTION = _noting(FUNCTION, TEXT, PLACE)
"""
"""What is added to a module in a fork, to learn with what shapes of arguments its tests call a function."""


async def _calls_seen(
    base: Sandbox, baseline: Baseline, place: Place, source: str, covering: Sequence[str]
) -> list[dict[str, Any]]:
    """Shapes of calls that hold something that can grow, evenly chosen of all that the tests make."""
    added = _NOTING.replace("FUNCTION", place["function"]).replace("TEXT", repr(_DRAWING))
    added = added.replace("PLACE", repr(f"{WORKDIR}/{_NOTES}"))
    async with await base.fork() as fork:
        await fork.write(place["path"], (source + added).encode())
        limit_s = 30.0 + 10.0 * baseline.suite_s
        await run_tests(fork, baseline.layout, selection=covering, timeout_s=limit_s, test_timeout_s=limit_s)
        try:
            lines = (await fork.read(_NOTES)).decode().split("\n")
        except FileNotFoundError:
            return []
    unique = {line: json.loads(line) for line in lines if line}
    growing = [
        one for one in unique.values() if any(grows(shape) for shape in [*one["args"], *one["kwargs"].values()])
    ]
    return list(evenly(growing, _MOST_SEEN))


class _Tried:
    """Measures states of the package in forks, as the grader will in sandboxes of their own."""

    def __init__(
        self,
        base: Sandbox,
        place: Place,
        layout: Layout,
        seen: list[dict[str, Any]],
        states: Mapping[str, Mapping[str, str]],
        seed: int,
    ) -> None:
        self._base, self._place, self._layout, self._seen = base, place, layout, seen
        self._states, self._seed = states, seed
        self.ratio = 0.0

    async def _cost(self, state: str, size: int, count: int, number: int, *, steps: bool = False) -> Cost:
        calls = Calls(
            dotted(self._place["path"], self._layout.source_root),
            self._place["function"],
            self._layout.source_root,
            drawn_calls(self._seen, size, count, f"{self._seed} {number}"),
        )
        async with await self._base.fork() as fork:
            for path, text in self._states[state].items():
                await fork.write(path, text.encode())
            return await cost_of(fork, calls, count=steps)

    async def size(self) -> int | Verdict:
        """The least size of arguments with which slow and fast are far apart every time, or why there is none."""
        for size in _SIZES:
            for number in range(_ROUNDS):
                slow, fast = [await self._cost(state, size, _CALLS, number) for state in ("slow", "fast")]
                if not slow.outcomes:
                    return Verdict.HANGS
                if slow.outcomes != fast.outcomes or slow.odd or 2 * slow.raised > _CALLS:
                    return Verdict.NOT_RESTORED
                ratio = slow.cpu_s / fast.cpu_s
                self.ratio = min(self.ratio, ratio) if number else ratio
                if slow.cpu_s < _LEAST_S or ratio < _LEAST_RATIO:
                    break
            else:
                return size
            if slow.cpu_s > _MOST_S:
                return Verdict.SURVIVED
        return Verdict.SURVIVED

    async def counted(self, size: int) -> bool:
        """Whether the interpreter's steps show the difference too."""
        slow, fast = [await self._cost(state, size // 4, 1, _ROUNDS, steps=True) for state in ("slow", "fast")]
        return bool(fast.steps) and slow.steps >= _LEAST_STEPS * fast.steps


def _workload(place: Place, seen: Seen, layout: Layout) -> str:
    """A program that draws such a workload and says how long it takes."""
    return (
        f"{_DRAWING}\n\nif __name__ == '__main__':\n"
        "    import sys\n    import time\n\n"
        f"    sys.path.insert(0, {layout.source_root!r})\n"
        f"    from {dotted(place['path'], layout.source_root)} import {place['function']} as function\n\n"
        "    seed = sys.argv[1] if len(sys.argv) > 1 else str(time.time_ns())\n"
        f"    calls = drawn_calls({list(seen['calls'])!r}, {seen['size']}, {_CALLS}, seed)\n"
        "    began = time.process_time()\n"
        "    for args, kwargs in calls:\n"
        "        try:\n"
        "            found = function(*args, **kwargs)\n"
        "            if hasattr(type(found), '__next__'):\n"
        "                list(found)\n"
        "        except Exception as error:\n"
        "            print(f'raised {type(error).__name__}')\n"
        f"    print(f'{{time.process_time() - began:.3f}} s for {{len(calls)}} calls')\n"
    )


def _prompt(place: Place, seen: Seen, layout: Layout) -> str:
    match seen["issue"]:
        case "full":
            what = f"`{place['function']}` in {place['path']} gives what it should, and is too slow"
            what += f": {seen['ratio']:.0f} times as slow as it was, for large arguments."
        case "short":
            what = f"Something in {place['path']} gives what it should, and is too slow for large arguments."
        case "symptom":
            what = f"What {WORKLOAD} does takes far too long."
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")
    return "\n".join(
        [
            what,
            "",
            f"Make it fast. `python3 {WORKLOAD} [SEED]` draws large arguments and says how many seconds of "
            "processor time the calls take. It is judged by other arguments of this kind: they must give exactly "
            "what they give now, every test must still pass, and the time of whole processes must be "
            "near to what it was before it became slow. "
            f"The package's code is in {layout.package}; only changes there count.",
        ]
    )


def share_of(slow: float, mine: float, fast: float) -> float:
    """How much of the way from slow to fast something went, on a logarithmic scale: 0 is slow, 1 is fast."""
    return math.log(slow / mine) / math.log(slow / fast) if min(slow, mine, fast) > 0 and slow > fast else 0.0


async def judge_speed(trials: Trials, changed: Any, verdict: Any) -> tuple[dict[str, float], bool]:
    """See `judges.Judge`. reward = success: every test passes, the same is given, and `gain` is at least `ENOUGH`.

    speedup: how many times faster than the slow code, the median of the rounds. gain: see `share_of`, the less of
    time and steps, where these count. steps: how many times fewer.
    """
    if not changed:
        return {}, True
    channels, _ = await verdict(trials, changed)
    told = {name: channels[name] for name in ("timeout", "out_of_memory", "crashed", "voided")}
    if channels["resolved"] != 1.0:
        return told, False
    judged = _Judged(trials, changed)
    told |= {"tests_pass": 1.0, **await judged.channels()}
    won = float(told["same"] == 1.0 and told["gain"] >= ENOUGH)
    if won:
        told |= dict.fromkeys(("reward", "resolved", "success", "f2p", "p2p"), 1.0)
    return told, False


class _Judged:
    """One submission beside the slow code and the answer, every run in a sandbox of its own."""

    def __init__(self, trials: Trials, changed: Mapping[str, str | None]) -> None:
        self._trials, self._changed = trials, changed
        self._goal: Any = trials.task.metadata["goal"]

    async def _round(self, size: int, number: int, *, count: bool = False) -> tuple[Cost, Cost, Cost]:
        """(slow, submission, answer) with arguments that are drawn now and used once."""
        layout, goal = self._trials.facts.layout, self._goal
        assert isinstance(layout, Layout)
        drawn = drawn_calls(goal["calls"], size, number, secrets.token_hex(16))
        calls = Calls(goal["module"], goal["function"], layout.source_root, drawn)
        found = list[Cost]()
        for state in ({}, self._changed, await answer_of(self._trials)):
            async with changed_state(self._trials, state) as sandbox:
                found.append(await cost_of(sandbox, calls, count=count))
        if not found[0].outcomes or not found[2].outcomes:
            raise GraderFailure(f"{goal['function']} of {self._trials.task.id!r} cannot be measured here")
        return found[0], found[1], found[2]

    async def channels(self) -> dict[str, float]:
        """same, speedup, gain and, where it counts, steps."""
        shares, ratios = list[float](), list[float]()
        for _ in range(_ROUNDS):
            slow, mine, fast = await self._round(self._goal["size"], _CALLS)
            if mine.outcomes != fast.outcomes:
                return {"same": 0.0, "speedup": 0.0, "gain": 0.0}
            shares.append(share_of(slow.cpu_s, mine.cpu_s, fast.cpu_s))
            ratios.append(slow.cpu_s / mine.cpu_s)
        found = {"same": 1.0, "speedup": median(ratios), "gain": median(shares)}
        if self._goal["counted"]:
            slow, mine, fast = await self._round(self._goal["size"] // 4, 1, count=True)
            found["steps"] = slow.steps / mine.steps if mine.steps else 0.0
            found["gain"] = min(found["gain"], share_of(slow.steps, mine.steps, fast.steps))
        return found
