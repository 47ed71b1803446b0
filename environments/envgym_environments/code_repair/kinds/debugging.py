"""Self-debug: a program that fails, no tests, and the question why; repaired and explained in one submission.

The program is one failing test made to run by itself. The tests are withheld and decide afterwards. What the agent
writes into ``EXPLANATION.md`` is compared with what was broken, and counts only where the repair succeeds. (Jiang
et al., "Training LLMs to Better Self-Debug and Explain Code": explanation and refinement are rewarded together;
Posterior-GRPO: a process reward counts only where the outcome is right.)
"""

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from envgym.sandbox import Sandbox
from envgym.task import evenly
from envgym_environments.code_repair.baseline import Baseline
from envgym_environments.code_repair.judge import Candidate, Plan, Verdict, validate
from envgym_environments.code_repair.kinds.assemble import read_text, whole
from envgym_environments.code_repair.kinds.contract import Draft, Place, Seen
from envgym_environments.code_repair.kinds.test_writing import own_tests
from envgym_environments.code_repair.operators import Mutation, apply, candidates
from envgym_environments.code_repair.places import Yield, find_candidates
from envgym_environments.code_repair.runner import Layout
from envgym_environments.code_repair.trials import Trials

__all__ = ["Debugging", "explained", "judge_debugging", "program_of"]

PROGRAM, EXPLANATION = "failing_program.py", "EXPLANATION.md"
_MOST_GUARDS = 60
_MOST_EXPLANATION = 800
_TRIED = 3


class Debugging:
    """See `contract.Kind`. The forms are the operators of the factory."""

    name = "debug"

    def places(self, tree: Path, baseline: Baseline, plan: Plan) -> Sequence[Place]:
        """Every single mistake that some tests notice."""
        return [
            {
                "form": one.mutation.operator,
                "path": one.path,
                "line": one.mutation.line,
                "digest": one.mutation.digest,
            }
            for one in find_candidates(tree, baseline, plan, Yield())
        ]

    async def prove(
        self, base: Sandbox, baseline: Baseline, tree: Path, place: Place, plan: Plan
    ) -> Seen | Verdict:
        """A valid bug, and a program made of one of its tests that fails with it and not without it."""
        path = str(place["path"])
        source = str(read_text(tree, path))
        mutation = _known(source)[place["digest"]]
        covering = baseline.covering(path, mutation.first_line, mutation.last_line)
        bug = await validate(base, baseline, Candidate(path, source, mutation, covering), plan=plan, seed=plan.seed)
        if bug.verdict is not Verdict.VALID or bug.report is None:
            return bug.verdict
        for test in [one for one in bug.failing if "[" not in one][:_TRIED]:
            text = program_of(str(read_text(tree, test.partition("::")[0])), test)
            if not text:
                continue
            fine, _ = await _run(base, baseline.layout, {PROGRAM: text})
            failed, said = await _run(base, baseline.layout, {PROGRAM: text, path: apply(source, mutation)})
            if fine == 0 and failed == 1 and said:
                return {
                    "fail_to_pass": list(bug.failing),
                    "pass_to_pass": list(evenly(bug.passing, _MOST_GUARDS)),
                    "errors": {one: bug.report.errors.get(one, "") for one in bug.failing},
                    "tests": len(baseline.tests),
                    "program": test,
                    "said": said,
                    "depth": len(bug.report.frames.get(test, ())),
                    "test_files": sorted({one.partition("::")[0] for one in (*covering, *bug.failing)}),
                }
        return Verdict.SURVIVED

    def draft(self, tree: Path, layout: Layout, place: Place, seen: Seen) -> Draft:
        """The broken module, the program, and no tests that run the place."""
        path = str(place["path"])
        source, tests = read_text(tree, path), read_text(tree, seen["program"].partition("::")[0])
        if source is None or tests is None or place["digest"] not in _known(source):
            raise ValueError(f"mistake {place['digest']} of {path} is none of this version's operators")
        mutation = _known(source)[place["digest"]]
        broken = apply(source, mutation)
        line = broken.split("\n")[mutation.line - 1].strip()
        blanked = {name: "" for name in seen["test_files"]}
        note = f"`{mutation.function}` in {path} is wrong:\n\n    {line}\n"
        return Draft(
            name=str(place["form"]),
            prompt=_prompt(seen, layout),
            before={path: broken, PROGRAM: program_of(tests, seen["program"]), **blanked},
            answer={path: source, EXPLANATION: note},
            goal={"path": path, "function": mutation.function, "line": line},
            withheld=tuple(blanked),
            writes=(EXPLANATION,),
            size={"failing": float(len(seen["fail_to_pass"])), "depth": float(seen["depth"])},
        )


