"""An airline's desk: customers, reservations, flights; the tables and tools of tau2's airline domain, anew.

As there, the tools do what they are asked where it can be done; most rules (who may cancel, what is compensated)
are the agent's to keep. Taking a reservation to other flights counts no seats.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal

from envgym.messages import ToolCall
from envgym_environments.tool.service.desk import Refused
from envgym_environments.tool.service.sums import calculated

__all__ = ["Airline"]

Cabin = Literal["basic_economy", "economy", "business"]
_NOW = "2024-05-15T15:00:00"
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
"""The ids that tau2 gives, in its order: a database is right only with the same ones."""
_BAG, _INSURANCE = 50, 30


class Airline:
    """See `envgym_environments.tool.service.desk.Desk`."""

    reads = (
        "get_user_details",
        "get_reservation_details",
        "get_flight_status",
        "list_all_airports",
        "search_direct_flight",
        "search_onestop_flight",
        "calculate",
        "transfer_to_human_agents",
    )
    writes = (
        "book_reservation",
        "cancel_reservation",
        "update_reservation_flights",
        "update_reservation_baggages",
        "update_reservation_passengers",
        "send_certificate",
    )
    policy = (
        f"You help customers of an airline; it is now {_NOW}. Ask for the user id, and serve only that customer. "
        "Before you change anything, say what you will do and get a yes. A reservation is cancelled within 24 "
        "hours of its booking, when the airline cancelled a flight, in business class, or for health or weather "
        "with insurance; never when a flight of it was flown. Basic economy is not moved to other flights. Bags "
        f"are added, not taken away, at {_BAG} dollars beyond the free ones; insurance, {_INSURANCE} dollars a "
        "passenger, is bought when booking only. The number of passengers never changes. Refuse what is against "
        "this."
    )

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def owner(self, call: ToolCall) -> str | None:
        """The customer whose reservation or profile is changed."""
        if "user_id" in call.arguments:
            return str(call.arguments["user_id"])
        reservation = self.db["reservations"].get(str(call.arguments.get("reservation_id")))
        return None if reservation is None else str(reservation["user_id"])

    def learned(self, call: ToolCall, text: str) -> str | None:
        """Who a profile or a reservation that was looked at belongs to."""
        looked = call.name in ("get_user_details", "get_reservation_details")
        return self.owner(call) if looked else None

    def _user(self, user_id: str) -> dict[str, Any]:
        return _found(self.db["users"], user_id, "user")

    def _reservation(self, reservation_id: str) -> dict[str, Any]:
        return _found(self.db["reservations"], reservation_id, "reservation")

    def _day(self, flight_number: str, date: str) -> dict[str, Any]:
        dates: dict[str, Any] = _found(self.db["flights"], flight_number, "flight")["dates"]
        return _found(dates, date, f"flight {flight_number[:20]} on that date")

    def _seats(self, flight_number: str, date: str, cabin: str, count: int) -> dict[str, Any]:
        """The day of a flight that can be booked and has room."""
        day = self._day(flight_number, date)
        if day["status"] != "available":
            raise Refused(f"flight {flight_number} is not available on {date}")
        if day["available_seats"][cabin] < count:
            raise Refused(f"flight {flight_number} has not enough seats in {cabin}")
        return day

    def _leg(self, flight_number: str, date: str, price: int) -> dict[str, Any]:
        flight = self.db["flights"][flight_number]
        return {
            "origin": flight["origin"],
            "destination": flight["destination"],
            "flight_number": flight_number,
            "date": date,
            "price": price,
        }

    # -- looking -----------------------------------------------------------------------------------------------

    def get_user_details(self, user_id: str) -> str:
        """Show a customer: name, address, payment methods, membership, reservations."""
        return json.dumps(self._user(user_id))

    def get_reservation_details(self, reservation_id: str) -> str:
        """Show a reservation."""
        return json.dumps(self._reservation(reservation_id))

    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Show the status of a flight on a date (YYYY-MM-DD)."""
        return str(self._day(flight_number, date)["status"])

    def list_all_airports(self) -> str:
        """List the airports that are flown to."""
        ends = {flight[end] for flight in self.db["flights"].values() for end in ("origin", "destination")}
        return json.dumps(sorted(ends))

    def search_direct_flight(self, origin: str, destination: str, date: str) -> str:
        """List the flights that can be booked between two airports on a date, with seats and prices."""
        return json.dumps(self._flights(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> str:
        """List pairs of flights that can be booked with one stop between two airports on a date."""
        found = []
        for first in self._flights(date, origin, None):
            lands = first["scheduled_arrival_time_est"]
            onward = f"{date[:-2]}{int(date[-2:]) + 1:02d}" if "+1" in lands else date
            for second in self._flights(onward, first["destination"], destination):
                if second["scheduled_departure_time_est"] >= lands:
                    found.append([{**first, "date": date}, {**second, "date": onward}])
        return json.dumps(found)

    def _flights(self, date: str, origin: str, destination: str | None) -> list[dict[str, Any]]:
        found = []
        for flight in self.db["flights"].values():
            day = flight["dates"].get(date, {})
            there = destination is None or flight["destination"] == destination
            if flight["origin"] == origin and there and day.get("status") == "available":
                kept = {name: value for name, value in flight.items() if name != "dates"}
                found.append(kept | day)
        return found

    def calculate(self, expression: str) -> str:
        """Work out a sum of numbers with + - * / and brackets."""
        return calculated(expression)

    def transfer_to_human_agents(self, summary: str) -> str:
        """Give the case to a person, who sees the summary. This ends it."""
        return "transferred"

    # -- changing ----------------------------------------------------------------------------------------------

    def book_reservation(  # noqa: PLR0913  # the arguments of tau2's tool
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["one_way", "round_trip"],
        cabin: Cabin,
        flights: list[dict[str, Any]],
        passengers: list[dict[str, Any]],
        payment_methods: list[dict[str, Any]],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> str:
        """Book flights (flight_number, date) for passengers (first_name, last_name, dob).

        Payment methods are each a payment_id of the customer's with an amount; together they pay the whole price.
        """
        user = self._user(user_id)
        number = next((one for one in _NEW_RESERVATIONS if one not in self.db["reservations"]), None)
        if number is None:
            raise Refused("too many reservations")
        legs, count = [], len(passengers)
        for name, date in _named(flights, "flight_number", "date"):
            day = self._seats(name, date, cabin, count)
            legs.append(self._leg(name, date, day["prices"][cabin]))
        fees = _BAG * nonfree_baggages + (_INSURANCE * count if insurance == "yes" else 0)
        paid = [{"payment_id": str(key), "amount": amount} for key, amount in _payments(payment_methods)]
        self._take(user, paid, sum(leg["price"] for leg in legs) * count + fees)
        for leg in legs:
            self._day(leg["flight_number"], leg["date"])["available_seats"][cabin] -= count
        self.db["reservations"][number] = {
            "reservation_id": number,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": flight_type,
            "cabin": cabin,
            "flights": legs,
            "passengers": _people(passengers),
            "payment_history": paid,
            "created_at": _NOW,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        }
        user["reservations"].append(number)
        return json.dumps(self.db["reservations"][number])

    def _take(self, user: dict[str, Any], paid: Sequence[dict[str, Any]], price: float) -> None:
        """Pay a booking: gift cards lose the amount, a certificate is used up."""
        known = user["payment_methods"]
        if len({one["payment_id"] for one in paid}) < len(paid):
            raise Refused("each payment method is named once")
        for one in paid:
            method = _found(known, one["payment_id"], "payment method")
            if method["source"] != "credit_card" and method["amount"] < one["amount"]:
                raise Refused(f"payment method {one['payment_id']} holds only {method['amount']}")
        if (given := sum(one["amount"] for one in paid)) != price:
            raise Refused(f"the price is {price}, and {given} is paid")
        for one in paid:
            method = known.get(one["payment_id"], {})
            if method.get("source") == "gift_card":
                method["amount"] -= one["amount"]
            elif method.get("source") == "certificate":
                del known[one["payment_id"]]

    def _settle(self, reservation: dict[str, Any], payment_id: str, price: float) -> None:
        """Pay a change of a reservation, or give back where the price is below zero."""
        method = _found(self._user(reservation["user_id"])["payment_methods"], payment_id, "payment method")
        if method["source"] == "certificate":
            raise Refused("a certificate pays no change of a reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise Refused(f"the gift card holds only {method['amount']}")
            method["amount"] -= price
        if price:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})

    def cancel_reservation(self, reservation_id: str) -> str:
        """Cancel a whole reservation; all payments are given back."""
        reservation = self._reservation(reservation_id)
        paid = reservation["payment_history"]
        paid += [{"payment_id": one["payment_id"], "amount": -one["amount"]} for one in paid]
        reservation["status"] = "cancelled"
        return json.dumps(reservation)

    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[dict[str, Any]], payment_id: str
    ) -> str:
        """Give a reservation these flights (flight_number, date), all of them, those that stay included."""
        reservation = self._reservation(reservation_id)
        kept = {(leg["flight_number"], leg["date"]): leg for leg in reservation["flights"]}
        count, legs = len(reservation["passengers"]), []
        for name, date in _named(flights, "flight_number", "date"):
            if (name, date) in kept and cabin == reservation["cabin"]:
                legs.append(kept[name, date])  # at the price it was booked at
                continue
            day = self._seats(name, date, cabin, count)
            legs.append(self._leg(name, date, day["prices"][cabin]))
        before = sum(leg["price"] for leg in reservation["flights"])
        self._settle(reservation, payment_id, (sum(leg["price"] for leg in legs) - before) * count)
        reservation |= {"flights": legs, "cabin": cabin}
        return json.dumps(reservation)

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> str:
        """Change how many bags a reservation has; those beyond the free ones that are new are paid."""
        reservation = self._reservation(reservation_id)
        new = max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._settle(reservation, payment_id, _BAG * new)
        reservation |= {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
        return json.dumps(reservation)

    def update_reservation_passengers(self, reservation_id: str, passengers: list[dict[str, Any]]) -> str:
        """Change who flies (first_name, last_name, dob), as many as before."""
        reservation = self._reservation(reservation_id)
        if len(passengers) != len(reservation["passengers"]):
            raise Refused("the number of passengers does not change")
        reservation["passengers"] = _people(passengers)
        return json.dumps(reservation)

    def send_certificate(self, user_id: str, amount: int) -> str:
        """Give a customer a travel certificate."""
        methods = self._user(user_id)["payment_methods"]
        number = next((one for one in _NEW_CERTIFICATES if one not in methods), None)
        if number is None:
            raise Refused("too many certificates")
        methods[number] = {"source": "certificate", "id": number, "amount": amount}
        return f"{number} of {amount} for {user_id}"


def _found(table: dict[str, Any], key: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] | None = table.get(key)
    if found is None:
        raise Refused(f"{what} not found")
    return found


def _named(items: Sequence[dict[str, Any]], *names: str) -> list[tuple[str, ...]]:
    """The wanted parts of each item; what else stands there is not looked at."""
    for item in items:
        if missing := [name for name in names if not isinstance(item.get(name), str)]:
            raise Refused(f"each one needs {', '.join(names)} as texts; {missing[0]} is missing")
    return [tuple(item[name] for name in names) for item in items]


def _people(passengers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    names = ("first_name", "last_name", "dob")
    return [dict(zip(names, one, strict=True)) for one in _named(passengers, *names)]


def _payments(given: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Ids and amounts. An amount below zero would pay one method from another."""
    for one in given:
        amount = one.get("amount")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1e9:
            raise Refused("each payment needs an amount that is a number of at least 0")
    return [(name, one["amount"]) for (name,), one in zip(_named(given, "payment_id"), given, strict=True)]
