"""The asynchronous loop, readable top to bottom: playing, grading and learning overlap, with bounded staleness.

Producers play groups as long as the queue lets them in (`envgym.buffer.OnPolicyQueue`); the learner takes a batch,
updates its own copy of the weights in a thread, and publishes them to the policy between two of its passes: what is
being sampled goes on under the new weights, and says so token by token. No token trains whose weights are more than
``staleness`` versions behind. Nothing waits for stragglers, and no episode for the learner: which worlds straggle
is learned, and beside one that did the last time another group begins at once.

A checkpoint holds weights, optimiser, and the names of all episodes that wait or that no step has told of yet; the
episodes are in the store. A run that was killed plays on what it had begun. What it had played with weights that no
checkpoint kept is played again: those versions never were.
Sources: AReaL (Fu et al. 2025, arXiv 2505.24298), Kimi k1.5 (arXiv 2501.12599).
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from envgym.buffer import OnPolicyQueue, Partial, QueueState, Replay, Spoiled, Taken, Ticket, oldest_version
from envgym.buffer.replay import ReplayState
from envgym.credit import Running, Scheme, means_of
from envgym.credit.reference import GREEDY
from envgym.episode import Episode, Group, Turn
from envgym.growing import growing
from envgym.jobs import Job, Memory, Stretch
from envgym.policy import AgentFactory
from envgym.registry import find
from envgym.stems import Stems
from envgym_agents.learn.checkpoint import latest
from envgym_agents.learn.collect import (
    Collected,
    comparable,
    credited,
    metrics,
    of_what_was_sampled,
    running_of,
    scheme_of,
    teaches,
    truncation_of,
)
from envgym_agents.learn.crowd import Crowd
from envgym_agents.learn.diagnose import Diagnosed
from envgym_agents.learn.durable import write_json
from envgym_agents.learn.lesson import Lesson, drawn_again, remember
from envgym_agents.learn.members import chosen, in_rounds, sampled_only, stems_of
from envgym_agents.learn.overlap_gap import sampler_gap
from envgym_agents.learn.pack import Row
from envgym_agents.learn.parts import Parts, Progress, ended
from envgym_agents.learn.play import Arena, TaskOrder, seed_of
from envgym_agents.learn.staleness import ages_of, staleness_of
from envgym_agents.learn.values.several import Several
from envgym_agents.learn.values.valuation import Valuation

__all__ = ["Overlapped"]


@dataclass(slots=True)
class Overlapped:
    """The loop over its parts; the policy samples from weights of its own.

    policy: has another copy of the weights than the learner. arena: with a memory, where all that waits is found
    again. valuation, make_greedy: as `reinforce.Loop` has them; the valuation reads the learner's copy of the
    weights, in the learner's thread. since: what was played since the batch before, also while the learner learned.
    """

    parts: Parts
    valuation: Valuation | Several | None = None
    make_greedy: AgentFactory | None = None
    queue: OnPolicyQueue = field(init=False)
    replay: Replay = field(init=False)
    crowd: Crowd = field(init=False)
    since: Collected = field(init=False, default_factory=Collected)
    _again: deque[Ticket] = field(init=False, default_factory=deque)
    _fresh: dict[int, int] = field(init=False, default_factory=dict)
    _life: int = field(init=False, default=0)
    _begun_at: int = field(init=False, default=0)
    _vain: int = field(init=False, default=0)
    _late: set[str] = field(init=False, default_factory=set)
    _news: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    # -- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> Progress:
        """Train until a bound of the configuration is reached, from the newest checkpoint if there is one."""
        if getattr(self.parts.policy, "model", None) is self.parts.learner.scorer.model:
            raise ValueError("the policy samples from the learner's own weights: give the learner a copy")
        if self._greedy and self.make_greedy is None:
            raise ValueError(f"scheme {self.parts.config.credit!r} compares with greedy members; give make_greedy")
        progress = await self._resume()
        begun = time.perf_counter() - progress.seconds
        self.crowd = Crowd(self.parts.arena, recent=self.parts.config.tasks * self.parts.config.group)
        places = self.queue.batch * (self.queue.bound + 2)  # as many as count, and a batch of what is too late
        producers = [asyncio.create_task(self._produce()) for _ in range(places)]
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
        config = self.parts.config
        while True:
            ticket = self._again.popleft() if self._again else await self.queue.start()
            if not ticket.missing and self._order.at(ticket.number).id in self._late:
                self.queue.doubt(ticket)
            whole = await self._played(ticket)
            self._remember_late(whole)
            self.since.whole.append(whole)
            self.since.episodes += whole
            if ticket.missing:
                self._fresh[ticket.number] = self._fresh.get(ticket.number, 0) + ticket.missing
                self.queue.try_put(whole, ticket)
            else:
                self.since.played += 1
                group = chosen(whole, config, np.random.default_rng([self.parts.seed, 9, ticket.number]))
                mends = self.queue.spoiled is Spoiled.REFILL and any(member.failure for member in group)
                taught = teaches(group, config)
                self._vain += not taught
                if mends or taught:
                    self.queue.try_put(group, ticket)
                else:
                    self.since.others.append(group)
                    self.queue.abandon(ticket)
            self._news.set()

    def _remember_late(self, whole: Group) -> None:
        """A task whose group has missed its last batch by a version or more is not waited for, till one is in time.

        By less is chance: of one group more than are needed the slowest always comes after the batch.
        """
        ages = [oldest_version(episode) for episode in whole]
        if all(age is not None and age < self.queue.allowed_next - 1 for age in ages):
            self._late.add(whole.task_id)
        else:
            self._late.discard(whole.task_id)

    async def _played(self, ticket: Ticket) -> Group:
        """A whole group, in as many rounds as its members' kind asks for; of a refill the fresh members alone."""
        config, first = self.parts.config, self.parts.config.group + self._fresh.get(ticket.number, 0)

        async def play(members: range) -> list[Episode]:
            async with stems_of(config) as stems:
                jobs = [self._job(ticket, member, stems) for member in members]
                likeliest = [self._likeliest(ticket)] if self._greedy and members.start == 0 else []
                return await self.crowd.play([*jobs, *likeliest])

        if ticket.missing:
            fresh = await play(range(first, first + ticket.missing))
            return Group(fresh[0].task_id, tuple(fresh))
        return await in_rounds(config, play)

    async def _step(
        self, progress: Progress, begun: float, producers: Sequence[asyncio.Task[None]], thread: ThreadPoolExecutor
    ) -> Progress:
        config, step = self.parts.config, progress.step
        started = time.perf_counter()
        taken = await self._batch(producers)
        took = {"wait_s": time.perf_counter() - started, "in_flight": float(self.crowd.window.in_flight)}
        since, self.since = self.since, Collected()
        rng = np.random.default_rng([self.parts.seed, 6, step])
        past = [] if self.parts.past is None else self.parts.past.of_step(step)
        drawn = drawn_again(self.replay, taken, share=config.loop.replay, bound=self.queue.bound, rng=rng)
        lesson = Lesson(step, taken, drawn, past, since.others)
        running = Running.of_state(progress.running) if progress.running else running_of(config)
        scheme = Diagnosed(self._scheme(lesson, running), config, progress.length)
        at = time.perf_counter()
        learned, updated = await asyncio.get_running_loop().run_in_executor(
            thread, self._learn, lesson, scheme, rng
        )
        took["learn_s"] = time.perf_counter() - at
        version = self.queue.version + updated
        self.queue.advance(version)
        if updated:
            weights = self.parts.learner.scorer.model.state_dict()
            masks = self.parts.learner.masks if learned.get("mask_renewed") else None
            await self.parts.policy.update(weights, version=version, masks=masks)
        if config.loop.replay:
            remember(self.replay, taken)
        tokens = progress.tokens + sum(episode.sampled_tokens for episode in since.episodes)
        seconds = time.perf_counter() - begun
        after = {} if running is None else running.updated(lesson.seen, truncation=truncation_of(config)).state()
        progress = Progress(step + 1, self._next, seconds, tokens, length=scheme.length, running=after)
        told = {**metrics(since), **scheme.values, **ages_of(taken), **learned, **took, **self._counted(since)}
        told |= {"total_s": seconds, "total_sampled": float(tokens), "swept": float(len(taken.swept))}
        since.groups = list(taken.groups)
        await self.parts.on_step(progress, since, told)
        return progress

    async def _batch(self, producers: Sequence[asyncio.Task[None]]) -> Taken:
        """A whole batch; less, or nothing, where too many groups since the last one have taught nothing.

        What is still being played does not count, nor what came too late: else a batch would be cut short by its
        own slow groups, which are then too old for the next one, and count against that one, too.
        """
        most = int(self.parts.config.tasks * self.parts.config.oversample)
        while True:
            self._news.clear()
            for producer in producers:
                if producer.done():
                    producer.result()  # raises what ended it
            taken, counts = self.queue.try_take(), self.queue.counts
            if taken is None and self._vain + counts.waiting - counts.mending >= most:
                taken = self.queue.try_take(1) or Taken(self.queue.version, (), (), ())
            if taken is not None:
                self._vain = 0
                return taken
            await self._news.wait()

    def _scheme(self, lesson: Lesson, running: Running | None) -> Scheme:
        """What gives a lesson its credit: with what is expected before any of it has been seen."""
        config, values = self.parts.config, self.valuation
        if of_what_was_sampled(config):
            every = (*lesson.taken.groups, *lesson.again)
            running = means_of(list(map(sampled_only, every)), truncation=truncation_of(config))
        return scheme_of(config, {} if values is None else values.estimates, running)

    def _learn(self, lesson: Lesson, scheme: Diagnosed, rng: np.random.Generator) -> tuple[dict[str, float], bool]:
        """In the learner's thread: credit and update; metrics, and whether the weights are new.

        What learns beside the policy does so after it was asked, or, if wanted, before, as in `reinforce.Loop`.
        """
        config, values, taken, step = self.parts.config, self.valuation, lesson.taken, lesson.step
        told = {} if values is None or not config.critic.first else values.learn(lesson.seen, step=step)
        rows: list[list[Row]] = []
        if values is None or values.warm:
            rows += self._rows(taken.groups, scheme, lesson.masked)
            rows += self._rows(lesson.again, scheme.scheme, lesson.masked)
            rows += self._rows(lesson.past, scheme.scheme, frozenset())
        if values is not None and not config.critic.first:
            told = values.learn(lesson.seen, step=step)
        lr = config.lr * min(1.0, (step + 1) / max(config.warmup, 1))
        if not rows:
            return {**told, "lr": lr}, False
        gap = sampler_gap(self.parts.learner, taken, config)
        learned = self.parts.learner.update(rows, config, rng, lr=lr)
        learned["drift"] = learned.pop("sampler_gap", 0.0)  # of newer weights than those that sampled
        return {**told, **learned, **gap, "again": float(len(lesson.drawn)), "lr": lr}, True

    def _rows(self, groups: Sequence[Group], scheme: Scheme, masked: frozenset[str]) -> list[list[Row]]:
        config = self.parts.config
        kept = [group for group in groups if comparable(group, config)]
        return credited(kept, scheme, config, lambda episode: episode.id not in masked) if kept else []

    # -- one episode -------------------------------------------------------------------------------------------

    def _job(self, ticket: Ticket, member: int, stems: Stems) -> Job:
        """A member of a group, which grows as the stems say; fresh ones in the place of others do not."""
        job = self._plain(
            self.parts.arena, self.parts.make_agent, ticket, f"{member:03d}", (5, ticket.number, member)
        )
        if not stems.forking.points or ticket.missing:
            return job
        return growing(job, stems, name=self._name, wanted=self.queue.usable)

    def _likeliest(self, ticket: Ticket) -> Job:
        """A group's greedy member, as its provenance says."""
        assert self.make_greedy is not None, "run() has looked"
        return self._plain(self.parts.arena.noted(GREEDY), self.make_greedy, ticket, "greedy", (10, ticket.number))

    def _plain(
        self, arena: Arena, agents: AgentFactory, ticket: Ticket, member: str, draws: tuple[int, ...]
    ) -> Job:
        number = ticket.number
        job = arena.job(
            self._order.at(number),
            agents,
            seed=seed_of(self.parts.seed, *draws),
            episode_id=self._name(f"a{number:06d}-{member}"),
            group=f"a{number:06d}",
        )
        if self.parts.config.loop.stretch:

            async def goes_on(cut: Episode) -> bool:
                return self.queue.usable(Partial(cut))

            job = replace(job, stretch=Stretch(self.parts.config.loop.stretch, goes_on))
        return job

    @property
    def _greedy(self) -> bool:
        """Whether each group has a greedy member, which others are compared with."""
        return bool(find("schemes", self.parts.config.credit).greedy)

    def _name(self, plain: str) -> str:
        """The id of an episode: of one that an earlier process began with weights that are known, or a new one."""
        names = [plain + (f"-l{life}" if life else "") for life in range(self._life + 1)]
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
            stored = self.parts.learner.load(newest, beside=None if self.valuation is None else self.valuation.load)
            if "late" not in stored:
                raise ValueError(
                    f"{newest} does not name which tasks are not waited for: it is of an earlier version and "
                    "cannot be gone on from; begin a new run, from its model if you like (model.path)"
                )
            progress = replace(Progress(**stored["progress"]), stop="")
            waiting, kept = ([memory[name] for name in stored[what]["episodes"]] for what in ("queue", "replay"))
            self.queue = OnPolicyQueue.restore(QueueState(stored["queue"]["facts"], tuple(waiting)))
            self.replay = Replay.restore(ReplayState(stored["replay"]["facts"], tuple(kept)))
            self._fresh = {int(number): count for number, count in stored["fresh"].items()}
            self.since, self._vain = Collected.named(stored["since"], memory), stored["vain"]
            self._late = set(stored["late"])
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
            "since": self.since.names(),
            "vain": self._vain,
            "late": sorted(self._late),
        }
        beside = None if self.valuation is None else self.valuation.state()
        self.parts.learner.save(self.parts.folder, progress.step, stored, beside=beside)

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
            "late_tasks": float(len(self._late)),
        }
