"""The agent ``lm`` of the registry: a local model folder acts, by name and options."""

from functools import lru_cache
from pathlib import Path

from envgym.limits import Sampling
from envgym.messages import ToolSpec
from envgym.options import hint
from envgym.provenance import telling
from envgym.task import Task
from envgym_agents.call_formats import call_format as call_format_of
from envgym_agents.chat import Format, LMAgent, LMAgents
from envgym_agents.eyes import eyes_of
from envgym_agents.learn.config_sampler import Sampler
from envgym_agents.model import load_model, weights_digest
from envgym_agents.policies.chosen import SAMPLERS, ModelPolicy, policy_over
from envgym_agents.template import Template, template_for
from envgym_agents.tokenizer import pieces_of

__all__ = ["lm_agent"]


@lru_cache(maxsize=4)
def _loaded(folder: str, device: str, sampler: Sampler) -> tuple[ModelPolicy, Template]:
    """One policy per folder, so that all its agents are batched together. vLLM's process ends with this one."""
    model, tokenizer = load_model(folder, device=device)
    return policy_over(model, sampler), template_for(tokenizer, eyes_of(model))


def _acting(*, model: str, **_options: object) -> dict[str, str]:
    """Who acts: the last part of the folder's path, or its name on the hub, and what is in it."""
    name = Path(model).resolve().name if Path(model).exists() else model
    return {"model": name, "weights": weights_digest(model)}


def _sampler(kind: str, python: str) -> Sampler:
    if kind not in SAMPLERS:
        raise ValueError(f"sampler {kind!r} is not known; {hint(kind, list(SAMPLERS))}")
    if python and kind != "vllm":
        raise ValueError(f"vllm_python {python!r} has no use where sampler is {kind!r}")
    return Sampler.model_validate({"kind": kind, "python": python or None})


@telling(_acting)
def lm_agent(  # noqa: PLR0913  # one parameter per option
    task: Task, *, seed: int, model: str, tools: tuple[ToolSpec, ...] = (), temperature: float = 1.0,
    max_tokens: int = 256, device: str = "cpu", call_format: str = "hermes", sampler: str = "transformers",
    vllm_python: str = "",
) -> LMAgent:  # fmt: skip
    """A language model acts: the one in the folder that the option `model` names.

    A folder with a processor of images has a vision-language model, which sees what the environment shows.
    A folder whose tokenizer has action tokens acts in the "compact" format, any other one in "text". temperature:
    0 is greedy. max_tokens: of one answer in the text format.
    call_format: how it writes calls there: hermes, xml, fenced or react.
    sampler: transformers, or vllm, which samples in a process of the Python that `vllm_python` names (else the
    variable ENVGYM_VLLM_PYTHON, else .vllm-venv).
    """
    policy, template = _loaded(model, device, _sampler(sampler, vllm_python))
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    form: Format = "compact" if template.actions else "text"
    makers = LMAgents(policy, template, form, sampling, tools, calls=call_format_of(call_format))
    return makers(task, seed=seed)


lm_agent.pieces_of = pieces_of  # type: ignore[attr-defined]  # how its models spell ids, for who reads what they said
