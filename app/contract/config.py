"""The run config: everything that decides a run.

Every model refuses unknown fields, so a misspelt setting is an error with a path and never a
silent default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from app.contract.verl_mapping import refuse_owned
from app.contract.words import Domain, Engine, TaskIds, Words


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
    train_ids: TaskIds | None = None
    validation_ids: TaskIds | None = None
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
    temperature: float = Field(1.0, gt=0, le=2, description="VERL divides by it: never 0.")
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

    shape: Literal["tau2", "partial"] = Field(
        "tau2",
        description="partial: the mean of the parts of the task's reward basis, for training.",
    )
    control: Literal["none", "coin_flip"] = Field(
        "none", description="coin_flip is the negative control: the trainer learns from chance."
    )


class BudgetConfig(Words):
    """What a run may spend."""

    max_seconds: float | None = Field(
        None, gt=0, description="Wall clock of an attempt; the run ends after the step."
    )
    max_user_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt and completion tokens of the user simulator; the run ends after the "
        "step in which they are spent.",
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

    @field_validator("nodes")
    @classmethod
    def _one_machine(cls, nodes: int) -> int:
        if nodes > 1:
            raise ValueError(
                f"resources.nodes ({nodes}) is not supported yet: Ray of a run listens on loopback"
            )
        return nodes


class TrackingConfig(Words):
    """Where metrics go besides this service. Empty means: nothing leaves the machine."""

    backends: list[Literal["console", "wandb", "tensorboard"]] = Field(
        default_factory=list, max_length=10
    )
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
        default_factory=dict,
        description="Merged last into VERL's own config; what a field above decides is refused.",
    )

    @model_validator(mode="after")
    def _verl_leaves_ours_alone(self) -> RunConfig:
        refuse_owned(self.verl)
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> RunConfig:
        if self.engine is not Engine.CPU:
            return self
        model, resources = self.model, self.resources
        for refused, path, value in (
            (model.lora_rank > 0, "model.lora_rank", model.lora_rank),
            (model.remove_padding, "model.remove_padding", model.remove_padding),
            (model.attention not in (None, "sdpa"), "model.attention", model.attention),
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
        samples = training.mini_batch * n
        if training.micro_batch < samples and samples % training.micro_batch:
            raise ValueError(
                f"training.micro_batch ({training.micro_batch}) must divide training.mini_batch "
                f"times rollout.n ({samples} samples): VERL would scale the loss "
                "wrongly"
            )
        return self
