"""The settings of single kinds of loss, and what a section of the configuration is.

Parts of `envgym_agents.learn.config_loss`.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Frozen", "Mask", "Preference", "Rec", "refuse_unused"]


class Frozen(BaseModel):
    """A section of a configuration: its fields' docstrings are what `envgym train --settings` says of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def refuse_unused(section: Frozen, names: tuple[str, ...], why: str) -> None:
    """Raise ValueError when one of these fields is not what it is by default. why: "has no use where ..."."""
    for name in names:
        value, info = getattr(section, name), type(section).model_fields[name]
        if value != info.get_default(call_default_factory=True):
            raise ValueError(f"{name} {value!r} has no use where {why}")


class Rec(Frozen):
    """Of "rec": which tokens keep their gradient, what they weigh, and what holds the policy where it was."""

    sides: Literal["one", "two", "ring"] = "one"
    """which tokens outside the band keep their gradient"""
    outer: float = Field(default=2.0, ge=1)
    """of "ring": where the ring ends, as a multiple of the band's bounds"""
    weight: Literal["none", "ratio", "advantage"] = "none"
    """a factor of each token: none, its ratio, exp(credit / temperature)"""
    temperature: float = Field(default=1.0, gt=0)
    """of "advantage": the higher, the less weights differ"""
    pull: Literal["none", "square", "likelihood"] = "none"
    """added for every token: its log-ratio squared, or its negative likelihood"""
    strength: float = Field(default=0.1, gt=0)
    """of a pull: its weight"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.sides != "ring":
            refuse_unused(self, ("outer",), f"sides is {self.sides!r}")
        if self.weight != "advantage":
            refuse_unused(self, ("temperature",), f"weight is {self.weight!r}")
        if self.pull == "none":
            refuse_unused(self, ("strength",), "pull is 'none'")
        return self


class Preference(Frozen):
    """Of "dpo": what is compared, with which reference, and how."""

    unit: Literal["trajectory", "turn"] = "trajectory"
    """episodes of one group, or turns that were sampled in the same context"""
    against: Literal["sampled", "reference"] = "sampled"
    """the reference policy: the one that played, or the model that RL begins with"""
    beta: float = Field(default=0.1, gt=0)
    """how sharply preferences are read"""
    margin: float = Field(default=0.0, ge=0)
    """least difference of mean credit that makes a preference"""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """the share of preferences that are taken to be the wrong way round"""
    mean: bool = False
    """whether log-ratios are per token, so that length decides nothing"""


class Mask(Frozen):
    """NLPO: only what is in the nucleus of a masking policy is sampled and learned, a copy of the policy.

    A sampler that is not this process's own model is not masked: what it drew outside trains nothing, and the
    metric `masked_out` counts it.
    """

    top_p: float = Field(default=1.0, gt=0, le=1)
    """the masking policy's probability that stays open; 1: no mask"""
    renew_every: int = Field(default=0, ge=0)
    """updates after which it is the policy as it is then; 0: it stays the model that RL begins with"""

    @model_validator(mode="after")
    def _renews_what_there_is(self) -> Self:
        if self.top_p == 1:
            refuse_unused(self, ("renew_every",), "mask.top_p is 1: nothing is masked")
        return self
