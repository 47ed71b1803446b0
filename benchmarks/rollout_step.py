"""What one recorded step costs in process: typed step, tokens, episode; the bar is 10 microseconds.

The game is nearly free, so what is measured is ours: act, step, deadlines, fault boundaries, the typed turn with 24
prompt and 8 sampled tokens, the finished and checked episode; and the same game as `registry.make` gives it, in
`Replaying`. In the same run: the same loop in bare Python that records nothing, and a Gymnasium environment's step
that records nothing. Nothing here waits, so processor time is measured: other processes on the machine change it
little.

Then the same of worlds that do something: Wordle, a query to a database, a look at a service's desk. A bare call is
the world's own function on its own state, with no message, step or state key; what the interface adds to it has the
bar, and beside it stands what a recorded step adds.
"""

import asyncio
import gc
import sys
import time
from functools import partial
from importlib.util import find_spec

import gymnasium
from _harness import Row, beside, finish, medians_of, options
from envgym_environments.text.wordle import SPEC as WORDLE
from envgym_environments.tool.service.world import SPEC as SERVICE
from envgym_environments.tool.sql.world import SPEC as SQL

from envgym import (
    Action,
    Completion,
    Job,
    Limits,
    Message,
    Replaying,
    Reply,
    Rollout,
    Step,
    StopReason,
    Task,
    VersionRun,
    make,
    stream,
)

TURNS, PROMPT, SAMPLED, AT_ONCE = 10, 24, 8, 64
BAR_US = 10.0
SEEN = (Message(role="user", content="higher"),)


class Game:
    """Counts to `TURNS`."""

    tools = ()
    task = Task(id="count", prompt="")

    async def reset(self, *, seed, start=None):
        self.turn = 0
        return Step(SEEN)

    async def step(self, action):
        self.turn += 1
        return Step(SEEN, reward=0.0, stop=StopReason.GOAL if self.turn == TURNS else None, state_key="s")

    async def close(self):
        return


SEVEN = Action.say("7")


class Speaker:
    """Says what was sampled before: sampling is the model's cost, not the loop's."""

    name = "agent"
    completion = Completion(tuple(range(SAMPLED)), (-1.0,) * SAMPLED, (VersionRun(0, 1),), "stop")
    prompt = tuple(range(PROMPT))

    def __init__(self, action=SEVEN):
        self.action, self.position = action, 0

    async def act(self, step):
        position, self.position = self.position, self.position + PROMPT + SAMPLED
        return Reply(self.action, self.prompt, self.completion, 0, position)

    async def close(self):
        return


class GymGame(gymnasium.Env):
    """The same game with Gymnasium's interface."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        return 1, {}

    def step(self, action):
        self.turn += 1
        return 1, 0.0, self.turn == TURNS, False, {}


def ours(episodes, env=Game):
    rollout = Rollout()

    async def make():
        return env()

    async def run():
        jobs = (Job(make, lambda env: Speaker(), "count", n, str(n), rollout) for n in range(episodes))
        return [episode async for episode in stream(jobs, concurrency=AT_ONCE)]

    started = time.process_time()
    done = asyncio.run(run())
    wall = time.process_time() - started
    assert sum(len(episode.turns) for episode in done) == episodes * TURNS
    return wall / (episodes * TURNS) * 1e6


def bare(episodes):
    async def run():
        for _ in range(episodes):
            game, speaker = Game(), Speaker()
            step = await game.reset(seed=0)
            while step.stop is None:
                step = await game.step((await speaker.act(step)).action)

    started = time.process_time()
    asyncio.run(run())
    return (time.process_time() - started) / (episodes * TURNS) * 1e6


WORLDS = {
    "wordle": (WORDLE, {"tries": TURNS + 1}, {}, Action.call("guess", word="crane")),
    "sql": (SQL, {"complexity": 3}, {"looks": TURNS}, Action.call("query", sql="SELECT 1")),
    "service": (SERVICE, {"service": "office"}, {}, Action.call("list_contacts")),
}
"""Of each its specification, options of its task and of itself, and the action that is done over and over."""


def world(name, episodes):
    """Three measures of a world's turn in us, each with its share of a reset: bare, by step, recorded."""
    spec, chosen, more, action = WORLDS[name]
    task, call = spec.tasks(1, **chosen)[0], action.calls[0]
    env, *_ = free = [make(spec, task, **more) for _ in range(AT_ONCE)]
    rollout = Rollout(limits=Limits(turns=TURNS))

    def bare():
        rules = env.rules
        for _ in range(episodes):
            state, _text = rules.begin(0)
            for _ in range(TURNS):
                rules.move(state, call)

    async def steps():
        for _ in range(episodes):
            step = await env.reset(seed=0)
            for _ in range(TURNS):
                step = await env.step(action)
        assert step.stop is None, step

    async def recorded():
        async def one():
            return Kept(free)

        jobs = (Job(one, lambda env: Speaker(action), task.id, 0, str(n), rollout) for n in range(episodes))
        done = [episode async for episode in stream(jobs, concurrency=AT_ONCE)]
        assert all(episode.failure is None and len(episode.turns) == TURNS for episode in done)

    def timed(run):
        started = time.process_time()
        run()
        return (time.process_time() - started) / (episodes * TURNS) * 1e6

    return (
        lambda: timed(bare),
        lambda: timed(lambda: asyncio.run(steps())),
        lambda: timed(lambda: asyncio.run(recorded())),
    )


