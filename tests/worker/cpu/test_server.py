"""Claims about the policy's server: its limit on a prompt is one that a client can count."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient
from transformers import PreTrainedTokenizerFast

from worker.cpu.chat import PromptBuilder
from worker.cpu.generate import Generator
from worker.cpu.server import PolicyServer


def test_a_prompt_within_the_limit_is_served_though_it_was_sampled_with_more_tokens(
    generator: Generator, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompts = PromptBuilder(tokenizer)
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Create a task."}]
    text = prompts.text(asked, None)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "created"]
    prompts.remember(text, prompts.encode(text), [*letters, tokenizer.eos_token_id], 7)
    later = [
        *asked,
        {"role": "assistant", "content": "created"},
        {"role": "user", "content": "Thank you."},
    ]
    rendered = prompts.text(later, None)
    limit = len(prompts.encode(rendered))
    assert len(prompts.ids(rendered, 7)) > limit
    for allowed, status in ((limit, 200), (limit - 1, 400)):
        server = PolicyServer(
            generator, prompts, model_name="m", max_prompt_tokens=allowed, max_response_tokens=2
        )
        with TestClient(server._app()) as client:
            answer = client.post("/v1/chat/completions", json={"messages": later, "seed": 7})
        server._socket.close()
        assert answer.status_code == status
        if status == 200:
            assert answer.json()["prompt_token_ids"] == prompts.encode(rendered)
