"""The settings of the loss: which one, what weights and corrects its tokens, what else is learned beside it.

A part of `reinforce`. Whatever a chosen loss has no use for is refused, so no setting is silently ignored.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envgym_agents.learn.config_kinds import Frozen, Mask, Preference, Rec, refuse_unused

__all__ = [
    "Correction", "Distill", "Divergence", "Frozen", "LearnerMemory", "Loss", "Mask", "Preference", "Prices", "Rec",
    "Streams", "refuse_unused",
]  # fmt: skip

Kind = Literal[
    "ppo",
    "reinforce",
    "cispo",
    "topr",
    "a-lol",
    "opmd",
    "kimi-opmd",
    "rec",
    "dpo",
    "raft",
    "expert-iteration",
    "sft",
    "distill",
]
Scope = Literal["none", "token", "turn", "sequence"]


class Correction(Frozen):
    """For a sampler that is not quite the learner, or older: truncated importance weights, and what is left out.

    Both compare the learner before the step's first update (or, with a loss that has no ratio, now) with the
    sampler.
    """

    weight: Scope = "none"
    """what has one truncated importance weight"""
    most: float = Field(default=2.0, ge=1)
    """the greatest weight"""
    reject: Scope = "none"
    """what is left out if its (mean) ratio is out of bounds"""
    low: float = Field(default=0.5, ge=0, le=1)
    """least ratio that is not left out"""
    high: float = Field(default=2.0, ge=1)
    """greatest"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.weight == "none":
            refuse_unused(self, ("most",), "weight is 'none'")
        if self.reject == "none":
            refuse_unused(self, ("low", "high"), "reject is 'none'")
        return self


class Divergence(Frozen):
    """How `kl` measures the distance from the model that RL begins with."""

    kind: Literal["reverse", "forward", "js"] = "reverse"
    """KL(policy || reference), KL(reference || policy), Jensen-Shannon"""
    estimate: Literal["sampled", "k3", "exact"] = "sampled"
    """from what was sampled, by GRPO's term (docs/training.md), over all ids"""
    place: Literal["loss", "credit"] = "loss"
    """a term of the loss, or a cost (k1) taken off the credit of all that led to it"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.place == "credit":
            refuse_unused(self, ("kind", "estimate"), "place is 'credit': that cost is the reverse KL's, by k1")
        if self.estimate == "k3":
            refuse_unused(self, ("kind",), "estimate is 'k3': its value is the reverse KL's")
        return self


class Distill(Frozen):
    """Of "distill": whose distribution the student learns, on what it samples itself."""

    teacher: str = ""
    """a model folder with the student's tokenizer"""
    by: Literal["learner", "vllm"] = "learner"
    """who computes it: the learner's process, or vLLM in its own, as [sampler] says"""
    estimate: Literal["sampled", "exact"] = "sampled"
    """credit of each sampled token, by its log-ratio; or a divergence over the whole vocabulary"""
    kind: Literal["reverse", "forward", "js"] = "reverse"
    """of "exact": KL(student || teacher), KL(teacher || student), Jensen-Shannon"""
    outcome: float = Field(default=0.0, ge=0)
    """of "sampled": weight of the credit scheme's credit beside the teacher's"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if self.estimate == "sampled":
            refuse_unused(self, ("kind",), "estimate is 'sampled': that is the reverse KL's")
        else:
            refuse_unused(self, ("outcome",), "estimate is 'exact': no token gets credit")
            refuse_unused(self, ("by",), "estimate is 'exact': vLLM says how likely given ids are, no more")
        return self


class Streams(Frozen):
    """Losses beside the policy's, each with weights and a denominator of its own, so that none dilutes another.

    Within each, every episode that has such tokens counts the same.
    """

    imitation: float = Field(default=0.0, ge=0)
    """weight of the likelihood of what earned positive credit (self-imitation)"""
    observation: float = Field(default=0.0, ge=0)
    """weight of the likelihood of what the world answered"""
    demonstrations: float = Field(default=0.0, ge=0)
    """weight of the likelihood of the expert's tokens: up to a constant, the forward KL from its policy"""
    demonstrations_rows: int = Field(default=16, ge=1)
    """rows of the expert's episodes drawn for each update"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if not self.demonstrations:
            refuse_unused(self, ("demonstrations_rows",), "demonstrations is 0")
        return self


class Prices(Frozen):
    """What episodes cost beside what they earn, taken off their credit relative to their group's mean."""

    length: float = Field(default=0.0, ge=0)
    """price of length, as `length_kind` counts it"""
    length_kind: Literal["overlong", "group", "token"] = "overlong"
    """0 to 1 between two bounds (DAPO); within the group (Kimi); tokens"""
    length_free: int = Field(default=1024, ge=0)
    """of "overlong": sampled tokens that cost nothing"""
    length_most: int = Field(default=2048, ge=0)
    """of "overlong": from here on the whole price"""
    costs: dict[str, float] = Field(default_factory=dict)
    """price of each unit of a step's cost, by its name"""
    limits: dict[str, float] = Field(default_factory=dict)
    """bound of an episode's mean cost, by its name: its price is learned (a Lagrange multiplier)"""
    limits_lr: float = Field(default=0.05, gt=0)
    """how fast these prices follow"""
    limits_most: float = Field(default=10.0, gt=0)
    """the greatest such price"""

    @model_validator(mode="after")
    def _only_what_is_used(self) -> Self:
        if not self.length:
            refuse_unused(self, ("length_kind", "length_free", "length_most"), "length is 0")
        elif self.length_kind != "overlong":
            refuse_unused(self, ("length_free", "length_most"), f"length_kind is {self.length_kind!r}")
        if self.length_most < self.length_free:
            raise ValueError(f"length_most {self.length_most} is below length_free {self.length_free}")
        if not self.limits:
            refuse_unused(self, ("limits_lr", "limits_most"), "there are no limits")
        if both := sorted(set(self.costs) & set(self.limits)):
            raise ValueError(f"costs and limits both name {', '.join(both)}; a price is given or learned")
        return self


