"""One task in the shape of each format, small and made by hand: files, patches and ids of an invented project."""

import json
from pathlib import Path

import pytest

GOLD = """\
diff --git a/small.py b/small.py
index 1111111..2222222 100644
--- a/small.py
+++ b/small.py
@@ -1,3 +1,3 @@
 def total(values):
-    return -sum(values)
+    return sum(values)
 
"""
TESTS = """\
diff --git a/tests/test_small.py b/tests/test_small.py
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/tests/test_small.py
@@ -0,0 +1,5 @@
+from small import total
+
+
+def test_total():
+    assert total([1, 2]) == 3
"""
F2P = ["tests/test_small.py::test_total"]
P2P = ["tests/test_small.py::test_empty[a-b]"]

SWE_BENCH = {
    "repo": "tiny/small",
    "instance_id": "tiny__small-7",
    "base_commit": "a" * 40,
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "total() has the wrong sign\n\nIt should not.",
    "hints_text": "look at the sum",
    "created_at": "2024-05-06T07:08:09Z",
    "version": "1.2",
    "FAIL_TO_PASS": json.dumps(F2P),
    "PASS_TO_PASS": json.dumps(P2P),
    "environment_setup_commit": "b" * 40,
}
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git checkout {"a" * 40} tests/test_small.py
git apply -v - <<'EOF_114329324912'
{TESTS}
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_small.py
: '>>>>> End Test Output'
git checkout {"a" * 40} tests/test_small.py
"""
SWE_BENCH_5 = {
    **SWE_BENCH,
    "FAIL_TO_PASS": F2P,
    "PASS_TO_PASS": P2P,
    "image": "swebench/sweb.eval.x86_64.tiny_1776_small-7:latest",
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image_assets": None,
}
SWE_GYM = {
    "instance_id": "getmoto__moto-5",
    "repo": "getmoto/moto",
    "base_commit": "c" * 40,
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "a sign is wrong",
    "hints_text": "",
    "created_at": "2023-01-02 03:04:05",
    "version": "4.1",
    "FAIL_TO_PASS": F2P,
    "PASS_TO_PASS": P2P,
}
SWE_SMITH = {
    "instance_id": "tiny__small.1234abcd.func_pm_op_swap__x1y2",
    "repo": "swesmith/tiny__small.1234abcd",
    "patch": GOLD.replace("-    return -sum", "-    return sum", 1).replace(
        "+    return sum", "+    return -sum", 1
    ),
    "FAIL_TO_PASS": F2P,
    "PASS_TO_PASS": P2P,
    "image_name": "jyangballin/swesmith.x86_64.tiny_1776_small.1234abcd",
    "problem_statement": "Sums come out negative.",
}
R2E_GYM = {
    "repo_name": "small",
    "docker_image": "namanjain12/small_final:dddd",
    "commit_hash": "d" * 40,
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                {
                    "header": {"file": {"path": "small.py"}, "misc_line": None},
                    "old_file_content": "def total(values):\n    return -sum(values)\n",
                    "new_file_content": "def total(values):\n    return sum(values)\n",
                },
                {
                    "header": {"file": {"path": "tests/test_small.py"}},
                    "old_file_content": "",
                    "new_file_content": "def test_total(): pass\n",
                },
            ],
            "old_commit_hash": "e" * 40,
        },
        indent=4,
    ),
    "execution_result_content": json.dumps(
        {
            "repo_name": "small",
            "new_commit_hash": "d" * 40,
            "test_file_names": ["test_1.py", "__init__.py"],
            "test_file_codes": ["from small import total\n\n\ndef test_total():\n    assert total([1]) == 1\n", ""],
            "old_commit_res_stdout": "=== short test summary info ===\n"
            "FAILED r2e_tests/test_1.py::test_total - assert -1 == 1\n"
            "PASSED r2e_tests/test_1.py::TestMore::test_empty\n=== 1 failed, 1 passed in 0.02s ===\n",
        }
    ),
    "modified_files": ["small.py"],
    "relevant_files": ["small.py"],
    "num_non_test_files": 1,
    "prompt": "write an issue",
    "problem_statement": "[ISSUE]\nwrong sign\n[/ISSUE]",
    "expected_output_json": json.dumps({"test_total": "PASSED", "TestMore.test_empty": "PASSED"}, indent=4),
}
GO = """\
diff --git a/sum.go b/sum.go
--- a/sum.go
+++ b/sum.go
@@ -1,3 +1,3 @@
 package small
-func Total() int { return -1 }
+func Total() int { return 1 }
 
