"""The names that the API answers to, and the key variables that a config may name."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.hosts import HostGuard
from app.settings import Settings


async def answers(settings: Settings, *hosts: str) -> bool:
    """Whether a request with these Host headers is passed on."""
    sent: list[Any] = []
    passed = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def inner(*_call: Any) -> None:
        passed.append(True)

    headers = [(b"host", host.encode()) for host in hosts]
    scope = {"type": "http", "headers": headers}
    await HostGuard(inner, settings)(scope, None, send)  # type: ignore[arg-type]
    assert bool(passed) != bool(sent)
    assert not sent or sent[0]["status"] == 421
    return bool(passed)


LOCAL = ["localhost", "LOCALHOST:8321", "127.0.0.1:8321", "127.3.2.1", "[::1]:8321", "localhost."]


@pytest.mark.anyio
@pytest.mark.parametrize("host", LOCAL)
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "api.intranet"])
async def test_loopback_is_always_answered(host: str, bound: str) -> None:
    assert await answers(Settings(host=bound), host)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("settings", "host", "answered"),
    [
        ({}, "evil.example", False),
        ({}, "evil.example:8321", False),
        ({}, "localhost.evil.example", False),
        ({}, "127.0.0.1.evil.example", False),
        ({}, "10.0.0.7", False),
        ({}, "", False),
        ({"host": "api.intranet"}, "API.intranet:8321", True),
        ({"host": "fd00::1"}, "[fd00::1]:8321", True),
        ({"host": "0.0.0.0"}, "10.0.0.7:8321", True),
        ({"host": "0.0.0.0"}, "evil.example", False),
        ({"url": "https://train.example/"}, "train.example", True),
        ({"allowed_hosts": "a.example, b.example"}, "b.example:1", True),
        ({"allowed_hosts": "a.example, b.example"}, "c.example", False),
        ({"allowed_hosts": "*"}, "evil.example", True),
    ],
)
async def test_other_names_are_answered_where_they_are_ours(
    settings: dict[str, str], host: str, answered: bool
) -> None:
    assert await answers(Settings.model_validate(settings), host) is answered


@pytest.mark.anyio
async def test_each_host_header_counts() -> None:
    assert not await answers(Settings(), "localhost", "evil.example")


def test_a_strange_host_gets_a_problem_document(client: TestClient) -> None:
    answer = client.get("/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/problem+json"
    assert "TAUTRAIN_ALLOWED_HOSTS" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/runs", {"config": {"user_simulator": "@"}}, "config.user_simulator"),
        ("/runs/validate", {"config": {"user_simulator": "@"}}, "config.user_simulator"),
        ("/rollouts/debug", {"task_id": "create_task_1", "assistant": "@"}, "assistant"),
        ("/rollouts/debug", {"task_id": "create_task_1", "user_simulator": "@"}, "user_simulator"),
    ],
)
def test_a_config_cannot_name_a_variable_that_the_operator_did_not_list(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    field: str,
) -> None:
    monkeypatch.setenv("AWS_SECRET", "s")
    model = {"kind": "openai", "model": "m", "api_key_env": "AWS_SECRET"}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return model if value == "@" else value

    answer = client.post(path, json=filled(body))
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["path"] == f"{field}.api_key_env"
    assert "TAUTRAIN_KEY_VARIABLES" in error["message"]
    model["api_key_env"] = "OPENAI_API_KEY"
    if path != "/rollouts/debug":
        assert client.post(path, json=filled(body)).status_code < 300
