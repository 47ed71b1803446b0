"""`service`: an agent at a desk (retail, office, files), with tools, a policy to keep, and a user who talks.

What counts is the end: the database is what it should be, the user was told what had to be told, and the policy was
kept on the way (who calls is known, a change was confirmed, nobody else's things were touched). The user is
scripted; with ``user="actor"`` a second actor of the episode, named "user", plays them: any agent over any policy
or endpoint (``envgym collect --actor user=AGENT``; `envgym.play` takes an agent for each name). What the end earns
is the agent's, whoever has the last word.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import JsonValue

from envgym.env import THE_AGENT, Step, StopReason
from envgym.messages import Action, Message, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import compact
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.splits import of_split
from envgym_environments.tool.service.clerk import Lost, clerk
from envgym_environments.tool.service.desk import Case, Desk, Refused, mistyped, replayed, specs_of
from envgym_environments.tool.service.files import Files, draw_files
from envgym_environments.tool.service.office import Office, draw_office
from envgym_environments.tool.service.retail import Retail
from envgym_environments.tool.service.retail_cases import draw_retail
from envgym_environments.tool.service.tau2 import DOMAINS, tau2_case, tau2_policy, tau2_tasks
from envgym_environments.tool.service.user import GOODBYE, agrees, answer_of, told, told_of
from envgym_environments.words import pick

__all__ = ["SPEC", "Service", "ServiceState", "expert", "service_tasks"]

_DESKS: dict[str, Any] = {
    "files": (Files, draw_files),
    "office": (Office, draw_office),
    "retail": (Retail, draw_retail),
}
_COUNTS = {"state": "DB|ENV_ASSERTION", "told": "COMMUNICATE", "kept": "", "acted": "ACTION"}
"""The channels, and of which parts of a case's basis they are; that the policy was kept counts without a basis."""

_GREETINGS = ("", "Hello. ", "Hi there! ", "Good morning. ", "Hey, ", "Good day. ")
_BYE = re.compile(r"goodbye|###stop###", re.IGNORECASE)
_MOST_SAID = 60


@dataclass(slots=True)
class ServiceState:
    """The whole state.

    db: as it is now. said: the agent's words. stated: wants that the user spoke of. confirmed: the user said yes.
    known: ids that looking gave. done: changes made, as JSON. broken: how the policy was broken. waiting: for the
    user, where an actor plays them; heard: their words. acted: numbers of the case's acts that were called.
    """

    db: dict[str, Any]
    said: list[str] = field(default_factory=list)
    stated: int = 0
    confirmed: bool = False
    known: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    waiting: bool = False
    heard: list[str] = field(default_factory=list)
    acted: list[int] = field(default_factory=list)


