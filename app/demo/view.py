"""A run's document as the demo reads it: the one place that knows the field names.

``None`` is "not known yet", as in the API, and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.contract import JUDGED, RunStatus

ENDED = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})


@dataclass(frozen=True)
class TrainPoint:
    """One training step."""

    step: int
    reward: float | None
    rollouts: int | None
    judged: int | None
    planned: int | None = None


@dataclass(frozen=True)
class Validation:
    """One validation; step 0 is before training."""

    step: int
    reward: float | None
    nontrivial: float | None
    planned: int | None
    judged: int | None
    complete: bool = True


@dataclass(frozen=True)
class Baselines:
    """What doing nothing and the reference actions earn on the same tasks."""

    do_nothing: float | None = None
    reference: float | None = None


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    code: str
    message: str
    log_tail: list[str]


@dataclass(frozen=True)
class RunView:
    """What the demo shows of a run."""

    id: str
    status: str
    phase: str | None = None
    attempt: int | None = None
    stop_reason: str | None = None
    step: int | None = None
    total_steps: int | None = None
    eta_seconds: float | None = None
    error: Failure | None = None
    train: list[TrainPoint] = field(default_factory=list)
    train_baselines: Baselines = field(default_factory=Baselines)
    validations: list[Validation] = field(default_factory=list)
    validation_baselines: Baselines = field(default_factory=Baselines)
    validation_tasks: int | None = None
    validation_tasks_trained_on: int | None = None
    rollouts: int = 0
    not_judged: int = 0
    checkpoint_path: str | None = None
    checkpoint_step: int | None = None
    checkpoint_reward: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ENDED


def read_run(document: Mapping[str, Any]) -> RunView:
    """Reads ``GET /runs/{id}``. A missing ``id`` or ``status`` is a ``KeyError``."""
    progress = document.get("progress") or {}
    curves = document.get("curves") or {}
    train = curves.get("train") or {}
    validation = curves.get("validation") or {}
    outcomes: Mapping[str, int] = document.get("outcomes") or {}
    checkpoint = document.get("best_checkpoint") or {}
    error = document.get("error")
    return RunView(
        id=document["id"],
        status=document["status"],
        phase=document.get("phase"),
        attempt=document.get("attempt"),
        stop_reason=document.get("stop_reason"),
        step=progress.get("step"),
        total_steps=progress.get("total_steps"),
        eta_seconds=progress.get("eta_seconds"),
        error=error and Failure(error["code"], error["message"], error.get("log_tail") or []),
        train=[
            TrainPoint(
                p["step"],
                p.get("reward_mean"),
                p.get("rollouts"),
                p.get("judged"),
                p.get("planned"),
            )
            for p in train.get("points") or []
        ],
        train_baselines=_baselines(train),
        validations=[
            Validation(
                p["step"],
                p.get("reward_mean"),
                p.get("reward_mean_nontrivial"),
                p.get("planned"),
                p.get("judged"),
                p["complete"],
            )
            for p in validation.get("points") or []
        ],
        validation_baselines=_baselines(validation),
        validation_tasks=validation.get("tasks"),
        validation_tasks_trained_on=validation.get("trained_on"),
        rollouts=sum(outcomes.values()),
        not_judged=sum(n for outcome, n in outcomes.items() if outcome not in JUDGED),
        checkpoint_path=checkpoint.get("path"),
        checkpoint_step=checkpoint.get("step"),
        checkpoint_reward=checkpoint.get("validation_reward"),
    )


def _baselines(curve: Mapping[str, Any]) -> Baselines:
    known = curve.get("baselines") or {}
    return Baselines(known.get("do_nothing"), known.get("reference"))
