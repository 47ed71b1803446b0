import pytest
from envgym_environments.code_repair.baseline import Baseline, measure, package_world
from envgym_environments.code_repair.describe import restore
from envgym_environments.code_repair.factory import (
    Candidate,
    Plan,
    Verdict,
    Yield,
    find_candidates,
    make_tasks,
    validate,
)
from envgym_environments.code_repair.operators import Mutation, candidates
from envgym_environments.code_repair.runner import WORKDIR, Layout, run_tests
from envgym_environments.code_repair.sources import layout_of, source_tree

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(120)]
PLAN = Plan(per_package=12, per_function=6)


def made(small, cache, in_backend, plan=PLAN):
    tasks, counts = [], Yield()

    async def body(backend) -> None:
        async for task in make_tasks(small, backend, plan, counts=counts, cache=cache):
            tasks.append(task)

    in_backend(body)
    return tasks, counts


@pytest.mark.slow
def test_every_task_fails_as_it_says_and_its_gold_repairs_it(small, cache, in_backend) -> None:
    tasks, counts = made(small, cache, in_backend)
    assert len(tasks) == PLAN.per_package == counts.valid
    assert len({task.id for task in tasks}) == len(tasks)

    async def check(backend) -> None:
        for task in tasks[:4]:
            async with await backend.create(task.world) as sandbox:
                layout, gold = Layout.of(task), task.metadata["gold"]
                broken = await run_tests(sandbox, layout)
                assert list(broken.failing) == task.metadata["fail_to_pass"]
                assert set(task.metadata["pass_to_pass"]) <= set(broken.passing)
                text = (await sandbox.read(gold["path"])).decode()
                await sandbox.write(gold["path"], restore(text, gold).encode())
                assert (await run_tests(sandbox, layout)).ok

    in_backend(check)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(small, cache, in_backend) -> None:
    first, _ = made(small, cache, in_backend)
    again, _ = made(small, cache, in_backend, Plan(per_package=12, per_function=6, in_flight=1))
    other, _ = made(small, cache, in_backend, Plan(per_package=12, per_function=6, seed=1))
    assert [task.id for task in first] == [task.id for task in again]
    assert [task.id for task in first] != [task.id for task in other]


@pytest.mark.slow
def test_neither_prompt_nor_world_holds_the_answer(small, cache, in_backend) -> None:
    tasks, _ = made(small, cache, in_backend)
    pristine = (source_tree(small, cache=cache) / "small.py").read_text()
    for task in tasks:
        assert f"line {task.metadata['line']}" not in task.prompt
        assert pristine not in task.world.files.values()
        cached = [text for name, text in task.world.files.items() if name.endswith(".pyc")]
        assert cached == [""]
        assert f"{WORKDIR}/small.py" in task.world.files


@pytest.mark.slow
def test_no_function_gives_more_than_its_share(small, cache, in_backend) -> None:
    tasks, _ = made(small, cache, in_backend, Plan(per_package=100, per_function=2))
    functions = [task.metadata["function"] for task in tasks]
    assert max(functions.count(name) for name in functions) == 2


def judged(small, cache, in_backend, before: str, after: str, plan=PLAN):
    """The verdict on one hand-made bug."""
    tree = source_tree(small, cache=cache)
    source = (tree / "small.py").read_text()
    at = source.index(before)
    line, column = source[:at].count("\n") + 1, at - (source.rfind("\n", 0, at) + 1)
    mutation = Mutation("by-hand", "f", line, column, line, column + len(before), before, after, line, line)
    found = []

    async def body(backend) -> None:
        async with await backend.create(package_world(tree)) as base:
            baseline = await measure(base, small, layout_of(small, tree))
            covering = baseline.covering("small.py", line, line) or baseline.tests
            found.append(
                await validate(base, baseline, Candidate("small.py", source, mutation, covering), plan=plan, seed=0)
            )
            untouched = await run_tests(base, baseline.layout)
            assert untouched.ok  # nothing done in a fork reaches the base

    in_backend(body)
    return found[0]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("values[-count:]", "values[count:]", Verdict.VALID),
        ("values[-count:]", "values[-count: ]", Verdict.SURVIVED),
        ("def last(", "raise ValueError\ndef last(", Verdict.BREAKS_IMPORT),
        ("return max(", "while True: max(", Verdict.HANGS),
        ("return values[-count:]", "import os; os._exit(3)", Verdict.CRASHES),
        ("return values[-count:]", "import os; return list(values)[-1 - os.urandom(2)[0] % 2:]", None),
    ],
)
def test_verdicts(before, after, verdict, small, cache, in_backend) -> None:
    bug = judged(small, cache, in_backend, before, after)
    if verdict is None:  # a bug that fails at random is flaky, survives, or was lucky four times
        assert bug.verdict in (Verdict.FLAKY, Verdict.SURVIVED, Verdict.VALID)
    else:
        assert bug.verdict is verdict


@pytest.mark.slow
def test_more_repetitions_give_the_same_tasks_where_nothing_is_flaky(small, cache, in_backend) -> None:
    found: list[list[str]] = []

    async def body(backend) -> None:
        for repetitions in (2, 4):
            plan = Plan(per_package=3, repetitions=repetitions)
            found.append([task.id async for task in make_tasks(small, backend, plan, counts=Yield(), cache=cache)])

    in_backend(body)
    assert found[0] == found[1] != []
    with pytest.raises(ValueError, match="repetitions is 1"):
        Plan(repetitions=1)


@pytest.mark.slow
def test_a_bug_that_fails_most_of_the_suite_is_refused(small, cache, in_backend) -> None:
    plan = Plan(max_failing=0.1)
    assert judged(small, cache, in_backend, "max(low", "min(low", plan).verdict is Verdict.FAILS_TOO_MUCH


@pytest.mark.slow
def test_places_that_no_test_executes_are_counted_not_tried(small, cache, in_backend) -> None:
    _, counts = made(small, cache, in_backend)
    text = (source_tree(small, cache=cache) / "small.py").read_text()
    never = [mutation for mutation in candidates(text) if mutation.function == "never"]
    assert never
    assert counts.uncovered >= len(never)


def test_tests_that_lie_inside_the_package_are_never_broken(small, tmp_path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("code.py", "test_code.py", "checks.py"):
        (tmp_path / "pkg" / name).write_text("def f(a, b):\n    return a + b\n")
    covers = {f"pkg/{name}": {2: ["t"]} for name in ("code.py", "test_code.py", "checks.py")}
    layout = Layout(package="pkg", tests=("pkg/test_code.py", "pkg/checks.py"))
    baseline = Baseline(small, layout, ("t",), {"t": 0.1}, covers, {}, 0.1)
    found = find_candidates(tmp_path, baseline, Plan(), Yield())
    assert {candidate.path for candidate in found} == {"pkg/code.py"}
