"""Claims about sampling: batching and prefix caching change nothing that is sampled."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from worker.cpu.generate import Generation, Generator, Request

SEED = 20261201


def _prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Prompts of different lengths that share beginnings of different lengths."""
    draw = random.Random(SEED)
    shared = [draw.randrange(10, vocabulary) for _ in range(60)]
    return [
        shared[: draw.choice([20, 40, 60])]
        + [draw.randrange(10, vocabulary) for _ in range(draw.randrange(1, 30))]
        for _ in range(count)
    ]


def _recomputed(model: Qwen2ForCausalLM, prompt: list[int], reply: Generation) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *reply.ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0]


def test_a_batch_of_uneven_requests_samples_with_the_models_own_probabilities(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompts = _prompts(16, model.config.vocab_size)
    futures = [
        generator.submit(Request(prompt, 5 + 3 * i, 1.0, seed=i))
        for i, prompt in enumerate(prompts)
    ]
    for prompt, future in zip(prompts, futures, strict=True):
        reply = future.result(timeout=60)
        expected = _recomputed(model, prompt, reply)
        assert torch.allclose(torch.tensor(reply.log_probs), expected, atol=2e-5)


def test_a_request_gets_the_same_tokens_alone_and_in_a_batch(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompts = _prompts(8, model.config.vocab_size)
    alone = [
        generator.submit(Request(prompt, 12, 1.0, seed=i)).result(60).ids
        for i, prompt in enumerate(prompts)
    ]
    together = [
        future.result(60).ids
        for future in [
            generator.submit(Request(prompt, 12, 1.0, seed=i)) for i, prompt in enumerate(prompts)
        ]
    ]
    assert together == alone


def test_greedy_is_the_likeliest_token_each_time(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompt = _prompts(1, model.config.vocab_size)[0]
    reply = generator.submit(Request(prompt, 10, 0.0)).result(60)
    ids = list(prompt)
    for token in reply.ids:
        with torch.inference_mode():
            assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)


def test_after_an_update_no_old_prefix_is_used(
    tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompt = _prompts(1, model.config.vocab_size)[0]
    generator.submit(Request(prompt, 4, 0.0)).result(60)
    generator.pause()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        generator.resume()
        reply = generator.submit(Request(prompt, 4, 1.0, seed=1)).result(60)
        expected = _recomputed(model, prompt, reply)
        assert torch.allclose(torch.tensor(reply.log_probs), expected, atol=2e-5)
    finally:
        model.load_state_dict(before)


def test_while_paused_nothing_is_generated_and_afterwards_it_is(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompt = _prompts(1, model.config.vocab_size)[0]
    generator.pause()
    waiting = generator.submit(Request(prompt, 3, 0.0))
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0.3)
    generator.resume()
    assert waiting.result(timeout=60).ids


def test_pausing_from_a_thread_waits_for_what_is_running(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    prompts = _prompts(4, model.config.vocab_size)
    running = [generator.submit(Request(prompt, 60, 1.0, seed=3)) for prompt in prompts]
    paused = threading.Thread(target=generator.pause)
    paused.start()
    paused.join(timeout=60)
    assert not paused.is_alive()
    generator.resume()
    assert all(future.result(60).ids for future in running)


def test_two_prompts_with_one_seed_are_not_drawn_with_the_same_noise(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    """Turns of a conversation share a seed; with the same noise they would not be independent."""
    draws = []
    for first in range(40):
        one = generator.submit(Request([*range(20, 50), first], 1, 1.0, seed=7))
        two = generator.submit(Request([*range(20, 50), first, 5], 1, 1.0, seed=7))
        draws.append((one.result(60).ids, two.result(60).ids))
    assert sum(one == two for one, two in draws) < 20
    again = generator.submit(Request([*range(20, 50), 0], 1, 1.0, seed=7)).result(60).ids
    assert again == draws[0][0]


def test_when_the_models_thread_dies_nobody_waits_for_it(
    tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Generator(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(generator, "_take", lambda *_: False)
    monkeypatch.setattr(generator, "_select", lambda *_: 1 / 0)
    # Its first token leaves the row without any, which the next step cannot go on from; dropping
    # the batch then fails too, as a fault of ours would.
    running = generator.submit(Request([20, 21], 1, 0.0))
    assert isinstance(running.exception(timeout=20), IndexError)
    generator._thread.join(timeout=20)
    assert not generator._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        generator.submit(Request([20, 21], 1, 0.0))
    with pytest.raises(RuntimeError, match="closed"):
        generator.pause()


def test_a_request_that_cannot_be_served_fails_alone(
    model: Qwen2ForCausalLM, generator: Generator
) -> None:
    bad = generator.submit(Request([10**9], 3, 0.0))
    with pytest.raises(IndexError):
        bad.result(timeout=60)
    assert generator.submit(Request([20, 21, 22], 3, 0.0)).result(60).ids


def test_closing_answers_what_was_waiting(
    tokenizer: PreTrainedTokenizerFast, model: Qwen2ForCausalLM
) -> None:
    generator = Generator(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    generator.pause()
    waiting = generator.submit(Request([20, 21, 22], 3, 0.0))
    generator.close()
    with pytest.raises(RuntimeError, match="closed"):
        waiting.result(timeout=10)
    with pytest.raises(RuntimeError, match="closed"):
        generator.submit(Request([20], 3, 0.0))
