"""Certificates of suites: that conditions reach the tests, and that a certified task is bound to what was run."""

import itertools
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.conditions import Condition, applied, clock_library
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.recheck import certified_again
from envgym_environments.code_repair.suites import LANGUAGES, Suite
from envgym_environments.code_repair.suites.baseline import measure_suite
from envgym_environments.code_repair.suites.conditions import ON_PROJECT, ON_TASK, dates, on_suite, run_suite_under
from envgym_environments.code_repair.suites.go_clock import later_text
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import Project, missing_programs, projects
from envgym_environments.code_repair.suites.results import Raw
from envgym_environments.code_repair.suites.tree import project_tree, project_world
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from typer.testing import CliRunner

from envgym.errors import EnvironmentFailure
from envgym.sandbox import SandboxBackend
from envgym.task import Task, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]
YEAR_S = 366 * 86_400
SEED = ON_TASK[0].order


def test_conditions_reach_what_the_command_runs(run_in_backend: Callable[..., None]) -> None:
    line = "node -p \"new Date().getFullYear() + ' ' + process.env.TZ\" > said"
    values = {"test": line, "reader": "exit-code"}
    suite = Suite.model_validate({"language": "javascript", "source": ("*.js",)} | values)

    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            said = []
            for condition in (Condition("plain"), Condition("later", zone="NPT-5:45", later_s=2 * YEAR_S)):
                await run_suite_under(sandbox, suite, condition)
                said.append((await sandbox.read("said")).decode().split())
        assert [zone for _, zone in said] == ["UTC", "NPT-5:45"]
        assert int(said[1][0]) - int(said[0][0]) == (2 if clock_library() else 0)

    run_in_backend(body)


def test_what_reaches_no_test_of_a_suite_is_not_run_and_not_named() -> None:
    def names(suite: dict[str, object]) -> list[str]:
        values = {"source": ("*",), "test": "true"} | suite
        return [one.name for one in on_suite((*ON_PROJECT, *ON_TASK), Suite.model_validate(values))]

    date = " and date" if clock_library() else ""
    assert names({"language": "javascript", "reader": "tap"}) == [
        f"other time zone{date}",
        "busy machine",
        f"other time zone{date}, busy machine",
    ]
    assert names({"language": "go", "reader": "go-json", "test": "bash run.sh"}) == [
        "other order",
        "a third order",
        "other time zone",
        "busy machine",
        "other order and time zone, busy machine",
    ]
    assert names({"language": "go", "reader": "go-json", "test": "go test -json ./..."}) == [
        "other order",
        "a third order",
        "other time zone and date",
        "busy machine",
        "other order and time zone and date, busy machine",
    ]
    shuffled = {"language": "c", "reader": "ctest", "shuffle": {"SHUFFLE": "{seed}"}}
    assert names(shuffled)[:2] == ["other order", "a third order"]
    shuffled["shuffle"] = {"SHUFFLE": "{seed}", "BACK": "{reverse}"}
    assert names(shuffled)[:2] == ["other order", "that order reversed"]
    python = names({"language": "python", "reader": "pytest-junit"})
    assert python[:2] == ["other order and hash seed", "that order reversed"]
    later = Condition("later", later_s=7)
    assert applied(later, date=False) is None
    assert applied(later, date=True) is later


