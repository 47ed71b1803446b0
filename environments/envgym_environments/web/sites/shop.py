"""A shop: search, filters, reviews, a wish list, a cart, a checkout, and orders that can be cancelled."""

import sqlite3

import numpy as np
from werkzeug.wrappers import Response

from envgym_environments.web.sites.frame import Refused, Site, Visit
from envgym_environments.words import TODAY, date, person, pick, some, town

__all__ = ["RANGE", "SHIPPING", "SHOP", "SORTS"]

RANGE = {
    "Kitchen": "Kettle Skillet Teapot Blender Toaster Pan Mug Knife",
    "Outdoor": "Tent Hammock Lantern Backpack Stool Tripod",
    "Home": "Lamp Rug Mirror Vase Clock Blanket Pillow Candle",
    "Office": "Desk Chair Monitor Keyboard Printer Notebook",
    "Clothing": "Jacket Scarf Gloves Coat Shoes",
}
_LINES = ["Alpine", "Amber", "Aurora", "Birch", "Classic", "Compact", "Copper", "Coral", "Delta", "Ember", "Frost", "Granite", "Harbor", "Indigo", "Linen", "Lunar", "Maple", "Nordic", "Opal", "Polar", "River", "Sierra", "Summit", "Urban", "Velvet"]  # fmt: skip
_BRANDS = ("Halden", "Orvik", "Tamsin & Co", "Brightwell", "Kestrel", "Nomura", "Lindqvist", "Sable")
_COLOURS = ("black", "white", "blue", "green", "red", "grey")
SHIPPING = {"Standard": 490, "Express": 1290, "Pick-up": 0}
SORTS = {
    "Name": "name",
    "Price, lowest first": "price",
    "Price, highest first": "price DESC",
    "Rating": "rating DESC",
}
_PRAISE = ("Does what it should.", "Smaller than I thought.", "Would buy it again.", "The colour is a little off.",
           "A gift, and it was liked.", "Broke after a month.", "Solid work for the price.")  # fmt: skip

