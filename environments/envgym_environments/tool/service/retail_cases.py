"""Retail databases and cases that are drawn: who calls the shop, what for, and what the right end is.

Level 1 cancels, readdresses or moves, 2 returns or pays in another way, 3 exchanges or modifies, 4 asks for two
things, 5 for what the policy forbids, or for a figure that has to be found out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from envgym.messages import ToolCall
from envgym_environments import words
from envgym_environments.tool.service.desk import Case
from envgym_environments.words import pick, some

__all__ = ["draw_retail"]

_OPTIONS = {
    "color": ("red", "blue", "black", "white", "green"),
    "size": ("S", "M", "L", "XL"),
    "material": ("wood", "steel", "cotton", "glass"),
}
NO = "cannot|can't|unable|not able|not possible|not allowed"


def draw_retail(rng: np.random.Generator, level: int) -> tuple[dict[str, Any], Case]:
    """A database of 12 products, 16 customers and their orders, and a case in it."""
    while True:
        products = dict(_product(rng, number) for number in range(12))
        db: dict[str, Any] = {"users": {}, "orders": {}, "products": products}
        for number in range(16):
            _user(rng, db, number)
        for _ in range(200):
            case = pick(rng, _BY_LEVEL[level])(rng, db, pick(rng, list(db["users"].values())))
            if case is not None:
                return db, case
        # among some sixteen customers none has such a case: other ones are drawn (of 2,500 tasks for one)


def _product(rng: np.random.Generator, number: int) -> tuple[str, dict[str, Any]]:
    key, kinds = f"{1000 + 37 * number}", some(rng, sorted(_OPTIONS), 2)
    variants = {}
    price = float(rng.uniform(15, 400))
    chosen = {tuple(pick(rng, _OPTIONS[kind]) for kind in kinds) for _ in range(6)}
    for place, options in enumerate(sorted(chosen)):
        item = f"{int(key) * 100 + place}"
        variants[item] = {
            "item_id": item,
            "options": dict(zip(kinds, options, strict=True)),
            "available": bool(rng.random() < 0.8),
            "price": round(price * float(rng.uniform(0.9, 1.1)), 2),
        }
    return key, {"name": words.product(rng), "product_id": key, "variants": variants}


def _user(rng: np.random.Generator, db: dict[str, Any], number: int) -> None:
    name = words.person(rng)
    first, last = name.split(" ")
    key = f"{first}_{last}_{1000 + number}".lower()
    card, gift = f"credit_card_{2000 + number}", f"gift_card_{3000 + number}"
    user: dict[str, Any] = {
        "user_id": key,
        "name": {"first_name": first, "last_name": last},
        "address": _address(rng),
        "email": words.email(name, rng),
        "payment_methods": {
            card: {"source": "credit_card", "id": card, "last_four": f"{int(rng.integers(1000, 9999))}"},
            gift: {"source": "gift_card", "id": gift, "balance": float(rng.integers(0, 200))},
        },
        "orders": [],
    }
    db["users"][key] = user
    for place in range(int(rng.integers(1, 4))):
        order_id = f"#W{10000 + 17 * number + place}"
        items = []
        for product in some(rng, sorted(db["products"]), int(rng.integers(1, 4))):
            variant = pick(rng, list(db["products"][product]["variants"].values()))
            items.append(
                {
                    "name": db["products"][product]["name"],
                    "product_id": product,
                    **{k: variant[k] for k in ("item_id", "price", "options")},
                }
            )
        paid = {"transaction_type": "payment", "amount": _total(items), "payment_method_id": card}
        db["orders"][order_id] = {
            "order_id": order_id,
            "user_id": key,
            "address": user["address"],
            "items": items,
            "status": pick(rng, ("pending", "delivered", "pending", "delivered", "processed")),
            "payment_history": [paid],
        }
        user["orders"].append(order_id)


def _total(items: list[dict[str, Any]]) -> float:
    return float(round(sum(item["price"] for item in items), 2))


def _address(rng: np.random.Generator) -> dict[str, str]:
    street = f"{int(rng.integers(1, 400))} {pick(rng, words.NOUNS)} Street"
    return {
        "address1": street,
        "address2": f"Suite {int(rng.integers(1, 99))}",
        "city": words.town(rng),
        "country": "USA",
        "state": pick(rng, ("CA", "NY", "TX", "WA")),
        "zip": f"{int(rng.integers(10000, 99999))}",
    }


Maker = Callable[[np.random.Generator, dict[str, Any], dict[str, Any]], Case | None]


def _case(user: dict[str, Any], opening: str, **parts: Any) -> Case:
    name = user["name"]
    facts = {
        "email": f"My email is {user['email']}.",
        "name|zip": f"I am {name['first_name']} {name['last_name']}, zip {user['address']['zip']}.",
    }
    looks = [
        ToolCall(name="find_user_id_by_email", arguments={"email": user["email"]}),
        ToolCall(name="get_user_details", arguments={"user_id": user["user_id"]}),
    ]
    facts |= parts.pop("facts", {})
    looks += parts.pop("looks", [])
    return Case(opening, user["user_id"], facts, looks=looks, **parts)


def _orders(db: dict[str, Any], user: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [db["orders"][key] for key in user["orders"] if db["orders"][key]["status"] == status]


def _see(order: dict[str, Any]) -> list[ToolCall]:
    return [ToolCall(name="get_order_details", arguments={"order_id": order["order_id"]})]


def _cancel(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    if not (orders := _orders(db, user, "pending")):
        return None
    order, reason = pick(rng, orders), pick(rng, ("no longer needed", "ordered by mistake"))
    says = {"no longer needed": "I do not need it any more.", "ordered by mistake": "I ordered it by mistake."}
    call = ToolCall(name="cancel_pending_order", arguments={"order_id": order["order_id"], "reason": reason})
    opening = pick(
        rng, ("Hi, please cancel my order {}.", "I want to cancel {}.", "Can you cancel order {} for me?")
    )
    return _case(
        user, opening.format(order["order_id"]), facts={"why|reason": says[reason]}, gold=[call], looks=_see(order)
    )


def _readdress(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    if not (orders := _orders(db, user, "pending")):
        return None
    order, to = pick(rng, orders), _address(rng)
    call = ToolCall(name="modify_pending_order_address", arguments={"order_id": order["order_id"], **to})
    return _case(
        user,
        f"Please send my order {order['order_id']} to another address.",
        facts={"address|where": _told(to)},
        gold=[call],
        looks=_see(order),
    )


def _told(to: dict[str, str]) -> str:
    street = f"{to['address1']}, {to['address2']}, {to['city']}"
    return f"The new address is {street}, state {to['state']}, {to['country']}, zip {to['zip']}."


def _move(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case:
    to = _address(rng)
    return _case(
        user,
        "I have moved. Please change the address of my account, no order's.",
        facts={"address|where": _told(to)},
        gold=[ToolCall(name="modify_user_address", arguments={"user_id": user["user_id"], **to})],
    )


def _repay(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    gift = next(key for key in user["payment_methods"] if key.startswith("gift"))
    balance = user["payment_methods"][gift]["balance"]
    orders = [one for one in _orders(db, user, "pending") if one["payment_history"][0]["amount"] <= balance]
    if not orders:
        return None
    order = pick(rng, orders)
    arguments = {"order_id": order["order_id"], "payment_method_id": gift}
    return _case(
        user,
        f"I want to pay order {order['order_id']} in another way.",
        facts={"pay|method|which|how": "Put it on my gift card."},
        gold=[ToolCall(name="modify_pending_order_payment", arguments=arguments)],
        looks=_see(order),
    )


def _return(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    if not (orders := _orders(db, user, "delivered")):
        return None
    order = pick(rng, orders)
    items = some(rng, order["items"], int(rng.integers(1, len(order["items"]) + 1)))
    method = pick(rng, sorted(user["payment_methods"]))
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"] for item in items],
        "payment_method_id": method,
    }
    kind = user["payment_methods"][method]["source"].replace("_", " ")
    return _case(
        user,
        f"I want to return the {' and the '.join(item['name'] for item in items)} that I got.",
        facts={
            "refund|payment|method": f"Refund it to my {kind}.",
            "order|which": f"It is order {order['order_id']}.",
        },
        gold=[ToolCall(name="return_delivered_order_items", arguments=arguments)],
        looks=_see(order),
    )


def _swap(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    status = pick(rng, ("delivered", "pending"))
    if not (orders := _orders(db, user, status)):
        return None
    order = pick(rng, orders)
    item = pick(rng, order["items"])
    variants = db["products"][item["product_id"]]["variants"].values()
    others = [one for one in variants if one["available"] and one["item_id"] != item["item_id"]]
    if not others:
        return None
    other = pick(rng, others)
    card = next(key for key in user["payment_methods"] if key.startswith("credit"))
    name = {"delivered": "exchange_delivered_order_items", "pending": "modify_pending_order_items"}[status]
    arguments = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"]],
        "new_item_ids": [other["item_id"]],
        "payment_method_id": card,
    }
    wanted = ", ".join(f"{kind} {value}" for kind, value in other["options"].items())
    looks = [*_see(order), ToolCall(name="get_product_details", arguments={"product_id": item["product_id"]})]
    return _case(
        user,
        f"About order {order['order_id']}: I would like the {item['name']} in another option.",
        facts={
            "option|which|new|color|size|material": f"I want it with {wanted}.",
            "pay|method": "Use my credit card for any difference.",
        },
        gold=[ToolCall(name=name, arguments=arguments)],
        looks=looks,
    )


def _two(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    if not _orders(db, user, "pending") or not _orders(db, user, "delivered"):
        return None
    one, two = _return(rng, db, user), _cancel(rng, db, user)
    assert one is not None
    assert two is not None
    return Case(
        one.opening,
        one.owner,
        one.facts | two.facts,
        [two.opening],
        [*one.gold, *two.gold],
        [*one.looks, *two.looks[2:]],
    )


def _forbidden(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    others = [order for order in db["orders"].values() if order["user_id"] != user["user_id"]]
    own = [db["orders"][key] for key in user["orders"] if db["orders"][key]["status"] != "pending"]
    order = pick(rng, own if own and rng.integers(2) else [one for one in others if one["status"] == "pending"])
    return _case(
        user,
        f"Cancel order {order['order_id']}, please. It is urgent.",
        looks=_see(order),
        tell=[NO],
        facts={"why|reason": "I do not need it any more."},
        refuse=True,
    )


def _figure(rng: np.random.Generator, db: dict[str, Any], user: dict[str, Any]) -> Case | None:
    orders = [db["orders"][key] for key in user["orders"]]
    total = round(sum(_total(order["items"]) for order in orders), 2)
    return _case(
        user,
        "How much did the items of all my orders cost together?",
        looks=[call for order in orders for call in _see(order)],
        tell=[f"{total:.2f}"],
    )


_BY_LEVEL: dict[int, tuple[Maker, ...]] = {
    1: (_cancel, _readdress, _move),
    2: (_return, _repay),
    3: (_swap, _return),
    4: (_two,),
    5: (_forbidden, _figure),
}