@lru_cache(maxsize=8)
def _known(source: str) -> Mapping[str, Mutation]:
    return {one.digest: one for one in candidates(source)}


def program_of(text: str, test: str) -> str:
    """A file of tests as a program that runs one of them; "" where that one needs more than itself."""
    *_, last = parts = test.split("::")[1:]
    reduced = own_tests(text, [test])
    tree = ast.parse(reduced)
    body: Sequence[ast.stmt] = tree.body
    cases = False
    if len(parts) == 2:
        klass = next((one for one in body if isinstance(one, ast.ClassDef) and one.name == parts[0]), None)
        body = klass.body if klass else ()
        cases = klass is not None and any("TestCase" in ast.unparse(base) for base in klass.bases)
    found = next((one for one in body if isinstance(one, ast.FunctionDef) and one.name == last), None)
    if found is None or len(parts) > 2 or found.decorator_list:
        return ""
    if len(found.args.args) != len(parts) - 1 or found.args.kwonlyargs:
        return ""
    call = f"{last}()" if len(parts) == 1 else f"{parts[0]}().{last}()"
    call = f"{parts[0]}({last!r}).debug()" if cases else call
    return f'{reduced}\n\nif __name__ == "__main__":\n    {call}\n'


async def _run(base: Sandbox, layout: Layout, files: Mapping[str, str]) -> tuple[int | None, str]:
    """(exit status, last line of what was said) of the program in a fork with these files."""
    async with await base.fork() as fork:
        for path, text in files.items():
            await fork.write(path, text.encode())
        done = await fork.exec(["python3", PROGRAM], env={"PYTHONPATH": layout.source_root}, timeout_s=30)
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        return done.exit_code, re.sub(r"0x[0-9a-f]{6,}", "0x...", said)[:200]


def _prompt(seen: Seen, layout: Layout) -> str:
    root = "" if layout.source_root == "." else f"PYTHONPATH={layout.source_root} "
    run = f"`{root}python3 {PROGRAM}`"
    match seen["issue"]:
        case "full":
            lines = [f"{run} fails:", "", f"    {seen['said']}", ""]
        case "short":
            lines = [f"{run} fails with {seen['said'].partition(':')[0]}."]
        case "symptom":
            lines = [f"{run} fails."]
        case other:
            raise ValueError(f"issue is {other!r}; it must be 'full', 'short' or 'symptom'")
    return "\n".join(
        [
            *lines,
            f"The program is right; the mistake is in {layout.package}. Find and repair it. Then write into "
            f"{EXPLANATION}, in at most {_MOST_EXPLANATION} characters, which function of which file was wrong, "
            "and quote the wrong line. Tests that you do not see decide about the repair.",
        ]
    )


def explained(goal: Mapping[str, str], note: str | None) -> float:
    """How much of what was wrong an explanation names: the function, the file, the line. 0 for a long one."""
    if not note or len(note) > _MOST_EXPLANATION:
        return 0.0
    flat = " ".join(note.split())
    said = [
        re.search(rf"(?<!\w){re.escape(goal['function'].rpartition('.')[2])}(?!\w)", flat) is not None,
        goal["path"] in flat,
    ]
    if goal["line"]:
        said.append(" ".join(goal["line"].split()) in flat)
    return sum(said) / len(said)


async def judge_debugging(trials: Trials, changed: Any, verdict: Any) -> tuple[dict[str, float], bool]:
    """See `judges.Judge`. reward = resolved x (4 + explained) / 5."""
    goal: Any = trials.task.metadata["goal"]
    code = {path: text for path, text in changed.items() if path != EXPLANATION}
    graded = Trials(whole(trials.task), trials.backend, trials.memo)
    channels, repeats = await verdict(graded, code)
    resolved = channels["resolved"]
    understood = resolved * explained(goal, changed.get(EXPLANATION))
    return {**channels, "explained": understood, "reward": resolved * (4.0 + understood) / 5.0}, repeats