SHOP = Site(
    name="shop",
    title="Harbour Supplies",
    me="Robin Vale",
    search="/products",
    nav={"Products": "/products", "Cart": "/cart", "Wish list": "/wishes", "Orders": "/orders"},
    schema="""
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, category TEXT NOT NULL, brand TEXT NOT NULL,
  colour TEXT NOT NULL, price INTEGER NOT NULL, rating REAL NOT NULL, stock INTEGER NOT NULL, about TEXT NOT NULL);
CREATE TABLE review (id INTEGER PRIMARY KEY, product INTEGER NOT NULL REFERENCES product, author TEXT NOT NULL,
  day TEXT NOT NULL, stars INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE cart (product INTEGER PRIMARY KEY REFERENCES product, quantity INTEGER NOT NULL);
CREATE TABLE wish (product INTEGER PRIMARY KEY REFERENCES product);
CREATE TABLE address (label TEXT PRIMARY KEY, street TEXT NOT NULL, town TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE purchase (id INTEGER PRIMARY KEY, day TEXT NOT NULL, address TEXT NOT NULL, shipping TEXT NOT NULL,
  total INTEGER NOT NULL, status TEXT NOT NULL, note TEXT NOT NULL DEFAULT '');
CREATE TABLE line (purchase INTEGER NOT NULL REFERENCES purchase, product INTEGER NOT NULL REFERENCES product,
  quantity INTEGER NOT NULL, price INTEGER NOT NULL, PRIMARY KEY (purchase, product)) WITHOUT ROWID;
""",
    templates={
        "home": """<p>Good things for the house and the way.</p>
<ul>{% for row in categories %}<li><a href="/products?{{ {'category': row.category}|urlencode }}">{{ row.category }}</a>
<span class="soft">{{ row.number }} products</span></li>{% endfor %}</ul>""",
        "products": """
<form class="row" action="/products">
{{ text("Words", "q", args.q, "search") }}{{ pick("Category", "category", categories, args.category, "All") }}
{{ pick("Brand", "brand", brands, args.brand, "All") }}{{ text("Most to pay", "most", args.most, "number") }}
{{ pick("Least rating", "stars", ["2", "3", "4"], args.stars, "Any") }}{{ pick("Sort by", "sort", sorts, args.sort) }}
<button>Apply</button></form>
<table><thead><tr><th>Product</th><th>Brand</th><th>Colour</th><th>Price</th><th>Rating</th><th>Stock</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/products/{{ row.id }}">{{ row.name }}</a></td>
<td>{{ row.brand }}</td><td>{{ row.colour }}</td><td>{{ row.price|euros }}</td><td>{{ row.rating }}</td>
<td>{{ row.stock or "sold out" }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, args) }}""",
        "product": """
<p>{{ p.about }}</p><table><tr><th>Brand</th><td>{{ p.brand }}</td></tr><tr><th>Category</th><td>{{ p.category }}</td></tr>
<tr><th>Colour</th><td>{{ p.colour }}</td></tr><tr><th>Price</th><td>{{ p.price|euros }}</td></tr>
<tr><th>Rating</th><td>{{ p.rating }}</td></tr><tr><th>In stock</th><td>{{ p.stock }}</td></tr></table>
{% if p.stock %}<form class="row" method="post" action="/cart/add"><input type="hidden" name="product" value="{{ p.id }}">
{{ amount("Quantity", "Quantity", 1, 1, p.stock, "quantity") }}<button>Add to cart</button></form>
{% else %}<p>Sold out.</p>{% endif %}
{% if wished %}{{ act("/wishes/remove", "Remove from wish list", {"product": p.id}) }}
{% else %}{{ act("/wishes/add", "Add to wish list", {"product": p.id}) }}{% endif %}
<h2>Reviews</h2>{% for r in reviews %}<article><p><b>{{ r.author }}</b> gave {{ r.stars }} of 5 on {{ r.day }}</p>
<p>{{ r.text }}</p></article>{% else %}<p class="soft">None yet.</p>{% endfor %}
<h2>Write a review</h2><form method="post" action="/products/{{ p.id }}/reviews">
{{ pick("Stars", "Stars", [1, 2, 3, 4, 5], 5) }}{{ area("Your review", "Your review") }}<button>Send review</button></form>
""",
        "cart": """{% if rows %}
<table><thead><tr><th>Product</th><th>Price</th><th>Quantity</th><th></th></tr></thead><tbody>{% for row in rows %}
<tr data-entry="{{ row.id }}"><td><a href="/products/{{ row.id }}">{{ row.name }}</a></td><td>{{ row.price|euros }}</td>
<td><form class="row" method="post" action="/cart/set"><input type="hidden" name="product" value="{{ row.id }}">
<label>Quantity of {{ row.name }} <input type="number" name="Quantity" value="{{ row.quantity }}" min="1" max="{{ row.stock }}"></label>
<button class="small">Update {{ row.name }}</button></form></td>
<td>{{ act("/cart/remove", "Remove " ~ row.name, {"product": row.id}) }}</td></tr>{% endfor %}</tbody></table>
<p>Sum: {{ total|euros }}</p><p><a href="/checkout">Go to checkout</a></p>
{% else %}<p>Your cart is empty.</p>{% endif %}""",
        "checkout": """<p>Goods: {{ total|euros }}</p>
<form method="post" action="/checkout">{{ pick("Deliver to", "Deliver to", addresses) }}
{{ pick("Shipping", "Shipping", shipping) }}{{ text("Note for the driver", "Note") }}
<p class="soft">{% for name, cents in shipping.items() %}{{ name }}: {{ cents|euros }}. {% endfor %}</p>
<button>Place order</button></form>""",
        "orders": """
<label>Filter these rows <input data-filter="#orders"></label>
<table id="orders"><thead><tr><th>Order</th><th>Day</th><th>Goods</th><th>To</th><th>Total</th><th>Status</th></tr></thead><tbody>
{% for row in list.rows %}<tr data-entry="{{ row.id }}"><td><a href="/orders/{{ row.id }}">Order {{ row.id }}</a></td>
<td>{{ row.day }}</td><td>{{ row.goods }}</td><td>{{ row.address }}</td><td>{{ row.total|euros }}</td>
<td>{{ row.status }}</td></tr>{% endfor %}</tbody></table>{{ pages(list, {}) }}""",
        "order": """<p>Of {{ o.day }}, to {{ o.address }} by {{ o.shipping }}. Status: {{ o.status }}.</p>
{% if o.note %}<p>Note: {{ o.note }}</p>{% endif %}<table><tbody>{% for l in lines %}<tr data-entry="{{ l.id }}">
<td><a href="/products/{{ l.id }}">{{ l.name }}</a></td><td>{{ l.quantity }}</td><td>{{ l.price|euros }}</td></tr>{% endfor %}
</tbody></table><p>Total: {{ o.total|euros }}</p>
{% if o.status == "open" %}{{ act("/orders/" ~ o.id ~ "/cancel", "Cancel this order") }}{% endif %}""",
        "wishes": """<ul>{% for row in rows %}<li data-entry="{{ row.id }}">
<a href="/products/{{ row.id }}">{{ row.name }}</a> {{ row.price|euros }}
{{ act("/wishes/remove", "Remove " ~ row.name, {"product": row.id}) }}</li>
{% else %}<li>Nothing yet.</li>{% endfor %}</ul>""",
    },
)


