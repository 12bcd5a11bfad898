"""The tables. The API is their only writer; ``migrations/`` holds the same schema step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, DateTime, ForeignKey, Index, LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

# Named constraints can be altered later; SQLite's own are nameless.
SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite keeps no zone, so it is taken off on the way in and put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database. A time without a zone is taken as UTC."""
        if value is None:
            return None
        value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From the database, always with a zone."""
        if value is None or value.tzinfo:
            return value
        return value.replace(tzinfo=UTC)


def _run_id(**options: Any) -> Any:
    """A column that names a run and goes with it."""
    nullable = options.pop("nullable", False)
    key = ForeignKey("run.id", ondelete="CASCADE")
    return Field(sa_column=Column(key, nullable=nullable, **options))


def _json(nullable: bool = False) -> Any:
    return Field(sa_column=Column(JSON(none_as_null=True), nullable=nullable))


class Run(SQLModel, table=True):
    """One training run, and where it stands."""

    __table_args__ = (Index(None, "status", "engine"), Index(None, "domain"), Index(None, "preset"))

    id: str = Field(primary_key=True)
    name: str
    preset: str
    tags: list[str] = _json()
    domain: str
    engine: str
    status: str
    phase: str | None = None
    attempt: int = 0
    """The newest attempt's number; 0 before the first claim."""
    attempts_allowed: int
    worker_id: str | None = None
    created_at: datetime = Field(sa_type=UtcDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    epoch: int = 0
    step: int = 0
    progress_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """When the sender of the newest progress report made it."""
    total_steps: int | None = None
    train_rollouts_per_step: int | None = None
    """What the newest plan report says; not known before."""
    validation_rollouts: int | None = None
    train_tasks: list[str] = _json()
    validation_tasks: list[str] = _json()
    config: dict[str, Any] = _json()
    config_overrides: dict[str, Any] = _json()
    error: dict[str, Any] | None = _json(nullable=True)
    stop_reason: str | None = None
    retry_of: str | None = None
    resume_from: str | None = None
    """The checkpoint that the next attempt continues from."""
    outcomes: dict[str, int] = _json()
    user_prompt_tokens: int = Field(default=0, sa_type=BigInteger)
    user_completion_tokens: int = Field(default=0, sa_type=BigInteger)
    non_finite_metrics: int = 0
    last_event: int = 0
    """The newest event's seq."""
    last_line: int = 0
    """The newest log line's seq."""


class Attempt(SQLModel, table=True):
    """One claim of a run by a worker, and the lease that goes with it."""

    __table_args__ = (Index(None, "status", "lease_expires_at"),)

    run_id: str = _run_id(primary_key=True)
    number: int = Field(primary_key=True)
    worker_id: str
    status: str = "running"
    """running, succeeded, failed, cancelled, handed_back or lapsed."""
    lease_token: str
    lease_expires_at: datetime = Field(sa_type=UtcDateTime)
    claimed_at: datetime = Field(sa_type=UtcDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    error: dict[str, Any] | None = _json(nullable=True)
    stop_reason: str | None = None
    resume_from: str | None = None
    first_step: int | None = None
    """The first training step it reached, and when: the start of the pace."""
    first_step_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    last_step_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class Worker(SQLModel, table=True):
    """A process that claims runs."""

    id: str = Field(primary_key=True)
    name: str
    engines: list[str] = _json()
    cpus: int
    memory_bytes: int = Field(sa_type=BigInteger)
    gpus: int
    versions: dict[str, str] = _json()
    registered_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)


class Rollout(SQLModel, table=True):
    """One rollout: what is searched for as columns, the document without its messages as JSON,
    and the messages as compressed JSON."""

    __table_args__ = (Index(None, "run_id", "mode", "step"), Index(None, "run_id", "id"))

    id: str = Field(primary_key=True)
    run_id: str | None = _run_id(nullable=True)
    attempt: int | None = None
    step: int | None = None
    mode: str
    task_id: str
    outcome: str
    reward: float | None = None
    shaped_reward: float | None = None
    at: datetime = Field(sa_type=UtcDateTime)
    summary: dict[str, Any] = _json()
    messages: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class MetricPoint(SQLModel, table=True):
    """One value of one metric at one step; a step done again replaces it."""

    __tablename__ = "metric_point"
    __table_args__ = {"sqlite_with_rowid": False}

    run_id: str = _run_id(primary_key=True)
    name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    value: float
    at: datetime = Field(sa_type=UtcDateTime)


class CurvePoint(SQLModel, table=True):
    """One point of a reward curve, made from the rollouts of its step."""

    __tablename__ = "curve_point"

    run_id: str = _run_id(primary_key=True)
    mode: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    attempt: int
    at: datetime = Field(sa_type=UtcDateTime)
    values: dict[str, Any] = _json()


class Event(SQLModel, table=True):
    """Something that happened to a run; ``seq`` counts from 1 without a gap."""

    run_id: str = _run_id(primary_key=True)
    seq: int = Field(primary_key=True)
    id: str
    type: str
    at: datetime = Field(sa_type=UtcDateTime)
    attempt: int
    data: dict[str, Any] = _json()


class LogLine(SQLModel, table=True):
    """A line of the training process's output."""

    __tablename__ = "log_line"

    run_id: str = _run_id(primary_key=True)
    seq: int = Field(primary_key=True)
    at: datetime = Field(sa_type=UtcDateTime)
    attempt: int
    text: str


class Checkpoint(SQLModel, table=True):
    """A checkpoint on a worker's disk; a step saved again replaces it."""

    run_id: str = _run_id(primary_key=True)
    step: int = Field(primary_key=True)
    attempt: int
    path: str
    size_bytes: int = Field(sa_type=BigInteger)
    validation_reward: float | None = None
    at: datetime = Field(sa_type=UtcDateTime)


class ReportId(SQLModel, table=True):
    """A report that was taken, so that its repetition changes nothing."""

    __tablename__ = "report_id"
    __table_args__ = {"sqlite_with_rowid": False}

    run_id: str = _run_id(primary_key=True)
    id: str = Field(primary_key=True)


class IdempotencyKey(SQLModel, table=True):
    """The run that a POST with this key made, and a hash of what was asked."""

    __tablename__ = "idempotency_key"

    key: str = Field(primary_key=True)
    run_id: str = _run_id(index=True)
    request_hash: str


class Baseline(SQLModel, table=True):
    """What doing nothing and the reference actions earn on a run's task."""

    __table_args__ = (Index(None, "domain", "task_id"),)

    run_id: str = _run_id(primary_key=True)
    task_id: str = Field(primary_key=True)
    domain: str
    do_nothing: float | None = None
    reference: float | None = None
