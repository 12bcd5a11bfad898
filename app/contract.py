"""The words that the API and the workers share: run config, reports and worker calls.

This is the only module of ``app`` that ``worker`` may import. It depends on pydantic alone.
Every model refuses unknown fields, so a misspelt setting is an error with a path and never a
silent default.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_REPORTS_PER_BATCH = 500
"""Most reports the API takes in one call."""

LEASE_SECONDS = 60
"""How long a claim stays valid without a heartbeat."""

HEARTBEAT_SECONDS = 5
"""How often a worker renews its lease, and so how fast it learns of a cancel."""


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


class Outcome(StrEnum):
    """How a rollout ended. Only the judged ones carry a reward (see ``JUDGED``)."""

    COMPLETED = "completed"
    MAX_STEPS = "max_steps"
    CONTEXT_LIMIT = "context_limit"
    TOO_MANY_ERRORS = "too_many_errors"
    AGENT_ERROR = "agent_error"
    OUT_OF_SCOPE = "out_of_scope"
    USER_ERROR = "user_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    ENVIRONMENT_ERROR = "environment_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


JUDGED: frozenset[Outcome] = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.MAX_STEPS,
        Outcome.CONTEXT_LIMIT,
        Outcome.TOO_MANY_ERRORS,
        Outcome.AGENT_ERROR,
    }
)
"""Outcomes that the policy itself brought about; all others leave the reward ``None``."""


class RolloutMode(StrEnum):
    """Why a rollout was made."""

    TRAIN = "train"
    VALIDATION = "validation"
    DEBUG = "debug"


# --- the run config -----------------------------------------------------------------------------


class OpenAIUser(Words):
    """A chat model that plays the user, at an OpenAI-compatible endpoint."""

    kind: Literal["openai"] = "openai"
    model: str = Field("gpt-4.1", min_length=1)
    base_url: str | None = Field(
        None, description="Endpoint; None takes OPENAI_BASE_URL of the worker, else OpenAI's own."
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Z_][A-Z0-9_]*$",
        description="Name of the environment variable that holds the key; never the key itself.",
    )
    temperature: float = Field(0.0, ge=0, le=2)


class ScriptedUser(Words):
    """A user without a model: states its scenario, answers from it, ends the conversation."""

    kind: Literal["scripted"] = "scripted"


UserSimulator = Annotated[OpenAIUser | ScriptedUser, Field(discriminator="kind")]


class SplitConfig(Words):
    """Which tasks are trained on and which are validated on."""

    kind: Literal["seeded", "tau2", "ids"] = "seeded"
    seed: int = Field(42, description="Seed of the shuffle (kind: seeded).")
    train_fraction: float = Field(0.5, gt=0, lt=1)
    train_ids: list[str] | None = None
    validation_ids: list[str] | None = None
    only_nontrivial: bool = Field(False, description="Train only on tasks that do-nothing fails.")

    @model_validator(mode="after")
    def _ids_when_asked_for(self) -> SplitConfig:
        if self.kind == "ids" and not (self.train_ids and self.validation_ids):
            raise ValueError("kind 'ids' needs train_ids and validation_ids, each with a task")
        if self.kind != "ids" and (self.train_ids or self.validation_ids):
            raise ValueError("train_ids and validation_ids need kind 'ids'")
        for name in ("train_ids", "validation_ids"):
            ids = getattr(self, name) or []
            if len(set(ids)) != len(ids):
                raise ValueError(f"{name} names a task twice")
        return self


class WarmStartConfig(Words):
    """Supervised learning, before RL, of a tiny policy on a mix of right and wrong answers."""

    steps: int = Field(80, ge=1, le=100_000)
    learning_rate: float = Field(8e-3, gt=0, le=1)
    right_fraction: float = Field(
        0.35, gt=0, lt=1, description="Share of right answers in the mix, per task."
    )


class ModelConfig(Words):
    """The policy: a path, a model id, or ``tiny`` for the one made by code from the seed."""

    path: str = Field("tiny", min_length=1)
    lora_rank: int = Field(0, ge=0)
    remove_padding: bool = False
    gradient_checkpointing: bool = False
    attention: Literal["sdpa", "flash_attention_2", "eager"] | None = Field(
        None, description="None leaves the choice to the engine."
    )
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    warm_start: WarmStartConfig | None = None


class RolloutConfig(Words):
    """How conversations are made."""

    n: int = Field(8, ge=1, le=1024, description="Rollouts of each task in a step: the group.")
    temperature: float = Field(1.0, ge=0, le=2)
    max_steps: int = Field(80, ge=1, le=10_000, description="τ² steps of one conversation.")
    max_errors: int = Field(10, ge=1, description="Tool errors before the conversation ends.")
    window_tokens: int = Field(4000, ge=64, description="What the assistant sees of the past.")
    runners: int = Field(4, ge=1, le=256, description="Processes that hold conversations.")
    timeout_seconds: float = Field(600, gt=0, le=86_400)
    max_attempts: int = Field(3, ge=1, le=100, description="Tries of one rollout.")
    tool_format: Literal["hermes"] = "hermes"


class ValidationConfig(Words):
    """When and how the policy is measured."""

    before_training: bool = True
    every_steps: int = Field(4, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    repeats: int = Field(1, ge=1, le=64)
    min_coverage: float = Field(0.9, ge=0, le=1)


class TrainingConfig(Words):
    """GRPO under VERL."""

    algorithm: Literal["grpo"] = "grpo"
    epochs: int = Field(8, ge=1, le=100_000)
    max_steps: int | None = Field(None, ge=1, description="Stops before the epochs are through.")
    batch_tasks: int = Field(8, ge=1, le=100_000)
    learning_rate: float = Field(1e-6, gt=0, le=1)
    weight_decay: float = Field(0.01, ge=0)
    gradient_clip: float = Field(1.0, gt=0)
    ppo_epochs: int = Field(1, ge=1)
    mini_batch: int = Field(8, ge=1, description="Tasks of one update; VERL multiplies by n.")
    micro_batch: int = Field(4, ge=1, description="Samples of one forward pass.")
    log_prob_micro_batch: int = Field(4, ge=1)
    reference_log_prob_micro_batch: int = Field(8, ge=1)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.3, gt=0)
    kl_loss: bool = False
    kl_coefficient: float = Field(0.0, ge=0)
    entropy_coefficient: float = Field(0.0, ge=0)
    max_prompt_tokens: int = Field(8192, ge=16)
    max_response_tokens: int = Field(2048, ge=1)
    sample_level: Literal["transition", "trajectory"] = Field(
        "transition", description="A training sample is one assistant turn, or a whole rollout."
    )
    trajectory_response_tokens: int = Field(8192, ge=1)
    save_every: int = Field(4, ge=1)
    keep_checkpoints: int = Field(2, ge=1)


class RewardConfig(Words):
    """What the trainer is given. Every reward shown is τ²'s own."""

    shape: Literal["tau2"] = "tau2"
    control: Literal["none", "coin_flip"] = Field(
        "none", description="coin_flip is the negative control: the trainer learns from chance."
    )