def _order(language: str, raw: Raw, outcomes: list[str]) -> list[str]:
    """In which order tests began: results that are sorted do not tell, but then the output does."""
    said = {
        "c": r"Start +\d+: (\w+)",
        "c++": r"RUN +\] (\S+)",
        "java": r"\w+Test\b",
    }.get(language)
    return re.findall(said, raw.text) if said else outcomes


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.parametrize("language", LANGUAGES)
def test_another_order_is_one_in_every_language_and_the_tests_pass_in_it(
    language: str, run_in_backend: Callable[..., None]
) -> None:
    async def body(backend: SandboxBackend) -> None:
        project = projects(language=language)[0]  # type: ignore[arg-type]
        if missing := missing_programs(project):
            pytest.skip(f"{project.slug} needs {', '.join(missing)}, which this machine has not")
        test = project.suite.test.replace("--details=none", "--details=tree --disable-ansi-colors")
        suite = project.suite.model_copy(update={"test": test})
        tree = await project_tree(project, backend)
        found: list[list[str]] = []
        async with await backend.create(project_world(project, tree)) as sandbox:
            reverses = any(one.reverse for one in on_suite(ON_PROJECT, suite))
            for number, seed in enumerate((None, 7, 8, *([7] * reverses))):
                raws: list[Raw] = []
                condition = Condition("order", order=seed, reverse=number == 3)
                report = await run_suite_under(sandbox, suite, condition, built=number > 0, raws=raws)
                assert not report.doubt
                assert set(report.outcomes.values()) <= {"passed", "skipped"}
                found.append(_order(language, raws[0], list(report.outcomes)))
        assert len(found[0]) > 5
        assert sorted(found[0]) == sorted(found[1]) == sorted(found[2])
        assert found[1] != found[0] != found[2]
        assert found[1] != found[2]
        assert reverses == (language in ("python", "javascript", "typescript", "java", "c", "c++"))
        if reverses and language in ("javascript", "typescript"):  # what a test begins in its body keeps its order
            later = {name: at for at, name in enumerate(found[3])}
            turned = [later[one] > later[two] for one, two in itertools.combinations(found[1], 2)]
            assert sum(turned) > 0.9 * len(turned)
        elif reverses:
            assert found[3] == found[1][::-1]

    run_in_backend(body)


