"""A teacher that vLLM serves: it says what the model in the learner's process says, and its folder stays."""

import queue

import numpy as np
import pytest
import torch
from envgym_agents.learn.config import Reinforce, load
from envgym_agents.learn.pack import Row
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.model import load_model, save_model
from envgym_agents.policies.vllm.link import VllmMissing, inside, server
from envgym_agents.policies.vllm.telling import Telling
from envgym_agents.policies.vllm.wire import EngineSettings, Generate, Load, Loaded, Sampled, Tell, Told
from envgym_agents.tokenizer import train_tokenizer
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB = 300


def model_of(seed):
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder: large weights, so that its distributions are far from even."""
    path = tmp_path_factory.mktemp("teacher")
    model = model_of(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    save_model(path, model, train_tokenizer(["read press open"], actions=[], vocab_size=VOCAB))
    return path


def rows_of_ids(seed, *, allowed=None):
    """Groups of rows of uneven lengths, some ids of each sampled."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(3):
        rows = []
        for member in range(2):
            ids = np.delete(np.arange(VOCAB), 99)[rng.integers(0, VOCAB - 1, int(rng.integers(5, 40)))].astype(
                np.int32
            )
            at = np.sort(rng.choice(np.arange(1, len(ids)), len(ids) // 2, replace=False)).astype(np.int32)
            zeros = np.zeros(len(at), np.float32)
            weights = np.full(len(at), 1 / len(at), np.float32)
            said = np.full(len(at), -2.0, np.float32)
            rows.append(
                Row(f"{number}-{member}", f"t{number}", ids, at, said, zeros, weights, (allowed,) * len(at))
            )
        groups.append(rows)
    return groups


DISTILL = Reinforce(teaches="all", epochs=1, minibatches=1, loss={"kind": "distill", "distill": {"by": "vllm"}})


def assert_teaches_as_the_model_itself(teacher, folder, within):
    student = model_of(1)
    own, served = (Learner(Scorer(one), adamw(one, lr=1e-3, weight_decay=0.0)) for one in (student, model_of(1)))
    own.reference, served.teacher = Scorer(load_model(folder, dtype="float32")[0]), teacher
    mine, theirs = (one.update(rows_of_ids(0), DISTILL, np.random.default_rng(0), lr=1e-3) for one in (own, served))
    assert theirs["teacher_kl"] == pytest.approx(mine["teacher_kl"], rel=within)
    assert mine["teacher_kl"] > 0.1
    weights = (dict(one.scorer.model.named_parameters()) for one in (own, served))
    here, there = weights
    assert all((here[name] - there[name]).norm() <= within * here[name].norm() for name in here)


def test_a_served_teacher_teaches_what_one_in_the_process_teaches_and_its_folder_stays(folder, toy):
    before = sorted(path.name for path in folder.iterdir())
    with Telling(folder, inside(toy.ToyEngine), EngineSettings("", 256)) as teacher:
        assert_teaches_as_the_model_itself(teacher, folder, 1e-5)
        with pytest.raises(ValueError, match="refuses a context: 99 is no id of mine"):
            teacher([[1, 2], [1, 99]])
        (again,) = teacher([[5, 6, 7]])  # by another engine
        assert again.shape == (2,)
        restricted = rows_of_ids(1, allowed=tuple(range(VOCAB)))
        learner = Learner(Scorer(model_of(1)), adamw(model_of(1), lr=1e-3, weight_decay=0.0), teacher=teacher)
        with pytest.raises(ValueError, match=r"set reinforce\.loss\.distill\.by = 'learner'"):
            learner.update(restricted, DISTILL, np.random.default_rng(0), lr=1e-3)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_who_tells_and_samples_at_once_answers_both_and_what_new_weights_meet_is_told_under_them(
    folder, toy, tmp_path
):
    new, heard = tmp_path / "new.safetensors", queue.SimpleQueue()
    save_file({name: weight.clone() for name, weight in model_of(8).state_dict().items()}, new)
    (tmp_path / "engine").mkdir()
    for file in folder.iterdir():
        (tmp_path / "engine" / file.name).symlink_to(file)
    link = inside(toy.ToyEngine)(EngineSettings(str(tmp_path / "engine"), 256), 0, heard.put)
    asked = (
        Generate(1, (4, 5), 60, seed=0),
        Tell(2, (1, 2, 3)),
        Tell(3, (1, 99)),
        Load(4, 1, str(new)),
        Tell(5, (1, 2, 3)),
    )
    for message in asked:
        link.ask(message)
    said = [heard.get(timeout=60) for _ in asked]
    link.close()
    by_number = {one.number: one for one in said}
    assert isinstance(by_number[1], Sampled)
    assert len(by_number[1].ids) == 60
    assert by_number[3].refused
    assert by_number[4] == Loaded(4, 1)
    with torch.no_grad():
        logs = model_of(8)(input_ids=torch.tensor([[1, 2]])).logits[0].log_softmax(-1)
    assert by_number[5].logprobs == pytest.approx([float(logs[0, 2]), float(logs[1, 3])], abs=1e-5)
    assert isinstance(by_number[2], Told)  # before the new weights or after, as it came
    assert len(by_number[2].logprobs) == 2


def test_what_a_served_teacher_cannot_do_is_refused_with_the_settings():
    base = {"teaches": "all", "loss": {"kind": "distill", "distill": {"teacher": "x", "by": "vllm"}}}
    for values, said in (
        ({"model": {"temperature": 0.7}}, "at temperature 1"),
        ({"learner": {"processes": 2}}, "make it one"),
        ({"reinforce": {"loss": {"distill": {"estimate": "exact"}}}}, "vLLM says how likely given ids are"),
    ):
        with pytest.raises(ValueError, match=said):
            load(base={"reinforce": base}, over=values)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_vllm_teaches_what_the_model_in_the_learners_process_teaches(folder):
    try:
        opened = server()
    except VllmMissing as error:
        pytest.skip(str(error))
    with Telling(folder, opened, EngineSettings("", 256, threads=1)) as teacher:
        assert_teaches_as_the_model_itself(teacher, folder, 1e-4)
