"""Claims about the update: which tokens are trained, with which probabilities, and what moves."""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from app.contract import RunConfig
from worker.cpu.engine import MODEL_FOLDER, CpuActorWorker
from worker.training.algorithm import TautrainVERL
from worker.training.verl_config import verl_overrides

MESSAGES = [{"role": "user", "content": "Create a new task called 'Important Meeting'."}]


def _config(policy: Path) -> Any:
    run = RunConfig.model_validate(
        {
            "model": {"path": str(policy), "dtype": "float32"},
            "rollout": {"n": 4},
            "training": {
                "batch_tasks": 2,
                "mini_batch": 2,
                "micro_batch": 8,
                "learning_rate": 1e-3,
                "weight_decay": 0.0,
                "max_prompt_tokens": 128,
                "max_response_tokens": 24,
                "sample_level": "trajectory",
                "trajectory_response_tokens": 64,
            },
        }
    )
    overrides = verl_overrides(run, model_path=str(policy), checkpoints=policy / "checkpoints")
    config = TautrainVERL(overrides).config
    OmegaConf.resolve(config)
    return config.actor_rollout_ref


@pytest.fixture
def worker(policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuActorWorker]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {
        "WORLD_SIZE": "1",
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    made = CpuActorWorker(_config(policy_folder), seed=0)
    made.init_model()
    yield made
    made.close()


def _ask(worker: CpuActorWorker, seed: int) -> dict[str, Any]:
    answer = httpx.post(
        f"http://{worker.server_address()}/v1/chat/completions",
        json={"messages": MESSAGES, "temperature": 1.0, "seed": seed, "logprobs": True},
        trust_env=False,
        timeout=60,
    )
    answer.raise_for_status()
    body: dict[str, Any] = answer.json()
    return body


def _batch(replies: list[dict[str, Any]], rewards: list[float], pad: int) -> DataProto:
    """What agentlightning builds of one-turn rollouts of a single task."""
    prompt_width, width = 128, 64
    ids = torch.full((len(replies), prompt_width + width), pad)
    mask = torch.zeros_like(ids)
    for row, reply in enumerate(replies):
        prompt, sampled = reply["prompt_token_ids"], reply["choices"][0]["token_ids"]
        start, end = prompt_width - len(prompt), prompt_width + len(sampled)
        ids[row, start:end] = torch.tensor([*prompt, *sampled])
        mask[row, start:end] = 1
    response_mask = mask[:, prompt_width:]
    scores = torch.zeros(len(replies), width)
    scores[:, 0] = torch.tensor(rewards)
    advantages, _ = compute_grpo_outcome_advantage(
        scores, response_mask, np.array(["task"] * len(replies))
    )
    return DataProto.from_dict(
        tensors={
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": torch.clamp(mask.cumsum(-1) - 1, min=0),
            "responses": ids[:, prompt_width:],
            "response_mask": response_mask,
            "advantages": advantages,
        }
    )


def _update(worker: CpuActorWorker, rewards: list[float]) -> tuple[DataProto, dict[str, Any]]:
    replies = [_ask(worker, seed) for seed in range(len(rewards))]
    batch = _batch(replies, rewards, worker.tokenizer.pad_token_id)
    batch = batch.union(worker.compute_log_prob(batch).select(["old_log_probs"]))
    metrics = worker.update_actor(batch).meta_info["metrics"]
    return batch, metrics


def _weights(worker: CpuActorWorker) -> dict[str, torch.Tensor]:
    return copy.deepcopy(worker.model.state_dict())


def test_verls_log_probabilities_are_those_the_server_sampled_with(worker: CpuActorWorker) -> None:
    replies = [_ask(worker, seed) for seed in range(8)]
    batch = _batch(replies, [0.0] * 8, worker.tokenizer.pad_token_id)
    recomputed = worker.compute_log_prob(batch).batch["old_log_probs"]
    for row, reply in enumerate(replies):
        sampled = [token["logprob"] for token in reply["choices"][0]["logprobs"]["content"]]
        assert torch.allclose(recomputed[row, : len(sampled)], torch.tensor(sampled), atol=1e-4)


def test_the_audit_counts_every_trained_token_and_finds_each_sampled(
    worker: CpuActorWorker,
) -> None:
    batch, metrics = _update(worker, [1.0, 0.0] * 4)
    assert metrics["audit/trained_tokens"] == int(batch.batch["response_mask"].sum())
    assert metrics["audit/trained_tokens_not_sampled"] == 0
    assert metrics["audit/log_prob_difference_max"] < 1e-4


def test_the_audit_notices_a_token_that_was_not_sampled(worker: CpuActorWorker) -> None:
    replies = [_ask(worker, seed) for seed in range(8)]
    replies[3]["choices"][0]["token_ids"][0] ^= 1
    batch = _batch(replies, [1.0, 0.0] * 4, worker.tokenizer.pad_token_id)
    batch = batch.union(worker.compute_log_prob(batch).select(["old_log_probs"]))
    metrics = worker.update_actor(batch).meta_info["metrics"]
    changed = len(replies[3]["choices"][0]["token_ids"])
    assert metrics["audit/trained_tokens_not_sampled"] == changed


def test_a_group_whose_rewards_are_all_equal_moves_nothing(worker: CpuActorWorker) -> None:
    before = _weights(worker)
    for reward in (0.0, 1.0):
        _, metrics = _update(worker, [reward] * 8)
        assert metrics["actor/grad_norm"] == [0.0]
    after = worker.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_earned_more_becomes_likelier_and_what_earned_less_less_likely(
    worker: CpuActorWorker,
) -> None:
    batch, _ = _update(worker, [1.0] * 4 + [0.0] * 4)
    mask = batch.batch["response_mask"]
    before = (batch.batch["old_log_probs"] * mask).sum(1)
    after = (worker.compute_log_prob(batch).batch["old_log_probs"] * mask).sum(1)
    assert (after - before)[:4].mean() > 0 > (after - before)[4:].mean()


def test_tokens_outside_the_mask_are_not_trained(worker: CpuActorWorker) -> None:
    replies = [_ask(worker, seed) for seed in range(8)]
    batch = _batch(replies, [1.0, 0.0] * 4, worker.tokenizer.pad_token_id)
    batch = batch.union(worker.compute_log_prob(batch).select(["old_log_probs"]))
    before = _weights(worker)
    untrained = copy.deepcopy(batch)
    # One token alone is trained; whatever stands at the others must make no difference.
    untrained.batch["response_mask"][:, 1:] = 0
    worker.update_actor(untrained)
    first = _weights(worker)
    worker.model.load_state_dict(before)
    worker.optimizer.state.clear()
    untrained.batch["advantages"][:, 1:] = 1000.0
    untrained.batch["old_log_probs"][:, 1:] = -7.0
    worker.update_actor(untrained)
    second = worker.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], before[name]) for name in first)


