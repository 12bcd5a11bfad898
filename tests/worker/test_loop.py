"""The worker's loop and one attempt, against a fake API, with fake children."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from app.contract import Engine, WorkerRegistration
from worker.__main__ import api_url
from worker.client import ApiClient
from worker.handover import AttemptInput
from worker.loop import Worker, WorkerSettings
from worker.processes import session_members
from worker.supervisor import AttemptSettings

REGISTRATION = WorkerRegistration(name="w", engines=[Engine.CPU], cpus=1, memory_bytes=1)

SUCCEEDS = """
reporter.event("trained", {"n": 1})
print("hello from the child", flush=True)
AttemptResult(status="succeeded", stop_reason="done").write(handover.attempt_dir)
"""

SITS = """
import signal, subprocess
other = subprocess.Popen(["sleep", "600"], process_group=0)
print("sitting", os.getsid(0), flush=True)
signal.pause()
"""

CHILD = """
import os, sys
from pathlib import Path
from worker.handover import AttemptInput, AttemptResult
from worker.reporter import Reporter
from worker.session import die_with_parent
die_with_parent()
handover = AttemptInput.read(Path(sys.argv[1]))
reporter = Reporter(handover.reporter_config())
"""

PROGRAM = """
import sys
from pathlib import Path
from app.contract import Engine, WorkerRegistration
from worker.__main__ import _log_to_stderr
from worker.client import ApiClient
from worker.loop import Worker, WorkerSettings, stop_on_signals
from worker.supervisor import AttemptSettings
_log_to_stderr()
url, data_dir, child = sys.argv[1:]
attempts = AttemptSettings(api_url=url, data_dir=Path(data_dir), engines=[Engine.CPU],
                           command=(sys.executable, child), heartbeat_seconds=0.1)
registration = WorkerRegistration(name="w", engines=[Engine.CPU], cpus=1, memory_bytes=1)
with ApiClient(url) as client:
    worker = Worker(WorkerSettings(registration, attempts, claim_seconds=30), client)
    stop_on_signals(worker)
    worker.run()
"""


@pytest.fixture
def command(tmp_path, repository, monkeypatch):
    """The command of a fake child that runs ``body`` after the start of a real one."""
    monkeypatch.setenv("PYTHONPATH", str(repository))

    def write(body):
        path = tmp_path / "child.py"
        path.write_text(CHILD + body)
        return (sys.executable, str(path))

    return write


@pytest.fixture
def work(fake_api, tmp_path):
    """Runs a worker on a thread; returns it, and waits for its end when the test ends."""
    running = []

    def start(command, *, once=True, **settings):
        defaults = {"heartbeat_seconds": 0.1, "leader_seconds": 1, "grace_seconds": 1}
        attempts = AttemptSettings(
            api_url=fake_api.url,
            data_dir=tmp_path / "data",
            engines=[Engine.CPU],
            command=command,
            **{**defaults, **settings},
        )
        client = ApiClient(fake_api.url)
        worker_settings = WorkerSettings(
            REGISTRATION, attempts, once=once, claim_seconds=5, retry_cap_seconds=0.2
        )
        worker = Worker(worker_settings, client)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread, client))
        return worker

    yield start
    for worker, thread, client in running:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive(), "the worker does not stop"
        client.close()


@pytest.fixture
def program(fake_api, tmp_path, command, repository):
    """Starts a worker as a process of its own, with a fake child."""
    processes = []

    def start(body):
        _, child = command(body)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, fake_api.url, str(tmp_path / "data"), child],
            cwd=repository,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def finish(fake_api):
    return fake_api.wait_for(lambda: fake_api.finishes, timeout=15)[0]


def sitting_session(fake_api):
    """The session of a child that sits, once its output has arrived."""

    def sids():
        return [int(line.split()[1]) for line in fake_api.lines() if line.startswith("sitting")]

    sid = fake_api.wait_for(sids)[0]
    assert len(session_members(sid)) >= 2
    return sid


def gone(sid, timeout=10.0):
    deadline = time.monotonic() + timeout
    while session_members(sid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not session_members(sid)


def test_an_attempt_goes_from_claim_to_finish_with_reports_and_output(fake_api, work, command):
    fake_api.offer()
    work(command(SUCCEEDS))
    request = finish(fake_api)
    assert (request.status, request.stop_reason, request.error) == ("succeeded", "done", None)
    assert [event.type for event in fake_api.of_kind("event")] == ["trained"]
    assert "hello from the child" in fake_api.lines()
    # All reports had arrived before the finish.
    calls = [call.rpartition("/")[2] for call in fake_api.calls]
    assert "reports" not in calls[calls.index("finish") :]


def test_the_childs_input_is_private_and_whole(fake_api, work, command, tmp_path):
    claim = fake_api.offer(seed=11)
    work(command(SUCCEEDS))
    finish(fake_api)
    path = tmp_path / "data" / "attempts" / "run_1" / "1" / "claim.json"
    assert path.stat().st_mode & 0o777 == 0o600
    handover = AttemptInput.read(path)
    assert handover.claim == claim
    assert handover.api_url == fake_api.url
    assert handover.attempt_dir == path.parent


def test_the_key_that_the_config_names_shows_in_no_log_whatever_its_name(
    fake_api, work, command, monkeypatch
):
    monkeypatch.setenv("MY_ENDPOINT", "value-of-the-key")
    monkeypatch.setenv("TAUTRAIN_KEY_VARIABLES", "MY_ENDPOINT")
    fake_api.offer(user_simulator={"kind": "openai", "api_key_env": "MY_ENDPOINT"})
    work(command("raise RuntimeError('sent ' + os.environ['MY_ENDPOINT'])\n"))
    request = finish(fake_api)
    assert request.error.log_tail[-1] == "RuntimeError: sent ***"
    assert "value-of-the-key" not in "".join(fake_api.lines())


def test_a_crash_is_data_on_the_run(fake_api, work, command):
    fake_api.offer()
    work(command("print('about to fail', flush=True)\nraise RuntimeError('boom')\n"))
    request = finish(fake_api)
    assert (request.status, request.error.code) == ("failed", "crashed")
    assert "exit code 1" in request.error.message
    assert "about to fail" in request.error.log_tail
    assert request.error.log_tail[-1] == "RuntimeError: boom"


def test_reports_that_a_killed_child_had_spooled_arrive_before_the_finish(fake_api, work, command):
    # The child's own thread ships nothing: what arrives is what the worker found on the disk.
    body = """
