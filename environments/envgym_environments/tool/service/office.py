"""A mailbox and a calendar: an assistant's desk, and the cases of its owner.

Everything is written by structured calls (forward, label, move, invite), never as free text, so that two right ends
are the same database.
"""

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from envgym.messages import ToolCall
from envgym_environments import words
from envgym_environments.tool.service.desk import Case, Refused
from envgym_environments.words import TODAY, pick, some

__all__ = ["Office", "draw_office"]

_TOPICS = (
    "budget",
    "contract",
    "invoice",
    "roadmap",
    "interview",
    "travel",
    "audit",
    "launch",
    "training",
    "offer",
)
_NO = "cannot|can't|unable|not able|not possible|not allowed|conflict"


class Office:
    """See `envgym_environments.tool.service.desk.Desk`."""

    reads = ("list_events", "search_mail", "read_mail", "list_contacts")
    writes = ("create_event", "move_event", "cancel_event", "invite", "forward_mail", "label_mail")
    policy = (
        "You keep the mailbox and the calendar of one person. Before you change anything, say what you will do and "
        "get a yes. Never let two events of a day overlap, and forward mail to contacts only: refuse both. Days "
        f"are written YYYY-MM-DD, hours as whole numbers; today is {TODAY}."
    )

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def owner(self, call: ToolCall) -> str | None:
        """All that is here belongs to one person."""
        return None

    def learned(self, call: ToolCall, text: str) -> str | None:
        """Nobody must be known."""
        return None

    def _event(self, event_id: int) -> dict[str, Any]:
        found = self.db["events"].get(str(event_id))
        if found is None:
            raise Refused("no such event")
        return found  # type: ignore[no-any-return]

    def _mail(self, mail_id: int) -> dict[str, Any]:
        found = self.db["mails"].get(str(mail_id))
        if found is None:
            raise Refused("no such mail")
        return found  # type: ignore[no-any-return]

    def _contact(self, name: str) -> str:
        if name not in self.db["contacts"]:
            raise Refused(f"{name[:60]} is no contact")
        return name

    def list_events(self, day: str) -> str:
        """List the events of a day (YYYY-MM-DD)."""
        return json.dumps([event for event in self.db["events"].values() if event["day"] == day])

    def search_mail(self, word: str) -> str:
        """List the mails whose subject or sender holds a word."""
        low = word.lower()
        return json.dumps(
            [
                {k: mail[k] for k in ("mail_id", "sender", "subject")}
                for mail in self.db["mails"].values()
                if low in mail["subject"].lower() or low in mail["sender"].lower()
            ]
        )

    def read_mail(self, mail_id: int) -> str:
        """Show a mail."""
        return json.dumps(self._mail(mail_id))

    def list_contacts(self) -> str:
        """List the contacts."""
        return json.dumps(self.db["contacts"])

    def create_event(self, title: str, day: str, start: int, end: int) -> str:
        """Put an event into the calendar."""
        number = 1 + max((int(key) for key in self.db["events"]), default=0)
        event = {"event_id": number, "title": title, "day": _day(day), "guests": [], **_hours(start, end)}
        self.db["events"][str(number)] = event
        return json.dumps(event)

    def move_event(self, event_id: int, day: str, start: int, end: int) -> str:
        """Move an event."""
        event = self._event(event_id)
        event |= {"day": _day(day), **_hours(start, end)}
        return json.dumps(event)

    def cancel_event(self, event_id: int) -> str:
        """Take an event out of the calendar."""
        self._event(event_id)
        return json.dumps(self.db["events"].pop(str(event_id)))

    def invite(self, event_id: int, name: str) -> str:
        """Invite a contact to an event."""
        event = self._event(event_id)
        event["guests"] = sorted({*event["guests"], self._contact(name)})
        return json.dumps(event)

    def forward_mail(self, mail_id: int, name: str) -> str:
        """Forward a mail to a contact."""
        mail = self._mail(mail_id)
        mail["forwarded"] = sorted({*mail["forwarded"], self._contact(name)})
        return "forwarded"

    def label_mail(self, mail_id: int, label: str) -> str:
        """Label a mail: 'done', 'later' or 'important'."""
        if label not in ("done", "later", "important"):
            raise Refused("the labels are done, later, important")
        self._mail(mail_id)["label"] = label
        return "labelled"


def _day(day: str) -> str:
    try:
        return datetime.date.fromisoformat(day).isoformat()
    except ValueError:
        raise Refused("a day is written YYYY-MM-DD") from None


def _hours(start: int, end: int) -> dict[str, int]:
    if not 0 <= start < end <= 24:
        raise Refused("hours are 0 to 24, the end after the start")
    return {"start": start, "end": end}


