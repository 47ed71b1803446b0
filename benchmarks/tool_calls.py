"""Do tools wait for each other? 64 concurrent tool episodes with 50 ms tools; and what a call costs that waits not.

Ideal is a bare asyncio loop in the same run: as many tasks that await the same function as often, and nothing else.
Each of our episodes goes through all of ours: rollout, toolbox, checked calls. Beside the cost of a call stands the
bare function with its pydantic check, and a step of Gymnasium's synchronous vector environment of one text game.
"""

import asyncio
import time

import gymnasium
from _harness import Row, finish, medians_of, options

from envgym import Action, Job, Message, Reply, Rollout, Step, StopReason, Task, Toolbox, ToolCall, stream, tool
from envgym.function_tool import FunctionTool
from envgym.spaces import Unicode

EPISODES, TURNS, TOOL_S, BAR = 64, 4, 0.05, 1.1


def waits(place: str) -> str:
    """Look at a place, which takes a while and blocks."""
    time.sleep(TOOL_S)
    return place


async def slow(place: str) -> str:
    """Look at a place, which takes a while."""
    await asyncio.sleep(TOOL_S)
    return place


def quick(place: str) -> str:
    """Look at a place."""
    return place


class World:
    """Calls a tool at every turn."""

    def __init__(self, number: int, blocking: bool) -> None:
        self.task = Task(id=str(number), prompt="")
        self.box = Toolbox([tool(waits, name="slow", blocking=True) if blocking else tool(slow)])
        self.tools, self.turn = self.box.specs, 0

    async def reset(self, *, seed, start=None):
        self.turn = 0
        return Step((Message(role="user", content="go"),))

    async def step(self, action):
        answer = await self.box.answer(action)
        self.turn += 1
        return Step(answer.observation, stop=StopReason.GOAL if self.turn == TURNS else None)

    async def close(self):
        return


class Speaker:
    name = "agent"
    action = Action.call("slow", place="here")

    async def act(self, step):
        return Reply(self.action)

    async def close(self):
        return


async def played(blocking: bool) -> None:
    def job(number):
        async def make():
            return World(number, blocking)

        return Job(make, lambda env: Speaker(), str(number), number, str(number), Rollout())

    done = [episode async for episode in stream(map(job, range(EPISODES)), concurrency=EPISODES)]
    assert len(done) == EPISODES
    assert all(len(episode.turns) == TURNS for episode in done)


def wall_s(blocking: bool = False) -> float:
    started = time.perf_counter()
    asyncio.run(played(blocking))
    return time.perf_counter() - started


async def bare() -> None:
    async def one() -> None:
        for _ in range(TURNS):
            await slow("here")

    await asyncio.gather(*(one() for _ in range(EPISODES)))


def ideal_s() -> float:
    started = time.perf_counter()
    asyncio.run(bare())
    return time.perf_counter() - started


def call_us(count: int) -> float:
    async def main() -> float:
        box, call = Toolbox([tool(quick)]), ToolCall(name="quick", arguments={"place": "here"})
        started = time.process_time()
        for _ in range(count):
            await box.call(call)
        return (time.process_time() - started) / count * 1e6

    return asyncio.run(main())


def checked_us(count: int) -> float:
    made: FunctionTool = tool(quick)
    started = time.process_time()
    for _ in range(count):
        quick(made.arguments.model_validate({"place": "here"}).place)
    return (time.process_time() - started) / count * 1e6


class Text(gymnasium.Env):
    """Says one word."""

    observation_space = action_space = Unicode(64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "go", {}

    def step(self, action):
        return "here", 0.0, False, False, {}


def vector_us(count: int) -> float:
    envs = gymnasium.vector.SyncVectorEnv([Text])
    envs.reset(seed=0)
    started = time.process_time()
    for _ in range(count):
        envs.step(("look",))
    spent = (time.process_time() - started) / count * 1e6
    envs.close()
    return spent


def main(arguments=None):
    given = options(__doc__, arguments)
    repeats, count = (1, 500) if given.quick else (5, 20_000)
    wall_s()  # what is made once per process
    bar = None if given.quick else BAR  # of one run on a shared machine nothing is judged
    wall, blocked, ideal = medians_of(max(3, repeats), wall_s, lambda: wall_s(blocking=True), ideal_s)
    ours, checked, vector = medians_of(
        repeats, lambda: call_us(count), lambda: checked_us(count), lambda: vector_us(count)
    )
    rows = [
        Row("64 episodes, 50 ms tools", wall, ideal, "ideal: a bare asyncio loop", "s", bar),
        Row("64 episodes, 50 ms tools that block", blocked, ideal, "ideal: a bare asyncio loop", "s", bar),
        Row("a call through the toolbox", ours, checked, "bare function, checked", "us"),
        Row("a call through the toolbox", ours, vector, "Gymnasium's sync vector env, one text step", "us"),
    ]
    finish("tool_calls", rows, given, episodes=EPISODES, turns=TURNS, tool_s=TOOL_S)


if __name__ == "__main__":
    main()
