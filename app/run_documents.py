"""The documents about runs that people and their programs send and get. ``null`` means not known
yet, never 0."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.contract import Domain, Engine, Outcome, Phase, RunConfig, RunError, RunStatus

Tag = Annotated[str, StringConstraints(pattern=r"^[\w.:/+-]{1,64}$")]


class RunRequest(BaseModel):
    """What to train: a preset, and single fields of it changed. ``{}`` is valid."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, min_length=1, max_length=200)
    preset: str | None = Field(
        None, description="None takes the GPU preset where a live worker has a GPU, else tiny-cpu."
    )
    config: dict[str, Any] = Field(default_factory=dict, description="Overrides of the preset.")
    tags: list[Tag] = Field(default_factory=list, max_length=32)


class UserTokensEstimate(BaseModel):
    """Tokens of the user simulator over the whole run, and what the figure assumes."""

    prompt: int
    completion: int
    assumptions: str


class RunPlan(BaseModel):
    """What a request would run."""

    preset: str
    config: RunConfig
    warnings: list[str]
    train_tasks: list[str]
    validation_tasks: list[str]
    steps: int
    validations: int
    train_rollouts: int
    validation_rollouts: int
    user_tokens_estimate: UserTokensEstimate


class Baselines(BaseModel):
    """Mean rewards of doing nothing and of the reference actions."""

    do_nothing: float | None
    reference: float | None


class Progress(BaseModel):
    """How far the newest attempt is."""

    epoch: int
    step: int
    total_steps: int | None
    eta_seconds: int | None


class TrainPoint(BaseModel):
    """Rewards of one training step. Means are over judged rollouts."""

    step: int
    reward_mean: float | None
    reward_p10: float | None
    reward_p90: float | None
    shaped_reward_mean: float | None
    planned: int | None = Field(
        description="Rollouts of a step; fewer under rollouts: some are lost, or not there yet."
    )
    rollouts: int
    judged: int
    groups_without_signal: int = Field(
        description="Tasks with at least two judged rollouts, all of the same reward."
    )
    at: datetime


class ValidationPoint(BaseModel):
    """Rewards of one validation; step 0 is before training."""

    step: int
    reward_mean: float | None
    reward_p10: float | None
    reward_p90: float | None
    reward_mean_nontrivial: float | None = Field(
        description="Over the tasks that do-nothing fails."
    )
    lift: float | None = Field(description="reward_mean less the do-nothing mean of those tasks.")
    planned: int | None
    rollouts: int
    judged: int
    coverage: float | None = Field(description="judged of planned")
    complete: bool = Field(
        description="Whether coverage is at least the config's validation.min_coverage."
    )
    pass_hat: dict[str, float] = Field(
        description="pass^k by k: the chance that k tries of a task all succeed."
    )
    groups_without_signal: int
    at: datetime


class TrainCurve(BaseModel):
    """Rewards over training steps, with the baselines of the training tasks."""

    points: list[TrainPoint]
    baselines: Baselines


class ValidationCurve(BaseModel):
    """Validations, with the baselines of the validation tasks."""

    points: list[ValidationPoint]
    baselines: Baselines
    tasks: int
    trained_on: int = Field(description="How many of these tasks are also trained on.")


class Curves(BaseModel):
    """Both reward curves."""

    train: TrainCurve
    validation: ValidationCurve


class AttemptDoc(BaseModel):
    """One claim of a run by a worker."""

    number: int
    worker: str
    status: str
    claimed_at: datetime
    finished_at: datetime | None
    resume_from: str | None
    stop_reason: str | None
    error: RunError | None


class UserTokens(BaseModel):
    """Tokens that the user simulator has used, and the cap on them."""

    prompt: int
    completion: int
    budget: int | None


class BestCheckpoint(BaseModel):
    """The checkpoint with the best validation reward."""

    step: int
    validation_reward: float
    path: str


class RunLinks(BaseModel):
    """Where the rest of a run is."""

    rollouts: str
    events: str
    logs: str
    metrics: str
    checkpoints: str
    tracker: str | None


class RunItem(BaseModel):
    """A run, as lists have it."""

    id: str
    name: str
    preset: str
    tags: list[str]
    domain: Domain
    engine: Engine
    status: RunStatus
    phase: Phase | None
    attempt: int
    worker: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: Progress
    config_overrides: dict[str, Any]
    error: RunError | None
    stop_reason: str | None
    retry_of: str | None
    outcomes: dict[Outcome, int]
    user_tokens: UserTokens
    best_checkpoint: BestCheckpoint | None
    links: RunLinks


class RunDoc(RunItem):
    """A run with its config, curves and attempts."""

    config: RunConfig
    curves: Curves
    attempts: list[AttemptDoc]
    non_finite_metrics: int = Field(description="Metric values that were NaN or infinite.")
    warnings: list[str] = Field(default_factory=list, description="Only on creation.")


class RunPage(BaseModel):
    """A page of runs, newest first."""

    items: list[RunItem]
    next_cursor: str | None
