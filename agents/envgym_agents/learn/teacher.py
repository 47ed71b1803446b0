"""Whether a model folder can teach a student: it must mean the same by every id; and one that vLLM serves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig

from envgym_agents.hub import SAFELY
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.config_sampler import Sampler
from envgym_agents.learn.pack import Row
from envgym_agents.model import processor_of, sees
from envgym_agents.policies.chosen import engine_settings, opener
from envgym_agents.policies.vllm.telling import Telling
from envgym_agents.tokenizer import load_tokenizer

__all__ = ["Teacher", "check_teacher", "check_teacher_sight", "check_tokenizers", "served_teacher", "told"]

Teacher = Callable[[Sequence[Sequence[int]]], list[NDArray[np.float32]]]
"""For each context the log-probabilities of its ids but the first."""

_FIELD = "reinforce.loss.distill.teacher"


def check_teacher(config: TrainConfig, tokenizer: Any, width: int) -> None:
    """Raise ValueError where the configured teacher, if there is one, cannot say how likely the student's ids are.

    tokenizer: the student's. width: how many ids its output layer has; an exact divergence needs as many of both.
    """
    wanted = config.reinforce.loss.distill
    if not wanted.teacher:
        return
    check_tokenizers(tokenizer, load_tokenizer(wanted.teacher), wanted.teacher)
    shape = AutoConfig.from_pretrained(wanted.teacher, **SAFELY)
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


def check_teacher_sight(config: TrainConfig) -> None:
    """Raise ValueError where student and configured teacher would not see the same images, if one of them sees."""
    loss, path = config.reinforce.loss, config.model.path
    teacher = loss.distill.teacher
    own, theirs = path is not None and sees(path), sees(teacher)
    why = ""
    if own != theirs:
        who = "teacher sees, and the student" if theirs else "student sees, and this teacher"
        why = f"the {who} reads text only: choose two models that see, or two of text"
    elif own and loss.served:
        why = "both models see, and vLLM gives a teacher no images: set reinforce.loss.distill.by = 'learner'"
    elif path is not None and own and processor_of(path) != processor_of(teacher):
        why = "it has another processor of images than the student, so images would be other tokens: make them one"
    if why:
        raise ValueError(f"{_FIELD} = {teacher!r}: {why}")


@contextmanager
def served_teacher(config: TrainConfig) -> Iterator[Teacher | None]:
    """The configured teacher behind vLLM, where it is served; begun with the first question.

    Raises VllmMissing, a ValueError, where there is no vLLM.
    """
    loss = config.reinforce.loss
    if not loss.served:
        yield None
        return
    options = config.sampler if config.sampler.kind == "vllm" else Sampler(kind="vllm")
    dtype = "float32" if config.device == "cpu" else "auto"
    settings = engine_settings(options, max_length=config.model.context + 1, dtype=dtype)
    with Telling(loss.distill.teacher, opener(options), settings) as teacher:
        yield teacher


def told(teacher: Teacher, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
    """What a served teacher says of each row's sampled tokens [K]. Raises ValueError for restricted tokens."""
    for row in rows:
        if any(choice is not None for choice in row.allowed):
            raise ValueError(
                f"episode {row.episode}: its tokens were drawn from what is legal, and a teacher that vLLM serves "
                f"tells of the whole vocabulary; set {_FIELD.replace('teacher', 'by')} = 'learner'"
            )
    found = teacher([row.ids.tolist() for row in rows])
    return [said[row.at - 1] for said, row in zip(found, rows, strict=True)]


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
