"""Whether a model folder can teach a student: it must mean the same by every id."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from envgym_agents.learn.config import TrainConfig
from envgym_agents.tokenizer import load_tokenizer

__all__ = ["check_teacher", "check_tokenizers"]

_FIELD = "reinforce.loss.distill.teacher"


def check_teacher(config: TrainConfig, tokenizer: Any, width: int) -> None:
    """Raise ValueError where the configured teacher, if there is one, cannot say how likely the student's ids are.

    tokenizer: the student's. width: how many ids its output layer has; an exact divergence needs as many of both.
    """
    wanted = config.reinforce.loss.distill
    if not wanted.teacher:
        return
    check_tokenizers(tokenizer, load_tokenizer(wanted.teacher), wanted.teacher)
    shape = AutoConfig.from_pretrained(wanted.teacher, local_files_only=True)
    theirs = shape.get_text_config().vocab_size
    if wanted.estimate == "exact" and theirs != width:
        raise ValueError(
            f"{_FIELD} = {wanted.teacher!r}: its output layer has {theirs} ids and the student's {width}, and "
            "distill.estimate 'exact' compares them all: choose estimate = 'sampled'"
        )
    if theirs < len(tokenizer):
        raise ValueError(
            f"{_FIELD} = {wanted.teacher!r}: its output layer has {theirs} ids, and the tokenizer {len(tokenizer)}"
        )


def check_tokenizers(student: Any, teacher: Any, folder: str | Path) -> None:
    """Raise ValueError, naming an id, unless both tokenizers have the same token for each id."""
    own, theirs = ({number: token for token, number in one.get_vocab().items()} for one in (student, teacher))
    wrong = sorted(number for number in own.keys() | theirs.keys() if own.get(number) != theirs.get(number))
    if wrong:
        first = wrong[0]
        raise ValueError(
            f"{_FIELD} = {str(folder)!r}: its tokenizer is not the student's: {len(wrong)} of {len(own)} ids mean "
            f"something else, the first is {first} ({own.get(first)!r} of the student, {theirs.get(first)!r} of "
            "the teacher); distil from a model with the same tokenizer, or make the student with the teacher's "
            "(model.tokenizer)"
        )
