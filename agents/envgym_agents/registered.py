"""The agent ``lm`` of the registry: a local model folder acts, by name and options."""

from functools import lru_cache
from pathlib import Path

from envgym.limits import Sampling
from envgym.messages import ToolSpec
from envgym.provenance import telling
from envgym.task import Task
from envgym_agents.call_formats import call_format as call_format_of
from envgym_agents.chat import Format, LMAgent, LMAgents
from envgym_agents.model import load_model, weights_digest
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import Template, template_for
from envgym_agents.tokenizer import pieces_of

__all__ = ["lm_agent"]


@lru_cache(maxsize=4)
def _loaded(folder: str, device: str) -> tuple[TransformerPolicy, Template]:
    """One policy per folder, so that all its agents are batched together."""
    model, tokenizer = load_model(folder, device=device)
    return TransformerPolicy(model), template_for(tokenizer)


def _acting(*, model: str, **_options: object) -> dict[str, str]:
    """Who acts: the last part of the folder's path, and what is in it."""
    return {"model": Path(model).resolve().name, "weights": weights_digest(model)}


@telling(_acting)
def lm_agent(  # noqa: PLR0913  # one parameter per option
    task: Task, *, seed: int, model: str, tools: tuple[ToolSpec, ...] = (), temperature: float = 1.0,
    max_tokens: int = 256, device: str = "cpu", call_format: str = "hermes",
) -> LMAgent:  # fmt: skip
    """A language model acts: the one in the folder that the option `model` names.

    A folder whose tokenizer has action tokens acts in the "compact" format, any other one in "text". temperature:
    0 is greedy. max_tokens: of one answer in the text format.
    call_format: how it writes calls there: hermes, xml, fenced or react.
    """
    policy, template = _loaded(model, device)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    form: Format = "compact" if template.actions else "text"
    makers = LMAgents(policy, template, form, sampling, tools, calls=call_format_of(call_format))
    return makers(task, seed=seed)


lm_agent.pieces_of = pieces_of  # type: ignore[attr-defined]  # how its models spell ids, for who reads what they said
