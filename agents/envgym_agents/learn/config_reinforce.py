"""The settings of reinforcement: what is learned beside the policy, how groups are made, and the loop itself.

A part of `envgym_agents.learn.config`, which reads and checks it.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envgym_agents.learn.config_loop import LoopSettings
from envgym_agents.learn.config_loss import Frozen, Loss, refuse_unused

__all__ = ["Critic", "Forks", "Frozen", "Members", "Reinforce", "Rewards"]


_EVERY = ("kind", "second", "lr", "warmup", "updates", "groups", "replay", "first", "max_grad_norm")
_NETWORK = ("body", "size", "tau")
_VALUES = (*_NETWORK, "loss", "low", "high", "bins", "gamma", "most", "rewards")
_OWN: dict[str, tuple[str, ...]] = {
    "turn": (*_VALUES, "lam", "value_clip"), "token": (*_VALUES, "lam", "value_clip"),
    "archer": (*_VALUES, "baseline", "fresh"), "progress": _NETWORK, "implicit": ("beta", "learn"),
    "reward-model": (*_NETWORK, "count", "aggregate"),
}  # fmt: skip
"""What each kind of critic reads beside what every one does."""


class Rewards(Frozen):
    """Of "turn", "token", "archer": the unit of rewards, for critic and credit, by all returns."""

    scale: Literal["none", "std", "normal"] = "none"
    """as they are, in standard deviations of returns, or also less their mean"""
    clip: float | None = Field(default=None, gt=0)
    """bound of a scaled reward"""

    @model_validator(mode="after")
    def _clips_what_is_scaled(self) -> Self:
        if self.scale == "none":
            refuse_unused(self, ("clip",), "scale is 'none'")
        return self


class Critic(Frozen):
    """What is learned beside the policy, for a credit scheme that needs it: values, rewards of turns or of tokens.

    Each step it makes `updates` updates from the episodes of this step and of earlier ones that `replay` holds.
    """

    kind: Literal["none", "turn", "token", "archer", "progress", "implicit", "reward-model"] = "none"
    """see docs/credit.md"""
    body: Literal["policy", "frozen", "own"] = "policy"
    """what is read: the policy, what RL begins with, or a model that trains too"""
    size: str = "1M"
    """of an own body: tiny, 1M, 2M, 4M"""
    loss: Literal["hl-gauss", "two-hot", "mse"] = "hl-gauss"
    """of values: classification into bins (two ways), or squared error"""
    low: float = -0.5
    """the least value that bins can say; a little below the least return"""
    high: float = 1.5
    """the greatest; a little above the greatest return"""
    bins: int = Field(default=51, ge=2)
    """classes of a value"""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """discount per turn (of "token": per token); the scheme's own must be the same"""
    lam: float = Field(default=0.9, ge=0, le=1)
    """of the targets: 0 looks one step ahead, 1 to the end"""
    most: float = Field(default=1.0, ge=0)
    """bound of the ratios that make old episodes count as the present policy's; 0: no ratios"""
    lr: float = Field(default=1e-3, gt=0)
    """learning rate; of "implicit", which trains a whole model, choose the policy's"""
    tau: float = Field(default=0.1, gt=0, le=1)
    """how far the slow copy that gives targets follows per update"""
    warmup: int = Field(default=0, ge=0)
    """updates before its estimates are used; the policy rests until then"""
    updates: int = Field(default=4, ge=1)
    """per step"""
    groups: int = Field(default=16, ge=1)
    """most groups drawn for one update"""
    replay: int = Field(default=100_000, ge=0)
    """tokens of earlier steps' episodes that are kept, checkpoints included; 0: only the present step's"""
    first: bool = False
    """whether a step's updates come before its episodes are credited; always with `fresh`"""
    baseline: bool = False
    """of "archer": also a baseline of tokens"""
    fresh: int = Field(default=0, ge=0)
    """of "archer": replayed states at which an update samples turns anew, as the paper; 0: stored ones count"""
    beta: float = Field(default=0.05, gt=0)
    """of "implicit": reward per nat; the scheme's own must be the same"""
    learn: Literal["outcomes", "pairs"] = "outcomes"
    """of "implicit": from which succeeded (PRIME), or which earned more (DPO, RTO)"""
    count: int = Field(default=4, ge=1)
    """of "reward-model": how many score"""
    aggregate: Literal["mean", "worst-case", "uncertainty-weighted"] = "uncertainty-weighted"
    """of "reward-model": what is made of their scores"""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """longer gradients are shortened to it; 0: none is"""
    value_clip: float = Field(default=0.0, ge=0)
    """of "mse", "turn" and "token": how far from the slow copy's an update may take a value; 0: anywhere"""
    rewards: Rewards = Rewards()
    second: "Critic | None" = None
    """a section like this one: another critic, for a scheme that needs two estimates"""

    @model_validator(mode="after")
    def _range_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        if self.fresh and self.kind != "archer":
            raise ValueError(f"fresh {self.fresh} is of kind 'archer', and kind is {self.kind!r}")
        if self.value_clip and (self.loss != "mse" or self.kind not in ("turn", "token")):
            raise ValueError(
                f"value_clip {self.value_clip} is of loss 'mse', kinds 'turn' and 'token'; loss is {self.loss!r} "
                f"and kind {self.kind!r}"
            )
        if self.learn != "outcomes" and self.kind != "implicit":
            raise ValueError(f"learn {self.learn!r} is of kind 'implicit', and kind is {self.kind!r}")
        return self

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        read = (*_EVERY, *_OWN[self.kind]) if self.kind != "none" else ("kind", "second")
        idle = tuple(name for name in type(self).model_fields if name not in read)
        refuse_unused(self, idle, f"critic.kind is {self.kind!r}")
        if "size" in read and self.body != "own":
            refuse_unused(self, ("size",), f"critic.body is {self.body!r}")
        if "bins" in read and self.loss == "mse":
            refuse_unused(self, ("low", "high", "bins"), "critic.loss is 'mse'")
        return self

    @model_validator(mode="after")
    def _second_beside_a_first(self) -> Self:
        second = self.second
        if second is None:
            return self
        if "none" in (self.kind, second.kind) or second.second is not None:
            raise ValueError(
                f"kind {self.kind!r} with second.kind {second.kind!r}: give both, and no second of a second"
            )
        if second.first:
            raise ValueError("second.first: both are updated at the same time; set it of the first critic")
        if second.rewards != Rewards():
            raise ValueError("second.rewards: both learn from the same rewards; set it of the first critic")
        if self.fresh or second.fresh:
            raise ValueError("fresh: turns are sampled anew for one critic alone, so there can be no second")
        return self


