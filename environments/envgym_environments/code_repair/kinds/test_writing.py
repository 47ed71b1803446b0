"""Unit-test writing: the tests of one function are taken away, and new ones have to be written.

They are graded by the mutants they kill, by the blocks of the function that they reach (a probe that raises there
must be noticed, which no tracer can be told to say), and by static quality. Only mutants and blocks that the
package's own tests notice count, so these get the full reward.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

import numpy as np

from envgym.sandbox import Sandbox
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Plan, Verdict
from envgym_environments.code_repair.kinds.assemble import read_text, whole
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.kinds.disguise import disguised
from envgym_environments.code_repair.kinds.static_quality import METRICS, forbidden, static_quality
from envgym_environments.code_repair.kinds.written_tests import (
    States,
    blocks,
    function_at,
    mutated,
    probed,
    try_tests,
)
from envgym_environments.code_repair.operators import Mutation, apply, candidates
from envgym_environments.code_repair.places import covered_sources
from envgym_environments.code_repair.runner import Layout, run_tests
from envgym_environments.code_repair.trials import Trials

__all__ = ["TestWriting", "judge_tests", "own_tests"]

_MUTANTS = 6
_LEAST_MUTANTS = 2
_TRIED = 14
_PROBES = 4
_MOST_COVERING = 40
_LEAST_LINES = 3


class TestWriting:
    """See `contract.Kind`."""

    __test__ = False
    name = "tests"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Functions whose covering tests stand in one file."""
        found: list[Place] = []
        for path, source in covered_sources(tree, baseline.layout, list(baseline.covers)):
            for name, node in _functions(source):
                last = node.end_lineno or node.lineno
                covering = baseline.covering(path, node.body[0].lineno, last)
                files = {test.partition("::")[0] for test in covering}
                if len(files) == 1 and len(covering) <= _MOST_COVERING and last - node.lineno >= _LEAST_LINES:
                    found.append({"form": "function", "path": path, "function": name, "file": files.pop()})
        return found

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """The package's own tests as if somebody had written them, and what they notice."""
        source, path = str(read_text(tree, place["path"])), str(place["path"])
        node = function_at(ast.parse(source), place["function"])
        last = node.end_lineno or node.lineno
        covering = baseline.covering(path, node.body[0].lineno, last)
        text = own_tests(str(read_text(tree, place["file"])), covering)
        if forbidden(ast.parse(text)) or not static_quality(text, place["function"])["calls_focal"]:
            return Verdict.NOT_RESTORED
        tried = _Gold(base, baseline, _target(place), text, path)
        chance = Random(plan.seed)
        if not await tried.passes(disguised(source, chance)):
            return Verdict.NOT_RESTORED
        inside = [one for one in candidates(source) if node.lineno < one.line <= last]
        rng = np.random.default_rng([plan.seed, node.lineno])
        killed: list[Mutation] = []
        for index in rng.permutation(len(inside))[:_TRIED]:
            if len(killed) < _MUTANTS and await tried.fails(disguised(apply(source, inside[index]), chance)):
                killed.append(inside[index])
        if len(killed) < _LEAST_MUTANTS:
            return Verdict.SURVIVED
        numbers = range(len(blocks(node)))
        reached = [
            number
            for number in list(numbers)[: 2 * _PROBES]
            if await tried.fails(disguised(probed(source, place["function"], number), chance))
        ]
        if not reached:
            return Verdict.SURVIVED
        return {
            "fail_to_pass": [],
            "pass_to_pass": [],
            "tests": len(covering),
            "covering": list(covering),
            "mutants": [[one.operator, one.line, one.digest] for one in killed],
            "blocks": reached[:_PROBES],
        }

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The file of tests blanked; the answer is a new file of those that ran the function."""
        path, file = str(place["path"]), str(place["file"])
        source, tests = read_text(tree, path), read_text(tree, file)
        if source is None or tests is None:
            raise ValueError(f"there is no {path} or no {file} in {tree}")
        node = function_at(ast.parse(source), place["function"])
        text = own_tests(tests, seen["covering"])
        known = {one.digest: one for one in candidates(source)}
        if lost := [row for row in seen["mutants"] if row[2] not in known]:
            raise ValueError(f"{lost[0]} of {path} is not made by the operators of this version")
        edits = [_as_data(known[digest]) for _, _, digest in seen["mutants"]]
        target = _target(place)
        quality = static_quality(text, place["function"])
        return Draft(
            name=str(place["function"]).strip("_").replace(".", "-").replace("_", "-").lower(),
            prompt=_prompt(node, place, seen, layout),
            before={file: ""},
            answer={target: text},
            goal={
                "target": target,
                "path": path,
                "function": place["function"],
                "mutants": edits,
                "blocks": list(seen["blocks"]),
                "quality": sum(quality.values()) / len(METRICS),
            },
            withheld=(file,),
            writes=(target,),
            size={
                "lines": float((node.end_lineno or 0) - node.lineno + 1),
                "mutants": float(len(edits)),
                "blocks": float(len(seen["blocks"])),
            },
        )


class _Gold:
    """Runs one file of tests on states of the module, as the grader will; in forks, for speed."""

    def __init__(self, base: Sandbox, baseline: Baseline, target: str, text: str, path: str) -> None:
        self._base, self._baseline, self._target, self._text, self._path = base, baseline, target, text, path

    async def _run(self, state: str) -> tuple[bool, bool]:
        layout = self._baseline.layout.model_copy(update={"tests": (self._target,), "deselect": ()})
        async with await self._base.fork() as fork:
            await fork.write(self._target, self._text.encode())
            await fork.write(self._path, state.encode())
            limit_s = self._baseline.suite_s
            report = await run_tests(
                fork, layout, fail_fast=True, timeout_s=30.0 + 10.0 * limit_s, test_timeout_s=1.0 + limit_s
            )
            return report.ok, report.timed_out or report.waited or bool(report.doubt)

    async def passes(self, state: str) -> bool:
        """Whether every test passes."""
        return (await self._run(state))[0]

    async def fails(self, state: str) -> bool:
        """Whether a test fails, by itself and not by hanging."""
        passed, stopped = await self._run(state)
        return not passed and not stopped


def _functions(source: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    yield f"{node.name}.{one.name}", one


def _target(place: Place) -> str:
    """Where the tests are written: beside those that were taken away."""
    word = str(place["function"]).replace(".", "_").strip("_").lower()
    return str(PurePosixPath(str(place["file"])).parent / f"test_written_{word}.py")


def _as_data(one: Mutation) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def own_tests(text: str, covering: Sequence[str]) -> str:
    """A file of tests without those that are not named by id."""
    wanted = {test.partition("::")[2].partition("[")[0] for test in covering}
    tree = ast.parse(text)
    tree.body = [one for one in (_kept(node, "", wanted) for node in tree.body) if one]
    return ast.unparse(tree) + "\n"


def _kept(node: ast.stmt, above: str, wanted: set[str]) -> ast.stmt | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
        return node if above + node.name in wanted else None
    if isinstance(node, ast.ClassDef) and any(one.startswith(f"{above}{node.name}::") for one in wanted):
        node.body = [one for one in (_kept(one, f"{above}{node.name}::", wanted) for one in node.body) if one]
    elif isinstance(node, ast.ClassDef) and node.name.lower().startswith("test"):
        return None
    return node


def _prompt(node: ast.FunctionDef, place: Place, seen: Seen, layout: Layout) -> str:
    lines = [f"Write unit tests for `{place['function']}` of {place['path']}, in the new file {_target(place)}."]
    if seen["issue"] == "full":
        lines += ["", f"    def {node.name}({ast.unparse(node.args)})", ""]
        doc = (ast.get_docstring(node) or "").partition("\n\n")[0]
        lines += [doc[:400]] if doc else []
    if seen["issue"] != "symptom":
        lines += [
            "",
            "They have to pass on the code as it is, and to fail where it is changed: faults are put into the "
            f"function ({len(seen['mutants'])} of them), and exceptions into its branches. Then they are looked "
            "at: each test has an assertion, calls the function, has no branches, prints nothing, asserts nothing "
            "twice, and has a name that says what it is about.",
        ]
    lines += [
        "",
        "They may not look at source, byte code, files, clocks or chance (no os, sys, inspect, open and such). "
        f"The package's code is in {layout.package} and is right; only that file counts.",
    ]
    return "\n".join(lines)


async def judge_tests(trials: Trials, changed: Any, verdict: Any) -> tuple[dict[str, float], bool]:
    """See `judges.Judge`. reward = killed x (2 + coverage + quality) / 4, where the tests are valid.

    killed: share of the mutants. coverage: share of the blocks. quality: mean of the metrics, of the answer's at
    most 1. resolved: every mutant is killed.
    """
    goal: Any = trials.task.metadata["goal"]
    text = changed.get(goal["target"])
    if text is None:
        return {}, True
    said = static_quality(text, goal["function"])
    channels = {f"quality_{name}": value for name, value in said.items()}
    channels["static_quality"] = quality = sum(said.values()) / len(METRICS)
    try:
        refused = forbidden(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return channels | {"malformed": 1.0}, True
    if refused:
        return channels | {"voided": 1.0}, True
    graded = Trials(whole(trials.task), trials.backend, trials.memo)
    source = str(await graded.source(goal["path"]))
    states = States(
        goal["path"],
        source,
        tuple(mutated(source, goal["mutants"])),
        tuple(probed(source, goal["function"], number) for number in goal["blocks"]),
    )
    tried = await try_tests(graded, goal["target"], text, states)
    channels |= {"valid": float(tried.valid), "voided": float(bool(tried.void))}
    if not tried.valid:
        return channels, tried.repeats
    killed = sum(tried.mutants) / len(tried.mutants)
    covered = sum(tried.probes) / len(tried.probes)
    resolved = float(killed == 1.0)
    channels |= {"killed": killed, "coverage": covered, "f2p": killed, "p2p": 1.0 if killed else 0.0}
    channels |= {"resolved": resolved, "success": resolved}
    channels["reward"] = killed * (2.0 + covered + min(1.0, quality / goal["quality"])) / 4.0
    return channels, tried.repeats