def test_a_checkpoint_brings_back_model_and_optimizer_and_loads_with_transformers(
    worker: CpuActorWorker, tmp_path: Path
) -> None:
    _update(worker, [1.0, 0.0] * 4)
    saved = _weights(worker)
    target = tmp_path / "global_step_3" / "actor"
    worker.save_checkpoint(str(target), global_step=3)
    loaded = AutoModelForCausalLM.from_pretrained(target / MODEL_FOLDER).state_dict()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    batch, _ = _update(worker, [1.0, 0.0] * 4)
    continued = _weights(worker)
    worker.load_checkpoint(str(target))
    worker.update_actor(batch)
    again = worker.model.state_dict()
    assert all(torch.allclose(continued[name], again[name], atol=1e-7) for name in continued)
    assert not list(target.parent.glob("*.writing"))


def test_a_prompt_beyond_the_models_limit_is_refused_as_such(worker: CpuActorWorker) -> None:
    answer = httpx.post(
        f"http://{worker.server_address()}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "many words " * 200}]},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": [{}], "temperature": -1}])
def test_a_malformed_request_is_refused_and_the_server_goes_on(
    worker: CpuActorWorker, body: dict[str, Any]
) -> None:
    address = f"http://{worker.server_address()}/v1/chat/completions"
    assert httpx.post(address, json=body, trust_env=False).status_code == 422
    assert _ask(worker, 1)["choices"]
