"""The sliding window: how much of the past the assistant sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.contract import MessageDoc

TokenCounter = Callable[[str], int]

MESSAGE_OVERHEAD_TOKENS = 4
"""Tokens that a chat template adds around a message or a tool call, as the recipe counts them."""


def estimate_tokens(text: str) -> int:
    """A count without a tokenizer: one token for four bytes of UTF-8, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def message_tokens(doc: MessageDoc, count: TokenCounter) -> int:
    """The tokens that a message takes in a prompt."""
    total = MESSAGE_OVERHEAD_TOKENS + (count(doc.content) if doc.content else 0)
    for call in doc.tool_calls or []:
        arguments = call.arguments if isinstance(call.arguments, str) else str(call.arguments)
        total += MESSAGE_OVERHEAD_TOKENS + count(call.name) + count(arguments)
    return total


class Window:
    """Chooses the latest messages that fit, and counts each message once.

    As in the published recipe, the system prompt counts and the tool declarations do not.

    Args:
        tokens: how many tokens the system prompt and the messages may take together.
        system_prompt: always shown.
        count: tokens of a text.
    """

    def __init__(self, tokens: int, system_prompt: str, count: TokenCounter | None) -> None:
        self._count = count or estimate_tokens
        self._budget = tokens - MESSAGE_OVERHEAD_TOKENS - self._count(system_prompt)
        self._sizes: list[int] = []

    def fit(self, messages: Sequence[MessageDoc]) -> list[MessageDoc]:
        """The latest messages that fit, oldest first; ``messages`` only ever grows at its end.

        A tool call and all its results are kept or left out together, and the newest message is
        kept however long it is.
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
        return list(messages[start:])


def _unit_start(messages: Sequence[MessageDoc], index: int) -> int:
    """Where the call stands whose results include the message at ``index``."""
    while index > 0 and messages[index].role == "tool":
        index -= 1
    return index
