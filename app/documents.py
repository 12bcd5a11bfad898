"""The documents about everything but runs that people and their programs get; workers' words are
in ``app/contract``. ``null`` means not known yet, never 0."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from app.contract import (
    CheckDoc,
    Domain,
    Engine,
    MessageDoc,
    Outcome,
    RolloutMode,
    RunConfig,
    RunStatus,
    SecondsDoc,
    TokensDoc,
)
from app.run_documents import Baselines, Curves


class RolloutItem(BaseModel):
    """A rollout, as lists have it."""

    id: str
    run_id: str | None
    attempt: int | None
    step: int | None
    mode: RolloutMode
    domain: Domain
    task_id: str
    outcome: Outcome
    termination: str | None
    cause: str | None
    reward: float | None
    shaped_reward: float | None
    reward_breakdown: dict[str, float]
    checks: list[CheckDoc]
    turns: int
    tokens: TokensDoc
    seconds: SecondsDoc
    text_repaired: bool
    at: datetime


class RolloutDetail(RolloutItem):
    """A rollout with its conversation and the baselines of its task."""

    baselines: Baselines
    messages: list[MessageDoc]


class MetricSeries(BaseModel):
    """One metric: its points are (step, value, at)."""

    name: str
    points: list[tuple[int, float, datetime]]


class Metrics(BaseModel):
    """Metric series of a run."""

    series: list[MetricSeries]
    non_finite: int = Field(description="Values that were NaN or infinite, and are left out.")


class EventDoc(BaseModel):
    """Something that happened to a run."""

    id: str
    seq: int
    type: str
    at: datetime
    attempt: int
    data: dict[str, Any]


class LogLineDoc(BaseModel):
    """A line of the training process's output."""

    seq: int
    at: datetime
    attempt: int
    text: str


class CheckpointDoc(BaseModel):
    """A checkpoint on the worker's disk."""

    step: int
    attempt: int
    path: str
    size_bytes: int
    validation_reward: float | None
    at: datetime


class DomainDoc(BaseModel):
    """A domain and the sizes of its splits."""

    domain: Domain
    tasks: int
    splits: dict[str, int]


class TaskItem(BaseModel):
    """A task, as lists have it."""

    domain: Domain
    task_id: str
    description: str | None
    splits: list[str]
    baselines: Baselines


class TaskDetail(TaskItem):
    """A task as τ² has it."""

    task: dict[str, Any]


class PresetDoc(BaseModel):
    """A preset, with every default filled in."""

    name: str
    config: RunConfig


class Presets(BaseModel):
    """The presets, and the one that ``POST /runs`` with ``{}`` would take now."""

    items: list[PresetDoc]
    default: str


class ComparedRun(BaseModel):
    """A run in a comparison."""

    id: str
    name: str
    status: RunStatus
    curves: Curves


class ConfigDifference(BaseModel):
    """A field whose value is not the same in all runs."""

    path: str
    values: dict[str, Any] = Field(description="By run id.")


class Comparison(BaseModel):
    """Runs side by side."""

    runs: list[ComparedRun]
    config_differences: list[ConfigDifference]


class WorkerDoc(BaseModel):
    """A registered worker."""

    id: str
    name: str
    engines: list[Engine]
    cpus: int
    memory_bytes: int
    gpus: int
    versions: dict[str, str]
    registered_at: datetime
    seen_at: datetime
    live: bool = Field(description="Whether it was heard of within a lease's time.")


class FinishAnswer(BaseModel):
    """What the run has become."""

    status: RunStatus


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """The database answers, and has this version's schema."""

    status: str = "ready"
    revision: str


class RolloutPage(BaseModel):
    """A page of rollouts, newest first."""

    items: list[RolloutItem]
    next_cursor: str | None


class EventPage(BaseModel):
    """A page of events, oldest first; a seq is a cursor too."""

    items: list[EventDoc]
    next_cursor: str | None


class LogPage(BaseModel):
    """Log lines, oldest first; a seq is a cursor too."""

    items: list[LogLineDoc]
    next_cursor: str | None


class CheckpointPage(BaseModel):
    """A page of checkpoints, newest first."""

    items: list[CheckpointDoc]
    next_cursor: str | None


class TaskPage(BaseModel):
    """A page of tasks, with the domains."""

    domains: list[DomainDoc]
    items: list[TaskItem]
    next_cursor: str | None


class WorkerPage(BaseModel):
    """A page of workers, newest first."""

    items: list[WorkerDoc]
    next_cursor: str | None
