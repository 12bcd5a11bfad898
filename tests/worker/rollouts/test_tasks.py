"""Tasks are τ²'s own, in its order."""

from __future__ import annotations

import pytest

from app.contract import Domain
from worker.rollouts.environments import surface, user_prompt
from worker.rollouts.tasks import UnknownTask, data_hash, load_task, task_ids, tau2_splits


def test_the_base_split_of_each_domain_has_its_tasks_in_file_order() -> None:
    assert task_ids(Domain.MOCK)[:2] == ["create_task_1", "create_task_1_with_env_assertions"]
    assert task_ids(Domain.AIRLINE) == [str(number) for number in range(50)]
    counts = {domain.value: len(task_ids(domain)) for domain in Domain}
    assert counts == {"mock": 9, "airline": 50, "retail": 114, "telecom": 114}


def test_a_task_is_parsed_once() -> None:
    assert load_task(Domain.MOCK, "update_task_1") is load_task(Domain.MOCK, "update_task_1")


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(UnknownTask, match="domain mock has no task 'nope'"):
        load_task(Domain.MOCK, "nope")


def test_the_splits_are_those_of_the_benchmark() -> None:
    assert set(tau2_splits(Domain.MOCK)) == {"base"}
    airline = tau2_splits(Domain.AIRLINE)
    assert {name: len(ids) for name, ids in airline.items()} == {
        "base": 50,
        "train": 30,
        "test": 20,
    }


def test_domains_differ_in_their_data_hash() -> None:
    assert len({data_hash(domain) for domain in Domain}) == len(Domain)


def test_only_telecom_gives_its_user_tools() -> None:
    with_tools = {domain for domain in Domain if surface(domain).user_tools}
    assert with_tools == {Domain.TELECOM}
    task = load_task(Domain.TELECOM, task_ids(Domain.TELECOM)[0])
    assert "tool" in user_prompt(Domain.TELECOM, task)
