"""One conversation and its judgement."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from app.contract.words import Amount, Domain, Moment, Reward, Seconds, StepNumber, Words

RolloutId = Annotated[str, Field(pattern=r"^ro_[0-9A-Za-z_-]{1,64}$")]
"""A rollout's id: a path segment and a cursor, whoever made it."""


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


class ToolCallDoc(Words):
    """A tool call of a message; ``arguments`` stays text where it is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class MessageDoc(Words):
    """One message of a conversation, in the order it was said."""

    role: Literal["system", "assistant", "user", "tool"]
    content: str | None = None
    tool_calls: list[ToolCallDoc] | None = Field(
        None,
        max_length=1_000,
        fail_fast=True,
        description="A babbling policy writes many in one message.",
    )
    tool_call_id: str | None = None
    requestor: Literal["assistant", "user"] | None = Field(
        None, description="Whose tool call a tool message answers."
    )
    error: bool | None = None
    at: Moment | None = None


class CheckDoc(Words):
    """One thing the evaluator looked at."""

    kind: Literal["db", "communicate", "action", "env_assertion", "nl_assertion"]
    what: str
    passed: bool


class TokensDoc(Words):
    """Tokens of all calls of one rollout."""

    assistant_prompt: Amount = 0
    assistant_completion: Amount = 0
    user_prompt: Amount = 0
    user_completion: Amount = 0


class SecondsDoc(Words):
    """Where the wall clock of one rollout went."""

    total: Seconds = 0.0
    assistant: Seconds = 0.0
    user: Seconds = 0.0
    environment: Seconds = 0.0
    evaluation: Seconds = 0.0


class RolloutDoc(Words):
    """One conversation and its judgement."""

    id: RolloutId
    run_id: str | None = None
    attempt: StepNumber | None = None
    step: StepNumber | None = None
    mode: RolloutMode
    domain: Domain
    task_id: str = Field(max_length=500)
    outcome: Outcome
    termination: str | None = None
    cause: str | None = Field(None, description="Why it is not simply completed.")
    reward: Reward | None = None
    shaped_reward: Reward | None = None
    reward_breakdown: dict[str, Reward] = Field(default_factory=dict, max_length=1_000)
    checks: list[CheckDoc] = Field(default_factory=list, max_length=1_000, fail_fast=True)
    turns: StepNumber = 0
    tokens: TokensDoc = Field(default_factory=TokensDoc)
    seconds: SecondsDoc = Field(default_factory=SecondsDoc)
    messages: list[MessageDoc] = Field(default_factory=list, max_length=10_000, fail_fast=True)
    text_repaired: bool = False

    @model_validator(mode="after")
    def _a_reward_only_where_judged(self) -> RolloutDoc:
        if (self.reward is not None) != (self.outcome in JUDGED):
            raise ValueError(f"outcome {self.outcome} and reward {self.reward} do not fit")
        return self
