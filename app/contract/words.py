"""The base of every shared document, and the names that a run is described with."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


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