class Forks(Frozen):
    """States of a group's episodes that are gone back to: more members of the group, which share a history.

    Their world and agent are forked while the episode is played. A scheme that takes values from forks needs some.
    """

    points: int = Field(default=0, ge=0)
    """states of each episode; 0: none"""
    times: int = Field(default=1, ge=1)
    """continuations of each"""
    by: Literal["uniform", "entropy"] = "uniform"
    """which states: drawn, or before the turns that the policy was least certain of"""
    turns: int = Field(default=0, ge=0)
    """most turns that an episode's continuations may be expected to take, going by its own; 0: no bound"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if not self.points:
            for name, info in type(self).model_fields.items():
                if getattr(self, name) != info.default:
                    raise ValueError(f"{name} {getattr(self, name)!r} has no use where points is 0")
        if 0 < self.turns < self.times:
            raise ValueError(f"turns {self.turns} is below times {self.times}: no state could be continued")
        return self


class Members(Frozen):
    """How a group comes to its members: all that were played, or those chosen from more.

    Nothing is learned from the others, but they are stored, counted and in the metrics.
    """

    kind: Literal["plain", "resample-on-correct", "adaptive"] = "plain"
    """see docs/credit.md; `reinforce.group` are kept"""
    played: int = Field(default=16, ge=2)
    """of "resample-on-correct": episodes of a group before it is cut down to `reinforce.group`"""
    errors: str = ""
    """of "resample-on-correct": channel that is not 0 where a call failed; none: nobody tells"""
    failures: Literal["uniform", "penalty"] = "uniform"
    """of "resample-on-correct": which stay: any, or those with the fewest errors"""
    per_round: int = Field(default=4, ge=1)
    """of "adaptive": episodes of a task in one round"""
    rounds: int = Field(default=4, ge=1)
    """of "adaptive": most rounds"""
    enough: Literal["balance", "positive"] = "balance"
    """of "adaptive": half a group of each side ends a task's rounds, or one success"""
    above: float = 0.0
    """an episode whose reward is above it is a success"""
    forks: Forks = Forks()

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        if self.forks.points and self.kind != "plain":
            raise ValueError(
                f"forks.points {self.forks.points} has no use where kind is {self.kind!r}: a group is cut down "
                "before anything is forked; make kind 'plain', or points 0"
            )
        own = {
            "plain": ("forks",), "resample-on-correct": ("played", "errors", "failures", "above"),
            "adaptive": ("per_round", "rounds", "enough", "above"),
        }[self.kind]  # fmt: skip
        for name, info in type(self).model_fields.items():
            if name not in ("kind", *own) and getattr(self, name) != info.default:
                raise ValueError(f"{name} {getattr(self, name)!r} has no use where kind is {self.kind!r}")
        return self


