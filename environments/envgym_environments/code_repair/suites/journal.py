"""What a build of one project has found so far: written as it is found, so that a killed build loses one mistake.

One line of JSON for each thing: first what the unbroken suite does, then every judged mistake by its key, and what
the grader said of its task. The build that goes on reads them in the place of running anything; which tasks come
out is the same, since order and choice depend on the seed. A last line that a kill cut off is left out.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envgym_environments.code_repair.judge import Candidate, Verdict
from envgym_environments.code_repair.suites.baseline import SuiteBaseline
from envgym_environments.code_repair.suites.guards import Guards
from envgym_environments.code_repair.suites.judge import Proof, SuiteBug
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["Journal"]


class Journal:
    """The journal at `path` (None: nothing is kept). One build writes to it at a time.

    before_s: how long the builds took that were stopped, up to what they wrote last.
    Raises ValueError where a whole line is no line of a journal.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._baseline: dict[str, Any] | None = None
        self._bugs: dict[str, dict[str, Any]] = {}
        self._said: dict[str, Verdict] = {}
        self._began, self.before_s = time.monotonic(), 0.0
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        *lines, rest = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                if "baseline" in row:
                    self._baseline = row["baseline"]
                elif "said" in row:
                    self._said[row["key"]] = Verdict(row["said"])
                else:
                    self._bugs[row["key"]] = row["bug"]
                self.before_s = float(row["seconds"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number}: not of a build's journal ({error}); remove the file to build anew"
                ) from error
        if rest:
            with path.open("r+b") as file:  # what comes next has a line of its own
                file.truncate(len(data) - len(rest))

    def baseline(self, project: Project) -> SuiteBaseline | None:
        """What the unbroken suite did, where it was measured before."""
        found = self._baseline
        if found is None:
            return None
        if not {"runs", "dated"} <= found.keys():
            raise ValueError(
                f"{self._path} is of a build before runs were counted and dated; remove the file to build anew"
            )
        return SuiteBaseline(
            project,
            Suite.model_validate(found["suite"]),
            tuple(found["tests"]),
            found["suite_s"],
            found["build_s"],
            Guards.model_validate(found["guards"]),
            tuple((name, fine) for name, fine in found["runs"]),
            found["versions"],
            found["dated"],
        )

    def measured(self, baseline: SuiteBaseline) -> None:
        """Keep it."""
        row = {
            "suite": baseline.suite.model_dump(mode="json"),
            "tests": baseline.tests,
            "suite_s": baseline.suite_s,
            "build_s": baseline.build_s,
            "guards": baseline.guards.model_dump(mode="json"),
            "runs": baseline.runs,
            "versions": baseline.versions,
            "dated": baseline.dated,
        }
        self._write({"baseline": row})

    def bug(self, candidate: Candidate) -> SuiteBug | None:
        """What became of a candidate that was judged before."""
        row = self._bugs.get(candidate.key)
        if row is None:
            return None
        found = row["proof"]
        lists: dict[str, Any] = {name: tuple(found[name]) for name in ("failing", "passing")}
        lists |= {name: tuple((what, fine) for what, fine in found[name]) for name in ("runs", "repaired")}
        return SuiteBug(candidate, Proof(**(found | lists | {"verdict": Verdict(found["verdict"])})), row["patch"])

    def judged(self, bug: SuiteBug) -> None:
        """Keep it."""
        self._write({"key": bug.candidate.key, "bug": {"proof": asdict(bug.proof), "patch": bug.patch}})

    def said(self, bug: SuiteBug) -> Verdict | None:
        """What the grader said of the task of this bug, None where it was not asked."""
        return self._said.get(bug.candidate.key)

    def graded(self, bug: SuiteBug, verdict: Verdict) -> None:
        """Keep it."""
        self._write({"key": bug.candidate.key, "said": verdict})

    def _write(self, row: dict[str, Any]) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            spent_s = self.before_s + time.monotonic() - self._began
            file.write(json.dumps({**row, "seconds": round(spent_s, 3)}).encode() + b"\n")
