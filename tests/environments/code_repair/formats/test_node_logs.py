"""Logs of JavaScript's runners: which runner it was, the ids of Multi-SWE-bench's lists, and what is doubted.

The logs are of jest 30, vitest 1.6, mocha 12 and node 20, shortened.
"""

import time

import pytest
from envgym_environments.code_repair.suites.reader_node_log import NODE_LOGS
from envgym_environments.code_repair.suites.readers import reader
from envgym_environments.code_repair.suites.results import Raw
from hypothesis import given, settings
from hypothesis import strategies as st

JEST = """\
> small@1.0.0 test
> jest --verbose

FAIL j/a.test.js (5.2 s)
  ✓ top (1 ms)
  total
    inner
      ✓ adds (14 ms)
      ✓ adds (slow) (30 ms)
      ✕ fails (2 ms)
      ○ skipped later
      ✎ todo some day

  ● total \u203a inner \u203a fails

    expect(received).toBe(expected) // Object.is equality

PASS j/c.test.js
  ✓ adds

FAIL j/b.test.js
  ● Test suite failed to run

    broken file

Test Suites: 2 failed, 1 passed, 3 total
Tests:       1 failed, 1 skipped, 1 todo, 4 passed, 7 total
Snapshots:   0 total
Time:        1.684 s
Ran all test suites matching j.
"""
VITEST = """\
 RUN  v1.6.1 /home/small

 ✓ v/a.test.ts > total > inner > adds
 ✓ v/a.test.ts > total > inner > adds (slow) 321ms
 \u00d7 v/a.test.ts > total > inner > fails
   → expected 1 to be 2 // Object.is equality
 ↓ v/a.test.ts > total > later [skipped]
 ✓ v/a.test.ts > top

⎯⎯⎯⎯⎯⎯⎯ Failed Tests 1 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  v/a.test.ts > total > inner > fails
AssertionError: expected 1 to be 2 // Object.is equality

     at v/a.test.ts:2:209

 Test Files  1 failed (1)
      Tests  1 failed | 3 passed | 1 skipped | 1 todo (6)
   Start at  04:09:40
"""
MOCHA = """\
> small@1.0.0 test
> mocha m

said

  1) top
  total
    inner
      ✔ adds
      ✔ adds (slow) (110ms)
      2) fails
      - later
    more
      ✔ adds again


  3 passing (114ms)
  1 pending
  2 failing

  1) top:
     Error: x
      at Context.<anonymous> (m/a.js:3:25)

  2) total
       inner
         fails:

      AssertionError [ERR_ASSERTION]: 1 == 2
"""
MOCHA_JSON = """\
said {
{
  "stats": {"suites": 3, "tests": 3, "passes": 1, "pending": 1, "failures": 1},
  "tests": [],
  "pending": [{"title": "later", "fullTitle": "total inner later", "currentRetry": 0, "err": {}}],
  "failures": [{"title": "fails", "fullTitle": "total inner fails", "currentRetry": 0, "err": {}}],
  "passes": [{"title": "adds (slow)", "fullTitle": "total inner adds (slow)", "currentRetry": 0, "err": {}}]
}
npm error code 1
"""
NODE = """\
▶ total
  ✔ adds (0.59918ms)
  ✖ fails (0.876993ms)
    AssertionError [ERR_ASSERTION]: 1 == 2
  ﹣ later (0.151645ms) # SKIP
✖ total (5.432249ms)
✔ top (0.111445ms)
\u2139 tests 4
\u2139 suites 1
\u2139 pass 2
\u2139 fail 1

✖ failing tests:

test at n/a.test.mjs:2:51
✖ fails (0.876993ms)
"""
TAP = """\
TAP version 13
# Subtest: total
    ok 1 - adds # time=1.2ms
    not ok 2 - fails
    1..2
not ok 1 - total # time=3ms
ok 2 - top
ok 3 later # SKIP -
1..3
# tests 4
# fail 1
"""
A, T, V = "j/a.test.js", "total > inner > ", "v/a.test.ts > total > "
P, F, S = "passed", "failed", "skipped"
READ = {
    ("files", JEST): {A: F, f"{A}:top": P, f"{A}:adds": P, f"{A}:adds (slow)": P, f"{A}:fails": F, f"{A}:later": S,
                      "j/b.test.js": F, "j/c.test.js": P, "j/c.test.js:adds": P},
    ("titles", JEST): {A: F, "top": P, "adds": P, "adds (slow)": P, "fails": F, "later": S, "j/c.test.js": P},
    ("files", VITEST): {f"{V}inner > adds": P, f"{V}inner > adds (slow)": P, f"{V}inner > fails": F,
                        "v/a.test.ts > top": P},
    ("titles", MOCHA): {"top": F, "adds": P, "adds (slow)": P, "fails": F, "adds again": P, "total": None},
    ("paths", MOCHA): {f"said > {T}adds": P, f"said > {T}adds (slow)": P, f"said > {T}fails": F,
                       "said > total > more > adds again": P},
    ("titles", MOCHA_JSON): {"total inner adds (slow)": P, "total inner fails": F, "total inner later": S},
    ("titles", NODE): {"adds": P, "fails": F, "top": P, "total": F},
    ("titles", TAP): {"adds": P, "fails": F, "total": F, "top": P, "later": S},
}  # fmt: skip
READ["paths", VITEST] = READ["titles", VITEST] = READ["files", VITEST]
LOGS = (JEST, VITEST, MOCHA, MOCHA_JSON, NODE, TAP)


