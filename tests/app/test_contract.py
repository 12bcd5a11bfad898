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


@pytest.mark.parametrize(
    ("at", "kept"),
    [
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-12:00", None),
    ],
)
def test_a_report_s_time_is_kept_in_utc_or_refused(at: str, kept: str | None) -> None:
    report = {"id": "log-00001", "at": at, "lines": ["x"]}
    if kept is None:
        with pytest.raises(ValidationError, match="years 1 to 9999"):
            app.contract.LogReport.model_validate(report)
    else:
        dumped = app.contract.LogReport.model_validate(report).model_dump(mode="json")
        assert dumped["at"] == kept


ROLLOUT = {"id": "ro_1", "mode": "train", "domain": "mock", "task_id": "t", "outcome": "completed"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "1"},
        {"id": "ro_" + "x" * 65},
        {"id": "ro_a/b"},
        {"reward": 1.1e6},
        {"shaped_reward": -1e7},
        {"step": -1},
        {"step": 2**31},
        {"tokens": {"user_prompt": -1}},
        {"tokens": {"user_prompt": 2**53 + 1}},
        {"seconds": {"total": -1}},
        {"messages": [{"role": "user"}] * 10_001},
        {"messages": [{"role": "user", "tool_calls": [{}] * 1_001}]},
        {"checks": [{"kind": "db", "what": "w", "passed": True}] * 1_001},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_rollout_has_bounds(wrong: dict[str, Any]) -> None:
    whole = {**ROLLOUT, "reward": 1.0}
    app.contract.RolloutDoc.model_validate(whole)
    with pytest.raises(ValidationError) as refused:
        app.contract.RolloutDoc.model_validate({**whole, **wrong})
    assert str(refused.value.errors()[0]["loc"][0]) in wrong


PLAN = {"total_steps": 1, "train_rollouts_per_step": 1, "validation_rollouts": 1}
TOO_MANY = [str(i) for i in range(10_001)]


@pytest.mark.parametrize(
    "report",
    [
        {"kind": "log", "lines": TOO_MANY[:5_001]},
        {"kind": "metrics", "step": 1, "values": dict.fromkeys(TOO_MANY[:5_001], 1.0)},
        {"kind": "plan", **PLAN, "train_tasks": TOO_MANY, "validation_tasks": []},
        {"kind": "plan", **PLAN, "train_tasks": [], "validation_tasks": [], "total_steps": -1},
        {"kind": "checkpoint", "step": -1, "path": "/c", "size_bytes": 1},
        {"kind": "checkpoint", "step": 1, "path": "/c", "size_bytes": -1},
        {"kind": "checkpoint", "step": 1, "path": "/c", "size_bytes": 1, "validation_reward": 1e9},
        {"kind": "baselines", "tasks": [{"task_id": "t", "do_nothing": 1e9, "reference": None}]},
        {"kind": "event", "type": "status", "data": {"status": "succeeded"}},
    ],
    ids=lambda report: str(report)[:40],
)
def test_a_report_has_bounds_and_leaves_the_api_its_own_events(report: dict[str, Any]) -> None:
    batch = {"lease_token": "t", "reports": [{"id": "report-1", **report}]}
    with pytest.raises(ValidationError) as refused:
        app.contract.ReportBatch.model_validate(batch)
    assert refused.value.error_count() == 1


def test_a_run_that_succeeded_has_no_error() -> None:
    finish = {"lease_token": "t", "status": "succeeded", "error": {"code": "c", "message": "m"}}
    with pytest.raises(ValidationError, match="has no error"):
        app.contract.FinishRequest.model_validate(finish)
