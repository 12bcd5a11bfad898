"""Chat clients without a model: the base, and how a task's scenario is put into words."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)
from tau2.data_model.tasks import StructuredUserInstructions, Task


class ScriptedClient(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """A chat client that answers at once, by rule. One instance serves one rollout."""

    @abstractmethod
    def answer(self, messages: Sequence[Message]) -> list[Content | str]:
        """What to say to the messages so far, as the contents of one message."""

    def _inner_get_response(
        self,
        *,
        messages: Sequence[Message],
        stream: bool,
        options: Mapping[str, Any],
        **kwargs: Any,
    ) -> Awaitable[ChatResponse[Any]] | ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        if stream:
            raise NotImplementedError("a scripted client does not stream")
        return self._respond(messages)

    async def _respond(self, messages: Sequence[Message]) -> ChatResponse[Any]:
        return ChatResponse(messages=[Message(role="assistant", contents=self.answer(messages))])


# "###STOP###" and its like end a conversation wherever the user says them.
_STOP_WORD = re.compile(r"#{2,}[A-Z-]+#{2,}")

# The words after which "you" is an object.
_BEFORE_ME = (
    r"\b(to|for|with|from|by|at|about|of|tells?|told|gives?|gave|helps?|asks?|lets?|offers?"
    r"|charges?|refunds?|provides?|corrects?|informs?|reminds?)"
)

# A scenario is written to the user ("You want …"); the user says it of itself. In this order.
_FIRST_PERSON = [
    (r"\byou are\b", "I am"),
    (r"\byou're\b", "I'm"),
    (r"\byou were\b", "I was"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (_BEFORE_ME + r" you\b(?! (?:want|need|can|have|would|will|do|don't)\b)", r"\1 me"),
    (r"\byou('|\b)", r"I\1"),
]


def scenario(task: Task) -> str:
    """A task's user scenario as plain sentences in the first person; the same for every call."""
    given = task.user_scenario.instructions
    if isinstance(given, StructuredUserInstructions):
        parts = [given.reason_for_call, given.known_info, given.task_instructions]
        given = " ".join(_sentence(part) for part in parts if part and re.search(r"\w", part))
    text = " ".join(_STOP_WORD.sub("", given).split())
    for pattern, replacement in _FIRST_PERSON:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return _capitalised(text)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text[-1] in ".!?" else text + "."


def _capitalised(text: str) -> str:
    """The text with a capital at each sentence's start: "Your goal" has become "my goal"."""
    return re.sub(r"(?:^|(?<=[.!?] ))[a-z]", lambda letter: letter.group().upper(), text)


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order."""
    return [part for part in re.split(r"(?<=[.!?])\s+", text) if part]


_COMMON_WORDS = re.compile(
    "the|and|for|you|your|are|can|could|would|will|what|which|how|with|that|this|have|has|any"
    "|please|not|but|was|were|tell|know|like|want|need"
)


def words(text: str) -> set[str]:
    """The words of a text that say what it is about, in lower case."""
    found = re.findall(r"[a-z0-9_#]{3,}", text.lower())
    return {word for word in found if not _COMMON_WORDS.fullmatch(word)}
