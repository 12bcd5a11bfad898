"""Puts a run together from its config, and runs it."""

from __future__ import annotations

import asyncio
import functools
import math
import os
from pathlib import Path

import ray
from agent_framework.lab.lightning import AgentFrameworkTracer
from agentlightning import Trainer
from agentlightning.adapter import TracerTraceToTriplet
from agentlightning.runner import LitAgentRunner
from verl.utils.config import validate_config

from app.contract import (
    Engine,
    Phase,
    RunConfig,
    RunError,
    TaskBaseline,
    WarmStartConfig,
    split_tasks,
)
from worker.agent import TRAINED_AGENT, Tau2Agent
from worker.handover import STOP_REASON_NAME, AttemptInput, AttemptResult
from worker.reporter import Reporter
from worker.rollouts.baselines import baselines
from worker.rollouts.tasks import task_ids, tau2_splits
from worker.training.algorithm import TautrainVERL
from worker.training.daemon import TautrainDaemon
from worker.training.proxy import free_port, make_proxy_key
from worker.training.ray_cluster import start_ray
from worker.training.refusal import TRAINING_FAILED, ConfigRefused
from worker.training.runners import OnDeath, WatchedRunners
from worker.training.trainer import CpuTrainer, ReportingTrainer
from worker.training.verl_config import verl_overrides

RUNNER_POLL_SECONDS = 0.2
"""How soon a runner without work asks again; agentlightning's default is 5 s."""


def train(attempt: AttemptInput, reporter: Reporter) -> str | None:
    """Trains the run of a claim to its end; returns why it ended early, if it did.

    Raises:
        ConfigRefused: the config cannot be run.
        Exception: whatever ended training.
    """
    config, cache = attempt.claim.config, attempt.data_dir / "cache"
    train_ids, validation_ids = _split(config)
    reporter.progress(Phase.BASELINES)
    known = baselines(
        config.domain, list(dict.fromkeys([*train_ids, *validation_ids])), cache / "baselines"
    )
    reporter.baselines(known)
    if config.split.only_nontrivial:
        train_ids = _nontrivial(train_ids, known)
    total_steps = _report_plan(config, train_ids, validation_ids, reporter)
    policy = _policy(config, cache, reporter)
    algorithm = _algorithm(config, policy, total_steps, attempt, reporter)
    reporter.progress(Phase.STARTING, note="starting Ray and VERL")
    key = make_proxy_key()
    # On a GPU Ray's CPUs also hold VERL's own workers, one for each GPU and server.
    start_ray(config.resources.cpus if config.engine is Engine.CPU else None)
    try:
        agent = Tau2Agent(
            config,
            run_id=attempt.claim.run_id,
            attempt=attempt.claim.attempt,
            reporter=Reporter(attempt.reporter_config(), source="runner"),
            tokenizer_path=policy,
            api_key=key,
        )
        _trainer(config, algorithm, functools.partial(_runner_died, attempt)).fit(
            agent,
            [{"id": task_id} for task_id in train_ids],
            val_dataset=[{"id": task_id} for task_id in validation_ids],
        )
    finally:
        ray.shutdown()
    stop_file = attempt.attempt_dir / STOP_REASON_NAME
    return stop_file.read_text() if stop_file.exists() else None


def _split(config: RunConfig) -> tuple[list[str], list[str]]:
    """Ids of the training and of the validation tasks."""
    known = task_ids(config.domain)
    try:
        train_ids, validation_ids = split_tasks(config.split, known, tau2_splits(config.domain))
    except ValueError as error:
        raise ConfigRefused(f"split: {error}") from error
    unknown = sorted({*train_ids, *validation_ids} - set(known))
    if unknown:
        raise ConfigRefused(f"split: {config.domain} has no task {', '.join(unknown)}")
    return train_ids, validation_ids


def _nontrivial(train_ids: list[str], known: list[TaskBaseline]) -> list[str]:
    """The training tasks that doing nothing does not solve."""
    solved = {one.task_id for one in known if one.do_nothing is not None and one.do_nothing >= 1}
    return [task_id for task_id in train_ids if task_id not in solved]


