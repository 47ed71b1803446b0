"""Conversations that a model imagines of a goal, judged and sieved, as stored episodes for offline training.

After "Zero-Shot Goal-Directed Dialogue via RL on Imagined Conversations" (Hong, Levine, Dragan 2023): from a goal
in words, people are imagined, then whole conversations with each of them, good and poor ones, and each is judged.
Two more are ours: a judge that does not say the same twice gives no reward, and what repeats another is refused.

Nothing here was sampled turn by turn in a world: turns have no token ids, so that they never train on-policy, and
the provenance of an episode says `IMAGINED`. A learner writes them in its own tokens first (`Student.retrace`).
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from envgym.arguments import checked_count
from envgym.env import THE_AGENT, Grade, Step, StopReason
from envgym.episode import Episode, Turn
from envgym.errors import EnvgymError
from envgym.messages import Message
from envgym.policy import AgentFactory
from envgym.rewards.judge import Asker, Criterion, Judgement, judge_rubric
from envgym.task import Task

__all__ = ["GOAL", "IMAGINED", "AgentAsker", "Amounts", "Goal", "Imagined", "imagine"]

IMAGINED = "imagined by"
"""The name of the imaginer in the provenance of episodes."""

GOAL = "imagined goal"
"""The name of the goal's digest there."""

Manner = Literal["well", "poorly"]
_MOST_SAID = 2000
_ALIKE = 0.8
_GRADER = "imagined critique"


class Goal(BaseModel):
    """What a conversation is for.

    name: of its tasks. says: what the agent must reach, in words. agent, person: who they are. opens: who speaks
    first. reached: a sentence that is true of a conversation that reached it. criteria: sentences that must be true
    of every conversation that is kept, whether it reached its goal or not. turns: the most that the agent says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, pattern=r"^[\w-]+$")
    says: str = Field(min_length=1)
    agent: str = "an assistant"
    person: str = "a person"
    opens: Literal["agent", "person"] = "person"
    reached: str = "The agent reached its goal."
    criteria: tuple[str, ...] = ("What the person says fits who they are, from the first word to the last.",)
    turns: int = Field(default=8, ge=1, le=100)

    @property
    def digest(self) -> str:
        """BLAKE2b of all that it says, 16 hex digits."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many persons, and conversations with each; how often a judge is asked of one; questions at a time."""

    people: int
    each: int = 2
    times: int = 2
    concurrency: int = 8

    def __post_init__(self) -> None:
        for name in ("people", "each", "times", "concurrency"):
            checked_count(name, getattr(self, name), least=1)


@dataclass(frozen=True, slots=True)
class AgentAsker:
    """Any agent as an asker: a fresh one for each question. See `envgym.rewards.judge.Asker`."""

    make: AgentFactory

    async def ask(self, question: str, *, seed: int) -> str:
        """What the agent answers. Raises what agents raise when they are gone."""
        agent = self.make(Task(id=f"imagine/{seed}", prompt=question), seed=seed)
        try:
            return (await agent.act(Step(observation=(Message(role="user", content=question),)))).action.text
        finally:
            await agent.close()


