"""Feedback in words on stored episodes: a judge is asked about them, and its answers become lines (`said`).

A judge is any agent: a local policy ("lm"), a server that speaks OpenAI's chat completions ("chat"), a script. It
is asked one question at a time, with a fresh agent for each, so answers do not depend on the order of questions.
Sources: feedback on spans, Text2Grad (arXiv 2505.22338, section 3); subgoals proposed for a task and judged by
turns, CALM (arXiv 2409.12798, section 3); timed subgoals with a check each, TGPO (arXiv 2510.00225). What a turn
said and what the world answered is all that a judge sees; texts longer than `MOST` are cut in their middle.
"""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

from pydantic import TypeAdapter, ValidationError

from envgym.arguments import checked_count
from envgym.credit.checks import checked_choice
from envgym.data.said import Goal, Praise, Reached, SaidGoal, SaidSpans, SaidSubgoals, located, read_json
from envgym.env import Step
from envgym.episode import Episode, Group, Turn
from envgym.errors import EnvgymError, Failure
from envgym.messages import Message
from envgym.policy import AgentFactory
from envgym.task import Task

__all__ = ["KINDS", "MOST", "Asked", "Judge", "Kind", "feedback"]

Kind = Literal["spans", "subgoals", "goals"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST = 2000
"""Characters of a text that a judge is shown."""

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""The texts of sampled ids, one for each, that make up the text of all."""

_ASK: Mapping[str, str] = {
    "spans": (
        "Which words of the turns above helped to do the task, and which did harm? Answer with a JSON list of "
        'objects {"turn": its number, "quote": words of "said", letter by letter, or "" for all of it, "reward": '
        'from -1 to 1, "why": the reason}.'
    ),
    "propose": (
        "Name the subgoals on the way to doing this task, in their order, at most five. Answer with a JSON list of "
        "strings."
    ),
    "subgoals": (
        "Which turn reached which subgoal first? Answer with a JSON list of objects "
        '{"turn": its number, "subgoal": its number}; [] where none was reached.'
    ),
    "goals": (
        "Give a goal that can be checked: stages in their order, each with a text that the world's answer will "
        "contain when it is reached, and in how many turns after the stage before. Answer with a JSON object "
        '{"stages": [{"name": a name, "text": that text, "within": turns or null, "reward": from 0 to 1}], '
        '"never": a text that must not be seen, or ""}.'
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judge:
    """Who is asked. name: as it is written into lines. make: makes an agent for each question.

    pieces: how sampled ids are spelled, so that a quote is found in tokens; None: feedback is on whole turns.
    """

    name: str
    make: AgentFactory
    pieces: Pieces | None = None

    async def answer(self, subject: str, question: str) -> str:
        """What the judge writes. Raises what agents raise when they are gone (`EnvgymError`)."""
        agent = self.make(Task(id=subject, prompt=question), seed=zlib.crc32(subject.encode()))
        try:
            shown = (Message(role="user", content=question),)
            return (await agent.act(Step(observation=shown))).action.text
        finally:
            await agent.close()


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one question: a line, or why nobody could be asked."""

    subject: str
    line: SaidSpans | SaidSubgoals | SaidGoal | None = None
    failure: Failure | None = None


async def feedback(
    groups: Iterable[Group], kind: Kind, judge: Judge, *, known: frozenset[str] = frozenset(), concurrency: int = 8
) -> AsyncIterator[Asked]:
    """Ask about every group (goals: every task once), and tell what came of it, group by group.

    known: episodes (tasks, for goals) that are left out, because something was said of them already.
    """
    checked_choice("kind", kind, KINDS)
    checked_count("concurrency", concurrency, least=1)
    room, done = asyncio.Semaphore(concurrency), set(known)
    for group in groups:
        if kind == "goals":
            wanted = [] if group.task_id in done else [_guarded(_goal(group, judge), group.task_id, room)]
            done.add(group.task_id)
        else:
            members = [one for one in group if one.id not in done and one.turns]
            wanted = await _of_members(group, members, kind, judge, room)
        running = [asyncio.create_task(one) for one in wanted]
        try:
            for task in asyncio.as_completed(running):
                yield await task
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _of_members(
    group: Group, members: Sequence[Episode], kind: Kind, judge: Judge, room: asyncio.Semaphore
) -> list[Coroutine[Any, Any, Asked]]:
    if not members:
        return []
    if kind == "spans":
        return [_guarded(_spans(group, one, judge), one.id, room) for one in members]
    proposed = await _guarded_text(judge, f"propose/{group.task_id}", _task(group) + _ASK["propose"])
    if isinstance(proposed, Failure):
        return [_told(Asked(one.id, failure=proposed)) for one in members]
    return [_guarded(_subgoals(group, one, judge, proposed), one.id, room) for one in members]


async def _told(asked: Asked) -> Asked:
    return asked


async def _guarded_text(judge: Judge, subject: str, question: str) -> str | Failure:
    try:
        return await judge.answer(subject, question)
    except EnvgymError as error:
        return Failure.of(error, where="judge", turn=0)


async def _guarded(
    work: Coroutine[Any, Any, SaidSpans | SaidSubgoals | SaidGoal], subject: str, room: asyncio.Semaphore
) -> Asked:
    async with room:
        try:
            return Asked(subject, await work)
        except EnvgymError as error:
            return Asked(subject, failure=Failure.of(error, where="judge", turn=0))


async def _spans(group: Group, episode: Episode, judge: Judge) -> SaidSpans:
    answer = await judge.answer(f"spans/{episode.id}", _played(group, episode) + _ASK["spans"])
    items, unread = _items(answer)
    spans: list[Praise] = []
    for item in items:
        found = _praise(item, episode, judge.pieces)
        if isinstance(found, str):
            unread.append(found)
        else:
            spans.append(found)
    return SaidSpans(
        judge=judge.name, task=group.task_id, episode=episode.id, whole=judge.pieces is None, spans=tuple(spans),
        unread=tuple(unread),
    )  # fmt: skip


def _praise(item: object, episode: Episode, pieces: Pieces | None) -> Praise | str:
    """Feedback with its tokens, or why it is none."""
    said = item if isinstance(item, dict) else {}
    number, quote = said.get("turn"), said.get("quote", "")
    if not _is_turn(number, episode) or not isinstance(quote, str):
        return f"{_short(item)}: no turn of {len(episode.turns)}, or its quote is no text"
    turn: Turn = episode.turns[number]
    count = len(turn.sampled_ids)
    if not count:
        return f"{_short(item)}: nothing was sampled in turn {number}"
    place: tuple[int, int] | None = (0, count)
    if quote and pieces is not None:
        place = located(quote, pieces(turn.sampled_ids.tolist()))
    if place is None or (quote and pieces is None and quote not in _words(turn)):
        return f"{_short(item)}: turn {number} does not say {quote[:40]!r}"
    given = {name: said[name] for name in ("reward", "why") if name in said}
    try:
        return Praise(turn=number, begin=place[0], end=place[1], quote=quote, **given)
    except ValidationError as error:
        return f"{_short(item)}: {error.errors()[0]['msg']}"


async def _subgoals(group: Group, episode: Episode, judge: Judge, proposed: str) -> SaidSubgoals:
    items, unread = _items(proposed)
    names = tuple(item for item in items if isinstance(item, str) and item)
    unread += [f"{_short(item)}: no name of a subgoal" for item in items if item not in names]
    reached: list[Reached] = []
    if names:
        numbered = "".join(f"subgoal {number}: {name}\n" for number, name in enumerate(names, 1))
        question = _played(group, episode) + numbered + _ASK["subgoals"]
        said, unsaid = _items(await judge.answer(f"subgoals/{episode.id}", question))
        unread += unsaid
        for item in said:
            number, turn = (item.get("subgoal"), item.get("turn")) if isinstance(item, dict) else (None, None)
            if _is_turn(turn, episode) and _is_number(number, len(names)):
                reached.append(Reached(turn=turn, subgoal=number))
            else:
                unread.append(f"{_short(item)}: no turn of {len(episode.turns)}, or no subgoal of {len(names)}")
    return SaidSubgoals(
        judge=judge.name, task=group.task_id, episode=episode.id, subgoals=names, reached=tuple(reached),
        unread=tuple(unread),
    )  # fmt: skip


async def _goal(group: Group, judge: Judge) -> SaidGoal:
    answer = await judge.answer(f"goals/{group.task_id}", _task(group) + _ASK["goals"])
    try:
        goal, unread = _GOAL.validate_python(read_json(answer, "{")), ()
    except ValueError as error:  # a pydantic error is one, too
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        return SaidGoal(judge=judge.name, task=group.task_id, unread=(why,))
    return SaidGoal(judge=judge.name, task=group.task_id, goal=goal, unread=unread)


_GOAL: TypeAdapter[Goal] = TypeAdapter(Goal)


def _items(answer: str) -> tuple[list[Any], list[str]]:
    try:
        found = read_json(answer, "[")
    except ValueError as error:
        return [], [str(error)]
    return found, []


def _is_number(number: object, most: int) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= most


def _is_turn(number: object, episode: Episode) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(episode.turns)


def _words(turn: Turn) -> str:
    """What a turn said: its text, and its calls as JSON."""
    action = turn.action
    calls = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in action.calls]
    return "\n".join([text for text in (action.text,) if text] + calls)


def _short(item: object) -> str:
    return json.dumps(item)[:80]


def _task(group: Group) -> str:
    first = group.episodes[0].root.text
    return f"The task, as the world puts it:\n{_cut(first)}\n\n"


def _played(group: Group, episode: Episode) -> str:
    """A task and an episode's own turns, one JSON object a line, and how it ended."""
    lines = [
        json.dumps({"turn": k, "said": _cut(_words(turn)), "world": _cut(turn.step.text)})
        for k, turn in enumerate(episode.turns)
    ]
    ended = f"It ended: {episode.stop or 'the world failed'}, reward {episode.reward}."
    return _task(group) + "The turns:\n" + "\n".join(lines) + f"\n{ended}\n\n"


def _cut(text: str) -> str:
    half = MOST // 2
    return text if len(text) <= MOST else f"{text[:half]} [...] {text[-half:]}"
