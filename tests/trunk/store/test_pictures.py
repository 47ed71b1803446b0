"""What a world shows in pictures: the bytes are in files of the store, once each, and come back when asked for."""

import asyncio
import hashlib
from functools import partial

import pytest

from envgym.env import Step, StopReason, answered
from envgym.episode import Began, Episode, Turn
from envgym.errors import EnvironmentFailure
from envgym.isolate import Isolated
from envgym.messages import Action, ImagePart, Message, TextPart
from envgym.store import StoreReader, StoreWriter
from envgym.task import Task

PICTURES = tuple(bytes([number]) * 400 for number in range(3))


def shown(content: bytes, **fields) -> Step:
    name = hashlib.sha256(content).hexdigest()
    seen = Message(role="user", content=(TextPart(text="Look."), ImagePart(sha256=name)))
    return Step((seen,), images={name: content}, **fields)


def episode(name: str) -> Episode:
    turns = (
        Turn("agent", (Message(role="assistant", content="a"),), shown(PICTURES[1])),
        Turn("agent", (Message(role="assistant", content="b"),), shown(PICTURES[0], stop=StopReason.GOAL)),
    )
    return Episode(name, "t", shown(PICTURES[0]), turns, 0, StopReason.GOAL)


def pictures(found: Episode):
    return [tuple(step.images.values()) for step in (found.root, *(turn.step for turn in found.turns))]


def test_an_episode_that_is_stored_whole_or_as_it_happens_has_its_pictures_again(tmp_path):
    whole, told, later = episode("whole"), episode("told"), episode("later")
    with StoreWriter(tmp_path / "store") as writer:
        writer.append(whole)
        writer.begin(Began.of(told))
        for index, turn in enumerate(told.turns):
            writer.turn("told", index, turn)
        writer.append(told)
        assert pictures(writer["told"]) == pictures(told)
        writer.extend([later])
        writer.begin(Began.of(episode("open")))
        writer.turn("open", 0, told.turns[0])
    assert len(list((tmp_path / "store" / "images").glob("*/*"))) == 2
    reader = StoreReader(tmp_path / "store")
    assert {found.id: found for found in reader} == {one.id: one for one in (whole, told, later)}
    for found in reader:
        assert pictures(found) == [(), (), ()], "what is read is no larger than it was"
        assert pictures(reader.with_images(found)) == pictures(whole)
    with StoreWriter(tmp_path / "store") as writer:
        found = writer.unfinished["open"]
        assert [tuple(step.images.values()) for step in (found.began.root, found.turns[0].step)] == [
            (PICTURES[0],), (PICTURES[1],)
        ]  # fmt: skip
        assert pictures(writer["whole"]) == pictures(whole)


class Gallery:
    """A world of pictures."""

    tools = ()

    def __init__(self) -> None:
        self.task = Task(id="gallery", prompt="")

    async def reset(self, *, seed: int) -> Step:
        return shown(PICTURES[0])

    async def step(self, action: Action) -> Step:
        return shown(PICTURES[1], reward=1.0, stop=StopReason.GOAL)

    async def close(self) -> None:
        pass


def test_pictures_come_out_of_a_process_unchanged():
    async def run() -> list[Step]:
        env = Isolated(partial(Gallery), Task(id="gallery", prompt=""))
        try:
            return [answered(await env.reset(seed=0)), answered(await env.step(Action.say("on")))]
        finally:
            await env.close()

    assert [dict(step.images) for step in asyncio.run(run())] == [
        dict(shown(content).images) for content in PICTURES[:2]
    ]


def test_bytes_under_another_name_are_the_worlds_fault():
    with pytest.raises(EnvironmentFailure, match="image 'abc'"):
        answered(Step(images={"abc": b"x"}))
    with pytest.raises(EnvironmentFailure, match="images is 3"):
        answered(Step(images=3))
