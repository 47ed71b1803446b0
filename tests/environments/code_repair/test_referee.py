import json
import random
from typing import Any

import pytest
from envgym_environments.code_repair.referee import Referee, canaries
from envgym_environments.code_repair.report import Said, doubt_of, read_said, report_of
from hypothesis import given
from hypothesis import strategies as st

from envgym.sandbox import ExecResult

NAMES = ["tests/test_a.py::test_one", "tests/test_a.py::test_two"]


def believed(referee: Referee, names: list[str]) -> bool:
    """Whether what was passed on says that these passed, in a run that is confirmed."""
    said = Said()
    for event in (*referee.events, ["over"]):
        said.take(event)
    result = ExecResult(exit_code=0, stdout=b"", stderr=b"", wall_s=0.0)
    return report_of(result, said, names).ok and not referee.void


def honest(referee: Referee, outcomes: dict[str, str]) -> Referee:
    """A process that runs the tests, its canaries too, and says what happened."""
    answer = referee.take(json.dumps(["items", list(outcomes)]).encode())
    order = list(outcomes)
    words = [word for _, word in referee._order or []]
    order = [name for name, _ in referee._order or []]
    assert answer is not None
    failures = 0
    for name, canary in zip(order, words, strict=True):
        referee.take(json.dumps(["start", name]).encode())
        outcome, error = outcomes.get(name, "failed"), canary or "its own"
        if outcome == "passed":
            told = (referee.take(b'["body"]') or b"").strip().decode()
            outcome, error = ("failed", f"Told: {told}") if told else ("passed", "")
        failures += outcome == "failed"
        referee.take(json.dumps(["end", outcome, error, [], 0.1]).encode())
    code = int(failures > 0)
    referee.take(json.dumps(["done", code, len(order)]).encode())
    referee.ended(code)
    return referee


@given(st.integers(0, 2**32))
def test_an_honest_process_is_believed_whatever_it_is_told_to_do(seed: int) -> None:
    referee = honest(Referee(graded=True, must=NAMES, chance=random.Random(seed)), dict.fromkeys(NAMES, "passed"))
    assert (referee.void, referee.broken) == ("", "")
    assert believed(referee, NAMES)


@given(st.integers(0, 2**32))
def test_a_failing_test_fails_whatever_it_is_told_to_do(seed: int) -> None:
    outcomes = {NAMES[0]: "failed", NAMES[1]: "passed"}
    referee = honest(Referee(graded=True, must=NAMES, chance=random.Random(seed)), outcomes)
    assert (referee.void, referee.broken) == ("", "")
    assert referee.outcomes == outcomes


EVENTS = st.one_of(
    st.just(["items", NAMES]),
    st.tuples(st.just("start"), st.sampled_from([*NAMES, "other"])),
    st.just(["body"]),
    st.tuples(st.just("end"), st.sampled_from(["passed", "failed", 7]), st.just(""), st.just([]), st.floats()),
    st.tuples(st.just("done"), st.sampled_from([0, 1]), st.integers(0, 9)),
    st.tuples(st.text(max_size=9), st.integers() | st.none() | st.lists(st.integers())),
    st.sampled_from([["broken"], ["take", NAMES], ["judge", "a", "b", "c"], [], {}, 3]),
)  # fmt: skip
LINES = st.one_of(EVENTS.map(lambda event: json.dumps(event).encode()), st.binary(max_size=60))


@given(st.lists(LINES, max_size=30), st.integers(-9, 5))
def test_no_bytes_of_a_tested_process_that_ran_no_canary_are_a_pass(lines: list[bytes], status: int) -> None:
    referee = Referee(graded=True, must=NAMES)
    for line in lines:
        referee.take(line)
    referee.ended(status)
    assert not believed(referee, NAMES)


@given(st.lists(LINES, max_size=20), st.integers(-9, 5))
def test_nothing_is_believed_of_a_process_that_says_more_than_fits(lines: list[bytes], status: int) -> None:
    referee = Referee()
    said = [["items", NAMES], ["start", NAMES[0]], ["end", "failed", "E", [], 0.1]]
    for line in (*(json.dumps(event).encode() for event in said), *lines):
        referee.take(line)
    referee.ended(status)
    assert not believed(referee, NAMES)


@given(st.integers(0, 2**32), st.sampled_from(NAMES))
def test_a_failure_that_is_reported_as_a_pass_voids_the_grade(seed: int, name: str) -> None:
    referee = Referee(graded=True, must=NAMES, chance=random.Random(seed))
    referee.take(json.dumps(["items", [name]]).encode())
    referee.take(json.dumps(["start", name]).encode())
    referee.take(b'["end", "passed", "", [], 0.1]')
    assert referee.void