def _fill(db: sqlite3.Connection, rng: np.random.Generator) -> None:
    """Some 150 products with reviews, and the customer's past orders."""
    number = 0
    for category, goods in RANGE.items():
        for thing in goods.split():
            base = int(rng.integers(8, 120)) * 100
            for line in some(rng, _LINES, 5):
                number += 1
                price = base + int(rng.integers(-6, 40)) * 50 + 490 + 10 * (number % 9)
                values = (f"{line} {thing}", category, pick(rng, _BRANDS), pick(rng, _COLOURS), price)
                rating, stock = (
                    int(rng.integers(20, 51)) / 10,
                    int(rng.integers(0, 30)) if rng.random() < 0.9 else 0,
                )
                about = f"{line} {thing}: {pick(rng, ('made to last', 'light and strong', 'our oldest design', 'new this year'))}."
                db.execute(
                    "INSERT INTO product VALUES (?,?,?,?,?,?,?,?,?)", (number, *values, rating, stock, about)
                )
                for _ in range(int(rng.integers(0, 4))):
                    review = (number, person(rng), date(rng), int(rng.integers(1, 6)), pick(rng, _PRAISE))
                    db.execute("INSERT INTO review (product, author, day, stars, text) VALUES (?,?,?,?,?)", review)
    for label in ("Home", "Office", "Parents"):
        db.execute(
            "INSERT INTO address VALUES (?,?,?)",
            (label, f"{pick(rng, _LINES)} Road {int(rng.integers(1, 90))}", town(rng)),
        )
    for day in sorted(date(rng, -300, -1) for _ in range(14)):
        way = pick(rng, list(SHIPPING))
        order = db.execute(
            "INSERT INTO purchase (day, address, shipping, total, status) VALUES (?,?,?,0,?)",
            (day, pick(rng, ("Home", "Office", "Parents")), way,
             pick(rng, ("open", "open", "delivered", "cancelled"))),
        ).lastrowid  # fmt: skip
        for product in some(rng, range(1, number + 1), int(rng.integers(1, 4))):
            db.execute(
                "INSERT INTO line SELECT ?, id, ?, price FROM product WHERE id = ?",
                (order, int(rng.integers(1, 4)), product),
            )
        db.execute(
            "UPDATE purchase SET total = ? + (SELECT SUM(quantity * price) FROM line WHERE line.purchase = purchase.id) "
            "WHERE id = ?", (SHIPPING[way], order)
        )  # fmt: skip


