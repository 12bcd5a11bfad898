"""Claims about messages and tokens: what was sampled stays as it was sampled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from worker.cpu.chat import PromptBuilder, parse_reply

TOOLS = [
    {
        "type": "function",
        "function": {"name": "create_task", "parameters": {"properties": {"user_id": {}}}},
    }
]
ASK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "Create a task."},
]
CALL = '<tool_call>\n{"name": "create_task", "arguments": {"user_id": "user_1"}}\n</tool_call>'


def test_a_tool_call_is_rendered_as_it_was_generated(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = PromptBuilder(tokenizer)
    first = prompts.text(ASK, TOOLS)
    message = parse_reply(CALL)
    later = [*ASK, message, {"role": "tool", "tool_call_id": "x", "content": "{}"}]
    assert prompts.text(later, TOOLS).startswith(first + CALL + "<|im_end|>")


def test_a_later_prompt_starts_with_the_sampled_ids_even_where_encoding_would_differ(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompts = PromptBuilder(tokenizer)
    text = prompts.text(ASK, TOOLS)
    ids = prompts.ids(text)
    # One token for each byte: never what the tokenizer itself would choose.
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "created"]
    sampled = [*letters, tokenizer.eos_token_id]
    assert prompts.decode(letters) == "created"
    assert list(tokenizer.encode("created")) != letters
    prompts.remember(text, ids, sampled)
    later = [
        *ASK,
        {"role": "assistant", "content": "created"},
        {"role": "user", "content": "Thank you."},
    ]
    assert prompts.ids(prompts.text(later, TOOLS))[: len(ids) + len(sampled)] == [*ids, *sampled]


def test_conversations_that_say_the_same_with_other_tokens_stay_apart(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompts = PromptBuilder(tokenizer)
    text = prompts.text(ASK, TOOLS)
    ids = prompts.ids(text)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "created"]
    tokens = list(tokenizer.encode("created"))
    later = prompts.text(
        [*ASK, {"role": "assistant", "content": "created"}, {"role": "user", "content": "Thanks."}],
        TOOLS,
    )
    for conversation, sampled in ((1, letters), (2, tokens)):
        prompts.remember(text, ids, [*sampled, tokenizer.eos_token_id], conversation)
    for conversation, sampled in ((1, letters), (2, tokens)):
        whole = [*ids, *sampled, tokenizer.eos_token_id]
        assert prompts.ids(later, conversation)[: len(whole)] == whole


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "Ünïcödé 漢字 \x00 \t {}[]\\ 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "create_task"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "<tool_call>[1, 2]</tool_call>",
        "<tool_call>",
        "",
    ],
)
def test_what_is_no_tool_call_stays_text(text: str) -> None:
    message = parse_reply(text)
    assert message["tool_calls"] is None
    assert (message["content"] or "") == text


def test_several_calls_and_text_are_all_kept() -> None:
    message = parse_reply(f"First this. {CALL}\n{CALL}")
    assert message["content"] == "First this."
    arguments = [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]]
    assert arguments == [{"user_id": "user_1"}] * 2
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
