"""What a configuration makes of the formulas: one scalar to descend, and what is worth watching, from token values.

An `Objective` is a pure function of `Tokens`. Where it treats each token by itself (`separable`) a minibatch can be
summed up from its parts; else it must see all tokens at once, and the learner brings it their values first and
takes its gradient to the model afterwards. No model is run here.
"""

from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from envgym_agents.learn.config_loss import Loss
from envgym_agents.learn.losses import correction, divergence, policy, preference
from envgym_agents.learn.losses.imitation import negative_likelihood
from envgym_agents.learn.losses.masks import entropy_gate
from envgym_agents.learn.losses.units import ratio

__all__ = ["Objective", "Settings", "Tokens"]


class Settings(Protocol):
    """What an objective reads of `reinforce`."""

    clip_low: float
    clip_high: float
    entropy: float
    loss: Loss


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """K tokens of a minibatch; those with weight in `weights` were sampled by the policy.

    logprobs, entropy, divergence: as the learner computes them, differentiable; divergence is that of the whole
    distributions, where it was asked for. sampled: log-probabilities as sampled; old: of the policy that
    ratios compare with; reference: of the model that RL began with, nan where nobody asks. credit. weights: of the
    policy's loss, its sum over the minibatch 1. imitation, observation, demonstration: weights of the other
    streams, their sums 1 each or 0.
    episode, turn, group, context: numbers in the minibatch; turns of one context saw the same ids. policy: which
    tokens the policy sampled. inside: False where a mask shuts a sampled token out.
    """

    logprobs: Tensor
    entropy: Tensor
    divergence: Tensor
    sampled: Tensor
    old: Tensor
    reference: Tensor
    credit: Tensor
    weights: Tensor
    imitation: Tensor
    observation: Tensor
    demonstration: Tensor
    episode: Tensor
    turn: Tensor
    group: Tensor
    context: Tensor
    policy: Tensor
    inside: Tensor

    def only(self, chosen: Tensor) -> "Tokens":
        """Those that a mask [K] or an index chooses."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return Tokens(**{name: value[chosen] for name, value in values.items()})


Metrics = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of a configuration, and its sizes."""

    config: Settings

    @property
    def separable(self) -> bool:
        """Whether the loss of a minibatch is the sum of the losses of its parts, however it is cut."""
        loss, corrects = self.config.loss, self.config.loss.correction
        whole = ("topr", "kimi-opmd", "dpo")
        return (
            loss.kind not in whole
            and not (loss.kind == "a-lol" and loss.variant == "full")
            and loss.ratio == "token"
            and {corrects.weight, corrects.reject} <= {"none", "token"}
            and loss.entropy_share == 1
        )

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Metrics]:
        """The scalar to descend, and metrics that add up over the parts of a minibatch."""
        config, streams = self.config, self.config.loss.streams
        own = tokens.only(tokens.policy)
        gate = entropy_gate(own.entropy, share=config.loss.entropy_share).to(own.weights)
        terms, metrics = self._policy(own, gate if config.loss.entropy_gate != "bonus" else torch.ones_like(gate))
        loss = metrics["loss"] = terms
        bonus = own.entropy * (gate if config.loss.entropy_gate != "policy" else 1.0)
        apart = (own.logprobs.detach() - own.old).clamp(-30.0, 30.0)
        metrics["kl"] = (own.weights * (apart.exp() - apart - 1.0)).sum()
        metrics["entropy"] = (own.weights * own.entropy).sum()
        if config.entropy:
            loss = loss - config.entropy * (own.weights * bonus).sum()
        if config.loss.kl:
            term, metrics["kl_reference"] = self._divergence(own)
            loss = loss + config.loss.kl * term
        for name in ("imitation", "observation", "demonstration"):
            amount = streams.demonstrations if name == "demonstration" else getattr(streams, name)
            if amount:
                term = metrics[f"{name}_loss"] = (
                    getattr(tokens, name) * negative_likelihood(tokens.logprobs)
                ).sum()
                loss = loss + amount * term
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _policy(self, own: Tokens, gate: Tensor) -> tuple[Tensor, Metrics]:
        """The policy's own loss, corrected and gated."""
        config = self.config.loss
        metrics: Metrics = {}
        if config.kind == "dpo":
            return self._preferences(own, metrics)
        weights = own.weights * gate * own.inside
        if config.kind == "distill":
            apart = divergence.estimate(own.logprobs.detach(), own.reference)
            metrics["teacher_kl"] = (own.weights * (own.divergence if config.teaches_whole else apart)).sum()
        if config.mask.top_p < 1:
            metrics["masked_out"] = (own.weights * ~own.inside).sum()
        weights = weights * self._corrections(own, metrics)
        unit = {"token": None, "turn": own.turn, "sequence": own.episode}[config.ratio]
        terms = own.divergence if config.teaches_whole else self._terms(own, unit)
        if config.clips:
            now = ratio(own.logprobs.detach(), own.old, unit=unit, bound=config.pre_clip)
            band = {"low": self.config.clip_low, "high": self.config.clip_high}
            kept = policy.in_band(now, credit=own.credit, **band, sides=config.rec.sides, outer=config.rec.outer)
            metrics["clip_share"] = (own.weights * ~kept).sum()
        return (weights * terms).sum(), metrics

    def _terms(self, own: Tokens, unit: Tensor | None) -> Tensor:
        config, now, credit = self.config.loss, own.logprobs, own.credit
        band = {"low": self.config.clip_low, "high": self.config.clip_high}
        if config.kind in ("raft", "expert-iteration", "sft"):
            return negative_likelihood(now)
        if config.kind == "reinforce":
            return policy.reinforce(now, credit=credit)
        if config.kind == "topr":
            return policy.topr(now, own.sampled, credit=credit, unit=own.episode, most=config.taper)
        if config.kind == "a-lol":
            played = own.reference if config.against == "reference" else own.sampled
            return policy.advantage_lol(
                now, played, credit=credit, unit=own.episode, variant=config.variant, clip=config.weight_clip
            )
        if config.kind == "opmd":
            return policy.opmd(now, credit=credit, tau=config.tau)
        if config.kind == "kimi-opmd":
            return policy.kimi_opmd(now, own.old, credit=credit, unit=own.episode, tau=config.tau)
        compared = ratio(now, own.old, unit=unit, bound=config.pre_clip)
        if config.kind == "cispo":
            return policy.cispo(now, compared, credit=credit, **band)
        if config.kind == "rec":
            chosen, ratios = config.rec, compared.detach()
            kept = policy.in_band(ratios, credit=credit, **band, sides=chosen.sides, outer=chosen.outer)
            kept = kept * policy.rec_weight(
                ratios, credit=credit, kind=chosen.weight, temperature=chosen.temperature
            )
            pull = policy.rec_pull(now, own.old, kind=chosen.pull)
            return policy.reinforce(now, credit=credit) * kept + chosen.strength * pull
        if config.dual_clip is not None:
            return policy.dual_clip(compared, credit=credit, **band, most=config.dual_clip)
        return policy.ppo_clip(compared, credit=credit, **band)

    def _corrections(self, own: Tokens, metrics: Metrics) -> Tensor:
        """A number without gradient for each token, for what sampled it was not the learner."""
        chosen, units = self.config.loss.correction, {"token": None, "turn": own.turn, "sequence": own.episode}
        learner = own.old if self.config.loss.has_ratio else own.logprobs.detach()
        found = torch.ones_like(own.weights)
        if chosen.weight != "none":
            found = correction.truncated(learner, own.sampled, unit=units[chosen.weight], most=chosen.most)
            metrics["correction_weight"] = (own.weights * found).sum()
            metrics["correction_truncated"] = (own.weights * (found >= chosen.most)).sum()
        if chosen.reject != "none":
            kept = correction.kept(
                learner, own.sampled, unit=units[chosen.reject], low=chosen.low, high=chosen.high
            )
            metrics["rejected"] = (own.weights * ~kept).sum()
            found = found * kept
        return found

    def _divergence(self, own: Tokens) -> tuple[Tensor, Tensor]:
        """What is added to the loss, and what is shown."""
        chosen = self.config.loss.divergence
        shown = divergence.estimate(own.logprobs.detach(), own.reference, kind=chosen.kind)
        if chosen.place == "credit":
            return torch.zeros((), dtype=shown.dtype, device=shown.device), (own.weights * shown).sum()
        if chosen.estimate == "exact":
            term = (own.weights * own.divergence).sum()
            return term, term
        made = divergence.estimate if chosen.estimate == "k3" else divergence.descended
        found = made(own.logprobs, own.reference, kind=chosen.kind)
        return (own.weights * found).sum(), (own.weights * shown).sum()

    def _preferences(self, own: Tokens, metrics: Metrics) -> tuple[Tensor, Metrics]:
        """DPO's mean over pairs, each set of comparable units counting the same."""
        chosen = self.config.loss.preference
        names, unit = torch.unique(own.episode if chosen.unit == "trajectory" else own.turn, return_inverse=True)
        count = len(names)
        scores = preference.totals(own.credit, unit, units=count, mean=True).tolist()
        where = own.group if chosen.unit == "trajectory" else own.context
        comparable = torch.zeros(count, dtype=torch.int64, device=where.device).scatter(0, unit, where).tolist()
        found = preference.pairs(scores, comparable, margin=chosen.margin)
        other = own.sampled if chosen.against == "sampled" else own.reference
        margins = preference.totals(own.logprobs - other, unit, units=count, mean=chosen.mean)
        metrics["pairs"] = torch.tensor(float(len(found)))
        if not found:
            return margins.sum() * 0.0, metrics
        losses = preference.dpo(margins, found, beta=chosen.beta, smoothing=chosen.smoothing)
        sets = [comparable[better] for better, _ in found]
        share = losses.new_tensor([1.0 / (len(set(sets)) * sets.count(one)) for one in sets])
        right = (margins.detach()[[b for b, _ in found]] > margins.detach()[[w for _, w in found]]).to(losses)
        metrics["pairs_right"] = (share * right).sum()
        return (share * losses).sum(), metrics
