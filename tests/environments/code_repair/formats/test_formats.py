"""What each format's fields mean: worlds, suites, lists and patches of the hand-made tasks."""

import importlib.util
import json
from pathlib import Path

import pytest
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.formats import import_tasks, task_format_named
from envgym_environments.code_repair.formats.exchange import record_of
from envgym_environments.code_repair.formats.spelling import command, script_parts
from envgym_environments.code_repair.patch import apply_patch, make_patch, parse_patch
from envgym_environments.code_repair.patch_text import patch_paths, reversed_patch, split_patch
from envgym_environments.code_repair.record import RepairRecord
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from envgym.formats.contract import Where

_spec = importlib.util.spec_from_file_location("shapes", Path(__file__).with_name("conftest.py"))
shapes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shapes)


def read(name, item):
    return record_of(task_format_named(name), item, Where(Path("data.jsonl"), "line 1"))


def test_an_old_row_gets_its_image_and_command_from_its_id_and_repository():
    record = read("swe-bench", shapes.SWE_BENCH)
    assert record.world.image == "swebench/sweb.eval.x86_64.tiny_1776_small-7:latest"
    assert record.suite.reader == "swebench-pytest"
    assert "pytest -rA tests/test_small.py" in record.suite.test
    django = read("swe-bench", {**shapes.SWE_BENCH, "repo": "django/django"})
    assert "runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_small" in django.suite.test
    gym = read("swe-gym", shapes.SWE_GYM)
    assert gym.world.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5:latest"


def test_a_script_is_taken_apart_and_its_git_commands_are_left_out():
    before, tests = script_parts(shapes.SCRIPT)
    assert before == ("source /opt/miniconda3/bin/activate", "conda activate testbed", "cd /testbed")
    assert tests == ("pytest -rA tests/test_small.py",)
    record = read("swe-bench", shapes.SWE_BENCH_5)
    assert "test_total" not in record.suite.test, "hidden tests are no part of the command"
    assert (record.fail_to_pass, record.rules.truncated, record.rules.only_listed) == (
        tuple(shapes.F2P),
        True,
        True,
    )
    kept = script_parts(
        "cat > x <<EOF\ngit is kept here\nEOF\n: '>>>>> Start Test Output'\na\n: '>>>>> End Test Output'"
    )
    assert kept == (("cat > x <<EOF", "git is kept here", "EOF"), ("a",))
    assert script_parts("pytest") == ((), ())


def test_what_a_repair_may_change_is_source_and_what_the_gold_patch_changes_but_no_hidden_test():
    suite = read("swe-bench", shapes.SWE_BENCH).suite
    paths = ("small.py", "deep/in/it.py", "tests/test_small.py", "conftest.py")
    assert [suite.repairs(path) for path in paths] == [
        True, True, False, False,
    ]  # fmt: skip
    config = shapes.GOLD.replace("small.py", "setup.cfg")
    assert read("swe-bench", {**shapes.SWE_BENCH, "patch": config}).suite.repairs("setup.cfg")
    helper = shapes.GOLD.replace("small.py", "src/testing/tests/help.py")
    suite = read("swe-bench", {**shapes.SWE_BENCH, "patch": helper}).suite
    assert suite.repairs("src/testing/tests/help.py")
    assert not suite.repairs("src/testing/tests/test_other.py"), "no more is opened than the gold patch needs"


def test_the_bug_of_a_smith_row_is_undone_by_its_gold_patch():
    record = read("swe-smith", shapes.SWE_SMITH)
    (bug,), (gold,) = parse_patch(record.bug_patch), parse_patch(record.gold_patch)
    right = "def total(values):\n    return sum(values)\n\n"
    assert apply_patch(bug, right) == right.replace("sum", "-sum")
    assert apply_patch(gold, apply_patch(bug, right)) == right
    assert record.to_task().world.setup[-2].startswith("base64 -d"), "it is broken before its history goes"
    assert RepairRecord.from_task(record.to_task()) == record


