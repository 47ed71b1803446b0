"""Rows of Multi-SWE on real toolchains: the answer is paid, doing nothing is not, and results that lie are not."""

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from envgym_environments.code_repair.env import code_repair_tasks
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.suites.bodies import bodies
from envgym_environments.code_repair.suites.copies import copied, copy_of
from envgym_environments.code_repair.suites.doubles import class_doubles
from envgym_environments.code_repair.suites.fetch import node_modules
from envgym_environments.code_repair.suites.projects import missing_programs, projects
from envgym_environments.code_repair.suites.syntax.grammar import GRAMMARS
from envgym_environments.code_repair.worlds import image_resources

from envgym.registry import make_backend
from envgym.task import Task, Tree, World

from .small_projects import GO, JAVA, PROJECTS, RUST, SmallProject

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(600)]


def row_of(one: SmallProject) -> dict:
    path, text = one.test
    return {
        "org": "tiny", "repo": "small", "number": 7, "lang": one.lang, "title": "a sign", "body": "",
        "base": {"sha": "a" * 40}, "resolved_issues": [{"number": 6, "title": "Totals are negative.", "body": ""}],
        "fix_patch": make_patch({one.source: one.broken}, {one.source: one.right}),
        "test_patch": make_patch({path: one.tree.get(path)}, {path: text}),
        "f2p_tests": {name: {"run": "FAIL", "test": "FAIL", "fix": "PASS"} for name in one.failing},
        "p2p_tests": {name: {"run": "PASS", "test": "PASS", "fix": "PASS"} for name in one.passing},
    }  # fmt: skip


def task_of(one: SmallProject, path: Path) -> Task:
    """The task of the row in this file, in a world with its tree in the place of its image."""
    (task,) = code_repair_tasks(path)
    files = {f"/home/small/{name}": text for name, text in {one.source: one.broken, **one.tree}.items()}
    files["/home/run.sh"] = f"set -e\ncd /home/small\n{one.run}\n"
    trees: tuple[Tree, ...] = ()
    if one.modules:
        (project,) = [found for found in projects() if found.modules == one.modules]
        trees = (Tree(source=str(node_modules(project)), target="/home/small/node_modules"),)
    world = World(workdir="/home/small", files=files, trees=trees, resources=image_resources())
    return task.model_copy(update={"world": world})


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.parametrize("language", PROJECTS)
def test_a_row_is_paid_for_its_answer_and_for_no_lie(language: str, write_rows, tmp_path) -> None:
    one = PROJECTS[language]
    missing = missing_programs(projects(language="go")[0].model_copy(update={"needs": one.needs}))
    if missing:
        pytest.skip(f"this machine has not got {', '.join(missing)}")
    task = task_of(one, write_rows(tmp_path / "set.jsonl", row_of(one)))

    async def run() -> list[dict[str, float]]:
        async with make_backend("namespace") as backend:
            grader = CodeRepairGrader(backend, memo=Memo())
            texts = (one.right, one.broken, *one.lies.values())
            patches = [make_patch({one.source: one.broken}, {one.source: text}) for text in texts]
            return [(await grader.grade(task, patch)).channels for patch in patches]

    gold, nothing, *lies = asyncio.run(run())
    assert (gold["resolved"], gold["f2p"], gold["p2p"], gold["guarded"]) == (1.0, 1.0, 1.0, 1.0), gold
    assert (nothing["resolved"], nothing["f2p"], nothing["voided"]) == (0.0, 0.0, 0.0), nothing
    for name, found in zip(one.lies, lies, strict=True):
        assert (found["resolved"], found["f2p"], found["guarded"]) == (0.0, 0.0, 1.0), (name, found)
        assert found["voided"] == 1.0 or name in one.doubted, (name, found)


@pytest.mark.parametrize("language", ["go", "rust", "javascript", "typescript", "java", "c++"])
def test_a_copy_of_a_test_has_another_name_another_literal_and_a_word_at_its_end(language: str) -> None:
    text = PROJECTS[language].test[1]
    for body in bodies(text, language):  # type: ignore[arg-type]
        assert copied(body, text, language)  # type: ignore[arg-type]
        drawn = {
            copy_of(text, body, language, "TestOther", "abcdefghij", np.random.default_rng(seed))  # type: ignore[arg-type]
            for seed in range(20)
        }
        assert len(drawn) == len(body.compared)
        for one in drawn:
            assert "TestOther" in one
            assert body.name.strip("'") not in one.replace("TestOther", "")
            assert '"abcde"' in one.replace("'", '"')
            assert "abcdefghij" not in one
            whole = text[: body.behind] + one + text[body.behind :]
            assert not GRAMMARS[language].parser.parse(whole.encode()).root_node.has_error  # type: ignore[index]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (GO, 'func TestA(t *testing.T) {\n\tt.Run("b", func(t *testing.T) {\n\t\tif f() != 3 {\n\t\t}\n\t})\n}\n'),
        (RUST, "#[test]\n#[should_panic]\nfn a() {\n    assert_eq!(f(), 3);\n}\n"),
        (RUST, '#[test]\nfn a() {\n    println!("{}", 3);\n    f(3).unwrap();\n}\n'),
    ],
)
def test_tests_that_may_pass_in_parts_or_must_fail_or_compare_nothing_known_have_no_copy(one, text: str) -> None:
    language = next(name for name, found in PROJECTS.items() if found is one)
    assert not [body for body in bodies(text, language) if copied(body, text, language)]  # type: ignore[arg-type]


def test_a_class_of_java_has_a_double_only_where_it_is_listed_itself() -> None:
    path, text = JAVA.test
    (double,) = class_doubles(path, text, ["tiny.SumTest"], [])
    name = double.called("abcde")
    assert name == "SumAbcdeTest"
    for twin in (False, True):
        ((place, made),) = double.sown(name, "abcdefghij", np.random.default_rng(3), twin=twin).items()
        assert place == "src/test/java/tiny/SumAbcdeTest.java"
        assert "class SumAbcdeTest {" in made
        assert "SumTest" not in made
        assert len(bodies(made, "java")) == len(bodies(text, "java")) + 1
    assert not class_doubles(path, text, ["tiny.SumTest.adds"], [])
    assert not class_doubles(path, "package tiny;\nclass SumTest {}\n", ["tiny.SumTest"], [])
    assert dataclasses.replace(double, name="Sums").called("abcde") == "SumsAbcde"