@dataclass(frozen=True, slots=True)
class Imagined:
    """What came of one attempt: an episode, or why there is none. failed: nobody could be asked."""

    name: str
    episode: Episode | None = None
    refused: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One conversation that is wanted: with whom, in which manner, under which name and seed."""

    name: str
    task: str
    person: str
    manner: Manner
    seed: int


async def imagine(
    goal: Goal, asker: Asker, amounts: Amounts, *, who: str, seed: int = 0, kept: Sequence[Episode] = ()
) -> AsyncIterator[Imagined]:
    """Imagine conversations with different persons, every second one of each a poor one; in order of asking.

    who: the imaginer's name, for the provenance. Those with one person share task and group, so that relative
    credit and preferences compare them. kept: what an earlier call with the same goal and seed gave: it is not
    imagined again, its persons stay who they are, and what resembles it is refused. An answer that cannot be read
    is told as refused, one that nobody gave as failed.
    """
    try:
        persons = await _met(goal, asker, amounts.people, seed, kept)
    except EnvgymError as error:
        yield Imagined(f"{goal.name}-{seed}", failed=f"{type(error).__name__}: {error}")
        return
    room, spoken = asyncio.Semaphore(amounts.concurrency), [_words(episode) for episode in kept]
    there = {episode.id for episode in kept}

    async def one(asked: _Asked) -> Imagined:
        async with room:
            try:
                return await _one(goal, asker, asked, who, amounts.times)
            except EnvgymError as error:
                return Imagined(asked.name, failed=f"{type(error).__name__}: {error}")

    numbers = range(amounts.each)
    wanted = [_asked(goal, person, at, nth, seed) for at, person in persons.items() for nth in numbers]
    running = [asyncio.create_task(one(asked)) for asked in wanted if asked.name not in there]
    try:
        for task in running:  # in this order, so that what is alike is refused the same whoever answers first
            found = await task
            if found.episode is not None:
                words = _words(found.episode)
                if any(_alike(words, other) >= _ALIKE for other in spoken):
                    found = Imagined(found.name, refused="repeats another")
                else:
                    spoken.append(words)
            yield found
        for at in sorted({*range(amounts.people)} - {*persons}):
            yield Imagined(f"{goal.name}-{seed}-{at:05d}", refused="no such person was imagined")
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _met(goal: Goal, asker: Asker, people: int, seed: int, kept: Sequence[Episode]) -> dict[int, str]:
    """Who is talked with, by number: those whom kept conversations were with, and others where some are lacking."""
    known = {int(one.id.rsplit("-", 2)[1]): str(one.root.info["imagined"]["person"]) for one in kept}
    if {*range(people)} <= {*known}:
        return {at: known[at] for at in range(people)}
    new = _persons(await asker.ask(_people_question(goal, people), seed=seed), people)
    return {at: known.get(at) or new[at] for at in range(people) if at in known or at < len(new)}


def _asked(goal: Goal, person: str, at: int, nth: int, seed: int) -> _Asked:
    task = f"imagined/{goal.name}/{seed}/{at}"
    digest = hashlib.blake2b(f"{task}/{nth}".encode(), digest_size=7).digest()
    manner: Manner = "poorly" if nth % 2 else "well"
    return _Asked(f"{goal.name}-{seed}-{at:05d}-{nth}", task, person, manner, int.from_bytes(digest, "big"))


def _told(goal: Goal) -> str:
    return f"Goal: {goal.says}\nThe agent is {goal.agent}; they talk with {goal.person}.\n"


def _people_question(goal: Goal, people: int) -> str:
    return (
        f"{_told(goal)}Imagine {people} persons whom the agent could meet, as different from each other as they "
        "can be: who they are, what they want and know, how they talk. What only they know belongs there, too. "
        "Answer with a JSON list of strings, one for each person."
    )


def _talk_question(goal: Goal, asked: _Asked) -> str:
    manner = {
        "well": "The agent goes about its goal as well as anyone could.",
        "poorly": "The agent makes mistakes that people make, and does not go about its goal well.",
    }[asked.manner]
    told = json.dumps({"person": asked.person, "manner": asked.manner})
    return (
        f"{_told(goal)}{told}\nWrite the whole conversation of the agent with this person. {manner} "
        f"The agent knows nothing of the person but what is said. The {goal.opens} speaks first, then by turns, "
        f"the agent at most {goal.turns} times; end when it is settled. "
        'Answer with a JSON list of objects {"by": "agent" or "person", "says": the words}.'
    )


async def _one(goal: Goal, asker: Asker, asked: _Asked, who: str, times: int) -> Imagined:
    said = _conversation(goal, await asker.ask(_talk_question(goal, asked), seed=asked.seed))
    if isinstance(said, str):
        return Imagined(asked.name, refused=said)
    criteria = [Criterion("reached", goal.reached)]
    criteria += [Criterion(f"criterion-{at}", says) for at, says in enumerate(goal.criteria, 1)]
    task = f"{_told(goal)}{json.dumps({'person': asked.person})}\nThe agent and this person talked."
    text = "\n".join(f"{by}: {words}" for by, words in said)
    judged = await judge_rubric(asker, task, text, criteria, seed=asked.seed, times=times)
    if any(score is None for score in judged.scores.values()):
        return Imagined(asked.name, refused="the judge does not say the same twice")
    if any(score < 0.5 for name, score in judged.scores.items() if name != "reached" and score is not None):
        return Imagined(asked.name, refused="a criterion does not hold")
    return Imagined(asked.name, _episode(asked, said, judged, ((IMAGINED, who), (GOAL, goal.digest))))


def _episode(
    asked: _Asked, said: Sequence[tuple[str, str]], judged: Judgement, origin: tuple[tuple[str, str], ...]
) -> Episode:
    """The conversation as a path: the agent's words are turns, the person's are what they answer."""
    reached = judged.scores["reached"]
    assert reached is not None
    channels = {name: score for name, score in judged.scores.items() if score is not None} | {"reward": reached}
    acts = [at for at, (by, _) in enumerate(said) if by == "agent"]
    turns = []
    for at, after in zip(acts, [*acts[1:], None], strict=True):
        answer = tuple(Message(role="user", content=words) for _, words in said[at + 1 : after])
        end = StopReason.GOAL if reached >= 0.5 else StopReason.SUBMITTED
        step = Step(answer) if after is not None else Step(answer, reward=reached, channels=channels, stop=end)
        turns.append(Turn(THE_AGENT, (Message(role="assistant", content=said[at][1]),), step))
    root = tuple(Message(role="user", content=words) for _, words in said[: acts[0]])
    return Episode(
        id=asked.name,
        task_id=asked.task,
        root=Step(root, info={"imagined": {"person": asked.person, "manner": asked.manner}}),
        turns=tuple(turns),
        seed=asked.seed,
        stop=turns[-1].step.stop,
        grades=(Grade(grader=_GRADER, version="1", channels=channels),),
        group=asked.task,
        provenance=(*origin, ("agent", "imagined"), ("environment", "imagined")),
    )


def _read(answer: str) -> list[Any]:
    """The first JSON list of an answer; [] where there is none."""
    start = answer.find("[")
    if start < 0:
        return []
    try:
        found, _ = json.JSONDecoder().raw_decode(answer[start:])
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _persons(answer: str, most: int) -> list[str]:
    """Different persons, at most as many as are wanted."""
    found = [one.strip()[:_MOST_SAID] for one in _read(answer) if isinstance(one, str)]
    return list(dict.fromkeys(one for one in found if one))[:most]


def _conversation(goal: Goal, answer: str) -> list[tuple[str, str]] | str:
    """Who said what; or why it is no conversation."""
    said = []
    for one in _read(answer):
        by, words = (one.get("by"), one.get("says")) if isinstance(one, dict) else (None, None)
        if by not in ("agent", "person") or not isinstance(words, str) or not 0 < len(words.strip()) <= _MOST_SAID:
            return "cannot be read"
        said.append((by, words.strip()))
    speakers = [by for by, _ in said]
    if not said or "agent" not in speakers:
        return "cannot be read"
    if speakers[0] != goal.opens or any(one == other for one, other in pairwise(speakers)):
        return "they do not speak by turns"
    if speakers.count("agent") > goal.turns:
        return "too long"
    own = [words.lower() for by, words in said if by == "agent"]
    return "the agent repeats itself" if len(set(own)) < len(own) else said


def _words(episode: Episode) -> frozenset[str]:
    """Runs of three words of all that was said."""
    spoken = [m for step in (episode.root, *(turn.step for turn in episode.turns)) for m in step.observation]
    spoken += [turn.action.message for turn in episode.turns]
    text = [str(message.content).lower().split() for message in spoken]
    return frozenset(" ".join(words[at : at + 3]) for words in text for at in range(max(1, len(words) - 2)))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(len(one | other), 1)