def draw_office(rng: np.random.Generator, level: int) -> tuple[dict[str, Any], Case]:
    """A mailbox of 30 mails, a calendar of 25 events, and a case in it."""
    contacts = sorted({words.person(rng) for _ in range(14)})
    days = [words.date(rng, 1, 20) for _ in range(8)]
    events: dict[str, Any] = {}
    for day in sorted(set(days)):
        for start in sorted(some(rng, range(8, 18), int(rng.integers(2, 5)))):
            key, title = len(events) + 1, f"{pick(rng, _TOPICS)} with {pick(rng, contacts)}"
            events[str(key)] = {
                "event_id": key,
                "title": title,
                "day": day,
                "guests": [],
                "start": start,
                "end": start + 1,
            }
    mails: dict[str, Any] = {}
    for number, topic in enumerate((*_TOPICS, *_TOPICS, *_TOPICS), 1):
        code = f"{topic[:2].upper()}-{int(rng.integers(1000, 9999))}"
        mails[str(number)] = {
            "mail_id": number,
            "sender": pick(rng, contacts),
            "label": "",
            "forwarded": [],
            "subject": _subject(rng, topic, [mail["subject"] for mail in mails.values()]),
            "body": f"The reference is {code}.",
        }
    db = {"contacts": contacts, "events": events, "mails": mails}
    return db, pick(rng, _BY_LEVEL[level])(rng, db)


def _subject(rng: np.random.Generator, topic: str, others: Sequence[str]) -> str:
    """One that no other mail has: users name a mail by it."""
    while (subject := f"{topic} {words.title(rng)}") in others:
        pass
    return subject


def _see(day: str) -> ToolCall:
    return ToolCall(name="list_events", arguments={"day": day})


def _free(rng: np.random.Generator, db: dict[str, Any], day: str) -> int:
    taken = {event["start"] for event in db["events"].values() if event["day"] == day}
    return int(pick(rng, [hour for hour in range(8, 19) if hour not in taken]))


def _create(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    event = pick(rng, list(db["events"].values()))
    title, start = f"{pick(rng, _TOPICS)} review", _free(rng, db, event["day"])
    arguments = {"title": title, "day": event["day"], "start": start, "end": start + 1}
    facts = {
        "when|day|date": f"On {event['day']}.",
        "time|hour|when|long": f"From {start} to {start + 1} o'clock.",
        "title|name|call": f"Call it '{title}'.",
    }
    return Case(
        "Please put something into my calendar.",
        "me",
        facts,
        looks=[_see(event["day"])],
        gold=[ToolCall(name="create_event", arguments=arguments)],
    )


def _label(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    mail, label = pick(rng, list(db["mails"].values())), pick(rng, ("done", "later", "important"))
    return Case(
        f"There is a mail '{mail['subject']}': label it, please.",
        "me",
        {"label|how|which|what": f"As {label}."},
        gold=[ToolCall(name="label_mail", arguments={"mail_id": mail["mail_id"], "label": label})],
        looks=[ToolCall(name="search_mail", arguments={"word": mail["subject"]})],
    )


def _forward(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    mail, to = pick(rng, list(db["mails"].values())), pick(rng, db["contacts"])
    gold = [ToolCall(name="forward_mail", arguments={"mail_id": mail["mail_id"], "name": to})]
    return Case(
        f"Forward the mail '{mail['subject']}' to someone for me.",
        "me",
        {"who|whom|contact": f"To {to}."},
        gold=gold,
        looks=[ToolCall(name="search_mail", arguments={"word": mail["subject"]})],
    )


def _move(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    event, other = some(rng, list(db["events"].values()), 2)
    start = _free(rng, db, other["day"])
    arguments = {"event_id": event["event_id"], "day": other["day"], "start": start, "end": start + 1}
    guest = pick(rng, db["contacts"])
    gold = [
        ToolCall(name="move_event", arguments=arguments),
        ToolCall(name="invite", arguments={"event_id": event["event_id"], "name": guest}),
    ]
    return Case(
        f"My '{event['title']}' of {event['day']} at {event['start']} has to move.",
        "me",
        {"when|day|date|time|where": f"To {other['day']}, {start} to {start + 1}."},
        [f"Also invite {guest}."],
        gold,
        [_see(event["day"]), _see(other["day"])],
    )


def _clear(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    day = pick(rng, list(db["events"].values()))["day"]
    events = [event for event in db["events"].values() if event["day"] == day]
    gold = [ToolCall(name="cancel_event", arguments={"event_id": event["event_id"]}) for event in events]
    mail = pick(rng, list(db["mails"].values()))
    gold.append(ToolCall(name="label_mail", arguments={"mail_id": mail["mail_id"], "label": "later"}))
    return Case(
        f"I am away on {day}: cancel all I have then.",
        "me",
        {},
        gold=gold,
        looks=[_see(day)],
        wants=[f"And label the mail '{mail['subject']}' as later."],
    )


def _hard(rng: np.random.Generator, db: dict[str, Any]) -> Case:
    event, mail = pick(rng, list(db["events"].values())), pick(rng, list(db["mails"].values()))
    if rng.integers(2):
        return Case(
            f"What is the reference in the mail '{mail['subject']}' from {mail['sender']}?",
            "me",
            looks=[ToolCall(name="read_mail", arguments={"mail_id": mail["mail_id"]})],
            tell=[mail["body"].rstrip(".").split(" ")[-1]],
        )
    return Case(
        f"Book 'dentist' on {event['day']} from {event['start']} to {event['end']}, nothing else moves.",
        "me",
        looks=[_see(event["day"])],
        tell=[_NO],
        refuse=True,
    )


_BY_LEVEL = {1: (_forward, _label), 2: (_create,), 3: (_move,), 4: (_clear,), 5: (_hard,)}
