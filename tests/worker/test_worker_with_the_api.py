"""The worker and the real API, over loopback, with a fake child in place of training."""

import socket
import sys
import threading
import time

import httpx
import pytest
import uvicorn

from app.contract import Engine, WorkerRegistration
from app.main import create_app
from app.settings import Settings
from worker.client import ApiClient
from worker.loop import Worker, WorkerSettings
from worker.supervisor import AttemptSettings

REGISTRATION = WorkerRegistration(name="w", engines=[Engine.CPU], cpus=1, memory_bytes=1)

CHILD = """
import os, sys
from pathlib import Path
from app.contract import Domain, MessageDoc, Outcome, Phase, RolloutDoc, RolloutMode
from worker.handover import AttemptInput, AttemptResult
from worker.reporter import Reporter
from worker.session import die_with_parent
die_with_parent()
handover = AttemptInput.read(Path(sys.argv[1]))
reporter = Reporter(handover.reporter_config())
reporter.progress(Phase.ROLLOUT, step=1)
if os.fork() == 0:  # a runner; it is killed before it has shipped anything
    import worker.outbox
    worker.outbox.Outbox._ship = lambda self: None
    for n in range(4):
        reporter.rollout(RolloutDoc(
            id=f"ro_test{n}", step=1, mode=RolloutMode.TRAIN, domain=Domain.MOCK, task_id="t",
            outcome=Outcome.COMPLETED, reward=float(n % 2),
            messages=[MessageDoc(role="user", content="hello \\ud800")]))
    os.kill(os.getpid(), 9)
os.wait()
reporter.metrics(1, {"actor/loss": 0.5, "actor/nan": float("nan")})
print("trained", flush=True)
AttemptResult(status="succeeded", stop_reason="budget").write(handover.attempt_dir)
"""

SITS = """
import os, signal
from worker.session import die_with_parent
die_with_parent()
print("sitting", flush=True)
signal.pause()
"""


@pytest.fixture
def api(tmp_path):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_app(Settings(data_dir=tmp_path / "api"))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with httpx.Client(base_url=url, trust_env=False) as http:
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        yield http
    server.should_exit = True
    thread.join(10)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture
def work(api, tmp_path, repository, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(repository))
    running = []

    def start(child):
        script = tmp_path / "child.py"
        script.write_text(child)
        url = str(api.base_url)
        attempts = AttemptSettings(
            api_url=url,
            data_dir=tmp_path / "worker",
            engines=[Engine.CPU],
            command=(sys.executable, str(script)),
            heartbeat_seconds=0.1,
            leader_seconds=1,
            grace_seconds=1,
        )
        client = ApiClient(url)
        worker = Worker(WorkerSettings(REGISTRATION, attempts, once=True), client)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread, client))

    yield start
    for worker, thread, client in running:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()
        client.close()


def queue_run(api):
    answer = api.post("/runs", json={})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def run_with_status(api, run_id, *statuses, timeout=15.0):
    """The run once it has one of these statuses."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        run = api.get(f"/runs/{run_id}").json()
        if run["status"] in statuses:
            return run
        time.sleep(0.05)
    raise AssertionError(f"the run is {run['status']}, not {statuses}")


def test_a_run_is_claimed_worked_and_finished_with_all_that_was_reported(api, work):
    work(CHILD)
    run_id = queue_run(api)
    run = run_with_status(api, run_id, "succeeded", "failed")
    assert (run["status"], run["error"]) == ("succeeded", None)
    rollouts = api.get(f"/runs/{run_id}/rollouts").json()["items"]
    assert sorted(rollout["id"] for rollout in rollouts) == [f"ro_test{n}" for n in range(4)]
    (point,) = run["curves"]["train"]["points"]
    assert (point["reward_mean"], point["judged"]) == (0.5, 4)
    metrics = api.get(f"/runs/{run_id}/metrics").json()["series"]
    assert "actor/loss" in {series["name"] for series in metrics}
    assert "trained" in api.get(f"/runs/{run_id}/logs").text


def test_a_cancel_at_the_api_ends_the_run_within_seconds(api, work):
    work(SITS)
    run_id = queue_run(api)
    run_with_status(api, run_id, "running")
    api.post(f"/runs/{run_id}/cancel").raise_for_status()
    assert run_with_status(api, run_id, "cancelled", timeout=8)["error"] is None


def test_a_crash_is_an_error_on_the_run_with_the_last_lines(api, work):
    work("raise RuntimeError('boom')")
    run = run_with_status(api, queue_run(api), "failed")
    assert run["error"]["code"] == "crashed"
    assert run["error"]["log_tail"][-1] == "RuntimeError: boom"
