"""How many operations learning takes: a bound, from the model's shape and the configuration.

Counted as if every context were full and nothing shared. What worlds and evaluations take is not in it, nor who
samples elsewhere.
"""

from dataclasses import dataclass

from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.config_reinforce import Critic
from envgym_agents.learn.facts import Facts
from envgym_agents.learn.losses.objective import Objective
from envgym_agents.model import new_model, parameters

__all__ = ["Work", "forward_of", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations: of the warm start; in RL of updates, of other passes, of critics, of sampling."""

    warm_start: float
    updates: float
    passes: float
    critics: float
    sampling: float = 0.0

    @property
    def learning(self) -> float:
        """All but sampling."""
        return self.warm_start + self.updates + self.passes + self.critics


def forward_of(facts: Facts, length: int, weights: int | None = None) -> float:
    """Of one token's forward pass among `length`; weights: of another model than the policy.

    2 a weight (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), and causal attention, of which half of all pairs
    are computed: 2 layers width length (Chowdhery et al. 2022, arXiv 2204.02311, appendix B, halved).
    """
    return 2.0 * (facts.parameters if weights is None else weights) + 2.0 * facts.layers * facts.hidden * length


def work_of(config: TrainConfig, facts: Facts, *, tokens: int, played: int = 0, frozen: int = 0) -> Work:
    """Of a run that learns from `tokens` tokens. frozen: weights of the model that the loss asks beside the policy.

    played: tokens of all contexts that are played; where this process samples each is a forward pass once (keys and
    values are kept), and with a mask one of the masking policy beside.

    A way back takes twice the forward pass, and with checkpoints the forward pass once more. Recomputed old
    log-probabilities and another model are a forward pass each, and a loss that couples tokens computes its values
    before it descends.
    """
    reinforce, length = config.reinforce, config.model.context
    loss, once = reinforce.loss, forward_of(facts, length)
    update = once * (4 if config.learner.checkpoint else 3)
    warm = config.warm_start
    plays = warm.episodes_per_task or warm.store
    before = loss.old == "recomputed"
    beside = forward_of(facts, length, frozen) if frozen and not loss.served else 0.0
    whole = loss.asks_whole or loss.teaches_whole or loss.mask.top_p < 1  # of another model, in every epoch
    coupled = not Objective(reinforce).separable
    passes = once * (before + coupled * reinforce.epochs) + beside * (reinforce.epochs if whole else 1)
    critics = (reinforce.critic, reinforce.critic.second)
    models = 2 if loss.mask.top_p < 1 else 1
    return Work(
        warm_start=update * warm.max_updates * warm.rows * length if plays else 0.0,
        updates=update * tokens * reinforce.epochs,
        passes=passes * tokens,
        critics=sum(_critic(one, config, facts) for one in critics if one) * tokens,
        sampling=once * models * played if config.masks_sampler else 0.0,
    )


def _critic(critic: Critic, config: TrainConfig, facts: Facts) -> float:
    """A token of a step: its value is asked once, and `updates` draws of `groups` groups of each step train."""
    if critic.kind == "none":
        return 0.0
    length, trained = config.model.context, 0.0
    drawn = critic.updates * min(critic.groups, config.reinforce.tasks) / config.reinforce.tasks
    asked = forward_of(facts, length)
    if critic.kind == "implicit":
        trained = 3 * asked
        asked *= 2
    elif critic.body == "own":
        own = new_model(facts.vocabulary, size=critic.size, context=length)
        asked = forward_of(facts, length, parameters(own))
        trained = 3 * asked
    return asked + drawn * (trained or asked)
