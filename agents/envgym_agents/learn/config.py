"""What a training run is: one frozen value, read from TOML, checked before anything starts.

A wrong value is refused with one line that names the field, the value and the bound. Nothing is silently ignored.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from envgym.limits import Limits
from envgym.options import hint
from envgym.others import Other
from envgym_agents.learn.config_cluster import Cluster
from envgym_agents.learn.config_loop import Curriculum, LoopSettings, Past, Watch
from envgym_agents.learn.config_loss import LearnerMemory, Loss, refuse_unused
from envgym_agents.learn.config_reinforce import Critic, Forks, Frozen, Members, Reinforce, Rewards
from envgym_agents.learn.config_sampler import Sampler

__all__ = [
    "Cluster", "Critic", "Curriculum", "Evaluate", "Forks", "LearnerMemory", "LoopSettings", "Loss", "Members",
    "ModelConfig", "Past", "Reinforce", "Rewards", "Sampler", "TrainConfig", "WarmStart", "Watch", "checked",
    "load", "override",
]  # fmt: skip


class ModelConfig(Frozen):
    """Who learns: a small transformer made from scratch, or any Hugging Face model folder or hub name.

    A fresh one has a tokenizer trained on the warm start's texts, in which every compact action is one token.
    """

    path: str | None = None
    """a model folder or hub name (organisation/name, or with @revision); none makes a fresh transformer"""
    tokenizer: str | None = None
    """of a fresh one: the model folder whose tokenizer it takes; none: one is trained on what the expert did"""
    size: str = "1M"
    """of a fresh one: tiny, 1M, 2M, 4M"""
    vocabulary: int = Field(default=2000, ge=300)
    """ids of a fresh one's tokenizer"""
    numbers: int = Field(default=48, ge=0)
    """numbered actions, such as "apply 3", are one token up to this number"""
    context: int = Field(default=2048, ge=128)
    """tokens; an episode that outgrows it is compacted"""
    answer: int = Field(default=256, ge=1)
    """the most tokens of one answer in free text; below `context`"""
    temperature: float = Field(default=1.0, gt=0)
    """of the rollouts that train"""
    lora_rank: int = Field(default=0, ge=0)
    """rank of low-rank adapters, of a model folder: they train in the place of all weights; 0: all weights do"""
    lora_alpha: float = Field(default=16.0, gt=0)
    """what adapters add counts lora_alpha / lora_rank times"""
    others: dict[str, Other] = Field(default_factory=dict)
    """who plays other actors of the world and never trains: user = "chat", or a table of agent, options, tools"""

    @model_validator(mode="after")
    def _answer_fits(self) -> Self:
        if self.lora_rank and self.path is None:
            raise ValueError(
                f"lora_rank {self.lora_rank} needs a model folder (path): a fresh model has nothing to keep"
            )
        if not self.lora_rank:
            refuse_unused(self, ("lora_alpha",), "model.lora_rank is 0")
        if self.tokenizer is not None and self.path is not None:
            raise ValueError(f"tokenizer {self.tokenizer!r} has no use where path names a model, which has its own")
        if self.answer >= self.context:
            raise ValueError(f"answer {self.answer} must be below context {self.context}")
        return self


class WarmStart(Frozen):
    """Supervised learning on the expert's trajectories.

    Once `min_updates` are done, a validation loss that has not improved by the relative amount `tolerance` for
    `patience` evaluations is a plateau: the learning rate is divided by `decay` and training goes on; after
    `decays` such drops the next plateau ends it.
    """

    episodes_per_task: int = Field(default=1, ge=0)
    """episodes that the expert plays"""
    store: str | None = None
    """a store of episodes to imitate offline, in the place of the expert's; `envgym imagine` makes some"""
    imitate: Literal["successes", "all"] = "successes"
    """the expert's successful episodes, or every one whose world did not fail"""
    min_updates: int = Field(default=800, ge=0)
    """updates before a plateau counts"""
    max_updates: int = Field(default=4000, ge=0)
    """most updates; at least `min_updates`"""
    evaluate_every: int = Field(default=100, ge=1)
    """updates between two validation losses"""
    patience: int = Field(default=3, ge=1)
    """evaluations without improvement that make a plateau"""
    tolerance: float = Field(default=0.005, ge=0, lt=1)
    """the relative improvement that counts"""
    decays: int = Field(default=1, ge=0)
    """plateaus that divide the learning rate; the next one ends the warm start"""
    decay: float = Field(default=5.0, gt=1)
    """what the learning rate is divided by"""
    rows: int = Field(default=32, ge=1)
    """token sequences in one update"""
    lr: float = Field(default=1e-3, gt=0)
    """learning rate"""
    warmup: int = Field(default=50, ge=0)
    """updates in which the learning rate rises"""
    weight_decay: float = Field(default=0.01, ge=0)
    """of AdamW"""
    lm_weight: float = Field(default=0.1, ge=0)
    """weight of the loss on the observations' tokens, which teaches what the world's text looks like"""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """share of the training tasks that is held back for the validation loss"""
    minutes: float | None = Field(default=None, gt=0)
    """most minutes"""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.max_updates < self.min_updates:
            raise ValueError(f"max_updates {self.max_updates} is below min_updates {self.min_updates}")
        return self


