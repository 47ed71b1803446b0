"""A booking site: hotels and their rooms in towns, free nights, booking, changing and cancelling."""

import datetime
import sqlite3

import numpy as np
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import TODAY, pick, some

__all__ = ["BOARD", "BOOKING", "FREE", "SORTS", "TOWNS"]

TOWNS = ("Bergen", "Ghent", "Graz", "Lyon", "Porto", "Riga", "Split")
BOARD = ("none", "breakfast", "half board")
SORTS = {
    "Price, lowest first": "price, r.id",
    "Price, highest first": "price DESC, r.id",
    "Stars": "stars DESC, r.id",
}
_KINDS = {"Single": 1, "Double": 2, "Twin": 2, "Family": 4}
_HOUSES = ("Anchor", "Bell", "Crown", "Dolphin", "Eagle", "Fox", "Grove", "Heron", "Iris", "Juniper")
FREE = "NOT EXISTS (SELECT 1 FROM stay s WHERE s.room = r.id AND s.status = 'booked' AND s.first < {last} AND s.last > {first})"
"""Whether a room `r` has no booked night in between; two expressions, of ISO days, are put in."""

BOOKING = Site(
    name="booking",
    title="Nightfall Booking",
    me="Robin Vale",
    nav={"Find a room": "/", "My bookings": "/stays", "Saved hotels": "/saved"},
    schema="""
CREATE TABLE hotel (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, town TEXT NOT NULL, stars INTEGER NOT NULL,
  pets INTEGER NOT NULL, parking INTEGER NOT NULL);
CREATE TABLE room (id INTEGER PRIMARY KEY, hotel INTEGER NOT NULL REFERENCES hotel, kind TEXT NOT NULL, guests INTEGER NOT NULL,
  price INTEGER NOT NULL);
CREATE TABLE stay (id INTEGER PRIMARY KEY, room INTEGER NOT NULL REFERENCES room, guest TEXT NOT NULL, first TEXT NOT NULL,
  last TEXT NOT NULL, board TEXT NOT NULL DEFAULT 'none', wish TEXT NOT NULL DEFAULT '', status TEXT NOT NULL DEFAULT 'booked');
CREATE TABLE saved (hotel INTEGER PRIMARY KEY REFERENCES hotel);
CREATE INDEX stays ON stay (room);
""",
    templates={
        "home": """{% macro day(label, name, value) %}<label>{{ label }} <input name="{{ name }}" value="{{ value }}"
placeholder="2025-07-01"></label>{% endmacro %}
<form class="row">{{ pick("Town", "town", towns, args.town) }}{{ day("Arrival", "first", args.first) }}
{{ day("Departure", "last", args.last) }}{{ pick("Guests", "guests", [1, 2, 3, 4], args.guests) }}
{{ pick("Least stars", "stars", [2, 3, 4], args.stars, "Any") }}{{ pick("Pets", "pets", ["allowed"], args.pets, "No matter") }}
{{ pick("Sort by", "sort", sorts, args.sort) }}<button>Find rooms</button></form>
{% if list %}<table><thead><tr><th>Hotel</th><th>Stars</th><th>Room</th><th>Guests</th><th>Price a night</th><th></th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/hotels/{{ row.hotel }}">{{ row.name }}</a></td>
<td>{{ row.stars }}</td><td>{{ row.kind }}</td><td>{{ row.guests }}</td><td>{{ row.price|euros }}</td>
<td><a href="/rooms/{{ row.id }}?first={{ args.first }}&amp;last={{ args.last }}">{{ row.kind }} at {{ row.name }}</a></td></tr>
{% endfor %}</tbody></table>{{ pages(list, args) }}{% else %}<p>Days are written like 2025-07-01.</p>{% endif %}""",
        "hotel": """<p>{{ h.stars }} stars, in {{ h.town }}. Pets: {{ "allowed" if h.pets else "not allowed" }}.
Parking: {{ "free" if h.parking else "none" }}.</p><table><tbody>{% for r in rooms %}<tr data-entry="{{ r.id }}"><td>{{ r.kind }}</td>
<td>up to {{ r.guests }}</td><td>{{ r.price|euros }} a night</td></tr>{% endfor %}</tbody></table>
{% if saved %}{{ act("/hotels/" ~ h.id ~ "/unsave", "Forget this hotel") }}
{% else %}{{ act("/hotels/" ~ h.id ~ "/save", "Save this hotel") }}{% endif %}""",
        "room": """<p>Up to {{ r.guests }} guests, {{ r.price|euros }} a night. <a href="/hotels/{{ r.hotel }}">About the hotel</a></p>
{% if nights %}<p>{{ nights }} nights cost {{ (nights * r.price)|euros }}.</p>{% endif %}
<form method="post" action="/rooms/{{ r.id }}/book">{{ text("Arrival", "Arrival", first) }}{{ text("Departure", "Departure", last) }}
{{ pick("Meals", "Meals", board) }}{{ text("Wishes", "Wishes") }}<button>Book this room</button></form>""",
        "stays": """<table><thead><tr><th>Booking</th><th>Hotel</th><th>Town</th><th>Room</th><th>From</th><th>To</th><th>Status</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/stays/{{ row.id }}">Booking {{ row.id }}</a></td>
<td>{{ row.name }}</td><td>{{ row.town }}</td><td>{{ row.kind }}</td><td>{{ row.first }}</td><td>{{ row.last }}</td>
<td>{{ row.status }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, {}) }}""",
        "stay": """<p>{{ s.kind }} at <a href="/hotels/{{ s.hotel }}">{{ s.name }}</a>, {{ s.town }}, from {{ s.first }} to {{ s.last }}.
Meals: {{ s.board }}. Wishes: {{ s.wish or "none" }}. Status: {{ s.status }}. {{ nights }} nights cost {{ (nights * s.price)|euros }}.</p>
{% if s.status == "booked" %}{{ act("/stays/" ~ s.id ~ "/cancel", "Cancel this booking") }}
<form method="post" action="/stays/{{ s.id }}/change">{{ text("Arrival", "Arrival", s.first) }}{{ text("Departure", "Departure", s.last) }}
{{ pick("Meals", "Meals", board, s.board) }}<button>Change booking</button></form>{% endif %}""",
        "saved": """<ul>{% for row in rows %}<li data-entry="{{ row.id }}"><a href="/hotels/{{ row.id }}">{{ row.name }}</a>, {{ row.town }}</li>
{% else %}<li>None yet.</li>{% endfor %}</ul>""",
    },
)  # fmt: skip


