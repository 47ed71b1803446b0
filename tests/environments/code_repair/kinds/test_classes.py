import ast

import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.judge import Verdict
from envgym_environments.code_repair.kinds.classes import hollow, removed
from envgym_environments.code_repair.kinds.registry import kind_named
from envgym_environments.code_repair.patch import make_patch

pytestmark = pytest.mark.timeout(300)

SOURCE = '''import os


@mark
class A(dict):
    """Said."""

    size = 1

    def one(self):
        """Doc."""
        return 1

    @property
    def two(self):
        @inner
        def f():
            return 2

        return f()


B = 2
'''


def class_of(source: str) -> ast.ClassDef:
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))


def test_a_removed_class_leaves_the_rest_of_its_module() -> None:
    assert removed(SOURCE, class_of(SOURCE)) == "import os\n\n\nB = 2\n"


def test_a_hollow_class_keeps_signatures_docstrings_and_attributes() -> None:
    text = hollow(SOURCE, class_of(SOURCE))
    assert text is not None
    left = class_of(text)
    assert [ast.unparse(one) for one in left.body] == [
        "'Said.'",
        "size = 1",
        'def one(self):\n    """Doc."""\n    raise NotImplementedError',
        "@property\ndef two(self):\n    raise NotImplementedError",
    ]
    assert text.endswith("\n\nB = 2\n")


def test_a_class_with_a_method_on_one_line_is_not_made_hollow() -> None:
    source = "class A:\n    def f(self): return 1\n"
    assert hollow(source, class_of(source)) is None


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="kind is 'songs'; it must be one of class"):
        kind_named("songs")


@pytest.mark.slow
@pytest.mark.namespaces
def test_a_class_of_a_package_becomes_a_certified_task_that_the_expert_solves(
    made_of_shelf, keeps_the_contract, in_backend
) -> None:
    async def body(backend) -> None:
        tasks, counts = await made_of_shelf(backend, "class")
        assert {task.metadata["place"]["class"]: task.metadata["state"] for task in tasks} == {
            "Box": "hollow",  # a test file imports it by name
            "Crate": "removed",
        }
        assert counts.verdicts["class"] == {Verdict.VALID: 2}
        await keeps_the_contract(backend, tasks)

    in_backend(body)


@pytest.mark.namespaces
@pytest.mark.slow
def test_half_a_class_is_worth_its_share_of_the_tests_and_no_reward(made_of_shelf, in_backend) -> None:
    async def body(backend) -> None:
        tasks, _ = await made_of_shelf(backend, "class")
        task = next(one for one in tasks if one.metadata["place"]["class"] == "Crate")
        place = "/repo/shelf/box.py"
        base = task.world.files[place]
        poor = base + "\n\nclass Crate:\n    def __init__(self, label):\n        self.label = label\n"
        patch = make_patch({"shelf/box.py": base}, {"shelf/box.py": poor})
        grade = await CodeRepairGrader(backend).grade(task, patch)
        assert grade.channels["reward"] == 0.0
        assert grade.channels["f2p"] < 1.0
        assert 0.0 < grade.channels["patch_similarity"] < 1.0

    in_backend(body)