class Evaluate(Frozen):
    """Success on held-out tasks: with draws, and greedily."""

    split: str = "heldout"
    """the tasks that test"""
    tasks: int | None = Field(default=None, ge=1)
    """how many of them, evenly spread over their order; none: all"""
    attempts: int = Field(default=1, ge=1)
    """episodes per task"""
    temperature: float = Field(default=1.0, ge=0)
    """of the draws"""
    greedy: bool = True
    """also without draws"""
    every: int = Field(default=0, ge=0)
    """RL steps between two quick evaluations; 0: none"""
    quick: int = Field(default=64, ge=1)
    """tasks of a quick evaluation"""
    baselines: tuple[str, ...] = ("random",)
    """agents, by registry name, that play the held-out tasks too"""
    bootstrap: int = Field(default=10_000, ge=100)
    """draws of an interval"""
    cluster: str = "package"
    """the task metadata that says which tasks are alike, for the second interval"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if not self.every:
            refuse_unused(self, ("quick",), "evaluate.every is 0")
        return self


class TrainConfig(Frozen):
    """One training run. `envgym train --settings` prints every field with its default and bound."""

    env: str = "code-repair"
    """the environment, by registry name"""
    env_options: dict[str, Any] = Field(default_factory=dict)
    """go to the environment's `make`"""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """go to its task set"""
    sandbox: str = "auto"
    """the sandbox backend, where the environment needs one"""
    split: str = "train"
    """the tasks that train"""
    tasks: Annotated[int, Field(ge=1)] | str | None = None
    """how many of them, evenly, or a file with an id a line, as `envgym data impact` writes; none: all"""
    turns: int = Field(default=24, ge=1)
    """bound on an episode's length"""
    step_s: float = Field(default=Limits().step_s, gt=0)
    """seconds of one step of a world, waiting included; a slower one is the world's failure"""
    expert: str = "expert"
    """the agent, by registry name, whose trajectories warm up; the default one knows code-repair only"""
    agent_options: dict[str, Any] = Field(default_factory=dict)
    """of the expert, wherever it plays; every other agent has its own defaults"""
    model: ModelConfig = ModelConfig()
    warm_start: WarmStart = WarmStart()
    reinforce: Reinforce = Reinforce()
    evaluate: Evaluate = Evaluate()
    watch: Watch = Watch()
    seed: int = Field(default=0, ge=0)
    """fixes everything that is drawn"""
    device: str = "cpu"
    """where the model runs, as torch names it"""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """of torch; none: as torch chooses"""
    concurrency: int = Field(default=64, ge=1)
    """episodes played at once"""
    snapshot_every: int = Field(default=0, ge=0)
    """turns between snapshots of worlds, so that a resumed run plays fewer again; 0: none"""
    max_tokens: int = Field(default=8192, ge=64)
    """computed positions per forward pass; a longer row goes alone: memory, not mathematics"""
    learner: LearnerMemory = LearnerMemory()
    sampler: Sampler = Sampler()
    cluster: Cluster = Cluster()
    max_failures: float = Field(default=0.5, ge=0, le=1)
    """a run stops when the world failed a larger share of the episodes of a step or an evaluation"""

    @model_validator(mode="after")
    def _played_elsewhere(self) -> Self:
        if self.cluster.workers and self.snapshot_every:
            raise ValueError(
                f"snapshot_every {self.snapshot_every}: snapshots are of one host, and cluster.workers is "
                f"{self.cluster.workers}; episodes that are lost there begin again"
            )
        if self.cluster.workers and self.reinforce.critic.fresh:
            raise ValueError(
                f"reinforce.critic.fresh {self.reinforce.critic.fresh} samples in this process, and "
                f"cluster.workers is {self.cluster.workers}: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _divided_once(self) -> Self:
        if self.cluster.learners and self.learner.processes > 1:
            raise ValueError(
                f"learner.processes {self.learner.processes} are of this host, and cluster.learners is "
                f"{self.cluster.learners}: leave one of them out"
            )
        if not self.cluster.learners and self.learner.processes == 1:
            refuse_unused(
                self.learner, ("restarts", "patience_s"), "the learner is in one process, which `envgym train` is"
            )
        return self

    @model_validator(mode="after")
    def _has_what_it_imitates(self) -> Self:
        weight, warm = self.reinforce.loss.streams.demonstrations, self.warm_start
        if weight and not warm.episodes_per_task and warm.store is None:
            raise ValueError(
                f"reinforce.loss.streams.demonstrations {weight:g} needs what an expert did: raise "
                "warm_start.episodes_per_task, or give a warm_start.store"
            )
        return self

    @model_validator(mode="after")
    def _told_by_vllm(self) -> Self:
        served = self.reinforce.loss.served
        if served and self.model.temperature != 1:
            raise ValueError(
                f"reinforce.loss.distill.by 'vllm' with model.temperature {self.model.temperature}: vLLM tells of "
                "the teacher's own distribution, at temperature 1"
            )
        if served and self.learner_processes > 1:
            raise ValueError(
                f"reinforce.loss.distill.by 'vllm' with a learner of {self.learner_processes} processes, each of "
                "which would ask: make it one, or leave the teacher to the learner"
            )
        return self

    @model_validator(mode="after")
    def _renews_here(self) -> Self:
        every = self.reinforce.loss.mask.renew_every
        if every and (self.learner_processes > 1 or not self.masks_sampler):
            raise ValueError(
                f"reinforce.loss.mask.renew_every {every} copies the policy within one process, and here are "
                f"{self.learner_processes} that learn, sampler.kind {self.sampler.kind!r} and cluster.workers "
                f"{self.cluster.workers}: make them 1, 'transformers' and 0, or renew_every 0"
            )
        return self

    @property
    def masks_sampler(self) -> bool:
        """Whether who samples can be masked (`reinforce.loss.mask`): a model of this process."""
        return self.sampler.kind == "transformers" and self.cluster.workers == 0

    @property
    def learner_processes(self) -> int:
        """How many processes learn, wherever they are."""
        return self.cluster.learners or self.learner.processes

    @property
    def players(self) -> list[tuple[str, str]]:
        """(field, name) of every registered agent that a training run plays with."""
        return [("expert", self.expert), *(("evaluate.baselines", name) for name in self.evaluate.baselines)]

    @model_validator(mode="after")
    def _gap_to_something(self) -> Self:
        if self.watch.gap and not self.reinforce.metric:
            raise ValueError("watch.gap is a gap to reinforce.metric, and that names no channel")
        return self


def load(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
) -> TrainConfig:  # fmt: skip
    """The configuration of a TOML file over `base`, then `over`, with ``section.field=value`` overrides on top.

    Raises ValueError with one line per mistake: the file or override, the field, the value, the bound.
    """
    values: dict[str, Any] = {}
    _merge(values, base or {})
    if path is not None:
        try:
            with open(path, "rb") as file:
                _merge(values, tomllib.load(file))
        except OSError as error:
            raise ValueError(f"configuration {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"configuration {path} is not TOML: {error}") from error
    _merge(values, over or {})
    for text in overrides:
        override(values, text)
    return checked(values)


def checked(values: Mapping[str, Any]) -> TrainConfig:
    """The configuration of nested values. Raises ValueError with one line per mistake."""
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError("\n".join(_line(one) for one in error.errors())) from None


def override(values: dict[str, Any], text: str) -> None:
    """Set one ``section.field=value`` in nested `values`; the value is read as TOML, else as a plain string."""
    name, found, raw = text.partition("=")
    if not found or not name.strip():
        raise ValueError(f"override {text!r} is not of the form section.field=value")
    *sections, last = name.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"override {text!r}: {section!r} is a value, not a section")
    try:
        values[last] = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        values[last] = None if raw.strip() == "none" else raw.strip()


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _merge(into[name], value)
        else:
            into[name] = value


def _line(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "extra_forbidden":
        return f"{field}: there is no such field; {hint(str(error['loc'][-1]), _fields(error['loc'][:-1]))}"
    if error["type"] in ("model_type", "dict_type"):
        return f"{field} = {error['input']!r}: {field} is a section; set its fields, as in {field}.name=value"
    return f"{field} = {error['input']!r}: {error['msg'].removeprefix('Value error, ')}"


def _fields(section: Sequence[Any]) -> list[str]:
    """The fields of a section, named by the path to it."""
    model: Any = TrainConfig
    for name in section:
        fields = getattr(model, "model_fields", None)
        model = fields[name].annotation if fields else get_args(model)[-1]  # of a table by names, what they are of
    return list(model.model_fields)