def _later(days: int) -> str:
    return (TODAY + datetime.timedelta(days=days)).isoformat()


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """35 hotels with some 100 rooms; other guests have booked half of the nights to come, oneself some."""
    room = 0
    for town in TOWNS:
        for house in some(rng, _HOUSES, 5):
            stars = int(rng.integers(1, 6))
            hotel = db.execute("INSERT INTO hotel (name, town, stars, pets, parking) VALUES (?,?,?,?,?)",
                               (f"{house} {town}", town, stars, int(rng.integers(2)), int(rng.integers(2)))).lastrowid  # fmt: skip
            for kind in some(rng, list(_KINDS), int(rng.integers(2, 5))):
                room += 1
                price = 2_500 + 1_200 * stars + 900 * _KINDS[kind] + 50 * int(rng.integers(0, 60))
                db.execute("INSERT INTO room VALUES (?,?,?,?,?)", (room, hotel, kind, _KINDS[kind], price))
                day = int(rng.integers(1, 12))
                while day < 60:
                    nights = int(rng.integers(2, 7))
                    db.execute("INSERT INTO stay (room, guest, first, last) VALUES (?,?,?,?)",
                               (room, f"guest {int(rng.integers(100, 999))}", _later(day), _later(day + nights)))  # fmt: skip
                    day += nights + int(rng.integers(2, 12))
    for number in some(rng, range(1, room + 1), 7):
        day = int(rng.integers(70, 120))
        db.execute("INSERT INTO stay (room, guest, first, last, board) VALUES (?,?,?,?,?)",
                   (number, BOOKING.me, _later(day), _later(day + int(rng.integers(2, 6))), pick(rng, BOARD)))  # fmt: skip


BOOKING.fill = _fill


def _days(first: str, last: str) -> int:
    """The nights between two ISO days. Raises Refused for what are none, or not in this order."""
    try:
        one, other = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    except ValueError:
        raise Refused("days are written like 2025-07-01.") from None
    if (one.isoformat(), other.isoformat()) != (first, last) or not TODAY < one < other:
        raise Refused("the arrival must be after today, and the departure after it.")
    if (nights := (other - one).days) > 30:
        raise Refused("30 nights at most.")
    return nights


@BOOKING.get("/")
def _home(visit: Visit) -> Response:
    args = {name: visit.arg(name) for name in ("town", "first", "last", "guests", "stars", "pets", "sort")}
    listed = None
    if args["first"]:
        try:
            _days(args["first"], args["last"])
        except Refused as refused:
            return visit.show("wrong", title="Find a room", text=f"Sorry: {refused}")
        listed = visit.paged(
            "SELECT r.*, name, town, stars FROM room r JOIN hotel h ON h.id = r.hotel WHERE town = ?1 AND guests >= ?2 "
            f"AND stars >= ?3 AND (pets OR ?4 = '') AND {FREE.format(first='?5', last='?6')} "
            f"ORDER BY {SORTS.get(args['sort'], 'price, r.id')}",
            args["town"], visit.number("guests") or 1, visit.number("stars") or 0, args["pets"], args["first"], args["last"],
        )  # fmt: skip
    return visit.show("home", title="Find a room", args=args, list=listed, towns=TOWNS, sorts=SORTS)


