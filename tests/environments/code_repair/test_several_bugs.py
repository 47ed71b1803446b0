"""Tasks with several mistakes, certificates, and the index that makes a set again."""

import json
import lzma
from functools import partial
from pathlib import Path

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.combine import Pool, apart, interacting, own_tests, together
from envgym_environments.code_repair.describe import restore, restored
from envgym_environments.code_repair.difficulty import PassRate, with_rate
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.factory import Plan, Yield, make_tasks
from envgym_environments.code_repair.index import read_index, rebuild, write_index
from envgym_environments.code_repair.issue import issue_of
from envgym_environments.code_repair.judge import Bug, Candidate, Verdict
from envgym_environments.code_repair.operators import candidates
from envgym_environments.code_repair.recheck import certified_again
from envgym_environments.code_repair.sources import Package, source_tree
from envgym_environments.code_repair.taskset import load_tasks, write_tasks
from envgym_environments.code_repair.trials import world_text
from typer.testing import CliRunner

from envgym.messages import Action
from envgym.task import Task, TaskSet
from envgym.testing.check_task import check_task
from envgym.testing.fakes import ScriptedAgent

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(180)]
SOURCE = "def f(a, b):\n    return a + b\n\n\ndef g(a, b):\n    c = a < b\n    return c\n"
FOUND = candidates(SOURCE)


def candidate(name: str, line: int, path: str = "a.py") -> Candidate:
    return next(Candidate(path, SOURCE, one, ("t",)) for one in FOUND if (one.operator, one.line) == (name, line))


def test_distance_is_function_file_or_package() -> None:
    plus, less, back = candidate("arithmetic", 2), candidate("compare-flip", 6), candidate("return-value", 7)
    elsewhere = candidate("arithmetic", 2, "b.py")
    for distance, close, same, other in (
        ("function", True, False, False),
        ("file", False, True, False),
        ("package", False, False, True),
    ):
        plan = Plan(bugs=2, distance=distance)
        assert apart(less, back, plan) is close
        assert apart(plus, back, plan) is same
        assert apart(plus, elsewhere, plan) is other
    touching = candidate("swap-arguments", 6) if any(one.operator == "swap-arguments" for one in FOUND) else less
    assert not apart(less, touching, Plan(bugs=2, distance="function"))


def test_each_bug_needs_a_test_of_its_own() -> None:
    one, other = candidate("arithmetic", 2), candidate("compare-flip", 6)
    first = Bug(one, Verdict.VALID, failing=("t", "u"))
    assert own_tests([first, Bug(other, Verdict.VALID, failing=("u", "v"))]) == [{"t"}, {"v"}]
    second = Bug(other, Verdict.VALID, failing=("u",))
    assert own_tests([first, second]) == [{"t"}, set()]
    assert not interacting([first, second], ["u", "t"])
    assert interacting([first, second], ["t"])  # together they fail less
    pool = Pool(Plan(bugs=2))
    assert pool.add(first) == ()
    assert pool.add(second) == ()  # it has no test of its own
    third = Bug(other, Verdict.VALID, failing=("w",))
    assert pool.add(third) == (third, first)
    assert pool.add(third) == ()  # a bug is part of one task at most
    assert together([third, first], ["w", "t"]).parts == (one, other)


@pytest.mark.parametrize("bugs", [0, 6])
def test_a_plan_of_no_mistake_or_too_many_is_refused(bugs) -> None:
    with pytest.raises(ValueError, match=f"bugs is {bugs}"):
        Plan(bugs=bugs)


def made(small, cache, in_backend, plan: Plan):
    tasks, counts = [], Yield()

    async def body(backend) -> None:
        async for task in make_tasks(small, backend, plan, counts=counts, cache=cache):
            tasks.append(task)

    in_backend(body)
    assert counts.tasks == len(tasks)
    return tasks


