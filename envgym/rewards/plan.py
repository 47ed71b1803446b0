"""A reward as a configuration writes it: channels, judges, how they are mixed; checked before anything runs.

    [env_options.rewards.judges.careful]
    agent = "chat"
    options = { model = "..." }

    [env_options.rewards.channels.right]
    kind = "world"
    channel = "reward"
    needed = true

    [env_options.rewards.channels.polite]
    kind = "rubric"
    judge = "careful"
    weight = 0.2
    times = 3
    criteria = { greets = "It greets the user." }

What cannot be meant is refused by field and value: a judge that is not there or that nobody asks, a reward that no
channel makes. It asks nobody; see `envgym.rewards.rewarded`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envgym.options import hint
from envgym.rewards.channels import Channel, Mixture

__all__ = ["JudgeSettings", "RewardPlan", "Rubric", "reward_plan"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class JudgeSettings(_Section):
    """Who is asked: an agent of the registry, with its options."""

    agent: str
    options: dict[str, Any] = Field(default_factory=dict)


class _Counted(_Section):
    weight: float = 1.0
    """in the mixture; 0: logged only"""
    gate: float | None = None
    """the least score for which anything else counts"""
    needed: bool = False
    """without it nothing is known of the reward, and the episode is a failure of its grader"""


class WorldChannel(_Counted):
    """What the world said: one of its channels, or its rewards together."""

    kind: Literal["world"]
    channel: str = "reward"


class FormatChannel(_Counted):
    """`format_score`: the tags, whole, once, in this order."""

    kind: Literal["format"]
    tags: tuple[str, ...] = Field(min_length=1)
    alone: bool = True


class LengthChannel(_Counted):
    """`length_score`, in characters: 0 up to `most - soft`, -1 at `most`."""

    kind: Literal["length"]
    most: int = Field(ge=1)
    soft: int = Field(ge=1)

    @model_validator(mode="after")
    def _soft_fits(self) -> Self:
        if self.soft > self.most:
            raise ValueError(f"soft {self.soft} is above most {self.most}")
        return self


class RepetitionChannel(_Counted):
    """`repetition`: a share; give it a weight below 0."""

    kind: Literal["repetition"]
    size: int = Field(default=4, ge=1)


class CostChannel(_Counted):
    """`price_score` of what the world said the episode cost: 1.0 up to `least`, 0.0 from `most` on.

    What was spent is logged as NAME_spent. A cost that was never named is 0.
    """

    kind: Literal["cost"]
    cost: str = "usd"
    most: float = Field(gt=0)
    least: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.least >= self.most:
            raise ValueError(f"least {self.least} is not below most {self.most}")
        return self


class Rubric(_Counted):
    """`judge_rubric`: sentences by name, asked `times` times; what is not agreed on says nothing.

    criteria_from: in the place of `criteria`, the name of a list of sentences in the task's metadata, such as
    tau2's "nl_assertions"; an empty list scores 1.0, and a task without one says nothing.
    """

    kind: Literal["rubric"]
    judge: str
    criteria: dict[str, str] = Field(default_factory=dict)
    criteria_from: str = ""
    times: int = Field(default=3, ge=1)
    least_agreement: float = Field(default=2 / 3, ge=0.5, le=1)

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.criteria) == bool(self.criteria_from):
            raise ValueError(
                "a rubric has criteria, or criteria_from, the name of a list in the task's metadata: one of both"
            )
        return self


class PairChannel(_Counted):
    """`judge_pair` against a text of the task's metadata, in both orders: who prefers a place says nothing."""

    kind: Literal["pair"]
    judge: str
    against: str


class ScorerChannel(_Counted):
    """A function ``score(task, submission)`` by its place, "module:name"; see `envgym.rewards.Scorer`."""

    kind: Literal["scorer"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")


class LearnedChannel(_Counted):
    """A reward model in a folder, as `envgym reward-model` writes it: its score of the conversation.

    model: which kind of reward model, a name of the group `reward_models`.
    """

    kind: Literal["learned"]
    path: str = Field(min_length=1)
    model: str = "transformer"
    device: str = "cpu"


AnyChannel = Annotated[
    WorldChannel
    | FormatChannel
    | LengthChannel
    | RepetitionChannel
    | CostChannel
    | Rubric
    | PairChannel
    | ScorerChannel
    | LearnedChannel,
    Field(discriminator="kind"),
]


class RewardPlan(_Section):
    """The whole of it. judged: the last of what the agent said, all of it, or what the world took as submitted."""

    channels: dict[str, AnyChannel] = Field(min_length=1)
    judges: dict[str, JudgeSettings] = Field(default_factory=dict)
    rule: Literal["sum", "mean", "product"] = "sum"
    closed: float = 0.0
    """the reward where a gate is not reached"""
    judged: Literal["last", "all", "submission"] = "last"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asked = {one.judge for one in self.channels.values() if isinstance(one, Rubric | PairChannel)}
        for name in sorted(asked - self.judges.keys()):
            raise ValueError(f"a channel is judged by {name!r}; {hint(name, sorted(self.judges))}")
        for name in sorted(self.judges.keys() - asked):
            raise ValueError(f"no channel asks the judge {name!r}; remove it, or name it in a channel")
        if not any(one.weight for one in self.channels.values()):
            raise ValueError("no channel has a weight, so there is no reward; give one a weight that is not 0")
        ours = ("_agreement", "_spent")
        if unfit := [name for name in self.channels if name == "reward" or name.endswith(ours)]:
            raise ValueError(
                f"a channel is named {unfit[0]!r}, what the reward, a judge's agreement or a cost is called"
            )
        return self

    @property
    def mixture(self) -> Mixture:
        """How the channels make one reward."""
        parts = [Channel(name, one.weight, one.gate, one.needed) for name, one in self.channels.items()]
        return Mixture(tuple(parts), self.rule, self.closed)


def reward_plan(given: object, where: str = "rewards") -> RewardPlan:
    """A plan as it is, of a mapping, or of a TOML file by its path.

    Raises ValueError, one line for each mistake, and TypeError for anything else.
    """
    if isinstance(given, RewardPlan):
        return given
    if isinstance(given, str):
        where = given
        try:
            given = tomllib.loads(Path(given).read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"rewards = {where!r}: it must be a TOML file that can be read: {error}") from None
    if not isinstance(given, Mapping):
        raise TypeError(f"rewards is {given!r}; it must be a table, or the path of a TOML file with one")
    try:
        return RewardPlan.model_validate(dict(given))
    except ValidationError as error:
        raise ValueError("\n".join(_line(where, one) for one in error.errors())) from None


def _line(where: str, error: Any) -> str:
    field = ".".join([where, *(str(part) for part in error["loc"])])
    said = error["msg"].removeprefix("Value error, ")
    shown = "" if error["type"] in ("missing", "value_error") else f" = {str(error['input'])[:80]!r}"
    return f"{field}{shown}: {said}"