class Reinforce(Frozen):
    """The policy-gradient loop. Ends after `steps` updates, `minutes` or `tokens`, whichever comes first.

    A step plays `tasks` groups of `group` episodes. Groups whose members all did the same teach nothing: new
    tasks are drawn in their place until `tasks` groups teach or ``tasks * oversample`` were played. What stands
    beside the loss is off where nothing is said, but for `max_grad_norm`: TRL and verl clip at 1, too.
    """

    steps: int = Field(default=200, ge=0)
    """steps of playing and learning"""
    minutes: float | None = Field(default=None, gt=0)
    """most minutes"""
    tokens: int | None = Field(default=None, ge=1)
    """most sampled tokens; the step that reaches it is the last"""
    tasks: int = Field(default=16, ge=1)
    """groups that teach, per step"""
    group: int = Field(default=8, ge=2)
    """episodes of one task that are compared"""
    members: Members = Members()
    oversample: float = Field(default=3.0, ge=1)
    """most groups played per step, as a multiple of `tasks`"""
    credit: str = "dr-grpo"
    """the credit scheme (`envgym list` shows them)"""
    credit_options: dict[str, Any] = Field(default_factory=dict)
    """options of the credit scheme; baseline = {by, decay, start} is a running mean"""
    critic: Critic = Critic()
    teaches: Literal["outcomes", "credit", "all"] = "outcomes"
    """which groups are learned from: whose outcomes differ, with any credit, all"""
    metric: str = ""
    """channel of a grade or a last step that says what is really wanted; the log has its gap to the reward"""
    token_share: Literal["episode", "token"] = "episode"
    """what has equal weight: every episode, or every sampled token"""
    epochs: int = Field(default=2, ge=1)
    """passes over a step's episodes"""
    minibatches: int = Field(default=2, ge=1)
    """updates of the weights per pass"""
    lr: float = Field(default=3e-4, gt=0)
    """learning rate"""
    warmup: int = Field(default=5, ge=0)
    """steps in which the learning rate rises"""
    weight_decay: float = Field(default=0.0, ge=0)
    """of AdamW"""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """how far a token's probability ratio may fall below 1 before its gradient is cut; 1: no bound"""
    clip_high: float = Field(default=0.28, gt=0)
    """how far it may rise above 1"""
    entropy: float = Field(default=0.0, ge=0)
    """weight of the entropy bonus"""
    loss: Loss = Loss()
    max_grad_norm: float = Field(default=1.0, ge=0)
    """longer gradients are shortened to it; 0: none is"""
    checkpoint_every: int = Field(default=10, ge=1)
    """steps between two checkpoints: what a resumed run repeats at most"""
    loop: LoopSettings = LoopSettings()

    @model_validator(mode="after")
    def _enough_to_choose_from(self) -> Self:
        if self.members.kind == "resample-on-correct" and self.members.played < self.group:
            raise ValueError(f"members.played {self.members.played} is below group {self.group}")
        return self

    @model_validator(mode="after")
    def _forks_what_is_played(self) -> Self:
        if self.members.forks.points and self.loop.past.kind == "alone":
            raise ValueError(
                f"members.forks.points {self.members.forks.points} has no use where loop.past.kind is 'alone': "
                "nothing is played that could be forked"
            )
        if self.members.forks.points and self.critic.rewards.scale == "normal":
            raise ValueError(
                f"critic.rewards.scale 'normal' with members.forks.points {self.members.forks.points}: a fork may "
                "share the turn at which the mean is taken off, and lose it twice; make it 'std'"
            )
        return self

    @model_validator(mode="after")
    def _weighs_what_others_sampled(self) -> Self:
        """What earlier policies sampled has a bounded weight, or trains as data: never as the policy's own."""
        loss = self.loss
        blind = loss.kind == "reinforce" or (loss.has_ratio and loss.old == "recomputed")
        if self.loop.past.kind != "none" and blind and loss.correction.weight == "none":
            raise ValueError(
                f"loop.past.kind {self.loop.past.kind!r} with loss.kind {loss.kind!r} and loss.old {loss.old!r}: "
                "other policies' tokens would count as the present one's; set loss.correction.weight, or choose "
                "old = 'sampled'"
            )
        return self

    @model_validator(mode="after")
    def _goes_with_its_loss(self) -> Self:
        self.loss.check(self)
        return self