def read(log, spelling="titles", exit_code=1):
    """What the reader of a spelling finds in a log."""
    return reader(f"multi-swe-{spelling}").read(Raw(log.encode(), exit_code=exit_code))


@pytest.mark.parametrize(("spelling", "log"), READ)
def test_ids_are_spelled_as_the_data_set_spells_them(spelling, log):
    found = read(log, spelling)
    assert found.problem == ""
    assert {name: found.outcomes.get(name) for name in READ[spelling, log]} == READ[spelling, log]


def test_what_stands_in_brackets_may_be_cut_but_hides_no_test_of_that_name():
    assert read(JEST, "files").outcomes[f"{A}:adds"] == "passed"
    failing = JEST.replace("✓ adds (slow)", "✕ adds (slow)").replace("1 failed, 1 skipped", "2 failed, 1 skipped")
    assert read(failing, "files").outcomes[f"{A}:adds"] == "passed", "there is a test of that name"
    alone = failing.replace("      ✓ adds (14 ms)\n", "")
    assert read(alone, "files").outcomes[f"{A}:adds"] == "failed", "darkreader's lists cut what stands in brackets"


@pytest.mark.parametrize("log", LOGS)
def test_a_log_that_ends_before_its_closing_line_confirms_nothing(log):
    closing = (
        "Test Suites",
        "Tests",
        " Test Files",
        "      Tests",
        "  3 passing",
        "  2 failing",
        "\u2139 pass",
        "\u2139 fail",
    )
    lines = log.split("\n")
    ends = next((at for at, line in enumerate(lines) if line.startswith(closing)), len(lines) - 4)
    for end in range(1, ends):
        found = read("\n".join(lines[:end]), exit_code=0)
        assert found.problem or not found.outcomes


@pytest.mark.parametrize("log", [JEST, VITEST, MOCHA, NODE])
def test_a_pass_that_the_tested_code_prints_is_one_more_than_the_runner_counts(log):
    mark = "✔" if "✔" in log else "✓"
    first = log.index(f"{mark} ")
    found = read(f"{log[:first]}{mark} printed\n      {log[first:]}")
    assert "were read" in found.problem


