import json
import re
from pathlib import Path

import pytest
from envgym_environments.code_repair.suites import READERS, Raw, reader
from hypothesis import given, settings
from hypothesis import strategies as st

SAMPLES = Path(__file__).parent / "samples"

# what each runner really wrote: passed, failed or broken, skipped
RECORDED = {
    "node.junit": ("node-junit", 4, 2, 2),
    "node.tap": ("tap", 4, 2, 2),
    "node.spec": ("node-spec", 4, 3, 2),
    "go.json": ("go-json", 3, 1, 1),
    "gtest.xml": ("gtest-xml", 1, 1, 2),
    "gtest.json": ("gtest-json", 1, 1, 2),
    "ctest.xml": ("ctest", 1, 1, 1),
    "cargo.log": ("cargo", 4, 1, 1),
    "pytest.xml": ("pytest-junit", 4, 3, 3),
    "pytest.log": ("pytest-log", 4, 3, 1),
    "unittest.log": ("unittest-log", 1, 1, 1),
    "jest.json": ("jest-json", 1, 1, 2),
    "vitest.json": ("jest-json", 1, 1, 1),
    "mocha.json": ("mocha-json", 1, 1, 1),
    "tape.tap": ("tape", 1, 1, 1),
    "junit-console.xml": ("junit", 1, 2, 1),
}


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def raw_of(content: bytes) -> Raw:
    return Raw(stdout=content, exit_code=1, workdir="/repo")


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_runner_really_wrote_is_read_whole(name: str) -> None:
    reader_name, passed, bad, skipped = RECORDED[name]
    found = READERS[reader_name].read(raw_of(sample(name)))
    outcomes = list(found.outcomes.values())
    counted = (
        outcomes.count("passed"),
        outcomes.count("failed") + outcomes.count("error"),
        outcomes.count("skipped"),
    )
    assert counted == (passed, bad, skipped)
    assert found.problem == ""
    assert set(found.errors) == {test for test, outcome in found.outcomes.items() if outcome in ("failed", "error")}
    assert all(line and "\n" not in line for line in found.errors.values())


def test_ids_name_a_test_as_its_runner_would() -> None:
    def ids(name: str) -> set[str]:
        return set(READERS[RECORDED[name][0]].read(raw_of(sample(name))).outcomes)

    assert "test_sums.py::TestG::test_fails" in ids("pytest.xml") & ids("pytest.log")
    assert "parent > sad child" in ids("node.junit") & ids("node.tap") & ids("node.spec")
    assert "example.org/sums::TestGroup/one_of" in ids("go.json")
    assert "tests/outer.rs::outside" in ids("cargo.log")
    assert "Sums::Sad" in ids("gtest.xml") & ids("gtest.json")
    assert "j/a.test.js::group > is sad" in ids("jest.json")


@pytest.mark.parametrize(("said", "broken"), [("exit status 3", False), ("FAIL\ttiny [build failed]", True)])
def test_a_go_package_that_ends_before_its_tests_was_built_and_is_a_crash(said: str, broken: bool) -> None:
    events = [
        {"Action": "output", "Package": "tiny", "Output": f"{said}\n"},
        {"Action": "fail", "Package": "tiny", "Elapsed": 0.01},
    ]
    stdout = "".join(json.dumps(event) + "\n" for event in events)
    found = READERS["go-json"].read(Raw(stdout=stdout.encode(), exit_code=1))
    assert (bool(found.broken), "ended outside its tests" in found.problem) == (broken, not broken), found


def test_what_a_test_prints_is_no_result() -> None:
    for name in ("node.tap", "node.junit", "cargo.log", "pytest.log"):
        found = READERS[RECORDED[name][0]].read(raw_of(sample(name)))
        assert not [test for test in found.outcomes if "forged" in test]
    assert READERS["pytest-log"].read(raw_of(sample("pytest.log"))).outcomes["test_sums.py::test_sad"] == "failed"


def test_a_package_or_file_that_could_not_run_is_named() -> None:
    assert dict(READERS["go-json"].read(raw_of(sample("go-broken.json"))).broken) == {
        "example.org/sums/bad": "it could not be built"
    }
    said = b"# example.org/sums/bad [example.org/sums/bad.test]\nbad/bad.go:1:36: cannot use it\n"
    found = READERS["go-json"].read(Raw(stdout=sample("go-broken.json"), stderr=said, exit_code=2))
    assert found.broken["example.org/sums/bad"] == "bad/bad.go:1:36: cannot use it"
    assert READERS["jest-json"].read(raw_of(sample("jest.json"))).broken["j/broken.test.js"] == "cannot load"


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in ("node.spec",)])
def test_a_result_that_ends_early_is_never_believed(name: str) -> None:
    content = sample(name)
    for share in (0.3, 0.6):  # behind a whole target, nothing tells that a log goes on
        found = READERS[RECORDED[name][0]].read(raw_of(content[: int(len(content) * share)]))
        whole = READERS[RECORDED[name][0]].read(raw_of(content))
        assert found.problem or dict(found.outcomes) == dict(whole.outcomes)