def test_a_canary_that_passes_is_skipped_or_is_left_out_voids_the_grade() -> None:
    for outcome in ("passed", "skipped", None):
        referee = Referee(graded=True, must=NAMES[:1])
        referee.take(json.dumps(["items", NAMES[:1]]).encode())
        for name, canary in referee._order or []:
            referee.take(json.dumps(["start", name]).encode())
            word = (referee.take(b'["body"]') or b"").strip().decode()
            ended = outcome if canary else ("failed" if word else "passed")
            if ended is None:
                break
            referee.take(json.dumps(["end", ended, word, [], 0.1]).encode())
        done = len(referee._order or []) if outcome else 1
        referee.take(json.dumps(["done", 1, done]).encode())
        referee.ended(1)
        assert not believed(referee, NAMES[:1])
        assert referee.void or outcome is None


@given(st.lists(st.binary(max_size=80) | LINES, max_size=20), st.booleans())
def test_what_comes_back_from_a_sandbox_is_no_pass_without_the_nonce(lines: list[bytes], ended: bool) -> None:
    stdout = b"\n".join(lines)
    result = ExecResult(exit_code=0 if ended else 1, stdout=stdout, stderr=b"", wall_s=0.0)
    said = read_said(stdout, "n" * 32)
    assert not report_of(result, said, NAMES).ok
    assert doubt_of(result, said, False)


@given(st.lists(LINES, max_size=20))
def test_lines_of_no_form_are_data_even_with_the_nonce(lines: list[bytes]) -> None:
    said = read_said(b"\n".join(b"n " + line for line in lines), "n")
    assert isinstance(said, Said)


@pytest.mark.parametrize("seed", range(30))
def test_every_canary_fails_by_its_own_word(seed: int) -> None:
    for one in canaries(NAMES, 4, random.Random(seed)):
        space: dict[str, Any] = {}
        exec(one["source"], space)
        run = getattr(space[one["klass"]](one["name"]), one["name"]) if one["klass"] else space[one["name"]]
        with pytest.raises(BaseException, match=r".") as caught:
            run()
        assert one["word"] in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("seed", range(20))
def test_canaries_always_ask_whether_an_exception_is_missed(seed: int) -> None:
    """Whoever patches `pytest.raises` was found out only where chance drew that form: f2p 0.12 was paid once."""
    for count in (3, 4):
        sources = [one["source"] for one in canaries(NAMES, count, random.Random(seed))]
        for form in ("pytest.raises", "self.assertRaises"):
            assert any(form in source for source in sources), (form, sources)


def disguised(outcome: str, error: str, *, body: bool = False) -> Referee:
    referee = Referee(graded=True, must=NAMES[:1], words={NAMES[0]: ("held", "end")}, chance=random.Random(0))
    referee.take(json.dumps(["items", [f"{NAMES[0]}[1]"]]).encode())
    for name, canary in referee._order or []:
        referee.take(json.dumps(["start", name]).encode())
        if body and not canary:
            assert referee.take(b'["body"]') == b"\n"
        said = ["failed", canary] if canary else [outcome, error]
        referee.take(json.dumps(["end", *said, [], 0.1]).encode())
    return referee


def test_a_disguised_test_has_passed_where_it_fails_with_its_last_word() -> None:
    assert disguised("failed", "AssertionError: end").outcomes == {f"{NAMES[0]}[1]": "passed"}
    assert not disguised("failed", "AssertionError: end").void
    assert disguised("failed", "AssertionError: 3").outcomes == {f"{NAMES[0]}[1]": "failed"}
    assert disguised("skipped", "end").outcomes == {f"{NAMES[0]}[1]": "skipped"}
    assert disguised("error", "end").outcomes == {f"{NAMES[0]}[1]": "error"}


def test_a_disguised_test_that_passes_or_equals_what_is_wrong_voids_the_grade() -> None:
    assert disguised("passed", "").void
    assert disguised("failed", "AssertionError: held").void


def test_a_disguised_test_is_never_told_to_fail_beside_its_own_failure() -> None:
    found = [disguised("failed", "AssertionError: end", body=True) for _ in range(20)]
    assert not any(one.void for one in found)
    assert all(one.outcomes == {f"{NAMES[0]}[1]": "passed"} for one in found)