@pytest.mark.slow
def test_a_task_of_two_bugs_is_repaired_by_both_repairs_and_by_neither_alone(small, cache, in_backend) -> None:
    tasks = made(small, cache, in_backend, Plan(per_package=2, bugs=2, distance="file", max_failing=0.9))
    assert len(tasks) == 2

    async def body(backend) -> None:
        for task in tasks:
            gold = task.metadata["gold"]
            assert (len(gold["bugs"]), task.metadata["bugs"]) == (2, 2)
            assert "There are 2 mistakes" in task.prompt
            broken = world_text(task.world, "small.py")
            whole = restored(task, partial(world_text, task.world))
            assert whole == {"small.py": (cache / world_source(task) / "small.py").read_text()}
            env = CodeRepair(task, backend)
            try:
                await env.reset(seed=0)
                for index, place in enumerate(gold["bugs"]):
                    if index == 0:  # the first place counts in the broken file too
                        halfway = patch_of(broken, restore(broken, place))
                        assert (await env.grader.grade(task, halfway)).channels["resolved"] == 0.0
                assert (await env.grader.grade(task, gold["patch"])).channels["resolved"] == 1.0
                assert (await env.grader.grade(task, "")).channels["resolved"] == 0.0
            finally:
                await env.close()

    in_backend(body)


def world_source(task):
    return task.world.trees[0].source


def patch_of(before: str, after: str) -> str:
    from envgym_environments.code_repair.patch import make_patch

    return make_patch({"small.py": before}, {"small.py": after})


@pytest.mark.slow
def test_the_conformance_kit_accepts_several_bugs_with_the_full_tools(small, cache, in_backend) -> None:
    (task,) = made(small, cache, in_backend, Plan(per_package=1, bugs=2, distance="file", max_failing=0.9))
    text = restored(task, partial(world_text, task.world))["small.py"]
    command = f"cat > small.py <<'END'\n{text}END"
    calls = [Action.call("shell", command=command), Action.call("submit")]

    async def body(backend) -> None:
        await check_task(
            TaskSet([task]),
            lambda one: CodeRepair(one, backend),
            lambda one, seed: ScriptedAgent(calls),
            idle=lambda one, seed: ScriptedAgent([Action.call("submit")]),
            seeds=(0,),
        )

    in_backend(body)


def test_three_levels_say_less_and_less_and_never_where() -> None:
    metadata = {
        "package": "small", "version": "1.0", "tests": 8, "bugs": 1, "layout": {"package": "small"},
        "functions": ["Box.window"], "fail_to_pass": ["tests/test_a.py::test_b", "tests/test_a.py::test_c"],
        "errors": {
            "tests/test_a.py::test_b": "TypeError: Box.window() takes 2 arguments",
            "tests/test_a.py::test_c": "AssertionError: assert [1] == [2]",
        },
        "depths": {"tests/test_a.py::test_b": 1, "tests/test_a.py::test_c": 0},
        "gold": {"bugs": [{"path": "small/boxes.py"}]},
    }  # fmt: skip
    texts = {level: issue_of(metadata | {"issue": level}) for level in ("full", "short", "symptom")}
    for text in texts.values():
        assert "window" not in text
        assert "boxes" not in text
        assert "one mistake" in text
    assert "tests/test_a.py::test_b" in texts["full"]
    assert "with AssertionError, test_c for one" in texts["short"]
    after_the_place = {
        "tests/test_a.py::test_window": "IndexError: no",
        "tests/test_a.py::test_c": "IndexError: no",
    }
    named = metadata | {"issue": "short", "fail_to_pass": list(after_the_place), "errors": after_the_place}
    assert "with IndexError, test_c for one" in issue_of(named)
    alone = named | {"fail_to_pass": ["tests/test_a.py::test_window"]}
    assert "A test of small fails since the last change, with IndexError. There" in issue_of(alone)
    assert len(texts["short"]) < len(texts["full"])
    assert "test_b" not in texts["symptom"]
    assert "raises TypeError: ...() takes 2 arguments" in texts["symptom"]
    assert "a result is wrong: assert [1] == [2]" in texts["symptom"]
    with pytest.raises(ValueError, match="issue is 'none'"):
        issue_of(metadata | {"issue": "none"})


