import asyncio
import gc
import subprocess

import pytest
from envgym_environments.code_repair.fresh import over
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch, parse_patch
from envgym_environments.code_repair.trials import Trials
from hypothesis import example, given
from hypothesis import strategies as st

from envgym.errors import GraderFailure, SandboxDied
from envgym.sandbox import SandboxBackend
from envgym.task import Task, World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]


async def grade(task: Task, backend: SandboxBackend, **changed: str | None) -> dict[str, float]:
    """The channels for the task's files after the given replacements: name with __ for a slash -> old=>new."""
    trials = Trials(task, backend, Memo())
    before, after = {}, {}
    for key, change in changed.items():
        path = key.replace("__", "/") + ".py"
        before[path] = await trials.source(path)
        old, _, new = (change or "").partition("=>")
        after[path] = None if change is None else (before[path] or "").replace(old, new) if old else new
    found = await CodeRepairGrader(backend, memo=Memo()).grade(task, make_patch(before, after))
    return found.channels


def test_what_ran_beside_a_grade_is_over_and_no_error_of_it_is_left_unheard() -> None:
    unheard, ended = [], []

    async def fails() -> None:
        raise GraderFailure("the second error")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        for made in (fails(), waits()):
            beside = asyncio.ensure_future(made)
            await asyncio.sleep(0.01)
            await over(beside)
            assert beside.done()
            del beside
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(body())
    assert (unheard, ended) == ([], [True])


def test_the_repair_is_resolved_and_nothing_is_not(broken, in_backend) -> None:
    async def body(backend) -> None:
        good = await grade(broken, backend, small="-= value=>+= value")
        assert (good["reward"], good["resolved"], good["f2p"], good["p2p"]) == (1.0, 1.0, 1.0, 1.0)
        nothing = await grade(broken, backend)
        assert (nothing["reward"], nothing["f2p"]) == (0.0, 0.0)

    in_backend(body)


def test_a_repair_that_breaks_another_test_is_not_resolved(broken, in_backend) -> None:
    async def body(backend) -> None:
        found = await grade(broken, backend, small="-= value=>+= value\n\n\ndef last(*a): return 0\n#")
        assert found["resolved"] == 0.0

        trials = Trials(broken, backend, Memo())
        source = await trials.source("small.py") or ""
        text = source.replace("-= value", "+= value").replace("values[-count:]", "values[:count]")
        patch = make_patch({"small.py": source}, {"small.py": text})
        found = (await CodeRepairGrader(backend, memo=Memo()).grade(broken, patch)).channels
        assert (found["resolved"], found["f2p"]) == (0.0, 1.0)
        assert 0.0 < found["p2p"] < 1.0

    in_backend(body)


@pytest.mark.slow
def test_changed_tests_and_test_configuration_do_not_count(broken, in_backend) -> None:
    async def body(backend) -> None:
        cheat = await grade(broken, backend, tests__test_small="assert total=>assert True or total")
        assert (cheat["resolved"], cheat["stripped"], cheat["f2p"]) == (0.0, 1.0, 0.0)
        plugin = "=>import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call(item):\n    yield\n"
        cheat = await grade(broken, backend, conftest=plugin)
        assert (cheat["resolved"], cheat["stripped"]) == (0.0, 1.0)
        both = await grade(broken, backend, small="-= value=>+= value", tests__test_small=None)
        assert (both["resolved"], both["stripped"]) == (1.0, 1.0)

    in_backend(body)


def test_nothing_that_the_failing_tests_wrote_is_there_when_the_whole_suite_runs(broken, in_backend) -> None:
    mark = "import os\n    open('mark', 'a').write(str(os.getpid()) + ' ')"
    wrong = "\n    result += len(set(open('mark').read().split())) > 1"

    async def body(backend) -> None:
        trials = Trials(broken, backend, Memo())
        source = await trials.source("small.py") or ""
        text = source.replace("    result = start", f"    {mark}\n    result = start")
        text = text.replace("-= value", "+= value")
        text = text.replace("    return result", f"{wrong}\n    return result")
        patch = make_patch({"small.py": source}, {"small.py": text})
        found = (await CodeRepairGrader(backend, memo=Memo()).grade(broken, patch)).channels
        assert (found["resolved"], found["f2p"], found["p2p"]) == (1.0, 1.0, 1.0)

    in_backend(body)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import pytest; pytest.skip('not today', allow_module_level=True)",
        "import pytest; pytest.exit('done', returncode=0)",
    ],
)
def test_code_that_ends_or_skips_the_tests_is_not_resolved(code: str, broken, in_backend) -> None:
    async def body(backend) -> None:
        found = await grade(broken, backend, small=f"    result = start=>    {code}\n    result = start")
        assert (found["reward"], found["f2p"]) == (0.0, 0.0)

    in_backend(body)


