"""A retailer's desk: customers, orders, products; the tables and tools of tau2's retail domain, written anew.

Having its tables, it also plays tau2's own tasks over its own database (`envgym_environments.tool.service.tau2`).
"""

import json
from typing import Any

from envgym.messages import ToolCall
from envgym_environments.tool.service.desk import Refused
from envgym_environments.tool.service.sums import calculated

__all__ = ["Retail"]


class Retail:
    """See `envgym_environments.tool.service.desk.Desk`."""

    reads = (
        "find_user_id_by_email",
        "find_user_id_by_name_zip",
        "get_user_details",
        "get_order_details",
        "get_product_details",
        "list_all_product_types",
        "calculate",
        "transfer_to_human_agents",
    )
    writes = (
        "cancel_pending_order",
        "modify_pending_order_address",
        "modify_pending_order_items",
        "modify_pending_order_payment",
        "modify_user_address",
        "return_delivered_order_items",
        "exchange_delivered_order_items",
    )
    policy = (
        "You help customers of a shop. Find out who calls, by email, or by name and zip code, before anything "
        "else, and serve only that customer. Before you change anything, say what you will do and get a yes. Only "
        "pending orders are cancelled or changed; the reason of a cancellation is 'no longer needed' or 'ordered "
        "by mistake'. Only delivered orders are returned or exchanged, once; a refund goes to the payment method "
        "of the order or to a gift card. Items are exchanged for the same product in another option only. Refuse "
        "what is against this."
    )

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def owner(self, call: ToolCall) -> str | None:
        """The customer whose order or address is changed."""
        arguments = call.arguments
        if "user_id" in arguments:
            return str(arguments["user_id"])
        order = self.db["orders"].get(str(arguments.get("order_id")))
        return None if order is None else str(order["user_id"])

    def learned(self, call: ToolCall, text: str) -> str | None:
        """The customer that was found."""
        return text if call.name.startswith("find_") else None

    def _order(self, order_id: str, status: str = "") -> dict[str, Any]:
        order: dict[str, Any] | None = self.db["orders"].get(order_id)
        if order is None:
            raise Refused("order not found")
        if status and not str(order["status"]).startswith(status):
            raise Refused(f"the order is {order['status']}, not {status}")
        return order

    def _user(self, user_id: str) -> dict[str, Any]:
        if user_id not in self.db["users"]:
            raise Refused("user not found")
        return self.db["users"][user_id]  # type: ignore[no-any-return]

    def _paying(self, order: dict[str, Any], method: str) -> dict[str, Any]:
        methods = self._user(order["user_id"])["payment_methods"]
        if method not in methods:
            raise Refused("payment method not found")
        return methods[method]  # type: ignore[no-any-return]

    # -- looking -----------------------------------------------------------------------------------------------

    def find_user_id_by_email(self, email: str) -> str:
        """Find a customer's id by email."""
        for key, user in self.db["users"].items():
            if user["email"].lower() == email.strip().lower():
                return str(key)
        raise Refused("user not found")

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a customer's id by first name, last name and zip code."""
        wanted = (first_name.strip().lower(), last_name.strip().lower(), zip.strip())
        for key, user in self.db["users"].items():
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return str(key)
        raise Refused("user not found")

    def get_user_details(self, user_id: str) -> str:
        """Show a customer: name, address, payment methods, orders."""
        return json.dumps(self._user(user_id))

    def get_order_details(self, order_id: str) -> str:
        """Show an order; its id begins with '#'."""
        return json.dumps(self._order(order_id))

    def get_product_details(self, product_id: str) -> str:
        """Show a product with all its variants."""
        if product_id not in self.db["products"]:
            raise Refused("product not found")
        return json.dumps(self.db["products"][product_id])

    def list_all_product_types(self) -> str:
        """List the names and ids of all products."""
        return json.dumps({product["name"]: key for key, product in sorted(self.db["products"].items())})

    def calculate(self, expression: str) -> str:
        """Work out a sum of numbers with + - * / and brackets."""
        return calculated(expression)

    def transfer_to_human_agents(self, summary: str) -> str:
        """Give the case to a person, who sees the summary. This ends it."""
        return "transferred"

    # -- changing ----------------------------------------------------------------------------------------------

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancel a pending order. The reason is 'no longer needed' or 'ordered by mistake'."""
        order = self._order(order_id, "pending")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise Refused("invalid reason")
        for payment in list(order["payment_history"]):
            self._pay(order, payment["payment_method_id"], -payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        return json.dumps(order)

    def _pay(self, order: dict[str, Any], method: str, amount: float) -> None:
        """Take an amount, or give it back; a gift card must hold it."""
        known, amount = self._paying(order, method), round(amount, 2)
        if known.get("source") == "gift_card":
            if known["balance"] < amount:
                raise Refused("insufficient gift card balance")
            known["balance"] = round(known["balance"] - amount, 2)
        kind = "payment" if amount >= 0 else "refund"
        order["payment_history"].append(
            {"transaction_type": kind, "amount": abs(amount), "payment_method_id": method}
        )

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the address that a pending order goes to."""
        order = self._order(order_id, "pending")
        order["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(order)

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change a customer's own address."""
        self._user(user_id)["address"] = _address(address1, address2, city, state, country, zip)
        return json.dumps(self._user(user_id))

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        """Pay a pending order with another method of its customer."""
        order = self._order(order_id, "pending")
        paid = order["payment_history"]
        if len(paid) != 1 or paid[0]["payment_method_id"] == payment_method_id:
            raise Refused("there must be one payment, by another method")
        amount, before = paid[0]["amount"], paid[0]["payment_method_id"]
        self._pay(order, payment_method_id, amount)
        self._pay(order, before, -amount)
        return json.dumps(order)

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Change items of a pending order, once, each to another option of the same product."""
        order = self._order(order_id, "pending")
        if order["status"] != "pending":
            raise Refused("the items were modified already")
        changes, difference = self._changes(order, item_ids, new_item_ids)
        self._pay(order, payment_method_id, difference)
        for item, variant in changes:
            item |= {"item_id": variant["item_id"], "price": variant["price"], "options": variant["options"]}
        order["status"] = "pending (item modified)"
        return json.dumps(order)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Exchange items of a delivered order, each for another option of the same product."""
        order = self._order(order_id, "delivered")
        _, difference = self._changes(order, item_ids, new_item_ids)
        method = self._paying(order, payment_method_id)
        if method.get("source") == "gift_card" and method["balance"] < difference:
            raise Refused("insufficient gift card balance")
        order |= {
            "status": "exchange requested",
            "exchange_items": sorted(item_ids),
            "exchange_new_items": sorted(new_item_ids),
            "exchange_payment_method_id": payment_method_id,
            "exchange_price_difference": difference,
        }
        return json.dumps(order)

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        """Return items of a delivered order; the refund goes to its payment method or a gift card."""
        order = self._order(order_id, "delivered")
        self._items(order, item_ids)
        method = self._paying(order, payment_method_id)
        if method.get("source") != "gift_card" and all(
            payment["payment_method_id"] != payment_method_id for payment in order["payment_history"]
        ):
            raise Refused("the refund must go to the order's payment method or a gift card")
        order |= {
            "status": "return requested",
            "return_items": sorted(item_ids),
            "return_payment_method_id": payment_method_id,
        }
        return json.dumps(order)

    def _items(self, order: dict[str, Any], item_ids: list[str]) -> list[dict[str, Any]]:
        left, found = list(order["items"]), []
        for wanted in item_ids:
            item = next((item for item in left if item["item_id"] == wanted), None)
            if item is None:
                raise Refused(f"item {str(wanted)[:40]} is not in the order as often")
            left.remove(item)
            found.append(item)
        if not found:
            raise Refused("no items are named")
        return found

    def _changes(
        self, order: dict[str, Any], item_ids: list[str], new_item_ids: list[str]
    ) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], float]:
        """Each item with the variant that takes its place, and the difference in price."""
        if len(item_ids) != len(new_item_ids):
            raise Refused("there must be as many new items as old ones")
        pairs = []
        for item, new in zip(self._items(order, item_ids), new_item_ids, strict=True):
            variant = self.db["products"][item["product_id"]]["variants"].get(str(new))
            if variant is None or not variant["available"]:
                raise Refused(f"new item {str(new)[:40]} is not available for this product")
            pairs.append((item, variant))
        return pairs, round(sum(variant["price"] - item["price"] for item, variant in pairs), 2)


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "country": country,
        "state": state,
        "zip": zip,
    }
