"""The presets: the published recipe, value by value, and the CPU default."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from app.contract import RunConfig
from app.presets import PRESETS, RECIPE, TINY_CPU
from app.resolve import resolve
from app.run_documents import RunRequest


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_can_be_queued_as_it_is(name: str) -> None:
    resolved = resolve(RunRequest(preset=name), TINY_CPU)
    assert resolved.steps > 0


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_sends_nothing_to_a_tracker(name: str) -> None:
    assert RunConfig.model_validate(PRESETS[name]).tracking.backends == []


def test_the_gpu_preset_is_the_published_recipe() -> None:
    config = RunConfig.model_validate(PRESETS[RECIPE]).model_dump(mode="json")
    assert (config["domain"], config["engine"]) == ("airline", "gpu")
    split = config["split"]
    assert (split["kind"], split["seed"], split["train_fraction"]) == ("seeded", 42, 0.5)
    user = config["user_simulator"]
    assert (user["kind"], user["model"], user["temperature"]) == ("openai", "gpt-4.1", 0.0)
    assert (user["api_key_env"], user["base_url"]) == ("OPENAI_API_KEY", None)
    rollout = config["rollout"]
    assert (rollout["n"], rollout["max_steps"], rollout["window_tokens"]) == (8, 100, 4000)
    assert (rollout["runners"], rollout["tool_format"]) == (4, "hermes")
    expected = {
        "algorithm": "grpo",
        "kl_loss": False,
        "clip_low": 0.2,
        "clip_high": 0.3,
        "learning_rate": 1e-6,
        "epochs": 8,
        "batch_tasks": 8,
        "mini_batch": 8,
        "micro_batch": 4,
        "log_prob_micro_batch": 4,
        "reference_log_prob_micro_batch": 8,
        "max_prompt_tokens": 8192,
        "max_response_tokens": 2048,
    }
    assert {key: config["training"][key] for key in expected} == expected
    assert config["model"]["path"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert config["model"]["remove_padding"]
    assert config["model"]["gradient_checkpointing"]
    resources = config["resources"]
    assert (resources["nodes"], resources["gpus_per_node"]) == (1, 1)
    assert (resources["tensor_parallel"], resources["gpu_memory_utilization"]) == (1, 0.8)
    assert resources["offload_parameters"]
    assert resources["offload_optimizer"]
    validation = config["validation"]
    assert (validation["before_training"], validation["every_steps"]) == (True, 4)
    tracking = config["tracking"]
    assert tracking["project"] == "agent-framework-lab-lightning"
    assert tracking["experiment"] == "tau2_agent"


def test_the_cpu_preset_needs_no_gpu_no_key_and_no_hub() -> None:
    config = RunConfig.model_validate(PRESETS[TINY_CPU])
    assert (config.engine, config.resources.gpus_per_node) == ("cpu", 0)
    assert (config.model.path, config.user_simulator.kind) == ("tiny", "scripted")


def test_presets_are_shown_resolved(client: TestClient) -> None:
    shown = client.get("/presets").json()
    assert [item["name"] for item in shown["items"]] == list(PRESETS)
    assert shown["items"][0]["config"]["max_run_attempts"] == 3
