"""What a run learns beside its policy: one estimator, the episodes it learns from, and what it offers a scheme.

Each step it is given the groups that were played, keeps them in a replay, and updates its estimator from groups
drawn from there. Everything is a function of (seed, step) and of its state, which a checkpoint holds whole.
"""

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from envgym.buffer import Replay
from envgym.credit import Ledger, Level
from envgym.credit.ledger import Floats
from envgym.credit.reference import GREEDY
from envgym.credit.schemes.counterexamples import unequal_lengths
from envgym.credit.sources import Estimate
from envgym.episode import Group
from envgym.registry import find
from envgym_agents.eyes import eyes_of
from envgym_agents.learn.collect import of_what_was_sampled, scheme_of
from envgym_agents.learn.config import Critic, Reinforce
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.values.archer import Archer
from envgym_agents.learn.values.critic import TokenCritic, TurnCritic
from envgym_agents.learn.values.fresh import Resampler, is_fresh
from envgym_agents.learn.values.implicit import ImplicitReward
from envgym_agents.learn.values.likelihood import Likelihood, log_ratios
from envgym_agents.learn.values.losses import objective
from envgym_agents.learn.values.network import Body
from envgym_agents.learn.values.offers import check_forks, check_needs, offered
from envgym_agents.learn.values.packed import packed, unpacked
from envgym_agents.learn.values.progress import Progress
from envgym_agents.learn.values.reward_model import AGGREGATES, RewardModel
from envgym_agents.learn.values.targets import Horizon
from envgym_agents.model import max_length, new_model

__all__ = ["Estimator", "Valuation", "try_scheme"]


class Estimator(Protocol):
    """What is trained: an update from a ledger, and a state that survives it."""

    @property
    def warm(self) -> bool:
        """Whether it may be used."""
        ...

    def update(self, ledger: Ledger, apart_T: Floats | None = None) -> dict[str, float]:
        """One update; returns metrics."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described."""
        ...


def try_scheme(config: Reinforce) -> None:
    """Make the scheme that a configuration names, and credit something with it.

    Raises ValueError when it cannot be made, needs what the critics do not give (also: values of states where
    those of tokens are given) or forks, has no use for one of them, or discounts otherwise than they do.
    """

    def nothing(level: Level) -> Estimate:
        return lambda ledger: np.zeros(level.size(ledger))

    critics = _critics(config)
    offers = [offered(critic) for critic in critics]
    if len(offers) > 1 and (twice := offers[0].keys() & offers[1].keys()):
        raise ValueError(f"reinforce.critic and its second both estimate {', '.join(sorted(twice))}")
    spec = find("schemes", config.credit)
    check_forks(config, spec, offers)
    options = inspect.signature(spec.make).parameters
    idle = [one.kind for one, given in zip(critics, offers, strict=True) if not given.keys() & options.keys()]
    if idle and len(critics) > 1:
        raise ValueError(f"scheme {config.credit!r} uses nothing that a critic of kind {idle[0]!r} estimates")
    check_needs(config, spec, offers)
    scheme = scheme_of(config, {name: nothing(level) for given in offers for name, level in given.items()})
    if config.teaches == "credit" and of_what_was_sampled(config):
        raise ValueError(
            "teaches is 'credit' and the baseline 'sampled': which groups teach would depend on groups that were "
            "not played yet; choose 'outcomes' or 'all'"
        )
    if config.loop.past.kind == "beside" and of_what_was_sampled(config):
        raise ValueError(
            "loop.past.kind is 'beside' and the baseline 'sampled': of a stored group the step sampled nothing, "
            f"and runs name their groups alike; leave credit_options.{spec.running} out, or give a number or a "
            "running mean (a table), or make past.kind 'alone'"
        )
    scheme(_marked(unequal_lengths()) if spec.greedy else unequal_lengths())
    for critic in critics:
        _check_discounts(config, critic, options)


def _critics(config: Reinforce) -> list[Critic]:
    second = config.critic.second
    return [config.critic] if second is None else [config.critic, second]


