"""Every rollout ends in one outcome: judged for what the policy did, and not for the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from agent_framework import Content, Message

from app.contract import Domain, Outcome
from tests.worker.rollouts.fakes import CREATE, FakeClient, call, converse, create, spec, user
from worker.rollouts import conversation
from worker.rollouts.conversation import run_rollout
from worker.rollouts.refusals import MALFORMED_ARGUMENTS, TOO_LARGE
from worker.rollouts.scripted import ScriptedClient


def test_a_solved_task_is_completed_with_its_breakdown_and_checks() -> None:
    document = converse(FakeClient(create(), "Done."), user("Create it."))
    assert (document.outcome, document.termination, document.reward) == (
        "completed",
        "user_stop",
        1,
    )
    assert document.reward_breakdown == {"DB": 1.0, "COMMUNICATE": 1.0}
    assert {check.kind: check.passed for check in document.checks} == {"db": True, "action": True}
    assert document.turns == 2
    assert document.cause is None
    assert [m.role for m in document.messages] == [
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    times = [message.at for message in document.messages]
    assert all(times)
    assert times == sorted(times)
    seconds = document.seconds
    parts = seconds.assistant + seconds.user + seconds.environment + seconds.evaluation
    assert 0 < parts <= seconds.total


def test_an_unsolved_task_is_completed_with_nothing() -> None:
    document = converse(FakeClient("I cannot."), user("Create it."))
    assert (document.outcome, document.reward) == ("completed", 0.0)
    assert document.reward_breakdown["DB"] == 0.0


def test_an_unknown_tool_is_an_error_that_the_policy_hears_and_goes_on_from() -> None:
    assistant = FakeClient(call("fly_to_moon", {}), create(), "Done.")
    document = converse(assistant, user("Create it."))
    (result,) = [m for m in document.messages if m.error]
    assert result.content == "Error: Tool 'fly_to_moon' not found."
    assert assistant.shown[1][-1].contents[0].result == result.content
    assert document.reward == 1


def test_wrong_arguments_are_an_error_that_the_policy_hears() -> None:
    document = converse(FakeClient(call("create_task", {"x": 1}), create(), "Ok"), user("Go."))
    assert [m.error for m in document.messages if m.role == "tool"] == [True, False]
    assert document.reward == 1


@pytest.mark.parametrize("arguments", ["{oops", "[1]", '"text"', '{"user_id": NaN}'])
def test_arguments_that_are_no_json_object_are_a_tool_error_and_never_an_exception(
    arguments: str,
) -> None:
    bad = call("create_task", arguments)
    document = converse(FakeClient([bad, create()], [bad], "Done."), user("Create it."))
    results = [m for m in document.messages if m.role == "tool"]
    assert [r.error for r in results] == [True, False, True]
    assert results[0].content == MALFORMED_ARGUMENTS
    assert document.messages[2].tool_calls is not None
    assert document.messages[2].tool_calls[0].arguments == arguments
    assert (document.outcome, document.reward) == ("completed", 1.0)


def test_a_calculation_without_an_end_is_a_tool_error() -> None:
    endless = ["9**9**9", "9**(99999*99999)", "9 ** 123456789", "(9**9)**9"]
    made = [call("calculate", {"expression": text}) for text in ["2**10 + 1", *endless]]
    document = converse(FakeClient(made, "Done."), user("Go."), spec("1", Domain.AIRLINE))
    results = [m.content for m in document.messages if m.role == "tool"]
    assert results == ["1025.0", *[TOO_LARGE] * len(endless)]
    assert (document.outcome, document.reward) == ("completed", 1.0)


def test_malformed_calls_alone_count_towards_too_many_errors() -> None:
    document = converse(FakeClient(call("create_task", "{")), user("Go."), spec(max_errors=3))
    assert (document.outcome, document.reward) == (Outcome.TOO_MANY_ERRORS, 0.0)
    assert sum(bool(m.error) for m in document.messages) == 3


def test_text_and_a_call_in_one_message_are_both_kept_and_the_user_hears_neither() -> None:
    other = user("Create it.")
    document = converse(FakeClient(["On it!", create()], "Done."), other)
    mixed = document.messages[2]
    assert mixed.content == "On it!"
    assert mixed.tool_calls
    assert document.reward == 1
    assert not any("On it!" in m.text for shown in other.shown for m in shown)


@pytest.mark.parametrize("nothing", [[], [""], [" \n"]])
def test_an_empty_message_is_an_agent_error_worth_nothing(nothing: list[str]) -> None:
    document = converse(FakeClient(nothing), user("Go."))
    assert (document.outcome, document.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert document.termination == "agent_error"
    assert document.cause


def test_an_endless_loop_ends_at_max_steps_worth_nothing() -> None:
    document = converse(FakeClient(create()), user("Go."), spec(max_steps=9))
    assert (document.outcome, document.reward) == (Outcome.MAX_STEPS, 0.0)
    assert (document.checks, document.reward_breakdown) == ([], {})


def test_an_evaluator_that_raises_on_the_final_state_is_a_nothing_with_its_cause() -> None:
    document = converse(
        FakeClient("No."), user("Create it."), spec("create_task_1_with_env_assertions")
    )
    assert (document.outcome, document.reward) == (Outcome.COMPLETED, 0.0)
    assert "task_2" in (document.cause or "")


def test_an_evaluator_that_raises_for_another_reason_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(**_: object) -> None:
        raise ValueError("replay differs")

    monkeypatch.setattr("worker.rollouts.reward.evaluate_simulation", broken)
    document = converse(FakeClient("No."), user("Create it."))
    assert (document.outcome, document.reward) == (Outcome.ENVIRONMENT_ERROR, None)
    assert "replay differs" in (document.cause or "")


def test_an_environment_that_cannot_be_made_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("no database")

    monkeypatch.setattr(conversation, "new_environment", broken)
    document = converse(FakeClient("No."), user("Go."))
    assert (document.outcome, document.reward) == (Outcome.ENVIRONMENT_ERROR, None)
    assert document.messages == []


def test_an_unknown_task_is_an_environment_error_that_names_it() -> None:
    document = converse(FakeClient("No."), user("Go."), spec("nope"))
    assert document.outcome == Outcome.ENVIRONMENT_ERROR
    assert "nope" in (document.cause or "")


def test_a_simulator_that_leaves_its_script_is_not_judged() -> None:
    document = converse(FakeClient(create(), "Done."), FakeClient("Go.", "###OUT-OF-SCOPE###"))
    assert (document.outcome, document.reward) == (Outcome.OUT_OF_SCOPE, None)
    assert document.termination == "user_stop"


def test_the_policy_cannot_escape_judgement_with_the_simulators_words() -> None:
    for steps in range(2, 6):
        assistant = FakeClient("###OUT-OF-SCOPE### ###STOP###")
        document = converse(assistant, FakeClient("Go on."), spec(max_steps=steps))
        assert (document.outcome, document.reward) == (Outcome.MAX_STEPS, 0.0)


def test_a_simulator_that_says_nothing_is_not_judged() -> None:
    document = converse(FakeClient("Hello"), FakeClient("Go.", []))
    assert (document.outcome, document.reward) == (Outcome.USER_ERROR, None)


def test_a_cause_can_always_be_encoded() -> None:
    document = converse(FakeClient(ConnectionError("\ud800 refused")), user("Go."))
    assert "\ufffd refused" in (document.cause or "")
    document.model_dump_json().encode()


@pytest.mark.parametrize("side", ["assistant", "user"])
def test_a_client_that_raises_is_not_judged_and_names_its_side(side: str) -> None:
    failing = FakeClient(ConnectionError("refused"))
    pair = (failing, user("Go.")) if side == "assistant" else (FakeClient("Hi"), failing)
    document = converse(*pair)
    expected = {"assistant": Outcome.INFRASTRUCTURE_ERROR, "user": Outcome.USER_ERROR}
    assert (document.outcome, document.reward) == (expected[side], None)
    assert "refused" in (document.cause or "")


class Waiting(ScriptedClient):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.cancelled = False

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        raise AssertionError

    async def _respond(self, messages: Sequence[Message]) -> object:  # type: ignore[override]
        self.asked.set()
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_a_deadline_ends_a_rollout_that_waits_for_ever() -> None:
    waiting = Waiting()
    document = converse(waiting, user("Go."), spec(timeout_seconds=0.2))
    assert (document.outcome, document.reward) == (Outcome.TIMEOUT, None)
    assert waiting.cancelled
    assert [m.content for m in document.messages][1:] == ["Go."]


def test_a_cancelled_rollout_raises_and_leaves_nothing_running() -> None:
    waiting = Waiting()

    async def cancel() -> None:
        task = asyncio.create_task(run_rollout(spec(), waiting, user("Go.")))
        await waiting.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert waiting.cancelled


def test_a_message_history_is_where_the_conversation_starts() -> None:
    done = call("update_task_status", {"task_id": "task_2", "status": "completed"})
    other = user("Mark it completed.")
    document = converse(FakeClient(done, "Done."), other, spec("update_task_with_message_history"))
    assert document.reward == 1
    assert [m.role for m in document.messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert document.turns == 2
    # The simulator is shown the past it took part in, with its own words as the assistant's.
    assert [m.role for m in other.shown[0]] == ["assistant", "user"]


@pytest.mark.parametrize(
    "task_id", ["update_task_with_initialization_data", "update_task_with_initialization_actions"]
)
def test_initial_data_and_actions_are_there_for_the_policy(task_id: str) -> None:
    done = call("update_task_status", {"task_id": "task_2", "status": "completed"})
    document = converse(FakeClient(done, "Ok."), user("Mark it."), spec(task_id))
    assert document.reward_breakdown["DB"] == 1.0


def test_what_the_environment_was_given_is_what_is_reported_when_text_was_repaired() -> None:
    broken = call("create_task", '{"user_id": "user_1", "title": "a\\ud800"}')
    document = converse(FakeClient(broken, "Made \udfff it."), user("Go."))
    assert document.text_repaired
    (made,) = document.messages[2].tool_calls or []
    assert made.arguments == {"user_id": "user_1", "title": "a\ufffd"}
    assert document.messages[4].content == "Made \ufffd it."
    assert json.loads(document.messages[3].content or "")["title"] == "a\ufffd"
    document.model_dump_json().encode()


def test_the_assistant_sees_only_its_window_and_the_newest_message_always() -> None:
    assistant = FakeClient("x" * 4000, "y" * 4000, "z")
    converse(assistant, user("a" * 4000, "b" * 4000), spec(window_tokens=64))
    assert [[m.text[0] for m in shown] for shown in assistant.shown] == [["a"], ["b"]]


def test_the_telecom_user_has_tools_and_their_results_are_its_own() -> None:
    task_id = next(
        i
        for i in _telecom_ids()
        if i.startswith("[mobile_data_issue]airplane_mode_on|data_mode_off")
    )
    assistant = FakeClient("Please check your status bar.", "Bye.")
    other = user("My data is slow.", call("check_status_bar", {}), "It says no service.")
    document = converse(assistant, other, spec(task_id, Domain.TELECOM))
    (result,) = [m for m in document.messages if m.role == "tool"]
    assert result.requestor == "user"
    assert not result.error
    assert other.shown[2][-1].role == "tool"
    assert all(m.role != "tool" for shown in assistant.shown for m in shown)


def _telecom_ids() -> list[str]:
    from worker.rollouts.tasks import task_ids

    return task_ids(Domain.TELECOM)


def test_the_arguments_of_a_call_reach_the_environment_as_they_were_sent() -> None:
    assistant = FakeClient(call("create_task", CREATE), "Done.")
    document = converse(assistant, user("Go."))
    assert document.messages[2].tool_calls[0].arguments == CREATE  # type: ignore[index]