@pytest.mark.slow
def test_a_certified_set_says_what_was_run_and_a_changed_task_is_refused(small, cache, in_backend) -> None:
    tasks = made(small, cache, in_backend, Plan(per_package=2, certify=True))
    for task in tasks:
        found = certificate_of(task)
        assert found is not None
        assert sum(found.gold["plain"]) == 4
        assert len(found.gold) == 7
        assert (found.gold["graded"], found.untouched["graded"]) == ((1, 1), (1, 1))
        assert {good == of for good, of in (*found.gold.values(), *found.untouched.values())} == {True}
        assert any("hash seed, time zone and date" in name for name in found.untouched)
        assert (found.network, found.runs) == (False, 4 + 8)
    path = cache / "tasks.jsonl"
    write_tasks(tasks, path, cache=cache)
    assert list(load_tasks(path, cache=cache)) == tasks
    lists = tasks[0].metadata | {"pass_to_pass": []}
    write_tasks([tasks[0].model_copy(update={"metadata": lists})], path, cache=cache)
    with pytest.raises(ValueError, match="changed afterwards"):
        load_tasks(path, cache=cache)
    wrong = json.loads(json.dumps(tasks[0].metadata))
    wrong["certificate"]["untouched"]["plain"] = [1, 2]
    write_tasks([tasks[0].model_copy(update={"metadata": wrong})], path, cache=cache)
    with pytest.raises(ValueError, match="1 good of 2 runs of untouched under 'plain'"):
        load_tasks(path, cache=cache)

    async def body(backend) -> None:
        assert isinstance(await certified_again(tasks[0], backend), Task)
        other = tasks[0].metadata | {"fail_to_pass": list(tasks[0].metadata["pass_to_pass"])[:1]}
        assert "1 failing tests pass" in str(
            await certified_again(tasks[0].model_copy(update={"metadata": other}), backend)
        )

    in_backend(body)


LOOSE = """class Answer:
    def __init__(self, right):
        self.right = right

    def __eq__(self, other):
        return self.right


def ask(number):
    return Answer(number == 3)
"""


@pytest.mark.slow
def test_a_task_that_the_grader_does_not_believe_gets_no_certificate(tmp_path, write_sdist, in_backend) -> None:
    cache = tmp_path / "cache"
    (cache / "sdists").mkdir(parents=True)
    written = cache / "sdists" / "loose.tar.gz"
    tests = (
        "from loose import ask\n\ndef test_ask():\n    assert ask(3) == 9\n\ndef test_other():\n    assert True\n"
    )
    digest = write_sdist(written, {"loose-1.0/loose.py": LOOSE, "loose-1.0/tests/test_loose.py": tests})
    loose = Package(name="loose", version="1.0", sha256=digest, package="loose.py", tests=("tests/test_*.py",))
    written.rename(cache / "sdists" / f"{loose.slug}-{digest[:16]}.tar.gz")
    counts = Yield()

    async def body(backend) -> None:
        assert [task async for task in make_tasks(loose, backend, Plan(), counts=Yield(), cache=cache)]
        plan = Plan(certify=True)
        assert [task async for task in make_tasks(loose, backend, plan, counts=counts, cache=cache)] == []

    in_backend(body)
    assert (counts.tasks, counts.valid) == (0, 0)
    assert sum(found[Verdict.NOT_RESTORED] for found in counts.verdicts.values()) > 0


