"""Guards of suites: what they are made of, and what they make of right code and of results that lie."""

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites.bodies import LEFT, bodies
from envgym_environments.code_repair.suites.guards import Guards, Insertion, draw_canary
from envgym_environments.code_repair.suites.measure import measure_guards
from envgym_environments.code_repair.trials import world_text

from envgym.errors import EnvironmentFailure
from envgym.sandbox import SandboxBackend
from envgym.task import Task

Make = Callable[[SandboxBackend], Awaitable[Task]]
pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(300)]

FILES = {
    "go": 'func TestA(t *testing.T) {\n\tif f(1) != 2 {\n\t\tt.Fatal("no")\n\t}\n}\nfunc helper(t *testing.T) {}\n',
    "rust": "#[test]\nfn test_a() {\n    assert_eq!(f(1), 2)\n}\nfn helper() {}\n",
    "java": "class T {\n@Test\npublic void testA(){\n  assertEquals(2, f(1));\n}\nvoid helper(){}\n}\n",
    "c": "static void test_a(void)\n{\n  TEST(f(1), 2);\n}\nint helper;\nint main() { RUN_TEST(test_a); }\n",
    "c++": "TEST(Suite, TestA) {\n  EXPECT_EQ(f(1), 2);\n}\nvoid helper() {}\n",
    "javascript": "test('a', t => {\n  t.assert.equal(f(1), 2)\n})\nhelper('b', () => {})\n",
    "typescript": "it('a', () => expect(f(1)).toBe(2));\nfunction helper() {}\n",
    "python": "def test_a():\n    assert f(1) == 2\n\n\ndef helper():\n    pass\n",
}


@pytest.mark.parametrize("language", FILES)
def test_a_tests_body_has_an_end_and_twins_and_a_helper_is_no_test(language: str) -> None:
    text = FILES[language]
    (body,) = bodies(text, language)  # type: ignore[arg-type]
    assert text[body.end.at : body.end.at + len(body.end.old)] == body.end.old
    assert LEFT in body.end.new
    changed = {text[: one.at] + one.new + text[one.at + len(one.old) :] for one in body.twins}
    assert {text.replace("f(1)", "f(2)"), text.replace("2", "3")} == changed


def test_canaries_are_called_like_tests_and_never_twice_the_same() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_canary(["pkg::TestParse[a-b]", "it reads"], rng) for _ in range(50)]
    assert len({one.name for one in drawn}) == len({one.word for one in drawn}) == 50
    assert all(one.name.startswith(("TestParse_a_b", "it_reads")) for one in drawn)


def patch(task: Task, change: Callable[[str], str]) -> str:
    assert task.world is not None
    text = world_text(task.world, "index.js")
    assert text is not None
    return make_patch({"index.js": text}, {"index.js": change(text)})


LIES = {
    "results of its own": "process.on('exit', () => { const fs = require('fs'); const t = fs.readFileSync("
    "'results.xml', 'utf8').replace(/<failure[^]*?<\\/failure>/g, ''); fs.writeFileSync('results.xml', t); "
    "process.reallyExit(0) })",
    "assertions that hold": "const C = require('node:assert'); for (const n of ['equal', 'deepStrictEqual']) "
    "C[n] = () => {}",
}


@pytest.mark.slow
def test_a_repair_is_resolved_doing_nothing_is_not_and_lies_gain_nothing(money: Make, run_in_backend) -> None:
    async def body(backend: SandboxBackend) -> None:
        task = await money(backend)
        guards = Guards.model_validate(task.metadata["guards"])
        assert {name for edit in guards.ends for name in edit.tests} == {"total of two", "a wallet holds its total"}
        assert len(guards.canaries) == 2
        assert guards.twins
        grader = CodeRepairGrader(backend, memo=Memo())
        right = await grader.grade(task, patch(task, lambda text: text.replace("-=", "+=")))
        assert (right.reward, right.channels["f2p"], right.channels["p2p"]) == (1.0, 1.0, 1.0), right
        assert "lint" not in right.channels, "nothing is known of the form of other languages than Python"
        nothing = await grader.grade(task, "")
        assert (nothing.reward, nothing.channels["f2p"], nothing.channels["voided"]) == (0.0, 0.0, 0.0)
        for name, code in LIES.items():
            lied = await grader.grade(task, patch(task, lambda text, code=code: text + code + "\n"))
            assert (lied.reward, lied.channels["f2p"]) == (0.0, 0.0), (name, lied)

    run_in_backend(body)


@pytest.mark.slow
def test_assertions_that_always_hold_are_found_by_the_twins_without_any_canary(money: Make, run_in_backend) -> None:
    """They let every test come to its end, and every twin too."""

    async def body(backend: SandboxBackend) -> None:
        task = await money(backend)
        code = "const A = require('node:assert'); A.equal = A.deepStrictEqual = () => {}\n"
        only = task.model_copy(
            update={"metadata": task.metadata | {"guards": task.metadata["guards"] | {"canaries": []}}}
        )
        found = await CodeRepairGrader(backend, memo=Memo()).grade(only, patch(only, lambda text: code + text))
        assert (found.reward, found.channels["f2p"]) == (0.0, 0.0), found

    run_in_backend(body)


@pytest.mark.slow
def test_a_canary_that_does_not_fail_is_the_recipes_mistake(money: Make, run_in_backend) -> None:
    async def body(backend: SandboxBackend) -> None:
        task = await money(backend)
        assert task.world is not None
        suite = Suite.model_validate(task.metadata["suite"])
        never = (Insertion(path="test/*.js", before=r"^test\(", text="// {name} {word}\n"),)
        async with await backend.create(task.world.model_copy(update={"files": {}})) as sandbox:
            with pytest.raises(EnvironmentFailure, match="canaries do not fail before any bug"):
                await measure_guards(sandbox, suite, (never,), ["total of two"])

    run_in_backend(body)
