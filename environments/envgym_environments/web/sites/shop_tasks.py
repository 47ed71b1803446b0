"""What is asked in the shop: to buy, choose, compare, review, cancel, and to find something out."""

import sqlite3

import numpy as np

from envgym_environments.web.sites.goals import Do, Goal, choose, click, fill, pick, press, tries
from envgym_environments.web.sites.shop import RANGE, SHIPPING, SHOP, SORTS
from envgym_environments.words import TODAY, some

__all__ = ["SHOP"]

_SEARCH = f"Search {SHOP.title}"


def _to(name: str) -> tuple[Do, ...]:
    """How one gets to a product."""
    return fill(_SEARCH, name), press("Search"), click(name)


def _some(db: sqlite3.Connection, rng: np.random.Generator, count: int, where: str = "1") -> list[sqlite3.Row]:
    return some(rng, db.execute(f"SELECT * FROM product WHERE {where} ORDER BY id").fetchall(), count)


@SHOP.kind("buy")
def _buy(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """One to three products, to one of the addresses."""
    rows = _some(db, rng, int(rng.integers(1, 4)), "stock >= 4")
    counts = [int(rng.integers(1, 4)) for _ in rows]
    goods = ", ".join(f"{count} x {row['name']}" for row, count in zip(rows, counts, strict=True))
    steps: tuple[Do, ...] = ()
    for row, count in zip(rows, counts, strict=True):
        steps += (*_to(row["name"]), fill("Quantity", count), press("Add to cart"))
    return _ordered(db, rng, f"Order {goods}", list(zip(rows, counts, strict=True)), steps)


@SHOP.kind("buy-best")
def _buy_best(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """The cheapest of its kind that is in stock and good enough."""
    for _ in tries():
        thing = pick(rng, " ".join(RANGE.values()).split())
        stars = int(rng.integers(2, 5))
        rows = db.execute(
            "SELECT * FROM product WHERE name LIKE ? AND rating >= ? ORDER BY price, id", (f"% {thing}", stars)
        ).fetchall()
        good = [row for row in rows if row["stock"]]
        if len(rows) >= 2 and good and sum(row["price"] == good[0]["price"] for row in good) == 1:
            break
    steps = (
        click("Products"), fill("Words", thing), choose("Least rating", str(stars)),
        choose("Sort by", "Price, lowest first"), press("Apply"), click(good[0]["name"]), press("Add to cart"),
    )  # fmt: skip
    asked = f"Order the cheapest {thing.lower()} that is in stock and rated at least {stars}"
    return _ordered(db, rng, asked, [(good[0], 1)], steps)


def _ordered(
    db: sqlite3.Connection,
    rng: np.random.Generator,
    asked: str,
    goods: list[tuple[sqlite3.Row, int]],
    steps: tuple[Do, ...],
) -> Goal:
    label = pick(rng, [row[0] for row in db.execute("SELECT label FROM address ORDER BY label")])
    way, note = pick(rng, list(SHIPPING)), pick(rng, ("", "", "Ring twice", "Leave it at the gate", "Call first"))
    total = sum(row["price"] * count for row, count in goods) + SHIPPING[way]
    order = db.execute("SELECT MAX(id) + 1 FROM purchase").fetchone()[0]
    changes: list[tuple[str, tuple[object, ...]]] = [
        ("INSERT INTO purchase VALUES (?,?,?,?,?,'open',?)", (order, TODAY.isoformat(), label, way, total, note))
    ]
    for row, count in goods:
        changes.append(("INSERT INTO line VALUES (?,?,?,?)", (order, row["id"], count, row["price"])))
        changes.append(("UPDATE product SET stock = stock - ? WHERE id = ?", (count, row["id"])))
    noted = (fill("Note for the driver", note),) if note else ()
    said = f", with the note '{note}' for the driver" if note else ""
    return Goal(
        f"{asked}, to the address '{label}', shipping: {way}{said}. Nothing else may be in that order.",
        (*steps, click("Go to checkout"), choose("Deliver to", label), choose("Shipping", way), *noted,
         press("Place order")),
        tuple(changes),
    )  # fmt: skip


@SHOP.kind("count")
def _count(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """How many there are of a category, or brand, up to a price."""
    for _ in tries():
        category, most = pick(rng, list(RANGE)), int(rng.integers(3, 13)) * 10
        found = db.execute(
            "SELECT COUNT(*) FROM product WHERE category = ? AND price <= ?", (category, most * 100)
        ).fetchone()[0]
        if found:
            break
    return Goal(
        f"How many products of the category {category} cost at most {most}.00? Answer with the number.",
        (click("Products"), choose("Category", category), fill("Most to pay", most), press("Apply")),
        answer=int(found),
    )


@SHOP.kind("order-total")
def _order_total(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """What an order cost that is known by something that was in it."""
    row = pick(rng, _ordered_once(db, "1"))
    return Goal(
        f"You once ordered the {row['name']}. What was the total of that order, in euros?",
        (click("Orders"), click(f"Order {row['purchase']}")),
        answer=row["total"] / 100,
    )


def _ordered_once(db: sqlite3.Connection, where: str) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT name, purchase, total, status, COUNT(*) AS times FROM line JOIN product p ON p.id = product "
        f"JOIN purchase o ON o.id = purchase GROUP BY product HAVING times = 1 AND {where} ORDER BY product"
    ).fetchall()


@SHOP.kind("cancel")
def _cancel(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Cancel the open order in which something is."""
    row = pick(rng, _ordered_once(db, "status = 'open'"))
    return Goal(
        f"You no longer need the {row['name']} that you have ordered. Cancel the order that it is in.",
        (click("Orders"), click(f"Order {row['purchase']}"), press("Cancel this order")),
        (("UPDATE purchase SET status = 'cancelled' WHERE id = ?", (row["purchase"],)),),
    )


@SHOP.kind("review")
def _review(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Say what one thinks of a product."""
    (row,), stars = _some(db, rng, 1), int(rng.integers(1, 6))
    text = " ".join(some(rng, ("Well made.", "It squeaks.", "Arrived late.", "Just right.", "My cat loves it."), 2))
    return Goal(
        f"Review the {row['name']} with {stars} of 5 stars and exactly these words: {text}",
        (*_to(row["name"]), choose("Stars", str(stars)), fill("Your review", text), press("Send review")),
        (("INSERT INTO review (product, author, day, stars, text) VALUES (?,?,?,?,?)",
          (row["id"], SHOP.me, TODAY.isoformat(), stars, text)),),
    )  # fmt: skip


@SHOP.kind("wish")
def _wish(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Put all that fit a description on the wish list."""
    for _ in tries():
        (one,) = _some(db, rng, 1)
        rows = db.execute(
            "SELECT * FROM product WHERE category = ? AND brand = ? AND rating >= 3 ORDER BY name",
            (one["category"], one["brand"]),
        ).fetchall()
        if 2 <= len(rows) <= 3:
            break
    steps = tuple(step for row in rows for step in (*_to(row["name"]), press("Add to wish list")))
    return Goal(
        f"Put every product of {one['brand']} in the category {one['category']} that is rated 3 or better on your "
        "wish list, and nothing else.",
        steps,
        tuple(("INSERT INTO wish VALUES (?)", (row["id"],)) for row in rows),
    )


@SHOP.kind("show")
def _show(db: sqlite3.Connection, rng: np.random.Generator) -> Goal:
    """Have a list shown that is chosen and sorted."""
    for _ in tries():
        category, stars, sort = pick(rng, list(RANGE)), int(rng.integers(2, 5)), pick(rng, list(SORTS)[1:])
        most = int(rng.integers(5, 15)) * 10
        found = db.execute(
            "SELECT COUNT(*) FROM product WHERE category = ? AND rating >= ? AND price <= ?",
            (category, stars, most * 100),
        ).fetchone()[0]
        if 2 <= found <= 20:
            break
    return Goal(
        f"Show the products of the category {category} that cost at most {most}.00 and are rated at least {stars}, "
        f"sorted by: {sort}. Leave that list open.",
        (click("Products"), choose("Category", category), fill("Most to pay", most),
         choose("Least rating", str(stars)), choose("Sort by", sort), press("Apply")),
        shows=f"/products?category={category}&most={most}&stars={stars}&sort={sort.replace(' ', '+')}",
    )  # fmt: skip