class Loss(Frozen):
    """What an update descends. docs/training.md says which choices are which paper's."""

    kind: Kind = "ppo"
    """ppo, reinforce, cispo, topr, a-lol, opmd, kimi-opmd, rec, dpo, raft, expert-iteration, sft, distill"""
    kl: float = Field(default=0.0, ge=0)
    """weight of the divergence from the model that RL begins with"""
    ratio: Literal["token", "turn", "sequence"] = "token"
    """of "ppo", "cispo", "rec": what has one (mean) ratio"""
    old: Literal["sampled", "recomputed"] = "sampled"
    """what ratios compare with: as sampled, or as the learner says before an update"""
    dual_clip: float | None = Field(default=None, gt=1)
    """of "ppo": the most that negative credit counts, as a multiple"""
    pre_clip: float | None = Field(default=None, gt=0)
    """of "ppo", "cispo", "rec": bound of a log-ratio before it is exponentiated"""
    taper: float = Field(default=1.0, gt=0)
    """of "topr": the greatest weight of a negative episode"""
    variant: Literal["full", "sequence", "free"] = "full"
    """of "a-lol": the importance weight, of the episode, of each token, none"""
    against: Literal["sampled", "reference"] = "sampled"
    """of "a-lol": what that weight divides by: who played, or the model that RL begins with"""
    weight_clip: float = Field(default=0.9, gt=0, lt=1)
    """of "a-lol": how far that weight may be from 1"""
    tau: float = Field(default=1.0, ge=0)
    """of "opmd", "kimi-opmd": how near the policy stays"""
    least: float = 0.0
    """of "expert-iteration": mean credit above which an episode is imitated"""
    credit_scale: Literal["none", "std"] = "none"
    """credit in standard deviations of all tokens of the step"""
    credit_clip: float | None = Field(default=None, gt=0)
    """bound of a token's credit"""
    credit_filter: float | None = Field(default=None, gt=0)
    """standard deviations beyond which a token's credit is an outlier, and it does not train"""
    entropy_share: float = Field(default=1.0, gt=0, le=1)
    """the share of tokens, those of highest entropy, that `entropy_gate` lets through"""
    entropy_gate: Literal["policy", "bonus", "both"] = "policy"
    """what is gated: the policy's loss, the entropy bonus, or both"""
    rec: Rec = Rec()
    preference: Preference = Preference()
    distill: Distill = Distill()
    correction: Correction = Correction()
    divergence: Divergence = Divergence()
    streams: Streams = Streams()
    prices: Prices = Prices()
    mask: Mask = Mask()

    @property
    def has_ratio(self) -> bool:
        """Whether it compares the policy with an older one, by a ratio of its own."""
        return self.kind in ("ppo", "cispo", "rec", "kimi-opmd") or self.teaches_by_credit

    @property
    def reads_sampled(self) -> bool:
        """Whether it asks how likely a token was to who sampled it."""
        corrects = self.correction.weight != "none" or self.correction.reject != "none"
        against = self.kind == "dpo" and self.preference.against == "sampled"
        weighs = self.kind == "topr" or (
            self.kind == "a-lol" and self.variant != "free" and self.against == "sampled"
        )
        return weighs or against or corrects or (self.has_ratio and self.old == "sampled")

    @property
    def clips(self) -> bool:
        """Whether `reinforce.clip_low` and `clip_high` are its bounds."""
        return self.kind in ("ppo", "cispo", "rec") or self.teaches_by_credit

    @property
    def teaches_by_credit(self) -> bool:
        """Whether a teacher gives the sampled tokens their credit."""
        return self.kind == "distill" and self.distill.estimate == "sampled"

    @property
    def served(self) -> bool:
        """Whether vLLM computes the teacher's word."""
        return self.kind == "distill" and self.distill.by == "vllm"

    @property
    def teaches_whole(self) -> bool:
        """Whether a teacher's whole distribution is descended to."""
        return self.kind == "distill" and self.distill.estimate == "exact"

    @model_validator(mode="after")
    def _only_its_own(self) -> Self:
        clipped = ("ppo", "cispo", "rec")
        own: dict[str, tuple[str, ...]] = {
            "ratio": clipped, "pre_clip": clipped, "dual_clip": ("ppo",), "taper": ("topr",), "variant": ("a-lol",),
            "weight_clip": ("a-lol",), "against": ("a-lol",), "tau": ("opmd", "kimi-opmd"), "rec": ("rec",),
            "least": ("expert-iteration",), "preference": ("dpo",), "distill": ("distill",),
        }  # fmt: skip
        for name, kinds in own.items():
            if self.kind not in kinds:
                refuse_unused(self, (name,), f"kind is {self.kind!r}")
        if self.kind == "a-lol" and self.variant == "free":
            refuse_unused(self, ("weight_clip", "against"), "variant is 'free'")
        if self.kl == 0:
            refuse_unused(self, ("divergence",), "kl is 0")
        if self.entropy_share == 1:
            refuse_unused(self, ("entropy_gate",), "entropy_share is 1")
        return self

    @model_validator(mode="after")
    def _compares_what_can_be_compared(self) -> Self:
        corrects = self.correction.weight != "none" or self.correction.reject != "none"
        if self.kind in ("topr", "a-lol") and self.correction.weight != "none":
            raise ValueError(
                f"correction.weight {self.correction.weight!r} with kind {self.kind!r}: this loss has weights of "
                "its own against the policy that played; leave it 'none'"
            )
        if self.kind == "distill" and (self.kl > 0 or self.mask.top_p < 1):
            raise ValueError(
                "kind is 'distill', and kl or mask ask the model that RL begins with, too: one other model is "
                "kept, and it is the teacher"
            )
        if self.teaches_whole:
            refuse_unused(
                self,
                ("credit_scale", "credit_clip", "credit_filter"),
                "distill.estimate is 'exact': no token gets credit",
            )
        if self.kind == "dpo":
            refuse_unused(self, ("correction", "credit_filter"), "kind is 'dpo': it weighs pairs, not tokens")
        if self.has_ratio and corrects and self.old == "sampled":
            raise ValueError(
                f"correction with kind {self.kind!r} needs old = 'recomputed': with 'sampled' the ratio corrects "
                "already, and twice is wrong"
            )
        if not self.has_ratio and self.old != "sampled" and self.mask.top_p == 1:
            raise ValueError(
                f"old {self.old!r} has no use where kind is {self.kind!r}: it compares with no old policy"
            )
        if self.mask.renew_every and self.asks_whole:
            raise ValueError(
                f"mask.renew_every {self.mask.renew_every} with divergence.estimate 'exact': the whole "
                "distributions of two other models at once; make it 'sampled', or leave the mask as it begins"
            )
        if self.mask.top_p < 1 and not (self.has_ratio and self.old == "recomputed"):
            raise ValueError(
                f"mask.top_p {self.mask.top_p} needs a kind with a ratio and old = 'recomputed', so that both "
                f"sides are masked; kind is {self.kind!r}, old is {self.old!r}"
            )
        if self.kind in ("dpo", "raft", "expert-iteration", "sft") and self.entropy_share < 1:
            raise ValueError(f"entropy_share {self.entropy_share} has no use where kind is {self.kind!r}")
        return self

    def check(self, reinforce: Any) -> None:
        """Raise ValueError where the section that this one is in has settings that do not go with it."""
        if not self.clips:
            why = f"loss.kind is {self.kind!r}"
            refuse_unused(reinforce, ("clip_low", "clip_high"), why)
        if self.kind == "distill" and reinforce.teaches != "all":
            raise ValueError(
                f"teaches {reinforce.teaches!r} with loss.kind 'distill': a teacher has something to say of every "
                "group, make it 'all'"
            )
        if reinforce.entropy == 0 and self.entropy_gate != "policy":
            raise ValueError(f"loss.entropy_gate {self.entropy_gate!r} has no use where entropy is 0")
        if self.kind in ("dpo", "raft", "expert-iteration", "sft") and self.divergence.place == "credit":
            raise ValueError(f"loss.divergence.place 'credit' has no use where loss.kind is {self.kind!r}")

    @property
    def wants_reference(self) -> bool:
        """Whether another model is asked: the one that RL begins with, or a teacher."""
        against = (self.kind == "dpo" and self.preference.against == "reference") or self.against == "reference"
        return self.kl > 0 or against or self.kind == "distill" or (self.mask.top_p < 1 and not self.renews_mask)

    @property
    def renews_mask(self) -> bool:
        """Whether the masking policy is a model of its own."""
        return self.mask.renew_every > 0

    @property
    def asks_whole(self) -> bool:
        """Whether the divergence is of whole distributions."""
        return self.kl > 0 and self.divergence.estimate == "exact"


class LearnerMemory(Frozen):
    """How a learner's pass is computed. Memory and time, not mathematics: the result is the same to rounding."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """what matrix products are computed in; weights, optimiser and loss stay float32"""
    chunk: int = Field(default=1024, ge=1)
    """sampled positions whose logits exist at once; fewer where logits_mib says so"""
    logits_mib: int = Field(default=256, ge=1)
    """most MiB of logits at once; three times as much is held, whatever the vocabulary"""
    checkpoint: bool = False
    """keep only each layer's input, and compute the rest again on the way back"""
    share: Literal["auto", "never"] = "auto"
    """compute what rows have in common once, where the model allows it exactly"""
    processes: int = Field(default=1, ge=1, le=1024)
    """processes that weights, gradients and optimiser are divided over (FSDP2)"""
    restarts: int = Field(default=2, ge=0)
    """times that a run goes on by itself from its last checkpoint after it lost one"""
    patience_s: float = Field(default=1800.0, gt=0)
    """seconds that they wait for each other in one exchange; who gives no answer until then is lost"""