def _marked(groups: Sequence[Group]) -> list[Group]:
    """The groups with their first members as greedy ones."""
    return [
        Group(one.task_id, (replace(one.episodes[0], provenance=(GREEDY,)), *one.episodes[1:])) for one in groups
    ]


def _check_discounts(config: Reinforce, critic: Critic, options: Mapping[str, inspect.Parameter]) -> None:
    for name in {"turn": ("gamma",), "token": ("gamma",), "implicit": ("beta",)}.get(critic.kind, ()):
        if name in options:
            wanted, own = config.credit_options.get(name, options[name].default), getattr(critic, name)
            if wanted != own:
                raise ValueError(
                    f"the scheme's {name} is {wanted}, and reinforce.critic.{name} {own}; make them equal"
                )


class Valuation:
    """An estimator in training beside a policy.

    model: the policy's, as RL begins with it; the policy goes on training it. Estimates are under the names that
    schemes need them by (`estimates`).
    """

    def __init__(
        self, config: Critic, model: Any, *, seed: int = 0, temperature: float = 1.0, max_tokens: int = 8192,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        if config.kind == "none":
            raise ValueError("kind is 'none': there is nothing to learn")
        if eyes_of(model) is not None:
            raise ValueError(
                f"reinforce.critic.kind is {config.kind!r}: critics read text only, and this model "
                "sees; make it 'none'"
            )
        self.config, self.seed = config, seed
        bounds: dict[str, Any] = {"max_tokens": max_tokens, "device": device}
        self.estimator, estimates = _estimator(config, model, seed, temperature, bounds)
        self.estimates = {name: estimates[name] for name in offered(config)}
        self._policy = Likelihood(Scorer(model, temperature=temperature), **bounds)
        self._replay = Replay(config.replay) if config.replay else None

    @property
    def warm(self) -> bool:
        """Whether its estimates may be used."""
        return self.estimator.warm

    def learn(self, groups: Sequence[Group], *, step: int) -> dict[str, float]:
        """Learn from what a step played and from what earlier ones did; the plain mean of the updates' metrics."""
        groups = self._remembered(groups, step)
        found: list[dict[str, float]] = []
        for number in range(self.config.updates):
            if chosen := self._drawn(groups, self._rng(step, number), step):
                ledger = Ledger.of(chosen)
                corrected = self.config.kind in ("turn", "token", "archer") and self.config.most > 0
                found.append(self.estimator.update(ledger, log_ratios(self._policy, ledger) if corrected else None))
        return self._means(found)

    async def learn_anew(self, groups: Sequence[Group], *, step: int, resampler: Resampler) -> dict[str, float]:
        """The same where turns are sampled anew at drawn states; `fresh_tokens` is how many tokens that took."""
        groups, tokens = self._remembered(groups, step), 0
        found: list[dict[str, float]] = []
        for number in range(self.config.updates):
            rng = self._rng(step, number)
            if chosen := self._drawn(groups, rng, step):
                grown = await resampler.grown(chosen, self.config.fresh, rng=rng)
                tokens += _fresh_tokens(grown)
                found.append(self.estimator.update(Ledger.of(grown)))
        return self._means(found) | {"fresh_tokens": float(tokens)}

    async def anew(self, groups: Sequence[Group], *, step: int, resampler: Resampler) -> tuple[list[Group], int]:
        """Drawn groups with fresh turns, for the policy to learn from, and how many tokens these took.

        groups: what the step played, of which they are drawn where there is no replay; a replay has them already.
        """
        rng = self._rng(step, self.config.updates)
        held = [group for group in groups if group.scored]
        grown = await resampler.grown(self._drawn(held, rng, step), self.config.fresh, rng=rng)
        return grown, _fresh_tokens(grown)

    def _remembered(self, groups: Sequence[Group], step: int) -> list[Group]:
        """The groups in which some world held, put into the replay."""
        held = [group for group in groups if group.scored]
        if self._replay is not None:
            for group in held:
                self._replay.add(group, version=step)
        return held

    def _rng(self, step: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 8, step, number])

    def _means(self, found: Sequence[Mapping[str, float]]) -> dict[str, float]:
        names = sorted({name for metrics in found for name in metrics})
        means = {name: float(np.mean([metrics.get(name, 0.0) for metrics in found])) for name in names}
        return {f"critic_{name}": value for name, value in means.items()} | {"critic_warm": float(self.warm)}

    def _drawn(self, groups: Sequence[Group], rng: np.random.Generator, step: int) -> list[Group]:
        """Different groups, of this step or of the replay, at most as many as one update takes."""
        if self._replay is None:
            chosen = rng.permutation(len(groups))[: self.config.groups]
            return [groups[k] for k in sorted(chosen.tolist())]
        if not len(self._replay):
            return []
        draw = self._replay.sample(self.config.groups, rng, version=step)
        return list(dict(sorted(zip(draw.numbers.tolist(), draw.groups, strict=True))).values())

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        replay = None if self._replay is None else packed(self._replay)
        return {"kind": self.config.kind, "estimator": self.estimator.state(), "replay": replay}

    def load(self, state: dict[str, Any]) -> None:
        """Be what `state` described. Raises ValueError for another kind's."""
        if state.get("kind") != self.config.kind:
            raise ValueError(f"it holds a critic of kind {state.get('kind')!r}, and this is {self.config.kind!r}")
        self.estimator.load(state["estimator"])
        self._replay = None if state["replay"] is None else unpacked(state["replay"])


