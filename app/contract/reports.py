"""What a worker reports of its attempt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from app.contract.rollout import RolloutDoc, TokensDoc
from app.contract.words import Phase, Words

RETRIED = "rollout_retried"
"""Type of the event that tells of a try of a rollout that was given up and made again."""


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class ReportBase(Words):
    """A report; its id is made by the sender, and a repeated id changes nothing."""

    id: str = Field(min_length=8, max_length=80)
    at: datetime = Field(default_factory=now)


class MetricsReport(ReportBase):
    """The metrics of one step, as VERL named them. Values that are not finite are counted apart."""

    kind: Literal["metrics"] = "metrics"
    step: int = Field(ge=0)
    values: dict[str, float]
    non_finite: int = 0


class RolloutReport(ReportBase):
    """A finished rollout."""

    kind: Literal["rollout"] = "rollout"
    rollout: RolloutDoc


class PlanReport(ReportBase):
    """What the attempt is going to do, known once the tasks are loaded."""

    kind: Literal["plan"] = "plan"
    train_tasks: list[str]
    validation_tasks: list[str]
    total_steps: int
    train_rollouts_per_step: int
    validation_rollouts: int


class TaskBaseline(Words):
    """What doing nothing and the reference actions earn on one task."""

    task_id: str
    do_nothing: float | None
    reference: float | None


class BaselinesReport(ReportBase):
    """Baselines of the run's own tasks."""

    kind: Literal["baselines"] = "baselines"
    tasks: list[TaskBaseline]


class ProgressReport(ReportBase):
    """Where the attempt stands."""

    kind: Literal["progress"] = "progress"
    phase: Phase
    step: int = Field(ge=0)
    epoch: int = Field(0, ge=0)
    note: str | None = None


class EventReport(ReportBase):
    """Something worth telling a person.

    A ``rollout_retried`` may have ``tokens`` in its data, a ``TokensDoc`` of the try that was
    given up: what its user simulator used counts too.
    """

    kind: Literal["event"] = "event"
    type: str
    data: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _tokens_are_tokens(self) -> EventReport:
        self.retried_tokens()
        return self

    def retried_tokens(self) -> TokensDoc | None:
        """Tokens of the given-up try that this event tells of, where it does and has them."""
        if self.type != RETRIED or self.data.get("tokens") is None:
            return None
        return TokensDoc.model_validate(self.data["tokens"])


class LogReport(ReportBase):
    """Lines of the training process's output."""

    kind: Literal["log"] = "log"
    lines: list[str]


class CheckpointReport(ReportBase):
    """A whole checkpoint on the worker's disk."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    size_bytes: int
    validation_reward: float | None = None


class CheckpointRemovedReport(ReportBase):
    """A checkpoint that is on the worker's disk no longer."""

    kind: Literal["checkpoint_removed"] = "checkpoint_removed"
    step: int


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
