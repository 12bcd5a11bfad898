"""Claims, leases and fencing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import queue
from app.database import Database
from app.tables import Worker

Json = dict[str, Any]


def status(client: TestClient, run_id: str) -> str:
    return str(client.get(f"/runs/{run_id}").json()["status"])


def test_concurrent_workers_get_each_run_once(
    database: Database, queue_run: Callable[..., Json], new_worker: Callable[..., Any]
) -> None:
    ids = {queue_run()["id"] for _ in range(12)}
    workers = [new_worker().id for _ in range(6)]
    start = threading.Barrier(6)

    def take(worker_id: str) -> list[str]:
        start.wait()
        taken = []
        while True:
            with database.write() as session:
                worker = session.get_one(Worker, worker_id)
                claim = queue.claim(session, worker, datetime.now(UTC))
            if claim is None:
                return taken
            taken.append(claim.run_id)

    with ThreadPoolExecutor(6) as pool:
        taken = [run_id for some in pool.map(take, workers) for run_id in some]
    assert sorted(taken) == sorted(ids)


def test_two_databases_open_on_one_file_never_give_a_run_twice(
    settings: Any, queue_run: Callable[..., Json], new_worker: Callable[..., Any]
) -> None:
    """Without the lock that threads of one process share: SQLite alone decides."""
    for _ in range(8):
        queue_run()
    worker_id = new_worker().id
    databases = [Database(settings.sqlalchemy_url()) for _ in range(4)]

    def take(database: Database) -> list[str]:
        taken = []
        for _ in range(2):
            with database.write() as session:
                worker = session.get_one(Worker, worker_id)
                claim = queue.claim(session, worker, datetime.now(UTC))
                assert claim is not None
                taken.append(claim.run_id)
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [run_id for some in pool.map(take, databases) for run_id in some]
    for database in databases:
        database.close()
    assert len(set(taken)) == 8


def test_the_oldest_run_goes_first_and_nothing_is_204(
    client: TestClient, queue_run: Callable[..., Json], new_worker: Callable[..., Any]
) -> None:
    first, second = queue_run(), queue_run()
    worker = new_worker()
    assert worker.claim()["run_id"] == first["id"]
    running = client.get(f"/runs/{first['id']}").json()
    assert (running["status"], running["phase"], running["attempt"]) == ("running", "starting", 1)
    assert running["worker"] == worker.id
    assert worker.claim()["run_id"] == second["id"]
    assert worker.claim() is None


def test_a_worker_gets_only_runs_of_its_engines(
    queue_run: Callable[..., Json], new_worker: Callable[..., Any]
) -> None:
    run = queue_run(preset="qwen2.5-1.5b-airline")
    assert new_worker("cpu").claim() is None
    younger = queue_run()
    assert new_worker("cpu").claim()["run_id"] == younger["id"]
    claim = new_worker("gpu").claim()
    assert claim["run_id"] == run["id"]
    assert claim["config"]["engine"] == "gpu"


def test_an_unknown_worker_is_404(client: TestClient) -> None:
    assert client.post("/workers/wk_x/claim", json={}).status_code == 404


def test_a_waiting_claim_is_answered_when_a_run_is_queued(
    app: FastAPI,
    queue_run: Callable[..., Json],
    new_worker: Callable[..., Any],
) -> None:
    worker = new_worker()
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.claim, 20)
        while app.state.parts.wakeup.waiting == 0:
            threading.Event().wait(0.005)
        run = queue_run()
        claim = waiting.result(15)
    assert claim["run_id"] == run["id"]
    assert time.monotonic() - started < 10


def test_a_waiting_claim_ends_with_204(new_worker: Callable[..., Any]) -> None:
    assert new_worker().claim(wait_seconds=0.05) is None


def test_a_stopping_server_ends_waiting_claims(
    app: FastAPI, new_worker: Callable[..., Any]
) -> None:
    worker = new_worker()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.claim, 30)
        while app.state.parts.wakeup.waiting == 0:
            threading.Event().wait(0.005)
        app.state.parts.wakeup.stop()
        assert waiting.result(10) is None


def test_a_lapsed_lease_returns_the_run_to_the_queue(
    client: TestClient, worker: Any, new_worker: Callable[..., Any], lapse: Callable[[str], None]
) -> None:
    worker.report({"kind": "checkpoint", "step": 4, "path": "/c/4", "size_bytes": 1})
    lapse(worker.run_id)
    other = new_worker()
    claim = other.claim()
    assert (claim["run_id"], claim["attempt"]) == (worker.run_id, 2)
    assert claim["resume_from"] == "/c/4"
    run = client.get(f"/runs/{worker.run_id}").json()
    assert [attempt["status"] for attempt in run["attempts"]] == ["lapsed", "running"]
    assert run["attempts"][0]["error"]["code"] == "lease_lapsed"


def test_the_old_worker_of_a_lapsed_lease_is_refused_everywhere(
    worker: Any, new_worker: Callable[..., Any], lapse: Callable[[str], None]
) -> None:
    lapse(worker.run_id)
    new_worker().claim()
    report = {"kind": "log", "id": "late-0001", "lines": ["late"]}
    heartbeat = worker.call("heartbeat")
    assert heartbeat.status_code == 409
    assert "attempt 2 took its place" in heartbeat.json()["detail"]
    assert worker.call("reports", reports=[report]).status_code == 409
    assert worker.finish("succeeded").status_code == 409


def test_the_last_attempt_that_lapses_fails_the_run(
    client: TestClient,
    queue_run: Callable[..., Json],
    new_worker: Callable[..., Any],
    lapse: Callable[[str], None],
) -> None:
    run = queue_run(config={"max_run_attempts": 2})
    worker = new_worker()
    for attempt in (1, 2):
        assert worker.claim()["attempt"] == attempt
        lapse(run["id"])
    assert worker.claim() is None
    failed = client.get(f"/runs/{run['id']}").json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "lease_lapsed")


def test_the_background_task_notices_a_lapsed_lease(settings: Any) -> None:
    from app.main import create_app

    settings = settings.model_copy(update={"lease_check_seconds": 0.02})
    app = create_app(settings)
    with TestClient(app) as client:
        run_id = client.post("/runs", json={}).json()["id"]
        about = {"name": "w", "engines": ["cpu"], "cpus": 1, "memory_bytes": 0}
        worker_id = client.post("/workers", json=about).json()["id"]
        client.post(f"/workers/{worker_id}/claim", json={"wait_seconds": 0})
        assert status(client, run_id) == "running"
        database: Database = app.state.parts.database
        with database.write() as session:
            from app.tables import Attempt

            attempt = session.get_one(Attempt, (run_id, 1))
            attempt.lease_expires_at = datetime(2020, 1, 1, tzinfo=UTC)
        until = time.monotonic() + 10
        while status(client, run_id) == "running" and time.monotonic() < until:
            threading.Event().wait(0.02)
        assert status(client, run_id) == "queued"


def test_a_heartbeat_keeps_the_lease(
    client: TestClient, worker: Any, new_worker: Callable[..., Any], lapse: Callable[[str], None]
) -> None:
    lapse(worker.run_id)
    assert worker.call("heartbeat").json() == {
        "cancel": False,
        "lease_seconds": 60.0,
        "spent": None,
    }
    assert new_worker().claim() is None
    assert status(client, worker.run_id) == "running"


def test_the_absence_of_the_service_is_not_the_worker_s_silence(
    client: TestClient, app: FastAPI, worker: Any, lapse: Callable[[str], None]
) -> None:
    lapse(worker.run_id)
    with TestClient(app) as after_a_restart:
        assert after_a_restart.get("/healthz").status_code == 200
    assert worker.call("heartbeat").status_code == 200


def test_a_run_that_is_handed_back_is_queued_again(client: TestClient, worker: Any) -> None:
    assert worker.finish("handed_back").json() == {"status": "queued"}
    run = client.get(f"/runs/{worker.run_id}").json()
    assert (run["status"], run["worker"], run["phase"]) == ("queued", None, None)
    assert worker.claim()["attempt"] == 2


def test_a_heartbeat_says_when_the_runs_budget_of_user_tokens_is_spent(
    queue_run: Callable[..., Json], new_worker: Callable[..., Any]
) -> None:
    queue_run(config={"budget": {"max_user_tokens": 100}})
    worker = new_worker()
    worker.claim()
    worker.report(worker.rollout(tokens={"user_prompt": 60, "user_completion": 39}))
    assert worker.call("heartbeat").json()["spent"] is None
    worker.report(worker.rollout(tokens={"user_prompt": 0, "user_completion": 1}))
    assert worker.call("heartbeat").json()["spent"] == "budget.max_user_tokens"


def test_a_cancelled_run_that_is_handed_back_or_lapses_is_cancelled(
    client: TestClient,
    queue_run: Callable[..., Json],
    new_worker: Callable[..., Any],
    lapse: Callable[[str], None],
) -> None:
    worker = new_worker()
    for how in ("handed back", "lapsed"):
        run = queue_run()
        worker.claim()
        client.post(f"/runs/{run['id']}/cancel")
        if how == "lapsed":
            lapse(run["id"])
            assert worker.claim() is None
        else:
            worker.finish("handed_back")
        assert status(client, run["id"]) == "cancelled", how


def test_a_finish_said_twice_changes_nothing(client: TestClient, worker: Any) -> None:
    first = worker.finish("succeeded", stop_reason="budget")
    again = worker.finish("succeeded", stop_reason="budget")
    assert first.json() == again.json() == {"status": "succeeded"}
    run = client.get(f"/runs/{worker.run_id}").json()
    assert run["stop_reason"] == "budget"
    events = client.get(f"/runs/{worker.run_id}/events").json()["items"]
    assert [e["data"]["status"] for e in events] == ["queued", "running", "succeeded"]
    assert [e["seq"] for e in events] == [1, 2, 3]
    assert worker.finish("failed").status_code == 409


def test_a_run_that_was_not_cancelled_cannot_end_as_that(client: TestClient, worker: Any) -> None:
    assert worker.finish("cancelled").status_code == 409
    assert status(client, worker.run_id) == "running"


def test_what_is_not_the_caller_s_attempt_is_409_and_only_an_unknown_run_404(worker: Any) -> None:
    def statuses() -> set[int]:
        report = {"id": "late-0001", "kind": "log", "lines": ["x"]}
        answers = [
            worker.call("heartbeat"),
            worker.call("reports", reports=[report]),
            worker.finish("succeeded"),
        ]
        return {answer.status_code for answer in answers}

    token, worker.lease_token = worker.lease_token, "x" * 32
    assert statuses() == {409}
    worker.lease_token, worker.attempt = token, 9
    assert statuses() == {409}
    worker.run_id = "run_unknown"
    assert statuses() == {404}
