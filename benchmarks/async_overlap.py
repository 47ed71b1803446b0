"""How near is the asynchronous loop to the ideal overlap? Lognormal turn latency, and one world that straggles.

Ideal: an update begins as soon as the one before has ended and its batch is there, and every group begins as soon
as its tokens may train: with a bound of n versions, when the weights came out that are n versions older than those
which are updated. With a large bound nothing is waited for but updates; with 1 a group has the time of one update
and no more; 0 is taking turns. Each bound stands beside its own ideal and beside that of the largest. The bar is of
4 and of the default. This ideal knows which world will straggle, and never counts on its group. Who does not know
finds out when the group may not train any more, and begins another one late; the next time it can know. The ideal
of when each group was begun in this run stands beside, without a bar. Sleeping stands for worlds and for updates,
so the figures are overlap, not speed. Every episode, also a straggler's, is drawn from the seed and is the same for
all.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.config import LoopSettings, Reinforce
from envgym_agents.learn.overlap import Overlapped, staleness_of
from envgym_agents.learn.parts import Parts
from envgym_agents.learn.play import Arena, TaskOrder

from envgym import Action, Limits, Message, Reply, Rollout, Step, StopReason, StoreWriter, Task, TaskSet
from envgym.buffer import oldest_version
from envgym.policy import Completion, VersionRun
from envgym.registry import EnvSpec, register

GROUPS, MEMBERS, TURNS, TURN_S, SIGMA, UPDATE_S = 4, 4, 4, 0.1, 0.6, 0.4
STRAGGLER, SLOWER = 5, 6
BOUNDS = (4, None, 0)
"""Of staleness; None: what a configuration has that says nothing (1), as `envgym train` begins with."""
BAR = 1.15


def latencies(task, seed):
    """Seconds of each turn of an episode."""
    drawn = np.random.default_rng(seed).lognormal(np.log(TURN_S), SIGMA, TURNS)
    return drawn * (SLOWER if task.id == f"t{STRAGGLER}" else 1)


class Slow:
    """A world whose steps take their time."""

    tools = ()

    def __init__(self, task):
        self.task = task

    async def reset(self, *, seed, start=None):
        self.turn, self.waits = 0, latencies(self.task, seed)
        self.reward = float(np.random.default_rng([seed, 1]).random())
        return Step((Message(role="user", content="go"),))

    async def step(self, action):
        await asyncio.sleep(self.waits[self.turn])
        self.turn += 1
        done = self.turn == TURNS
        return Step(
            (Message(role="user", content="on"),), reward=self.reward, stop=StopReason.GOAL if done else None
        )

    async def close(self):
        return


class Policy:
    version = 0

    async def update(self, weights, *, version, masks=None):
        self.version = version
        return version


class Speaker:
    name = "agent"

    def __init__(self, policy):
        self.policy, self.at = policy, 0

    async def act(self, step):
        position, self.at = self.at, self.at + 2
        completion = Completion((1,), (-1.0,), (VersionRun(0, self.policy.version),), "stop")
        return Reply(Action.say("x"), (2,), completion, position=position)

    async def close(self):
        return


class _Said(NamedTuple):
    logprobs: torch.Tensor
    inside: bool = True


class _Scorer:
    def __init__(self):
        self.model, self.shares_prefixes = torch.nn.Linear(1, 1), False

    def score(self, batch, *, other=None, asked=None):
        return _Said(batch.logprobs)


@dataclass
class Learner:
    """Updates that take their time."""

    scorer: _Scorer = field(default_factory=_Scorer)
    max_tokens: int = 1 << 16
    device: str = "cpu"
    masks: None = None
    other: None = None

    def __post_init__(self):
        self.optimizer = torch.optim.SGD(self.scorer.model.parameters(), lr=1.0)

    def update(self, groups, config, rng, *, lr):
        time.sleep(UPDATE_S)
        return {"loss": 0.0}

    def save(self, folder, step, progress, *, beside=None):
        return


def run(staleness, steps, folder):
    """Seconds of a run, and of every episode that trained the version it began with and its seconds, per step."""
    policy, episodes = Policy(), []
    tasks = [Task(id=f"t{index}", prompt="") for index in range(16)]

    async def on_step(progress, found, told):
        episodes.append([(oldest_version(one), one.wall_s) for group in found.groups for one in group])

    async def work():
        with StoreWriter(folder) as memory:
            loop = Overlapped(Parts(
                Learner(), policy, lambda task, *, seed: Speaker(policy),
                Arena(env="bench-slow", rollout=Rollout(limits=Limits(turns=TURNS)), memory=memory),
                TaskOrder(tasks, 0),
                Reinforce(steps=steps, tasks=GROUPS, group=MEMBERS, checkpoint_every=1000, teaches="all",
                          loop=LoopSettings(staleness=staleness)),
                0, folder / "checkpoints", on_step,
            ))  # fmt: skip
            started = time.perf_counter()
            await loop.run()
            return time.perf_counter() - started

    return asyncio.run(work()), episodes


def ideal(episodes, bound):
    """The least a run with these batches can take, by when each version of the weights comes out, the first at 0.

    episodes: of each step (version, seconds) of its batch's episodes. A group that trains on version k began no
    sooner than version k - bound came out; bound None: when the version came out that it began with.
    """
    out = [0.0]
    for version, batch in enumerate(episodes):
        played = max(out[begun if bound is None else max(version - bound, 0)] + took for begun, took in batch)
        out.append(max(out[-1], played) + UPDATE_S)
    return out[-1]


def main(arguments=None):
    given = options(__doc__, arguments)
    torch.set_num_threads(1)
    register(
        "environments", "bench-slow",
        EnvSpec(name="bench-slow", make=Slow, tasks=lambda: TaskSet([Task(id="t0", prompt="")]), in_process=True),
    )  # fmt: skip
    steps, found = (6 if given.quick else 24), {bound: [] for bound in BOUNDS}
    for number in range(1 if given.quick else 2):
        for bound in BOUNDS[:2] if number else BOUNDS:  # taking turns is the slowest, and has no bar
            with scratch_folder() as folder:
                took, episodes = run(bound, steps, folder)
            versions = staleness_of(Reinforce(loop=LoopSettings(staleness=bound)))
            least = ideal(episodes, versions)
            others = [ideal(episodes, None), ideal(episodes, BOUNDS[0])]
            found[bound].append((took / least, took, least, *others))
    rows = []
    for bound, bar in zip(BOUNDS, (BAR, BAR, None), strict=True):
        _ratio, took, least, blind, overlap = max(found[bound])  # the worse of two rounds
        name = f"staleness {bound}" if bound is not None else f"the default staleness {staleness_of(Reinforce())}"
        bar = None if given.quick else bar  # a few steps on a busy machine say nothing of it
        rows.append(Row(name, took, least, "ideal at this bound", "s", bar))
        rows.append(Row(name, took, blind, "ideal of these beginnings", "s"))
        rows.append(Row(name, took, overlap, f"ideal at {BOUNDS[0]}", "s"))
    finish(
        "async_overlap", rows, given, steps=steps, groups=GROUPS, members=MEMBERS, turns=TURNS, turn_s=TURN_S,
        sigma=SIGMA, update_s=UPDATE_S, slower=SLOWER,
    )  # fmt: skip


if __name__ == "__main__":
    main()