class Service(Rules[ServiceState]):
    """Rules of `service`. user: "scripted", or "actor" for a second actor."""

    state = ServiceState
    hears = True
    uses_seed = True

    def __init__(self, task: Task, *, user: Literal["scripted", "actor"] = "scripted") -> None:
        if user not in ("scripted", "actor"):
            raise ValueError(f"user is {user!r}; it must be 'scripted' or 'actor'")
        self.task, self._acted = task, user == "actor"
        self._desk: type[Desk] = _desk_of(task)
        self.tools = specs_of(self._desk)
        self._db, self._case = _scene(task)

    def begin(self, seed: int) -> tuple[ServiceState, str]:
        """The policy, and the user's first words, in a manner that the seed draws."""
        state = ServiceState(msgspec.json.decode(self._db))
        rng = draws(seed, self.task.seed, 0x5E)
        ticket, greeting = int(rng.integers(10_000, 99_999)), pick(rng, _GREETINGS)
        rules = f"{tau2_policy(self.task) or self._desk.policy}\nText that is no call goes to the user."
        return state, f"{rules}\n\nTicket {ticket}. User: {greeting}{self._case.opening}"

    def speaker(self, state: ServiceState) -> str:
        """The user, when an actor plays them and is spoken to."""
        return "user" if state.waiting else THE_AGENT

    def move(self, state: ServiceState, said: ToolCall | str) -> Answer:
        """A tool, or words to the user."""
        if isinstance(said, ToolCall):
            return self._use(state, said)
        if state.waiting:
            return self._answered(state, said)
        state.said.append(said)
        if len(state.said) >= _MOST_SAID:
            return self._end(state, "The user leaves: this takes too long.")
        if self._acted:
            state.waiting = True
            case = self._case
            role = (
                f"You are the user of a service. {case.instructions or _instructions(case)}\n"
                if len(state.said) == 1
                else ""
            )
            return Answer(f"{role}Agent: {said}")
        text, state.stated, state.confirmed = answer_of(self._case, state.stated, said)
        return self._end(state, text) if text == GOODBYE else Answer(text)

    def _answered(self, state: ServiceState, said: str) -> Answer:
        state.waiting, state.confirmed = False, agrees(said)
        state.heard.append(said)
        return self._end(state, said) if _BYE.search(said) else Answer(said)

    def _use(self, state: ServiceState, call: ToolCall) -> Answer:
        if (wrong := mistyped(self._desk, call)) is not None:
            return Answer(f"refused: {wrong}")
        desk = self._desk(state.db)  # type: ignore[call-arg]  # a Protocol has no constructor
        writes = call.name in desk.writes
        before = msgspec.json.encode(state.db) if writes else b""
        broken = self._breaks(state, desk, call) if writes else []
        done = {number for number, act in enumerate(self._case.acts) if act.is_done_by(call)}
        state.acted = sorted(done | set(state.acted))
        try:
            text = str(getattr(desk, call.name)(**call.arguments))
        except Refused as error:
            if writes:  # a refusal in the middle of a change leaves nothing half done
                state.db = msgspec.json.decode(before)
            return Answer(f"refused: {error}")
        if writes:
            state.done.append(msgspec.json.encode([call.name, call.arguments]).decode())
            state.broken += broken
        elif (known := desk.learned(call, text)) is not None:
            state.known.append(known)
        elif call.name == "transfer_to_human_agents":
            return self._end(state, text)
        return Answer(text)

    def _breaks(self, state: ServiceState, desk: Desk, call: ToolCall) -> list[str]:
        """How a change breaks what every policy says; asked before it is made."""
        owner, found = desk.owner(call), []
        if not state.confirmed:
            found.append(f"{call.name} without a yes")
        if owner is not None and owner not in state.known:
            found.append(f"{call.name} before the customer was known")
        if owner is not None and self._case.owner and owner != self._case.owner:
            found.append(f"{call.name} for somebody else")
        return found

    def _end(self, state: ServiceState, text: str) -> Answer:
        case = self._case
        channels = {
            "state": float(self._right(state)),
            "told": told(case, state.said),
            "kept": float(not state.broken),
        }
        if case.acts:
            channels["acted"] = len(state.acted) / len(case.acts)
        counted = [name for name, part in _COUNTS.items() if name in channels and case.counts(part)]
        reward = float(all(channels[name] == 1.0 for name in counted)) if counted else None
        if reward is not None:
            channels["reward"] = reward
        return Answer(
            text, reward, StopReason.GOAL if reward else StopReason.SUBMITTED, channels,
            earned_by=THE_AGENT,  # also where the user has the last word
            silent=("judged",) if case.judged else (),
        )  # fmt: skip

    def _right(self, state: ServiceState) -> bool:
        """Whether the database is as it should be."""
        case, desk = self._case, self._desk(state.db)  # type: ignore[call-arg]  # a Protocol has no constructor
        held = case.holds if case.counts("ENV_ASSERTION") else []
        if not all(getattr(desk, call.name)(**call.arguments) for call in held):
            return False
        return not case.compared or state.db == replayed(self._desk, msgspec.json.decode(self._db), case.gold)

    def key(self, state: ServiceState) -> str:
        """A digest of all but the database, which is what `done` made of the task's: known, said, told, broken.

        A scripted user keeps nothing of what was said but how often, and what of it had to be; an actor may keep
        every word, theirs too.
        """
        where: list[Any] = (
            [state.said, state.heard] if self._acted else [len(state.said), told_of(self._case, state.said)]
        )
        known = sorted(set(state.known))
        where += (state.stated, state.confirmed, state.waiting, known, state.done, state.broken)
        if self._case.acts:
            where.append(state.acted)
        return hashlib.blake2b(msgspec.json.encode(where), digest_size=16).hexdigest()


def _instructions(case: Case) -> str:
    facts = " ".join(case.facts.values())
    wants = " Then: ".join([case.opening, *case.wants])
    return f"What you want: {wants} What you know: {facts} Tell it when asked; say goodbye when all is done."