@pytest.mark.slow
def test_a_hang_is_the_agents_outcome(broken, in_backend) -> None:
    async def body(backend) -> None:
        found = await grade(broken, backend, small="    result = start=>    while True: pass\n    result = start")
        assert (found["reward"], found["timeout"]) == (0.0, 1.0)

    in_backend(body)


@pytest.mark.parametrize(
    "patch",
    ["no diff at all", "--- a/small.py\n", "--- a/small.py\n+++ b/small.py\n@@ -1,1 +1,1 @@\n-wrong\n+right\n",
     "--- a/small.py\n+++ b/small.py\n@@ -1,9 +1,9 @@\n+x\n", "--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n"],
)  # fmt: skip
def test_a_patch_that_does_not_apply_is_scored_as_malformed(patch: str, broken, in_backend) -> None:
    async def body(backend) -> None:
        found = (await CodeRepairGrader(backend, memo=Memo()).grade(broken, patch)).channels
        assert found["reward"] == 0.0
        assert found["malformed"] + found["stripped"] == 1.0

    in_backend(body)


class DyingBackend:
    """Gives no sandbox: what a host does that is out of memory."""

    name = "dying"

    async def create(self, world: World) -> None:
        raise SandboxDied("no memory is left for a sandbox")


def test_a_dead_sandbox_is_a_failure_and_never_a_verdict_and_is_not_remembered(broken, in_backend) -> None:
    async def body(backend) -> None:
        memo = Memo()
        with pytest.raises(GraderFailure, match="small/total"):
            await CodeRepairGrader(DyingBackend(), memo=memo).grade(broken, "")  # type: ignore[arg-type]
        assert (await CodeRepairGrader(backend, memo=memo).grade(broken, "")).reward == 0.0
        assert (await CodeRepairGrader(DyingBackend(), memo=memo).grade(broken, "")).reward == 0.0  # type: ignore[arg-type]

    in_backend(body)


# The clock on the wall is put away: on a busy machine it may strike first
SPINS = "import signal; signal.setitimer(signal.ITIMER_REAL, 0)\n    while True: pass"


@pytest.mark.slow
@pytest.mark.parametrize(("stuck", "kept"), [(SPINS, 1), ("import time; time.sleep(999)", 0)])
def test_a_verdict_is_written_unless_the_clock_on_the_wall_decided_it(
    stuck, kept, broken, in_backend, tmp_path
) -> None:
    async def body(backend) -> None:
        tried, graded = Memo(tmp_path / "tried"), Memo(tmp_path / "graded")
        trials = Trials(broken, backend, tried)
        source = await trials.source("small.py") or ""
        text = source.replace("    result = start", f"    {stuck}")
        verdict = await trials.verdict({"small.py": text})
        assert (verdict.passed, verdict.timed_out, verdict.error) == (False, True, "TestDeadline")
        patch = make_patch({"small.py": source}, {"small.py": text})
        found = (await CodeRepairGrader(backend, memo=graded).grade(broken, patch)).channels
        assert (found["reward"], found["timeout"]) == (0.0, 1.0)
        assert [len(tried), len(graded)] == [1, 1]
        assert [len(Memo(tmp_path / name)) for name in ("tried", "graded")] == [kept, kept]

    in_backend(body)


TEXT = st.text(st.sampled_from("ab\n -+@\\é"), max_size=30)


@given(TEXT, TEXT)
def test_a_patch_brings_the_old_text_to_the_new_one(old: str, new: str) -> None:
    from envgym_environments.code_repair.patch import apply_patch

    patch = make_patch({"x.py": old}, {"x.py": new})
    parts = parse_patch(patch)
    assert len(parts) == (old != new)
    for part in parts:
        assert apply_patch(part, old) == new


PARTS = ["a", "b/", "é", "\n", "\t", "\r", '"', "\\", " ", "--- ", "+++ ", "@@", "\x01", "\x7f", "1"]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=8).map("".join)


@given(NAMES)
@example("z\n--- a/x.py")
@example("/dev/null")
@example("a/b")
def test_a_patch_names_any_file_and_only_those_it_changes(name: str) -> None:
    from envgym_environments.code_repair.answer import named_paths
    from envgym_environments.code_repair.patch_text import patch_paths

    patch = make_patch({name: "1\n", "small.py": None}, {name: "2\n", "small.py": "x\n"})
    assert sorted(part.path for part in parse_patch(patch)) == sorted({name, "small.py"})
    assert {path for _, path in patch_paths(patch)} == {name, "small.py"}
    assert name in named_paths(patch) or name.startswith("/") or ".." in name


