"""How FlightWoB's forms of Alaska Airlines are filled in: the next action, by what is seen of the form alone."""

import json
from typing import Any

from envgym.messages import Action, Message, ToolCall
from envgym_environments.web.miniwob.reading import Element, Shown

__all__ = ["flight"]

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def flight(shown: Shown, turn: int) -> Action:
    """One field after the other, whichever is not yet as it should be, and then the search. Raises LookupError."""
    asked: dict[str, Any] = json.loads(shown.asked)
    if _there(shown, "cal-top-text"):
        return _day(shown, asked)
    one_way = str(asked.get("Ticket Type") or asked["One Way or Round Trip"]).lower().startswith("one")
    if one_way and _there(shown, "return-date"):
        return _click(_label(shown, "srh-isow"))
    for field, name in (("geo-from", "Departure City"), ("geo-to", "Destination City")):
        if not _value(shown, field).startswith(f"{asked[name]},"):
            return _city(shown, shown.by_id(field), str(asked[name]))
    for field in ("departure-date", "return-date"):
        if _there(shown, field) and not _value(shown, field):
            return _click(shown.by_id(field))
    if int(shown.by_id("tnum-display").text) < int(asked.get("Passengers", 1)):
        return _click(shown.named("+"))
    if asked.get("Seat type") == "First" and (seat := _first_class(shown)) is not None:
        return seat
    return _click(shown.all("input", "submit")[0])


def _first_class(shown: Shown) -> Action | None:
    """What is left to do for it: it is among more options. None where it is chosen."""
    if not _there(shown, "cabin-first"):
        return _click(shown.named("More search options"))
    seat = _label(shown, "cabin-first")
    return None if "current" in seat.attributes.get("class", "").split() else _click(seat)


def _city(shown: Shown, field: Element, city: str) -> Action:
    """Type it, and take the first airport that is offered: which of several is meant, no form says."""
    if field.attributes.get("value"):
        return _click(next(one for one in shown.all("li") if one.text.startswith(f"{city},")))
    typed = ToolCall(name="type_text", arguments={"text": city})
    calls = (ToolCall(name="click", arguments={"ref": field.ref}), typed)
    return Action(message=Message(role="assistant", tool_calls=calls))


def _day(shown: Shown, asked: dict[str, Any]) -> Action:
    """In the calendar that is open: the month, the day, and done."""
    there = "departure" in shown.by_id("cal-top-text").text
    which = "Departure" if there else "Returning"
    if _value(shown, "departure-date" if there else "return-date"):
        return _click(shown.by_id("btnDone"))
    month = asked.get(f"{which} Month")
    (now,) = shown.all("span", "current-month")
    if month is not None and _MONTHS[int(month) - 1] not in now.text:
        return _click(shown.by_id("next-month").children[0])
    return _click(next(one for one in shown.all("a", "cal-day") if one.text == str(asked[f"{which} Day"])))


def _click(element: Element) -> Action:
    return Action.call("click", ref=element.ref)


def _there(shown: Shown, name: str) -> bool:
    return any(one.attributes.get("id") == name for one in shown.elements)


def _label(shown: Shown, field: str) -> Element:
    return next(one for one in shown.all("label") if one.attributes.get("for") == field)


def _value(shown: Shown, field: str) -> str:
    return shown.by_id(field).attributes.get("value", "")