@BOOKING.get("/hotels/<int:hotel>")
def _hotel(visit: Visit, hotel: int) -> Response:
    row = visit.one("SELECT * FROM hotel WHERE id = ?", hotel)
    rooms, saved = (
        visit.all("SELECT * FROM room WHERE hotel = ? ORDER BY id", hotel),
        visit.all("SELECT 1 FROM saved WHERE hotel = ?", hotel),
    )
    return visit.show("hotel", title=row["name"], h=row, rooms=rooms, saved=bool(saved))


@BOOKING.post("/hotels/<int:hotel>/save")
def _save(visit: Visit, hotel: int) -> Response:
    visit.one("SELECT 1 FROM hotel WHERE id = ?", hotel)
    visit.change("INSERT OR IGNORE INTO saved VALUES (?)", hotel)
    return visit.go(f"/hotels/{hotel}", "The hotel is saved.")


@BOOKING.post("/hotels/<int:hotel>/unsave")
def _unsave(visit: Visit, hotel: int) -> Response:
    visit.change("DELETE FROM saved WHERE hotel = ?", hotel)
    return visit.go(f"/hotels/{hotel}", "Forgotten.")


@BOOKING.get("/saved")
def _saved(visit: Visit) -> Response:
    rows = visit.all("SELECT h.* FROM hotel h JOIN saved ON hotel = id ORDER BY name")
    return visit.show("saved", title="Saved hotels", rows=rows)


@BOOKING.get("/rooms/<int:room>")
def _room(visit: Visit, room: int) -> Response:
    row = visit.one("SELECT r.*, name FROM room r JOIN hotel h ON h.id = hotel WHERE r.id = ?", room)
    first, last = visit.arg("first"), visit.arg("last")
    try:
        nights = _days(first, last)
    except Refused:
        nights = 0
    return visit.show(
        "room", title=f"{row['kind']} at {row['name']}", r=row, first=first, last=last, nights=nights, board=BOARD
    )


@BOOKING.post("/rooms/<int:room>/book")
def _book(visit: Visit, room: int) -> Response:
    visit.one("SELECT 1 FROM room WHERE id = ?", room)
    first, last, board = visit.field("Arrival"), visit.field("Departure"), visit.choice("Meals", BOARD)
    _days(first, last)
    _free(visit, room, first, last, 0)
    stay = visit.change("INSERT INTO stay (room, guest, first, last, board, wish) VALUES (?,?,?,?,?,?)",
                        room, BOOKING.me, first, last, board, visit.optional("Wishes")[:200])  # fmt: skip
    return visit.go(f"/stays/{stay}", "Your room is booked.")


def _free(visit: Visit, room: int, first: str, last: str, but: int) -> None:
    for _ in visit.all("SELECT 1 FROM stay WHERE room = ? AND status = 'booked' AND first < ? AND last > ? AND id != ?",
                       room, last, first, but):  # fmt: skip
        raise Refused("the room is not free then.")


_STAY = ("SELECT s.*, name, town, h.id AS hotel, kind, price FROM stay s JOIN room r ON r.id = s.room "
         "JOIN hotel h ON h.id = r.hotel WHERE guest = ?")  # fmt: skip


@BOOKING.get("/stays")
def _stays(visit: Visit) -> Response:
    listed = visit.paged(f"{_STAY} ORDER BY s.first, s.id", BOOKING.me)
    return visit.show("stays", title="My bookings", list=listed)


@BOOKING.get("/stays/<int:stay>")
def _stay(visit: Visit, stay: int) -> Response:
    row = visit.one(f"{_STAY} AND s.id = ?", BOOKING.me, stay)
    return visit.show("stay", title=f"Booking {stay}", s=row, nights=_days(row["first"], row["last"]), board=BOARD)


@BOOKING.post("/stays/<int:stay>/cancel")
def _cancel(visit: Visit, stay: int) -> Response:
    visit.one(f"{_STAY} AND s.id = ? AND s.status = 'booked'", BOOKING.me, stay)
    visit.change("UPDATE stay SET status = 'cancelled' WHERE id = ?", stay)
    return visit.go(f"/stays/{stay}", "The booking is cancelled.")


@BOOKING.post("/stays/<int:stay>/change")
def _change(visit: Visit, stay: int) -> Response:
    row = visit.one(f"{_STAY} AND s.id = ? AND s.status = 'booked'", BOOKING.me, stay)
    first, last, board = visit.field("Arrival"), visit.field("Departure"), visit.choice("Meals", BOARD)
    _days(first, last)
    _free(visit, row["room"], first, last, stay)
    visit.change("UPDATE stay SET first = ?, last = ?, board = ? WHERE id = ?", first, last, board, stay)
    return visit.go(f"/stays/{stay}", "The booking is changed.")