def test_an_r2e_row_has_hidden_tests_and_the_lists_that_its_logs_tell():
    record = read("r2e-gym", shapes.R2E_GYM)
    assert (record.fail_to_pass, record.pass_to_pass) == (("test_total",), ("TestMore.test_empty",))
    assert [one.target for one in record.files] == ["r2e_tests/test_1.py", "r2e_tests/__init__.py"]
    assert patch_paths(record.gold_patch) == ((1, "small.py"), (2, "small.py"))
    assert record.world.files == {"/r2e_tests": ""}, "the image's own copy is hidden from the agent"
    assert not record.suite.repairs("run_tests.sh")


def test_a_multi_swe_row_asks_for_every_test_that_was_repaired():
    record = read("multi-swe", shapes.MULTI_SWE)
    assert record.fail_to_pass == ("TestTotal", "TestNew")
    assert record.statement == "Total is negative\nIt is -1."
    assert record.world.image == "mswebench/tiny_m_small:pr-12"
    assert {"/home/fix.patch", "/home/test.patch"} <= record.world.files.keys()
    columns = {"name": ["TestTotal"], "run": ["FAIL"], "test": ["FAIL"], "fix": ["PASS"]}
    row = {**shapes.MULTI_SWE, "f2p_tests": columns, "n2p_tests": {"name": [], "fix": []}}
    assert read("multi-swe", row).fail_to_pass == ("TestTotal",), "as Parquet holds it"
    failing = {"TestBroken": {"run": "FAIL", "test": "FAIL", "fix": "FAIL"}}
    row = {**shapes.MULTI_SWE, "s2p_tests": failing}
    assert read("multi-swe", row).fail_to_pass == ("TestTotal", "TestNew"), "what still fails is not asked for"
    bare = {name: value for name, value in shapes.MULTI_SWE.items() if not name.endswith("2p_tests")}
    assert read("multi-swe", bare).fail_to_pass == ("TestTotal",), "the first rows had one list"
    del bare["fixed_tests"]
    bare |= {"test_patch_result": {"passed_tests": ["TestOther"]}}
    bare |= {"fix_patch_result": {"passed_tests": ["TestOther", "TestTotal", "TestNew"]}}
    found = read("multi-swe", bare)
    assert (found.fail_to_pass, found.pass_to_pass) == (("TestTotal", "TestNew"), ("TestOther",)), "runs alone"


def test_a_multi_swe_row_of_typescript_is_spelled_as_its_own_lists_are():
    record = read("multi-swe", shapes.MULTI_SWE_TS)
    assert (record.language, record.suite.language, record.suite.reader) == (
        "typescript", "typescript", "multi-swe-files"
    )  # fmt: skip
    assert record.fail_to_pass == ("test/sum.test.ts:total", "test/sum.test.ts")
    assert all(map(record.suite.repairs, ["src/sum.ts", "src/other.ts", "build/plugin.mjs"]))
    assert not any(map(record.suite.repairs, ["test/sum.test.ts", "jest.config.json", "src/a.spec.ts"]))
    assert record.to_task().metadata["suite"]["reader"] == "multi-swe-files"
    for names, reader in (
        (("a.test.ts > total > adds", "a.test.ts > total > takes off"), "multi-swe-paths"),
        (("adds", "takes a > b", "takes off"), "multi-swe-titles"),
        (("src/a.test.js", "adds", "takes off"), "multi-swe-titles"),
    ):
        ends = {name: {"run": "FAIL", "test": "FAIL", "fix": "PASS"} for name in names}
        row = {**shapes.MULTI_SWE_TS, "lang": "js", "f2p_tests": ends, "n2p_tests": {}, "p2p_tests": {}}
        assert read("multi-swe", row).suite.reader == reader


def test_a_rebench_row_runs_its_own_commands_in_its_own_tree():
    record = read("swe-rebench", shapes.SWE_REBENCH)
    assert (record.world.workdir, record.licence, record.suite.reader) == ("/small", "MIT", "swebench-go")
    assert "go vet ./...\ngo test -v ./..." in record.suite.test
    assert record.created_at == "1609298073000"