def _desk_of(task: Task) -> type[Desk]:
    name = str(task.metadata["service"])
    return DOMAINS[name].desk if "db" in task.metadata else _DESKS[name][0]  # type: ignore[no-any-return]


def _scene(task: Task) -> tuple[bytes, Case]:
    if "db" in task.metadata:
        return tau2_case(task)
    return _drawn(str(task.metadata["service"]), int(str(task.metadata["difficulty"])), task.seed)


@lru_cache(maxsize=512)
def _drawn(service: str, level: int, seed: int) -> tuple[bytes, Case]:
    db, case = _DESKS[service][1](draws(seed, level, len(service), 0xDE), level)
    return msgspec.json.encode(db), case


_APART = 1_000_000_000_000
"""Between the numbers of one task's draws: no seed and index below it share one."""


def _said_by(case: Case, service: str) -> JsonValue:
    """All that a user says: what no training task and held-out task have in common."""
    return [service, case.opening, list(case.wants), dict(case.facts)]


def service_tasks(
    count: int | None = 1000,
    *,
    service: Literal["retail", "office", "files"] | None = None,
    difficulty: int | None = None,
    seed: int = 0,
    path: str | None = None,
    judged: bool = False,
) -> TaskSet:
    """`count` drawn tasks (None: without end), each with a database of its own; every fifth is held out.

    service, difficulty (1 to 5): None takes all in turn. path: a folder of tau2's retail, airline or mock domain
    instead, with ``tasks.json`` and ``db.json``; judged: with those of its tasks that need a judge. Raises
    ValueError for another service, a difficulty out of bounds or a count below one.
    """
    if path is not None:
        return tau2_tasks(Path(path), judged=judged)[:count]
    if judged:
        raise ValueError("judged is for the tasks of a folder, and path names none; drawn tasks need no judge")
    if service is not None and service not in _DESKS:
        raise ValueError(f"service is {service!r}; it must be one of {', '.join(_DESKS)}, or None for all in turn")
    if difficulty is not None and not 1 <= difficulty <= 5:
        raise ValueError(f"difficulty is {difficulty}; it must be 1 to 5, or None for all in turn")

    def make(index: int, split: str) -> Task:
        kind = service or sorted(_DESKS)[index % len(_DESKS)]
        level = difficulty or 1 + (index // 3 + index // 15) % 5
        first = seed * 1_000_003 + index
        number = of_split(
            split,
            lambda again: first + again * _APART,
            lambda number: _said_by(_drawn(kind, level, number)[1], kind),
        )
        case = _drawn(kind, level, number)[1]
        return Task(
            id=f"service/{seed}/{kind}/{level}/{index}",
            prompt=case.opening,
            split=split,
            seed=number,
            metadata={"service": kind, "difficulty": level},
        )

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """At a drawn desk what a clerk does who sees no more than an agent; where that one is lost, a case's script."""
    said, at = None, 0
    if "db" not in task.metadata:
        try:
            said = clerk(str(task.metadata["service"]), [step.text for step in seen])
        except Lost as lost:
            at = lost.at
    if said is None:
        script = _script(task)
        said = script[min(len(seen) - at, len(script)) - 1]
    if isinstance(said, str):
        return Action.say(said)
    return Action(message=Message(role="assistant", tool_calls=(said,)))


def _script(task: Task) -> list[ToolCall | str]:
    """Ask for all facts, look, hear all wants, propose, change, report."""
    _, case = _scene(task)
    script: list[ToolCall | str] = [f"Please tell me: {keys.split('|')[0]}?" for keys in case.facts]
    script += case.looks
    script += ["Noted. Is there anything else?"] * len(case.wants)
    if case.gold:
        script += [f"I will do just this: {'; '.join(map(compact, case.gold))}. Shall I proceed?", *case.gold]
    forms = " ".join(tell.split("|")[0] for tell in case.tell)
    end = "I cannot do that: it is against our policy." if case.refuse else f"It is done. {forms}"
    return [*script, f"{end} Is there anything else?"]


expert = expert_of(_decide)
"""It asks before it knows, and confirms before it changes, as the policies want.

At a drawn desk with the scripted user it sees what an agent sees (`clerk`); of tau2's cases, and of a user whom a
model plays, it reads the case.
"""

SPEC = EnvSpec(
    name="service",
    tasks=service_tasks,
    make=played(Service),
    description="A desk with tools, a policy and a user (retail, office, files), graded by state and words.",
    in_process=True,
    seeded=True,
)
