"""What may be asked of a policy over a model: the checks that every such policy makes before it computes."""

from envgym.limits import Sampling
from envgym.policy import Prompt
from envgym_agents.eyes import Eyes

__all__ = ["checked_length", "checked_prompt"]


def checked_prompt(
    prompt: Prompt, sampling: Sampling, max_length: int, vocabulary: int, eyes: Eyes | None = None
) -> list[int]:
    """The prompt's ids, a list of its own.

    eyes: of a model that sees. Raises ValueError when they are none, too many, or unknown, when there are images
    for a model that reads text only, or other ones than the ids have places for.
    """
    if prompt.media and eyes is None:
        raise ValueError("this policy reads text only; the prompt holds images")
    context = list(prompt.ids)
    if not context:
        raise ValueError("the prompt is empty: a context needs at least one id")
    if len(context) + sampling.max_tokens > max_length:
        raise ValueError(
            f"the prompt holds {len(context)} ids and max_tokens is {sampling.max_tokens}, together more than "
            f"the context of {max_length}; shorten the conversation (LMAgent does) or lower max_tokens"
        )
    if min(context) < 0 or max(context) >= vocabulary:
        raise ValueError(
            f"the prompt holds ids outside the model's vocabulary of {vocabulary}; is it another tokenizer's?"
        )
    if eyes is not None:
        eyes.places(context, prompt.media)
    return context


def checked_length(asked: int | None, own: int) -> int:
    """The longest context: as asked, or the model's own bound. Raises ValueError for more than that."""
    if asked is not None and not 1 < asked <= own:
        raise ValueError(f"max_length is {asked}; this model takes between 2 and {own}")
    return own if asked is None else asked
