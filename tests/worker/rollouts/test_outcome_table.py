"""Every outcome, and everything a small model does wrong, each produced by a whole rollout.

``cancelled`` and ``superseded`` are no ends of a conversation: a cancelled rollout leaves no
document.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.contract import JUDGED, Outcome, RolloutDoc
from tests.worker.rollouts.fakes import (
    CREATE,
    FakeClient,
    call,
    converse,
    create,
    fails,
    hangs,
    says,
    serving,
    spec,
    user,
)
from worker.rollouts.endpoints import chat_model

NOT_OF_A_CONVERSATION = {Outcome.CANCELLED, Outcome.SUPERSEDED}


@pytest.fixture(autouse=True)
def a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "k")


def server_that(answer: Callable[..., None], seconds: float = 30) -> RolloutDoc:
    """A rollout whose assistant is a model that gives this answer."""
    with serving(answer) as server:
        model = chat_model(
            model="m", base_url=server.url, api_key_env="TEST_KEY", temperature=0, max_retries=0
        )
        return converse(model, user("Create it."), spec(timeout_seconds=seconds))


LONG = "word " * 4000

SCENARIOS: dict[Outcome, Callable[[], RolloutDoc]] = {
    Outcome.COMPLETED: lambda: converse(FakeClient(create(), "Done."), user("Create it.")),
    Outcome.MAX_STEPS: lambda: converse(FakeClient("Hm."), FakeClient("Hm?"), spec(max_steps=6)),
    Outcome.CONTEXT_LIMIT: lambda: converse(
        FakeClient("Yes?"), user(LONG), spec(max_prompt_tokens=4000)
    ),
    Outcome.TOO_MANY_ERRORS: lambda: converse(
        FakeClient(call("nothing", {})), user("Go."), spec(max_errors=2)
    ),
    Outcome.AGENT_ERROR: lambda: server_that(says("")),
    Outcome.OUT_OF_SCOPE: lambda: converse(FakeClient("Hi."), FakeClient("###OUT-OF-SCOPE###")),
    Outcome.USER_ERROR: lambda: converse(FakeClient("Hi."), FakeClient(ConnectionError("gone"))),
    Outcome.INFRASTRUCTURE_ERROR: lambda: server_that(fails(503)),
    Outcome.ENVIRONMENT_ERROR: lambda: converse(FakeClient("Hi."), user("Go."), spec("no_task")),
    Outcome.TIMEOUT: lambda: server_that(hangs, seconds=0.5),
}


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - NOT_OF_A_CONVERSATION))
def test_each_outcome_has_a_rollout_that_ends_in_it(outcome: Outcome) -> None:
    document = SCENARIOS[outcome]()
    assert document.outcome == outcome
    assert (document.reward is not None) == (outcome in JUDGED)
    assert (document.cause is None) == (outcome is Outcome.COMPLETED)
    if outcome is not Outcome.COMPLETED:
        assert document.reward in (None, 0.0)


# What the assistant sends before it does the task and says so; the outcome; the reward.
MISDEEDS = {
    "a wrong call": (call("create_task", {**CREATE, "user_id": "nobody"}), "completed", 1.0),
    "another call than was asked for": (
        call("create_task", {**CREATE, "title": "Other"}),
        "completed",
        0.0,
    ),
    "arguments of another type": (
        call("create_task", {"user_id": [1], "title": {}}),
        "completed",
        1.0,
    ),
    "arguments that no tool has": (call("create_task", {"x": 1}), "completed", 1.0),
    "an unknown tool": (call("fly_to_moon", {}), "completed", 1.0),
    "a tool without a name": (call("", {}), "completed", 1.0),
    "arguments that are not JSON": (call("create_task", "{oops"), "completed", 1.0),
    "arguments that are no object": (call("create_task", "[1]"), "completed", 1.0),
    "text and a call in one message": (["Now:", call("get_users", {})], "completed", 1.0),
    "the same call id again": (
        [call("get_users", {}, "a"), call("get_users", {}, "a")],
        "completed",
        1.0,
    ),
    "a call that is written as text": ('<tool_call>{"name": "x"', "completed", 1.0),
    "an empty message": ("", "agent_error", 0.0),
    "a message of blanks": (" \n", "agent_error", 0.0),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_the_policy_does_wrong_has_a_defined_reward_and_never_an_exception(
    misdeed: str,
) -> None:
    sent, outcome, reward = MISDEEDS[misdeed]
    document = converse(FakeClient(sent, create(), "Done."), user("Create it.", "Go on."))
    assert (document.outcome, document.reward) == (outcome, reward)


def test_a_prompt_that_the_newest_message_makes_too_long_is_never_sent() -> None:
    assistant = FakeClient("Please go on.", "Yes?")
    document = converse(assistant, user("Hello.", LONG), spec(max_prompt_tokens=4000))
    assert (document.outcome, document.reward) == (Outcome.CONTEXT_LIMIT, 0.0)
    assert len(assistant.shown) == 1
    assert document.cause is not None
    assert "newest message" in document.cause
    assert "4000" in document.cause


def test_tools_that_leave_no_room_for_a_message_are_not_the_policys_fault() -> None:
    document = converse(FakeClient("Hi."), user("Go."), spec(max_prompt_tokens=64))
    assert (document.outcome, document.reward) == (Outcome.ENVIRONMENT_ERROR, None)
    assert "64" in (document.cause or "")


@pytest.mark.parametrize("levels", [100, 300, 900, 50_000])
def test_arguments_nested_without_end_are_a_tool_error_and_the_rollout_can_be_written(
    levels: int,
) -> None:
    arguments = '{"user_id": ' + "[" * levels + "]" * levels + "}"
    rollout = converse(FakeClient(call("create_task", arguments), "Done."), user("Create it."))
    assert rollout.outcome is Outcome.COMPLETED
    assert rollout.reward == 0.0
    assert RolloutDoc.model_validate_json(rollout.model_dump_json()).id == rollout.id
