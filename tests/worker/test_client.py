"""The worker's client against a fake API on loopback."""

import socket
import time

import pytest

from app.contract import Engine, EventReport, FinishRequest, WorkerRegistration
from worker.client import ApiAway, ApiClient, Backoff, LeaseLost, Refused

REGISTRATION = WorkerRegistration(name="w", engines=[Engine.CPU], cpus=1, memory_bytes=1)


@pytest.fixture
def client(fake_api):
    with ApiClient(fake_api.url, retry_seconds=5) as client:
        yield client


def test_a_call_that_failed_for_now_is_tried_again(fake_api, client):
    fake_api.fail_next = [503, 500, 429]
    assert client.register(REGISTRATION) == "wk_1"
    assert len(fake_api.calls) == 4


def test_a_refusal_is_not_tried_again_and_says_why(fake_api, client):
    fake_api.fail_next = [422]
    with pytest.raises(Refused) as refused:
        client.register(REGISTRATION)
    assert (refused.value.status, refused.value.detail) == (422, "as asked")
    assert len(fake_api.calls) == 1


def test_a_conflict_is_a_lost_lease(fake_api, client):
    fake_api.lease_lost = True
    finish = FinishRequest(lease_token="t", status="succeeded")
    for call in (
        lambda: client.heartbeat("run_1", 1, "t"),
        lambda: client.send_report_lines("run_1", 1, "t", [b"{}"]),
        lambda: client.finish("run_1", 1, finish),
    ):
        with pytest.raises(LeaseLost, match="another attempt"):
            call()
    assert len(fake_api.calls) == 3


def test_an_api_that_is_not_there_is_away_after_the_callers_patience():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    started = time.monotonic()
    with ApiClient(url) as client, pytest.raises(ApiAway, match="ConnectError"):
        client.register(REGISTRATION, retry_seconds=0.5)
    assert time.monotonic() - started < 2


def test_a_claim_that_brings_nothing_is_none_and_else_the_run(fake_api, client):
    assert client.claim("wk_1", wait_seconds=0) is None
    offered = fake_api.offer(seed=7)
    assert client.claim("wk_1") == offered


def test_a_claim_is_not_repeated_on_its_own(fake_api, client):
    fake_api.fail_next = [503]
    with pytest.raises(ApiAway):
        client.claim("wk_1", wait_seconds=0)
    assert len(fake_api.calls) == 1


def test_reports_arrive_alike_as_models_and_as_lines(fake_api, client):
    report = EventReport(id="rp_12345678", type="x", data={"text": 'q"uo\nte', "n": 1})
    answer = client.send_reports("run_1", 1, 'to"ken', [report])
    assert (answer.accepted, answer.repeated) == (1, 0)
    answer = client.send_report_lines("run_1", 1, "t", [report.model_dump_json().encode()])
    assert (answer.accepted, answer.repeated) == (0, 1)
    assert fake_api.reports == {report.id: report}


def test_proxy_variables_do_not_lead_loopback_traffic_away(fake_api, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ApiClient(fake_api.url) as client:
        assert client.register(REGISTRATION, retry_seconds=0) == "wk_1"


def test_an_answer_of_another_service_is_refused_in_words(fake_api, client, monkeypatch):
    monkeypatch.setattr(fake_api, "answer", lambda path, body: (200, {"hello": "world"}))
    with pytest.raises(Refused, match=r"WorkerRegistered.*is this the API\?"):
        client.register(REGISTRATION)


def test_the_bad_fields_of_a_problem_are_told(fake_api, client, monkeypatch):
    problem = {"title": "Bad", "errors": [{"path": "cpus"}]}
    monkeypatch.setattr(fake_api, "answer", lambda path, body: (422, problem))
    with pytest.raises(Refused, match="cpus"):
        client.register(REGISTRATION)


def test_delays_double_up_to_their_cap_and_start_again():
    backoff = Backoff(first=1, cap=4)
    for ceiling in (1, 2, 4, 4, 4):
        assert ceiling / 2 <= backoff.next() <= ceiling
    backoff.reset()
    assert backoff.next() <= 1


def test_a_lease_token_shows_in_no_representation():
    from worker.reporter import ReporterConfig

    config = ReporterConfig("http://x", "run_1", 1, "secret-lease", "/spool")
    assert "secret-lease" not in repr(config)