@pytest.mark.parametrize("name", ["gtest.json", "jest.json", "mocha.json"])
def test_a_second_report_behind_the_first_or_none_at_the_end_is_doubted(name: str) -> None:
    reader, content = READERS[RECORDED[name][0]], sample(name)
    printed = b'{"printed": "before"}\n' + content
    assert reader.read(raw_of(printed)).outcomes == reader.read(raw_of(content)).outcomes
    assert "is no report" in (reader.read(raw_of(content + b"\n{}")).problem or "")
    assert "several reports" in (reader.read(raw_of(content + b"\n" + content)).problem or "")
    around = content.rstrip().removesuffix(b"}") + b',"x":\n' + content + b"}\n"
    assert "several reports" in (reader.read(raw_of(around)).problem or "")


SPOILT = st.tuples(
    st.sampled_from(sorted(RECORDED)),
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=12) | st.sampled_from(
            [b"ok", b"passed", b"PASSED", b"FAILED", b"0", b"1", b"\n", b"not ok", b'"pass"', b"<failure/>", b"-->"]
        )),
        max_size=6,
    ),
)  # fmt: skip


def spoil(content: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, put in cuts:
        content = content[:at] + put + content[at + length :]
    return content


@pytest.mark.slow
@settings(max_examples=400)
@given(SPOILT)
def test_no_reader_raises_and_no_summary_is_contradicted(spoilt: tuple[str, list[tuple[int, int, bytes]]]) -> None:
    name, cuts = spoilt
    content = spoil(sample(name), cuts)
    found = READERS[RECORDED[name][0]].read(raw_of(content))
    bad = sum(outcome in ("failed", "error") for outcome in found.outcomes.values()) + len(found.broken)
    if found.problem or bad:
        return
    assert not claims_failures(name, content.decode("utf-8", "replace"))


def claims_failures(name: str, text: str) -> bool:
    """Whether the runner's own summary, read here by other means, says that something failed."""
    if name.endswith(".json") and name not in ("go.json",):
        try:
            report = json.loads(text)
        except ValueError:
            return True
        stats = report.get("stats", report)
        return any(stats.get(key, 0) > 0 for key in ("numFailedTests", "failures", "errors"))
    if name == "go.json":
        return bool(
            re.search(r'^\{[^\n]*"Action":"fail","Package":"example.org/sums"[^\n]*\}$', text, re.MULTILINE)
        )
    summary = {
        "cargo.log": r"^test result: FAILED",
        "pytest.log": r"^=* ?\d+ failed.* in [\d.]+s",
        "unittest.log": r"^FAILED \(",
        "node.tap": r"^# fail [1-9]\d*$",
        "tape.tap": r"^# fail +[1-9]\d*$",
        "node.spec": r"^ℹ fail [1-9]\d*$",  # noqa: RUF001
    }
    if name in summary:
        closing = re.findall(summary[name], text, re.MULTILINE)
        return bool(closing) and not re.search(r"\r", text)
    return bool(re.search(r'<testsuites?[^<>]* (failures|errors)="[1-9]', text))


@settings(max_examples=200)
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300))
def test_noise_is_no_pass(name: str, noise: bytes) -> None:
    found = READERS[name].read(Raw(stdout=noise, stderr=noise, exit_code=1))
    assert "passed" not in found.outcomes.values()


HOSTILE = [
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><testsuite><testcase name="&a;"/></testsuite>',
    b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite><testcase name="a"/></testsuite>',
    b"<testsuite>" * 100 + b'<testcase name="a"/>' + b"</testsuite>" * 100,
    b'<html><testsuite><testcase name="a"/></testsuite></html>',
    b'<testsuite tests="2" failures="0"><testcase name="a"/></testsuite>',
    b'<testsuite failures="1"><testcase name="a"/></testsuite>',
    b'<testsuite><testcase name="a"/>',
    b"",
    b"\xff\xfe",
]


@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_or_contradictory_report_is_refused(content: bytes) -> None:
    found = READERS["junit"].read(Raw(files={"results.xml": content}))
    assert found.problem


def test_a_test_that_is_reported_twice_has_its_worst_outcome() -> None:
    twice = b'<testsuite><testcase name="a"><failure message="no"/></testcase><testcase name="a"/></testsuite>'
    assert dict(READERS["junit"].read(Raw(files={"r.xml": twice})).outcomes) == {"a": "failed"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tap", "TAP version 13\nok 1 - a\n1..2\n"),
        ("tap", "ok 1 - a\n"),
        ("tap", "1..1\nok 1 - a\nBail out! no database\n"),
        ("tape", "TAP version 13\n# a\nok 1 x\n1..1\n# tests 2\n# pass 2\n"),
        ("cargo", "running 1 test\ntest a ... ok\n"),
        ("cargo", "running 1 test\ntest a ... ok\ntest b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; "
         "0 measured; 0 filtered out; finished in 0.00s\n"),
        ("unittest-log", "test_a (m.C.test_a) ... ok\n"),
        ("pytest-log", "PASSED a.py::test_a\n"),
        ("go-json", '{"Action":"run","Package":"p","Test":"T"}\n{"Action":"pass","Package":"p","Test":"T"}\n'),
        ("go-json", '{"Action":"pass","Package":"p","Test":"T"}\n{"Action":"pass","Package":"p"}\n'),
        ("mocha-json", '{"stats":{"passes":2},"passes":[{"fullTitle":"a"}]}'),
        ("jest-json", '{"numPassedTests":1,"success":false,"testResults":[]}'),
    ],
)  # fmt: skip
def test_passes_without_the_runners_own_word_are_doubted(name: str, text: str) -> None:
    assert READERS[name].read(Raw(stdout=text.encode())).problem


def test_an_unknown_reader_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'nose'; it must be one of cargo, ctest"):
        reader("nose")
