"""The scripted user states its scenario, answers from it, and ends the conversation."""

from __future__ import annotations

import pytest
from agent_framework import Message

from app.contract import Domain, OpenAIUser, ScriptedUser
from tests.worker.rollouts.fakes import FakeClient, converse, spec
from worker.rollouts.endpoints import MissingKey
from worker.rollouts.scripted import scenario
from worker.rollouts.tasks import load_task, task_ids
from worker.rollouts.users import NOTHING_MORE, THANKS, ScenarioUser, user_client

TASK = "create_task_1"


def said_by_user(*assistant: str) -> list[str | None]:
    other = user_client(ScriptedUser(), load_task(Domain.MOCK, TASK))
    document = converse(FakeClient(*assistant), other)
    assert document.termination == "user_stop"
    return [m.content for m in document.messages if m.role == "user"]


def test_it_states_its_scenario_and_thanks() -> None:
    stated, thanked = said_by_user("Done.")
    assert stated == scenario(load_task(Domain.MOCK, TASK))
    assert "Important Meeting" in (stated or "")
    assert thanked == THANKS


def test_it_answers_three_questions_and_no_more() -> None:
    said = said_by_user("What title should it have?")
    assert len(said) == 5
    assert said[-1] == THANKS


def test_it_answers_with_the_sentence_that_the_question_is_about() -> None:
    said = said_by_user("For which user should I create the new task?", "Done.")
    assert said[1] == "Create a new task called 'Important Meeting' for user_1."


def test_it_says_so_where_its_scenario_has_no_answer() -> None:
    assert said_by_user("Favourite colour?", "Done.")[1] == NOTHING_MORE


@pytest.mark.parametrize("domain", list(Domain))
def test_no_scenario_ends_a_conversation_or_speaks_to_the_user(domain: Domain) -> None:
    for task_id in task_ids(domain):
        text = scenario(load_task(domain, task_id))
        assert len(text) > 20
        assert "###" not in text
        assert not text.startswith(("You", "you"))


def test_a_task_with_a_history_still_hears_the_scenario() -> None:
    task_id = "update_task_with_message_history"
    other = ScenarioUser(load_task(Domain.MOCK, task_id))
    document = converse(FakeClient("Done."), other, spec(task_id))
    assert "mark the task as completed" in (document.messages[4].content or "")


def test_two_users_of_a_task_say_the_same() -> None:
    task = load_task(Domain.AIRLINE, "2")
    start = [Message("user", ["Hi"])]
    assert ScenarioUser(task).answer(start) == ScenarioUser(task).answer(start)


def test_a_missing_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(MissingKey, match="SOME_KEY"):
        user_client(OpenAIUser(api_key_env="SOME_KEY"), load_task(Domain.MOCK, TASK))
