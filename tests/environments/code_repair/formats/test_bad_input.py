"""Broken data sets: one error with file, record, field, value and bound, and nothing left behind."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from envgym_environments.code_repair.env import code_repair_tasks
from envgym_environments.code_repair.formats import export_records, import_records, import_tasks, storage
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.taskset import write_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.formats.contract import FormatError
from envgym.task import Task

_spec = importlib.util.spec_from_file_location("shapes", Path(__file__).with_name("conftest.py"))
shapes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shapes)
ROW = shapes.SWE_BENCH


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"FAIL_TO_PASS": None}, "field 'FAIL_TO_PASS' is missing: it is null; it has PASS_TO_PASS, base_commit"),
        (
            {"problem_statement": "\ud800 x"},
            "field 'problem_statement' has half of a surrogate pair at character 0",
        ),
        ({"more": {"a": ["x", {"b\udc00": 1}]}}, "field 'more.a.1' has half of a surrogate pair"),
        ({"envgym": '{"hints": "a\\ud800"}'}, "field 'envgym.hints' has half of a surrogate pair at character 1"),
        ({"FAIL_TO_PASS": "[1"}, "field 'FAIL_TO_PASS' is no JSON"),
        ({"FAIL_TO_PASS": [1]}, "field 'FAIL_TO_PASS' is 1; it must be a list of test ids"),
        ({"FAIL_TO_PASS": True}, "field 'FAIL_TO_PASS' is True; it must be a list of test ids"),
        ({"FAIL_TO_PASS": {"a": 1}}, "it must be a list of test ids"),
        ({"FAIL_TO_PASS": [""]}, "fail_to_pass has ''; a test id is one line and not empty"),
        ({"FAIL_TO_PASS": ["../x/test_a.py::test_b"]}, "a test's file must stay below the workdir"),
        ({"patch": 5}, "field 'patch' is 5; it must be a text"),
        ({"patch": "--- a/../../etc/passwd\n+++ b/../../etc/passwd\n"}, "gold_patch, line 1: '../../etc/passwd'"),
        (
            {"test_patch": "--- /dev/null\n+++ b/t\n@@ -0,0 +1 @@\n+x\nrename to /etc/x\n"},
            "test_patch, line 5: '/etc/x'",
        ),
        ({"problem_statement": ["a"]}, "field 'problem_statement'"),
        ({"instance_id": "../x"}, "a way out such as"),
        ({"instance_id": ""}, "1 to 300 characters"),
        ({"instance_id": "a\nb"}, "none of control"),
        ({"version": True}, "field 'version' is True; it must be a text or a number"),
        ({"eval_type": "sometimes"}, "'pass_and_fail' or 'fail_only'"),
        ({"envgym": '{"nothing": 1}'}, "it is not what an export writes"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(changes, said, tmp_path, write_rows):
    path = write_rows(tmp_path / "set.jsonl", ROW, {**ROW, "instance_id": "b", **changes})
    with pytest.raises(FormatError) as error:
        import_records(path, "swe-bench")
    assert said in str(error.value)
    assert f"{path}, line 2: " in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("torn.jsonl", json.dumps(ROW) + '\n{"instance_id": "x', "line 2: it is no JSON"),
        ("torn.json", "[" + json.dumps(ROW) + ', {"a', "record 2: it is no JSON"),
        ("list.jsonl", "[1, 2]\n", "line 1: a record is a JSON object"),
        ("bytes.jsonl", b"\xff\xfe{}\n", "line 1: byte 0 is no UTF-8"),
        ("deep.jsonl", '{"a":' * 3000 + "1" + "}" * 3000, "line 1: it is nested too deeply"),
        ("empty.jsonl", "", "there is no task in it"),
        ("other.jsonl", '{"text": "x"}\n', "in no task format that is known"),
        ("torn.parquet", "PAR1 but not really PAR1", "it is no Parquet that can be read"),
    ],
)
def test_a_damaged_file_is_one_error(name, content, said, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError) as error:
        import_records(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_an_id_that_occurs_twice_is_refused_and_both_places_are_named(tmp_path, write_rows):
    path = write_rows(tmp_path / "set.jsonl", ROW, ROW)
    with pytest.raises(FormatError, match=r"line 2: id 'tiny__small-7' is that of .*line 1 too"):
        import_records(path)
    done = import_records(path, leave_out=True)
    assert len(done.records) == 1
    assert [one.times for one in done.left_out.values()] == [1]


def test_a_row_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    for name in ("set.jsonl", "set.json"):
        (tmp_path / name).write_text(json.dumps(ROW | {"hints_text": "x" * 2000}))
        with pytest.raises(FormatError, match=r"line 1: the (line|row) .* 1000 "):
            list(storage.row_items(tmp_path / name, most_bytes=1000))


def test_an_answer_that_is_no_patch_cannot_be_played(tmp_path, write_rows):
    bad = {**ROW, "instance_id": "b", "patch": "not a patch"}
    moved = {**ROW, "instance_id": "c", "patch": "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"}
    tasks, done = import_tasks(write_rows(tmp_path / "set.jsonl", ROW, bad, moved))
    assert len(done.records) == 3
    assert [task.id for task in tasks] == ["tiny__small-7", "c"]
    assert [(one.why, one.example) for one in done.left_out.values()] == [
        ("has an answer that is no patch: it names no file", "task 'b'")
    ]


def test_a_task_that_is_no_unicode_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"task 'a' cannot be written: .*surrogates not allowed"):
        write_tasks([Task(id="a", prompt="\ud800 x")], tmp_path / "set.jsonl")
    assert not list(tmp_path.iterdir())


def test_broken_rows_can_be_left_out_and_are_counted(tmp_path, write_rows):
    bad = [{**ROW, "instance_id": f"bad-{n}", "patch": None} for n in range(3)]
    path = write_rows(tmp_path / "set.jsonl", ROW, *bad)
    with pytest.raises(FormatError):
        import_records(path)
    done = import_records(path, leave_out=True)
    assert len(done.records) == 1
    assert [(one.times, "field 'patch' is missing" in one.why) for one in done.left_out.values()] == [(3, True)]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("task.yaml", "a: [1", "task.yaml: it is no YAML"),
        ("task.yaml", "a: &x [1]\nb: *x\n", "it has an alias"),
        ("task.yaml", "- 1\n", "it must be a mapping"),
        ("task.yaml", "instance_id: !!python/object:os.system x\n", "it is no YAML"),
        ("tests.json", "{", "field 'tests.json' is no JSON"),
        ("tests.json", "{}", "FAIL_TO_PASS"),
        ("gold.patch", None, "field 'gold.patch' is missing"),
    ],
)
def test_a_broken_task_directory_is_one_error(file, content, said, tmp_path):
    storage.write_folders(tmp_path / "set", [("one", shapes.SWE_BENCH_TASK)])
    place = tmp_path / "set" / "one" / file
    place.unlink() if content is None else place.write_text(content)
    with pytest.raises(FormatError) as error:
        import_records(tmp_path / "set")
    assert said in str(error.value)
    assert str(tmp_path / "set" / "one") in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("timeout_sec = 120.0", "timeout_sec = -1", "verifier.timeout_sec' is -1; it must be a number above 0"),
        ("cpus = 1", "cpus = nan", "environment.cpus' is nan"),
        ("memory_mb = 512", 'memory_mb = "much"', "'memory_mb' is 'much'"),
        ("memory_mb = 512", "memory_mb = 99999999999999", "environment.memory_bytes"),
        ("cpus = 1", 'network_mode = "some"', "'no-network', 'public' or 'allowlist'"),
        ("[verifier]", "[verifier", "it is no TOML"),
    ],
)
def test_a_broken_harbor_task_is_one_error(before, after, said, tmp_path):
    item = {**shapes.HARBOR_TASK, "task.toml": shapes.HARBOR_TASK["task.toml"].replace(before, after)}
    storage.write_folders(tmp_path / "set", [("one", item)])
    with pytest.raises(FormatError) as error:
        import_records(tmp_path / "set")
    assert said in str(error.value)
    assert "task.toml" in str(error.value)


def test_links_in_a_task_directory_are_refused(tmp_path):
    storage.write_folders(tmp_path / "set", [("one", shapes.HARBOR_TASK)])
    os.symlink("/etc/passwd", tmp_path / "set" / "one" / "tests" / "secret")
    with pytest.raises(FormatError, match=r"tests/secret: it is a link"):
        import_records(tmp_path / "set")


def test_an_export_that_fails_leaves_nothing_and_overwrites_nothing(tmp_path):
    record = RepairRecord(id="a", statement="x")
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    with pytest.raises(FileExistsError):
        export_records([record], there, "swe-bench")
    for target, name in (("twice.jsonl", "swe-bench"), ("twice", "harbor")):
        with pytest.raises(ValueError, match="occurs twice"):
            export_records([record, record], tmp_path / target, name)
    with pytest.raises(ValueError, match=r"ends with '\.csv'"):
        export_records([record], tmp_path / "rows.csv", "swe-bench")
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]


def test_what_cannot_be_played_is_left_out_with_its_reason(tmp_path, write_rows):
    rows = [
        ROW,
        {**ROW, "instance_id": "ruby", "language": "ruby"},
        {**ROW, "instance_id": "log", "log_parser": "parse_log_elsewhere"},
        {**ROW, "instance_id": "sure", "eval_type": "fail_only"},
        {**ROW, "instance_id": "none", "FAIL_TO_PASS": "[]"},
    ]
    path = write_rows(tmp_path / "set.jsonl", *rows)
    tasks, done = import_tasks(path)
    assert [task.id for task in tasks] == [ROW["instance_id"]]
    why = " ".join(done.left_out)
    assert all(
        word in why for word in ("has no suite", "parse_log_elsewhere", "nobody can check", "no fail_to_pass")
    )
    with pytest.warns(UserWarning, match="1 swe-bench tasks; left out: 1 because it"):
        code_repair_tasks(path)
    with pytest.raises(ValueError, match=r"no task of this swe-bench data set can be played: .*first task 'ruby'"):
        import_tasks(write_rows(tmp_path / "none.jsonl", *rows[1:]))


def test_options_of_data_sets_are_refused_for_built_tasks(tmp_path):
    with pytest.raises(ValueError, match="images is for another tool's data set"):
        code_repair_tasks(images=tmp_path)
    with pytest.raises(FileNotFoundError):
        code_repair_tasks(tmp_path / "nothing")


@pytest.mark.slow
@settings(max_examples=60)
@given(row=st.dictionaries(st.sampled_from([*ROW, "image", "language", "eval_script", "log_parser", "split"]),
                           st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20),
                                     st.lists(st.text(max_size=5), max_size=2),
                                     st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))))  # fmt: skip
def test_any_row_is_a_record_or_one_format_error(row, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "set.jsonl"
    path.write_text(json.dumps({**ROW, **row}) + "\n")
    done = import_records(path, "swe-bench", leave_out=True)
    assert len(done.records) + len(done.left_out) == 1
    for one in done.left_out.values():
        with pytest.raises(FormatError, match=re.escape(str(path))):
            import_records(path, "swe-bench")
        assert one.example.startswith(str(path))
