"""From a request to a run: preset and overrides become one config, checked against the tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.contract import (
    DEFAULT_KEY_VARIABLES,
    Engine,
    OpenAIUser,
    RunConfig,
    key_not_allowed,
    key_variables,
)
from app.presets import PRESETS
from app.problems import MOST_ERRORS, FieldProblem, field_problem, invalid
from app.run_documents import RunPlan, RunRequest, UserTokensEstimate
from app.tasks import catalogue, resolve_split

USER_TURNS = 8
"""Assumed turns of the user simulator in one conversation, for the estimate of its tokens."""

USER_SYSTEM_TOKENS = 1000
"""Assumed tokens of its guidelines and scenario, sent with every turn."""

MESSAGE_TOKENS = 80
"""Assumed tokens of one message of either side."""


@dataclass
class Resolved:
    """A config that may be queued, with what follows from it."""

    preset: str
    config: RunConfig
    train_tasks: list[str]
    validation_tasks: list[str]
    steps: int
    warnings: list[str] = field(default_factory=list)

    @property
    def validations(self) -> int:
        """How often it validates: before training, every ``every_steps``, and at the end."""
        every = self.config.validation.every_steps
        at_the_end = self.steps % every != 0
        return self.config.validation.before_training + self.steps // every + at_the_end

    @property
    def batch_rollouts(self) -> int:
        """Rollouts of one training step."""
        return self.config.training.batch_tasks * self.config.rollout.n

    @property
    def validation_rollouts(self) -> int:
        """Rollouts of one validation."""
        return len(self.validation_tasks) * self.config.validation.repeats


def resolve(
    request: RunRequest, default_preset: str, allowed_keys: str = DEFAULT_KEY_VARIABLES
) -> Resolved:
    """Resolves a request; ``allowed_keys`` lists the variables that may hold a key.

    Errors: ``Problem`` 422 that names every bad field by its path.
    """
    preset = request.preset if request.preset is not None else default_preset
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise invalid([FieldProblem(path="preset", message=f"no preset {preset!r}; try {known}")])
    merged = merge(PRESETS[preset], request.config)
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        problems = [_config_problem(item, merged) for item in errors[:MOST_ERRORS]]
        raise invalid(problems, more=len(errors) - len(problems)) from error
    _check_key(config, allowed_keys)
    return _checked(preset, config)


def _check_key(config: RunConfig, allowed_keys: str) -> None:
    user = config.user_simulator
    if not isinstance(user, OpenAIUser):
        return
    message = key_not_allowed(user.api_key_env, key_variables(allowed_keys), "the API")
    if message is not None:
        raise invalid([FieldProblem(path="config.user_simulator.api_key_env", message=message)])


def _config_problem(error: ErrorDetails, merged: dict[str, Any]) -> FieldProblem:
    """A config's error; where fields do not fit each other, its message begins with their path."""
    problem = field_problem(error, merged, ("config",))
    named = re.match(r"\w+(\.\w+)+", problem.message)
    if problem.path == "config" and named:
        problem.path = f"config.{named[0]}"
    return problem


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Merges deeply. A mapping of another ``kind`` replaces the base's instead: it is another
    thing, and fields of the old one would not fit it."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and _same_kind(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _same_kind(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return "kind" not in new or bool(new["kind"] == old.get("kind"))


def plan(resolved: Resolved) -> RunPlan:
    """What the run would do, for a person to look at before it is queued."""
    train = resolved.steps * resolved.batch_rollouts
    validation = resolved.validations * resolved.validation_rollouts
    return RunPlan(
        preset=resolved.preset,
        config=resolved.config,
        warnings=resolved.warnings,
        train_tasks=resolved.train_tasks,
        validation_tasks=resolved.validation_tasks,
        steps=resolved.steps,
        validations=resolved.validations,
        train_rollouts=train,
        validation_rollouts=validation,
        user_tokens_estimate=_user_tokens(resolved.config, train + validation),
    )


def _user_tokens(config: RunConfig, rollouts: int) -> UserTokensEstimate:
    if config.user_simulator.kind == "scripted":
        return UserTokensEstimate(
            prompt=0, completion=0, assumptions="a scripted user calls no model"
        )
    turns = min(USER_TURNS, max(1, config.rollout.max_steps // 2))
    # Turn k is sent the scenario and the 2k - 1 messages before it.
    prompt = turns * USER_SYSTEM_TOKENS + turns * turns * MESSAGE_TOKENS
    return UserTokensEstimate(
        prompt=rollouts * prompt,
        completion=rollouts * turns * MESSAGE_TOKENS,
        assumptions=(
            f"{turns} user turns a rollout, {USER_SYSTEM_TOKENS} tokens of guidelines and "
            f"scenario, {MESSAGE_TOKENS} tokens a message; retries not counted"
        ),
    )


def _checked(preset: str, config: RunConfig) -> Resolved:
    problems = _unknown_tasks(config)
    if problems:
        raise invalid(problems)
    try:
        train, validation = resolve_split(config)
    except ValueError as error:
        raise invalid([FieldProblem(path="config.split", message=str(error))]) from error
    training = config.training
    if training.batch_tasks > len(train):
        message = f"{training.batch_tasks} is more than the {len(train)} training tasks"
        raise invalid([FieldProblem(path="config.training.batch_tasks", message=message)])
    steps = training.epochs * (len(train) // training.batch_tasks)
    if training.max_steps is not None:
        steps = min(steps, training.max_steps)
    warnings = _warnings(config, train, validation)
    return Resolved(preset, config, train, validation, steps, warnings)


def _unknown_tasks(config: RunConfig) -> list[FieldProblem]:
    known = catalogue(config.domain).tasks
    problems = []
    for name in ("train_ids", "validation_ids"):
        unknown = [task for task in getattr(config.split, name) or [] if task not in known]
        if unknown:
            message = f"domain {config.domain} has no task {', '.join(map(repr, unknown[:5]))}"
            problems.append(FieldProblem(path=f"config.split.{name}", message=message))
    return problems


def _warnings(config: RunConfig, train: list[str], validation: list[str]) -> list[str]:
    """What is allowed, and yet should be known."""
    warnings = []
    both = set(train) & set(validation)
    if both:
        warnings.append(
            f"{len(both)} of {len(validation)} validation tasks are trained on too: the "
            "validation shows what was learned, not how it generalizes"
        )
    if config.split.only_nontrivial:
        warnings.append(
            "split.only_nontrivial leaves out training tasks that do-nothing passes, which is "
            "known only once the worker has measured it: there may be fewer steps than counted here"
        )
    tasks, mini_batch = config.training.batch_tasks, config.training.mini_batch
    if tasks % mini_batch:
        warnings.append(
            f"the {tasks} tasks of a step do not fill mini-batches of {mini_batch}: samples that "
            "are left over are dropped at random"
        )
    if config.model.path.startswith(("/", "./", "../")):
        warnings.append(f"the model path {config.model.path} must exist on the worker's machine")
    if config.user_simulator.kind == "openai":
        warnings.append(
            f"the worker needs {config.user_simulator.api_key_env}; conversations are sent to "
            f"{config.user_simulator.base_url or 'the OpenAI endpoint of its environment'}"
        )
    if "wandb" in config.tracking.backends:
        warnings.append("metrics are sent to Weights & Biases")
    if config.engine is Engine.GPU and config.resources.gpus_per_node == 0:
        warnings.append("the gpu engine with gpus_per_node 0 cannot start")
    return warnings
