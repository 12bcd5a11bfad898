"""From a run's config to VERL's own, with nothing left to VERL's defaults that a run decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.contract import Engine, RunConfig


def verl_overrides(
    config: RunConfig,
    *,
    model_path: str,
    checkpoints: Path,
    total_steps: int | None = None,
    resume_from: Path | None = None,
) -> dict[str, Any]:
    """What is merged over the defaults that agentlightning packages.

    ``config.verl`` is merged last, as it is.

    Args:
        total_steps: The number of the last step, which is validated and saved; None leaves it to
            VERL to count epochs.
        resume_from: Checkpoint to continue from, a folder ``global_step_<n>``; None starts anew.
    """
    on_gpu = config.engine is Engine.GPU
    overrides: dict[str, Any] = {
        "algorithm": {"adv_estimator": config.training.algorithm, "use_kl_in_reward": False},
        "agentlightning": {"trace_aggregator": _trace_aggregator(config)},
        "data": {
            "train_batch_size": config.training.batch_tasks,
            "max_prompt_length": config.training.max_prompt_tokens,
            "max_response_length": config.training.max_response_tokens,
            "seed": config.seed,
            # Tasks are ids: worker processes to load them would only cost start-up time.
            "dataloader_num_workers": 0,
        },
        "actor_rollout_ref": {
            "model": _model(config, model_path),
            "actor": _actor(config),
            "ref": _reference(config),
            "rollout": _rollout(config),
        },
        "trainer": {
            **_trainer(config, checkpoints),
            "total_training_steps": total_steps,
            "resume_mode": "resume_path" if resume_from else "disable",
            "resume_from_path": str(resume_from) if resume_from else None,
        },
    }
    if not on_gpu:
        overrides["trainer"]["device"] = "cpu"
        overrides["trainer"]["balance_batch"] = False
    return deep_merge(overrides, config.verl)


def deep_merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid on it, mapping by mapping; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = deep_merge(before, value)
        else:
            merged[key] = value
    return merged


def _trace_aggregator(config: RunConfig) -> dict[str, Any]:
    training = config.training
    return {
        "level": training.sample_level,
        "trajectory_max_prompt_length": training.max_prompt_tokens,
        "trajectory_max_response_length": training.trajectory_response_tokens,
    }


def _model(config: RunConfig, path: str) -> dict[str, Any]:
    model = config.model
    settings: dict[str, Any] = {
        "path": path,
        "use_remove_padding": model.remove_padding,
        "enable_gradient_checkpointing": model.gradient_checkpointing,
        "lora_rank": model.lora_rank,
    }
    if model.attention is not None:
        settings["override_config"] = {"attn_implementation": model.attention}
    return settings


def _actor(config: RunConfig) -> dict[str, Any]:
    training, resources = config.training, config.resources
    samples = training.mini_batch * config.rollout.n
    return {
        "ppo_mini_batch_size": training.mini_batch,
        # VERL divides the one by the other to scale the loss: a pass is at most the mini-batch.
        "ppo_micro_batch_size_per_gpu": min(training.micro_batch, samples),
        "ppo_epochs": training.ppo_epochs,
        "clip_ratio_low": training.clip_low,
        "clip_ratio_high": training.clip_high,
        "use_kl_loss": training.kl_loss,
        "kl_loss_coef": training.kl_coefficient,
        "entropy_coeff": training.entropy_coefficient,
        "grad_clip": training.gradient_clip,
        "use_torch_compile": config.engine is Engine.GPU,
        "optim": {"lr": training.learning_rate, "weight_decay": training.weight_decay},
        "fsdp_config": {
            "param_offload": resources.offload_parameters,
            "optimizer_offload": resources.offload_optimizer,
            # autocast follows it, on a CPU too: bfloat16 moves log-probabilities by 0.2.
            "dtype": config.model.dtype,
        },
    }


def _reference(config: RunConfig) -> dict[str, Any]:
    return {
        "log_prob_micro_batch_size_per_gpu": config.training.reference_log_prob_micro_batch,
        "fsdp_config": {"param_offload": config.resources.offload_parameters},
    }


def _rollout(config: RunConfig) -> dict[str, Any]:
    resources = config.resources
    settings: dict[str, Any] = {
        "name": "vllm",
        "n": config.rollout.n,
        "temperature": config.rollout.temperature,
        "tensor_model_parallel_size": resources.tensor_parallel,
        "gpu_memory_utilization": resources.gpu_memory_utilization,
        "log_prob_micro_batch_size_per_gpu": config.training.log_prob_micro_batch,
        "multi_turn": {"format": config.rollout.tool_format},
    }
    if config.engine is Engine.GPU:
        # verl 0.6.1 does not turn multi_turn.format into a tool parser, and vLLM refuses every
        # request with tools without one. Ends when verl passes the parser on itself.
        settings["engine_kwargs"] = {
            "vllm": {
                "enable_auto_tool_choice": True,
                "tool_call_parser": config.rollout.tool_format,
            }
        }
    return settings


def _trainer(config: RunConfig, checkpoints: Path) -> dict[str, Any]:
    tracking = config.tracking
    settings: dict[str, Any] = {
        "n_gpus_per_node": max(1, config.resources.gpus_per_node),
        "nnodes": config.resources.nodes,
        "logger": list(tracking.backends),
        "val_before_train": config.validation.before_training,
        "test_freq": config.validation.every_steps,
        "save_freq": config.training.save_every,
        "total_epochs": config.training.epochs,
        "critic_warmup": 0,
        "default_local_dir": str(checkpoints),
    }
    if tracking.project is not None:
        settings["project_name"] = tracking.project
    if tracking.experiment is not None:
        settings["experiment_name"] = tracking.experiment
    return settings