import worker.outbox
worker.outbox.Outbox._ship = lambda self: None
for n in range(50):
    reporter.event("count", {"n": n})
os.kill(os.getpid(), 9)
"""
    fake_api.offer()
    work(command(body))
    assert finish(fake_api).error.code in ("killed_by_signal", "out_of_memory")
    assert [event.data["n"] for event in fake_api.of_kind("event")] == list(range(50))


def test_a_cancel_ends_the_session_within_seconds(fake_api, work, command):
    fake_api.offer()
    work(command(SITS))
    sid = sitting_session(fake_api)
    began = time.monotonic()
    fake_api.cancel = True
    assert finish(fake_api).status == "cancelled"
    assert time.monotonic() - began < 5
    assert session_members(sid) == frozenset()


ENDS_WHEN_SPENT = """
import time
from pathlib import Path
from worker.handover import SPENT_NAME, AttemptInput, AttemptResult
attempt = AttemptInput.read(Path(sys.argv[1]))
while not (attempt.attempt_dir / SPENT_NAME).exists():
    time.sleep(0.02)
field = (attempt.attempt_dir / SPENT_NAME).read_text()
AttemptResult(status="succeeded", stop_reason=field).write(attempt.attempt_dir)
"""


def test_the_child_hears_that_a_budget_is_spent(fake_api, work, command):
    fake_api.spent = "budget.max_user_tokens"
    fake_api.offer()
    work(command(ENDS_WHEN_SPENT))
    assert finish(fake_api).stop_reason == "budget.max_user_tokens"


def test_a_lost_lease_ends_the_session_and_finishes_nothing(fake_api, work, command):
    fake_api.offer()
    work(command(SITS), once=False)
    sid = sitting_session(fake_api)
    fake_api.lease_lost = True
    claims = len(claim_calls(fake_api))
    # The worker goes on: it claims again, and works the next run.
    fake_api.wait_for(lambda: len(claim_calls(fake_api)) > claims)
    assert session_members(sid) == frozenset()
    assert fake_api.finishes == []
    fake_api.lease_lost = False
    command(SUCCEEDS)
    fake_api.offer(run_id="run_2")
    assert finish(fake_api).status == "succeeded"


def claim_calls(fake_api):
    return [call for call in fake_api.calls if call.endswith("/claim")]


def test_training_goes_on_while_the_api_is_away(fake_api, work, command, tmp_path):
    body = """
import time
print("begun", flush=True)
while not Path(sys.argv[1]).with_name("go").exists():
    time.sleep(0.02)
for n in range(20):
    reporter.event("count", {"n": n})