@pytest.mark.parametrize("log", [JEST, VITEST, MOCHA, NODE, TAP])
def test_failures_that_the_closing_line_counts_must_be_seen(log):
    kept = [
        line
        for line in log.split("\n")
        if not any(word in line for word in ("fails", "FAIL", "1) top", "✖", "not ok"))
    ]
    assert read("\n".join(kept)).problem


def test_a_runner_that_ends_badly_for_another_reason_says_so():
    passing = " ✓ a > b 3ms\n\nVitest caught 1 unhandled error during the test run.\n Test Files  1 passed (1)\n"
    found = read(f"{passing}      Tests  1 passed (1)\n     Errors  1 error\n")
    assert (found.problem, found.outcomes) == ("", {"a > b": "passed"})
    assert list(found.broken) == ["Vitest caught 1 unhandled error during the test run."]
    collected = " FAIL  v/b.test.ts [ v/b.test.ts ]\n\n Test Files  1 failed (1)\n      Tests  no tests\n"
    assert read(f" ✓ a > b\n{collected}".replace("no tests", "1 passed (1)")).broken == {
        "v/b.test.ts": "it could not be collected"
    }


@pytest.mark.parametrize("log", [JEST + MOCHA, MOCHA + MOCHA, TAP + TAP, MOCHA_JSON + MOCHA_JSON, JEST + "1..3\n"])
def test_signs_of_two_runs_or_runners_are_doubted_and_all_their_failures_count(log):
    found = read(log)
    assert found.problem
    assert "fails" in {name.rpartition(" ")[2] for name, ended in found.outcomes.items() if ended == "failed"}
    both = read(MOCHA.replace("said\n", "1..3\nok 1 - adds\nok 2 - is nothing\nnot ok 3 - x\n"))
    assert "several runners" in both.problem
    assert both.outcomes["x"] == both.outcomes["fails"] == "failed"