SHOP.fill = _fill


@SHOP.get("/")
def _home(visit: Visit) -> Response:
    rows = visit.all("SELECT category, COUNT(*) AS number FROM product GROUP BY category ORDER BY category")
    return visit.show("home", title="Welcome", categories=rows)


@SHOP.get("/products")
def _products(visit: Visit) -> Response:
    args = {name: visit.arg(name) for name in ("q", "category", "brand", "most", "stars", "sort")}
    where: list[str] = ["1"]
    given: list[str | int] = []
    for word in args["q"].split():
        where.append("(name LIKE ? OR about LIKE ? OR brand LIKE ?)")
        given += [f"%{word}%"] * 3
    for name, test in (("category", "category = ?"), ("brand", "brand = ?")):
        if args[name]:
            where.append(test)
            given.append(args[name])
    if (most := visit.number("most")) is not None:
        where.append("price <= ?")
        given.append(most * 100)
    if (stars := visit.number("stars")) is not None:
        where.append("rating >= ?")
        given.append(stars)
    order = SORTS.get(args["sort"], "name")
    listed = visit.paged(f"SELECT * FROM product WHERE {' AND '.join(where)} ORDER BY {order}, id", *given)
    brands = [row[0] for row in visit.all("SELECT DISTINCT brand FROM product ORDER BY brand")]
    return visit.show(
        "products", title="Products", list=listed, args=args, categories=list(RANGE), brands=brands, sorts=SORTS
    )


@SHOP.get("/products/<int:product>")
def _product(visit: Visit, product: int) -> Response:
    row = visit.one("SELECT * FROM product WHERE id = ?", product)
    reviews = visit.all("SELECT * FROM review WHERE product = ? ORDER BY day DESC, id DESC", product)
    wished = visit.all("SELECT 1 FROM wish WHERE product = ?", product)
    return visit.show("product", title=row["name"], p=row, reviews=reviews, wished=bool(wished))


@SHOP.post("/products/<int:product>/reviews")
def _review(visit: Visit, product: int) -> Response:
    stars, text = visit.amount("Stars", 1, 5), visit.field("Your review")
    visit.one("SELECT 1 FROM product WHERE id = ?", product)
    visit.change(_REVIEW, product, SHOP.me, TODAY.isoformat(), stars, text)
    return visit.go(f"/products/{product}", "Thank you for your review.")


_REVIEW = "INSERT INTO review (product, author, day, stars, text) VALUES (?,?,?,?,?)"


@SHOP.get("/cart")
def _cart(visit: Visit) -> Response:
    rows = visit.all("SELECT p.*, quantity FROM cart JOIN product p ON p.id = product ORDER BY name")
    return visit.show("cart", title="Cart", rows=rows, total=_sum(visit))


def _sum(visit: Visit) -> int:
    return int(visit.value("SELECT COALESCE(SUM(quantity * price), 0) FROM cart JOIN product p ON p.id = product"))


def _asked(visit: Visit) -> sqlite3.Row:
    product = visit.amount("product", 1, 10**8)
    return visit.one("SELECT * FROM product WHERE id = ?", product)


@SHOP.post("/cart/add")
def _add(visit: Visit) -> Response:
    row = _asked(visit)
    there = visit.all("SELECT quantity FROM cart WHERE product = ?", row["id"])
    wanted = visit.amount("Quantity", 1, 999) + (there[0][0] if there else 0)
    _put(visit, row, wanted)
    return visit.go("/cart", f"{row['name']} is in your cart.")


@SHOP.post("/cart/set")
def _set(visit: Visit) -> Response:
    row = _asked(visit)
    _put(visit, row, visit.amount("Quantity", 1, 999))
    return visit.go("/cart", f"{row['name']} was updated.")


def _put(visit: Visit, row: sqlite3.Row, quantity: int) -> None:
    if quantity > row["stock"]:
        raise Refused(f"only {row['stock']} of {row['name']} are in stock.")
    visit.change("INSERT OR REPLACE INTO cart VALUES (?, ?)", row["id"], quantity)