def test_a_harbor_task_is_its_script_its_bounds_and_no_network_unless_it_asks():
    record = read("harbor", shapes.HARBOR_TASK)
    assert (record.id, record.world.image, record.world.workdir) == ("tiny/small", "tiny/small:1", "/srv/small")
    assert (record.world.network, record.world.env) == (False, {"COLOUR": "blue"})
    assert (record.world.resources.memory_bytes, record.world.resources.cpus) == (512 << 20, 1.0)
    assert record.suite.timeout_s == 120.0
    hidden = {one.target for one in record.files if one.role == "test"}
    assert hidden == {"/tests/test.sh", "/tests/test_small.py"}
    text = shapes.HARBOR_TASK["task.toml"]
    listed = text.replace("cpus = 1", 'network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]')
    assert read("harbor", {**shapes.HARBOR_TASK, "task.toml": listed}).world.egress == ("pypi.org",)
    steps = text + "[[steps]]\nname = 'a'\n"
    assert read("harbor", {**shapes.HARBOR_TASK, "task.toml": steps}).suite is None


def test_no_name_of_a_command_is_taken_for_selected_tests():
    line = command(["echo {tests}"])
    assert "{tests}" not in line
    assert command(["pytest $@"], tests=True).endswith(" tests {tests}")


files = st.dictionaries(
    st.sampled_from(["a.py", "b/c.py", "b/d.txt"]), st.one_of(st.none(), st.text("ab\n", max_size=12))
)


@given(before=files, after=files)
def test_a_reversed_patch_undoes_the_patch(before, after):
    names = {*before, *after}
    old = {name: before.get(name) for name in names}
    new = {name: after.get(name) for name in names}
    patch = make_patch(old, new)
    back = dict(new)
    for part in parse_patch(reversed_patch(patch)):
        back[part.path] = apply_patch(part, back[part.path])
    assert back == old
    assert reversed_patch(reversed_patch(patch)) == patch
    chosen, others = split_patch(patch, lambda path: path.endswith(".py"))
    assert {path for _, path in patch_paths(chosen)} == {
        path for _, path in patch_paths(patch) if path.endswith(".py")
    }
    assert len(chosen) + len(others) == len(patch)


def test_a_git_patch_with_a_rename_is_turned_round():
    patch = "diff --git a/old.py b/new.py\nsimilarity index 90%\nrename from old.py\nrename to new.py\n"
    patch += "index 1a..2b 100644\n"
    assert patch_paths(patch) == ((3, "old.py"), (4, "new.py"))
    assert reversed_patch(patch).startswith("diff --git a/new.py b/old.py\nsimilarity index 90%\nrename to old.py")


def test_a_data_set_goes_through_the_command_line_and_back(tmp_path, write_rows):
    run = CliRunner()
    path = write_rows(tmp_path / "set.jsonl", shapes.SWE_BENCH)
    names = json.loads(run.invoke(tasks_command, ["formats", "--json"]).output)
    assert {"swe-bench", "harbor"} <= {row["name"] for row in names}
    said = run.invoke(tasks_command, ["import", str(path), "--out", str(tmp_path / "tasks.jsonl"), "--json"])
    assert json.loads(said.output)["tasks"] == 1, said.output
    again = run.invoke(tasks_command, ["import", str(path), "--out", str(tmp_path / "tasks.jsonl")])
    assert isinstance(again.exception, FileExistsError)
    for form, out in (("swe-bench", "back.jsonl"), ("harbor", "folder"), ("swe-smith", "smith.parquet")):
        done = run.invoke(
            tasks_command, ["export", str(tmp_path / "tasks.jsonl"), "--format", form, "--out", str(tmp_path / out)]
        )
        assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "back.jsonl").read_text()) == shapes.SWE_BENCH
    shown = run.invoke(tasks_command, ["show", "small-7", "--file", str(tmp_path / "tasks.jsonl"), "--gold"])
    assert "return sum(values)" in shown.output
    assert [task.id for task in import_tasks(tmp_path / "folder")[0]] == ["tiny__small-7"]


@pytest.mark.parametrize("name", ["train-00000-of-00001.jsonl", "test.jsonl"])
def test_the_split_of_a_row_is_told_by_its_file(name, tmp_path, write_rows):
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / name, shapes.SWE_BENCH)
    ((task,), _) = import_tasks(tmp_path / "data")
    assert task.split == name[:5].rstrip("-.j")