PRINTED_TAP = "1..3\nok 1 - adds\nok 2 - is nothing of nothing\nnot ok 3 - x\n"
PRINTED_JSON = """\
{"stats": {"passes": 1, "pending": 0, "failures": 1}, "pending": [],
 "passes": [{"fullTitle": "adds"}], "failures": [{"fullTitle": "x"}]}
"""
REAL_MOCHA = "\n  0 passing (3ms)\n  1 failing\n\n  1) adds:\n     Error: x\n"
REAL_NODE = "\u2139 tests 1\n\u2139 pass 0\n\u2139 fail 1\n\n✖ failing tests:\n\n✖ adds (0.8ms)\n"
TESTS_LINE = "      Tests  1 passed (1)\n"
CHEATS = {
    "TAP under node": ("titles", f"{PRINTED_TAP}✖ adds (0.8ms)\n{REAL_NODE}"),
    "TAP of Windows": ("titles", PRINTED_TAP.replace("\n", "\r\n") + f"✖ adds (0.8ms)\n{REAL_NODE}"),
    "JSON under mocha": ("titles", f"{PRINTED_JSON}    1) adds\n{REAL_MOCHA}"),
    "two closings": ("titles", f"noise    1) adds\n    ✓ adds\n    1) other\n  1 passing\n{REAL_MOCHA}"),
    "a pass for a hidden one": (
        "titles",
        "noise    1) adds\n    ✓ adds\n    1) other\nnoise    ✓ kept\n" + REAL_MOCHA.replace("0 p", "1 p"),
    ),
    "another path": (
        "paths",
        "calc\nzzz\n    1) adds\ncalc\n    ✓ adds\nnoise    ✓ kept\n"
        + REAL_MOCHA.replace("0 p", "1 p").replace("1) adds:", "1) calc\n       adds:"),
    ),
    "listed again before its time": ("titles", f"✖ failing tests:\n✖ adds (0.8ms)\n✔ adds (1ms)\n{REAL_NODE}"),
    "vitest's tests": (
        "titles",
        f" ✓ adds\n{TESTS_LINE}\n FAIL  adds.test.ts [ adds.test.ts ]\n\n Test Files  1 failed (1)\n"
        "      Tests  no tests\n",
    ),
    "nested points": ("titles", "TAP version 13\n    ok 1 - adds\nnot ok 1 - x\n1..1\n# fail 1\n"),
    "another summary": ("titles", "TAP version 13\nok 1 - adds\n1..1\n# fail 3\n# fail 0\n"),
    "a summary that counts more": ("titles", "ok 1 - adds\nnot ok 2 - x\n1..2\n# fail 2\n"),
    "two plans": ("titles", "1..1\nok 1 - adds\nnot ok 2 - x\n1..1\n"),
    "a hidden point": (
        "titles",
        "ok 1 - adds\nnoisenot ok 1 - adds\nnot ok 2 - x\nnoiseok 2 - b\n1..2\n# fail 1\n",
    ),
    "two reports": ("titles", PRINTED_JSON * 2),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_the_tested_code_prints_confirms_no_test_that_failed(cheat):
    spelling, log = CHEATS[cheat]
    name = "calc > adds" if spelling == "paths" else "adds"
    for text in (log, log.replace("\n", "\r\n")):
        found = read(text, spelling)
        assert found.problem or found.outcomes.get(name) == "failed"
        assert found.outcomes, "the log is read"


def test_a_failure_that_is_listed_again_is_one_of_every_test_of_that_title():
    moved = CHEATS["another path"][1]
    assert read(moved, "paths").outcomes["calc > adds"] == "failed"
    assert read(MOCHA, "paths").problem == ""
    unread = MOCHA.replace("      2) fails\n", "      2) other\n")
    assert "was not read" in read(unread).problem
    fewer = MOCHA.partition("  2) total\n       inner")[0]
    assert "are listed again" in read(fewer).problem


def test_a_second_name_vouches_for_nothing_that_did_not_run():
    legacy = JEST.replace("      ✓ adds (14 ms)\n", "").replace("✓ adds (slow) (30 ms)", "✓ adds (legacy)")
    assert f"{A}:adds" not in read(legacy, "files").outcomes, "another file did not run"
    cut = legacy.split("FAIL j/b.test.js")
    whole = cut[0] + cut[1].partition("broken file\n")[2].replace("2 failed, 1 passed, 3", "1 failed, 1 passed, 2")
    assert read(whole, "files").outcomes[f"{A}:adds"] == "passed"
    hook = MOCHA.replace("      ✔ adds\n", "").replace("fails", '"before each" hook for "adds"')
    assert "adds" not in read(hook).outcomes


@pytest.mark.parametrize(
    "start",
    [
        "  ✓ a (",
        " ✓ a > b ",
        "PASS j/a (",
        "Jest: ",
        "    ok 1 - a",
        "Tests:  1 ",
        " FAIL  a [ ",
        "  1 passing (",
        "1..1 ",
    ],
)
@pytest.mark.parametrize("fill", ["1", " ", "a ", "coverage", "1 (", " (1 test | ", ". ", " # "])
def test_a_hostile_line_takes_no_longer_than_a_few_plain_ones(start, fill):
    def seconds(text):
        began = time.process_time()
        read(f"{text}\n Test Files  1 passed (1)\n", "paths")
        return time.process_time() - began

    size = 100_000
    plain = max(seconds("a plain line of words\n" * (size // 22)) for _ in range(2))
    line = start + fill * (1600 // len(fill))
    assert seconds(f"{start}{fill * (size // len(fill))}") < 0.1 + 5 * plain
    assert seconds(f"{line}\n" * (size // len(line))) < 0.1 + 5 * plain


@given(log=st.binary(max_size=300), name=st.sampled_from([one.name for one in NODE_LOGS]))
def test_any_bytes_are_read_without_an_error_and_confirm_nothing(log, name):
    found = reader(name).read(Raw(log, exit_code=0))
    assert found.problem or "passed" not in found.outcomes.values()


def _mocha(ended):
    failed = [name for name, outcome in ended.items() if outcome == F]
    body = [f"    ✔ {name}" if outcome == P else f"    {failed.index(name) + 1}) {name}"
            for name, outcome in ended.items()]  # fmt: skip
    end = ["", f"  {len(ended) - len(failed)} passing (3ms)", *([f"  {len(failed)} failing"] if failed else []), ""]
    return body, end + [f"  {at}) {name}:\n     Error: x" for at, name in enumerate(failed, 1)]


def _node(ended):
    failed = [f"✖ {name} (0.1ms)" for name, outcome in ended.items() if outcome == F]
    body = [f"{'✔' if outcome == P else '✖'} {name} (0.1ms)" for name, outcome in ended.items()]
    end = [f"\u2139 pass {len(ended) - len(failed)}", f"\u2139 fail {len(failed)}", ""]
    return body, [*end, *(["✖ failing tests:", *failed] if failed else [])]


def _jest(ended):
    failed = [name for name, outcome in ended.items() if outcome == F]
    body = [f"  {'✓' if outcome == P else '✕'} {name}" for name, outcome in ended.items()]
    counts = [f"{len(failed)} failed, "] * bool(failed) + [f"{len(ended) - len(failed)} passed, "]
    files = "1 failed, 1 total" if failed else "1 passed, 1 total"
    end = [f"Test Suites: {files}", f"Tests:       {''.join(counts)}{len(ended)} total"]
    return [*body, *(f"  ● {name}" for name in failed)], end


def _tap(ended):
    body = [
        f"{'' if outcome == P else 'not '}ok {at} - {name}" for at, (name, outcome) in enumerate(ended.items(), 1)
    ]
    return body, [f"1..{len(ended)}", f"# fail {list(ended.values()).count(F)}"]


endings = st.dictionaries(st.sampled_from(["adds", "b", "c"]), st.sampled_from([P, F]), min_size=1)
runners = st.sampled_from([_mocha, _node, _jest, _tap])
prints = st.sampled_from([
    "noise", "    ✔ adds\n", "✔ adds (1ms)\n", "  ✓ adds\n", "ok 1 - adds\n", "ok 2 - adds\n", "not ok 2 - x\n",
    "1..1\n", "1..2\n", "# fail 0\n", "    1) x\n", "✖ x\n", "  ✕ x\n", "  1 passing\n", "  1 failing\n",
    "✖ failing tests:\n",
    "\u2139 pass 1\n", "\u2139 fail 0\n", "Tests:       1 passed, 1 total\n", PRINTED_JSON, PRINTED_TAP, "zzz\n",
])  # fmt: skip


@given(ended=endings, runner=runners)
def test_what_a_runner_says_is_read_as_it_is(ended, runner):
    body, end = runner(ended)
    found = read("\n".join([*body, *end]) + "\n")
    assert (found.problem, dict(found.outcomes)) == ("", ended)


@settings(max_examples=400)
@given(ended=endings, runner=runners, printed=st.lists(st.tuples(st.integers(0, 6), prints), max_size=5))
def test_no_print_between_its_lines_lets_a_failed_test_pass(ended, runner, printed):
    body, end = runner(ended)
    text = "".join(
        "".join(part for at, part in printed if min(at, len(body)) == place) + (f"{line}\n" if line else "")
        for place, line in enumerate([*body, ""])
    )
    found = read(text + ("\n" if not text.endswith("\n") else "") + "\n".join(end) + "\n")
    assert found.problem or ended.get("adds") != F or found.outcomes.get("adds") != P


parts = st.sampled_from([line for log in LOGS for line in log.split("\n")])


@given(lines=st.lists(parts, max_size=12), name=st.sampled_from([one.name for one in NODE_LOGS]))
def test_lines_in_any_order_are_read_without_an_error(lines, name):
    found = reader(name).read(Raw("\n".join(lines).encode()))
    assert (
        found.problem
        or not any(line.strip().startswith("✕") for line in lines)
        or "failed" in (*found.outcomes.values(),)
    )
