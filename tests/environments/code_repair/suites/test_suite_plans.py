"""Several mistakes a task, three levels of specificity, a writer's functions: in other languages than Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from envgym_environments.code_repair.certify import certificate_of
from envgym_environments.code_repair.cli import tasks_command
from envgym_environments.code_repair.describe import restored
from envgym_environments.code_repair.factory import Plan, Yield
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.operators import apply
from envgym_environments.code_repair.rewrite.candidates import Rewrite, questions
from envgym_environments.code_repair.rewrite.writer import Writer
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites.issue import issue_of_suite, told_by_people
from envgym_environments.code_repair.suites.make import make_suite_tasks
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.syntax.functions import replaced_in, targets_in
from envgym_environments.code_repair.trials import world_text
from typer.testing import CliRunner

from envgym.env import Step
from envgym.messages import Action
from envgym.policy import Reply
from envgym.sandbox import SandboxBackend
from envgym.task import Task

pytestmark = [pytest.mark.timeout(300)]

FUNCTIONS = {
    "javascript": (
        "const a = 1\n/** Adds. */\nfunction add (x, y) {\n  // both\n  const sum = x + y\n  return sum\n}\n",
        "function add (x, y) {\n  return x - y\n}",
    ),
    "typescript": (
        "export class Box<T> {\n    public add(x: number, y = 1): number {\n        const sum = x + y;\n"
        "        return sum;\n    }\n}\n",
        "public add(x: number, y = 1): number {\n    return x - y;\n}",
    ),
    "go": (
        "package a\n\nfunc (b *Box) Add(x, y int) int {\n\tsum := x + y\n\treturn sum\n}\n",
        "func (b *Box) Add(x, y int) int {\n\treturn x - y\n}",
    ),
    "rust": (
        "impl Box {\n    pub fn add(&self, x: i32, y: i32) -> i32 {\n        let sum = x + y;\n"
        "        sum\n    }\n}\n",
        "pub fn add(&self, x: i32, y: i32) -> i32 {\n    x - y\n}",
    ),
    "java": (
        "class Box {\n    @Override\n    public int add(int x, int y) throws Odd {\n        int sum = x + y;\n"
        "        return sum;\n    }\n}\n",
        "@Override\npublic int add(int x, int y) throws Odd {\n    return x - y;\n}",
    ),
    "c": (
        "#include <a.h>\n\nstatic int add(int x, int y)\n{\n    int sum = x + y;\n    return sum;\n}\n",
        "static int add(int x, int y)\n{\n    return x - y;\n}",
    ),
    "c++": (
        "namespace a {\ntemplate <typename T>\nT Box<T>::add(T x, T y) const {\n  T sum = x + y;\n"
        "  return sum;\n}\n}\n",
        "template <typename T>\nT Box<T>::add(T x, T y) const {\n  return x - y;\n}",
    ),
}


@pytest.mark.parametrize("language", FUNCTIONS)
def test_an_answer_replaces_one_function_and_nothing_else(language: str) -> None:
    source, answer = FUNCTIONS[language]
    (target,) = targets_in("a", source, language)  # type: ignore[arg-type]
    assert target.name.rpartition(".")[2].lower() == "add"
    assert "sum" not in target.head
    assert f"```{language}" in questions("lm-rewrite", target, source)

    def made(text: str) -> Any:
        return replaced_in(target, source, text, operator="lm-modify")

    for said in (
        answer,
        f"Here:\n```{language}\n{answer}\n```\nDone.",
        f"```\n    {answer.replace(chr(10), chr(10) + '    ')}\n```",
    ):
        found = made(said)
        assert not isinstance(found, str), (found, said)
        after = apply(source, found)
        assert "x - y" in after
        assert "sum" not in after
        assert after.replace(found.after, found.before) == source
    short = target.name.rpartition(".")[2]
    assert made(target.text) == "unchanged"
    assert made("I cannot.") in ("no_code", "no_such_function")
    assert made("") == "no_code"
    assert made(answer.replace(short, "other")) == "no_such_function"
    assert made(answer.replace("y", "z")) == "other_parameters"
    assert made(f"{answer}\n{answer}") == "no_such_function"
    assert made(answer.replace("x - y", "x - (y")) == "no_code"


def test_functions_that_lie_beside_other_code_or_are_tests_are_left_alone() -> None:
    assert targets_in("a.js", "const f = function g () {\n  a()\n  b()\n}\n", "javascript") == []
    assert targets_in("a.js", "function g () { return 1 }\n", "javascript") == []
    tests = "mod tests {\n    fn helps() {\n        a();\n        b();\n    }\n}\n"
    assert targets_in("a.rs", tests, "rust") == []


def facts(**changed: Any) -> dict[str, Any]:
    suite = Suite(language="go", build=("go build",), test="go test {tests}", reader="go-json", source=("*.go",))
    place = {"path": "lib/stack.go", "line": 3}
    return {
        "package": "stack", "version": "1.2", "language": "go", "tests": 9, "bugs": 1, "suite": suite.model_dump(),
        "functions": ["Stack.Push"], "fail_to_pass": ["m::TestPush", "m::TestSize"],
        "errors": {"m::TestPush": "stack.go:3: Push(1) gave 0", "m::TestSize": "failed"},
        "gold": {"bugs": [place], "path": "lib/stack.go"}, "issue": "full",
    } | changed  # fmt: skip


def test_three_levels_say_less_and_less_and_never_where() -> None:
    full, short, symptom = (issue_of_suite(facts(issue=level)) for level in ("full", "short", "symptom"))
    assert "2 of the 9 tests of stack 1.2 (go) fail:" in full
    assert "- m::TestPush\n  ...:3: ...(1) gave 0" in full
    assert "The mistake is in one place of that code; the tests are right." in full
    assert "There are 2 mistakes, independent of each other in that code" in issue_of_suite(facts(bugs=2))
    assert short.startswith("2 tests of stack fail since the last change, m::TestSize for one: ...:3")
    assert "m::Test" not in symptom
    assert "- ...(1) gave 0\n" in symptom
    assert "- a result is wrong" in issue_of_suite(facts(issue="symptom", errors={}))
    for text in (full, short, symptom):
        assert "stack.go" not in text
        assert "Push(" not in text
        assert text.endswith("The whole suite is run by: go build && go test")
    with pytest.raises(ValueError, match="issue is 'long'"):
        issue_of_suite(facts(issue="long"))
    one = issue_of_suite(facts(issue="short", fail_to_pass=["m::TestSize"]))
    assert one.startswith("A test of stack fails since the last change, m::TestSize for one\nThere is one mistake.")
    real = told_by_people(facts(), ["Push keeps its value."])
    assert "Those who repaired it wrote:\n\nPush keeps its value.\n" in real
    assert "mistake" not in real


def test_what_knows_python_alone_is_refused_for_other_languages() -> None:
    for option, value in (("--kind", "speed"), ("--operators", "small")):
        said = CliRunner().invoke(tasks_command, ["build", "--language", "go", option, value])
        assert said.exit_code == 2
        assert "knows Python packages alone; with --language and --project it can only be" in said.output.replace(
            "\n", " "
        )


async def made(project: Project, plan: Plan, backend: SandboxBackend, cache: Path) -> tuple[list[Task], Yield]:
    counts = Yield()
    found = [one async for one in make_suite_tasks(project, backend, plan, counts=counts, cache=cache)]
    return found, counts


async def check_graded(task: Task, backend: SandboxBackend) -> None:
    """The whole answer resolves it, and nothing does not."""
    grader = CodeRepairGrader(backend, memo=Memo())
    assert (await grader.grade(task, task.metadata["gold"]["patch"])).channels["resolved"] == 1.0
    assert (await grader.grade(task, "")).channels["resolved"] == 0.0


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_task_of_two_mistakes_in_javascript_is_repaired_by_both_repairs(
    tmp_path: Path, run_in_backend: Callable[..., None], money_project: Callable[[Path], Project]
) -> None:
    async def body(backend: SandboxBackend) -> None:
        plan = Plan(per_package=1, bugs=2, distance="file", issue="short", max_failing=0.8, certify=True)
        (task,), counts = await made(money_project(tmp_path), plan, backend, tmp_path)
        data = task.metadata
        assert (data["bugs"], len(data["gold"]["bugs"]), data["operator"]) == (2, 2, "2-bugs")
        assert len(set(data["functions"])) == 2
        assert "There are 2 mistakes, independent of each other" in task.prompt
        assert counts.verdicts["2-bugs"]["valid"] == counts.tasks == 1
        assert certificate_of(task) is not None
        assert task.world is not None
        read = lambda path: world_text(task.world, path) or ""  # noqa: E731
        whole = restored(task, read)
        assert {path: (Path(task.world.trees[0].source) / path).read_text() for path in whole} == whole
        await check_graded(task, backend)

    run_in_backend(body)


class Scripted:
    """An agent that knows one function."""

    name = "agent"

    async def act(self, step: Step) -> Reply:
        known = (
            "function total (values) {\n  let sum = 0\n  for (const value of values) sum = value\n  return sum\n}"
        )
        return Reply(Action.say(f"```javascript\n{known}\n```"))

    def fork(self, *, seed: int) -> "Scripted":
        return Scripted()

    async def close(self) -> None:
        pass


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_writer_breaks_a_function_of_another_language(
    tmp_path: Path, run_in_backend: Callable[..., None], money_project: Callable[[Path], Project]
) -> None:
    async def body(backend: SandboxBackend) -> None:
        rewrite = Rewrite(Writer("script", lambda task, *, seed: Scripted()), ("lm-modify",))
        plan = Plan(per_package=3, rewrite=rewrite, issue="symptom")
        (task,), counts = await made(money_project(tmp_path), plan, backend, tmp_path)
        assert (task.metadata["function"], task.metadata["written_by"]) == ("total", "script")
        assert counts.verdicts["lm-modify"] == {"valid": 1}
        assert "total" not in task.prompt
        await check_graded(task, backend)

    run_in_backend(body)