class BudgetConfig(Words):
    """What a run may spend."""

    max_seconds: float | None = Field(
        None, gt=0, description="Wall clock of an attempt; the step after it is the last."
    )


class ResourcesConfig(Words):
    """The machines a run takes."""

    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(1, ge=0)
    tensor_parallel: int = Field(1, ge=1)
    gpu_memory_utilization: float = Field(0.8, gt=0, le=1)
    offload_parameters: bool = True
    offload_optimizer: bool = True
    cpus: int = Field(2, ge=1, description="CPUs that Ray may count on (CPU engine).")


class TrackingConfig(Words):
    """Where metrics go besides this service. Empty means: nothing leaves the machine."""

    backends: list[Literal["console", "wandb", "tensorboard"]] = Field(default_factory=list)
    project: str | None = None
    experiment: str | None = None


class RunConfig(Words):
    """Everything that decides a run, with every default filled in."""

    domain: Domain = Domain.MOCK
    engine: Engine = Engine.CPU
    seed: int = Field(0, ge=0, lt=2**31)
    split: SplitConfig = Field(default_factory=SplitConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    user_simulator: UserSimulator = Field(default_factory=ScriptedUser)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
    max_run_attempts: int = Field(3, ge=1, le=100)
    verl: dict[str, Any] = Field(
        default_factory=dict, description="Merged last into VERL's own config, as it is."
    )

    @model_validator(mode="after")
    def _engine_fits(self) -> RunConfig:
        if self.engine is not Engine.CPU:
            return self
        model, resources = self.model, self.resources
        for refused, path, value in (
            (model.lora_rank > 0, "model.lora_rank", model.lora_rank),
            (model.remove_padding, "model.remove_padding", model.remove_padding),
            (model.attention not in (None, "sdpa"), "model.attention", model.attention),
            (resources.nodes > 1, "resources.nodes", resources.nodes),
            (resources.tensor_parallel > 1, "resources.tensor_parallel", resources.tensor_parallel),
        ):
            if refused:
                raise ValueError(f"{path} ({value}) is not supported by engine 'cpu'")
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> RunConfig:
        training, n = self.training, self.rollout.n
        if training.mini_batch > training.batch_tasks:
            raise ValueError(
                f"training.mini_batch ({training.mini_batch} tasks) is more than "
                f"training.batch_tasks ({training.batch_tasks}): no update would be made"
            )
        if (training.mini_batch * n) % training.micro_batch:
            raise ValueError(
                f"training.micro_batch ({training.micro_batch}) must divide training.mini_batch "
                f"times rollout.n ({training.mini_batch * n} samples): VERL would scale the loss "
                "wrongly"
            )
        return self


# --- one rollout --------------------------------------------------------------------------------


class ToolCallDoc(Words):
    """A tool call of a message; ``arguments`` stays text where it is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class MessageDoc(Words):
    """One message of a conversation, in the order it was said."""

    role: Literal["system", "assistant", "user", "tool"]
    content: str | None = None
    tool_calls: list[ToolCallDoc] | None = None
    tool_call_id: str | None = None
    requestor: Literal["assistant", "user"] | None = Field(
        None, description="Whose tool call a tool message answers."
    )
    error: bool | None = None
    at: datetime | None = None


class CheckDoc(Words):
    """One thing the evaluator looked at."""

    kind: Literal["db", "communicate", "action", "env_assertion", "nl_assertion"]
    what: str
    passed: bool


class TokensDoc(Words):
    """Tokens of all calls of one rollout."""

    assistant_prompt: int = 0
    assistant_completion: int = 0
    user_prompt: int = 0
    user_completion: int = 0


class SecondsDoc(Words):
    """Where the wall clock of one rollout went."""

    total: float = 0.0
    assistant: float = 0.0
    user: float = 0.0
    environment: float = 0.0
    evaluation: float = 0.0


class RolloutDoc(Words):
    """One conversation and its judgement."""

    id: str
    run_id: str | None = None
    attempt: int | None = None
    step: int | None = None
    mode: RolloutMode
    domain: Domain
    task_id: str
    outcome: Outcome
    termination: str | None = None
    cause: str | None = Field(None, description="Why it is not simply completed.")
    reward: float | None = None
    shaped_reward: float | None = None
    reward_breakdown: dict[str, float] = Field(default_factory=dict)
    checks: list[CheckDoc] = Field(default_factory=list)
    turns: int = 0
    tokens: TokensDoc = Field(default_factory=TokensDoc)
    seconds: SecondsDoc = Field(default_factory=SecondsDoc)
    messages: list[MessageDoc] = Field(default_factory=list)
    text_repaired: bool = False

    @model_validator(mode="after")
    def _a_reward_only_where_judged(self) -> RolloutDoc:
        if (self.reward is not None) != (self.outcome in JUDGED):
            raise ValueError(f"outcome {self.outcome} and reward {self.reward} do not fit")
        return self


# --- reports of a worker ------------------------------------------------------------------------


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
    """Something worth telling a person."""

    kind: Literal["event"] = "event"
    type: str
    data: dict[str, Any] = Field(default_factory=dict)


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


Report = Annotated[
    MetricsReport
    | RolloutReport
    | PlanReport
    | BaselinesReport
    | ProgressReport
    | EventReport
    | LogReport
    | CheckpointReport,
    Field(discriminator="kind"),
]


# --- worker calls -------------------------------------------------------------------------------


class WorkerRegistration(Words):
    """What a worker says of itself. ``name`` is for people; the API makes the id."""

    name: str = Field(min_length=1, max_length=200)
    engines: list[Engine] = Field(min_length=1)
    cpus: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)
    gpus: int = Field(0, ge=0)
    versions: dict[str, str] = Field(default_factory=dict)


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


class ReportBatch(Words):
    """Reports of one sender, oldest first."""

    lease_token: str
    reports: list[Report] = Field(min_length=1, max_length=MAX_REPORTS_PER_BATCH)


class ReportAnswer(Words):
    """How many reports were new. What this answer counts is on disk."""

    accepted: int
    repeated: int


class RunError(Words):
    """Why a run failed."""

    code: str
    message: str
    log_tail: list[str] = Field(default_factory=list)


class FinishRequest(Words):
    """The end of an attempt."""

    lease_token: str
    status: Literal["succeeded", "failed", "cancelled", "handed_back"]
    error: RunError | None = None
    stop_reason: str | None = None


# --- debug rollouts -----------------------------------------------------------------------------


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


# --- the split of tasks -------------------------------------------------------------------------


def split_tasks(
    split: SplitConfig, base_ids: list[str], tau2_splits: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Which tasks a run trains on and which it validates on.

    ``base_ids`` are the ids of the domain's ``base`` split in the order of its task file,
    ``tau2_splits`` the domain's own split file. ``seeded`` is the published recipe's: the indices,
    shuffled by ``random.Random(seed)``, the first ``train_fraction`` of them for training.
    ``tau2`` takes the file's ``train`` and, for validation, its ``test``. ``only_nontrivial``
    needs baselines, so it is applied by the worker, afterwards.

    Returns the ids for training and for validation. Errors: ``ValueError`` when one of them would
    be empty or the domain has no such split.
    """
    if split.kind == "ids":
        train, validation = split.train_ids or [], split.validation_ids or []
    elif split.kind == "tau2":
        missing = [name for name in ("train", "test") if not tau2_splits.get(name)]
        if missing:
            raise ValueError(f"the domain has no τ² split {' and '.join(missing)}")
        train, validation = tau2_splits["train"], tau2_splits["test"]
    else:
        indices = list(range(len(base_ids)))
        random.Random(split.seed).shuffle(indices)
        cut = int(len(indices) * split.train_fraction)
        train = [base_ids[index] for index in indices[:cut]]
        validation = [base_ids[index] for index in indices[cut:]]
    for name, ids in (("training", train), ("validation", validation)):
        if not ids:
            raise ValueError(f"no task is left for {name}")
    return list(train), list(validation)
