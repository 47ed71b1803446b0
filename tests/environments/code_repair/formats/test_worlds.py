"""Tasks of rows that name images, from the row to the verdict, on an image saved as a tar."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.env import code_repair_tasks
from envgym_environments.code_repair.formats.images import find_image
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch_text import reversed_patch
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from typer.testing import CliRunner

from envgym.cli import run
from envgym.errors import SandboxUnavailable
from envgym.messages import Action
from envgym.policy import Reply
from envgym.registry import make_backend, register, unregister
from envgym.store import StoreReader

PROGRAMS = (
    "ls",
    "id",
    "stat",
    "bash",
    "cat",
    "rm",
    "mkdir",
    "chmod",
    "find",
    "sed",
    "env",
    "base64",
    "patch",
    "dirname",
    "mv",
)
TREE = {
    "testbed/total.sh": 'total=0\nfor value in "$@"; do total=$((total - value)); done\necho $total\n',
    "testbed/run.sh": """\
bad=0; good=0
echo '==== short test summary info ===='
for file in tests/*.sh; do
  if bash $file; then echo "PASSED $file::check"; good=$((good + 1))
  else echo "FAILED $file::check - wrong"; bad=$((bad + 1)); fi
done
echo "==== $bad failed, $good passed in 0.01s ===="
[ $bad = 0 ]
""",
    "testbed/tests/empty.sh": "[ $(bash total.sh) = 0 ]\n",
    "testbed/tests/broken.sh": "false\n",
    "testbed/.git/packed-refs": "the repaired commit\n",
}
GOLD = """\
--- a/total.sh
+++ b/total.sh
@@ -1,3 +1,3 @@
 total=0
-for value in "$@"; do total=$((total - value)); done
+for value in "$@"; do total=$((total + value)); done
 echo $total
"""
TESTS = """\
--- /dev/null
+++ b/tests/sum.sh
@@ -0,0 +1 @@
+[ "$(bash total.sh 1 2)" = 3 ]
"""
SCRIPT = "cd /testbed\n: '>>>>> Start Test Output'\nbash run.sh\n: '>>>>> End Test Output'\n"
ROW = {
    "instance_id": "tiny__sum-1", "repo": "tiny/sum", "base_commit": "a" * 40, "patch": GOLD, "test_patch": TESTS,
    "problem_statement": "Sums are negative.", "hints_text": "", "created_at": "", "version": "1",
    "FAIL_TO_PASS": ["tests/sum.sh::check"], "PASS_TO_PASS": ["tests/empty.sh::check"], "language": "c",
    "image": "tiny/sum:7", "eval_script": SCRIPT, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail",
}  # fmt: skip


def needed(program):
    """A program of this host, and the libraries that it needs."""
    path = shutil.which(program)
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return [path, *re.findall(r"(/\S+) \(0x", told)]


def layer(tree, programs=PROGRAMS):
    """A layer with the programs that the tests need, and a tree."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted({path for program in programs for path in needed(program)}):
            name = path.lstrip("/")
            archive.add(Path(path).resolve(), "usr/" + name.removeprefix("usr/"))
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, f"usr/{name}", 0o777
            archive.addfile(link)
        link = tarfile.TarInfo("usr/bin/sh")
        link.type, link.linkname = tarfile.SYMTYPE, "bash"
        archive.addfile(link)
        for name, text in tree.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text.encode()), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def save(path, content):
    """What `docker save` writes of an image with one layer."""
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["tiny/sum:7"], "Layers": ["one/layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in (("manifest.json", manifest), ("c.json", b"{}"), ("one/layer.tar", content)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    save(folder / "tiny_sum_7.tar", layer(TREE))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))


def graded(task, *submissions):
    """The channels of each submission."""

    async def run():
        async with make_backend() as backend:
            grader = CodeRepairGrader(backend, memo=Memo())
            return [(await grader.grade(task, one)).channels for one in submissions]

    try:
        return asyncio.run(run())
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_row_that_names_an_image_is_played_and_graded_on_its_tar(images, cache, tmp_path, write_rows):
    path = write_rows(tmp_path / "set.jsonl", ROW)
    (task,) = code_repair_tasks(path, images=images)
    assert task.world.image == str(images / "tiny_sum_7.tar")
    cheat = "--- a/tests/sum.sh\n+++ b/tests/sum.sh\n@@ -0,0 +1 @@\n+true\n".replace(
        "a/tests/sum.sh", "/dev/null", 1
    )
    gold, nothing, tests_only = graded(task, GOLD, "", cheat)
    assert (gold["resolved"], gold["f2p"], gold["p2p"]) == (1.0, 1.0, 1.0)
    check_certified(task, tmp_path)
    assert (nothing["resolved"], nothing["f2p"], nothing["p2p"]) == (0.0, 0.0, 1.0)
    assert (tests_only["resolved"], tests_only["stripped"]) == (0.0, 1.0)


def check_certified(task, place):
    """Imported tasks get certificates by the command line; those whose lists or tests are wrong are named."""
    swapped = {"fail_to_pass": task.metadata["pass_to_pass"], "pass_to_pass": task.metadata["fail_to_pass"]}
    wrong = {"swapped": swapped, "unfit": {"test_patch": "--- a/none.txt\n+++ b/none.txt\n@@ -1 +1 @@\n-a\n+b\n"}}
    others = [
        task.model_copy(update={"id": name, "metadata": {**task.metadata, **values}})
        for name, values in wrong.items()
    ]
    write_tasks([task, *others], place / "in.jsonl")
    command = ["certify", "--json", "--file", str(place / "in.jsonl"), "--out", str(place / "out.jsonl")]
    told = CliRunner().invoke(tasks_command, command)
    assert told.exit_code == 1, told.output
    why = json.loads(told.stdout)["wrong"]
    assert set(why) == {"swapped", "unfit"}
    assert "failing tests pass" in why["swapped"]
    assert "does not apply to its base state" in why["unfit"]
    (certified,) = load_tasks(place / "out.jsonl")
    certificate = certificate_of(certified)
    assert certificate is not None
    assert certificate.untouched == certificate.gold
    assert certificate.gold["plain"] == (1, 1)
    changed = {**certified.metadata, "test_patch": ""}
    with pytest.raises(ValueError, match="changed afterwards"):
        certificate_of(certified.model_copy(update={"metadata": changed}))


SMITH = {
    "instance_id": "tiny__sum.1.pm__x", "repo": "swesmith/tiny__sum.1", "image_name": "tiny/sum:8",
    "patch": GOLD.replace("- value", "x").replace("+ value", "- value").replace("x))", "+ value))"),
    "FAIL_TO_PASS": ["TestSum"], "PASS_TO_PASS": [], "problem_statement": "", "language": "go",
}  # fmt: skip
RIGHT = {
    "testbed/total.sh": TREE["testbed/total.sh"].replace("- value", "+ value"),
    "testbed/.git/HEAD": "x\n",
    # a `go` of our own: SWE-smith's rows do not say how tests are run, their language does
    "usr/local/bin/go": "#!/bin/bash\nif [ $(bash total.sh 1 2) = 3 ]; then echo '--- PASS: TestSum (0.00s)'\n"
    "printf 'ok  \\ttiny\\t0.1s\\n'; else echo '--- FAIL: TestSum (0.00s)'; "
    "printf 'FAIL\\ttiny\\t0.1s\\n'; exit 1; fi\n",
}


@pytest.mark.slow
def test_a_row_whose_patch_is_the_bug_begins_broken_and_its_reverse_repairs_it(cache, tmp_path, write_rows):
    save(tmp_path / "sum_8.tar", layer(RIGHT))
    (task,) = code_repair_tasks(write_rows(tmp_path / "set.jsonl", SMITH), images=tmp_path)
    gold, nothing = graded(task, task.metadata["gold"]["patch"], "")
    assert (gold["resolved"], nothing["resolved"], nothing["f2p"]) == (1.0, 0.0, 0.0)


MULTI = {
    "home/run.sh": "#!/bin/bash\nset -e\ncd /home/small\nnode --test --test-reporter=spec test\n",
    "home/fix.patch": "the answer\n",
    "home/small/src/total.mjs": "export const total = (...values) => -values.reduce((a, b) => a + b, 0)\n",
    "home/small/test/empty.test.mjs": """\
import assert from 'node:assert'
import { test } from 'node:test'
import { total } from '../src/total.mjs'
test('is nothing of nothing', () => assert.equal(total() + 0, 0))
test('is known to fail', () => assert.equal(1, 2))
""",
}
_MULTI_FIX = """\
--- a/src/total.mjs
+++ b/src/total.mjs
@@ -1 +1 @@
-export const total = (...values) => -values.reduce((a, b) => a + b, 0)
+export const total = (...values) => values.reduce((a, b) => a + b, 0)
"""
_MULTI_TEST = """\
--- /dev/null
+++ b/test/sum.test.mjs
@@ -0,0 +1,4 @@
+import assert from 'node:assert'
+import { test } from 'node:test'
+import { total } from '../src/total.mjs'
+test('adds', () => assert.equal(total(1, 2), 3))
"""
MULTI_ROW = {
    "org": "Tiny", "repo": "small", "number": 31, "lang": "js", "title": "sign", "body": "",
    "base": {"sha": "a" * 40},
    "resolved_issues": [{"number": 30, "title": "Sums are negative.", "body": ""}],
    "fix_patch": _MULTI_FIX, "test_patch": _MULTI_TEST,
    "n2p_tests": {"adds": {"run": "NONE", "test": "FAIL", "fix": "PASS"}},
    "p2p_tests": {"is nothing of nothing": {"run": "PASS", "test": "PASS", "fix": "PASS"}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_multi_swe_row_of_javascript_is_graded_by_the_script_in_its_image(cache, tmp_path, write_rows):
    save(tmp_path / "tiny_m_small_pr-31.tar", layer(MULTI, (*PROGRAMS, "node")))
    (task,) = code_repair_tasks(write_rows(tmp_path / "set.jsonl", MULTI_ROW), images=tmp_path)
    printing = _MULTI_FIX.replace("@@ -1 +1 @@", "@@ -1 +1,2 @@") + "+console.log('✔ adds')\n"
    cheat = printing.replace("=> values", "=> -values")
    gold, nothing, cheat = graded(task, _MULTI_FIX, "", cheat)
    assert (gold["resolved"], gold["f2p"], gold["p2p"]) == (1.0, 1.0, 1.0), "one test fails before and after"
    assert (nothing["resolved"], nothing["f2p"], nothing["p2p"]) == (0.0, 0.0, 1.0)
    assert (cheat["resolved"], cheat["f2p"]) == (0.0, 0.0)


SMITH_TREE = {
    "testbed/package.json": '{"name": "small", "scripts": {"test": "node --test"}}\n',
    **{name.replace("home/small/", "testbed/"): text for name, text in MULTI.items() if "small/" in name},
}
SMITH_TREE["testbed/src/total.mjs"] = SMITH_TREE["testbed/src/total.mjs"].replace("-values", "values")
SMITH_TREE["testbed/test/sum.test.mjs"] = "".join(
    line.removeprefix("+") + "\n" for line in _MULTI_TEST.splitlines()[3:]
)
SMITH_JS = SMITH | {
    "image_name": "tiny/small:8", "language": "javascript", "FAIL_TO_PASS": ["adds"],
    "PASS_TO_PASS": ["is nothing of nothing"],
    "patch": reversed_patch(_MULTI_FIX),
}  # fmt: skip
RUNNERS = {
    "mocha by npm": (
        {"package.json": '{"scripts": {"test": "mocha --exit"}}'},
        "npm",
        "  sums\n    ✔ adds\n    ✔ is nothing of nothing\n\n  2 passing (5ms)\n",
        "  sums\n    1) adds\n    ✔ is nothing of nothing\n\n  1 passing (5ms)\n  1 failing\n\n"
        "  1) sums\n       adds:\n     wrong\n",
    ),
    "jest without a script": (
        {"package.json": "{}", "node_modules/.bin/jest": ""},
        "npx",
        "PASS test/sum.test.mjs\n  sums\n    ✓ adds (2 ms)\n    ✓ is nothing of nothing\n\n"
        "Test Suites: 1 passed, 1 total\nTests:       2 passed, 2 total\n",
        "FAIL test/sum.test.mjs\n  sums\n    ✕ adds (2 ms)\n    ✓ is nothing of nothing\n\n  ● sums \u203a adds\n\n"
        "Test Suites: 1 failed, 1 total\nTests:       1 failed, 1 passed, 2 total\n",
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("runner", ["node", *RUNNERS])
def test_a_smith_row_of_javascript_is_graded_by_the_runner_that_its_tree_has(runner, cache, tmp_path, write_rows):
    files = dict(SMITH_TREE)
    if runner in RUNNERS:  # their own logs, by a program of their launcher's name
        added, launcher, right, wrong = RUNNERS[runner]
        files |= {f"testbed/{name}": text for name, text in added.items()}
        files[f"usr/local/bin/{launcher}"] = (
            '#!/bin/bash\nif node -e \'import("/testbed/src/total.mjs").then((it) => '
            "process.exit(it.total(1, 2) === 3 ? 0 : 1))'; then\n"
            f"cat <<'END'\n{right}END\nelse\ncat <<'END'\n{wrong}END\nexit 1\nfi\n"
        )
    save(tmp_path / "tiny_small_8.tar", layer(files, (*PROGRAMS, "node")))
    (task,) = code_repair_tasks(write_rows(tmp_path / "set.jsonl", SMITH_JS), images=tmp_path)
    gold, nothing = graded(task, task.metadata["gold"]["patch"], "")
    assert (gold["resolved"], gold["f2p"], gold["p2p"]) == (1.0, 1.0, 1.0)
    assert (nothing["resolved"], nothing["f2p"]) == (0.0, 0.0)


@pytest.mark.slow
def test_a_harbor_task_is_graded_by_its_script_which_the_agent_never_sees(images, cache, tmp_path):
    folder = tmp_path / "set" / "sum"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(
        '[task]\nname = "tiny/sum"\n[environment]\ndocker_image = "tiny/sum:7"\nworkdir = "/testbed"\n'
    )
    (folder / "instruction.md").write_text("Sums are negative.\n")
    (folder / "tests" / "test.sh").write_text(
        "if [ $(bash total.sh 1 2) = 3 ]; then echo 1.0; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    (task,) = code_repair_tasks(tmp_path / "set", images=images)
    gold, nothing = graded(task, GOLD, "")
    assert (gold["resolved"], nothing["resolved"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    "file",
    ["tiny_sum_7.tar", "tiny__sum:7.tar.gz", "sum-7.tgz", "docker.io_tiny_sum_7.tar"],
)
def test_an_image_is_found_by_its_name_however_it_is_written(file, tmp_path):
    (tmp_path / file).write_bytes(b"")
    (tmp_path / "other_sum_8.tar").write_bytes(b"")
    assert find_image("docker.io/tiny/sum:7", tmp_path) == str(tmp_path / file)
    assert find_image("docker.io/tiny/sum:9", tmp_path) is None


def test_two_files_for_one_image_are_refused(tmp_path):
    for name in ("sum_7.tar", "sum-7.tar"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"could be .*sum-7.tar or .*sum_7.tar"):
        find_image("sum:7", tmp_path)


def test_an_image_without_a_file_leaves_the_task_out(tmp_path, write_rows):
    path = write_rows(tmp_path / "set.jsonl", ROW)
    (tmp_path / "images").mkdir()
    with pytest.raises(ValueError, match=r"names the image 'tiny/sum:7', of which there is no file"):
        code_repair_tasks(path, images=tmp_path / "images")
    (task,) = code_repair_tasks(path, images={"tiny/sum:7": "/images/seven.tar"})
    assert task.world.image == "/images/seven.tar"
    (task,) = code_repair_tasks(path)
    assert task.world.image == "tiny/sum:7", "then it is the backend's to know"


class Repairer:
    """Repairs the sums, then hands in."""

    name = "agent"

    async def act(self, step):
        if step.stop is None and "Sums" in step.text:
            return Reply(Action.call("edit", path="total.sh", old="total - value", new="total + value"))
        return Reply(Action.call("submit"))

    async def close(self):
        pass


@pytest.fixture
def repairer():
    register("agents", "test-repairer", lambda task, *, seed: Repairer())
    yield "test-repairer"
    unregister("agents", "test-repairer")


TRAINED = (
    "env=code-repair env_options.tools=full task_options.path={}/set.jsonl task_options.images={} split=train "
    "evaluate.split=test expert={} turns=3 threads=1 model.size=tiny model.answer=64 warm_start.rows=4 "
    "warm_start.min_updates=2 warm_start.max_updates=2 warm_start.evaluate_every=1 reinforce.steps=1 "
    "reinforce.tasks=1 reinforce.group=2 reinforce.oversample=1 reinforce.loop.staleness=0 reinforce.teaches=all "
    "evaluate.tasks=1 evaluate.baselines=[] evaluate.bootstrap=100 evaluate.greedy=false"
)


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_data_set_on_disk_is_trained_on_with_one_command(images, cache, repairer, tmp_path, write_rows):
    pytest.importorskip("torch")
    rows = [ROW | {"instance_id": f"tiny__sum-{n}", "split": "train" if n else "test"} for n in range(3)]
    write_rows(tmp_path / "set.jsonl", *rows)
    given = [word for one in TRAINED.format(tmp_path, images, repairer).split() for word in ("--set", one)]
    assert run(["train", *given, "--out", str(tmp_path / "run")]) == 0
    with StoreReader(tmp_path / "run" / "trajectories") as reader:
        played = list(reader)
    expert = [one for one in played if one.id.startswith("expert")]
    assert {one.task_id for one in expert} == {"tiny__sum-1", "tiny__sum-2"}
    assert [one.turns[-1].step.reward for one in expert] == [1.0, 1.0], "by the data set's own tests"
    assert {one.task_id for one in played if one.id.startswith("evaluate")} == {"tiny__sum-0"}
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(one["step"], one["tokens"] > 0) for one in metrics] == [(1, True)]
    assert (tmp_path / "run" / "trained" / "model.safetensors").exists()
