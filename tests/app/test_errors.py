"""Bad requests: a clear problem document, never a 500, and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.contract import ReportBatch
from app.problems import error_path

JSON = {"Content-Type": "application/json"}


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert {"type", "title", "detail", "errors"} < set(document)
    return document


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/runs/run_x", 404),
        ("GET", "/runs/run_x/events", 404),
        ("GET", "/runs/run_x/logs", 404),
        ("GET", "/runs/run_x/metrics", 404),
        ("GET", "/runs/run_x/rollouts", 404),
        ("GET", "/runs/run_x/checkpoints", 404),
        ("GET", "/rollouts/ro_x", 404),
        ("POST", "/runs/run_x/cancel", 404),
        ("POST", "/runs/run_x/retry", 404),
        ("PUT", "/runs", 405),
        ("GET", "/runs?limit=0", 422),
        ("GET", "/runs?limit=x", 422),
        ("GET", "/runs/%ed%a0%80", 404),
        ("GET", "/runs/run_x/events?cursor=99999999999999999999", 422),
    ],
)
def test_every_error_is_a_problem_document(
    client: TestClient, method: str, path: str, status: int
) -> None:
    problem(client.request(method, path), status)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 100_000,
        b'{"name": NaN}',
        b'{"config": {"verl": {"a": -Infinity}}}',
        b'{"config": {"verl": {"a": 1e400}}}',
        b'{"config": {"seed": ' + b"9" * 5000 + b"}}",
        b'{"config": {"seed": 99999999999999999999}}',
        b'\xff\xfe{"a"',
        b'{"config": {"verl": ' + b'{"a":' * 100 + b"1" + b"}" * 102,
        b'"text"',
        b"[]",
        b"null",
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
def test_a_body_that_cannot_be_read_is_422(client: TestClient, body: bytes) -> None:
    problem(client.post("/runs", content=body, headers=JSON), 422)


def test_a_field_s_value_is_not_repeated_in_the_error(client: TestClient) -> None:
    secret = "sk-secret-value"
    body = {"config": {"user_simulator": {"kind": "openai", "api_key": secret}}}
    answer = client.post("/runs", json=body)
    assert problem(answer, 422)["errors"][0]["path"] == "config.user_simulator.api_key"
    assert secret not in answer.text


def test_a_declared_body_that_is_too_large_is_413(client: TestClient) -> None:
    document = problem(client.post("/runs", content=b"x" * 200_001, headers=JSON), 413)
    assert "200000 bytes" in document["detail"]


def test_a_chunked_body_that_is_too_large_is_413(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(300):
            yield b" " * 1000

    problem(client.post("/runs", content=chunks(), headers=JSON), 413)
    assert client.post("/runs", content=iter([b"{", b"}"]), headers=JSON).status_code == 201


def test_a_body_at_the_limit_is_read(client: TestClient) -> None:
    body = b"{" + b" " * 199_998 + b"}"
    assert client.post("/runs", content=body, headers=JSON).status_code == 201


def test_an_unforeseen_error_says_nothing_of_the_inside(app: FastAPI) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret inside")

    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/broken")
    problem(answer, 500)
    assert "secret" not in answer.text


def test_a_tag_of_a_union_is_no_part_of_the_path() -> None:
    data = {"a": [{"kind": "x", "b": 1}], "kind": {"kind": "y"}}
    assert error_path(("a", 0, "x", "b"), data, ("config",)) == "config.a.0.b"
    assert error_path(("kind", "y", "c"), data) == "kind.c"
    assert error_path(("a", 7, "b"), data) == "a.7.b"


def test_health_and_readiness(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "revision": "0002"}


def test_prometheus_counts_runs_and_reports(client: TestClient, worker: Any) -> None:
    worker.report({"kind": "log", "lines": ["x"]})
    text = client.get("/metrics").text
    assert 'tautrain_runs{status="running"} 1.0' in text
    assert 'tautrain_reports_total{result="accepted"} 1.0' in text
    assert "tautrain_workers_live 1.0" in text


def test_the_openapi_document_is_complete(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "ProblemDoc" in schemas
    assert "HTTPValidationError" not in schemas
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            good = [code for code in operation["responses"] if code.startswith("2")]
            assert good, (method, path)
            for code in good:
                content = operation["responses"][code].get("content", {})
                schema = content.get("application/json", {}).get("schema", {})
                assert code == "204" or "$ref" in schema or "text/plain" in content, path
    text = client.get("/openapi.json").text
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in schemas


def test_a_tag_that_is_also_a_field_s_name_stands_once_in_the_path() -> None:
    data = {"reports": [{"kind": "rollout", "rollout": {"reward": 2}}, {"kind": "rollout"}]}
    tagged = ("reports", 0, "rollout", "rollout", "reward")
    assert error_path(tagged, data) == "reports.0.rollout.reward"
    assert error_path(("reports", 1, "rollout", "rollout"), data) == "reports.1.rollout"


def test_wrong_tokens_of_a_retried_rollout_are_named_with_their_path(worker: Any) -> None:
    wrong = {"kind": "event", "type": "rollout_retried", "data": {"tokens": {"user_prompt": "x"}}}
    answer = worker.call("reports", reports=[{"id": "retried-1", **wrong}])
    [error] = problem(answer, 422)["errors"]
    assert error["path"] == "reports.0.data.tokens.user_prompt"


@pytest.mark.parametrize("path", ["/runs", "/runs/validate"])
def test_many_errors_are_counted_and_only_some_are_listed(client: TestClient, path: str) -> None:
    fields = {f"wrong{i}": 1 for i in range(2000)}
    answer = client.post(path, json={"config": fields})
    document = problem(answer, 422)
    assert len(document["errors"]) == 50
    assert document["detail"].endswith("and 1995 more")
    assert len(answer.content) < 10_000
    document = problem(client.post(path, json=fields), 422)
    assert len(document["errors"]) == 50
    assert "and 1950 more" in document["detail"]


def test_a_long_name_is_not_sent_back_whole(client: TestClient) -> None:
    answer = client.post("/runs", json={"config": {"x" * 100_000: 1}, "preset": None})
    assert problem(answer, 422)["errors"][0]["path"].startswith("config.xxx")
    assert len(answer.content) < 10_000


def test_a_large_batch_is_refused_at_its_first_wrong_report(worker: Any) -> None:
    reports = [{"id": f"log-{i:05}", "kind": "log", "lines": [0] * 4000} for i in range(9)]
    answer = worker.call("reports", reports=reports)
    [error] = problem(answer, 422)["errors"]
    assert error["path"] == "reports.0.lines.0"


def test_a_large_body_is_validated_off_the_event_loop(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def validate(cls: type[ReportBatch], value: Any) -> ReportBatch:
        threads.append(threading.current_thread().name)
        return super(ReportBatch, cls).model_validate(value)

    monkeypatch.setattr(ReportBatch, "model_validate", classmethod(validate))
    assert worker.report({"kind": "log", "lines": ["x" * 70_000]}) == {"accepted": 1, "repeated": 0}
    [thread] = threads
    assert "worker thread" in thread, "one of the pool's, not the event loop's"
