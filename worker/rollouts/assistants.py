"""Assistants that are not the trained policy: a chat model, the reference, and doing nothing."""

from __future__ import annotations

from collections.abc import Sequence

from agent_framework import Content, Message
from tau2.data_model.tasks import Task

from app.contract import (
    Assistant,
    OpenAIAssistant,
    OpenAIUser,
    ReferenceAssistant,
    ScriptedUser,
)
from worker.rollouts.agents import ChatClient
from worker.rollouts.endpoints import chat_model
from worker.rollouts.reference import PERFORM, actions_by_side, required_strings
from worker.rollouts.scripted import ScriptedClient
from worker.rollouts.users import accompanying_user, user_client


def assistant_client(config: Assistant, task: Task) -> ChatClient:
    """The chat client that plays the assistant of one rollout of a task.

    Raises:
        MissingKey: the environment has no variable of the configured name.
    """
    if isinstance(config, OpenAIAssistant):
        return chat_model(
            model=config.model,
            base_url=config.base_url,
            api_key_env=config.api_key_env,
            temperature=config.temperature,
        )
    return ReferencePlayer(task) if isinstance(config, ReferenceAssistant) else DoNothing()


def partner_of(assistant: Assistant, user: OpenAIUser | ScriptedUser, task: Task) -> ChatClient:
    """The user for an assistant: a scripted one goes along with the reference to its end.

    Raises:
        MissingKey: the environment has no variable of the configured name.
    """
    if isinstance(assistant, ReferenceAssistant) and isinstance(user, ScriptedUser):
        return accompanying_user(task)
    return user_client(user, task)


class ReferencePlayer(ScriptedClient):
    """Makes the task's reference calls one by one, then says each required string."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._plan: list[Content | str] = []
        for side, calls in actions_by_side(task):
            self._plan.extend(calls if side == "assistant" else [PERFORM])
        self._plan.append(" ".join(["That is all done.", *required_strings(task)]))

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        """The next call or text; the closing words again, should the user go on after them."""
        return [self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]]


class DoNothing(ScriptedClient):
    """Says the same greeting whatever it hears, and calls nothing."""

    GREETING = "Hello, I am here to help you."

    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        """The greeting."""
        return [self.GREETING]
