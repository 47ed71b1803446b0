"""The asynchronous loop, readable top to bottom: playing, grading and learning overlap, with bounded staleness.

Producers play groups as long as the queue lets them in (`envgym.buffer.OnPolicyQueue`); the learner takes a batch,
updates its own copy of the weights in a thread, and publishes them to the policy between two of its passes: what is
being sampled goes on under the new weights, and says so token by token. No token trains whose weights are more than
``staleness`` versions behind. Nothing waits for stragglers, and no episode for the learner.

A checkpoint holds weights, optimiser, and the names of all episodes that wait; the episodes are in the store. A run
that was killed plays on what it had begun. What it had played with weights that no checkpoint kept is played again:
those versions never were. Sources: AReaL (Fu et al. 2025, arXiv 2505.24298), Kimi k1.5 (arXiv 2501.12599).
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from envgym.buffer import (
    Columns,
    OnPolicyQueue,
    Partial,
    QueueState,
    Replay,
    Spoiled,
    Taken,
    Ticket,
    oldest_version,
)
from envgym.buffer.replay import ReplayState
from envgym.episode import Episode, Group, Turn
from envgym.jobs import Job, Memory, Stretch
from envgym.registry import find
from envgym_agents.learn.checkpoint import latest, write_json
from envgym_agents.learn.collect import (
    Collected,
    credited,
    metrics,
    of_what_was_sampled,
    running_of,
    scheme_of,
    teaches,
)
from envgym_agents.learn.config import Reinforce
from envgym_agents.learn.crowd import Crowd
from envgym_agents.learn.diagnose import Diagnosed
from envgym_agents.learn.overlap_gap import sampler_gap
from envgym_agents.learn.pack import Row
from envgym_agents.learn.parts import Parts, Progress, ended
from envgym_agents.learn.play import TaskOrder, seed_of

__all__ = ["Overlapped", "staleness_of"]


def staleness_of(config: Reinforce) -> int:
    """The bound that a configuration asks for: its own, or 1 where nothing in it needs whole steps, else 0.

    Raises ValueError where it asks for more than 0 and something needs whole steps.
    """
    whole = [
        (config.critic.kind != "none", f"critic.kind {config.critic.kind!r}"),
        (config.loop.curriculum.kind != "none", f"curriculum.kind {config.loop.curriculum.kind!r}"),
        (config.loop.past.kind == "alone", "past.kind 'alone'"),
        (config.members.kind != "plain", f"members.kind {config.members.kind!r}"),
        (find("schemes", config.credit).greedy, f"credit {config.credit!r}, with its greedy members"),
        (running_of(config) is not None or of_what_was_sampled(config), "a running baseline"),
    ]
    wanting = [what for wants, what in whole if wants]
    asked = config.loop.staleness
    if asked and wanting:
        raise ValueError(
            f"reinforce.loop.staleness is {asked}, and {' and '.join(wanting)} is of whole steps, one after the "
            "other: leave staleness out, or make it 0"
        )
    return (0 if wanting else 1) if asked is None else asked


@dataclass(slots=True)
class Overlapped:
    """The loop over its parts; the policy samples from weights of its own.

    policy: has another copy of the weights than the learner. arena: with a memory, where all that waits is found
    again.
    """

    parts: Parts
    queue: OnPolicyQueue = field(init=False)
    replay: Replay = field(init=False)
    crowd: Crowd = field(init=False)
    _again: deque[Ticket] = field(init=False, default_factory=deque)
    _fresh: dict[int, int] = field(init=False, default_factory=dict)
    _life: int = field(init=False, default=0)
    _begun_at: int = field(init=False, default=0)
    _since: Collected = field(init=False, default_factory=Collected)
    _news: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    # -- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> Progress:
        """Train until a bound of the configuration is reached, from the newest checkpoint if there is one."""
        if getattr(self.parts.policy, "model", None) is self.parts.learner.scorer.model:
            raise ValueError("the policy samples from the learner's own weights: give the learner a copy")
        progress = await self._resume()
        begun = time.perf_counter() - progress.seconds
        self.crowd = Crowd(self.parts.arena, recent=self.parts.config.tasks * self.parts.config.group)
        producers = [asyncio.create_task(self._produce()) for _ in range(self.queue.batch * (self.queue.bound + 1))]
        for producer in producers:
            producer.add_done_callback(lambda _done: self._news.set())
        threads = torch.get_num_threads()
        thread = ThreadPoolExecutor(1, "envgym-learner", initializer=torch.set_num_threads, initargs=(threads,))
        try:
            while not (stop := ended(self.parts.config, progress)):
                progress = await self._step(progress, begun, producers, thread)
                if progress.step % self.parts.config.checkpoint_every == 0:
                    self._save(progress)
            progress = replace(progress, stop=stop)
            self._save(progress)
        finally:
            for producer in producers:
                producer.cancel()
            await asyncio.gather(*producers, return_exceptions=True)
            thread.shutdown(wait=True)
        return progress

    async def _produce(self) -> None:
        """Play group after group, as the queue gives leave; refills of what was spoiled come first."""
        while True:
            ticket = self._again.popleft() if self._again else await self.queue.start()
            begin = self.parts.config.group + self._fresh.get(ticket.number, 0) if ticket.missing else 0
            members = range(begin, begin + (ticket.missing or self.parts.config.group))
            played = await self.crowd.play([self._job(ticket.number, member) for member in members])
            group = Group(played[0].task_id, tuple(played))
            self._since.whole.append(group)
            self._since.episodes += played
            if ticket.missing:
                self._fresh[ticket.number] = self._fresh.get(ticket.number, 0) + ticket.missing
                self.queue.try_put(group, ticket)
            else:
                self._since.played += 1
                mends = self.queue.spoiled is Spoiled.REFILL and any(member.failure for member in group)
                if mends or teaches(group, self.parts.config):
                    self.queue.try_put(group, ticket)
                else:
                    self._since.others.append(group)
                    self.queue.abandon(ticket)
            self._news.set()

    async def _step(
        self, progress: Progress, begun: float, producers: Sequence[asyncio.Task[None]], thread: ThreadPoolExecutor
    ) -> Progress:
        config, step = self.parts.config, progress.step
        started = time.perf_counter()
        taken = await self._batch(producers)
        took = {"wait_s": time.perf_counter() - started, "in_flight": float(self.crowd.window.in_flight)}
        since, self._since = self._since, Collected()
        stale = _staleness(taken)
        scheme = Diagnosed(scheme_of(config), config, progress.length)
        lr = config.lr * min(1.0, (step + 1) / max(config.warmup, 1))
        loop = asyncio.get_running_loop()
        at = time.perf_counter()
        learned = await loop.run_in_executor(thread, self._learn, taken, scheme, step, lr)
        took["learn_s"] = time.perf_counter() - at
        version = self.queue.version + bool(learned)
        self.queue.advance(version)
        if learned:
            weights = self.parts.learner.scorer.model.state_dict()
            masks = self.parts.learner.masks if learned.get("mask_renewed") else None
            await self.parts.policy.update(weights, version=version, masks=masks)
        self._remember(taken)
        tokens = progress.tokens + sum(episode.sampled_tokens for episode in since.episodes)
        seconds = time.perf_counter() - begun
        progress = Progress(step + 1, self._next, seconds, tokens, length=scheme.length)
        told = {**metrics(since), **scheme.values, **stale, **learned, **took, **self._counted(since), "lr": lr}
        told |= {"total_s": seconds, "total_sampled": float(tokens), "swept": float(len(taken.swept))}
        since.groups = list(taken.groups)
        await self.parts.on_step(progress, since, told)
        return progress

    async def _batch(self, producers: Sequence[asyncio.Task[None]]) -> Taken:
        """A whole batch; less, or nothing, where too many groups in a row have taught nothing."""
        most = int(self.parts.config.tasks * self.parts.config.oversample)
        while True:
            self._news.clear()
            for producer in producers:
                if producer.done():
                    producer.result()  # raises what ended it
            if (taken := self.queue.try_take()) is not None:
                return taken
            if self._since.played >= most:
                return self.queue.try_take(1) or Taken(self.queue.version, (), (), ())
            await self._news.wait()

    def _learn(self, taken: Taken, scheme: Diagnosed, step: int, lr: float) -> dict[str, float]:
        """In the learner's thread: credit and update; {} where there is nothing to learn from."""
        rng = np.random.default_rng([self.parts.seed, 6, step])
        drawn = self._drawn_again(taken, rng)
        masked = frozenset[str]().union(*taken.masked, *(mask for _group, mask in drawn))
        rows = self._rows(taken.groups, scheme, masked)
        rows += self._rows([group for group, _mask in drawn], scheme.scheme, masked) if drawn else []
        past = [] if self.parts.past is None else self.parts.past.of_step(step)
        rows += self._rows(past, scheme.scheme, frozenset())
        if not rows:
            return {}
        gap = sampler_gap(self.parts.learner, taken, self.parts.config)
        learned = self.parts.learner.update(rows, self.parts.config, rng, lr=lr)
        learned["drift"] = learned.pop("sampler_gap", 0.0)  # of newer weights than those that sampled
        return {**learned, **gap, "again": float(len(drawn))}

    def _rows(self, groups: Sequence[Group], scheme: Any, masked: frozenset[str]) -> list[list[Row]]:
        config = self.parts.config
        return credited(groups, scheme, config, lambda episode: episode.id not in masked) if groups else []

    # -- what is learned from again ----------------------------------------------------------------------------

    def _drawn_again(self, taken: Taken, rng: np.random.Generator) -> list[tuple[Group, frozenset[str]]]:
        """Groups that have trained before and still are within the bound, with those members that are not."""
        size, bound = round(self.parts.config.loop.replay * len(taken.groups)), self.queue.bound
        ages = self.replay.columns(taken.version).age
        if not size or not (ages <= bound).any():
            return []

        def fresh(columns: Columns) -> Any:
            return (columns.age <= bound).astype(np.float64)

        draw = self.replay.sample(size, rng, version=taken.version, rule=fresh)
        once = dict(zip(draw.numbers.tolist(), draw.groups, strict=True))
        allowed = taken.version - bound
        return [
            (group, frozenset(one.id for one in group if (oldest_version(one) or 0) < allowed))
            for group in once.values()
        ]

    def _remember(self, taken: Taken) -> None:
        """What has trained may train again; its freshest member says until when."""
        for group, mask in zip(taken.groups, taken.masked, strict=True):
            kept = tuple(one for one in group if one.failure is None and one.id not in mask)
            born = [version for one in kept if (version := oldest_version(one)) is not None]
            if self.parts.config.loop.replay and born:
                self.replay.add(Group(group.task_id, kept), version=max(born))

    # -- one episode -------------------------------------------------------------------------------------------

    def _job(self, number: int, member: int) -> Job:
        job = self.parts.arena.job(
            self._order.at(number),
            self.parts.make_agent,
            seed=seed_of(self.parts.seed, 5, number, member),
            episode_id=self._name(number, member),
            group=f"a{number:06d}",
        )
        if not self.parts.config.loop.stretch:
            return job

        async def goes_on(cut: Episode) -> bool:
            return self.queue.usable(Partial(cut))

        return replace(job, stretch=Stretch(self.parts.config.loop.stretch, goes_on))

    def _name(self, number: int, member: int) -> str:
        """The id of an episode: of one that an earlier process began with weights that are known, or a new one."""
        names = [f"a{number:06d}-{member:03d}" + (f"-l{life}" if life else "") for life in range(self._life + 1)]
        for name in names[:-1]:
            turns = self._recorded(name)
            if turns is not None and all(r.version <= self._begun_at for turn in turns for r in turn.versions):
                return name
        return names[-1]

    def _recorded(self, name: str) -> Sequence[Turn] | None:
        memory = self._memory
        if name in memory:
            return memory[name].turns
        found = memory.unfinished.get(name)
        return None if found is None else [*found.turns, *([found.said] if found.said is not None else [])]

    @property
    def _order(self) -> TaskOrder:
        if not isinstance(self.parts.order, TaskOrder):
            raise ValueError("an asynchronous loop asks for a task by its number: give it a TaskOrder")
        return self.parts.order

    @property
    def _memory(self) -> Memory:
        if self.parts.arena.memory is None:
            raise ValueError("an asynchronous loop needs an arena with a memory: what waits is found again there")
        return self.parts.arena.memory

    # -- checkpoints -------------------------------------------------------------------------------------------

    async def _resume(self) -> Progress:
        folder, loop, progress = self.parts.folder, self.parts.config.loop, Progress()
        newest = latest(folder)
        spoiled = Spoiled(loop.spoiled)
        self.queue = OnPolicyQueue(
            self.parts.config.tasks, bound=staleness_of(self.parts.config), spoiled=spoiled, refills=loop.refills
        )
        self.replay = Replay(loop.replay_tokens)
        self._life = len(list(folder.glob("life-*.json"))) if folder.is_dir() else 0
        write_json(folder / f"life-{self._life:04d}.json", {"from": None if newest is None else newest.name})
        memory = self._memory
        if newest is not None:
            stored = self.parts.learner.load(newest)
            progress = replace(Progress(**stored["progress"]), stop="")
            waiting, kept = ([memory[name] for name in stored[what]["episodes"]] for what in ("queue", "replay"))
            self.queue = OnPolicyQueue.restore(QueueState(stored["queue"]["facts"], tuple(waiting)))
            self.replay = Replay.restore(ReplayState(stored["replay"]["facts"], tuple(kept)))
            self._fresh = {int(number): count for number, count in stored["fresh"].items()}
        self._again = deque(self.queue.tickets)
        self._begun_at = self.queue.version
        weights, masks = self.parts.learner.scorer.model.state_dict(), self.parts.learner.masks
        await self.parts.policy.update(weights, version=self.queue.version, masks=masks)
        return progress

    def _save(self, progress: Progress) -> None:
        queue, replay = self.queue.state(), self.replay.state()
        stored = {
            "progress": asdict(progress),
            "queue": {"facts": queue.facts, "episodes": [one.id for one in queue.episodes]},
            "replay": {"facts": replay.facts, "episodes": [one.id for one in replay.episodes]},
            "fresh": {str(number): count for number, count in self._fresh.items()},
        }
        self.parts.learner.save(self.parts.folder, progress.step, stored)

    # -- metrics -----------------------------------------------------------------------------------------------

    @property
    def _next(self) -> int:
        counts = self.queue.counts
        return counts.started + counts.unticketed

    def _counted(self, since: Collected) -> dict[str, float]:
        counts = self.queue.counts
        return {
            "version": float(self.queue.version),
            "waiting": float(counts.waiting),
            "window": float(self.crowd.window.size),
            "groups": float(since.played),
            "zero_variance": len(since.others) / max(since.played, 1),
        }


def _staleness(taken: Taken) -> dict[str, float]:
    """How many versions behind the oldest token of each episode is that trains: the most, and the mean."""
    ages = [
        float(taken.version - oldest)
        for group, mask in zip(taken.groups, taken.masked, strict=True)
        for one in group
        if one.id not in mask and one.failure is None and (oldest := oldest_version(one)) is not None
    ]
    return {"staleness": float(np.mean(ages)), "staleness_max": max(ages)} if ages else {}
