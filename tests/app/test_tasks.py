"""The task catalogue and the splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app import tasks
from app.contract import Domain, RunConfig, SplitConfig, split_tasks

# As the recipe prints them.
RECIPE_TRAIN = "25 23 19 11 4 45 26 9 29 16 31 21 12 3 39 38 10 24 35 0 43 18 33 48 41"
RECIPE_VALIDATION = "30 28 20 22 42 46 36 32 44 13 49 47 2 27 37 5 34 6 8 14 15 17 1 7 40"


def test_the_seeded_split_is_the_published_recipe_s() -> None:
    config = RunConfig.model_validate({"domain": "airline", "split": {"kind": "seeded"}})
    train, validation = tasks.resolve_split(config)
    assert " ".join(train) == RECIPE_TRAIN
    assert " ".join(validation) == RECIPE_VALIDATION


def test_tau2_s_own_split_validates_on_its_test_tasks() -> None:
    config = RunConfig.model_validate({"domain": "airline", "split": {"kind": "tau2"}})
    train, validation = tasks.resolve_split(config)
    assert (len(train), len(validation)) == (30, 20)
    assert not set(train) & set(validation)


def test_a_split_that_the_domain_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no τ² split train and test"):
        split_tasks(SplitConfig(kind="tau2"), ["a"], {"base": ["a"]})


def test_an_empty_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="no task is left for training"):
        split_tasks(SplitConfig(train_fraction=0.4), ["a", "b"], {})


def test_ids_are_taken_in_the_order_given() -> None:
    split = SplitConfig(kind="ids", train_ids=["b", "a"], validation_ids=["c"])
    assert split_tasks(split, ["a", "b", "c"], {}) == (["b", "a"], ["c"])


def test_telecom_s_base_is_114_of_its_2285_tasks() -> None:
    telecom = tasks.catalogue(Domain.TELECOM)
    assert (len(telecom.tasks), len(telecom.base_ids)) == (2285, 114)


def test_another_data_folder_is_read_where_the_variable_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tau2" / "domains" / "mock"
    folder.mkdir(parents=True)
    (folder / "tasks.json").write_text(json.dumps([{"id": 1, "description": "d"}, {"id": "x"}]))
    (folder / "split_tasks.json").write_text(json.dumps({"base": ["x"]}))
    monkeypatch.setenv("TAU2_DATA_DIR", str(tmp_path))
    mock = tasks.catalogue(Domain.MOCK)
    assert (list(mock.tasks), mock.base_ids) == (["1", "x"], ["x"])
    assert mock.tasks["1"].description == "d"
    with pytest.raises(tasks.TasksMissingError):
        tasks.catalogue(Domain.RETAIL)


def test_tasks_are_listed_with_splits_and_paged(client: TestClient) -> None:
    first = client.get("/tasks", params={"domain": "airline", "limit": 40}).json()
    assert first["domains"] == [
        {"domain": "airline", "tasks": 50, "splits": {"train": 30, "test": 20, "base": 50}}
    ]
    assert first["items"][0]["task_id"] == "0"
    assert first["items"][0]["splits"] == ["train", "base"]
    rest = client.get("/tasks", params={"domain": "airline", "cursor": first["next_cursor"]}).json()
    assert len(rest["items"]) == 10
    assert rest["next_cursor"] is None
    test = client.get("/tasks", params={"domain": "airline", "split": "test"}).json()
    assert len(test["items"]) == 20


def test_a_task_is_shown_as_tau2_has_it(client: TestClient) -> None:
    task = client.get("/tasks/mock/create_task_1").json()
    assert task["task"]["evaluation_criteria"]["actions"][0]["name"] == "create_task"
    assert task["baselines"] == {"do_nothing": None, "reference": None}
    telecom = tasks.catalogue(Domain.TELECOM).base_ids[0]
    assert client.get(f"/tasks/telecom/{telecom}").json()["task_id"] == telecom
    assert client.get("/tasks/mock/ghost").status_code == 404
    assert client.get("/tasks/ghost/x").status_code == 422
