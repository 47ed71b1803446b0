"""Who learns: a model with its tokenizer, the policy that samples from it, and agents that act through it.

A fresh student gets a tokenizer trained on the expert's observations with one token per action; a model folder
keeps its own and acts in free text. `retrace` says what another agent's episode looks like in a student's tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envgym.cast import Cast
from envgym.env import THE_AGENT, Env
from envgym.episode import Episode, Turn
from envgym.limits import Sampling
from envgym.messages import Message, text_of
from envgym.policy import Completion, Policy, Prompt, Reply, Session, VersionRun
from envgym.tools import compact
from envgym_agents.chat import LMAgents, tools_message
from envgym_agents.eyes import eyes_of
from envgym_agents.learn.adapters import adapt, adapted, merged_weights
from envgym_agents.learn.config import TrainConfig
from envgym_agents.model import load_model, max_length, new_model, save_model, weights_digest
from envgym_agents.policies.chosen import ModelPolicy, policy_over
from envgym_agents.template import FolderTemplate, OwnTemplate, spoken, template_for
from envgym_agents.tokenizer import load_tokenizer, train_tokenizer

__all__ = ["Student", "begin_model", "known_actions", "load_student", "new_student"]


@dataclass(slots=True)
class Student:
    """A model, its tokenizer, and the one policy over it; an async context manager that owns the policy.

    weights: the digest of the folder that it was loaded from; "" for a fresh one.
    """

    model: Any
    tokenizer: Any
    config: TrainConfig
    weights: str = ""
    policy: ModelPolicy = field(init=False)
    template: OwnTemplate | FolderTemplate = field(init=False)

    def __post_init__(self) -> None:
        self.template = template_for(self.tokenizer, eyes_of(self.model))
        self.policy = policy_over(
            self.model,
            self.config.sampler,
            max_length=min(self.config.model.context, max_length(self.model)),
            seed=self.config.seed,
            weights_of=merged_weights if adapted(self.model) else None,
        )

    def agents(self, *, temperature: float) -> LMAgents:
        """Agents that sample from the present weights; 0 is greedy."""
        return self._agents(self.policy, temperature)

    @property
    def sampling(self) -> Sampling:
        """How the rollouts that train sample free text."""
        model = self.config.model
        return Sampling(
            max_tokens=model.answer, temperature=model.temperature, stop_ids=tuple(self.template.stop_ids)
        )

    def _agents(self, policy: Policy, temperature: float) -> LMAgents:
        sampling = Sampling(max_tokens=self.config.model.answer, temperature=temperature)
        return LMAgents(policy, self.template, "compact" if self.template.actions else "text", sampling)

    async def retrace(self, episode: Episode, env: Env) -> Episode:
        """The episode as this student's tokens would have written it, for imitation; log-probabilities are 0.

        env: any environment of its kind, for the tools that the student is shown. Of several actors each has a
        context of its own, as when they are played (`envgym.cast`); who has an agent of its own (`model.others`)
        stays without tokens. The messages and steps stay as they were.
        Raises ValueError for an action that the student has no token for or that was not legal.
        """
        said = _Said(self.policy.max_length)
        cast = Cast(THE_AGENT, self._agents(said, 1.0).for_env(env, seed=0), seed=0)
        turns, step = [], episode.root
        for turn in episode.turns:
            if turn.actor in self.config.model.others:
                reply = Reply(turn.action)
            else:
                said.ids = self._ids(turn.action.message)
                reply = await cast[turn.actor].act(step)
            turns.append(replace(Turn.of(turn.actor, reply, turn.step), messages=turn.messages))
            step = turn.step
        for agent in cast.everyone:
            await agent.close()
        return replace(episode, turns=tuple(turns))

    def _ids(self, message: Message) -> tuple[int, ...]:
        """What the student would have sampled to say a message."""
        text = compact_text(message)
        if self.template.actions:
            if text not in self.template.actions:
                raise ValueError(f"the expert did {text!r}, for which the student's tokenizer has no token")
            return (self.template.actions[text],)
        return (*self.template.encode(spoken(message)), self.template.stop_ids[-1])

    def save(self, path: Path) -> None:
        """Write model and tokenizer as a model folder, adapters added to the weights that they change."""
        weights = merged_weights(self.model) if adapted(self.model) else None
        save_model(path, self.model, self.tokenizer, weights=weights)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.policy.close()


def compact_text(message: Message) -> str:
    """A message's one call as a compact string; its text where it has none."""
    return compact(message.tool_calls[0]) if message.tool_calls else text_of(message)


