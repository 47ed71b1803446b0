"""What is asked of the booking site: to find, book, change, cancel, save, and to find something out."""

import datetime
import sqlite3
from urllib.parse import urlencode

import numpy as np

from envgym_environments.web.sites.booking import BOARD, BOOKING, FREE, SORTS, TOWNS
from envgym_environments.web.sites.goals import Do, Goal, choose, click, fill, pick, press, tries
from envgym_environments.words import TODAY

__all__ = ["BOOKING"]


def _later(days: int) -> str:
    return (TODAY + datetime.timedelta(days=days)).isoformat()


def _wanted(db: sqlite3.Connection, rng: np.random.Generator) -> tuple[dict[str, str], list[sqlite3.Row]]:
    """Days, a town and guests for which some rooms are free; these rooms, the cheapest first."""
    for _ in tries():
        day = int(rng.integers(2, 55))
        asked = {"town": pick(rng, TOWNS), "first": _later(day), "last": _later(day + int(rng.integers(1, 5))),
                 "guests": str(rng.integers(1, 5))}  # fmt: skip
        rows = _free(db, asked)
        if 2 <= len(rows) <= 20 and rows[0]["price"] != rows[1]["price"]:
            return asked, rows
    raise AssertionError("tries() raises at its end")


def _free(db: sqlite3.Connection, asked: dict[str, str]) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT r.*, name, stars, pets FROM room r JOIN hotel h ON h.id = r.hotel WHERE town = :town "
        f"AND guests >= CAST(:guests AS INTEGER) AND {FREE.format(first=':first', last=':last')} ORDER BY price, r.id",
        asked,
    ).fetchall()


def _search(asked: dict[str, str]) -> tuple[Do, ...]:
    return (click("Find a room"), choose("Town", asked["town"]), fill("Arrival", asked["first"]),
            fill("Departure", asked["last"]), choose("Guests", asked["guests"]))  # fmt: skip


def _said(asked: dict[str, str]) -> str:
    return f"in {asked['town']} for {asked['guests']} guests from {asked['first']} to {asked['last']}"


@BOOKING.kind("book-cheapest")
def _cheapest(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """The cheapest room that is free."""
    asked, rows = _wanted(db, rng)
    return _booked(db, rng, asked, rows[0], f"Book the cheapest free room {_said(asked)}")


@BOOKING.kind("book-named")
def _named(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """A room that is named."""
    asked, rows = _wanted(db, rng)
    row = pick(rng, rows)
    return _booked(db, rng, asked, row, f"Book the {row['kind']} room at the hotel {row['name']}, {_said(asked)}")


def _booked(
    db: sqlite3.Connection, rng: np.random.Generator, asked: dict[str, str], room: sqlite3.Row, said: str
) -> Goal:
    board, wish = pick(rng, BOARD), pick(rng, ("", "a quiet room", "late arrival", "an extra pillow"))
    more = f", with the wish '{wish}'" if wish else ""
    return Goal(
        f"{said}, meals: {board}{more}.",
        (*_search(asked), press("Find rooms"), click(f"{room['kind']} at {room['name']}"), choose("Meals", board),
         *((fill("Wishes", wish),) if wish else ()), press("Book this room")),
        (("INSERT INTO stay (room, guest, first, last, board, wish) VALUES (?,?,?,?,?,?)",
          (room["id"], BOOKING.me, asked["first"], asked["last"], board, wish)),),
    )  # fmt: skip


def _own(db: sqlite3.Connection, rng: np.random.Generator) -> sqlite3.Row:
    """A booking of one's own in a hotel where there is no other."""
    rows: list[sqlite3.Row] = db.execute(
        "SELECT s.*, name, h.id AS hotel, kind, price, COUNT(*) AS times FROM stay s JOIN room r ON r.id = s.room "
        "JOIN hotel h ON h.id = r.hotel WHERE guest = ? GROUP BY h.id HAVING times = 1 ORDER BY s.id", (BOOKING.me,)
    ).fetchall()  # fmt: skip
    return pick(rng, rows)


def _to(stay: sqlite3.Row) -> tuple[Do, ...]:
    return click("My bookings"), click(f"Booking {stay['id']}")


@BOOKING.kind("cancel")
def _cancel(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Cancel a booking."""
    stay = _own(db, rng)
    return Goal(
        f"Cancel your booking at the hotel {stay['name']}.",
        (*_to(stay), press("Cancel this booking")),
        (("UPDATE stay SET status = 'cancelled' WHERE id = ?", (stay["id"],)),),
    )


@BOOKING.kind("change")
def _change(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Stay longer, with other meals."""
    stay, more = _own(db, rng), int(rng.integers(1, 4))
    last = (datetime.date.fromisoformat(stay["last"]) + datetime.timedelta(days=more)).isoformat()
    board = pick(rng, BOARD)
    return Goal(
        f"Stay {more} nights longer at the hotel {stay['name']} than you have booked, with meals: {board}.",
        (*_to(stay), fill("Departure", last), choose("Meals", board), press("Change booking")),
        (("UPDATE stay SET last = ?, board = ? WHERE id = ?", (last, board, stay["id"])),),
    )


@BOOKING.kind("save")
def _save(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Save the hotel of a free room that has the most stars."""
    for _ in tries():
        asked, rows = _wanted(db, rng)
        best = max(rows, key=lambda row: row["stars"])
        if sum(row["stars"] == best["stars"] for row in rows) == 1:
            break
    return Goal(
        f"Of the hotels with a free room {_said(asked)}, save the one with the most stars.",
        (
            *_search(asked),
            choose("Sort by", "Stars"),
            press("Find rooms"),
            click(best["name"]),
            press("Save this hotel"),
        ),
        (("INSERT INTO saved VALUES (?)", (best["hotel"],)),),
    )


@BOOKING.kind("price")
def _price(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """What a stay would cost."""
    asked, rows = _wanted(db, rng)
    row = pick(rng, rows)
    nights = (datetime.date.fromisoformat(asked["last"]) - datetime.date.fromisoformat(asked["first"])).days
    return Goal(
        f"What would the {row['kind']} room at the hotel {row['name']} cost in all, {_said(asked)}? Do not book it.",
        (*_search(asked), press("Find rooms"), click(f"{row['kind']} at {row['name']}")),
        answer=row["price"] * nights / 100,
    )


@BOOKING.kind("count")
def _count(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """How many free rooms take pets."""
    asked, rows = _wanted(db, rng)
    return Goal(
        f"How many rooms are free {_said(asked)} in hotels that allow pets?",
        (*_search(asked), choose("Pets", "allowed"), press("Find rooms")),
        answer=sum(row["pets"] for row in rows),
    )


@BOOKING.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have the free rooms shown in another order."""
    asked, _ = _wanted(db, rng)
    sort = pick(rng, list(SORTS)[1:])
    return Goal(
        f"Show the free rooms {_said(asked)}, sorted by: {sort}. Leave that list open.",
        (*_search(asked), choose("Sort by", sort), press("Find rooms")),
        shows=f"/?{urlencode(asked | {'sort': sort})}",
    )
