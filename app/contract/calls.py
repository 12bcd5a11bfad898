"""What workers and the API say to each other about runs, and debug rollouts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.contract.config import RunConfig, ScriptedUser, UserSimulator
from app.contract.reports import Report
from app.contract.words import Amount, Domain, Engine, Words

MAX_REPORTS_PER_BATCH = 500
"""Most reports the API takes in one call."""

LEASE_SECONDS = 60
"""How long a claim stays valid without a heartbeat."""

HEARTBEAT_SECONDS = 5
"""How often a worker renews its lease, and so how fast it learns of a cancel."""


class WorkerRegistration(Words):
    """What a worker says of itself. ``name`` is for people; the API makes the id."""

    name: str = Field(min_length=1, max_length=200)
    engines: list[Engine] = Field(min_length=1, max_length=10)
    cpus: int = Field(ge=1, le=1_000_000)
    memory_bytes: Amount
    gpus: int = Field(0, ge=0, le=1_000_000)
    versions: dict[str, str] = Field(default_factory=dict, max_length=200)


class WorkerRegistered(Words):
    """The API's answer to a registration."""

    id: str


class ClaimRequest(Words):
    """Asks for a run; the API holds the answer back up to ``wait_seconds``."""

    wait_seconds: float = Field(20, ge=0, le=60)


class Claim(Words):
    """A run, and the right to report on it until the lease lapses."""

    run_id: str
    name: str
    attempt: int
    lease_token: str
    lease_seconds: float
    config: RunConfig
    resume_from: str | None = Field(None, description="Path of the checkpoint to continue from.")


class HeartbeatRequest(Words):
    """Renews a lease."""

    lease_token: str


class HeartbeatAnswer(Words):
    """What the worker has to know."""

    cancel: bool
    lease_seconds: float
    spent: str | None = Field(
        None, description="Field of a budget that is spent: the run is to end after its step."
    )


class ReportBatch(Words):
    """Reports of one sender, oldest first."""

    lease_token: str
    reports: list[Report] = Field(min_length=1, max_length=MAX_REPORTS_PER_BATCH, fail_fast=True)


class ReportAnswer(Words):
    """How many reports were new. What this answer counts is on disk."""

    accepted: int
    repeated: int


class RunError(Words):
    """Why a run failed."""

    code: str
    message: str
    log_tail: list[str] = Field(default_factory=list, max_length=1_000, fail_fast=True)


class FinishRequest(Words):
    """The end of an attempt."""

    lease_token: str
    status: Literal["succeeded", "failed", "cancelled", "handed_back"]
    error: RunError | None = None
    stop_reason: str | None = None

    @model_validator(mode="after")
    def _success_has_no_error(self) -> FinishRequest:
        if self.status == "succeeded" and self.error is not None:
            raise ValueError("a run that succeeded has no error")
        return self


class OpenAIAssistant(Words):
    """A chat model as the assistant."""

    kind: Literal["openai"] = "openai"
    model: str = Field(min_length=1)
    base_url: str | None = None
    api_key_env: str = Field("OPENAI_API_KEY", pattern=r"^[A-Z_][A-Z0-9_]*$")
    temperature: float = Field(0.0, ge=0, le=2)


class ReferenceAssistant(Words):
    """Replays the task's reference actions, then says each required string."""

    kind: Literal["reference"] = "reference"


class DoNothingAssistant(Words):
    """Greets, and changes nothing."""

    kind: Literal["do_nothing"] = "do_nothing"


Assistant = Annotated[
    OpenAIAssistant | ReferenceAssistant | DoNothingAssistant, Field(discriminator="kind")
]


class DebugRollout(Words):
    """One task, one conversation, now."""

    domain: Domain = Domain.MOCK
    task_id: str = Field(min_length=1)
    assistant: Assistant = Field(default_factory=ReferenceAssistant)
    user_simulator: UserSimulator = Field(default_factory=ScriptedUser)
    max_steps: int = Field(80, ge=1, le=1000)
    max_errors: int = Field(10, ge=1, le=1000)
    window_tokens: int = Field(4000, ge=64)
    deadline_seconds: float = Field(120, gt=0, le=3600)
