"""What a configuration names is looked up before anything is built, and with as few tasks made as may be."""

import time

import pytest

pytest.importorskip("torch")

from envgym_agents.learn.config import load
from envgym_agents.learn.recipe import Stage, follow_recipe
from envgym_agents.learn.resolve import check_names
from envgym_agents.model import load_model, new_model, save_model
from envgym_agents.tokenizer import train_tokenizer

from envgym import EnvSpec, Task, TaskSet
from envgym.cli import run
from envgym.registry import register, unregister

TINY = {"expert": "random", "model": {"size": "tiny"}, "evaluate": {"baselines": []}}


def told_by_place(count: int = 10) -> TaskSet:
    def make(index: int) -> Task:
        raise AssertionError(f"task {index} was made")

    return TaskSet.lazy(make, length=count, split_of=lambda i: "heldout" if i % 5 == 4 else "train")


class Counted:
    """Tasks that only tell their split when they are made, which takes a while."""

    def __init__(self, each_s: float = 0.0) -> None:
        self.made, self.each_s = 0, each_s

    def __call__(self, count: int = 100) -> TaskSet:
        def make(index: int) -> Task:
            self.made += 1
            time.sleep(self.each_s)
            return Task(id=f"t{index}", prompt="", split="heldout" if index % 5 == 4 else "train")

        return TaskSet.lazy(make, length=count)


def never(task, **options):
    raise AssertionError("an environment was made")


@pytest.fixture
def named():
    """Registers an environment "test-named" of these tasks, in which nothing can be made."""

    def known(tasks):
        register("environments", "test-named", EnvSpec(name="test-named", tasks=tasks, make=never))

    yield known
    unregister("environments", "test-named")


def configured(*overrides: str):
    return load(overrides=["env=test-named", *overrides], base=TINY)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("env=test-name", "env = 'test-name': unknown environment 'test-name'; did you mean 'test-named'?"),
        ("split=trian", "split = 'trian': environment 'test-named' has no tasks in its split 'trian'; did you mean "
         "'train'?"),
        ("evaluate.split=valid", "evaluate.split = 'valid': environment 'test-named' has no tasks in its split "
         "'valid'; known: heldout, train"),
        ("task_options.cuont=3", "task_options.cuont = 3: there is no such option; did you mean 'count'?"),
        ("expert=randm", "expert = 'randm': unknown agent 'randm'; did you mean 'random'?"),
        ("evaluate.baselines=['randm']", "evaluate.baselines = 'randm': unknown agent 'randm'"),
        ("agent_options.sped=2", "agent_options.sped = 2: there is no such option"),
        ("reinforce.credit=grop-relative", "reinforce.credit = 'grop-relative': unknown scheme 'grop-relative'"),
        ("device=cdua", "device = 'cdua': "),
    ],
)  # fmt: skip
def test_a_plan_refuses_a_wrong_name_and_makes_no_task(named, wrong, said, tmp_path, capsys):
    named(told_by_place)
    every = ("env=test-named", "expert=random", "evaluate.baselines=[]", "model.size=tiny", wrong)
    options = [one for text in every for one in ("--set", text)]
    assert run(["train", "--plan", "--out", str(tmp_path / "run"), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.strip().splitlines()) == 1


def test_a_sandbox_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"sandbox = 'dokcer': unknown sandbox 'dokcer'; did you mean 'docker'\?"):
        check_names(load(overrides=["env=code-repair", "sandbox=dokcer"]))


def test_of_tasks_that_must_be_made_no_more_are_than_tell_the_splits(named):
    tasks = Counted()
    named(tasks)
    assert check_names(configured()) == []
    assert tasks.made == 5  # the first that is held out
    with pytest.raises(ValueError, match=r"split 'trian'; did you mean 'train'\?"):
        check_names(configured("split=trian"))
    assert tasks.made == 5 + 100


def test_a_split_that_is_not_met_in_time_is_said_and_not_refused(named):
    tasks = Counted(each_s=0.02)
    named(tasks)
    (said,) = check_names(configured("split=trian"), within_s=0.3)
    assert said.startswith("split = 'trian' is of none of the first ")
    assert "of 100 tasks (heldout, train); the run looks at all of them" in said
    assert 5 <= tasks.made <= 16


