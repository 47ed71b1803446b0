"""A trained reward model as a folder of its own, and as what a channel of a reward plan asks.

The folder is an ordinary model folder (weights, configuration, tokenizer with its chat template) and two files
more: `reward_head.safetensors`, the heads that score, and `reward_model.json`, what their scores mean. A
conversation is laid out by the folder's own template, in training and afterwards by the same function, and read at
the end of its last answer; of one that is too long the last ids are read. It trains nothing; see
`envgym_agents.learn.values.teaching`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from envgym.credit import Ledger
from envgym.credit.ledger import Floats
from envgym.env import THE_AGENT, Step, StopReason
from envgym.episode import Episode, Group, Turn
from envgym.formats.texts import clean
from envgym.messages import Message
from envgym.rewards.channels import Score
from envgym_agents.eyes import eyes_of
from envgym_agents.learn.values.network import Body
from envgym_agents.learn.values.reward_model import AGGREGATES, RewardModel
from envgym_agents.model import load_model, max_length, save_model
from envgym_agents.template import FolderTemplate, OwnTemplate, spoken, template_for

__all__ = [
    "About",
    "SavedReward",
    "as_tokens",
    "begin_body",
    "is_reward_folder",
    "open_reward_model",
    "tokenizer_digest",
]

_ABOUT, _HEAD = "reward_model.json", "reward_head.safetensors"


class About(BaseModel):
    """What the scores of a folder mean.

    learn: "pairs", whose scores are told less `mean` and over `deviation` (of the conversations it was trained on:
    only their differences mean something); "outcomes", whose scores are told as the probability of success.
    tokenizer: the digest of the one that it was trained with. trained: what its training found, for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(ge=1)
    learn: Literal["pairs", "outcomes"]
    aggregate: Literal["mean", "worst-case", "uncertainty-weighted"]
    context: int = Field(ge=1)
    mean: float = Field(allow_inf_nan=False)
    deviation: float = Field(gt=0, allow_inf_nan=False)
    tokenizer: str
    trained: dict[str, float | int | str | None] = {}


@dataclass(frozen=True, slots=True)
class SavedReward:
    """A reward model with its template; satisfies `envgym.rewards.LearnedReward`."""

    model: RewardModel
    tokenizer: Any
    template: OwnTemplate | FolderTemplate
    about: About

    def score(self, messages: Sequence[Message]) -> Score:
        """What a conversation is worth; None where nothing was answered. The same messages have the same score."""
        told = as_tokens(self.template, messages, context=self.about.context)
        if told is None:
            return None
        return float(self.meant(self.raw(Ledger.of([Group(told.task_id, (told,))])))[0])

    def share(self, messages: Sequence[Message]) -> Score:
        """The score as a share of 1: of outcomes the probability of success, of pairs its logistic function."""
        score = self.score(messages)
        if score is None or self.about.learn == "outcomes":
            return score
        return float(1 / (1 + np.exp(-score)))

    def raw(self, ledger: Ledger) -> NDArray[np.float64]:
        """The heads' scores of rows, made one [G]."""
        return np.asarray(self.model.aggregate(self.model.scores(ledger)))

    def meant(self, scores_G: Floats) -> NDArray[np.float64]:
        """Scores as a channel tells them [G]; see `About.learn`."""
        scores = np.asarray(scores_G, np.float64)
        if self.about.learn == "outcomes":
            return 1 / (1 + np.exp(-scores))
        return (scores - self.about.mean) / self.about.deviation

    def save(self, folder: Path) -> None:
        """Write all of it; the description last, without which a folder is no reward model."""
        save_model(folder, self.model.network.body.scorer.model, self.tokenizer)
        save_file(self.model.network.head.state_dict(), folder / _HEAD)
        (folder / _ABOUT).write_text(self.about.model_dump_json(indent=1) + "\n")


