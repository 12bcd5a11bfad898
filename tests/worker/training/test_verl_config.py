"""Claims about VERL's config: the published recipe is composed as it was published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.utils.config import validate_config

from app.contract import RunConfig
from app.presets import PRESETS
from worker.training.algorithm import TautrainVERL
from worker.training.verl_config import deep_merge, verl_overrides

RECIPE = "qwen2.5-1.5b-airline"


def _composed(config: RunConfig) -> Any:
    overrides = verl_overrides(config, model_path=config.model.path, checkpoints=Path("ckpt"))
    composed = TautrainVERL(overrides).config
    OmegaConf.resolve(composed)
    return composed


@pytest.fixture(scope="module")
def recipe() -> Any:
    return _composed(RunConfig.model_validate(PRESETS[RECIPE]))


@pytest.mark.parametrize(
    ("path", "published"),
    [
        ("algorithm.adv_estimator", "grpo"),
        ("algorithm.use_kl_in_reward", False),
        ("agentlightning.trace_aggregator.level", "transition"),
        ("data.train_batch_size", 8),
        ("data.max_prompt_length", 8192),
        ("data.max_response_length", 2048),
        ("actor_rollout_ref.rollout.name", "vllm"),
        ("actor_rollout_ref.rollout.mode", "async"),
        ("actor_rollout_ref.rollout.n", 8),
        ("actor_rollout_ref.rollout.temperature", 1.0),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 1),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", 0.8),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", 4),
        ("actor_rollout_ref.rollout.multi_turn.format", "hermes"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.enable_auto_tool_choice", True),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser", "hermes"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 8),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 4),
        ("actor_rollout_ref.actor.optim.lr", 1e-6),
        ("actor_rollout_ref.actor.use_kl_loss", False),
        ("actor_rollout_ref.actor.entropy_coeff", 0),
        ("actor_rollout_ref.actor.clip_ratio_low", 0.2),
        ("actor_rollout_ref.actor.clip_ratio_high", 0.3),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", True),
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload", True),
        ("actor_rollout_ref.actor.fsdp_config.dtype", "bfloat16"),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", 8),
        ("actor_rollout_ref.ref.fsdp_config.param_offload", True),
        ("actor_rollout_ref.model.path", "Qwen/Qwen2.5-1.5B-Instruct"),
        ("actor_rollout_ref.model.use_remove_padding", True),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", True),
        ("trainer.n_gpus_per_node", 1),
        ("trainer.nnodes", 1),
        ("trainer.val_before_train", True),
        ("trainer.test_freq", 4),
        ("trainer.total_epochs", 8),
        ("trainer.project_name", "agent-framework-lab-lightning"),
        ("trainer.experiment_name", "tau2_agent"),
        ("trainer.device", "cuda"),
    ],
)
def test_the_recipe_has_its_published_value(recipe: Any, path: str, published: Any) -> None:
    assert OmegaConf.select(recipe, path, throw_on_missing=True) == published


def test_the_recipe_sends_nothing_to_a_tracker_unless_asked(recipe: Any) -> None:
    assert list(recipe.trainer.logger) == []


def test_the_recipe_with_its_trackers_names_them() -> None:
    tracked = deep_merge(PRESETS[RECIPE], {"tracking": {"backends": ["console", "wandb"]}})
    assert list(_composed(RunConfig.model_validate(tracked)).trainer.logger) == ["console", "wandb"]


def test_the_rest_of_the_recipe_stands_in_the_run_config() -> None:
    config = RunConfig.model_validate(PRESETS[RECIPE])
    assert config.domain == "airline"
    assert config.engine == "gpu"
    assert config.split.model_dump(include={"kind", "seed", "train_fraction"}) == {
        "kind": "seeded",
        "seed": 42,
        "train_fraction": 0.5,
    }
    assert config.user_simulator.model_dump() == {
        "kind": "openai",
        "model": "gpt-4.1",
        "base_url": None,
        "api_key_env": "OPENAI_API_KEY",
        "temperature": 0.0,
    }
    assert config.rollout.max_steps == 100
    assert config.rollout.window_tokens == 4000
    assert config.rollout.runners == 4
    assert config.validation.temperature == 0.0


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_verl_accepts_each_preset(preset: str) -> None:
    config = RunConfig.model_validate(PRESETS[preset])
    validate_config(
        _composed(config), use_reference_policy=config.training.kl_loss, use_critic=False
    )


def test_the_free_mapping_is_merged_last() -> None:
    config = RunConfig.model_validate(
        deep_merge(
            PRESETS["tiny-cpu"],
            {"verl": {"actor_rollout_ref": {"actor": {"clip_ratio_c": 9.0, "entropy_coeff": 0.5}}}},
        )
    )
    actor = _composed(config).actor_rollout_ref.actor
    assert actor.clip_ratio_c == 9.0
    assert actor.entropy_coeff == 0.5
    assert actor.ppo_micro_batch_size_per_gpu == config.training.micro_batch


def test_a_pass_is_at_most_the_mini_batch() -> None:
    small = deep_merge(PRESETS["tiny-cpu"], {"rollout": {"n": 2}})
    config = RunConfig.model_validate(small)
    assert config.training.micro_batch > config.training.mini_batch * 2
    actor = _composed(config).actor_rollout_ref.actor
    assert actor.ppo_micro_batch_size_per_gpu == config.training.mini_batch * 2
    with pytest.raises(ValueError, match="micro_batch"):
        RunConfig.model_validate(deep_merge(small, {"training": {"micro_batch": 3}}))


def test_attention_is_left_to_the_engine_or_named() -> None:
    named = deep_merge(PRESETS[RECIPE], {"model": {"attention": "sdpa"}})
    composed = _composed(RunConfig.model_validate(named))
    assert composed.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