def _fresh_tokens(groups: Sequence[Group]) -> int:
    return sum(episode.sampled_tokens for group in groups for episode in group if is_fresh(episode))


def _estimator(
    config: Critic, model: Any, seed: int, temperature: float, bounds: Mapping[str, Any]
) -> tuple[Estimator, Mapping[str, Estimate]]:
    """The estimator that a configuration asks for, and what it estimates by name."""
    if config.kind == "implicit":
        implicit = ImplicitReward(
            Likelihood(Scorer(model, temperature=temperature), **bounds), beta=config.beta, lr=config.lr,
            warmup=config.warmup, max_grad_norm=config.max_grad_norm, learn=config.learn,
        )  # fmt: skip
        return implicit, {"log_ratio": implicit}
    options: dict[str, Any] = {
        "seed": seed, "lr": config.lr, "tau": config.tau, "max_grad_norm": config.max_grad_norm,
    }  # fmt: skip
    body = _body(config, model, seed, bounds)
    if config.kind == "progress":
        progress = Progress(body, warmup=config.warmup, **options)
        return progress, {"contributions": progress}
    if config.kind == "reward-model":
        scores = RewardModel(
            body, count=config.count, aggregate=AGGREGATES[config.aggregate], warmup=config.warmup, **options
        )
        return scores, {"contributions": scores}
    said = objective(config.loss, low=config.low, high=config.high, bins=config.bins)
    horizon = Horizon(config.gamma, config.lam, config.most, config.warmup)
    if config.kind == "archer":
        twins = Archer(body, said, horizon, baseline=config.baseline, **options)
        return twins, {
            "action_values": twins.action_values, "values": twins.values, "token_baseline": twins.token_baseline,
        }  # fmt: skip
    kind = TurnCritic if config.kind == "turn" else TokenCritic
    critic = kind(body, said, horizon, most=config.value_clip, **options)
    return critic, {"values": critic}


def _body(config: Critic, model: Any, seed: int, bounds: Mapping[str, Any]) -> Body:
    if config.body == "policy":
        return Body(model, **bounds)
    if config.body == "frozen":
        return Body(deepcopy(model).requires_grad_(False), **bounds)
    own = new_model(model.config.vocab_size, size=config.size, seed=seed, context=max_length(model))
    return Body(own.to(bounds["device"]), trains=True, **bounds)
