"""The sliding window: how much of the past the assistant sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from app.contract import MessageDoc
from worker.rollouts.utterances import as_chat

TokenCounter = Callable[[str], int]
"""Tokens of a text."""

PromptCounter = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]]], int]
"""Tokens of a whole prompt: the chat messages and the tool declarations, as the model's own chat
template renders them, up to where the assistant begins to speak."""

MESSAGE_OVERHEAD_TOKENS = 4
"""Tokens that a chat template adds around a message or a tool call, as the recipe counts them."""


class PromptTooLong(Exception):
    """Not even the newest message fits into the model's prompt."""


class NoRoomForMessages(Exception):
    """The system prompt and the tools alone fill the model's prompt: no policy could do better."""


def estimate_tokens(text: str) -> int:
    """A count without a tokenizer: one token for four bytes of UTF-8, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def message_tokens(doc: MessageDoc, count: TokenCounter) -> int:
    """The tokens that a message takes in a prompt, about."""
    total = MESSAGE_OVERHEAD_TOKENS + (count(doc.content) if doc.content else 0)
    for call in doc.tool_calls or []:
        arguments = call.arguments if isinstance(call.arguments, str) else str(call.arguments)
        total += MESSAGE_OVERHEAD_TOKENS + count(call.name) + count(arguments)
    return total


class Window:
    """Chooses the latest messages that fit, and counts each message once.

    There are two limits. ``tokens`` is the published recipe's window: the system prompt counts and
    the tool declarations do not. ``max_prompt_tokens`` is what the model's server takes: all that
    is sent counts, exactly where ``count_prompt`` renders it.

    Args:
        tokens: how many tokens the system prompt and the messages may take together.
        system_prompt: always shown.
        count: tokens of a text; None estimates them.
        tools: the declarations that are sent with every request.
        max_prompt_tokens: the longest prompt that may be sent; None knows no such limit.
        count_prompt: tokens of a whole prompt; None adds up its parts.

    Raises:
        NoRoomForMessages: ``max_prompt_tokens`` is taken up by system prompt and tools.
    """

    def __init__(
        self,
        tokens: int,
        system_prompt: str,
        count: TokenCounter | None,
        *,
        tools: Sequence[dict[str, Any]] = (),
        max_prompt_tokens: int | None = None,
        count_prompt: PromptCounter | None = None,
    ) -> None:
        self._count = count or estimate_tokens
        self._count_prompt = count_prompt
        self._system = {"role": "system", "content": system_prompt}
        self._tools = tools
        self._limit = max_prompt_tokens
        self._sizes: list[int] = []
        self._budget = tokens - MESSAGE_OVERHEAD_TOKENS - self._count(system_prompt)
        if max_prompt_tokens is None:
            return
        self._fixed = self._fixed_tokens(system_prompt)
        if self._fixed >= max_prompt_tokens:
            raise NoRoomForMessages(
                f"the system prompt and the tools take {self._fixed} tokens, "
                f"and a prompt may have {max_prompt_tokens}"
            )
        self._budget = min(self._budget, max_prompt_tokens - self._fixed)

    def fit(self, messages: Sequence[MessageDoc]) -> list[MessageDoc]:
        """The latest messages that fit, oldest first; ``messages`` only ever grows at its end.

        A tool call and all its results are kept or left out together, and the newest message is
        kept even where it is longer than the window.

        Raises:
            PromptTooLong: the newest message (with its call, if it is a result) makes the prompt
                longer than ``max_prompt_tokens``.
        """
        for doc in messages[len(self._sizes) :]:
            self._sizes.append(message_tokens(doc, self._count))
        start = len(messages)
        room = self._budget
        while start > 0:
            first = _unit_start(messages, start - 1)
            room -= sum(self._sizes[first:start])
            if room < 0 and start < len(messages):
                break
            start = first
        return list(messages[self._within_limit(messages, start) :])

    def _within_limit(self, messages: Sequence[MessageDoc], start: int) -> int:
        """The first message at or after ``start`` from which the whole prompt may be sent."""
        if self._limit is None:
            return start
        while (size := self._prompt_tokens(messages, start)) > self._limit:
            start = _unit_end(messages, start)
            if start >= len(messages):
                raise PromptTooLong(
                    f"with the newest message alone the prompt has {size} tokens, "
                    f"and may have {self._limit}"
                )
        return start

    def _fixed_tokens(self, system_prompt: str) -> int:
        """Tokens of a prompt in which nothing is said yet."""
        if self._count_prompt is not None:
            # Some templates refuse a conversation in which the user has no turn.
            return self._count_prompt([self._system, {"role": "user", "content": ""}], self._tools)
        declared = sum(self._count(json.dumps(tool)) for tool in self._tools)
        return 2 * MESSAGE_OVERHEAD_TOKENS + self._count(system_prompt) + declared

    def _prompt_tokens(self, messages: Sequence[MessageDoc], start: int) -> int:
        if self._count_prompt is None:
            return self._fixed + sum(self._sizes[start:])
        shown = [as_chat(doc, speaker="assistant") for doc in messages[start:]]
        return self._count_prompt([self._system, *shown], self._tools)


def _unit_start(messages: Sequence[MessageDoc], index: int) -> int:
    """Where the call stands whose results include the message at ``index``."""
    while index > 0 and messages[index].role == "tool":
        index -= 1
    return index


def _unit_end(messages: Sequence[MessageDoc], index: int) -> int:
    """The index after the message at ``index`` and the results of its calls."""
    index += 1
    while index < len(messages) and messages[index].role == "tool":
        index += 1
    return index
