"""A clerk who plays the drawn desks by what is seen alone: the user's words, and what the tools show.

It is told which desk it stands at and reads the words of the scripted user, whose requests are drawn from a few
templates; it looks a thing up before it uses it, proposes a change before it makes it, and refuses what the policy
forbids. So it proves that a drawn case can be solved by whoever sees no more than an agent does. Words that it does
not know (a user who speaks freely, another policy's cases) make it `Lost`.
"""

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from pydantic import JsonValue

from envgym.messages import ToolCall
from envgym.tools import compact
from envgym_environments.tool.service.user import agrees

__all__ = ["CLERKS", "Lost", "clerk"]

T = TypeVar("T")

Said = ToolCall | str
Play = Generator[Said, str, T]
"""What the clerk says and does; each is answered by what is seen of it."""

_REFUSAL = "I cannot do that: it is against our policy."


class Lost(Exception):  # no mistake of anybody's: the clerk's words are few
    """What was said is nothing that the clerk can read. at: the place among all that was seen."""

    at = 0


def clerk(desk: str, seen: Sequence[str]) -> Said:
    """What to say or do after all that was seen: the first words, then an answer to each act. Raises Lost."""
    play = _serving(CLERKS[desk](), seen[0].rpartition("User: ")[2])
    said = next(play)
    for at, answer in enumerate(seen[1:], 1):
        try:
            said = play.send(answer)
        except Lost as lost:
            lost.at = at
            raise
    return said


def _serving(serve: Callable[[str], Play[str]], want: str) -> Play[None]:
    """One want after the other, as long as the user has more."""
    while True:
        told = yield from serve(want)
        want = yield f"{told} Is there anything else?"


# -- what clerks do alike ----------------------------------------------------------------------------------------


def _read(shape: str, text: str) -> re.Match[str]:
    found = re.search(shape, text)
    if found is None:
        raise Lost(f"no {shape!r} in {text[:200]!r}")
    return found


def _ask(what: str, shape: str) -> Play[re.Match[str]]:
    answer = yield f"Please tell me: {what}?"
    return _read(shape, answer)


