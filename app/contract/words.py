"""The base of every shared document, and the names that a run is described with."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LARGEST_STEP = 2**31 - 1
"""Largest step, epoch or number of rollouts: what the database's columns and the queries take."""

MOST_TASKS = 10_000
"""Most tasks that one list names."""


def _utc(at: datetime) -> datetime:
    """The time in UTC; one without a zone is taken as UTC."""
    if at.tzinfo is None:
        return at.replace(tzinfo=UTC)
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("the time lies outside the years 1 to 9999 of UTC") from None


Moment = Annotated[datetime, AfterValidator(_utc)]
"""A time, kept in UTC whatever zone it was sent in."""

Amount = Annotated[int, Field(ge=0, le=2**53)]
"""A count of tokens or bytes: what a JSON reader of any language holds without loss."""

StepNumber = Annotated[int, Field(ge=0, le=LARGEST_STEP)]
"""A step, an epoch, or how many rollouts or steps there are."""

Reward = Annotated[float, Field(ge=-1e6, le=1e6)]
"""A reward or a mean of rewards: sums over a run stay finite."""

Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""A duration."""

TaskIds = Annotated[
    list[Annotated[str, Field(max_length=500)]], Field(max_length=MOST_TASKS, fail_fast=True)
]
"""Names of tasks.

Long lists fail fast: the first wrong item is enough to know, and a million errors help nobody."""


class Words(BaseModel):
    """Base of every shared document: unknown fields are refused, floats must be finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Domain(StrEnum):
    """A τ²-bench domain."""

    MOCK = "mock"
    AIRLINE = "airline"
    RETAIL = "retail"
    TELECOM = "telecom"


class Engine(StrEnum):
    """What runs the policy: VERL's FSDP actor with vLLM, or our CPU engine."""

    CPU = "cpu"
    GPU = "gpu"


class RunStatus(StrEnum):
    """Where a run stands; the lawful changes are in ``app/lifecycle.py``."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """What a running attempt is doing."""

    STARTING = "starting"
    WARM_START = "warm_start"
    BASELINES = "baselines"
    VALIDATING = "validating"
    ROLLOUT = "rollout"
    UPDATE = "update"
    CHECKPOINT = "checkpoint"
