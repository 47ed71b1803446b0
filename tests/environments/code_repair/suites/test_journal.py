import json
from pathlib import Path

import pytest
from envgym_environments.code_repair.judge import Candidate, Verdict
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites.baseline import SuiteBaseline
from envgym_environments.code_repair.suites.journal import Journal
from envgym_environments.code_repair.suites.judge import Proof, SuiteBug
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.syntax import find_bugs

CODE = "function least (a, b) { return a < b ? a : b }\n"
SUITE = Suite(language="javascript", test="node t.js", reader="exit-code", source=("*.js",))
PROJECT = Project(
    name="least", origin="npm", source="least", version="1.0", sha256="0" * 64, licence="MIT", suite=SUITE
)
TRIALS = [Candidate("index.js", CODE, mutation) for mutation in find_bugs(CODE, "javascript")]

PROOF = Proof(
    Verdict.VALID,
    ("a",),
    ("b", "c"),
    {"a": "1 is not 2"},
    (("plain", True),),
    (("restored by the answer", True),),
    1.5,
)


def found() -> list[SuiteBug]:
    first, second = TRIALS[:2]
    return [
        SuiteBug(first, Proof(Verdict.SURVIVED), "one patch"),
        SuiteBug(second, PROOF, "another patch"),
    ]


def test_what_was_found_before_a_kill_is_found_again(tmp_path: Path) -> None:
    place = tmp_path / "parts" / "least.journal"
    baseline = SuiteBaseline(
        PROJECT, SUITE, ("a", "b", "c"), 1.0, 2.0, runs=(("plain", True),), versions={"node": "20"}, dated=True
    )
    journal = Journal(place)
    assert journal.baseline(PROJECT) is None
    journal.measured(baseline)
    for bug in found():
        journal.judged(bug)
    journal.graded(found()[1], Verdict.NOT_RESTORED)
    whole = place.read_bytes()
    place.write_bytes(whole + b'{"key": "cut off')
    again = Journal(place)
    assert again.baseline(PROJECT) == baseline
    assert 0 <= again.before_s < 60
    assert [again.bug(trial) for trial in TRIALS[:3]] == [*found(), None]
    assert [again.said(bug) for bug in found()] == [None, Verdict.NOT_RESTORED]
    assert place.read_bytes() == whole, "what comes next has a line of its own"


def test_a_damaged_journal_is_named_and_one_without_a_place_keeps_nothing(tmp_path: Path) -> None:
    Journal(None).judged(found()[0])
    place = tmp_path / "least.journal"
    place.write_text(json.dumps({"neither": 1, "seconds": 1}) + "\n")
    with pytest.raises(ValueError, match="line 1: not of a build's journal"):
        Journal(place)
