"""How much memory a finished episode of 10 turns and 5,000 tokens holds; the bar is 60 KB.

Measured with tracemalloc over many episodes that are played, then kept; observations are texts of four characters a
token, as a tokenizer's are. Floor: the same tokens as raw int32 and float32 bytes, and the texts' bytes.
"""

import asyncio
import tracemalloc

from _harness import Row, finish, options

from envgym import Action, Completion, Job, Message, Reply, Rollout, Step, StopReason, Task, VersionRun, stream

TURNS, PROMPT, SAMPLED = 10, 400, 100
BAR_KB = 60.0


class Game:
    """Shows a text of its own at every turn."""

    tools = ()
    task = Task(id="read", prompt="")

    def __init__(self, number):
        self.number = number

    async def reset(self, *, seed, start=None):
        self.turn = 0
        return self._see()

    async def step(self, action):
        self.turn += 1
        return self._see()

    def _see(self):
        text = f"{self.number:06d}{self.turn:02d}".ljust(PROMPT * 4, "x")
        stop = StopReason.GOAL if self.turn == TURNS else None
        return Step((Message(role="user", content=text),), reward=0.0, stop=stop)

    async def close(self):
        return


class Speaker:
    """Answers with a text and tokens of its own."""

    name = "agent"

    def __init__(self, number):
        self.number, self.position = number, 0

    async def act(self, step):
        position, self.position = self.position, self.position + PROMPT + SAMPLED
        first = 100_000 + self.number
        completion = Completion(
            tuple(range(first, first + SAMPLED)), (-0.5,) * SAMPLED, (VersionRun(0, 1),), "stop"
        )
        action = Action.say(f"{self.number:06d}{position:06d}".ljust(SAMPLED * 4, "y"))
        return Reply(action, range(first, first + PROMPT), completion, 0, position)

    async def close(self):
        return


async def play(episodes):
    def job(number):
        async def make():
            return Game(number)

        return Job(make, lambda env: Speaker(number), "read", number, f"episode-{number:06d}", Rollout())

    return [episode async for episode in stream(map(job, range(episodes)), concurrency=8)]


def main(arguments=None):
    given = options(__doc__, arguments)
    episodes = 50 if given.quick else 500
    asyncio.run(play(8))  # what is made once per process is not an episode's
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = asyncio.run(play(episodes))
    held = (tracemalloc.get_traced_memory()[0] - before) / episodes / 1000
    tracemalloc.stop()
    texts = (TURNS + 1) * PROMPT * 4 + TURNS * SAMPLED * 4
    raw = (kept[0].nbytes + texts) / 1000
    rows = [
        Row("finished episode", held, raw, "raw bytes of tokens and texts", "kB", BAR_KB, absolute=True),
        Row("finished episode", held, kept[0].nbytes / 1000, "raw bytes of tokens", "kB"),
    ]
    finish("episode_memory", rows, given, turns=TURNS, tokens=TURNS * (PROMPT + SAMPLED), episodes=episodes)


if __name__ == "__main__":
    main()
