"""What a worker reports of its attempt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from app.contract.rollout import RolloutDoc, TokensDoc
from app.contract.words import (
    MOST_TASKS,
    Amount,
    Moment,
    Phase,
    Reward,
    StepNumber,
    TaskIds,
    Words,
)

RETRIED = "rollout_retried"
"""Type of the event that tells of a try of a rollout that was given up and made again."""

API_EVENTS = frozenset({"status", "phase", "checkpoint", "checkpoint_removed"})
"""Types of the events that the API itself records; a worker's would be taken for them."""


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class ReportBase(Words):
    """A report; its id is made by the sender, and a repeated id changes nothing."""

    id: str = Field(min_length=8, max_length=80)
    at: Moment = Field(default_factory=now)


class MetricsReport(ReportBase):
    """The metrics of one step, as VERL named them. Values that are not finite are counted apart."""

    kind: Literal["metrics"] = "metrics"
    step: StepNumber
    values: dict[Annotated[str, Field(max_length=500)], float] = Field(max_length=5_000)
    non_finite: int = Field(0, ge=0, le=1_000_000)


class RolloutReport(ReportBase):
    """A finished rollout."""

    kind: Literal["rollout"] = "rollout"
    rollout: RolloutDoc


class PlanReport(ReportBase):
    """What the attempt is going to do, known once the tasks are loaded."""

    kind: Literal["plan"] = "plan"
    train_tasks: TaskIds
    validation_tasks: TaskIds
    total_steps: StepNumber
    train_rollouts_per_step: StepNumber
    validation_rollouts: StepNumber


class TaskBaseline(Words):
    """What doing nothing and the reference actions earn on one task."""

    task_id: str = Field(max_length=500)
    do_nothing: Reward | None
    reference: Reward | None


class BaselinesReport(ReportBase):
    """Baselines of the run's own tasks."""

    kind: Literal["baselines"] = "baselines"
    tasks: list[TaskBaseline] = Field(max_length=MOST_TASKS, fail_fast=True)


class ProgressReport(ReportBase):
    """Where the attempt stands."""

    kind: Literal["progress"] = "progress"
    phase: Phase
    step: StepNumber
    epoch: StepNumber = 0
    note: str | None = None


class _RetriedData(BaseModel):
    """What is read of such an event's data; a model, so that an error has its whole path."""

    tokens: TokensDoc | None = None


class EventReport(ReportBase):
    """Something worth telling a person.

    A ``rollout_retried`` may have ``tokens`` in its data, a ``TokensDoc`` of the try that was
    given up: what its user simulator used counts too.
    """

    kind: Literal["event"] = "event"
    type: str = Field(max_length=200)
    data: dict[str, Any] = Field(default_factory=dict)

    @field_validator("type")
    @classmethod
    def _not_the_api_s_own(cls, kind: str) -> str:
        if kind in API_EVENTS:
            raise ValueError(f"events of type {kind!r} are recorded by the API alone")
        return kind

    @field_validator("data")
    @classmethod
    def _tokens_are_tokens(cls, data: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("type") == RETRIED:
            _RetriedData.model_validate(data)
        return data

    def retried_tokens(self) -> TokensDoc | None:
        """Tokens of the given-up try that this event tells of, where it does and has them."""
        return _RetriedData.model_validate(self.data).tokens if self.type == RETRIED else None


class LogReport(ReportBase):
    """Lines of the training process's output."""

    kind: Literal["log"] = "log"
    lines: list[str] = Field(max_length=5_000, fail_fast=True)


class CheckpointReport(ReportBase):
    """A whole checkpoint on the worker's disk."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: StepNumber
    path: str
    size_bytes: Amount
    validation_reward: Reward | None = None


class CheckpointRemovedReport(ReportBase):
    """A checkpoint that is on the worker's disk no longer."""

    kind: Literal["checkpoint_removed"] = "checkpoint_removed"
    step: StepNumber


Report = Annotated[
    MetricsReport
    | RolloutReport
    | PlanReport
    | BaselinesReport
    | ProgressReport
    | EventReport
    | LogReport
    | CheckpointReport
    | CheckpointRemovedReport,
    Field(discriminator="kind"),
]
