"""The presets, as partial configs: what they leave out has ``RunConfig``'s default."""

from __future__ import annotations

from typing import Any

TINY_CPU = "tiny-cpu"
RECIPE = "qwen2.5-1.5b-airline"

_MOCK_TASKS = [
    "create_task_1",
    "create_task_1_with_env_assertions",
    "create_task_1_nl_eval",
    "update_task_1",
    "update_task_with_message_history",
    "update_task_with_initialization_data",
    "update_task_with_initialization_actions",
    "update_task_with_history_and_env_assertions",
    "impossible_task_1",
]

PRESETS: dict[str, dict[str, Any]] = {
    # The default without a GPU: a tiny policy made by code learns τ²'s mock tasks in minutes.
    # Every training task is validated on too, and the API says so (curves.validation.trained_on).
    TINY_CPU: {
        "domain": "mock",
        "engine": "cpu",
        "seed": 0,
        "split": {
            "kind": "ids",
            # No action is scored in create_task_1_nl_eval: doing nothing is already right there.
            "train_ids": [task for task in _MOCK_TASKS if task != "create_task_1_nl_eval"],
            "validation_ids": _MOCK_TASKS,
        },
        "model": {"path": "tiny", "dtype": "float32", "warm_start": {}},
        "user_simulator": {"kind": "scripted"},
        "rollout": {
            "n": 8,
            "temperature": 1.0,
            "max_steps": 12,
            "window_tokens": 4000,
            "runners": 4,
            "timeout_seconds": 60,
        },
        "validation": {"before_training": True, "every_steps": 4, "temperature": 0.0},
        "training": {
            "epochs": 12,
            "max_steps": 12,
            "batch_tasks": 8,
            "learning_rate": 1.5e-4,
            "weight_decay": 0.0,
            "mini_batch": 2,
            "micro_batch": 16,
            "log_prob_micro_batch": 64,
            "reference_log_prob_micro_batch": 64,
            "max_prompt_tokens": 512,
            "max_response_tokens": 96,
            "sample_level": "trajectory",
            "trajectory_response_tokens": 512,
            "save_every": 4,
        },
        "resources": {
            "nodes": 1,
            "gpus_per_node": 0,
            "offload_parameters": False,
            "offload_optimizer": False,
        },
    },
    # The published recipe of the agent framework's τ² sample; one GPU of 80 GB.
    RECIPE: {
        "domain": "airline",
        "engine": "gpu",
        "split": {"kind": "seeded", "seed": 42, "train_fraction": 0.5},
        "model": {
            "path": "Qwen/Qwen2.5-1.5B-Instruct",
            "remove_padding": True,
            "gradient_checkpointing": True,
        },
        "user_simulator": {"kind": "openai", "model": "gpt-4.1", "temperature": 0.0},
        "rollout": {
            "n": 8,
            "temperature": 1.0,
            "max_steps": 100,
            "window_tokens": 4000,
            "runners": 4,
            "tool_format": "hermes",
        },
        "validation": {"before_training": True, "every_steps": 4, "temperature": 0.0},
        "training": {
            "algorithm": "grpo",
            "epochs": 8,
            "batch_tasks": 8,
            "learning_rate": 1e-6,
            "mini_batch": 8,
            "micro_batch": 4,
            "log_prob_micro_batch": 4,
            "reference_log_prob_micro_batch": 8,
            "clip_low": 0.2,
            "clip_high": 0.3,
            "kl_loss": False,
            "max_prompt_tokens": 8192,
            "max_response_tokens": 2048,
        },
        "resources": {
            "nodes": 1,
            "gpus_per_node": 1,
            "tensor_parallel": 1,
            "gpu_memory_utilization": 0.8,
            "offload_parameters": True,
            "offload_optimizer": True,
        },
        # The recipe logs to the console and Weights & Biases. Nothing leaves the machine unasked:
        # set tracking.backends to have them too.
        "tracking": {
            "backends": [],
            "project": "agent-framework-lab-lightning",
            "experiment": "tau2_agent",
        },
    },
}
