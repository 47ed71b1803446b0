"""How near is the asynchronous loop to the ideal overlap? Lognormal turn latency, and one world that straggles.

Ideal: playing never waits for learning nor learning for playing, so a run cannot end before the longer of the two:
the learner's updates one after the other behind the first batch, or the work of all episodes over the places there
are. Beside ours: the same loop with bound 0, which takes turns. Sleeping stands for worlds and for updates, so the
figures are overlap, not speed. Every episode, also a straggler's, is drawn from the seed and is the same for both.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from _harness import Row, finish, options, scratch_folder
from envgym_agents.learn.config import LoopSettings, Reinforce
from envgym_agents.learn.overlap import Overlapped
from envgym_agents.learn.parts import Parts
from envgym_agents.learn.play import Arena, TaskOrder

from envgym import Action, Limits, Message, Reply, Rollout, Step, StopReason, StoreWriter, Task, TaskSet
from envgym.policy import Completion, VersionRun
from envgym.registry import EnvSpec, register

GROUPS, MEMBERS, TURNS, TURN_S, SIGMA, UPDATE_S = 4, 4, 4, 0.1, 0.6, 0.4
STRAGGLER, SLOWER, STALENESS = 5, 6, 4
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
    """Seconds of a run, and the seconds of work of every episode that it waited for, per step."""
    policy, episodes = Policy(), []
    tasks = [Task(id=f"t{index}", prompt="") for index in range(16)]

    async def on_step(progress, found, told):
        episodes.append([one.wall_s for group in found.groups for one in group])

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


def ideal(episodes):
    """The least a run can take: the first batch has to be played, then nothing but updates, if playing keeps up."""
    return max(max(episodes[0]) + len(episodes) * UPDATE_S, max(max(step) for step in episodes))


def main(arguments=None):
    given = options(__doc__, arguments)
    torch.set_num_threads(1)
    register(
        "environments", "bench-slow",
        EnvSpec(name="bench-slow", make=Slow, tasks=lambda: TaskSet([Task(id="t0", prompt="")]), in_process=True),
    )  # fmt: skip
    steps, found = (6 if given.quick else 24), []
    for number in range(1 if given.quick else 3):
        with scratch_folder() as folder:
            overlapped, episodes = run(STALENESS, steps, folder / "a")
            turns, _ = run(0, steps, folder / "b")
        found.append((overlapped / ideal(episodes), overlapped, turns, ideal(episodes), number))
    _ratio, overlapped, turns, least, _number = sorted(found)[len(found) // 2]
    bar = None if given.quick else BAR  # a few steps on a busy machine say nothing of it
    rows = [
        Row(f"overlapped, staleness {STALENESS}", overlapped, least, "ideal overlap", "s", bar),
        Row("taking turns, staleness 0", turns, least, "ideal overlap", "s"),
    ]
    finish(
        "async_overlap", rows, given, steps=steps, groups=GROUPS, members=MEMBERS, turns=TURNS, turn_s=TURN_S,
        sigma=SIGMA, update_s=UPDATE_S, slower=SLOWER,
    )  # fmt: skip


if __name__ == "__main__":
    main()
