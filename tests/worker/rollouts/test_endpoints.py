"""Chat models over HTTP: what is sent to them, and what their failures come to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.contract import Domain, OpenAIAssistant, OpenAIUser, Outcome, RolloutDoc
from tests.worker.rollouts.fakes import (
    CREATE,
    Answer,
    FakeClient,
    calls,
    converse,
    create,
    cuts,
    fails,
    hangs,
    raw,
    says,
    serving,
    spec,
    user,
)
from worker.rollouts.assistants import assistant_client
from worker.rollouts.endpoints import chat_model
from worker.rollouts.tasks import load_task
from worker.rollouts.users import user_client

KEY = "key-that-must-not-be-seen"


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def against(url: str, side: str, **over: Any) -> RolloutDoc:
    """A rollout in which one side is a model at ``url``."""
    model = chat_model(
        model="m", base_url=url, api_key_env="TEST_KEY", temperature=0.5, max_retries=0
    )
    if side == "assistant":
        return converse(model, user("Create it."), spec(**over))
    return converse(FakeClient(create(), "Done."), model, spec(**over))


EXPECTED = {"assistant": Outcome.INFRASTRUCTURE_ERROR, "user": Outcome.USER_ERROR}

FAULTS = [
    pytest.param(fails(500), id="500"),
    pytest.param(fails(429), id="429"),
    pytest.param(fails(401, f"Incorrect API key: {KEY}"), id="401"),
    pytest.param(fails(400, "no such field"), id="400"),
    pytest.param(cuts, id="cut"),
    pytest.param(raw(b'{"id": "c", "choices": ['), id="truncated"),
    pytest.param(raw(b'{"hello": "world"}'), id="wrong schema"),
    pytest.param(raw(b'{"id":"c","object":"x","created":1,"model":"m","choices":[]}'), id="empty"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("side", ["assistant", "user"])
def test_a_fault_of_an_endpoint_is_never_the_policys(side: str, fault: Answer) -> None:
    with serving(fault) as server:
        document = against(server.url, side)
    assert (document.outcome, document.reward) == (EXPECTED[side], None)
    assert document.cause
    assert KEY not in document.model_dump_json()


@pytest.mark.parametrize("side", ["assistant", "user"])
def test_an_endpoint_that_hangs_ends_at_the_deadline(side: str) -> None:
    with serving(hangs) as server:
        document = against(server.url, side, timeout_seconds=0.5)
    assert (document.outcome, document.reward) == (Outcome.TIMEOUT, None)
    assert document.seconds.total < 5


@pytest.mark.parametrize("side", ["assistant", "user"])
def test_an_endpoint_that_is_not_there_is_never_the_policys(side: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        document = against(f"http://127.0.0.1:{free.getsockname()[1]}/v1", side)
    assert document.outcome == EXPECTED[side]
    assert "onnect" in (document.cause or "")


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000.",
        "litellm.ContextWindowExceededError: too long",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    ],
)
def test_a_prompt_that_is_too_long_is_the_policys_context_limit(words: str) -> None:
    with serving(says("Let me look."), fails(400, words)) as server:
        model = chat_model(model="m", base_url=server.url, api_key_env="TEST_KEY", temperature=0)
        document = converse(model, user("Create it.", "And?"))
    assert (document.outcome, document.reward) == (Outcome.CONTEXT_LIMIT, 0.0)
    assert document.turns == 2


def test_a_users_prompt_that_is_too_long_is_not_the_policys_fault() -> None:
    with serving(fails(400, "maximum context length is 8192 tokens")) as server:
        document = against(server.url, "user")
    assert (document.outcome, document.reward) == (Outcome.USER_ERROR, None)


@pytest.fixture
def assistant_requests() -> Iterator[list[dict[str, Any]]]:
    config = OpenAIAssistant(model="m", api_key_env="TEST_KEY", temperature=0.25)
    with serving(calls("create_task", json.dumps(CREATE)), says("Done.")) as server:
        config.base_url = server.url
        model = assistant_client(config, load_task(Domain.MOCK, "create_task_1"))
        document = converse(model, user("Create it."), assistant_options={"seed": 3})
        assert document.reward == 1
        assert document.tokens.assistant_prompt == 22
        assert document.tokens.assistant_completion == 14
        assert document.tokens.user_prompt == 0
        yield server.requests


def test_the_assistant_is_asked_once_for_each_step(
    assistant_requests: list[dict[str, Any]],
) -> None:
    first, second = assistant_requests
    assert [m["role"] for m in first["messages"]] == ["system", "assistant", "user"]
    assert [m["role"] for m in second["messages"]] == [
        "system",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]
    made, result = second["messages"][3:]
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == CREATE
    assert result["tool_call_id"] == made["tool_calls"][0]["id"] == "t1"
    assert "task_2" in result["content"]


def test_the_assistant_is_sent_the_policy_its_tools_and_its_options(
    assistant_requests: list[dict[str, Any]],
) -> None:
    request = assistant_requests[0]
    assert "<policy>" in request["messages"][0]["content"]
    names = {tool["function"]["name"] for tool in request["tools"]}
    assert {"create_task", "update_task_status", "get_users"} <= names
    assert (request["temperature"], request["seed"], request["model"]) == (0.25, 3, "m")
    assert not any("name" in message for message in request["messages"])


def test_a_model_that_plays_the_user_is_sent_the_guidelines_and_the_scenario() -> None:
    config = OpenAIUser(model="u", api_key_env="TEST_KEY", temperature=0.75)
    with serving(says("Create it please."), says("Thanks ###STOP###")) as server:
        config.base_url = server.url
        model = user_client(config, load_task(Domain.MOCK, "create_task_1"))
        document = converse(FakeClient(create(), "Done."), model)
    assert document.reward == 1
    assert (document.tokens.user_prompt, document.tokens.user_completion) == (22, 14)
    first, second = server.requests
    system = first["messages"][0]["content"]
    assert "###STOP###" in system
    assert "Important Meeting" in system
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert first["temperature"] == 0.75
    assert "tools" not in first


def test_the_base_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(says("Hello.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        config = OpenAIAssistant(model="m", api_key_env="TEST_KEY")
        model = assistant_client(config, load_task(Domain.MOCK, "create_task_1"))
        document = converse(model, user("Go."))
    assert document.outcome == Outcome.COMPLETED
    assert len(server.requests) == 1
