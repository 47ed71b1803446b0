"""A reward model trained from what is stored: episodes of one task that earned differently, or pairs of answers.

Tasks are cut in two, and what it is worth is told on those it did not see, with `envgym.rewards.ProxyGold`. It
plays nothing and grades nothing: what is better is what the store says.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envgym.credit import Ledger
from envgym.episode import Episode, Group
from envgym.messages import Message, text_of
from envgym.rewards import ProxyGold, heard, told_of
from envgym.store import StoreReader
from envgym_agents.learn.values.implicit import pairs_of
from envgym_agents.learn.values.saved import (
    About,
    SavedReward,
    as_tokens,
    begin_body,
    context_of,
    is_reward_folder,
    open_reward_model,
    reward_model,
    tokenizer_digest,
)
from envgym_agents.learn.warm_start import split_tasks
from envgym_agents.model import check_device, new_model
from envgym_agents.template import spoken, template_for
from envgym_agents.tokenizer import train_tokenizer

__all__ = ["Scored", "Teaching", "pairs_in", "scored_in", "taught"]


@dataclass(frozen=True, slots=True)
class Scored:
    """A conversation and what it earned. Those of one comparison are compared; a task is not split."""

    task: str
    comparison: str
    messages: tuple[Message, ...]
    earned: float


@dataclass(frozen=True, slots=True)
class Teaching:
    """How a reward model is trained.

    model: a folder to begin with, which may be a reward model that then goes on; None: a fresh one of `size`.
    learn, aggregate, count: see `RewardModel`. comparisons: how many an update sees. held: the share of tasks that
    are kept to tell what it is worth.
    """

    model: Path | None = None
    size: str = "1M"
    learn: Literal["pairs", "outcomes"] = "pairs"
    aggregate: Literal["mean", "worst-case", "uncertainty-weighted"] = "uncertainty-weighted"
    count: int = 4
    updates: int = 300
    comparisons: int = 8
    lr: float = 1e-3
    held: float = 0.2
    context: int = 2048
    vocabulary: int = 2000
    seed: int = 0
    device: str = "cpu"


def scored_in(reader: StoreReader, *, channel: str = "reward", only: Collection[str] | None = None) -> list[Scored]:
    """The conversations of a store whose world held, with what each says of a channel ("reward": its whole path's).

    only: the ids that are meant. Episodes that say nothing of the channel, or in which the agent said nothing, are
    left out.
    """
    found: list[Scored] = []
    for group in reader.groups():
        for episode in group.scored:
            earned = group.reward(episode) if channel == "reward" else told_of(episode, channel)
            messages = heard(group, episode)
            if earned is not None and messages and (only is None or episode.id in only):
                found.append(Scored(episode.task_id, episode.task_id, messages, earned))
    return found


def pairs_in(file: Path) -> list[Scored]:
    """Preference pairs of a JSONL file: `prompt`, `chosen` and `rejected` in each line, texts or lists of messages.

    Raises ValueError with the number of a line that is none.
    """
    found: list[Scored] = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            prompt = _messages(raw.get("prompt", []), "user")
            sides = [(*prompt, *_messages(raw[side], "assistant")) for side in ("chosen", "rejected")]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            told = str(error).splitlines()[0]
            raise ValueError(
                f"{file}, line {number}: it must be an object with prompt, chosen and rejected, each a text or a "
                f"list of messages with role and content: {type(error).__name__}: {told}"
            ) from None
        task = hashlib.blake2b("\0".join(text_of(one) for one in prompt).encode(), digest_size=8).hexdigest()
        found += [Scored(task, f"{number}", side, earned) for side, earned in zip(sides, (1.0, 0.0), strict=True)]
    return found


def _messages(given: Any, role: Literal["user", "assistant"]) -> list[Message]:
    if isinstance(given, str):
        return [Message(role=role, content=given)]
    return [Message.model_validate(one) for one in given]


def taught(
    scored: Sequence[Scored], how: Teaching, on_update: Callable[[int, float], None] = lambda n, loss: None
) -> SavedReward:
    """A reward model trained from conversations; `about.trained` has what it is worth on tasks that it did not see.

    Raises ValueError where there is nothing to learn from, and as `open_reward_model` for a folder to begin with.
    """
    check_device(how.device)
    body, tokenizer, earlier = _beginning(scored, how)
    learned, held = split_tasks([one.task for one in scored], how.held, how.seed)
    context = context_of(body, how.context)
    about = About(
        count=how.count, learn=how.learn, aggregate=how.aggregate, context=context, mean=0.0, deviation=1.0,
        tokenizer=tokenizer_digest(tokenizer),
    )  # fmt: skip
    model = reward_model(body, about, device=how.device, rate=how.lr, seed=how.seed)
    if earlier is not None:
        model.network.head.load_state_dict(earlier.model.network.head.state_dict())
    template = template_for(tokenizer)
    groups = _compared(scored, template, context)
    training = [group for group in groups if group.task_id in learned and _teaches(group, how.learn)]
    if not training:
        raise ValueError(_nothing(how.learn))
    rng = np.random.default_rng([how.seed, 21])
    for update in range(how.updates):
        chosen = rng.permutation(len(training))[: how.comparisons]
        on_update(update + 1, model.update(Ledger.of([training[k] for k in sorted(chosen.tolist())]))["loss"])
    kept = [group for group in groups if group.task_id in held]
    return _described(SavedReward(model, tokenizer, template, about), training, kept)


def _beginning(scored: Sequence[Scored], how: Teaching) -> tuple[Any, Any, SavedReward | None]:
    """Model, tokenizer, and the reward model that goes on, where it is one."""
    if how.model is None:
        texts = [spoken(message) for one in scored for message in one.messages]
        tokenizer = train_tokenizer(texts, vocab_size=how.vocabulary)
        body = new_model(len(tokenizer), size=how.size, seed=how.seed, context=how.context)
        return body.to(how.device), tokenizer, None
    earlier = open_reward_model(str(how.model), device=how.device) if is_reward_folder(how.model) else None
    if earlier is not None and (earlier.about.count, earlier.about.learn) != (how.count, how.learn):
        raise ValueError(
            f"{how.model} has {earlier.about.count} heads that learn from {earlier.about.learn}, and "
            f"{how.count} from {how.learn} are asked for; ask for the same, or begin with another folder"
        )
    return *begin_body(how.model, device=how.device), earlier


def _compared(scored: Iterable[Scored], template: Any, context: int) -> list[Group]:
    """The conversations as tokens, in groups of those that are compared."""
    members: dict[tuple[str, str], list[Episode]] = {}
    for one in scored:
        group = members.setdefault((one.task, one.comparison), [])
        name = f"{one.comparison}-{len(group)}"
        told = as_tokens(template, one.messages, context=context, name=name, task=one.task, reward=one.earned)
        if told is not None:
            group.append(told)
    return [Group(task, tuple(episodes)) for (task, _), episodes in members.items() if episodes]


def _teaches(group: Group, learn: str) -> bool:
    """Whether anything is learned from a group: of pairs, only where two earned differently."""
    return learn == "outcomes" or len({episode.reward for episode in group}) > 1


def _nothing(learn: str) -> str:
    if learn == "outcomes":
        return "there is nothing to learn from: no conversation of the training tasks has a score"
    return (
        "there is nothing to learn from: no two conversations of a training task earned differently; collect "
        "several of each task (envgym collect --group 8), name another --channel, or use --learn outcomes"
    )


def _described(made: SavedReward, training: Sequence[Group], held: Sequence[Group]) -> SavedReward:
    """The same with what its scores mean, and what it is worth: on held-out tasks, if they tell anything."""
    scores = made.raw(Ledger.of(training))
    deviation = float(scores.std())
    found: dict[str, float | int | str | None] = {
        "conversations": len(scores), "held_conversations": sum(map(len, held)),
        "training_accuracy": _accuracy(made, training), "held_accuracy": _accuracy(made, held),
        "held_right": _right(made, held),
    }  # fmt: skip
    means = {"mean": float(scores.mean()), "deviation": deviation if deviation > 0 else 1.0}
    return replace(made, about=made.about.model_copy(update={**means, "trained": found}))


def _accuracy(made: SavedReward, groups: Sequence[Group]) -> float | None:
    """Of two that are compared and earned differently, how often the better one scores higher; None without any."""
    if not groups:
        return None
    ledger = Ledger.of(groups)
    pairs, scores = pairs_of(ledger), made.raw(ledger)
    return float(np.mean([scores[better] > scores[worse] for better, worse in pairs])) if pairs else None


def _right(made: SavedReward, groups: Sequence[Group]) -> float | None:
    """The same over all conversations, whatever their task (`ProxyReport.right`)."""
    if not groups:
        return None
    ledger, track = Ledger.of(groups), ProxyGold()
    track.extend(list(zip(made.raw(ledger).tolist(), ledger.outcome_G.tolist(), strict=True)))
    return track.report().right