@pytest.mark.slow
def test_a_set_is_made_again_from_its_index_byte_by_byte(small, cache, in_backend) -> None:
    one = made(small, cache, in_backend, Plan(per_package=2, certify=True, issue="symptom"))
    two = made(small, cache, in_backend, Plan(per_package=1, bugs=2, max_failing=0.9))
    path, index = cache / "tasks.jsonl", cache / "index.jsonl"
    one[0] = with_rate(one[0], PassRate(1, 4, ("lm",)))
    digest = write_tasks([*one, *two], path, cache=cache)
    write_index([*one, *two], index, recipe=[small])
    lines = [line.strip() for line in (source_tree(small, cache=cache) / "small.py").read_text().splitlines()]
    assert not [line for line in lines if len(line) > 12 and line in index.read_text()]  # no code in it
    again = rebuild(index, cache=cache)
    assert again == [*one, *two]
    assert write_tasks(again, cache / "again.jsonl", cache=cache) == digest
    packed = cache / "index.jsonl.xz"
    write_index([*one, *two], packed, recipe=[small])
    assert read_index(packed) == read_index(index)
    assert packed.stat().st_size < index.stat().st_size
    command = ["rebuild", str(packed), "--file", str(cache / "third.jsonl")]
    told = CliRunner().invoke(tasks_command, command, env={"ENVGYM_CACHE": str(cache)})
    assert digest in told.output
    damaged = index.read_text().replace(one[0].metadata["digests"][0], "0123456789")
    index.write_text(damaged)
    with pytest.raises(ValueError, match="not made by the operators of this version"):
        rebuild(index, cache=cache)
    index.write_text(damaged.rpartition("\n{")[0] + "\n")
    with pytest.raises(ValueError, match="announces"):
        rebuild(index, cache=cache)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", b""),
        ("a.jsonl", b"\xff\n"),
        ("a.jsonl", b'{"format": "another", "count": 0}\n'),
        ("a.jsonl.xz", b'{"format": "envgym code-repair index 1", "count": 0}\n'),
        ("a.jsonl.xz", lzma.compress(b'{"format": "envgym code-repair index 1", "count": 0}\n')[:-9]),
        ("a.jsonl.xz", lzma.compress(b'{"format": "envgym code-repair index 1", "count": 3}\n')),
    ],
)
def test_a_file_that_is_no_index_is_named(name: str, data: bytes, tmp_path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is not an index of code-repair tasks"):
        rebuild(tmp_path / name)


def test_a_task_of_another_source_has_no_place_in_an_index(broken, tmp_path) -> None:
    with pytest.raises(ValueError, match="not of the factory"):
        write_index([broken], tmp_path / "index.jsonl", recipe=[])


@pytest.mark.slow
def test_the_compact_tools_take_as_many_edits_as_there_are_mistakes(broken, in_backend) -> None:
    tree = Path(broken.world.trees[0].source)
    text = (tree / "small.py").read_text()
    (tree / "small.py").write_text(text.replace("max(low, min(", "min(low, min("))
    place = "tests/test_small.py"
    clamps = [f"{place}::test_clamp[{given}]" for given in ("5-3", "2-2")]
    failing = [*broken.metadata["fail_to_pass"], *clamps]
    metadata = broken.metadata | {"bugs": 2, "fail_to_pass": failing, "errors": {}}
    task = broken.model_copy(update={"metadata": metadata})

    async def body(backend) -> None:
        env = CodeRepair(task, backend, tools="compact")
        await env.reset(seed=0)

        async def do(call: str):
            return await env.step(Action.say(call))

        async def mend(part: str, wanted: str):
            """Open the line that holds `part` and apply the fix that makes `wanted` of it."""
            row = next(row for row in listed.text.split("\n") if part in row)
            step = await do(f"suggest {row.split(' ')[0]}")
            for name in [one for one in step.legal if one.startswith("apply ")]:
                step = await do(name)
                if step.text == f"edited: {wanted}":
                    return step
                await do("revert")
            raise AssertionError(f"no fix makes {wanted!r}")

        listed = await do("localise")
        one = await mend("result -= value", "result += value")
        assert {"test", "revert", "submit"} < set(one.legal)  # and there is room for another edit
        failed = await do("test")
        assert failed.text.startswith("fail ")
        both = await mend("min(low", "return max(low, min(value, high))")
        assert both.legal == ("test", "revert", "submit")
        start = await env.snapshot()
        again = CodeRepair(task, backend, tools="compact")
        assert (await again.reset(seed=0, start=start)).legal == both.legal
        back = await do("revert")
        assert back.state_key == failed.state_key
        await mend("min(low", "return max(low, min(value, high))")
        assert (await do("test")).text.startswith("pass ")
        assert (await do("submit")).reward == 1.0

    in_backend(body)