def known_actions(episodes: Iterable[Episode], env: Env, *, numbers: int = 0) -> list[str]:
    """Every compact action that may ever be legal, sorted.

    What the environment declares (an attribute `actions`), what the episodes list, and where they list numbers
    ("apply 3"), the same with every number from 1 to `numbers`.
    """
    found = set(getattr(env, "actions", None) or ())
    for episode in episodes:
        for step in (episode.root, *(turn.step for turn in episode.turns)):
            found |= set(step.legal or ())
    for verb in {action.rpartition(" ")[0] for action in found if action.rpartition(" ")[2].isdigit()}:
        found |= {f"{verb} {number}".strip() for number in range(1, numbers + 1)}
    return sorted(found, key=_natural)


def _natural(action: str) -> list[tuple[int, int, str]]:
    """Numbers in an action sort by value: "apply 9" before "apply 10"."""
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in action.split()]


def new_student(config: TrainConfig, episodes: Sequence[Episode], env: Env) -> Student:
    """The student that a configuration begins with.

    With `ModelConfig.path`, that folder's. Else a fresh transformer with the tokenizer of `ModelConfig.tokenizer`,
    or one that is trained on the episodes' observations and, where no compact actions are known, on what the
    expert said; raises ValueError without any.
    """
    if config.model.path is not None:
        return load_student(config, Path(config.model.path))
    if config.model.tokenizer is not None:
        return _fresh(config, load_tokenizer(config.model.tokenizer))
    if not episodes:
        raise ValueError(
            "a fresh model needs the expert's episodes for its tokenizer, but there are none: check `expert`, "
            "raise warm_start.episodes_per_task, or give a model folder (model.path, or model.tokenizer)"
        )
    texts = [
        text_of(message)
        for episode in episodes
        for step in (episode.root, *(turn.step for turn in episode.turns))
        for message in step.observation
    ]
    actions = known_actions(episodes, env, numbers=config.model.numbers)
    if not actions:  # it will write free text: that of the expert's answers, and of the tools that it is shown
        # as often as it is read, which is in every episode
        texts += [text_of(tools_message(env.tools))] * len(episodes) if env.tools else []
        texts += [spoken(turn.action.message) for episode in episodes for turn in episode.turns]
    try:
        return _fresh(config, train_tokenizer(texts, actions=actions, vocab_size=config.model.vocabulary))
    except ValueError as error:
        raise ValueError(f"model.vocabulary = {config.model.vocabulary}: {error}") from error


def _fresh(config: TrainConfig, tokenizer: Any) -> Student:
    model = new_model(len(tokenizer), size=config.model.size, seed=config.seed, context=config.model.context)
    return Student(model.to(config.device), tokenizer, config)


def load_student(config: TrainConfig, path: Path) -> Student:
    """The student saved in a model folder, in float32 (small steps of bfloat16 weights would be lost).

    With ``model.lora_rank``, it has fresh adapters, which change nothing until they are trained.
    """
    model, tokenizer = begin_model(config, path)
    return Student(model, tokenizer, config, weights_digest(path))


def begin_model(config: TrainConfig, path: Path) -> tuple[Any, Any]:
    """The model of a folder as training begins with it, and its tokenizer: see `load_student`."""
    model, tokenizer = load_model(path, device=config.device, dtype="float32")
    if config.model.lora_rank:
        model = adapt(model, rank=config.model.lora_rank, alpha=config.model.lora_alpha, seed=config.seed)
    return model, tokenizer


class _Nothing:
    """The session of a policy that computes nothing."""

    def fork(self) -> Session:
        return self

    def close(self) -> None:
        pass


class _Said:
    """A policy that "samples" what it was told to; its log-probabilities mean nothing."""

    def __init__(self, max_length: int) -> None:
        self.version = 0
        self.max_length = max_length
        self.ids: tuple[int, ...] = ()

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        if sampling.allowed is not None and self.ids[0] not in sampling.allowed:
            raise ValueError(f"the expert's action has token {self.ids[0]}, which was not legal then")
        return Completion(self.ids, (0.0,) * len(self.ids), (VersionRun(0, self.version),), "stop")

    def session(self) -> Session:
        return _Nothing()
