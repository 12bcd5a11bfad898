"""The assistant's window keeps the latest that fits, and calls with their results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract import MessageDoc, ToolCallDoc
from worker.rollouts.window import (
    NoRoomForMessages,
    PromptTooLong,
    Window,
    estimate_tokens,
    message_tokens,
)

SYSTEM = "You are an agent."
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}]

texts = st.text(st.sampled_from("ab é\n"), max_size=80)


@st.composite
def exchanges(draw: st.DrawFn) -> list[MessageDoc]:
    """A text of one side, or a message with calls and all their results."""
    if draw(st.booleans()):
        role = draw(st.sampled_from(["user", "assistant"]))
        return [MessageDoc(role=role, content=draw(texts))]
    ids = [f"c{n}" for n in range(draw(st.integers(1, 3)))]
    arguments = st.one_of(texts, st.dictionaries(texts, texts, max_size=2))
    made = [ToolCallDoc(id=call, name="f", arguments=draw(arguments)) for call in ids]
    words = draw(st.none() | texts)
    results = [MessageDoc(role="tool", tool_call_id=call, content=draw(texts)) for call in ids]
    return [MessageDoc(role="assistant", content=words, tool_calls=made), *results]


histories = st.lists(exchanges(), min_size=1, max_size=12).map(
    lambda parts: [doc for part in parts for doc in part]
)


def rendered_tokens(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
    """A template that adds more around messages than a sum over their texts would say."""
    return len(json.dumps([*messages, *tools])) // 3 + 7 * len(messages)


def newest_unit(docs: Sequence[MessageDoc]) -> int:
    """How many messages belong to the newest: a result brings its call along."""
    results = 0
    while docs[-1 - results].role == "tool":
        results += 1
    return results + 1


def never_separated(shown: Sequence[MessageDoc]) -> bool:
    waiting: list[str] = []
    for doc in shown:
        if doc.role == "tool":
            if not waiting or waiting.pop(0) != doc.tool_call_id:
                return False
        elif waiting:
            return False
        waiting += [call.id for call in doc.tool_calls or []]
    return not waiting


@settings(deadline=None)
@given(histories, st.integers(1, 400))
def test_a_window_shows_the_latest_in_order_and_never_separates_a_result_from_its_call(
    docs: list[MessageDoc], tokens: int
) -> None:
    shown = Window(tokens, SYSTEM, None).fit(docs)
    assert shown == docs[len(docs) - len(shown) :]
    assert len(shown) >= newest_unit(docs), "the newest message is always shown"
    assert never_separated(shown)
    spent = message_tokens(MessageDoc(role="system", content=SYSTEM), estimate_tokens)
    spent += sum(message_tokens(doc, estimate_tokens) for doc in shown)
    assert spent <= tokens or len(shown) == newest_unit(docs)


@settings(deadline=None)
@given(histories, st.integers(1, 400), st.integers(1, 600))
def test_a_prompt_is_never_longer_than_the_model_takes(
    docs: list[MessageDoc], tokens: int, limit: int
) -> None:
    sent: list[tuple[list[dict[str, Any]], int]] = []

    def count(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        assert tools == TOOLS
        sent.append(([*messages], rendered_tokens(messages, tools)))
        return sent[-1][1]

    try:
        window = Window(
            tokens, SYSTEM, None, tools=TOOLS, max_prompt_tokens=limit, count_prompt=count
        )
    except NoRoomForMessages:
        assert sent[-1][1] >= limit
        return
    free = Window(tokens, SYSTEM, None).fit(docs)
    try:
        shown = window.fit(docs)
    except PromptTooLong:
        # No more than the newest message and its call was left in the prompt that was too long.
        messages, size = sent[-1]
        assert size > limit
        assert len(messages) == 1 + newest_unit(docs)
        return
    assert shown == docs[len(docs) - len(shown) :]
    assert newest_unit(docs) <= len(shown) <= len(free)
    assert never_separated(shown)
    messages, size = sent[-1]
    assert size <= limit
    assert [m["content"] for m in messages] == [SYSTEM, *(doc.content for doc in shown)]


@settings(deadline=None)
@given(histories, st.integers(1, 300))
def test_the_limit_holds_for_a_sum_where_no_template_is_known(
    docs: list[MessageDoc], limit: int
) -> None:
    try:
        shown = Window(10_000, SYSTEM, None, tools=TOOLS, max_prompt_tokens=limit).fit(docs)
    except (NoRoomForMessages, PromptTooLong):
        return
    spent = estimate_tokens(SYSTEM) + estimate_tokens(json.dumps(TOOLS[0]))
    assert spent + sum(message_tokens(doc, estimate_tokens) for doc in shown) <= limit
    assert len(shown) >= newest_unit(docs)


def test_a_window_leaves_out_no_more_than_it_must() -> None:
    docs = [MessageDoc(role="user", content="x" * 40) for _ in range(10)]
    each = message_tokens(docs[0], estimate_tokens)
    system = message_tokens(MessageDoc(role="system", content="s" * 8), estimate_tokens)
    assert len(Window(system + 3 * each, "s" * 8, None).fit(docs)) == 3
    assert len(Window(system + 3 * each - 1, "s" * 8, None).fit(docs)) == 2
    assert len(Window(10_000, "s" * 8, None).fit(docs)) == 10


def test_the_tools_count_towards_the_models_limit_and_not_towards_the_window() -> None:
    docs = [MessageDoc(role="user", content="x" * 40) for _ in range(10)]
    each = message_tokens(docs[0], estimate_tokens)
    fixed = 8 + estimate_tokens(SYSTEM) + estimate_tokens(json.dumps(TOOLS[0]))
    tight = Window(10_000, SYSTEM, None, tools=TOOLS, max_prompt_tokens=fixed + 3 * each)
    assert len(tight.fit(docs)) == 3
    system = message_tokens(MessageDoc(role="system", content=SYSTEM), estimate_tokens)
    small = Window(system + 2 * each, SYSTEM, None, tools=TOOLS, max_prompt_tokens=10_000)
    assert len(small.fit(docs)) == 2


def test_a_prompt_without_room_for_a_message_is_named_as_such() -> None:
    with pytest.raises(NoRoomForMessages, match="a prompt may have 30"):
        Window(10_000, SYSTEM, None, tools=TOOLS, max_prompt_tokens=30)


def test_a_window_counts_each_text_once_with_the_tokenizer_it_is_given() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    window = Window(100, "system", count)
    docs = [MessageDoc(role="user", content=f"m{n}") for n in range(5)]
    window.fit(docs[:3])
    window.fit(docs)
    assert counted == ["system", "m0", "m1", "m2", "m3", "m4"]
