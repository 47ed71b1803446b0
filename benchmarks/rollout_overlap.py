"""Does a slow world delay only itself? 64 episodes of 4 turns with a 50 ms tool, and stragglers ten times slower.

Ideal is the longest single episode: nothing can end sooner. Beside ours runs the loop that most code bases have, a
barrier per turn: all act, all step, wait for the slowest. Two cases: one world is always slow; or at every turn
another one is. Sleeping stands for the tool, so the figures are overlap, not speed.
"""

import asyncio
import time

from _harness import Row, finish, options

from envgym import Action, Job, Message, Reply, Rollout, Step, StopReason, Task, stream

EPISODES, TURNS, TOOL_S, SLOWER = 64, 4, 0.05, 10
BAR = 1.1


def latency(case, episode, turn):
    slow = episode == 7 if case == "one slow world" else episode == 7 + 11 * turn
    return TOOL_S * (SLOWER if slow else 1)


class Tool:
    """A world whose step is one call of a tool that takes its time."""

    tools = ()

    def __init__(self, case, number):
        self.task = Task(id=str(number), prompt="")
        self.case, self.number, self.turn = case, number, 0

    async def reset(self, *, seed, start=None):
        self.turn = 0
        return Step((Message(role="user", content="go"),))

    async def step(self, action):
        await asyncio.sleep(latency(self.case, self.number, self.turn))
        self.turn += 1
        return Step((Message(role="user", content="done"),), stop=StopReason.GOAL if self.turn == TURNS else None)

    async def close(self):
        return


class Speaker:
    name = "agent"

    async def act(self, step):
        return Reply(Action.say("call"))

    async def close(self):
        return


async def ours(case):
    def job(number):
        async def make():
            return Tool(case, number)

        return Job(make, lambda env: Speaker(), str(number), number, str(number), Rollout())

    done = [episode async for episode in stream(map(job, range(EPISODES)), concurrency=EPISODES)]
    assert len(done) == EPISODES
    assert all(episode.stop is StopReason.GOAL for episode in done)


async def barrier(case):
    worlds, speaker = [Tool(case, number) for number in range(EPISODES)], Speaker()
    steps = await asyncio.gather(*(world.reset(seed=0) for world in worlds))
    for _ in range(TURNS):
        replies = await asyncio.gather(*(speaker.act(step) for step in steps))
        steps = await asyncio.gather(
            *(world.step(reply.action) for world, reply in zip(worlds, replies, strict=True))
        )


def timed(coroutine):
    started = time.perf_counter()
    asyncio.run(coroutine)
    return time.perf_counter() - started


def main(arguments=None):
    given = options(__doc__, arguments)
    rows = []
    for case in ("one slow world", "a slow call at every turn"):
        paths = [sum(latency(case, one, turn) for turn in range(TURNS)) for one in range(EPISODES)]
        repeats = 1 if given.quick else 5
        wall = sorted(timed(ours(case)) for _ in range(repeats))[repeats // 2]
        rows.append(Row(f"{case}: first-ready", wall, max(paths), "ideal: longest path", "s", BAR))
        rows.append(Row(f"{case}: barrier per turn", timed(barrier(case)), max(paths), "ideal: longest path", "s"))
    finish("rollout_overlap", rows, given, episodes=EPISODES, turns=TURNS, tool_s=TOOL_S, slower=SLOWER)


if __name__ == "__main__":
    main()