def test_git_and_patches_read_the_same_names(tmp_path) -> None:
    names = ["plain.py", "z\n--- a", 'qu"ote\\.py', "é\t.py", " led.py", "trailing "]
    for name in names:
        (tmp_path / name).write_text("1\n")
    patch = make_patch(dict.fromkeys(names, "1\n"), dict.fromkeys(names, "2\n"))
    subprocess.run(["git", "apply"], input=patch.encode(), cwd=tmp_path, check=True)
    assert {name: (tmp_path / name).read_text() for name in names} == dict.fromkeys(names, "2\n")


def test_a_file_is_created_and_deleted_by_a_patch() -> None:
    from envgym_environments.code_repair.patch import apply_patch

    (created,) = parse_patch(make_patch({"x.py": None}, {"x.py": "a\n"}))
    assert apply_patch(created, None) == "a\n"
    (deleted,) = parse_patch(make_patch({"x.py": "a\n"}, {"x.py": None}))
    assert apply_patch(deleted, "a\n") is None


CASES = """import unittest
from small import total


class Above:
    def test_above(self):
        self.assertEqual(total([1, 2]), 3)


class TotalTests(Above, unittest.TestCase):
    def test_total(self):
        found = total([1, None, 2])
        self.assertEqual(found, 3)
        for start in (1, 2):
            with self.subTest(start):
                self.assertEqual(total([1], start), start + 1)

    def test_early(self):
        if total([2, 2]) == 4:
            return
        self.fail("not four")

    def test_frames(self):
        import sys
        self.assertEqual(sys._getframe(1).f_code.co_filename.rpartition("/")[2], "case.py")
        self.assertEqual(total([5]), 5)
"""


@pytest.mark.slow
def test_unittests_that_inherit_return_early_or_cannot_be_disguised_are_graded(
    broken, in_backend, tmp_path
) -> None:
    place = "tests/test_small.py"
    (tmp_path / "broken" / "tests" / "test_small.py").write_text(CASES)
    names = ("test_above", "test_total", "test_early", "test_frames")
    wrong = (tmp_path / "broken" / "small.py").read_text()
    gold = make_patch({"small.py": wrong}, {"small.py": wrong.replace("-= value", "+= value")})
    metadata = {
        **broken.metadata,
        "fail_to_pass": [f"{place}::TotalTests::{name}" for name in names],
        "pass_to_pass": [],
        "tests": 4,
        "gold": {"patch": gold},
    }
    task = broken.model_copy(update={"metadata": metadata})

    async def body(backend) -> None:
        for patch, resolved in ((gold, 1.0), ("", 0.0)):
            for _ in range(2):
                found = (await CodeRepairGrader(backend, memo=Memo()).grade(task, patch)).channels
                assert (found["resolved"], found["f2p"], found["voided"]) == (resolved, resolved, 0.0)

    in_backend(body)


@pytest.mark.slow
def test_tests_that_take_their_functions_from_another_file_in_disguise_are_graded(
    broken, in_backend, tmp_path
) -> None:
    above = (
        "import unittest\nfrom small import total\n\n\nclass Sums(unittest.TestCase):\n"
        "    def test_sum(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    )
    below = "from tests.test_above import Sums\n\n\nclass Again(Sums):\n    start = 3\n"
    tree = tmp_path / "broken"
    for name, text in (("__init__", ""), ("test_above", above), ("test_below", below)):
        (tree / "tests" / f"{name}.py").write_text(text)
    wrong = (tree / "small.py").read_text()
    gold = make_patch({"small.py": wrong}, {"small.py": wrong.replace("-= value", "+= value")})
    layout = {**broken.metadata["layout"], "tests": ["tests/test_above.py", "tests/test_below.py"]}
    metadata = {
        **broken.metadata,
        "layout": layout,
        "fail_to_pass": ["tests/test_above.py::Sums::test_sum", "tests/test_below.py::Again::test_sum"],
        "pass_to_pass": [],
        "tests": 3,
        "gold": {"patch": gold},
    }
    task = broken.model_copy(update={"metadata": metadata})

    async def body(backend) -> None:
        for patch, resolved in ((gold, 1.0), ("", 0.0)):
            found = (await CodeRepairGrader(backend, memo=Memo()).grade(task, patch)).channels
            assert (found["resolved"], found["f2p"], found["voided"]) == (resolved, resolved, 0.0)

    in_backend(body)
