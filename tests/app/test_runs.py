"""Runs: queueing, looking at, stopping, doing again, removing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.presets import PRESETS

Json = dict[str, Any]
QueueRun = Callable[..., Json]


def paths(response: Any) -> list[str]:
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return [error["path"] for error in response.json()["errors"]]


def test_an_empty_body_queues_the_default_preset(client: TestClient) -> None:
    answer = client.post("/runs", json={})
    run = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/runs/{run['id']}"
    assert (run["preset"], run["status"], run["attempt"]) == ("tiny-cpu", "queued", 0)
    assert run["config"]["model"]["path"] == "tiny"
    assert run["error"] is None
    assert run["best_checkpoint"] is None
    assert client.get(f"/runs/{run['id']}").json() == {**run, "warnings": []}


def test_a_live_gpu_worker_makes_the_gpu_preset_the_default(
    client: TestClient, new_worker: Callable[..., Any]
) -> None:
    assert client.get("/presets").json()["default"] == "tiny-cpu"
    new_worker("cpu", "gpu")
    assert client.post("/runs", json={}).json()["preset"] == "qwen2.5-1.5b-airline"


def test_overrides_change_single_fields_of_the_preset(queue_run: QueueRun) -> None:
    config = {"rollout": {"max_steps": 77}, "verl": {"trainer": {"x": 1}}}
    run = queue_run(config=config, name="mine")
    assert run["config"]["rollout"]["max_steps"] == 77
    assert run["config"]["rollout"]["runners"] == PRESETS["tiny-cpu"]["rollout"]["runners"]
    assert run["config"]["verl"] == {"trainer": {"x": 1}}
    assert run["config_overrides"] == config
    assert run["name"] == "mine"


def test_another_kind_replaces_what_the_preset_had(queue_run: QueueRun) -> None:
    config = {"split": {"kind": "seeded"}, "training": {"batch_tasks": 4, "mini_batch": 4}}
    run = queue_run(config={**config, "user_simulator": {"kind": "openai", "model": "m"}})
    assert run["config"]["split"]["train_ids"] is None
    assert run["config"]["user_simulator"]["api_key_env"] == "OPENAI_API_KEY"


def test_a_split_that_trains_on_validation_tasks_is_called_that(queue_run: QueueRun) -> None:
    run = queue_run()
    validation = run["curves"]["validation"]
    split = PRESETS["tiny-cpu"]["split"]
    both = set(split["train_ids"]) & set(split["validation_ids"])
    assert (validation["trained_on"], validation["tasks"]) == (
        len(both),
        len(split["validation_ids"]),
    )
    assert both
    assert any("trained on too" in warning for warning in run["warnings"])


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"preset": "nope"}, "preset"),
        ({"presett": "tiny-cpu"}, "presett"),
        ({"config": {"domain": "nope"}}, "config.domain"),
        ({"config": {"training": {"batch_tasks": 0}}}, "config.training.batch_tasks"),
        ({"config": {"training": {"batch_tasks": 9}}}, "config.training.batch_tasks"),
        ({"config": {"training": {"mini_batch": 64}}}, "config.training.mini_batch"),
        ({"config": {"training": {"learning_rats": 1}}}, "config.training.learning_rats"),
        ({"config": {"rollout": 3}}, "config.rollout"),
        ({"config": {"split": {"train_ids": ["ghost"]}}}, "config.split.train_ids"),
        ({"config": {"split": {"kind": "tau2"}}}, "config.split"),
        ({"config": {"split": {"kind": "seeded", "train_fraction": 0.01}}}, "config.split"),
        (
            {"config": {"user_simulator": {"kind": "openai", "model": ""}}},
            "config.user_simulator.model",
        ),
        ({"config": {"user_simulator": {"kind": "oracle"}}}, "config.user_simulator"),
        ({"tags": ['a"b']}, "tags.0"),
        ({"config": {"rollout": {"temperature": 0}}}, "config.rollout.temperature"),
        ({"config": {"resources": {"nodes": 2}}}, "config.resources.nodes"),
        ({"config": {"engine": "gpu", "resources": {"nodes": 2}}}, "config.resources.nodes"),
        ({"config": {"budget": {"max_user_tokens": 0}}}, "config.budget.max_user_tokens"),
        (
            {"config": {"verl": {"actor_rollout_ref": {"rollout": {"n": 3}}}}},
            "config.verl.actor_rollout_ref.rollout.n",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(client: TestClient, body: Json, path: str) -> None:
    for call in ("/runs", "/runs/validate"):
        assert paths(client.post(call, json=body)) == [path]
    assert client.get("/runs").json()["items"] == []


def test_training_on_nontrivial_tasks_only_warns_that_steps_may_be_fewer(
    client: TestClient,
) -> None:
    def warned(**split: Any) -> list[bool]:
        body = {"config": {"split": split}}
        answers = [client.post(call, json=body) for call in ("/runs", "/runs/validate")]
        return [
            any("only_nontrivial" in warning for warning in answer.json()["warnings"])
            for answer in answers
        ]

    assert warned(only_nontrivial=True) == [True, True]
    assert warned() == [False, False]


def test_the_same_idempotency_key_returns_the_first_run(client: TestClient) -> None:
    def post(_: int) -> str:
        answer = client.post("/runs", json={}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 201
        return str(answer.json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(post, range(8)))) == 1
    assert len(client.get("/runs").json()["items"]) == 1
    other = client.post("/runs", json={"name": "x"}, headers={"Idempotency-Key": "k"})
    assert paths(other) == ["header.Idempotency-Key"]


def test_validate_counts_steps_and_rollouts_and_queues_nothing(client: TestClient) -> None:
    body = {"preset": "qwen2.5-1.5b-airline"}
    plan = client.post("/runs/validate", json=body).json()
    # 25 training tasks give 3 batches of 8 an epoch; 8 epochs; validations at 0, 4, …, 24.
    assert (plan["steps"], plan["validations"]) == (24, 7)
    assert plan["train_rollouts"] == 24 * 64
    assert plan["validation_rollouts"] == 7 * 25
    assert plan["user_tokens_estimate"]["prompt"] > 0
    assert any("OPENAI_API_KEY" in warning for warning in plan["warnings"])
    assert client.get("/runs").json()["items"] == []


def test_lists_are_newest_first_filtered_and_paged(client: TestClient, queue_run: QueueRun) -> None:
    ids = [queue_run(name=f"nail{i}", tags=["t", f"t{i % 2}"])["id"] for i in range(5)]
    client.post(f"/runs/{ids[0]}/cancel")
    found: list[str] = []
    cursor = None
    while True:
        page = client.get("/runs", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        found += [run["id"] for run in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert found == ids[::-1]

    def names(**params: Any) -> list[str]:
        return [run["name"] for run in client.get("/runs", params=params).json()["items"]]

    assert names(status="cancelled") == ["nail0"]
    assert names(status=["cancelled", "queued"], limit=500) == [
        "nail4",
        "nail3",
        "nail2",
        "nail1",
        "nail0",
    ]
    assert names(tag="t1") == ["nail3", "nail1"]
    assert names(tag="1") == []
    assert names(text="NAIL2") == ["nail2"], "no id has an l, so only names match"
    assert names(text="%") == []
    assert names(domain="airline") == []
    assert len(names(preset="tiny-cpu")) == 5


def test_a_queued_run_is_cancelled_at_once(client: TestClient, queue_run: QueueRun) -> None:
    run = queue_run()
    cancelled = client.post(f"/runs/{run['id']}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["finished_at"] is not None
    assert client.post(f"/runs/{run['id']}/cancel").status_code == 409


def test_a_running_run_is_cancelled_through_its_worker(client: TestClient, worker: Any) -> None:
    assert client.post(f"/runs/{worker.run_id}/cancel").json()["status"] == "cancelling"
    assert worker.call("heartbeat").json()["cancel"] is True
    assert worker.finish("cancelled").json() == {"status": "cancelled"}


def test_resume_queues_from_the_newest_checkpoint(client: TestClient, worker: Any) -> None:
    for step in (4, 8):
        worker.report({"kind": "checkpoint", "step": step, "path": f"/c/{step}", "size_bytes": 1})
    assert client.post(f"/runs/{worker.run_id}/resume").status_code == 409
    worker.finish("failed", error={"code": "x", "message": "y", "log_tail": ["z"]})
    failed = client.get(f"/runs/{worker.run_id}").json()
    assert failed["error"] == {"code": "x", "message": "y", "log_tail": ["z"]}
    resumed = client.post(f"/runs/{worker.run_id}/resume").json()
    assert (resumed["status"], resumed["error"]) == ("queued", None)
    assert worker.claim()["resume_from"] == "/c/8"
    assert worker.attempt == 2


def test_retry_makes_a_new_run_of_the_same_config(client: TestClient, queue_run: QueueRun) -> None:
    old = queue_run(config={"seed": 7}, tags=["a"])
    answer = client.post(f"/runs/{old['id']}/retry")
    new = answer.json()
    assert answer.status_code == 201
    assert new["id"] != old["id"]
    assert (new["retry_of"], new["config"], new["tags"]) == (old["id"], old["config"], ["a"])


def test_only_a_finished_run_is_removed_and_with_it_all_it_holds(
    client: TestClient, worker: Any
) -> None:
    worker.report(worker.rollout(id="ro_gone"), {"kind": "log", "lines": ["a"]})
    url = f"/runs/{worker.run_id}"
    assert client.delete(url).status_code == 409
    worker.finish("succeeded")
    assert client.delete(url).status_code == 204
    for gone in (url, f"{url}/logs", "/rollouts/ro_gone"):
        assert client.get(gone).status_code == 404
    assert client.delete(url).status_code == 404


def test_comparison_shows_curves_and_what_differs(client: TestClient, queue_run: QueueRun) -> None:
    one, two = queue_run(), queue_run(config={"seed": 5, "rollout": {"max_steps": 77}})
    answer = client.get("/compare", params={"runs": f"{one['id']},{two['id']}"}).json()
    assert [run["id"] for run in answer["runs"]] == [one["id"], two["id"]]
    differences = {d["path"]: list(d["values"].values()) for d in answer["config_differences"]}
    before = PRESETS["tiny-cpu"]["rollout"]["max_steps"]
    assert differences == {"seed": [0, 5], "rollout.max_steps": [before, 77]}
    assert paths(client.get("/compare", params={"runs": ","})) == ["query.runs"]
    assert client.get("/compare", params={"runs": "run_x"}).status_code == 404
