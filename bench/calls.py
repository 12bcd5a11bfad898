"""Random tool calls of each domain, most of them with ids that exist."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.contract import Domain
from worker.rollouts.environments import surface
from worker.rollouts.shared_data import shared_database


@dataclass(frozen=True)
class Made:
    """A tool call and who makes it, ``assistant`` or ``user``."""

    side: str
    name: str
    arguments: dict[str, Any]


def random_call(domain: Domain, rng: random.Random) -> Made:
    """A random call of the domain: reads, searches, and writes that no reference makes."""
    return _OF_DOMAIN[domain](rng)


def _mock(rng: random.Random) -> Made:
    database = shared_database(Domain.MOCK)
    task = rng.choice([*database.tasks, "task_2", "task_9"])
    user = rng.choice([*database.users, "user_9"])
    return rng.choice(
        [
            Made("assistant", "get_users", {}),
            Made("assistant", "create_task", {"user_id": user, "title": rng.choice("abc")}),
            Made("assistant", "update_task_status", {"task_id": task, "status": "completed"}),
            Made("assistant", "update_task_status", {"task_id": task, "status": 3}),
        ]
    )


def _airline(rng: random.Random) -> Made:
    database = shared_database(Domain.AIRLINE)
    flight = rng.choice(list(database.flights.values()))
    date = rng.choice([*flight.dates, "2024-06-01"])
    route = {"origin": flight.origin, "destination": flight.destination, "date": date}
    user = rng.choice(list(database.users.values()))
    reservation = rng.choice(list(database.reservations.values()))
    its = {"reservation_id": reservation.reservation_id}
    payment = rng.choice([*database.users[reservation.user_id].payment_methods, "cash"])
    same = [{"flight_number": f.flight_number, "date": f.date} for f in reservation.flights]
    cabin = rng.choice(["economy", "business", "basic_economy", "first", {"a": 1}])
    seat = {"flight_number": flight.flight_number, "date": date}
    return rng.choice(
        [
            Made("assistant", "search_direct_flight", route),
            Made("assistant", "search_onestop_flight", route),
            Made("assistant", "get_flight_status", seat),
            Made("assistant", "get_user_details", {"user_id": user.user_id}),
            Made("assistant", "get_reservation_details", its),
            Made("assistant", "cancel_reservation", its),
            Made("assistant", "send_certificate", {"user_id": user.user_id, "amount": 50}),
            Made("assistant", "calculate", {"expression": "2 * (3 + 4)"}),
            Made("assistant", "list_all_airports", {}),
            Made(
                "assistant",
                "update_reservation_flights",
                its | {"cabin": cabin, "flights": rng.choice([[], same]), "payment_id": payment},
            ),
            Made(
                "assistant",
                "update_reservation_baggages",
                its | {"total_baggages": 3, "nonfree_baggages": 1, "payment_id": payment},
            ),
            Made("assistant", "book_reservation", _booking(user, flight, seat, rng)),
        ]
    )


def _booking(user: Any, flight: Any, seat: dict[str, str], rng: random.Random) -> dict[str, Any]:
    """One passenger in economy, paid in full where the user's means allow it."""
    status = flight.dates.get(seat["date"])
    price = status.prices["economy"] if status is not None and status.status == "available" else 1
    return {
        "user_id": user.user_id,
        "origin": flight.origin,
        "destination": flight.destination,
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [seat],
        "passengers": [{"first_name": "A", "last_name": "B", "dob": "1990-01-01"}],
        "payment_methods": [{"payment_id": rng.choice([*user.payment_methods]), "amount": price}],
        "total_baggages": 0,
        "nonfree_baggages": 0,
        "insurance": "no",
    }


def _retail(rng: random.Random) -> Made:
    database = shared_database(Domain.RETAIL)
    user = rng.choice(list(database.users.values()))
    order = rng.choice(list(database.orders.values()))
    its = {"order_id": order.order_id}
    paid_by = rng.choice([*database.users[order.user_id].payment_methods, "cash"])
    items = [item.item_id for item in order.items]
    variants = list(database.products[order.items[0].product_id].variants)
    swap = {"item_ids": items[:1], "new_item_ids": [rng.choice(variants)]}
    address = {
        "address1": "1 Main St", "address2": "", "city": "Springfield",
        "state": "IL", "country": "USA", "zip": rng.choice(["62701", 62701]),
    }  # fmt: skip
    person = {"first_name": user.name.first_name, "last_name": user.name.last_name}
    return rng.choice(
        [
            Made("assistant", "find_user_id_by_email", {"email": user.email}),
            Made("assistant", "find_user_id_by_name_zip", person | {"zip": user.address.zip}),
            Made("assistant", "find_user_id_by_name_zip", person | {"zip": "00000"}),
            Made("assistant", "list_all_product_types", {}),
            Made("assistant", "get_user_details", {"user_id": user.user_id}),
            Made("assistant", "get_order_details", its),
            Made("assistant", "get_product_details", {"product_id": order.items[0].product_id}),
            Made("assistant", "cancel_pending_order", its | {"reason": "no longer needed"}),
            Made("assistant", "modify_pending_order_address", its | address),
            Made("assistant", "modify_user_address", {"user_id": user.user_id} | address),
            Made("assistant", "modify_pending_order_payment", its | {"payment_method_id": paid_by}),
            Made(
                "assistant",
                "modify_pending_order_items",
                its | swap | {"payment_method_id": paid_by},
            ),
            Made(
                "assistant",
                "exchange_delivered_order_items",
                its | swap | {"payment_method_id": paid_by},
            ),
            Made(
                "assistant",
                "return_delivered_order_items",
                its | {"item_ids": items[:2], "payment_method_id": paid_by},
            ),
        ]
    )


def _telecom(rng: random.Random) -> Made:
    database = shared_database(Domain.TELECOM)
    customer = rng.choice(database.customers)
    line = rng.choice([*customer.line_ids, rng.choice(database.lines).line_id])
    its = {"customer_id": customer.customer_id, "line_id": line}
    own = {"customer_id": customer.customer_id}
    bill = rng.choice([*customer.bill_ids, rng.choice(database.bills).bill_id])
    if rng.random() < 0.5:
        tool = rng.choice(surface(Domain.TELECOM).user_tools)["function"]["name"]
        return Made("user", tool, {})
    return rng.choice(
        [
            Made("assistant", "get_customer_by_phone", {"phone_number": customer.phone_number}),
            Made("assistant", "get_details_by_id", {"id": rng.choice([line, bill, "X1"])}),
            Made("assistant", "get_customer_by_id", own),
            Made("assistant", "get_bills_for_customer", own),
            Made("assistant", "get_data_usage", its),
            Made("assistant", "refuel_data", its | {"gb_amount": rng.choice([1, 2.0, -1, "2"])}),
            Made("assistant", "enable_roaming", its),
            Made("assistant", "disable_roaming", its),
            Made("assistant", "suspend_line", its | {"reason": "holiday"}),
            Made("assistant", "resume_line", its),
            Made("assistant", "send_payment_request", own | {"bill_id": bill}),
            Made("user", "make_payment", {}),
            Made("user", "connect_vpn", {}),
            Made("user", "run_speed_test", {}),
        ]
    )


_OF_DOMAIN: dict[Domain, Callable[[random.Random], Made]] = {
    Domain.MOCK: _mock,
    Domain.AIRLINE: _airline,
    Domain.RETAIL: _retail,
    Domain.TELECOM: _telecom,
}