def _call(name: str, /, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def _look(name: str, /, **arguments: JsonValue) -> Play[Any]:
    text = yield _call(name, **arguments)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Lost(f"{name} answers {text[:200]!r}") from error


def _only(found: Sequence[T], what: str) -> T:
    """The first of what fits: which of several is meant, nobody could tell."""
    if not found:
        raise Lost(f"there is no {what}")
    return found[0]


def _do(about: str, *calls: ToolCall) -> Play[str]:
    """Say what will be done, hear a yes, do it."""
    answer = yield f"I will do just this{about}: {'; '.join(map(compact, calls))}. Shall I proceed?"
    if not agrees(answer):
        raise Lost(f"no yes: {answer[:200]!r}")
    for call in calls:
        answer = yield call
        if answer.startswith(("refused: ", "error: ")):
            raise Lost(f"{call.name}: {answer[:200]}")
    return "It is done."


# -- retail ------------------------------------------------------------------------------------------------------


class _Shop:
    """A customer is found by email before anything else."""

    def __init__(self) -> None:
        self.user: dict[str, Any] = {}

    def __call__(self, want: str) -> Play[str]:
        if not self.user:
            email = (yield from _ask("your email", r"My email is (\S+)\.(?:\s|\Z)"))[1]
            key = yield _call("find_user_id_by_email", email=email)
            self.user = yield from _look("get_user_details", user_id=key)
        for shape, serve in (
            (r"(?i)\bcancel\b.*?(#W\d+)", self.cancel),
            (r"send my order (#W\d+) to another address", self.readdress),
            (r"change the address of my account", self.move),
            (r"I want to pay order (#W\d+) in another way", self.repay),
            (r"I want to return the (.+) that I got", self.take_back),
            (r"About order (#W\d+): I would like the (.+) in another option", self.swap),
            (r"How much did the items of all my orders cost", self.sum_up),
        ):
            if found := re.search(shape, want):
                return (yield from serve(*found.groups()))
        raise Lost(f"no request in {want[:200]!r}")

    def cancel(self, order_id: str) -> Play[str]:
        order = yield from _look("get_order_details", order_id=order_id)
        if order["status"] != "pending" or order["user_id"] != self.user["user_id"]:
            return _REFUSAL
        mistake = (yield from _ask("the reason", r"do not need it|(by mistake)"))[1]
        reason = "ordered by mistake" if mistake else "no longer needed"
        return (yield from _do("", _call("cancel_pending_order", order_id=order_id, reason=reason)))

    def readdress(self, order_id: str) -> Play[str]:
        yield from _look("get_order_details", order_id=order_id)
        to = yield from self._address()
        return (yield from _do("", _call("modify_pending_order_address", order_id=order_id, **to)))

    def move(self) -> Play[str]:
        to = yield from self._address()
        return (yield from _do("", _call("modify_user_address", user_id=self.user["user_id"], **to)))

    def _address(self) -> Play[dict[str, JsonValue]]:
        shape = r"new address is (.+?), (.+?), (.+?), state (\w+), (.+?), zip (\d+)"
        found = yield from _ask("the new address", shape)
        return dict(zip(("address1", "address2", "city", "state", "country", "zip"), found.groups(), strict=True))

    def repay(self, order_id: str) -> Play[str]:
        yield from _look("get_order_details", order_id=order_id)
        kind = (yield from _ask("how you will pay", r"on my (gift card|credit card)"))[1]
        call = _call("modify_pending_order_payment", order_id=order_id, payment_method_id=self._method(kind))
        return (yield from _do("", call))

    def take_back(self, names: str) -> Play[str]:
        order_id = (yield from _ask("which order it is", r"order (#W\d+)"))[1]
        kind = (yield from _ask("where the refund goes", r"to my (credit card|gift card)"))[1]
        order = yield from _look("get_order_details", order_id=order_id)
        wanted, items = names.split(" and the "), list[JsonValue]()
        for item in order["items"]:
            if item["name"] in wanted:
                wanted.remove(item["name"])
                items.append(item["item_id"])
        call = _call(
            "return_delivered_order_items", order_id=order_id, item_ids=items, payment_method_id=self._method(kind)
        )
        return (yield from _do("", call))

    def swap(self, order_id: str, name: str) -> Play[str]:
        order = yield from _look("get_order_details", order_id=order_id)
        item = _only([one for one in order["items"] if one["name"] == name], name)
        wanted = (yield from _ask("the color, size or material", r"I want it with (.+?)\.(?:\s|\Z)"))[1]
        options = dict(part.split(" ", 1) for part in wanted.split(", "))
        product = yield from _look("get_product_details", product_id=item["product_id"])
        variants = product["variants"].values()
        new = _only([one for one in variants if one["options"] == options and one["available"]], wanted)
        kind = (yield from _ask("how you pay", r"[Uu]se my (credit card)"))[1]
        call = _call(
            "modify_pending_order_items" if order["status"] == "pending" else "exchange_delivered_order_items",
            order_id=order_id,
            item_ids=[item["item_id"]],
            new_item_ids=[new["item_id"]],
            payment_method_id=self._method(kind),
        )
        return (yield from _do("", call))

    def sum_up(self) -> Play[str]:
        total = 0.0
        for order_id in self.user["orders"]:
            order = yield from _look("get_order_details", order_id=order_id)
            total += sum(item["price"] for item in order["items"])
        return f"They cost {total:.2f} together."

    def _method(self, kind: str) -> str:
        source = kind.replace(" ", "_")
        methods = self.user["payment_methods"].items()
        return str(_only([key for key, one in methods if one["source"] == source], kind))


# -- files -------------------------------------------------------------------------------------------------------


class _Store:
    """What is read out is kept, as it may have to be written down."""

    def __init__(self) -> None:
        self.number = ""

    def __call__(self, want: str) -> Play[str]:
        for shape, serve in (
            (r"delete (\S+) from (/\w+)\.", self.trash),
            (r"Delete (/\S+), I do not need it", self.delete),
            (r"Rename my (\S+) in (/\w+), the one", self.rename),
            (r"I need (\S+) of (/\w+) in another folder", self.copy),
            (r"Move all (\w+) files of (/\w+) elsewhere", self.collect),
            (r"What is the number in (\S+)\?", self.number_of),
            (r"Write it as a last line into (\S+)\.\Z", self.note),
            (r"Which file holds the number (\S+)\?", self.holder),
        ):
            if found := re.search(shape, want):
                return (yield from serve(*found.groups()))
        raise Lost(f"no request in {want[:200]!r}")

    def trash(self, name: str, folder: str) -> Play[str]:
        return (yield from self.delete(f"{folder}/{name}"))

    def delete(self, path: str) -> Play[str]:
        folder, _, name = path.rpartition("/")
        there = yield from _look("list_folder", folder=folder)
        if folder == "/archive":
            return _REFUSAL
        _only([one for one in there if one == path], path)
        return (yield from _do("", _call("move_file", path=path, to=f"/trash/{name}")))

    def rename(self, name: str, folder: str) -> Play[str]:
        yield from _look("list_folder", folder=folder)
        new = (yield from _ask("the new name", r"To (\S+)\.\Z"))[1]
        return (yield from _do("", _call("move_file", path=f"{folder}/{name}", to=f"{folder}/{new}")))

    def copy(self, name: str, folder: str) -> Play[str]:
        yield from _look("list_folder", folder=folder)
        to = (yield from _ask("which folder", r"In (/\w+)\."))[1]
        return (yield from _do("", _call("copy_file", path=f"{folder}/{name}", to=f"{to}/{name}")))

    def collect(self, ending: str, folder: str) -> Play[str]:
        there = yield from _look("list_folder", folder=folder)
        to = (yield from _ask("where to", r"To (/\w+)\."))[1]
        calls = [
            _call("move_file", path=path, to=f"{to}/{path.rpartition('/')[2]}")
            for path in there
            if path.endswith(f".{ending}")
        ]
        return (yield from _do("", *calls))

    def number_of(self, name: str) -> Play[str]:
        path = yield from self._found(name)
        self.number = (yield _call("read_file", path=path)).split()[-1]
        return f"The number is {self.number}."

    def note(self, name: str) -> Play[str]:
        path = yield from self._found(name)
        return (yield from _do("", _call("append_line", path=path, line=self.number)))

    def holder(self, number: str) -> Play[str]:
        found = yield from _look("search_text", word=number)
        return f"It is in {_only(found, number)}."

    def _found(self, name: str) -> Play[str]:
        found = yield from _look("search_text", word=name)
        return str(_only([path for path in found if path.rpartition("/")[2] == name], name))


# -- office ------------------------------------------------------------------------------------------------------


class _Secretary:
    """The event that was spoken of last is kept: somebody may have to be invited to it."""

    def __init__(self) -> None:
        self.event = 0

    def __call__(self, want: str) -> Play[str]:
        for shape, serve in (
            (r"put something into my calendar", self.create),
            (r"There is a mail '(.+)': label it", self.label),
            (r"label the mail '(.+)' as (\w+)\.", self.label),
            (r"Forward the mail '(.+)' to someone", self.forward),
            (r"My '(.+)' of (\S+) at (\d+) has to move", self.move),
            (r"Also invite (.+)\.\Z", self.invite),
            (r"I am away on (\S+): cancel all", self.clear),
            (r"What is the reference in the mail '(.+)' from (.+)\?", self.reference),
            (r"Book '(.+)' on (\S+) from (\d+) to (\d+)", self.book),
        ):
            if found := re.search(shape, want):
                return (yield from serve(*found.groups()))
        raise Lost(f"no request in {want[:200]!r}")

    def create(self) -> Play[str]:
        day = (yield from _ask("the day", r"On (\d{4}-\d\d-\d\d)\."))[1]
        hours = yield from _ask("the hour", r"From (\d+) to (\d+) o'clock")
        title = (yield from _ask("the title", r"Call it '(.+)'"))[1]
        return (yield from self.book(title, day, hours[1], hours[2]))

    def book(self, title: str, day: str, start: str, end: str) -> Play[str]:
        if (yield from self._taken(day, int(start), int(end))):
            return _REFUSAL
        return (yield from _do("", _call("create_event", title=title, day=day, start=int(start), end=int(end))))

    def label(self, subject: str, label: str = "") -> Play[str]:
        mail = yield from self._mail(subject)
        label = label or (yield from _ask("how to label it", r"As (\w+)\."))[1]
        return (yield from _do(f" with '{subject}'", _call("label_mail", mail_id=mail, label=label)))

    def forward(self, subject: str) -> Play[str]:
        mail = yield from self._mail(subject)
        name = (yield from _ask("to whom", r"To (.+)\.\Z"))[1]
        return (yield from _do(f" with '{subject}'", _call("forward_mail", mail_id=mail, name=name)))

    def move(self, title: str, day: str, hour: str) -> Play[str]:
        events = yield from _look("list_events", day=day)
        fits = [one["event_id"] for one in events if (one["title"], one["start"]) == (title, int(hour))]
        self.event = int(_only(fits, title))
        to = yield from _ask("when to", r"To (\S+), (\d+) to (\d+)\.")
        start, end = int(to[2]), int(to[3])
        if (yield from self._taken(to[1], start, end)):
            return _REFUSAL
        call = _call("move_event", event_id=self.event, day=to[1], start=start, end=end)
        return (yield from _do(f" with '{title}'", call))

    def invite(self, name: str) -> Play[str]:
        return (yield from _do("", _call("invite", event_id=self.event, name=name)))

    def clear(self, day: str) -> Play[str]:
        events = yield from _look("list_events", day=day)
        calls = [_call("cancel_event", event_id=event["event_id"]) for event in events]
        return (yield from _do(f" for {day}", *calls))

    def reference(self, subject: str, sender: str) -> Play[str]:
        mail = yield from self._mail(subject, sender)
        found = yield from _look("read_mail", mail_id=mail)
        return f"The reference is {found['body'].rstrip('.').split(' ')[-1]}."

    def _mail(self, subject: str, sender: str = "") -> Play[int]:
        mails = yield from _look("search_mail", word=subject)
        fits = [one for one in mails if one["subject"] == subject and sender in ("", one["sender"])]
        return int(_only(fits, subject)["mail_id"])

    def _taken(self, day: str, start: int, end: int) -> Play[bool]:
        events = yield from _look("list_events", day=day)
        return any(event["start"] < end and start < event["end"] for event in events)


CLERKS: dict[str, Callable[[], Callable[[str], Play[str]]]] = {
    "retail": _Shop,
    "files": _Store,
    "office": _Secretary,
}
"""Who stands at which desk."""