def told(capsys, *options: str) -> str:
    """The one line of a command that is refused."""
    assert run(["train", *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_plan_refuses_a_list_of_tasks_that_is_not_there_or_empty_and_makes_no_task(named, tmp_path, capsys):
    named(told_by_place)
    plan = ["--plan", "--set", "env=test-named", "--set", "expert=random", "--set", "model.size=tiny"]
    (tmp_path / "empty").write_text("\n")
    for name, why in (("none", "it cannot be read: "), ("empty", "it names no task")):
        path = str(tmp_path / name)
        assert f"tasks = {path!r}: {why}" in told(capsys, *plan, "--set", f"tasks={path}")


def test_a_bound_that_does_not_go_with_the_order_of_tasks_is_not_said_of_the_credit_scheme(named, capsys):
    named(told_by_place)
    wrong = ["reinforce.loop.curriculum.kind=solve-rate", "reinforce.loop.staleness=2"]
    every = ("env=test-named", "expert=random", "model.size=tiny", *wrong)
    line = told(capsys, "--plan", *(one for text in every for one in ("--set", text)))
    assert line.startswith("envgym: reinforce.loop.staleness is 2, and curriculum.kind 'solve-rate' is of whole")


@pytest.fixture
def folder(tmp_path):
    """A model folder."""
    tokenizer = train_tokenizer(["guess"], actions=[], vocab_size=300)
    save_model(tmp_path / "model", new_model(len(tokenizer), size="tiny"), tokenizer)
    return tmp_path / "model"


def indexed(path, text):
    """The one file gives way to what says in which of several each weight is."""
    path.unlink()
    path.with_name("model.safetensors.index.json").write_text(text)


def shortened(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda one: one.unlink(), "there is no model.safetensors in it, which would have weights"),
        (shortened, "model.safetensors in it is no whole safetensors file, get it again"),
        (lambda one: indexed(one, '{"weight_map": {"a": "b"}}'), "there is no b in it"),
        (lambda one: indexed(one, "["),
         "model.safetensors.index.json in it does not say which file has which weight"),
        (lambda one: one.with_name("config.json").write_text("{"),
         "its config.json is none of a model that transformers knows: It looks like the config file at"),
        (lambda one: one.with_name("config.json").write_text('{"model_type": "nonsense"}'),
         "its config.json is none of a model that transformers knows: The checkpoint you are trying to load has"),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused_before_anybody_plays(folder, damage, said, tmp_path, capsys):
    damage(folder / "model.safetensors")
    options = ["--set", "env=guess", "--set", "expert=random", "--set", f"model.path={folder}"]
    line = told(capsys, "--out", str(tmp_path / "run"), *options)
    assert line.startswith(f"envgym: model.path = '{folder}': {said}")
    assert not (tmp_path / "run").exists()
    assert run(["eval", "--out", str(tmp_path / "eval"), "--set", "env=guess", "--model", str(folder)]) == 2
    assert f"model = '{folder}': {said}" in capsys.readouterr().err


def test_a_model_that_was_cut_off_is_refused_by_whoever_loads_it(folder):
    shortened(folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model': a file of its weights is no whole safetensors file"):
        load_model(folder)


def test_what_is_wrong_with_a_recipe_or_a_run_folder_is_said_with_its_place(tmp_path, capsys):
    recipe, out = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text("stage = [")
    options = ["--recipe", str(recipe), "--out", str(out)]
    assert f"recipe {str(recipe)!r} is not TOML: " in told(capsys, *options)
    recipe.write_text('[[stage]]\nname = "first"\nreinforce = { stepz = 3 }\n')
    assert f"recipe {str(recipe)!r}, stage 'first': reinforce.stepz: there is no" in told(capsys, *options)
    out.mkdir()
    (out / "config.json").write_text("{")
    assert f"{out / 'config.json'} is damaged, it is no JSON: " in told(capsys, "--resume", "--out", str(out))
    (out / "config.json").write_text('{"env": "guess", "critic": 1}')
    line = told(capsys, "--resume", "--out", str(out))
    assert f"{out / 'config.json'} is of a run that this version cannot go on with: critic: there is no" in line
    (out / "config.json").write_text('{"env": "guess"}')
    (out / "stages.json").write_text("[]")
    assert f"{out / 'stages.json'} is damaged: it holds no table" in told(capsys, "--resume", "--out", str(out))
    named = ["--set", "env=guess", "--set", "expert=random", "--out", str(recipe)]
    assert f"{recipe} is a file; name a new folder for the run" in told(capsys, *named)


def test_a_plan_says_when_there_are_no_tasks_yet(tmp_path, capsys):
    options = ["--set", f"task_options.path={tmp_path / 'none.jsonl'}", "--set", "model.size=tiny"]
    assert run(["train", "--plan", "--out", str(tmp_path / "run"), *options]) == 0
    assert f"the splits were not looked up: no task file at {tmp_path / 'none.jsonl'}" in capsys.readouterr().out


def test_a_wrong_name_in_the_last_stage_is_refused_before_the_first_begins(tmp_path, named):
    named(told_by_place)
    stages = [Stage("first", configured()), Stage("last", configured("evaluate.split=hledout"))]
    with pytest.raises(ValueError, match=r"evaluate.split = 'hledout': .* did you mean 'heldout'\?"):
        follow_recipe(stages, tmp_path / "run")
    assert not (tmp_path / "run").exists()
