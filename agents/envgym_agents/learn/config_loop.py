"""The settings of how playing and learning share the time, of what is learned from, and of what is watched.

Parts of `envgym_agents.learn.config`, which reads and checks them.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Curriculum", "LoopSettings", "Past", "Watch"]


class _Section(BaseModel):
    """A section; its fields' docstrings are what `envgym train --settings` says of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _refuse_changed(section: _Section, names: tuple[str, ...], why: str) -> None:
    """Raise ValueError when one of these fields is not what it is by default."""
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            raise ValueError(f"{name} {getattr(section, name)!r} has no use where {why}")


class Curriculum(_Section):
    """Which tasks are drawn: pass after pass over all, or those at the edge of competence more often."""

    kind: Literal["none", "solve-rate", "failures"] = "none"
    """by a task's estimated solve rate p: as 4 p (1 - p), or 1 - p (Kimi k1.5)"""
    sharpness: float = Field(default=2.0, ge=0)
    """the power of that weight; 0: all the same, 1: of "failures" as in its paper"""
    explore: float = Field(default=0.2, ge=0, le=1)
    """share of the draws that goes to tasks which were drawn least"""
    memory: float = Field(default=0.7, ge=0, le=1)
    """what a task's earlier groups count when another one was played"""
    above: float = 0.0
    """an episode whose reward is above it is a success"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.kind == "none":
            _refuse_changed(self, ("sharpness", "explore", "memory", "above"), "kind is 'none'")
        return self


class Past(_Section):
    """Episodes of earlier runs that are learned from: before anything is played, or beside what is."""

    kind: Literal["none", "alone", "beside"] = "none"
    """alone: nothing is played; beside: some of their groups go into each step"""
    path: str = ""
    """a run folder, or a store of episodes"""
    groups: int = Field(default=8, ge=1)
    """of "beside": groups of a step"""
    steps: int = Field(default=0, ge=0)
    """of "beside": first steps that have them; 0: all"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.kind == "none":
            _refuse_changed(self, ("groups", "steps"), "kind is 'none'")
        if self.kind == "alone":
            _refuse_changed(
                self, ("groups", "steps"), "kind is 'alone': a step has reinforce.tasks groups, each step"
            )
        return self


class LoopSettings(_Section):
    """Whether playing, grading and learning overlap, how old a token may then be, and what is learned from."""

    staleness: int | None = Field(default=None, ge=0)
    """most versions that a trained token is behind; 0: playing and learning take turns; none: 1 if possible"""
    spoiled: Literal["drop_member", "drop_group", "mask", "refill"] = "drop_member"
    """of a group with a failed or stale member"""
    refills: int = Field(default=2, ge=0)
    """most times that fresh members are asked for, per group"""
    stretch: int = Field(default=0, ge=0)
    """tokens after which an episode that has become too stale to learn from is given up; 0: never"""
    retries: int = Field(default=1, ge=0)
    """fresh tries of an episode whose world failed; one that still fails is left out of its group"""
    replay: float = Field(default=0.0, ge=0, le=4)
    """groups learned from again while they are fresh enough, as a multiple of the new ones"""
    replay_tokens: int = Field(default=100_000, ge=1)
    """tokens of earlier steps' groups that are kept for it"""

    curriculum: Curriculum = Curriculum()
    past: Past = Past()

    @model_validator(mode="after")
    def _only_while_it_overlaps(self) -> Self:
        if self.staleness == 0:
            _refuse_changed(self, ("spoiled", "refills", "stretch", "replay", "replay_tokens"), "staleness is 0")
        return self


class Watch(_Section):
    """Where the metrics go beside metrics.jsonl, and what ends a run early: each stop is off at 0."""

    tensorboard: bool = False
    """event files in the run folder's tensorboard/"""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases; offline: files in the run folder's wandb/"""
    trackio: bool = False
    """a trackio database, in the folder that TRACKIO_DIR names"""
    project: str = "envgym"
    """the project's name there"""
    mismatch: float = Field(default=0.0, ge=0)
    """stop: a log-probability as sampled differs by more nats from the learner's"""
    entropy: float = Field(default=0.0, ge=0)
    """stop: the mean entropy of sampled tokens is below it, in nats"""
    gradient: float = Field(default=0.0, ge=0)
    """stop: the gradient is this many times as long as the median of the last 20 steps'"""
    skipped: int = Field(default=5, ge=0)
    """stop: steps (in a warm start updates) in a row whose gradient was no number, so nothing was learned"""
    gap: float = Field(default=0.0, ge=0)
    """stop: the reward's gain since the first step exceeds that of `reinforce.metric` by more"""
    patience: int = Field(default=3, ge=1)
    """steps in a row that it takes; `skipped` says its own"""

    @property
    def stops(self) -> bool:
        """Whether anything can end a run early."""
        return any((self.mismatch, self.entropy, self.gradient, self.skipped, self.gap))
