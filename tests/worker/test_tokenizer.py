"""Claims about counting: what is counted before a request is what the server then reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.worker.rollouts.fakes import (
    Answer,
    call,
    calls,
    completion,
    converse,
    create,
    says,
    serving,
    spec,
    user,
)
from worker.cpu.chat import PromptBuilder
from worker.cpu.tiny import build_tokenizer
from worker.rollouts.endpoints import chat_model
from worker.tokenizer import PolicyTokenizer

# As Qwen's does: arguments are written as JSON, whatever they are.
QUOTING_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    made = build_tokenizer(["Create a task called 'Important Meeting'.", '{"user_id": "user_1"}'])
    made.save_pretrained(tmp_path)
    return made


def mixed(text: str, *made: Any) -> Answer:
    """Text and several calls in one message."""
    tool_calls = [
        {
            "id": f"m{n}",
            "type": "function",
            "function": {"name": content.name, "arguments": content.arguments},
        }
        for n, content in enumerate(made)
    ]
    body = json.dumps(completion(content=text, tool_calls=tool_calls)).encode()
    return lambda handler, _: handler.send(200, body)


def test_what_is_counted_is_what_the_server_is_sent(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "k")
    policy = PolicyTokenizer(str(tmp_path), parsed_arguments=False)
    counted: list[int] = []

    def count(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        counted.append(policy.prompt_tokens(messages, tools))
        return counted[-1]

    answers = [
        mixed("Let me see ✓.", call("get_users", {}), call("fly", '{"to": "moon"}')),
        calls("create_task", "{oops"),
        says("What is it called?"),
        mixed("", create()),
        says("Done."),
    ]
    with serving(*answers) as server:
        model = chat_model(model="m", base_url=server.url, api_key_env="TEST_KEY", temperature=0)
        document = converse(
            model,
            user("Create it.", "A meeting."),
            spec(max_prompt_tokens=100_000),
            count_tokens=policy.text_tokens,
            count_prompt=count,
        )
    assert document.reward == 1
    prompts = PromptBuilder(tokenizer)
    read = [len(prompts.ids(prompts.text(r["messages"], r["tools"]))) for r in server.requests]
    assert len(read) == 5
    assert counted[1:] == read
    assert counted[0] < read[0]


def test_a_rollout_of_the_tiny_policy_never_asks_for_more_than_its_limit(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "k")
    policy = PolicyTokenizer(str(tmp_path), parsed_arguments=False)
    prompts = PromptBuilder(tokenizer)
    with serving(mixed("Hm.", call("get_users", {})), says("And then, what do you want?")) as ask:
        model = chat_model(model="m", base_url=ask.url, api_key_env="TEST_KEY", temperature=0)
        first = converse(model, user("Go."), spec(max_steps=4))
        assert first.turns == 2
    request = ask.requests[0]
    limit = 150 + len(prompts.ids(prompts.text(request["messages"], request["tools"])))
    with serving(says("And then, what do you want?")) as server:
        model = chat_model(model="m", base_url=server.url, api_key_env="TEST_KEY", temperature=0)
        document = converse(
            model,
            user(*[f"The {n}. thing is this." for n in range(12)]),
            spec(max_prompt_tokens=limit, max_steps=60),
            count_tokens=policy.text_tokens,
            count_prompt=policy.prompt_tokens,
        )
    assert document.turns == 12
    sizes = [len(prompts.ids(prompts.text(r["messages"], r["tools"]))) for r in server.requests]
    assert max(sizes) <= limit
    assert len(server.requests[-1]["messages"]) < len(document.messages)
    assert max(sizes) > limit - 50, "no more is left out than must be"


def test_arguments_are_counted_as_the_server_shows_them_to_its_template(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.chat_template = QUOTING_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    function = {"name": "f", "arguments": '{"a": "b"}'}
    made = [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]
    as_object, as_text = (
        PolicyTokenizer(str(tmp_path), parsed_arguments=parsed).prompt_tokens(made, [])
        for parsed in (True, False)
    )
    assert as_object == len(tokenizer.encode('{"a": "b"}'))
    assert as_text == len(tokenizer.encode(json.dumps('{"a": "b"}')))


def test_a_tokenizer_without_a_template_counts_all_that_is_sent(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.chat_template = None
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(tmp_path)
    policy = PolicyTokenizer(str(tmp_path), parsed_arguments=True)
    message = {"role": "user", "content": "Create a task."}
    assert policy.prompt_tokens([message], []) > policy.text_tokens("Create a task.")