def as_tokens(
    template: OwnTemplate | FolderTemplate, messages: Sequence[Message], *, context: int, name: str = "told",
    task: str = "told", reward: float | None = None,
) -> Episode | None:  # fmt: skip
    """A conversation up to its last answer as an episode of one turn, which samples that answer; None without one.

    Its ids are the last `context` of what the template makes of it; the answer's own come last.
    """
    ends = max((k + 1 for k, message in enumerate(messages) if message.role == "assistant"), default=0)
    if not ends:
        return None
    conversation, waiting, said = template.open(), list[Message](), list[int]()
    for message in messages[:ends]:
        text = clean(spoken(message))  # no tokenizer reads half surrogate pairs, which models do say
        if message.role != "assistant":
            waiting.append(Message(role=message.role, content=text))
            continue
        conversation.show(waiting)
        waiting = []
        action = template.actions.get(text)
        said = [*template.encode(text), template.stop_ids[-1]] if action is None else [action]
        conversation.said(said)
    ids = np.array(conversation.ids[-context:], np.int32)
    own = min(len(said), len(ids))
    step = Step(observation=(), reward=reward)
    turn = Turn(
        THE_AGENT,
        (messages[ends - 1],),
        step,
        ids[: len(ids) - own],
        ids[len(ids) - own :],
        np.zeros(own, np.float32),
    )
    return Episode(name, task, Step(observation=()), (turn,), 0, stop=StopReason.SUBMITTED)


def is_reward_folder(folder: str | Path) -> bool:
    """Whether a folder holds a reward model and not only a model."""
    return (Path(folder) / _ABOUT).is_file()


def begin_body(folder: str | Path, *, device: str) -> tuple[Any, Any]:
    """The model of a folder in float32, and its tokenizer. Raises ValueError without weights, or if it sees."""
    try:
        model, tokenizer = load_model(folder, device=device, dtype="float32")
    except OSError as error:
        raise ValueError(
            f"{str(folder)!r} holds no model that can be read: {str(error).splitlines()[0]}"
        ) from error
    if eyes_of(model) is not None:
        raise ValueError(f"{str(folder)!r} holds a model that sees; reward models read text only")
    return model, tokenizer


def tokenizer_digest(tokenizer: Any) -> str:
    """Of a tokenizer's vocabulary and chat template: what ids of a conversation depend on, wherever it lies."""
    told = json.dumps([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def open_reward_model(path: str, *, device: str = "cpu") -> SavedReward:
    """The reward model of a folder, read once for a state of its files.

    Raises ValueError, one line, for what is no such folder, a broken file, or a tokenizer or heads that are not
    those that were trained together.
    """
    folder = Path(path)
    if not is_reward_folder(folder):
        raise ValueError(
            f"path = {path!r} is no reward model: there is no {_ABOUT} in it; make one with `envgym reward-model`"
        )
    files = sorted(file for file in folder.iterdir() if file.is_file())
    state = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _opened(str(folder.resolve()), device, state)


@lru_cache(maxsize=4)
def _opened(path: str, device: str, state: tuple[tuple[str, int, int], ...]) -> SavedReward:
    folder = Path(path)
    try:
        about = About.model_validate_json((folder / _ABOUT).read_text())
    except (ValidationError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[:3]
        raise ValueError(f"path = {path!r}: {_ABOUT} cannot be read: {' '.join(first)}") from error
    body, tokenizer = begin_body(folder, device=device)
    if tokenizer_digest(tokenizer) != about.tokenizer or len(tokenizer) > body.config.vocab_size:
        raise ValueError(
            f"path = {path!r}: its tokenizer or chat template is not the one that it was trained with "
            f"({len(tokenizer)} tokens; the model has {body.config.vocab_size}); put that back, or train it anew"
        )
    body.requires_grad_(False)
    model = reward_model(body, about, device=device)
    model.network.head.load_state_dict(_head(folder, model.network.head.state_dict(), device))
    return SavedReward(model, tokenizer, template_for(tokenizer), about)


def _head(folder: Path, wanted: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    """The heads' weights. Raises ValueError where they are not there or are another model's."""
    try:
        found: dict[str, Any] = load_file(folder / _HEAD, device=device)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"path = {str(folder)!r}: {_HEAD} cannot be read: {str(error).splitlines()[0]}") from error
    shapes = ({name: tuple(part.shape) for name, part in each.items()} for each in (found, wanted))
    if next(shapes) != next(shapes):
        raise ValueError(
            f"path = {str(folder)!r}: {_HEAD} is of another model: its parts do not fit this one's width and count"
        )
    return found


def reward_model(body: Any, about: About, *, device: str, rate: float | None = None, seed: int = 0) -> RewardModel:
    """What a description asks for over a model, with fresh heads. rate: at which both learn, if any."""
    read = Body(body, trains=rate is not None, max_tokens=max(8192, about.context), device=device)
    return RewardModel(
        read,
        count=about.count,
        learn=about.learn,
        aggregate=AGGREGATES[about.aggregate],
        lr=rate or 1e-3,
        seed=seed,
    )


def context_of(model: Any, most: int) -> int:
    """How many ids a model reads: `most`, or its own bound where that is less."""
    return min(most, max_length(model))
