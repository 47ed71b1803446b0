import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.ml.data import LEVELS, draw, score_of, score_of_constant
from envgym_environments.code_repair.kinds.ml.judge import MILESTONES, share_of
from envgym_environments.code_repair.kinds.ml.recipe import ml_packages
from envgym_environments.code_repair.kinds.ml.tree import FAMILIES, program, tree_files
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.sources import source_tree
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("family", FAMILIES)
def test_data_follow_the_seed_and_the_test_table_holds_no_target(family) -> None:
    for level in LEVELS:
        one = draw(family, level, 7)
        assert one == draw(family, level, 7)
        assert one != draw(family, level, 8)
        head = one.train.partition("\n")[0]
        assert head == one.test.partition("\n")[0] + ",target"
        assert one.test.count("\n") == len(one.test_targets) + 1
        assert one.train.count("\n") == len(one.train_targets) + 1
        assert score_of_constant(one) < 0.75


def test_a_family_is_wholly_in_one_split_and_its_tree_is_written_once(tmp_path) -> None:
    packages = ml_packages()
    assert {one.split for one in packages} == {"train", "heldout"}
    assert len({one.sha256 for one in packages}) == len(FAMILIES)
    tree = source_tree(packages[0], cache=tmp_path)
    assert tree == source_tree(packages[0], cache=tmp_path)
    assert {path: (tree / path).read_text() for path in tree_files(packages[0].name)} == tree_files(
        packages[0].name
    )
    other = packages[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ValueError, match="not written so by this version"):
        source_tree(other, cache=tmp_path)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9, unique=True))
def test_scores_are_full_for_the_truth_and_none_for_what_is_no_prediction(values) -> None:
    targets = [f"{one:.4f}" for one in values]
    assert score_of(targets, values, numeric=True) == 1.0
    assert score_of(targets, [sum(values) / len(values)] * len(values), numeric=True) == pytest.approx(0.0)
    assert score_of(targets, targets, numeric=False) == 1.0
    for wrong in (
        None,
        "x",
        targets[1:],
        [float("nan")] * len(targets),
        [True] * len(targets),
        [10**400] * len(targets),
        targets,
    ):
        assert score_of(targets, wrong, numeric=True) is None
    assert score_of(targets, [1.0] * len(targets), numeric=False) is None


def test_a_share_is_of_the_way_from_the_floor_to_the_answer() -> None:
    assert share_of(0.5, 0.5, 0.9) == 0.0
    assert share_of(0.7, 0.5, 0.9) == 0.5
    assert share_of(0.95, 0.5, 0.9) == 1.0
    assert share_of(0.3, 0.5, 0.9) == share_of(None, 0.5, 0.9) == share_of(0.7, 0.9, 0.9) == 0.0


STAGES = (
    ("raise SystemExit(0)\n", 0),
    ("def load(path):\n    raise OSError(path)\n", 1),
    ("def load(path):\n    return [], []\n", 1),
    ("from mlwork.table import *\ndef load(path):\n    return split_target(*read_table(path))[1:]\n"
     "def train(f, t):\n    return None\ndef predict(m, f):\n    return ['yes'] * 3\n", 2),
    ("from mlwork.table import *\ndef load(path):\n    return split_target(*read_table(path))[1:]\n"
     "def train(f, t):\n    return dict(zip(map(tuple, f), t))\ndef predict(m, f):\n"
     "    return [m[tuple(one)] for one in f]\n", 3),
    ("from mlwork.table import *\ndef load(path):\n    return split_target(*read_table(path))[1:]\n"
     "def train(f, t):\n    return dict(zip(map(tuple, f), t))\ndef predict(m, f):\n"
     "    return [m.get(tuple(one), 'yes') for one in f]\n", 4),
)  # fmt: skip


@pytest.mark.namespaces
@pytest.mark.slow
def test_a_program_is_judged_by_what_it_learns_and_its_milestones_are_told(
    made_of_shelf, keeps_the_contract, in_backend
) -> None:
    async def body(backend) -> None:
        tasks, _ = await made_of_shelf(backend, "ml")
        await keeps_the_contract(backend, tasks)
        assert {task.metadata["place"]["form"] for task in tasks} == {"improve", "predict", "learn", "write"}
        task = next(one for one in tasks if one.metadata["place"]["form"] == "improve")
        before = task.world.files["/repo/program.py"]
        grader = CodeRepairGrader(backend)
        for text, reached in STAGES:
            found = (await grader.grade(task, make_patch({"program.py": before}, {"program.py": text}))).channels
            assert found["milestones"] == reached / len(MILESTONES), (text, found)
            assert found["reward"] == 0.0, text
        gold = (await grader.grade(task, task.metadata["gold"]["patch"])).channels
        assert (gold["reward"], gold["milestones"], gold["resolved"]) == (1.0, 1.0, 1.0)
        assert all(gold[f"seconds_{name}"] > 0.0 for name in MILESTONES)
        assert program("tabular", "start") == before

    in_backend(body)