"""
MULTI_SWE = {
    "org": "tiny",
    "repo": "small",
    "number": 12,
    "state": "closed",
    "title": "fix: sign",
    "body": "closes #11",
    "base": {"label": "tiny:main", "ref": "main", "sha": "f" * 40},
    "resolved_issues": [{"number": 11, "title": "Total is negative", "body": "It is -1."}],
    "fix_patch": GO,
    "test_patch": GO.replace("sum.go", "sum_test.go"),
    "fixed_tests": {"TestTotal": {"run": "FAIL", "test": "FAIL", "fix": "PASS"}},
    "p2p_tests": {"TestOther": {"run": "PASS", "test": "PASS", "fix": "PASS"}},
    "f2p_tests": {"TestTotal": {"run": "FAIL", "test": "FAIL", "fix": "PASS"}},
    "s2p_tests": {},
    "n2p_tests": {"TestNew": {"run": "NONE", "test": "NONE", "fix": "PASS"}},
    "run_result": {"passed_count": 1, "failed_count": 1, "skipped_count": 0, "passed_tests": ["TestOther"],
                   "failed_tests": ["TestTotal"], "skipped_tests": []},
    "instance_id": "tiny__small-12",
}  # fmt: skip
TS = GO.replace("sum.go", "src/sum.ts").replace("func Total() int", "export const total = () =>")
_PASSES = {"run": "NONE", "test": "FAIL", "fix": "PASS"}
MULTI_SWE_TS = {
    **MULTI_SWE,
    "lang": "ts",
    "number": 31,
    "instance_id": "tiny__small-31",
    "fix_patch": TS,
    "test_patch": TS.replace("src/sum.ts", "test/sum.test.ts"),
    "fixed_tests": {"test/sum.test.ts:total": _PASSES, "test/sum.test.ts": _PASSES},
    "f2p_tests": {"test/sum.test.ts:total": _PASSES},
    "n2p_tests": {"test/sum.test.ts": _PASSES},
    "p2p_tests": {"test/other.test.ts:is empty": {"run": "PASS", "test": "PASS", "fix": "PASS"}},
}
SWE_REBENCH = {
    "instance_id": "tiny__small-33",
    "repo": "tiny/small",
    "base_commit": "9" * 40,
    "created_at": 1609298073000,
    "language": "go",
    "patch": GO,
    "test_patch": GO.replace("sum.go", "sum_test.go"),
    "problem_statement": "negative",
    "pr_description": "turns it round",
    "interface": "func Total() int",
    "license": "MIT",
    "FAIL_TO_PASS": ["TestTotal"],
    "PASS_TO_PASS": ["TestOther (0.02s)"],
    "install_config": {
        "base_image_name": "go:latest", "docker_specs": None, "install": ["go mod download"],
        "log_parser": "parse_log_gotest", "test_cmd": ["go vet ./...", "go test -v ./..."],
    },
    "image_name": "docker.io/swerebenchv2/tiny-small:33-9999999",
    "meta": {"num_modified_files": 1, "llm_metadata": [{"confidence": 0.5, "external_urls": []}]},
}  # fmt: skip
ROWS = {
    "swe-bench": SWE_BENCH, "swe-gym": SWE_GYM, "swe-smith": SWE_SMITH, "r2e-gym": R2E_GYM, "multi-swe": MULTI_SWE,
    "swe-rebench": SWE_REBENCH,
}  # fmt: skip

TASK_YAML = """\
# kept as it stands
instance_id: tiny__small-7
repo: tiny/small
version: 4.30
base_commit: '1234567'
split: test
datasets: [tiny]
created_at: 2024-05-06T07:08:09Z
image: swebench/sweb.eval.x86_64.tiny_1776_small-7:latest
log_parser: parse_log_pytest
eval_type: pass_and_fail
"""
SWE_BENCH_TASK = {
    "task.yaml": TASK_YAML,
    "tests.json": json.dumps({"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}),
    "problem_statement.md": "total() has the wrong sign\r\n",
    "gold.patch": GOLD,
    "test.patch": TESTS,
    "eval.sh": SCRIPT,
    "Dockerfile": "FROM scratch\n",
    "test_assets/tests/sample.bin": {"base64": "AP8="},
}
HARBOR_TASK = {
    "task.toml": '''\
schema_version = "1.4"
[task]
name = "tiny/small"
version = "2"
[metadata]
difficulty = "easy"
made = 2024-05-06
[verifier]
timeout_sec = 120.0
[environment]
docker_image = "tiny/small:1"
cpus = 1
memory_mb = 512
storage_mb = 1024
[environment.env]
COLOUR = "blue"
TOKEN = "${TOKEN}"
''',
    "instruction.md": "Make `total` positive.\n",
    "environment/Dockerfile": "FROM python:3.11\nWORKDIR /srv/small\nCOPY . .\n",
    "tests/test.sh": {"text": "#!/bin/bash\npytest /tests/test_small.py && echo 1 > /logs/verifier/reward.txt\n",
                      "executable": True},
    "tests/test_small.py": "from small import total\n\n\ndef test_total():\n    assert total([1]) == 1\n",
    "solution/solve.sh": {"text": "sed -i s/-sum/sum/ small.py\n", "executable": True},
    "README.md": "about it\n",
}  # fmt: skip
FOLDERS = {"swe-bench-tasks": SWE_BENCH_TASK, "harbor": HARBOR_TASK}


@pytest.fixture
def write_rows():
    """Write rows of a format into a JSON lines file."""

    def write(path: Path, *rows: dict) -> Path:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
