"""A tiny policy without a warm start, quick to make, shared by the tests of the CPU engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from worker.cpu.generate import Generator
from worker.cpu.tiny import build_model, build_tokenizer, save

TEXTS = [
    "You are a customer service agent. Create a new task called 'Important Meeting'.",
    '<tool_call>\n{"name": "create_task", "arguments": {"user_id": "user_1"}}\n</tool_call>',
    "<|im_start|>assistant\nI have created the task.<|im_end|>\n",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return build_model(tokenizer, seed=0).eval()


@pytest.fixture(scope="session")
def policy_folder(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save(model, tokenizer, folder)
    return folder


@pytest.fixture
def generator(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Iterator[Generator]:
    serving = Generator(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    yield serving
    serving.close()