@SHOP.post("/cart/remove")
def _remove(visit: Visit) -> Response:
    visit.change("DELETE FROM cart WHERE product = ?", _asked(visit)["id"])
    return visit.go("/cart", "Removed.")


@SHOP.get("/checkout")
def _checkout(visit: Visit) -> Response:
    labels = [row[0] for row in visit.all("SELECT label FROM address ORDER BY label")]
    return visit.show("checkout", title="Checkout", total=_sum(visit), addresses=labels, shipping=SHIPPING)


@SHOP.post("/checkout")
def _buy(visit: Visit) -> Response:
    label = visit.choice("Deliver to", [row[0] for row in visit.all("SELECT label FROM address")])
    shipping, note = visit.choice("Shipping", SHIPPING), visit.optional("Note")[:200]
    if not visit.all("SELECT 1 FROM cart"):
        raise Refused("your cart is empty.")
    for row in visit.all(
        "SELECT name, stock, quantity FROM cart JOIN product p ON p.id = product WHERE quantity > stock"
    ):
        raise Refused(f"only {row['stock']} of {row['name']} are left.")
    total = _sum(visit) + SHIPPING[shipping]
    number = visit.change(_PURCHASE, TODAY.isoformat(), label, shipping, total, note)
    visit.change(
        "INSERT INTO line SELECT ?, product, quantity, price FROM cart JOIN product p ON p.id = product", number
    )
    visit.change("UPDATE product SET stock = stock - (SELECT quantity FROM cart WHERE product = id) "
                 "WHERE id IN (SELECT product FROM cart)")  # fmt: skip
    visit.change("DELETE FROM cart")
    return visit.go(f"/orders/{number}", "Thank you! Your order is placed.")


_PURCHASE = "INSERT INTO purchase (day, address, shipping, total, status, note) VALUES (?,?,?,?,'open',?)"


@SHOP.get("/orders")
def _orders(visit: Visit) -> Response:
    listed = visit.paged(
        "SELECT o.*, (SELECT GROUP_CONCAT(name, ', ') FROM line JOIN product p ON p.id = product WHERE purchase = o.id) "
        "AS goods FROM purchase o ORDER BY id DESC"
    )
    return visit.show("orders", title="Orders", list=listed)


@SHOP.get("/orders/<int:order>")
def _order(visit: Visit, order: int) -> Response:
    row = visit.one("SELECT * FROM purchase WHERE id = ?", order)
    lines = visit.all(
        "SELECT p.id, name, quantity, l.price FROM line l JOIN product p ON p.id = product WHERE purchase = ?",
        order,
    )
    return visit.show("order", title=f"Order {order}", o=row, lines=lines)


@SHOP.post("/orders/<int:order>/cancel")
def _cancel(visit: Visit, order: int) -> Response:
    if visit.value("SELECT status FROM purchase WHERE id = ?", order) != "open":
        raise Refused("only open orders can be cancelled.")
    visit.change("UPDATE purchase SET status = 'cancelled' WHERE id = ?", order)
    return visit.go(f"/orders/{order}", "The order is cancelled.")


@SHOP.get("/wishes")
def _wishes(visit: Visit) -> Response:
    rows = visit.all("SELECT p.* FROM wish JOIN product p ON p.id = product ORDER BY name")
    return visit.show("wishes", title="Wish list", rows=rows)


@SHOP.post("/wishes/add")
def _wish(visit: Visit) -> Response:
    row = _asked(visit)
    visit.change("INSERT OR IGNORE INTO wish VALUES (?)", row["id"])
    return visit.go(f"/products/{row['id']}", "It is on your wish list.")


@SHOP.post("/wishes/remove")
def _unwish(visit: Visit) -> Response:
    visit.change("DELETE FROM wish WHERE product = ?", _asked(visit)["id"])
    return visit.go("/wishes", "Removed from your wish list.")