class Kept:
    """One of the environments that are free, which is free again when closed: making one is no part of a turn."""

    def __init__(self, free):
        self._free, self._inner = free, free.pop()
        inner = self._inner
        self.task, self.tools, self.reset, self.step = inner.task, inner.tools, inner.reset, inner.step
        self.snapshot, self.fork, self.release = inner.snapshot, inner.fork, inner.release

    async def close(self):
        self._free.append(self._inner)


def of_worlds(repeats, episodes):
    rows = []
    for name in WORLDS:
        bare_us, step_us, recorded_us = medians_of(repeats, *world(name, episodes))
        rows += [
            Row(f"{name}: what the interface adds", step_us - bare_us, bare_us, "bare world call", "us", BAR_US,
                absolute=True),
            Row(f"{name}: what a recorded step adds", recorded_us - bare_us, bare_us, "bare world call", "us"),
        ]  # fmt: skip
    return rows


def gym(episodes):
    gymnasium.register("bench/Count-v0", GymGame, disable_env_checker=True, order_enforce=True)
    env = gymnasium.make("bench/Count-v0")
    started = time.process_time()
    for _ in range(episodes):
        env.reset()
        done = False
        while not done:
            _, _, done, _, _ = env.step(1)
    wall = time.process_time() - started
    gymnasium.registry.pop("bench/Count-v0")
    return wall / (episodes * TURNS) * 1e6


def vector(episodes):
    envs = gymnasium.vector.SyncVectorEnv([GymGame])
    envs.reset()
    started = time.process_time()
    for _ in range(episodes * TURNS):
        envs.step([1])
    wall = time.process_time() - started
    envs.close()
    return wall / (episodes * TURNS) * 1e6


def gem_vector(episodes):
    from gem.core import Env
    from gem.vector.sync_vector_env import SyncVectorEnv

    class GemGame(Env):
        """The same game with GEM's interface."""

        def reset(self, seed=None):
            self.turn = 0
            return "begin", {}

        def step(self, action):
            self.turn += 1
            return "higher", 0.0, self.turn == TURNS, False, {}

    envs = SyncVectorEnv(["count"], [GemGame])
    envs.reset()
    started = time.process_time()
    for _ in range(episodes * TURNS):
        envs.step(["7"])
    return (time.process_time() - started) / (episodes * TURNS) * 1e6


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats, episodes = (1, 200) if given.quick else (9, 2000)
    sys.path.append(str(beside()))
    peers = [lambda: gem_vector(episodes)] if find_spec("gem") else []
    if peers:  # what its import leaves (torch, transformers) is not looked through by every collection of ours
        gem_vector(1)
        gc.collect()
        gc.freeze()
    recorded, replaying, loop, step, batch, *gem = medians_of(
        repeats,
        lambda: ours(episodes),
        lambda: ours(episodes, partial(Replaying, Game)),
        lambda: bare(episodes),
        lambda: gym(episodes),
        lambda: vector(episodes),
        *peers,
    )
    rows = [
        Row("recorded step", recorded, loop, "bare typed loop, unrecorded", "us", BAR_US, absolute=True),
        Row(
            "what recording adds to the loop",
            recorded - loop,
            batch,
            "Gymnasium's sync vector env",
            "us",
            BAR_US,
            absolute=True,
        ),
        Row("recorded step", recorded, step, "Gymnasium step, unrecorded", "us"),
        Row("recorded step", recorded, batch, "Gymnasium's sync vector env, unrecorded", "us"),
        Row("recorded step, in Replaying", replaying, loop, "bare typed loop, unrecorded", "us"),
        *(Row("recorded step", recorded, one, "GEM's sync vector env, unrecorded", "us") for one in gem),
        *of_worlds(repeats, episodes // 4),
    ]
    finish("rollout_step", rows, given, turns=TURNS, prompt_tokens=PROMPT, sampled_tokens=SAMPLED)


if __name__ == "__main__":
    main()
