"""What asks for vLLM: settings that say no more than what is used, and refusals that say what to do."""

import pytest
from envgym_agents.learn.config import load
from envgym_agents.learn.resolve import resolve
from envgym_agents.model import new_model, save_model
from envgym_agents.policies.chosen import policy_over
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.registered import lm_agent
from envgym_agents.tokenizer import train_tokenizer

from envgym.cli import run
from envgym.registry import spec


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A folder without vLLM, and no variable that names one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENVGYM_VLLM_PYTHON", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sampler.cache_gib=2"], "cache_gib 2 has no use where sampler.kind is 'transformers'"),
        (
            ["sampler.kind=vllm", "sampler.place=process", "sampler.python=/x"],
            "python '/x' has no use where vLLM runs",
        ),
        (["sampler.kind=sglang"], "sampler.kind = 'sglang'"),
        (["sampler.kind=vllm", "sampler.tolerance=0"], "sampler.tolerance = 0"),
    ],
)
def test_a_setting_that_is_not_used_is_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load(None, overrides)


def test_without_vllm_a_run_is_refused_before_its_folder_is_made(nowhere, capsys):
    assert run(
        ["train", "--out", "run", "--set", "env=guess", "--set", "expert=random", "--set", "sampler.kind=vllm"]
    )
    assert "sampler.kind = 'vllm': no Python with vLLM is known: run scripts/vllm_env.sh" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (nowhere / "run").exists()
    with pytest.raises(ValueError, match=r"sampler\.place to 'server'"):
        resolve(load(None, ["env=guess", "expert=random", "sampler.kind=vllm", "sampler.place=process"]), [])


def test_by_default_the_model_itself_samples():
    model = new_model(64, size="tiny")
    assert isinstance(policy_over(model, load(None, []).sampler), TransformerPolicy)


def test_the_agent_of_a_model_folder_is_refused_what_it_cannot_sample_with(nowhere):
    tokenizer = train_tokenizer(["guess"], actions=[], vocab_size=300)
    save_model(nowhere / "model", new_model(len(tokenizer), size="tiny"), tokenizer)
    task = spec("guess").tasks()[0]
    for options, said in (
        ({"sampler": "vlm"}, "sampler 'vlm' is not known"),
        ({"vllm_python": "/x"}, "has no use where sampler is"),
        ({"sampler": "vllm"}, "no Python with vLLM is known"),
    ):
        with pytest.raises(ValueError, match=said):
            lm_agent(task, seed=0, model=str(nowhere / "model"), **options)
