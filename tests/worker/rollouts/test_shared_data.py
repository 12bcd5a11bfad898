"""Conversations share a domain's data, and none sees what another did to it."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

import pytest
from pydantic import BaseModel
from tau2.data_model.message import ToolCall

from app.contract import Domain
from bench.equality import shared_data_is_unchanged
from worker.rollouts.environments import new_environment
from worker.rollouts.shared_data import (
    CopyOnAccess,
    own_copy,
    shared_database,
    shared_user_database,
    view_of,
)
from worker.rollouts.state_hash import state_hash


def containers(value: Any) -> list[Any]:
    """Everything in parsed data that can be changed in place."""
    if isinstance(value, BaseModel):
        parts = [value, *value.__dict__.values()]
    elif isinstance(value, dict):
        parts = [value, *value.values()]
    elif isinstance(value, list):
        parts = [value, *value]
    else:
        return []
    return [parts[0], *(found for part in parts[1:] for found in containers(part))]


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


@pytest.mark.parametrize("domain", Domain)
def test_no_two_places_of_the_parsed_data_hold_the_same_object(domain: Domain) -> None:
    found = containers([shared_database(domain), shared_user_database(domain)])
    assert len({id(part) for part in found}) == len(found)


@pytest.mark.parametrize("domain", Domain)
def test_an_own_copy_is_what_deepcopy_gives(domain: Domain) -> None:
    originals = [shared_user_database(domain)]
    for part in shared_database(domain).__dict__.values():
        originals += list(part.values() if isinstance(part, dict) else part)[:20]
    for original in originals:
        ours, exact = own_copy(original), deepcopy(original)
        assert ours == exact
        pairs = list(zip(containers(ours), containers(exact), strict=True))
        for mine, expected in pairs:
            assert type(mine) is type(expected)
            if isinstance(mine, BaseModel):
                assert mine.model_fields_set == expected.model_fields_set
        assert {id(mine) for mine, _ in pairs}.isdisjoint(map(id, containers(original)))


def test_a_view_is_a_dictionary_whose_changes_stay_its_own() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        shared = {key: [key] for key in "abcdef"}
        view, expected = CopyOnAccess(shared), deepcopy(shared)
        for _ in range(8):
            operation = rng.choice(OPERATIONS)
            key = rng.choice("abcdefxyz")
            assert answer(operation, view, key) == answer(operation, expected, key), operation
            assert dict(view) == expected
            assert list(view) == list(expected)
        assert shared == {key: [key] for key in "abcdef"}
        changed = {
            key for key in view.keys() | shared.keys() if view.get(key, 0) != shared.get(key, 0)
        }
        assert changed <= view.touched


OPERATIONS = [
    lambda entries, key: entries[key],
    lambda entries, key: entries[key].append(1),
    lambda entries, key: (entries.get(key) or []).append(2),
    lambda entries, key: entries.get(key, "none"),
    lambda entries, key: entries.pop(key).append(3),
    lambda entries, key: entries.pop(key, "none"),
    lambda entries, key: entries.popitem(),
    lambda entries, key: entries.setdefault(key, [4]).append(4),
    lambda entries, key: entries.update({key: [5]}, z=[6]),
    lambda entries, key: entries.__ior__({key: [7]}) is entries,
    lambda entries, key: entries.__setitem__(key, [8]),
    lambda entries, key: entries.__delitem__(key),
    lambda entries, key: key in entries,
    lambda entries, key: len(entries),
    lambda entries, key: entries.clear() if key == "x" else None,
]


def answer(operation: Any, entries: Any, key: str) -> Any:
    try:
        return operation(entries, key)
    except KeyError as error:
        return repr(error)


@pytest.mark.parametrize("domain", Domain)
def test_a_view_is_written_as_the_whole_database_is(domain: Domain) -> None:
    shared = shared_database(domain)
    view = view_of(shared)
    for part in view.__dict__.values():
        for key in list(part)[:3] if isinstance(part, CopyOnAccess) else []:
            assert part[key] is part[key]
    assert view == shared
    assert text(view.model_dump()) == text(shared.model_dump())


def test_a_state_that_was_only_read_has_the_hash_of_one_that_was_not() -> None:
    untouched, read = view_of(airline()), view_of(airline())
    key = next(iter(read.flights))
    assert read.flights[key] == untouched.flights.get(key)
    assert state_hash(Domain.AIRLINE, read) == state_hash(Domain.AIRLINE, view_of(airline()))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("stored", [1.0, True, "1", None, [1], {"a": 1}, float("nan")])
def test_values_that_python_or_json_take_for_others_make_another_state(stored: Any) -> None:
    one, other = view_of(airline()), view_of(airline())
    key = next(iter(one.reservations))
    one.reservations[key].total_baggages = 1
    other.reservations[key].total_baggages = stored
    assert other.get_hash() != one.get_hash()
    assert state_hash(Domain.AIRLINE, other) != state_hash(Domain.AIRLINE, one)
    again = view_of(airline())
    again.reservations[key].total_baggages = deepcopy(stored)
    assert state_hash(Domain.AIRLINE, again) == state_hash(Domain.AIRLINE, other)


def test_a_new_or_lost_entry_makes_another_state_until_it_is_undone() -> None:
    view = view_of(airline())
    pristine = state_hash(Domain.AIRLINE, view)
    lost = view.users.pop(next(iter(view.users)))
    assert state_hash(Domain.AIRLINE, view) != pristine
    view.users[lost.user_id] = lost
    assert state_hash(Domain.AIRLINE, view) == pristine
    view.users["new"] = lost
    assert state_hash(Domain.AIRLINE, view) != pristine


def test_a_database_that_tau2_parsed_anew_has_the_hash_of_a_view_in_the_same_state() -> None:
    view = view_of(shared_database(Domain.MOCK))
    view.tasks["task_1"].title = "changed"
    anew = type(view).model_validate(view.model_dump())
    assert type(anew.tasks) is dict
    assert state_hash(Domain.MOCK, anew) == state_hash(Domain.MOCK, view)
    del anew.tasks["task_1"]
    assert state_hash(Domain.MOCK, anew) != state_hash(Domain.MOCK, view)


def test_what_one_conversation_writes_no_other_reads() -> None:
    first, second = new_environment(Domain.RETAIL), new_environment(Domain.RETAIL)
    orders = shared_database(Domain.RETAIL).orders
    pending = next(order.order_id for order in orders.values() if order.status == "pending")
    look = ToolCall(name="get_order_details", arguments={"order_id": pending})
    before = second.get_response(look).content
    cancelled = first.get_response(
        ToolCall(
            name="cancel_pending_order",
            arguments={"order_id": pending, "reason": "no longer needed"},
        )
    )
    assert not cancelled.error
    assert second.get_response(look).content == before != first.get_response(look).content
    assert new_environment(Domain.RETAIL).get_response(look).content == before
    assert shared_data_is_unchanged(Domain.RETAIL)


def test_a_vpn_broken_in_one_conversation_works_in_the_next() -> None:
    first, second = new_environment(Domain.TELECOM), new_environment(Domain.TELECOM)
    first.user_tools.break_vpn()
    second.user_tools.connect_vpn()
    performances = [
        environment.user_tools.device.vpn_details.server_performance.value
        for environment in (first, second)
    ]
    assert performances == ["poor", "excellent"]


def airline() -> Any:
    return shared_database(Domain.AIRLINE)
