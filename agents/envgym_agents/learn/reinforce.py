"""The policy-gradient loop, readable top to bottom.

One step: draw tasks, play a group of episodes on each, keep the groups that teach, give every sampled token its
credit, update, publish the weights as the policy's next version. Everything random is a function of
(seed, step, slot, member), so a run that is killed and resumed draws as if nothing had happened. Its weights are
the same to the last bit where the worlds never wait (games in this process), as many threads compute, and the kill
came between two waves of episodes. Elsewhere which calls share a pass depends on timing and on what was already
played, which changes the last bits of a log-probability and so, rarely, a draw.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from envgym.credit import Running, Scheme, means_of
from envgym.episode import Group
from envgym.policy import AgentFactory
from envgym.registry import find
from envgym_agents.learn.checkpoint import latest
from envgym_agents.learn.collect import (
    Collected,
    collect,
    credited,
    metrics,
    of_what_was_sampled,
    running_of,
    scheme_of,
    truncation_of,
)
from envgym_agents.learn.diagnose import Diagnosed
from envgym_agents.learn.members import Players
from envgym_agents.learn.pack import Row
from envgym_agents.learn.parts import Parts, Progress, ended
from envgym_agents.learn.reward_scale import RewardScale
from envgym_agents.learn.values.fresh import Resampler, is_fresh
from envgym_agents.learn.values.several import Several
from envgym_agents.learn.values.valuation import Valuation

__all__ = ["Loop"]


@dataclass(slots=True)
class Loop:
    """The loop over its parts; the policy samples from the very model that the learner updates.

    valuation: what learns beside the policy and gives the credit scheme what it needs; while it warms up the policy
    stays as it is. make_greedy: how it acts where a scheme compares with a greedy member of each group. resampler:
    samples turns anew where the critic asks for it.
    """

    parts: Parts
    valuation: Valuation | Several | None = None
    make_greedy: AgentFactory | None = None
    resampler: Resampler | None = None

    async def run(self) -> Progress:
        """Train until a bound of the configuration is reached, from the newest checkpoint if there is one."""
        if find("schemes", self.parts.config.credit).greedy and self.make_greedy is None:
            raise ValueError(f"scheme {self.parts.config.credit!r} compares with greedy members; give make_greedy")
        progress = await self._resume()
        begun = time.perf_counter() - progress.seconds
        while not (stop := ended(self.parts.config, progress)):
            progress = await self._step(progress, begun)
            if progress.step % self.parts.config.checkpoint_every == 0:
                self._save(progress)
        progress = replace(progress, stop=stop)
        self._save(progress)
        return progress

    async def _step(self, progress: Progress, begun: float) -> Progress:
        config, step = self.parts.config, progress.step
        started = time.perf_counter()
        estimates = self.valuation.estimates if self.valuation is not None else {}
        running = Running.of_state(progress.running) if progress.running else running_of(config)
        scheme = scheme_of(config, estimates, running)
        greedy = self.make_greedy if find("schemes", config.credit).greedy else None
        players = Players(self.parts.arena, self.parts.make_agent, self.parts.seed, step, greedy)
        past = [] if self.parts.past is None else self.parts.past.of_step(step)
        if config.loop.past.kind == "alone":
            found, told = Collected(groups=past, whole=past, played=len(past)), dict[str, float]()
        else:
            found = await collect(players, self.parts.order, config, scheme=scheme)
            told = self.parts.order.saw(found.sampled)
        truncation, unit = truncation_of(config), RewardScale.of_state(progress.returns)
        if config.critic.rewards.scale != "none":
            unit = unit.saw(found.whole, truncation=truncation)
        earned = unit.collected(found, config.critic.rewards)
        if of_what_was_sampled(config):
            scheme = scheme_of(config, estimates, means_of(earned.sampled, truncation=truncation))
        played = time.perf_counter()
        diagnosed = Diagnosed(scheme, config, progress.length)
        beside = unit.of(past, config.critic.rewards) if config.loop.past.kind == "beside" else []
        groups, learned = await self._credited(earned, beside, diagnosed, step)
        lr = config.lr * min(1.0, (step + 1) / max(config.warmup, 1))
        rng = np.random.default_rng([self.parts.seed, 6, step])
        if groups:
            learned |= self.parts.learner.update(groups, config, rng, lr=lr)
        await self.parts.policy.update(masks=self.parts.learner.masks if learned.get("mask_renewed") else None)
        ended = time.perf_counter()
        tokens = progress.tokens + sum(episode.sampled_tokens for episode in found.episodes)
        tokens += int(learned.get("fresh_tokens", 0))
        after = {} if running is None else running.updated(earned.sampled, truncation=truncation).state()
        progress = Progress(
            step + 1, self.parts.order.cursor, ended - begun, tokens, length=diagnosed.length, running=after,
            order=self.parts.order.state(), returns=unit.state(),
        )  # fmt: skip
        took = {"play_s": played - started, "learn_s": ended - played, "total_s": progress.seconds}
        took["total_sampled"] = float(tokens)
        told |= {**metrics(found), **unit.shown(), **diagnosed.values, **learned, **took, "lr": lr}
        await self.parts.on_step(progress, found, told)
        return progress

    async def _credited(
        self, found: Collected, beside: Sequence[Group], scheme: Diagnosed, step: int
    ) -> tuple[list[list[Row]], dict[str, float]]:
        """The rows to learn from, and what the valuation learned: after it was asked, or, if wanted, before.

        Asked first, its estimates do not know how the episodes that they judge have ended. beside: stored groups.
        """
        values, config = self.valuation, self.parts.config
        if values is not None and config.critic.fresh:
            return await self._anew(found, beside, scheme.scheme, step)
        learned = values.learn(found.sampled, step=step) if values is not None and config.critic.first else {}
        rows: list[list[Row]] = []
        if values is None or values.warm:
            rows += credited(found.groups, scheme, config)
            rows += credited(beside, scheme.scheme, config)
        if values is not None and not config.critic.first:
            learned = values.learn(found.sampled, step=step)
        return rows, learned

    async def _anew(
        self, found: Collected, beside: Sequence[Group], scheme: Scheme, step: int
    ) -> tuple[list[list[Row]], dict[str, float]]:
        """The rows of stored groups and of turns that were sampled anew: the critic learns first, as in ArCHer."""
        values, resampler = self.valuation, self.resampler
        if resampler is None or not isinstance(values, Valuation):
            raise ValueError(
                "critic.fresh asks for turns that are sampled anew: give a resampler and one valuation"
            )
        learned = await values.learn_anew(found.sampled, step=step, resampler=resampler)
        if not values.warm:
            return [], learned
        grown, tokens = await values.anew(found.sampled, step=step, resampler=resampler)
        rows = credited(grown, scheme, self.parts.config, is_fresh)
        rows += credited(beside, scheme, self.parts.config)
        return rows, learned | {"fresh_tokens": learned["fresh_tokens"] + tokens}

    async def _resume(self) -> Progress:
        newest = latest(self.parts.folder)
        progress = Progress()
        if newest is not None:
            stored = self.parts.learner.load(newest, beside=None if self.valuation is None else self.valuation.load)
            progress = replace(Progress(**stored), stop="")
        self.parts.order.cursor = progress.cursor
        self.parts.order.load(progress.order)
        await self.parts.policy.update(version=progress.step, masks=self.parts.learner.masks)
        return progress

    def _save(self, progress: Progress) -> None:
        beside = None if self.valuation is None else self.valuation.state()
        self.parts.learner.save(self.parts.folder, progress.step, asdict(progress), beside=beside)