GO_SUITE = {
    "language": "go", "test": "go test -vet=off -count=1 -json ./...", "reader": "go-json", "source": ("*.go",),
    "env": {"GOCACHE": "/repo/.gocache", "GOFLAGS": "-mod=mod", "GOPROXY": "off"},
}  # fmt: skip
GO_FILES = {
    "go.mod": "module bomb\n\ngo 1.19\n",
    "bomb_test.go": """package bomb

import (
	"testing"
	"time"
)

var counted int

func TestBomb(t *testing.T) {
	if time.Since(time.Unix(%d, 0)) > 100*24*time.Hour {
		t.Fatal("the licence has run out")
	}
}

func TestDurationsStay(t *testing.T) {
	begun := time.Now()
	time.Sleep(5 * time.Millisecond)
	if took := time.Since(begun); took < 5*time.Millisecond || took > 20*time.Second {
		t.Fatal(took)
	}
	if left := time.Until(time.Now().Add(time.Hour)); left > time.Hour || left < 50*time.Minute {
		t.Fatal(left)
	}
}

func TestFirst(t *testing.T) { counted++ }

func TestSecond(t *testing.T) {
	if counted == 0 {
		t.Fatal("it needs TestFirst before it")
	}
}
""",
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
def test_go_tests_that_hang_on_the_date_or_on_each_other_are_found(run_in_backend: Callable[..., None]) -> None:
    suite = Suite.model_validate(GO_SUITE)
    dated, ordered = Condition("later", later_s=2 * YEAR_S), Condition("order", order=SEED)
    assert on_suite((dated, ordered), suite) == (dated, ordered)

    async def body(backend: SandboxBackend) -> None:
        files = {f"/repo/{name}": text for name, text in GO_FILES.items()}
        files["/repo/bomb_test.go"] %= time.time()
        async with await backend.create(World(workdir="/repo", files=files)) as sandbox:
            plain = await run_suite_under(sandbox, suite, Condition("plain"))
            assert set(plain.outcomes.values()) == {"passed"}, plain.errors
            later = await run_suite_under(sandbox, suite, dated)
            assert [name for name, outcome in later.outcomes.items() if outcome != "passed"] == ["bomb::TestBomb"]
            assert "the licence has run out" in later.errors["bomb::TestBomb"]
            other = await run_suite_under(sandbox, suite, ordered)
            assert other.failing == ("bomb::TestSecond",)
            both = await run_suite_under(sandbox, suite, Condition("both", order=SEED, later_s=2 * YEAR_S))
            assert set(both.failing) == {"bomb::TestBomb", "bomb::TestSecond"}, "flags of both are joined"
            project = projects(language="go")[0].model_copy(update={"suite": suite, "canaries": ()})
            measured = await measure_suite(sandbox, project, conditions=(dated,))
            assert measured.suite.deselect == {"bomb::TestBomb": "does not pass every time: failed (later)"}

    run_in_backend(body)


GO_BROKEN = {
    "go.mod": "module sums\n\ngo 1.19\n",
    "sums.go": "package sums\n\nfunc Sum(a, b int) int { return a - b }\n",
    "sums_test.go": """package sums

import (
	"testing"
	"time"
)

func TestSum(t *testing.T) {
	if Sum(2, 3) != 5 {
		t.Fatal("not five")
	}
}

func TestDate(t *testing.T) {
	if now := time.Now().Unix(); now > %d {
		t.Fatal("the date was shifted")
	}
}
""",
}
GO_UNKNOWING = """#!/bin/sh
# a toolchain from before overlays: it knows none, and says so
[ "$1 $2" = "help build" ] && { echo 'usage: go build [-o output]'; exit; }
exec /usr/bin/go "$@"
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go")
@pytest.mark.parametrize("where", ["a script", "an old toolchain"])
def test_go_tasks_whose_date_cannot_be_shifted_are_certified_by_the_command_which_says_so(
    where: str, tmp_path: Path
) -> None:
    command = str(GO_SUITE["test"])
    files = {f"/repo/{name}": text for name, text in GO_BROKEN.items()}
    files["/repo/sums_test.go"] %= time.time() + 30 * 86_400
    changed: dict[str, object] = {}
    setup: tuple[str, ...] = ()
    if where == "a script":
        files["/repo/run.sh"], changed["test"] = f"exec {command}\n", "sh run.sh"
    else:
        files["/repo/old/go"], setup = GO_UNKNOWING, ("chmod +x /repo/old/go",)
        changed["env"] = {**GO_SUITE["env"], "PATH": "/repo/old:/usr/bin:/bin"}  # type: ignore[dict-item]
    wrong = files["/repo/sums.go"]
    task = Task(
        id="sums/sum",
        prompt="TestSum fails",
        world=World(workdir="/repo", files=files, setup=setup),
        metadata={
            "suite": Suite.model_validate({**GO_SUITE, **changed}).model_dump(mode="json"),
            "fail_to_pass": ["sums::TestSum"],
            "pass_to_pass": ["sums::TestDate"],
            "tests": 2,
            "gold": {"patch": make_patch({"sums.go": wrong}, {"sums.go": wrong.replace("a - b", "a + b")})},
        },
    )
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_tasks([task], given)
    done = CliRunner().invoke(tasks_command, ["certify", "--file", str(given), "--out", str(out)])
    assert done.exit_code == 0, done.output
    (made,) = load_tasks(out)
    found = certificate_of(made)
    assert found is not None
    assert not found.date_shifted
    assert {*found.gold, *found.untouched} == {"plain", "other order and time zone, busy machine", "graded"}


NODE_TESTS = """'use strict'
const { test, describe, it } = require('node:test')
const assert = require('node:assert')
let counted = 0
test('first', () => { counted++ })
test('second', () => { assert.ok(counted, 'it needs the first before it') })
test('alone', async (t) => { await t.test('inside', () => {}) })
describe('group', () => {
  let inner = 0
  it('begins', () => { inner++ })
  it('goes on', () => { assert.ok(inner) })
  test.skip('later', () => {})
})
"""
JUNIT_4 = """package a;
import org.junit.Assert;
import org.junit.Test;
public class PairTest {
    static int counted;
    // by the hashes of their names, which JUnit goes by, the second is before the first
    @Test public void first() { Assert.assertTrue("it needs the second before it", counted > 0); }
    @Test public void second() { counted++; }
    @Test public void third() {}
}
"""
JUNIT_5 = JUNIT_4.replace("org.junit.", "org.junit.jupiter.api.").replace("Assert;", "Assertions;")
JUNIT_5 = re.sub(r"Assert.assertTrue\(.*, (.*)\)", r"Assertions.assertTrue(\1)", JUNIT_5)
JUPITER = {
    "JAVA_TOOL_OPTIONS": "-Djunit.jupiter.execution.order.random.seed={seed} "
    "-Djunit.jupiter.testmethod.order.default=org.junit.jupiter.api.MethodOrderer$Random"
}


def _pairs(kind: str) -> tuple[Project, Suite, dict[str, str]]:
    """The project whose runner is tried, its suite, and files of tests of which some need others before them."""
    project = projects(language="javascript" if kind == "node" else "java")[0]
    suite = project.suite
    files = {f"/repo/{name}": text for name, text in project.files.items()}
    if kind == "node":
        return project, suite, {**files, "/repo/test/pair.test.js": NODE_TESTS}
    text = JUNIT_4 if kind == "junit4" else JUNIT_5
    if kind == "junit5":
        jars = ":".join(f"/usr/share/java/junit-jupiter-{part}.jar" for part in ("api", "engine"))
        jars += ":/usr/share/java/junit-platform-commons.jar:/usr/share/java/apiguardian-api.jar"
        build = tuple(line.replace("/usr/share/java/junit4.jar", jars) for line in suite.build)
        test = suite.test.replace("/usr/share/java/junit-vintage-engine.jar", jars)
        suite = suite.model_copy(update={"build": build, "test": test, "shuffle": JUPITER})
    return project, suite, {**files, "/repo/src/test/java/a/PairTest.java": text}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "junit4", "junit5"])
def test_tests_of_one_file_that_hang_on_each_other_are_found(
    kind: str, run_in_backend: Callable[..., None]
) -> None:
    project, suite, files = _pairs(kind)
    if missing := missing_programs(project):
        pytest.skip(f"{project.slug} needs {', '.join(missing)}, which this machine has not")

    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo", files=files)) as sandbox:
            for line in project.prepare:
                assert (await sandbox.exec(["sh", "-c", line])).ok
            plain = await run_suite_under(sandbox, suite, Condition("plain"))
            assert set(plain.outcomes.values()) <= {"passed", "skipped"}, plain.errors
            assert not plain.doubt
            need = ("second", "goes on") if kind == "node" else ("first", "first()")
            needing = {name for name in plain.outcomes if name.endswith(need)}
            assert len(needing) == (2 if kind == "node" else 1)
            found: list[set[str]] = []
            drawn = [Condition("order", order=seed) for seed in range(1, 6)]
            if kind != "junit5":  # whose own orders have no way back
                drawn += [Condition("reversed", order=seed, reverse=True) for seed in range(1, 6)]
            for condition in drawn:
                run = await run_suite_under(sandbox, suite, condition, built=True)
                assert not run.doubt
                assert run.outcomes.keys() == plain.outcomes.keys(), "each test still runs once, under its name"
                found.append(set(run.failing))
            assert set.union(*found) == needing, "each is found by some order, and no other test"
            again = await run_suite_under(sandbox, suite, Condition("order", order=5), built=True)
            assert set(again.failing) == found[4], "a seed is one order"
            for there, back in zip(found[:5], found[5:], strict=False):
                assert there | back == needing, "an order and its reverse find them all"

    run_in_backend(body)


def test_where_go_is_not_found_or_too_old_the_date_stays_and_is_said_to(
    run_in_backend: Callable[..., None],
) -> None:
    line = "echo 1..1; echo ok 1 - go test"
    suite = Suite.model_validate(
        GO_SUITE | {"test": line, "reader": "tap", "env": {"PATH": "/repo/old:/bin:/usr/bin"}}
    )
    project = projects(language="go")[0].model_copy(update={"suite": suite, "canaries": ()})
    old = {"/repo/old/go": "#!/bin/sh\necho /repo/old\n", "/repo/old/time.go": "package time\n"}
    later = Condition("later", later_s=YEAR_S)

    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo", files=old)) as sandbox:
            nowhere = suite.model_copy(update={"env": {"PATH": "/nowhere"}})
            assert not await dates(sandbox, nowhere)
            await sandbox.exec(["chmod", "+x", "/repo/old/go"])
            assert not await dates(sandbox, suite)
            with pytest.raises(EnvironmentFailure, match=r"cannot be shifted.*go 1\.16"):
                await run_suite_under(sandbox, suite, later)
            measured = await measure_suite(sandbox, project, conditions=(later,))
            assert (measured.dated, [name for name, _ in measured.runs]) == (False, ["plain", "plain"])

    run_in_backend(body)


def test_a_test_that_only_a_later_run_has_is_deselected(run_in_backend: Callable[..., None]) -> None:
    count = "seen=$(cat seen 2>/dev/null || echo 1); echo $((seen + 1)) > seen"
    line = f"{count}; echo 1..$((seen > 1 ? 5 : 4)); for n in 1 2 3 4; do echo ok $n - t$n; done; "
    line += "if [ $seen -gt 1 ]; then echo ok 5 - late; fi"
    suite = Suite.model_validate({"language": "c", "test": line, "reader": "tap", "source": ("*.c",)})
    project = projects(language="c")[0].model_copy(update={"suite": suite, "canaries": ()})

    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            measured = await measure_suite(sandbox, project)
            assert measured.tests == ("t1", "t2", "t3", "t4")
            assert measured.suite.deselect == {"late": "does not pass every time: not run (plain)"}

    run_in_backend(body)


def test_a_toolchain_whose_clock_is_not_known_is_a_failure_and_no_certificate() -> None:
    old = "package time\n\nfunc Now() Time {\n\tsec, nsec, mono := now()\n\treturn Time{}\n}\n"
    assert later_text(old, 5) == old.replace("now()\n", "now()\n\tsec += 5\n")
    new = old.replace("\tsec,", "\t// a line above\n\tsec,").replace(" now()", " runtimeNow()")
    assert later_text(new, 5) == new.replace("runtimeNow()\n", "runtimeNow()\n\tsec += 5\n")
    assert later_text(old.replace("sec, nsec, mono := now()", "return walltime()"), 5) is None


@pytest.mark.slow
def test_a_certified_task_says_what_was_run_and_a_changed_one_does_not_load(
    tmp_path: Path,
    run_in_backend: Callable[[Callable[[SandboxBackend], Awaitable[None]]], None],
    money_project: Callable[[Path], Project],
) -> None:
    project = money_project(tmp_path)

    async def body(backend: SandboxBackend) -> None:
        plan, journal, counts = Plan(per_package=1, certify=True), tmp_path / "money.journal", Yield()
        made = make_suite_tasks(project, backend, plan, counts=counts, cache=tmp_path, journal=journal)
        (task,) = [one async for one in made]
        found_before = journal.read_bytes()
        again = Yield()
        made = make_suite_tasks(project, backend, plan, counts=again, cache=tmp_path, journal=journal)
        assert [one async for one in made] == [task], "a build that goes on gives the same"
        assert (counts.verdicts, counts.tasks) == (again.verdicts, 1)
        assert again.seconds > counts.seconds == 0, "what the first took counts"
        assert journal.read_bytes().startswith(found_before)
        found = certificate_of(task)
        assert found is not None
        zone = "other time zone and date" if clock_library() else "other time zone"
        assert found.gold == {
            "plain": (2, 2),
            zone: (1, 1),
            "busy machine": (1, 1),
            "restored by the answer": (1, 1),
            "graded": (1, 1),
        }
        assert found_before.count(b'"said": "valid"') == journal.read_bytes().count(b'"said"') == 1
        task_s = {"plain": (1, 1), f"{zone}, busy machine": (1, 1), "graded": (1, 1)}
        assert found.untouched == task_s, "node takes no other order"
        assert "node" in found.versions
        assert not found.network
        guards = {**task.metadata["guards"], "twins": []}
        with pytest.raises(ValueError, match="changed afterwards"):
            certificate_of(task.model_copy(update={"metadata": {**task.metadata, "guards": guards}}))
        assert isinstance(await certified_again(task, backend), Task)
        swapped = {"fail_to_pass": task.metadata["pass_to_pass"], "pass_to_pass": task.metadata["fail_to_pass"]}
        wrong = task.model_copy(update={"metadata": {**task.metadata, **swapped}})
        assert "failing tests pass" in str(await certified_again(wrong, backend))
        unrepaired = {"gold": {"patch": "--- /dev/null\n+++ b/notes.js\n@@ -0,0 +1 @@\n+// repairs nothing\n"}}
        wrong = task.model_copy(update={"metadata": {**task.metadata, **unrepaired}})
        assert "repaired, it fails" in str(await certified_again(wrong, backend))
        foreign = task.model_copy(update={"metadata": {**task.metadata, "test_patch": "--- a/x\n"}})
        assert "test patch does not apply" in str(await certified_again(foreign, backend))

    run_in_backend(body)
