"""The words that the API and the workers share, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import app.contract
from app.contract import RunConfig, Words

Json = dict[str, Any]


def nested(path: str, value: Any) -> Json:
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def test_the_config_of_the_documentation_is_accepted_as_it_stands() -> None:
    documented = {
        "domain": "mock",
        "engine": "cpu",
        "seed": 0,
        "split": {
            "kind": "seeded",
            "seed": 42,
            "train_fraction": 0.5,
            "train_ids": None,
            "validation_ids": None,
            "only_nontrivial": False,
        },
        "model": {"path": "tiny", "lora_rank": 0},
        "user_simulator": {"kind": "scripted"},
        "rollout": {
            "n": 8,
            "temperature": 1.0,
            "max_steps": 100,
            "window_tokens": 4000,
            "runners": 4,
            "timeout_seconds": 600,
            "max_attempts": 3,
        },
        "validation": {
            "before_training": True,
            "every_steps": 4,
            "temperature": 0.0,
            "repeats": 1,
            "min_coverage": 0.9,
        },
        "training": {
            "algorithm": "grpo",
            "epochs": 8,
            "batch_tasks": 8,
            "learning_rate": 1e-6,
            "mini_batch": 8,
            "micro_batch": 4,
            "clip_low": 0.2,
            "clip_high": 0.3,
            "kl_loss": False,
            "max_prompt_tokens": 8192,
            "max_response_tokens": 2048,
            "save_every": 4,
            "keep_checkpoints": 2,
        },
        "reward": {"shape": "tau2"},
        "budget": {"max_user_tokens": None},
        "resources": {
            "nodes": 1,
            "gpus_per_node": 1,
            "tensor_parallel": 1,
            "gpu_memory_utilization": 0.8,
            "offload_parameters": True,
            "offload_optimizer": True,
        },
        "tracking": {"backends": [], "project": None, "experiment": None},
        "max_run_attempts": 3,
        "verl": {},
    }
    config = RunConfig.model_validate(documented)
    assert config.budget.max_user_tokens is None
    assert config.rollout.max_steps == 100


def test_what_is_not_supported_yet_says_so_and_names_its_field() -> None:
    for engine in ("cpu", "gpu"):
        with pytest.raises(ValidationError, match=r"resources.nodes.* is not supported yet"):
            RunConfig.model_validate({"engine": engine, **nested("resources.nodes", 2)})


def test_the_policy_samples_in_training_and_may_be_greedy_in_validation() -> None:
    assert RunConfig.model_validate({"validation": {"temperature": 0}}).validation.temperature == 0
    with pytest.raises(ValidationError, match="greater than 0"):
        RunConfig.model_validate({"rollout": {"temperature": 0}})


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("actor_rollout_ref.rollout.n", "is decided by rollout.n"),
        ("actor_rollout_ref.rollout.temperature", "is decided by rollout.temperature"),
        ("data.train_batch_size", "is decided by training.batch_tasks"),
        ("data.max_prompt_length", "is decided by training.max_prompt_tokens"),
        ("data.max_response_length", "is decided by training.max_response_tokens"),
        ("trainer.total_epochs", "is decided by training.epochs"),
        ("trainer.total_training_steps", "is decided by training.max_steps"),
        ("trainer.default_local_dir", "is decided by the attempt"),
        ("trainer.resume_mode", "is decided by the attempt"),
        ("trainer.resume_from_path", "is decided by the attempt"),
        ("agentlightning.trace_aggregator", "is decided by training.sample_level"),
        ("agentlightning.trace_aggregator.level", "is decided by training.sample_level"),
        ("tautrain", "is reserved"),
        ("tautrain.attempt", "is reserved"),
    ],
)
@pytest.mark.parametrize("value", [3, None])
def test_what_the_run_decides_itself_is_refused_in_the_verl_mapping(
    path: str, why: str, value: int | None
) -> None:
    with pytest.raises(ValidationError) as refused:
        RunConfig.model_validate({"verl": nested(path, value)})
    assert f"verl.{path} {why}" in str(refused.value)


def test_a_mapping_that_holds_such_settings_cannot_be_replaced_by_a_value() -> None:
    for path in ("actor_rollout_ref", "actor_rollout_ref.rollout", "trainer"):
        with pytest.raises(ValidationError, match=f"verl.{path} must be a mapping"):
            RunConfig.model_validate({"verl": nested(path, None)})


def test_everything_else_of_verl_may_be_set() -> None:
    verl = {"actor_rollout_ref": {"rollout": {"name": "x", "nn": 1}}, "data": {}, "trainers": 1}
    assert RunConfig.model_validate({"verl": verl}).verl == verl


def test_every_shared_model_has_its_place_in_the_package_s_own_names() -> None:
    def below(model: type[Words]) -> set[type[Words]]:
        return {model}.union(*(below(child) for child in model.__subclasses__()))

    ours = {model for model in below(Words) if model.__module__.startswith("app.contract")}
    assert len(ours) > 40
    assert {model.__name__ for model in ours} <= set(app.contract.__all__)
    assert all(hasattr(app.contract, name) for name in app.contract.__all__)