AttemptResult(status="succeeded").write(handover.attempt_dir)
Path(sys.argv[1]).with_name("trained").touch()
"""
    fake_api.offer()
    work(command(body))
    fake_api.wait_for(lambda: "begun" in fake_api.lines())
    fake_api.stop()
    attempt_dir = tmp_path / "data" / "attempts" / "run_1" / "1"
    (attempt_dir / "go").touch()
    deadline = time.monotonic() + 10
    while not (attempt_dir / "trained").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (attempt_dir / "trained").exists()
    fake_api.start()
    assert finish(fake_api).status == "succeeded"
    assert [event.data["n"] for event in fake_api.of_kind("event")] == list(range(20))


def test_what_preflight_refuses_fails_the_run_and_starts_no_child(
    fake_api, work, command, tmp_path, monkeypatch
):
    monkeypatch.setenv("TAUTRAIN_KEY_VARIABLES", "NO_SUCH_KEY")
    fake_api.offer(user_simulator={"kind": "openai", "api_key_env": "NO_SUCH_KEY"})
    work(command(SUCCEEDS))
    request = finish(fake_api)
    assert (request.status, request.error.code) == ("failed", "missing_key")
    assert "NO_SUCH_KEY" in request.error.message
    assert not (tmp_path / "data").exists()


def test_a_child_that_cannot_be_started_fails_the_run_and_says_why(fake_api, work):
    fake_api.offer()
    work(("/no/such/program",))
    request = finish(fake_api)
    assert (request.status, request.error.code) == ("failed", "cannot_start")
    assert "/no/such/program" in request.error.message


def test_a_fault_of_the_worker_fails_the_run_and_not_the_worker(
    fake_api, work, command, monkeypatch
):
    def broken(*arguments):
        raise KeyError("a fault of ours")

    monkeypatch.setattr("worker.supervisor.verdict", broken)
    fake_api.offer()
    work(command(SUCCEEDS), once=False)
    request = finish(fake_api)
    assert (request.status, request.error.code) == ("failed", "worker_error")
    monkeypatch.undo()
    fake_api.offer(run_id="run_2")
    fake_api.wait_for(lambda: len(fake_api.finishes) == 2)
    assert fake_api.finishes[1].status == "succeeded"


def test_a_worker_waits_for_an_api_that_is_not_there_yet(fake_api, work, command):
    fake_api.fail_next = [503, 502, 503]
    fake_api.offer()
    work(command(SUCCEEDS))
    assert finish(fake_api).status == "succeeded"
    assert fake_api.calls[:4] == ["/workers"] * 4
    assert len(fake_api.registrations) == 1


def test_a_worker_that_the_api_has_forgotten_registers_again(fake_api, work, command):
    fake_api.unknown_worker = True
    fake_api.offer()
    work(command(SUCCEEDS))
    finish(fake_api)
    assert len(fake_api.registrations) == 2
    assert claim_calls(fake_api) == ["/workers/wk_1/claim", "/workers/wk_2/claim"]


def test_a_finish_gets_through_though_the_api_fails_at_first(fake_api, work, command):
    answer, failed = fake_api.answer, []

    def fail_finish(path, body):
        if path.endswith("/finish") and len(failed) < 2:
            failed.append(path)
            return 500, {"title": "not now"}
        return answer(path, body)

    fake_api.answer = fail_finish
    fake_api.offer()
    work(command(SUCCEEDS))
    assert finish(fake_api).status == "succeeded"
    assert len(failed) == 2


def test_sigterm_hands_the_run_back_and_exits_0(fake_api, program):
    fake_api.offer()
    worker = program(SITS)
    sid = sitting_session(fake_api)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(15) == 0
    assert [request.status for request in fake_api.finishes] == ["handed_back"]
    assert gone(sid, 0)
    log = worker.stderr.read()
    assert "claimed run=run_1 attempt=1" in log
    assert "status=handed_back" in log
    assert "lease-token" not in log


def test_sigterm_while_waiting_for_a_run_exits_0_at_once(fake_api, program):
    worker = program(SITS)
    fake_api.wait_for(lambda: claim_calls(fake_api))
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert time.monotonic() - began < 8  # not the 30 s of the long poll
    assert fake_api.finishes == []


def test_a_run_claimed_while_the_worker_stops_is_handed_back(fake_api, program):
    worker = program(SUCCEEDS)
    fake_api.wait_for(lambda: claim_calls(fake_api))
    worker.send_signal(signal.SIGINT)
    assert "stopping" in next(line for line in worker.stderr if "SIGINT" in line)
    fake_api.offer()
    assert worker.wait(10) == 0
    assert [request.status for request in fake_api.finishes] == ["handed_back"]
    assert fake_api.reports == {}


def test_a_second_signal_ends_at_once_and_leaves_no_session(fake_api, program):
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SITS.replace(
        "signal.pause()", "while True: signal.pause()"
    )
    fake_api.offer()
    worker = program(body)
    sid = sitting_session(fake_api)
    worker.send_signal(signal.SIGTERM)
    assert any("SIGTERM" in line for line in worker.stderr)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 6  # not the 20 s of a stop in good order
    assert gone(sid, 0)


def test_the_session_of_a_killed_worker_ends(fake_api, program):
    fake_api.offer()
    worker = program(SITS)
    sid = sitting_session(fake_api)
    worker.kill()
    assert gone(sid)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://127.0.0.1:8321"),
        ({"TAUTRAIN_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"TAUTRAIN_PORT": "9000", "TAUTRAIN_URL": "http://api:80"}, "http://api:80"),
    ],
)
def test_the_api_is_where_the_environment_says(environment, url):
    assert api_url(environment) == url


def test_the_program_says_that_it_waits_and_stops_when_told(tmp_path, repository):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    environment = {**os.environ, "TAUTRAIN_URL": url, "TAUTRAIN_DATA_DIR": str(tmp_path)}
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "worker", "--name", "lonely"],
        cwd=repository,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert f"waiting for the API at {url}" in worker.stderr.readline()
        assert time.monotonic() - began < 5
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(10) == 0
