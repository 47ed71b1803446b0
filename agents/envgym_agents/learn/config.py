"""What a training run is: one frozen value, read from TOML, checked before anything starts.

A wrong value is refused with one line that names the field, the value and the bound. Nothing is silently ignored.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envgym.limits import Limits
from envgym.registry import hint

__all__ = ["Evaluate", "ModelConfig", "Reinforce", "TrainConfig", "WarmStart", "load", "override"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(_Frozen):
    """Who learns: a small transformer made from scratch, or any local Hugging Face model folder.

    path: a model folder; None makes a fresh transformer of a named size (`envgym_agents.model.SIZES`), with a
    tokenizer of `vocabulary` ids trained on the warm start's texts, in which every compact action is one token
    (numbered ones, such as "apply 3", for all numbers up to `numbers`). context: tokens; an episode that outgrows
    it is compacted. answer: the most tokens of one answer in free text. temperature: of the rollouts that train.
    """

    path: str | None = None
    size: str = "1M"
    vocabulary: int = Field(default=2000, ge=300)
    numbers: int = Field(default=48, ge=0)
    context: int = Field(default=2048, ge=128)
    answer: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, gt=0)


class WarmStart(_Frozen):
    """Supervised learning on the expert's trajectories.

    Evaluates on held-out tasks every `evaluate_every` updates. Once `min_updates` are done, a validation loss
    that has not improved by the relative amount `tolerance` for `patience` evaluations is a plateau: the learning
    rate is divided by `decay` and training goes on; after `decays` such drops the next plateau ends it.
    lm_weight: weight of the loss on the observations' tokens, which teaches what the world's text looks like.
    imitate: "successes" keeps the expert's successful episodes only, "all" every episode whose world did not fail.
    """

    episodes_per_task: int = Field(default=1, ge=0)
    imitate: Literal["successes", "all"] = "successes"
    min_updates: int = Field(default=800, ge=0)
    max_updates: int = Field(default=4000, ge=0)
    evaluate_every: int = Field(default=100, ge=1)
    patience: int = Field(default=3, ge=1)
    tolerance: float = Field(default=0.005, ge=0, lt=1)
    decays: int = Field(default=1, ge=0)
    decay: float = Field(default=5.0, gt=1)
    rows: int = Field(default=32, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=50, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    lm_weight: float = Field(default=0.1, ge=0)
    validation: float = Field(default=0.1, gt=0, lt=1)
    minutes: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.max_updates < self.min_updates:
            raise ValueError(f"max_updates {self.max_updates} is below min_updates {self.min_updates}")
        return self


class Reinforce(_Frozen):
    """The policy-gradient loop. Ends after `steps` updates of the policy or `minutes`, whichever comes first.

    A step plays `tasks` groups of `group` episodes. Groups whose members all did the same teach nothing: new
    tasks are drawn in their place until `tasks` groups teach or ``tasks * oversample`` were played.
    retries: how often an episode is played again afresh when the world failed; one that still fails is left
    out and its peers are compared without it.
    credit: "group" spreads an episode's advantage over its turns, "turn" adds the comparison of turns that acted
    in the same state. truncation_value: what an episode cut off by a bound counts as having still earned: with 0 it
    is worth what it earned until then, which is as much as a wrong answer where only right ones pay.
    token_share: "episode" gives every episode the same weight, "token" every sampled token.
    """

    steps: int = Field(default=200, ge=0)
    minutes: float | None = Field(default=None, gt=0)
    tasks: int = Field(default=16, ge=1)
    group: int = Field(default=8, ge=2)
    oversample: float = Field(default=3.0, ge=1)
    retries: int = Field(default=1, ge=0)
    credit: Literal["group", "turn"] = "group"
    gamma: float = Field(default=1.0, ge=0, le=1)
    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale: Literal["none", "std"] = "std"
    turn_weight: float = Field(default=1.0, ge=0)
    truncation_value: float = 0.0
    token_share: Literal["episode", "token"] = "episode"
    epochs: int = Field(default=2, ge=1)
    minibatches: int = Field(default=2, ge=1)
    lr: float = Field(default=3e-4, gt=0)
    warmup: int = Field(default=5, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    entropy: float = Field(default=0.0, ge=0)
    kl: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    checkpoint_every: int = Field(default=10, ge=1)


class Evaluate(_Frozen):
    """Success on held-out tasks, with draws at `temperature`, and with `greedy` also without draws.

    `every` RL steps on `quick` tasks (0: never).
    """

    split: str = "heldout"
    tasks: int | None = Field(default=None, ge=1)
    attempts: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    greedy: bool = True
    every: int = Field(default=0, ge=0)
    quick: int = Field(default=64, ge=1)
    baselines: tuple[str, ...] = ("random",)
    bootstrap: int = Field(default=10_000, ge=100)
    cluster: str = "package"


class TrainConfig(_Frozen):
    """One training run. `env_options` go to the environment's `make`, `task_options` to its task set.

    split: the tasks that train, `tasks` of them evenly spread over their order (None: all).
    turns: the bound on an episode's length. max_tokens: computed positions per forward pass (memory, not
    mathematics). expert: the agent (by registry name) whose trajectories warm up. agent_options: of the expert,
    wherever it plays (as a baseline too); every other agent has its own defaults. store_every: the episodes of
    every n-th RL step are stored (0: none). max_failures: a run stops when a larger share of the episodes of a
    step or an evaluation failed through no fault of the agent.
    step_s: seconds that one step of a world may take, waiting for a place to run its tests included; a slower one
    is a failure of the world.
    """

    env: str = "code-repair"
    env_options: dict[str, Any] = Field(default_factory=dict)
    task_options: dict[str, Any] = Field(default_factory=dict)
    sandbox: str = "auto"
    split: str = "train"
    tasks: int | None = Field(default=None, ge=1)
    turns: int = Field(default=24, ge=1)
    step_s: float = Field(default=Limits().step_s, gt=0)
    expert: str = "expert"
    agent_options: dict[str, Any] = Field(default_factory=dict)
    model: ModelConfig = ModelConfig()
    warm_start: WarmStart = WarmStart()
    reinforce: Reinforce = Reinforce()
    evaluate: Evaluate = Evaluate()
    seed: int = Field(default=0, ge=0)
    device: str = "cpu"
    threads: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=64, ge=1)
    max_tokens: int = Field(default=8192, ge=64)
    store_every: int = Field(default=1, ge=0)
    max_failures: float = Field(default=0.5, ge=0, le=1)


def load(
    path: str | Path | None = None, overrides: Sequence[str] = (), base: Mapping[str, Any] | None = None
) -> TrainConfig:
    """The configuration of a TOML file over `base`, with ``section.field=value`` overrides on top.

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
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"configuration {path} is not TOML: {error}") from error
    for text in overrides:
        override(values, text)
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
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def _line(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"]) or "configuration"
    if error["type"] == "extra_forbidden":
        return f"{field}: there is no such field; {hint(str(error['loc'][-1]), _fields(error['loc'][:-1]))}"
    return f"{field} = {error['input']!r}: {error['msg'].removeprefix('Value error, ')}"


def _fields(section: Sequence[Any]) -> list[str]:
    """The fields of a section, named by the path to it."""
    model: Any = TrainConfig
    for name in section:
        model = model.model_fields[name].annotation
    return list(model.model_fields)