def _report_plan(
    config: RunConfig, train_ids: list[str], validation_ids: list[str], reporter: Reporter
) -> int:
    """Tells the API what is going to be done; returns the number of steps."""
    training = config.training
    per_epoch = len(train_ids) // training.batch_tasks
    if not per_epoch:
        raise ConfigRefused(
            f"training.batch_tasks ({training.batch_tasks}) is more than the {len(train_ids)} "
            "tasks of the training split: there would be no step"
        )
    total_steps = min(training.max_steps or math.inf, per_epoch * training.epochs)
    reporter.plan(
        train_tasks=train_ids,
        validation_tasks=validation_ids,
        total_steps=int(total_steps),
        train_rollouts_per_step=training.batch_tasks * config.rollout.n,
        validation_rollouts=len(validation_ids) * config.validation.repeats,
    )
    return int(total_steps)


def _policy(config: RunConfig, cache: Path, reporter: Reporter) -> str:
    """Path of the model to start from; the tiny one is made and warm-started if need be."""
    if config.model.path != "tiny":
        return config.model.path
    from worker.cpu.demonstrations import ANSWERS, record_all
    from worker.cpu.warm_start import warm_started_policy

    reporter.progress(Phase.WARM_START)
    settings = config.model.warm_start or WarmStartConfig()

    def progress(step: int, steps: int, loss: float) -> None:
        note = f"warm start {step}/{steps}, loss {loss:.3f}"
        print(note, flush=True)
        reporter.progress(Phase.WARM_START, note=note)

    # The answers of all mock tasks, whichever are trained on: one policy serves every split.
    demonstrations = asyncio.run(record_all(list(ANSWERS)))
    folder, cached = warm_started_policy(
        demonstrations, settings, config.seed, cache / "policies", progress
    )
    reporter.event("policy_ready", {"path": str(folder), "cached": cached})
    return str(folder)


def _algorithm(
    config: RunConfig, policy: str, total_steps: int, attempt: AttemptInput, reporter: Reporter
) -> TautrainVERL:
    """The algorithm with its whole config, held against VERL's own validation."""
    on_cpu = config.engine is Engine.CPU
    checkpoints = attempt.data_dir / "checkpoints" / attempt.claim.run_id
    overrides = verl_overrides(
        config,
        model_path=policy,
        checkpoints=checkpoints,
        total_steps=total_steps,
        resume_from=_resume_from(attempt, reporter),
    )
    overrides["tautrain"] = {"attempt": str(attempt.path)}
    try:
        algorithm = TautrainVERL(
            overrides,
            trainer_cls=CpuTrainer if on_cpu else ReportingTrainer,
            daemon_cls=TautrainDaemon,
        )
        validate_config(
            algorithm.config,
            use_reference_policy=config.training.kl_loss,
            use_critic=False,
        )
    except Exception as error:
        # VERL, Hydra and OmegaConf refuse with exceptions of many kinds, AssertionError included.
        raise ConfigRefused(f"VERL refuses the config: {type(error).__name__}: {error}") from error
    return algorithm


def _resume_from(attempt: AttemptInput, reporter: Reporter) -> Path | None:
    """The checkpoint that the claim names, or None; said if it is not on this machine."""
    if attempt.claim.resume_from is None:
        return None
    folder = Path(attempt.claim.resume_from)
    if folder.is_dir():
        return folder
    reporter.event("checkpoint_not_here", {"path": str(folder), "then": "training starts anew"})
    return None


def _runner_died(attempt: AttemptInput, what: str) -> None:
    """Ends this process, and with it the attempt: rollouts of that runner would never end."""
    message = f"{what}; its rollouts are lost"
    print(message, flush=True)
    error = RunError(code=TRAINING_FAILED, message=message)
    AttemptResult(status="failed", error=error).write(attempt.attempt_dir)
    os._exit(1)


def _trainer(config: RunConfig, algorithm: TautrainVERL, on_death: OnDeath) -> Trainer:
    runners = config.rollout.runners
    # What it would send is turned away by ``worker.environment``.
    tracer = AgentFrameworkTracer()
    return Trainer(
        algorithm=algorithm,
        n_runners=runners,
        tracer=tracer,
        runner=LitAgentRunner(
            tracer=tracer,
            poll_interval=RUNNER_POLL_SECONDS,
            interval_jitter=RUNNER_POLL_SECONDS / 4,
        ),
        # Without agent_match the user simulator's turns become training data.
        adapter=TracerTraceToTriplet(agent_match=TRAINED_AGENT),
        strategy=WatchedRunners(runners, free_port(), on_death),
    )
