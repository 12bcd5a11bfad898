"""The user's side of a conversation: a chat model, or a script."""

from __future__ import annotations

from collections.abc import Sequence

from agent_framework import Content, Message
from tau2.data_model.tasks import Task
from tau2.user.user_simulator import STOP

from app.contract import OpenAIUser, ScriptedUser
from worker.rollouts.agents import ChatClient
from worker.rollouts.endpoints import chat_model
from worker.rollouts.reference import PERFORM, user_runs
from worker.rollouts.scripted import ScriptedClient, scenario, sentences, words

MOST_ANSWERS = 3
"""Questions that the scripted user answers before it ends the conversation."""

THANKS = f"Thank you. {STOP}"
NOTHING_MORE = "I have told you all I know."


def user_client(config: OpenAIUser | ScriptedUser, task: Task) -> ChatClient:
    """The chat client that plays the user of one rollout of a task.

    Raises:
        MissingKey: the environment has no variable of the configured name.
    """
    if isinstance(config, ScriptedUser):
        return ScenarioUser(task)
    return chat_model(
        model=config.model,
        base_url=config.base_url,
        api_key_env=config.api_key_env,
        temperature=config.temperature,
    )


def accompanying_user(task: Task) -> ChatClient:
    """The user that goes along with the reference assistant, and does its own reference actions."""
    return AccompanyingUser(task)


class ScenarioUser(ScriptedClient):
    """States its scenario, answers questions from it, and thanks. It uses no tools."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._scenario = scenario(task)
        self._stated = False
        self._answers = 0

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        """The scenario first; then an answer to a question; otherwise thanks, and the end."""
        if not self._stated:
            self._stated = True
            return [self._scenario]
        question = _last_text(messages)
        if question.rstrip().endswith("?") and self._answers < MOST_ANSWERS:
            self._answers += 1
            return [_best_sentence(question, self._scenario) or NOTHING_MORE]
        return [THANKS]


class AccompanyingUser(ScriptedClient):
    """States its scenario, does its reference actions when asked to, and thanks at the end."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._scenario = scenario(task)
        self._stated = False
        self._runs = user_runs(task)
        self._doing: list[Content] = []

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        """The next tool call of the run that was asked for, or the words between the runs."""
        if self._doing:
            return [self._doing.pop(0)]
        if messages[-1].role == "tool":
            return ["I have done that."]
        if _last_text(messages) == PERFORM and self._runs:
            self._doing = self._runs.pop(0)
            return [self._doing.pop(0)]
        if not self._stated:
            self._stated = True
            return [self._scenario]
        return [THANKS]


def _last_text(messages: Sequence[Message]) -> str:
    return messages[-1].text if messages else ""


def _best_sentence(question: str, text: str) -> str | None:
    """The sentence that shares the most words with the question, the first of equals."""
    asked = words(question)
    scored = [(len(asked & words(sentence)), sentence) for sentence in sentences(text)]
    best = max(scored, key=lambda pair: pair[0], default=(0, ""))
    return best[1] if best[0] else None
