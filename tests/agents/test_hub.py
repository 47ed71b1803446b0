"""A model is found by its name on the hub, as a copy in that library's cache; without one, one line says so."""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from envgym_agents.learn.config import load
from envgym_agents.learn.folder import RunFolder, names_of
from envgym_agents.learn.resolve import hub_names, located
from envgym_agents.model import empty_model, load_model, load_weights, new_model, save_model
from envgym_agents.tokenizer import load_tokenizer, train_tokenizer

OLD, NEW = "a" * 40, "b" * 40
PROGRAM = """
import sys, json
from envgym_agents.hub import folder_of
from envgym_agents.model import load_model, weights_digest
found = {}
for name in sys.argv[1:]:
    try:
        model, tokenizer = load_model(name)
        found[name] = [folder_of(name).name, model.config.hidden_size, weights_digest(name)]
    except ValueError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """What the library leaves (HF_HOME): two commits of a model, "main" being the second; half a model."""
    home = tmp_path_factory.mktemp("hf")
    tokenizer = train_tokenizer(["a guess"], actions=[f"guess {n}" for n in range(1, 21)], vocab_size=400)
    repository = home / "hub/models--some--model"
    for commit, size in ((OLD, "tiny"), (NEW, "1M")):
        save_model(repository / "snapshots" / commit, new_model(len(tokenizer), size=size), tokenizer)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(NEW)
    half = home / "hub/models--some--half"
    (half / "snapshots" / OLD).mkdir(parents=True)
    (half / "snapshots" / OLD / "config.json").write_text("{}")
    (half / "refs").mkdir()
    (half / "refs/main").write_text(OLD)
    save_model(home / "shape", new_model(len(tokenizer), size="tiny"), tokenizer)
    shape = home / "hub/models--some--shape"
    (shape / "refs").mkdir(parents=True)
    (shape / "refs/main").write_text(OLD)
    shutil.copytree(home / "shape", shape / "snapshots" / OLD, ignore=shutil.ignore_patterns("*.safetensors"))
    return home


def found(cache: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the library reads HF_HOME once."""
    env = os.environ | {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, check=False)


@pytest.mark.slow
def test_a_cached_copy_is_taken_by_name_and_revision_and_what_is_not_there_is_said_in_a_line(cache):
    names = ("some/model", f"some/model@{OLD}", "some/half", "some/other")
    done = found(cache, "-c", PROGRAM, *names)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["some/model"][:2] == [NEW, 128]
    assert told[f"some/model@{OLD}"][:2] == [OLD, 32]
    assert told["some/model"][2] != told[f"some/model@{OLD}"][2]
    assert "holds no safetensors" in told["some/half"]
    assert "'some/other' is no folder here" in told["some/other"]
    assert "hf download some/other" in told["some/other"]
    assert "\n" not in told["some/other"]


@pytest.mark.slow
def test_the_commands_take_a_name_and_say_in_a_line_what_to_do_where_it_is_not_to_be_had(cache, tmp_path):
    options = ["--plan", "--out", str(tmp_path / "run"), "--set", "env=guess", "--set", "expert=random"]
    done = found(cache, "-m", "envgym", "train", *options, "--set", "model.path=some/model")
    assert done.returncode == 0, done.stderr
    done = found(cache, "-m", "envgym", "train", *options, "--set", "model.path=some/other")
    assert done.returncode == 2
    assert "model.path = 'some/other': 'some/other' is no folder here" in done.stderr
    assert "Traceback" not in done.stderr
    done = found(cache, "-m", "envgym", "train", *options, "--set", "model.path=some/shape")
    assert done.returncode == 0, "a plan needs no weights, and fetches none"


def test_a_resumed_run_goes_on_with_the_copy_that_its_name_meant_when_it_began(tmp_path):
    asked = load(base={"model": {"path": "some/model"}})
    folders = {commit: tmp_path / commit for commit in (OLD, NEW)}
    for folder in folders.values():
        folder.mkdir()
    began = located(asked, {"some/model": str(folders[OLD])})
    assert hub_names(asked, began) == {"some/model": str(folders[OLD])}
    RunFolder(tmp_path / "run", began).remember(hub_names(asked, began))
    again = located(asked, names_of(tmp_path / "run"))
    assert again.model.path == str(folders[OLD])
    RunFolder(tmp_path / "run", again, resume=True).remember({"some/model": str(folders[NEW])})
    assert names_of(tmp_path / "run") == {"some/model": str(folders[OLD])}
    other = located(asked, {"some/model": str(folders[NEW])})  # what the name means by now
    with pytest.raises(ValueError, match=r"begun with another configuration.*model\.path"):
        RunFolder(tmp_path / "run", other, resume=True)
    assert hub_names(began, located(began)) == names_of(tmp_path / "none") == {}


class Runs:
    """Unpickled, it leaves a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("what", ["code", "tokenizer code", "pickle"])
def test_nothing_that_lies_in_a_models_folder_is_run_or_unpickled(tmp_path, what):
    folder, mark = tmp_path / "model", tmp_path / "it-ran"
    tokenizer = train_tokenizer(["press open"], actions=["act:read"], vocab_size=300)
    model = new_model(len(tokenizer), size="tiny")
    save_model(folder, model, tokenizer)
    shape = json.loads((folder / "config.json").read_text())
    if what == "pickle":
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(mark)))
    else:
        (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
        if what == "code":
            shape |= {"model_type": "own", "architectures": ["Own"]}
            shape["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "own.Own")
            (folder / "config.json").write_text(json.dumps(shape))
        else:
            given = json.loads((folder / "tokenizer_config.json").read_text())
            given |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
            (folder / "tokenizer_config.json").write_text(json.dumps(given))
    reads = {"pickle": load_model, "code": empty_model, "tokenizer code": load_tokenizer}[what]
    for read in (load_model, reads):
        with contextlib.suppress(ValueError, OSError):  # whether it can do without is the library's to say
            read(folder)
        assert not mark.exists()
    if what == "pickle":
        with pytest.raises(OSError, match="safetensors"):
            load_weights(folder, model)
    assert not mark.exists()
